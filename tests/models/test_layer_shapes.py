"""Keras layers of random shapes and options compute the same in plaintext as in Keras."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.models.test_from_keras import FLOAT32, largest_difference, shake_weights
from tfe_bench.models.convert import verify
from tfe_bench.models.convert.from_keras import from_keras
from tfe_bench.models.convert.optimize import optimize_graph

keras: Any = pytest.importorskip("keras")
L: Any = keras.layers
Random = np.random.Generator
Drawn = tuple[Any, tuple[int, ...]]
_TURNS = 4


def draw_sizes(rng: Random, axes: int, low: int, high: int) -> tuple[int, ...]:
    return tuple(int(n) for n in rng.integers(low, high + 1, axes))


def draw_windows(rng: Random, axes: int, paddings: tuple[str, ...] = ("same", "valid")) -> Any:
    """Draw options of a convolution: strides or dilations."""
    options = {"padding": str(rng.choice(paddings)), "use_bias": bool(rng.integers(2))}
    if rng.integers(2):
        return {**options, "strides": int(rng.integers(1, 4))}
    return {**options, "dilation_rate": draw_sizes(rng, axes, 1, 3)}


def draw_convolution(name: str, axes: int, groups: int = 1) -> Callable[[Random], Drawn]:
    def draw(rng: Random) -> Drawn:
        causal = name == "Conv1D"
        options = draw_windows(rng, axes, ("same", "valid", *(("causal",) if causal else ())))
        options["activation"] = str(rng.choice(["relu", "linear", "softmax"]))
        if "Depthwise" in name:
            options["depth_multiplier"] = int(rng.integers(1, 3))
        else:
            options["filters"] = groups * int(rng.integers(1, 4))
        if groups > 1:
            options["groups"] = groups
        size = draw_sizes(rng, axes, 1, 3)
        if axes == 3 and options.get("strides", 1) > min(size):
            options["padding"] = "valid"  # (without oneDNN, Keras computes wrong values otherwise)
        if "Transpose" in name and options.get("strides", 1) > 1 and rng.integers(2):
            # (Keras itself fails for 0 at the border of windows of 2)
            least = int(options["padding"] == "same" and 2 in size)
            options["output_padding"] = int(rng.integers(least, options["strides"]))
        return getattr(L, name)(kernel_size=size, **options), (
            *draw_sizes(rng, axes, 9, 12),
            2 * groups,
        )

    return draw


def draw_pooling(name: str, axes: int) -> Callable[[Random], Drawn]:
    def draw(rng: Random) -> Drawn:
        size = draw_sizes(rng, axes, 1, 3)
        options: dict[str, Any] = {
            "strides": None if rng.integers(2) else int(rng.integers(1, 4)),
            "padding": str(rng.choice(["same", "valid"])),
        }
        if axes == 3 and (options["strides"] or 1) > min(size):
            options["padding"] = "valid"  # (without oneDNN, Keras computes wrong values otherwise)
        return getattr(L, name)(size, **options), (*draw_sizes(rng, axes, 4, 7), 2)

    return draw


def draw_global_pooling(name: str, axes: int) -> Callable[[Random], Drawn]:
    def draw(rng: Random) -> Drawn:
        return getattr(L, name)(keepdims=bool(rng.integers(2))), (*draw_sizes(rng, axes, 1, 4), 3)

    return draw


def of_axes(name: str, axes: int, low: int = 0) -> Callable[[Random], Drawn]:
    """Draw zero padding, cropping and upsampling."""

    def draw(rng: Random) -> Drawn:
        if name.startswith("UpSampling"):
            size: Any = draw_sizes(rng, axes, 1, 3)
        else:
            size = tuple(draw_sizes(rng, 2, 0, 2) for _ in range(axes))
        return getattr(L, name)(size[0] if axes == 1 else size), (*draw_sizes(rng, axes, 5, 7), 2)

    return draw


def draw_normalization(name: str) -> Callable[[Random], Drawn]:
    def draw(rng: Random) -> Drawn:
        shape = draw_sizes(rng, 3, 2, 5)
        options: dict[str, Any] = {}
        axes = sorted({int(n) for n in rng.integers(1, 4, 2)})
        if name == "GroupNormalization":
            axis = int(rng.choice([-1, 1, 2, 3]))
            options = {"groups": int(rng.choice([-1, 1, shape[axis - (axis > 0)]])), "axis": axis}
        elif rng.integers(2):
            options = {"axis": axes if name != "RMSNormalization" else [*range(axes[0], 4)]}
        if name in ("GroupNormalization", "LayerNormalization"):
            options |= {k: bool(rng.integers(2)) for k in ("center", "scale")}
        if name != "UnitNormalization":
            options["epsilon"] = float(rng.choice([1e-6, 1e-3, 0.5]))
        return getattr(L, name)(**options), shape

    return draw


def draw_resizing(rng: Random) -> Drawn:
    shape = (*draw_sizes(rng, 2, 2, 7), 2)
    form = {"interpolation": str(rng.choice(["nearest", "bilinear", "bicubic"]))}
    if rng.integers(2):
        return L.UpSampling2D(draw_sizes(rng, 2, 1, 3), **form), shape
    return L.Resizing(*draw_sizes(rng, 2, 1, 9), **form), shape


def draw_adaptive_pooling(name: str, axes: int) -> Callable[[Random], Drawn]:
    def draw(rng: Random) -> Drawn:
        new = draw_sizes(rng, axes, 2, 4)  # (Keras divides by 0 for a size of 1)
        old = tuple(n * int(k) for n, k in zip(new, rng.integers(1, 4, axes), strict=True))
        if "Average" in name and axes < 3:
            old = tuple(n + int(k) for n, k in zip(new, rng.integers(0, 5, axes), strict=True))
        return getattr(L, name)(new if axes > 1 else new[0]), (*old, 2)

    return draw


NORMALIZATIONS = tuple(f"{kind}Normalization" for kind in ("Layer", "RMS", "Group", "Unit"))


def rows_of_families() -> dict[str, Callable[[Random], Drawn]]:
    pools = [(f"{kind}Pooling{n}D", n) for kind in ("Average", "Max") for n in (1, 2, 3)]
    return {
        **{
            name + str(groups): draw_convolution(name, axes, groups)
            for name, axes, groups in (
                *(("Conv1D", 1, 1), ("Conv2D", 2, 1), ("Conv1D", 1, 3), ("Conv2D", 2, 3)),
                ("Conv3D", 3, 1),
                *(("SeparableConv1D", 1, 1), ("SeparableConv2D", 2, 1)),
                *(("DepthwiseConv1D", 1, 1), ("DepthwiseConv2D", 2, 1)),
                *(("Conv1DTranspose", 1, 1), ("Conv2DTranspose", 2, 1)),
            )
        },
        **{name: draw_pooling(name, axes) for name, axes in pools},
        **{name: draw_normalization(name) for name in NORMALIZATIONS},
        **{
            f"Adaptive{name}": draw_adaptive_pooling(f"Adaptive{name}", axes)
            for name, axes in pools
        },
        "Resizing": draw_resizing,
        **{f"Global{name}": draw_global_pooling(f"Global{name}", axes) for name, axes in pools},
        **{
            f"{name}{n}D": of_axes(f"{name}{n}D", n)
            for name in ("ZeroPadding", "Cropping", "UpSampling")
            for n in (1, 2, 3)
        },
    }


FAMILIES = rows_of_families()


@pytest.mark.parametrize("name", FAMILIES)
def test_layers_of_any_shape_compute_what_keras_computes(name: str, rng: Random) -> None:
    keras.utils.set_random_seed(int(rng.integers(1 << 31)))
    for _ in range(_TURNS):
        layer, shape = FAMILIES[name](rng)
        model = shake_weights(keras.Sequential([L.Input(shape), layer]), rng)
        # (few digits: a norm of two nearly equal values would only show Keras' rounding)
        x = (np.round(64 * rng.normal(size=(2, *shape))) / 64).astype(np.float32)
        description = f"{layer.get_config()} of {shape}"
        expected = np.asarray(verify.run_in_keras(model, x))
        graph = from_keras(model)
        assert graph.shapes[graph.outputs[0]] == expected.shape[1:], description
        assert largest_difference(graph, x, [expected]) < FLOAT32, description
        assert largest_difference(optimize_graph(graph), x, [expected]) < FLOAT32, description


def join_inputs(layer: Any, *shapes: tuple[int, ...]) -> Any:
    inputs = [keras.Input(shape) for shape in shapes]
    return keras.Model(inputs, layer(inputs if len(inputs) > 1 else inputs[0]))


def join_several(kind: str, count: int) -> Any:
    return join_inputs(getattr(L, kind)(), *[ROWS] * count)


ROWS, FRAMES = (4, 3), (3, 5, 5, 2)
MADE: dict[str, Callable[[], Any]] = {
    "average": lambda: join_inputs(L.Average(), ROWS, ROWS, (1, 3)),
    "ranks": lambda: join_inputs(L.Add(), (3,), ROWS),
    **{
        f"{kind} of {n}": functools.partial(join_several, kind, n)
        for kind in ("Maximum", "Minimum")
        for n in (2, 3, 5)
    },
    "dot": lambda: join_inputs(L.Dot(1), (3,), (3,)),
    "dot of cosines": lambda: join_inputs(L.Dot(1, normalize=True), (3,), (3,)),
    "dot of matrices": lambda: join_inputs(L.Dot((2, 1)), (4, 3), (3, 5)),
    "dot of others": lambda: join_inputs(L.Dot((1, 2)), (4, 3), (5, 4)),
    "dot of images": lambda: join_inputs(L.Dot((3, 1)), (2, 3, 4), (4, 2)),
    "distributed rows": lambda: join_inputs(
        L.TimeDistributed(L.Dense(2, activation="softmax")), (4, 5)
    ),
    "distributed images": lambda: join_inputs(
        L.TimeDistributed(L.Conv2D(2, 3, activation="relu")), FRAMES
    ),
    "distributed flat": lambda: join_inputs(L.TimeDistributed(L.Flatten()), FRAMES),
    "distributed model": lambda: join_inputs(
        L.TimeDistributed(
            keras.Sequential([L.Input(FRAMES[1:]), L.Conv2D(2, 3), L.GlobalMaxPooling2D()])
        ),
        FRAMES,
    ),
    "spectral": lambda: join_inputs(L.SpectralNormalization(L.Dense(3)), (5,)),
    "heads": lambda: join_inputs(
        L.EinsumDense("abc,cde->abde", (None, 2, 3), bias_axes="de"), (4, 5)
    ),
    "heads joined": lambda: join_inputs(
        L.EinsumDense("abde,dec->abc", (None, 5), bias_axes="c", activation="relu"), (4, 2, 3)
    ),
    "turned": lambda: join_inputs(L.EinsumDense("abc,bd->adc", (6, 5), bias_axes="d"), (4, 5)),
    "any rank": lambda: join_inputs(L.EinsumDense("...x,xy->...y", 7, bias_axes="y"), (4, 5)),
    "center": lambda: join_inputs(L.CenterCrop(3, 2), (6, 5, 2)),
}


@pytest.mark.parametrize("name", MADE)
def test_layers_of_layers_compute_what_keras_computes(name: str, rng: Random) -> None:
    keras.utils.set_random_seed(int(rng.integers(1 << 31)))
    model = shake_weights(MADE[name](), rng)
    x = [rng.normal(size=(2, *t.shape[1:])).astype(np.float32) for t in model.inputs]
    expected = np.asarray(verify.run_in_keras(model, x))
    graph = from_keras(model)
    for each in (graph, optimize_graph(graph)):
        assert largest_difference(each, x if len(x) > 1 else x[0], [expected]) < FLOAT32


def of_images(first: bool) -> Any:
    """Return a model of channels-first images, or its channels-last twin."""
    form = {"data_format": "channels_first" if first else "channels_last"}
    axis = 1 if first else -1
    x = keras.Input((2, 9, 9) if first else (9, 9, 2))
    y = L.ZeroPadding2D(((1, 0), (0, 2)), **form)(x)
    y = L.Conv2D(4, 3, activation="relu", **form)(y)
    y = L.BatchNormalization(axis=axis)(y)
    z = L.ReLU()(L.DepthwiseConv2D(3, padding="same", **form)(y))
    w = L.GlobalMaxPooling2D(keepdims=True, **form)(z)
    z = L.Multiply()([z, L.Conv2D(4, 1, activation="sigmoid", **form)(w)])
    y = L.Concatenate(axis=axis)([L.Add()([y, z]), y])
    y = L.MaxPooling2D(2, **form)(y)
    y = L.UpSampling2D(2, **form)(y)
    y = L.Cropping2D(1, **form)(y)
    y = L.Conv2DTranspose(3, 2, strides=2, **form)(y)
    return keras.Model(x, [L.Flatten(**form)(y), L.GlobalAveragePooling2D(**form)(y)])


def test_models_with_the_channels_first_are_turned_where_they_begin_only(rng: Random) -> None:
    first, last = shake_weights(of_images(True), rng), of_images(False)
    x = rng.normal(size=(2, 2, 9, 9)).astype(np.float32)
    expected = [np.asarray(y) for y in verify.run_in_keras(first, x)]
    graph = from_keras(first)
    assert largest_difference(graph, x, expected) < FLOAT32
    optimized = optimize_graph(graph)
    assert largest_difference(optimized, x, expected) < FLOAT32
    assert [layer.op for layer in optimized.layers].count("permute") == 1
    assert len(optimized.layers) == len(optimize_graph(from_keras(last)).layers) + 1
