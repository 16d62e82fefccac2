"""A model as data survives its header, and invalid data is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.refusals import raises
from tfe_bench.errors import DataError, RangeError, UsageError
from tfe_bench.models.convert.graph import Graph, LayerSpec
from tfe_bench.models.convert.plaintext import check_model_inputs
from tfe_bench.models.inference.private import convert

DENSE = {"kernel": np.ones((4, 3), np.float32), "bias": np.zeros(3, np.float32)}
CONV = {"strides": [1, 1], "padding": "VALID", "dilations": [1, 1]}
ROWS = {"strides": [1], "padding": "VALID", "dilations": [1]}
ROOT = {"axes": [1], "by": "variance", "epsilon": 1e-3}
SUM = {"terms": [{"op": "dense", "sign": 1}], "activation": "none", "max_value": None}


def make_graph(*layers: LayerSpec, inputs: Any = None, outputs: Any = None) -> Graph:
    return Graph("m", inputs or {"x": (4,)}, layers, outputs or (layers[-1].name,))


def test_a_graph_survives_its_header_with_and_without_weights() -> None:
    model_graph = make_graph(
        LayerSpec("a", "dense", ("x",), {}, DENSE),
        LayerSpec("b", "relu", ("a",), {"max_value": 6.0}),
        LayerSpec("c", "softmax", ("b",), {"axis": 1}),
    )
    header = json.loads(json.dumps(model_graph.to_header()))
    again = Graph.from_header(header, model_graph.weight_arrays())
    assert again.digest() == model_graph.digest() and again.shapes["c"] == (3,)
    bare = Graph.from_header(header)
    assert bare.to_header() == model_graph.to_header() and not any(
        bare.weight_arrays()["a/kernel"].strides
    )
    other = model_graph.weight_arrays()
    other["a/kernel"] = other["a/kernel"] + 1
    assert Graph.from_header(header, other).digest() != model_graph.digest()
    assert model_graph.find_users() == {"x": ["a"], "a": ["b"], "b": ["c"], "c": [""]}
    assert model_graph.weight_count == 15


def test_a_file_holds_a_graph_and_is_private(tmp_path: Path) -> None:
    model_graph = make_graph(LayerSpec("a/b", "dense", ("x",), {}, DENSE))
    for _ in range(2):
        model_graph.save(tmp_path / "m.npz")
    assert Graph.load(tmp_path / "m.npz").digest() == model_graph.digest()
    assert (tmp_path / "m.npz").stat().st_mode & 0o777 == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["m.npz"]
    whole = (tmp_path / "m.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.npz").write_bytes(b"")
    np.savez(tmp_path / "other.npz", x=np.ones(3))
    np.savez(tmp_path / "pickled.npz", header=np.array([object()]), allow_pickle=True)
    for name in ("cut", "empty", "other", "pickled", "missing"):
        with raises(DataError, "invalid-model-file", names=(name,)):
            Graph.load(tmp_path / f"{name}.npz")


@pytest.mark.parametrize(
    ("layer", "code", "fact"),
    [
        (LayerSpec("a", "densse", ("x",), {}, DENSE), "unknown-name", '"dense"'),
        (LayerSpec("a", "dense", ("y",), {}, DENSE), "invalid-graph", "'y'"),
        (LayerSpec("x", "dense", ("x",), {}, DENSE), "duplicate-name", "'x'"),
        (
            LayerSpec("a", "dense", ("x",), {}, {"kernel": np.ones((5, 3))}),
            "invalid-layer-option",
            "kernel",
        ),
        (
            LayerSpec("a", "dense", ("x",), {}, {**DENSE, "bias": np.ones(4)}),
            "invalid-layer-option",
            "bias",
        ),
        (
            LayerSpec("a", "dense", ("x",), {}, {**DENSE, "more": np.ones(4)}),
            "invalid-layer-option",
            "weights",
        ),
        (
            LayerSpec("a", "dense", ("x",), {}, {"kernel": np.ones((4, 3), int)}),
            "wrong-type",
            "floating-point",
        ),
        (
            LayerSpec("a", "dense", ("x",), {"lambda": "1"}, DENSE),
            "invalid-layer-option",
            "options",
        ),
        (LayerSpec("a", "dense", ("x", "x"), {}, DENSE), "invalid-layer-option", "one input"),
        (
            LayerSpec("a", "conv2d", ("x",), CONV, {"kernel": np.ones((1, 1, 4, 2))}),
            "invalid-layer-option",
            "images",
        ),
        (LayerSpec("a", "relu", ("x",), {"max_value": -1}), "invalid-layer-option", "max_value"),
        (LayerSpec("a", "relu", ("x",), {}), "invalid-layer-option", "max_value"),
        (
            LayerSpec("a", "relu", ("x",), {"max_value": None}, DENSE),
            "invalid-layer-option",
            "weights",
        ),
        (
            LayerSpec("a", "leaky_relu", ("x",), {"alpha": float("nan")}),
            "invalid-layer-option",
            "alpha",
        ),
        (LayerSpec("a", "softmax", ("x",), {"axis": 0}), "invalid-layer-option", "axis"),
        (LayerSpec("a", "softmax", ("x",), {"axis": True}), "invalid-layer-option", "axis"),
        (LayerSpec("a", "reshape", ("x",), {"shape": [3]}), "invalid-layer-option", "4 elements"),
        (
            LayerSpec("a", "reshape", ("x",), {"shape": [-2, -2]}),
            "invalid-layer-option",
            "4 elements",
        ),
        (LayerSpec("a", "concat", ("x", "x"), {"axis": 2}), "invalid-layer-option", "axis"),
        (LayerSpec("a", "subtract", ("x", "x", "x")), "invalid-layer-option", "2 to 2 inputs"),
        (
            LayerSpec("a", "rescale", ("x",), {"scale": [1.0, 2.0], "offset": 0.0}),
            "invalid-layer-option",
            "numbers",
        ),
        (
            LayerSpec("a", "conv1d", ("x",), ROWS, {"kernel": np.ones((1, 4, 2))}),
            "invalid-layer-option",
            "rows",
        ),
        (
            LayerSpec("a", "conv3d", ("x",), CONV, {"kernel": np.ones((1, 1, 1, 4, 2))}),
            "invalid-layer-option",
            "volumes",
        ),
        (
            LayerSpec("a", "zero_pad", ("x",), {"pads": []}),
            "invalid-layer-option",
            "rows, images or volumes",
        ),
        (
            LayerSpec("a", "resize", ("x",), {"size": [2, 2], "method": "bilinear"}),
            "invalid-layer-option",
            "images",
        ),
        (LayerSpec("a", "matmul", ("x", "x")), "invalid-layer-option", "[..., m, k]"),
        (
            LayerSpec("a", "normalize", ("x",), {**ROOT, "axes": [0]}),
            "invalid-layer-option",
            "axes",
        ),
        (
            LayerSpec("a", "normalize", ("x",), {**ROOT, "axes": [1, 1]}),
            "invalid-layer-option",
            "axes",
        ),
        (
            LayerSpec("a", "normalize", ("x",), {**ROOT, "by": "median"}),
            "invalid-layer-option",
            "statistic",
        ),
        (
            LayerSpec("a", "normalize", ("x",), {**ROOT, "epsilon": -1e-3}),
            "invalid-layer-option",
            "epsilon",
        ),
        (
            LayerSpec("a", "sum", ("x",), {**SUM, "activation": "exec"}, {}),
            "invalid-layer-option",
            "activation",
        ),
        (
            LayerSpec("a", "sum", ("x",), {**SUM, "terms": [{"op": "skip", "sign": 1}]}, {}),
            "invalid-layer-option",
            "product",
        ),
        (
            LayerSpec("a", "sum", ("x",), {**SUM, "terms": [{"op": "dense", "sign": 2}]}, {}),
            "invalid-layer-option",
            "sign",
        ),
        (
            LayerSpec("a", "sum", ("x",), SUM, {"kernel1": np.ones((4, 3))}),
            "invalid-layer-option",
            "weights",
        ),
    ],
)
def test_refuses_what_is_no_layer(layer: LayerSpec, code: str, fact: str) -> None:
    with raises(UsageError, code, names=(fact,)):
        make_graph(layer)


@pytest.mark.parametrize(
    ("op", "options", "text"),
    [
        ("conv2d", {"padding": "FULL"}, "padding"),
        ("conv2d", {"strides": [0, 1]}, "strides"),
        ("conv2d", {"dilations": 1}, "dilations"),
        ("grouped_conv2d", {"groups": 3}, "equal parts"),
        ("grouped_conv2d", {"groups": 0}, "groups"),
        ("grouped_conv2d", {"groups": 2.0}, "groups"),
        ("grouped_conv2d", {"groups": 2}, "2 channels"),
        ("conv2d_transpose", {"size": [3, 3]}, "4 channels in its last axis"),
        ("conv2d_transpose", {"size": [1 << 30, 3]}, "size"),
        ("resize", {"size": [2, 2]}, "options"),
    ],
)
def test_refuses_windows_that_are_none(op: str, options: Any, text: str) -> None:
    kernel = {"kernel": np.ones((1, 1, 4, 2))}
    with raises(UsageError, "invalid-layer-option", operation="a") as refused:
        make_graph(
            LayerSpec("a", op, ("x",), {**CONV, **options}, {} if op == "resize" else kernel),
            inputs={"x": (3, 3, 4)},
        )
    assert re.search(text, str(refused.value))


@pytest.mark.parametrize("size", [[4, 3], [2, 3], [1 << 20, 3]])
def test_refuses_sizes_that_no_transposed_convolution_gives(size: list[int]) -> None:
    kernel = {"kernel": np.ones((1, 1, 2, 4))}
    with raises(UsageError, "invalid-layer-option", operation="a"):
        layer = LayerSpec("a", "conv2d_transpose", ("x",), {**CONV, "size": size}, kernel)
        make_graph(layer, inputs={"x": (3, 3, 4)})


def test_refuses_weights_that_are_no_numbers() -> None:
    bad = {**DENSE, "bias": np.array([0, np.nan, 1])}
    with raises(RangeError, "not-finite", operation="a", received=1):
        make_graph(LayerSpec("a", "dense", ("x",), {}, bad))


def test_refuses_graphs_without_inputs_layers_or_outputs() -> None:
    layer = LayerSpec("a", "dense", ("x",), {}, DENSE)
    for inputs, layers, outputs in (
        ({}, (layer,), ("a",)),
        ({"x": (4,)}, (), ("x",)),
        ({"x": (4,)}, (layer,), ()),
        ({"x": (4,)}, (layer,), ("b",)),
        ({"x": (0,)}, (layer,), ("a",)),
        ({"x": (None,)}, (layer,), ("a",)),
    ):
        with pytest.raises(UsageError):
            Graph("m", inputs, layers, outputs)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "header",
    [
        None,
        [],
        {},
        {"format": 2},
        {"format": 1, "name": "m", "inputs": [], "outputs": [], "layers": []},
        {"format": 1, "name": "m", "inputs": {"x": [4]}, "outputs": ["a"], "layers": [1]},
    ],
)
def test_refuses_headers_that_are_none(header: Any) -> None:
    with pytest.raises(DataError):
        Graph.from_header(header)


def test_refuses_arrays_that_are_not_those_of_the_header() -> None:
    model_graph = make_graph(LayerSpec("a", "dense", ("x",), {}, DENSE))
    double: dict[str, Any] = {"a/kernel": np.ones((4, 3)), "a/bias": DENSE["bias"]}
    for arrays in ({}, double):
        with raises(DataError, "weights-mismatch", operation="a"):
            Graph.from_header(model_graph.to_header(), arrays)
    header = model_graph.to_header()
    header["layers"][0]["weights"]["kernel"][0] = "object"
    with raises(DataError, "wrong-type", operation="a", received="object"):
        Graph.from_header(header)


def test_refuses_images_that_the_model_does_not_take() -> None:
    pointwise = {"kernel": np.ones((1, 1, 3, 2))}
    model_graph = make_graph(
        LayerSpec("a", "conv2d", ("x",), CONV, pointwise), inputs={"x": (5, 6, 3)}
    )
    assert (
        check_model_inputs(model_graph, np.zeros((2, 5, 6, 3), np.uint8))["x"].dtype == np.float64
    )
    for images, code in (
        (np.zeros((5, 6, 3)), "shape-mismatch"),
        (np.zeros((2, 3, 5, 6)), "shape-mismatch"),
        (np.zeros((0, 5, 6, 3)), "shape-mismatch"),
        (np.array("cat"), "not-a-number"),
        ({"y": np.zeros((2, 5, 6, 3))}, "input-mismatch"),
    ):
        with raises(UsageError, code):
            check_model_inputs(model_graph, images)


def test_what_layers_share_is_stored_and_sent_once(tmp_path: Path) -> None:
    keras = pytest.importorskip("keras")
    x, twice = keras.Input((3,)), keras.layers.Dense(3, name="twice")
    private = convert(keras.Model(x, twice(keras.layers.ReLU()(twice(x)))))
    graph = private.graph
    assert len(graph.layers) == 2 and graph.weight_count == 12 and len(graph.weight_arrays()) == 2
    assert len(private.shared_weights()) == 2
    first, second = graph.layers
    graph.save(tmp_path / "model.npz")
    for again in (
        Graph.load(tmp_path / "model.npz"),
        Graph.from_header(graph.to_header()),
        Graph.from_header(graph.to_header(), graph.weight_arrays()),
    ):
        assert again.to_header() == graph.to_header() and again.weight_count == 12
        one, other = (again.by_name[x.name].weights for x in (first, second))
        assert all(one[name] is other[name] for name in one)
    # an untrusted header: with a missing array, or with another shape
    for wrong in ("nobody/kernel0", f"{first.name}/bias"):
        header = graph.to_header()
        header["layers"][1]["weights"]["kernel0"][2] = wrong
        with raises(DataError, "weights-mismatch"):
            Graph.from_header(header)


@pytest.mark.parametrize("shape", [(0, 1 << 30), (1 << 30, 0), (0,), (1 << 20, 1 << 12)])
def test_no_layer_is_empty_or_too_large(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A size of 0 must not hide another size: workers multiply all of them."""
    monkeypatch.setattr("tfe_bench.models.layers.base.registry.infer_shape", lambda *given: shape)
    relu = LayerSpec("f", "relu", ("x",))
    with raises(UsageError, "too-large", operation="f"):
        Graph("model", {"x": (4,)}, (relu,), ("f",))
