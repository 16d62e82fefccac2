"""The kinds of layers: their options, their weights, and the shape of what they give.

Shapes leave out the batch; images are [height, width, channels].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from tfe_bench.errors import UsageError, did_you_mean
from tfe_bench.protocols.ring.conv import Windows

Shape = tuple[int, ...]
Options = Mapping[str, Any]
LARGEST_SIZE = 1 << 24
LINEAR = ("conv2d", "depthwise_conv2d", "dense", "affine")
ACTIVATIONS = ("none", "relu")


class _Bad(Exception):
    """What is wrong with an option; `infer` adds the layer's name."""


def _need(fits: bool, what: str, received: Any) -> None:
    if not fits:
        raise _Bad(f"wants {what}. Received: {received!r}.")


def _whole(value: Any, low: int = 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= LARGEST_SIZE


def _real(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _pair(options: Options, name: str) -> tuple[int, int]:
    value = options.get(name)
    fits = isinstance(value, (list, tuple)) and len(value) == 2 and all(_whole(v) for v in value)
    _need(fits, f"{name} as two positive integers", value)
    assert value is not None
    return value[0], value[1]


def _pads(value: Any) -> bool:
    return (
        isinstance(value, (list, tuple))
        and len(value) == 2
        and all(
            isinstance(side, (list, tuple)) and len(side) == 2 and all(_whole(v, 0) for v in side)
            for side in value
        )
    )


def windows_of(options: Options) -> Windows:
    """Where a convolution's windows lie."""
    return Windows.of(
        "conv2d", options["strides"], options["padding"], options.get("dilations", [1, 1])
    )


def _image(shape: Shape) -> None:
    _need(len(shape) == 3, "images [height, width, channels]", list(shape))


def _bias(weights: Mapping[str, Shape], count: int) -> None:
    if "bias" in weights:
        _need(weights["bias"] == (count,), f"a bias [{count}]", list(weights["bias"]))


def _only(options: Options, *names: str) -> None:
    _need(set(options) == set(names), f"the options {sorted(names)}", sorted(options))


def _held(weights: Mapping[str, Shape], *names: str, optional: Sequence[str] = ()) -> None:
    fits = set(names) <= set(weights) <= {*names, *optional}
    _need(fits, f"the weights {[*names, *optional]}", sorted(weights))


def _convolution(depthwise: bool) -> Callable[..., Shape]:
    def shape(x: Shape, options: Options, weights: Mapping[str, Shape]) -> Shape:
        _image(x)
        _only(options, "strides", "padding", "dilations")
        _held(weights, "kernel", optional=["bias"])
        _pair(options, "strides")
        _pair(options, "dilations")
        padding = options["padding"]
        _need(padding in ("SAME", "VALID") or _pads(padding), 'padding "SAME" or "VALID"', padding)
        kernel = weights["kernel"]
        _need(len(kernel) == 4 and kernel[2] == x[2], f"a kernel for {x[2]} channels", list(kernel))
        windows = windows_of(options)
        fits = windows.padding == "SAME" or all(
            windows.room(a, x[a], kernel[a]) >= 0 for a in (0, 1)
        )
        _need(fits, "a kernel no larger than the padded image", [list(x), list(kernel)])
        filters = kernel[2] * kernel[3] if depthwise else kernel[3]
        _bias(weights, filters)
        height, width = (int(windows.size(a, x[a], kernel[a])) for a in (0, 1))
        return height, width, filters

    return shape


def _dense(x: Shape, options: Options, weights: Mapping[str, Shape]) -> Shape:
    _only(options)
    _held(weights, "kernel", optional=["bias"])
    kernel = weights["kernel"]
    _need(len(kernel) == 2 and kernel[0] == x[-1], f"a kernel [{x[-1]}, units]", list(kernel))
    _bias(weights, kernel[1])
    return (*x[:-1], kernel[1])


def _affine(x: Shape, options: Options, weights: Mapping[str, Shape]) -> Shape:
    _only(options)
    _held(weights, "kernel", optional=["bias"])
    _need(weights["kernel"] == (x[-1],), f"a factor [{x[-1]}]", list(weights["kernel"]))
    _bias(weights, x[-1])
    return x


_STATISTICS = ("moving_mean", "moving_variance")


def _batch_norm(x: Shape, options: Options, weights: Mapping[str, Shape]) -> Shape:
    _only(options, "momentum", "epsilon")
    _held(weights, *_STATISTICS, optional=["gamma", "beta"])
    for name, shape in weights.items():
        _need(shape == (x[-1],), f"{name} [{x[-1]}]", list(shape))
    momentum, epsilon = options["momentum"], options["epsilon"]
    _need(_real(momentum) and 0 <= momentum <= 1, "a momentum from 0 to 1", momentum)
    _need(_real(epsilon) and 1e-5 <= epsilon <= 1, "an epsilon from 1e-5 to 1", epsilon)
    return x


_LINEAR: dict[str, Callable[..., Shape]] = {
    "conv2d": _convolution(False),
    "depthwise_conv2d": _convolution(True),
    "dense": _dense,
    "affine": _affine,
}


def _sum(shapes: list[Shape], options: Options, weights: Mapping[str, Shape]) -> Shape:
    _only(options, "terms", "activation", "max_value")
    terms = options["terms"]
    fits = isinstance(terms, (list, tuple)) and len(terms) == len(shapes)
    _need(fits and all(isinstance(t, Mapping) for t in terms), "a term for each input", terms)
    _need(options["activation"] in ACTIVATIONS, "a known activation", options["activation"])
    _most(options["max_value"])
    result: Shape | None = None
    names = {"bias"} & set(weights)
    products = 0
    for i, (x, term) in enumerate(zip(shapes, terms, strict=True)):
        _need(term.get("sign") in (1, -1), "terms with sign 1 or -1", term.get("sign"))
        op = term.get("op")
        if op == "skip":
            _only(term, "op", "sign")
            shape = x
        else:
            _need(op in _LINEAR, f"terms of {list(_LINEAR)} and skip", op)
            name = f"kernel{i}"
            _need(name in weights, f"the weights {name!r}", sorted(weights))
            rest = {k: v for k, v in term.items() if k not in ("op", "sign")}
            shape = _LINEAR[str(op)](x, rest, {"kernel": weights[name]})
            names.add(name)
            products += 1
        _need(result in (None, shape), "terms of one shape", [result, shape])
        result = shape
    _need(products > 0, "a product among its terms", [t.get("op") for t in terms])
    _need(names == set(weights), f"the weights {sorted(names)}", sorted(weights))
    assert result is not None
    _bias(weights, result[-1])
    return result


def _most(value: Any) -> None:
    _need(value is None or (_real(value) and value > 0), "max_value above 0 or none", value)


def _relu(x: Shape, options: Options) -> Shape:
    _only(options, "max_value")
    _most(options["max_value"])
    return x


def _leaky(x: Shape, options: Options) -> Shape:
    _only(options, "alpha")
    _need(_real(options["alpha"]) and abs(options["alpha"]) <= 64, "alpha", options["alpha"])
    return x


def _plain(x: Shape, options: Options) -> Shape:
    _only(options)
    return x


def _axis(options: Options, rank: int) -> int:
    _only(options, "axis")
    axis = options["axis"]
    _need(_whole(axis) and axis <= rank, f"an axis from 1 to {rank} (0 is the batch)", axis)
    return int(axis)


def _softmax(x: Shape, options: Options) -> Shape:
    _axis(options, len(x))
    return x


def _rescale(x: Shape, options: Options) -> Shape:
    _only(options, "scale", "offset")
    for value in options.values():
        several = value if isinstance(value, (list, tuple)) else [value]
        fits = all(_real(v) for v in several) and len(several) in (1, x[-1])
        _need(fits, f"numbers, one or {x[-1]}", value)
    return x


def _pool(x: Shape, options: Options) -> Shape:
    _image(x)
    _only(options, "ksize", "strides", "padding")
    kernel, _ = _pair(options, "ksize"), _pair(options, "strides")
    _need(options["padding"] in ("SAME", "VALID"), 'padding "SAME" or "VALID"', options["padding"])
    windows = windows_of(options)
    # Each cell of a window is listed: those outside of the image are no use.
    fits = all(
        k <= (2 * n if windows.padding == "SAME" else n) for k, n in zip(kernel, x[:2], strict=True)
    )
    _need(
        fits,
        "windows no larger than the image (SAME: than twice the image)",
        [list(kernel), list(x)],
    )
    height, width = (int(windows.size(a, x[a], kernel[a])) for a in (0, 1))
    return height, width, x[2]


def _global(x: Shape, options: Options) -> Shape:
    _image(x)
    _only(options, "keepdims")
    _need(isinstance(options["keepdims"], bool), "keepdims", options["keepdims"])
    return (1, 1, x[2]) if options["keepdims"] else (x[2],)


def _zero_pad(x: Shape, options: Options) -> Shape:
    _image(x)
    _only(options, "pads")
    _need(_pads(options["pads"]), "pads ((top, bottom), (left, right))", options["pads"])
    (top, bottom), (left, right) = options["pads"]
    return x[0] + top + bottom, x[1] + left + right, x[2]


def _flatten(x: Shape, options: Options) -> Shape:
    _only(options)
    return (math.prod(x),)


def _reshape(x: Shape, options: Options) -> Shape:
    _only(options, "shape")
    shape = options["shape"]
    fits = isinstance(shape, (list, tuple)) and len(shape) > 0 and all(_whole(n) for n in shape)
    _need(fits and math.prod(shape) == math.prod(x), f"a shape of {math.prod(x)} elements", shape)
    return tuple(shape)


def _dropout(x: Shape, options: Options) -> Shape:
    _only(options, "rate")
    _need(_real(options["rate"]) and 0 <= options["rate"] < 1, "a rate below 1", options["rate"])
    return x


_ONE: dict[str, Callable[[Shape, Options], Shape]] = {
    "dropout": _dropout,
    "rescale": _rescale,
    "relu": _relu,
    "leaky_relu": _leaky,
    "sigmoid": _plain,
    "tanh": _plain,
    "softmax": _softmax,
    "max_pool2d": _pool,
    "avg_pool2d": _pool,
    "sum_pool2d": _pool,
    "global_max_pool2d": _global,
    "global_avg_pool2d": _global,
    "global_sum_pool2d": _global,
    "zero_pad2d": _zero_pad,
    "flatten": _flatten,
    "reshape": _reshape,
    "identity": _plain,
}
_MANY = ("add", "subtract", "multiply", "concat")
KINDS = (*_LINEAR, "sum", "batch_norm", *_ONE, *_MANY)


def _broadcast(shapes: list[Shape]) -> Shape:
    rank = max(len(s) for s in shapes)
    # The batch comes first, so that ranks cannot differ.
    _need(all(len(s) == rank for s in shapes), "inputs of one rank", shapes)
    result = []
    for sizes in zip(*shapes, strict=True):
        _need(len(set(sizes) - {1}) <= 1, "inputs that broadcast", shapes)
        result.append(max(sizes))
    return tuple(result)


def _many(op: str, shapes: list[Shape], options: Options) -> Shape:
    if op != "concat":
        _only(options)
        least, most = 2, 2 if op == "subtract" else 64
        _need(least <= len(shapes) <= most, f"{least} to {most} inputs", len(shapes))
        return _broadcast(shapes)
    axis = _axis(options, len(shapes[0])) - 1
    alike = {(*s[:axis], *s[axis + 1 :]) for s in shapes}
    _need(len(alike) == 1, "inputs that differ in that axis only", shapes)
    first = shapes[0]
    return (*first[:axis], sum(s[axis] for s in shapes), *first[axis + 1 :])


def infer(
    name: str, op: str, shapes: list[Shape], options: Options, weights: Mapping[str, Shape]
) -> Shape:
    """The shape of a layer's value.

    Raises:
        UsageError: an unknown kind, or options, weights or inputs that do not fit it.
    """
    if op not in KINDS:
        _refuse(name, op)
    try:
        if op == "sum":
            _need(len(shapes) > 0, "inputs", shapes)
            return _sum(shapes, options, weights)
        if op in _MANY:
            _held(weights)
            _need(len(shapes) > 0, "inputs", shapes)
            return _many(op, shapes, options)
        _need(len(shapes) == 1, "one input", len(shapes))
        if op == "batch_norm":
            return _batch_norm(shapes[0], options, weights)
        if op in _LINEAR:
            return _LINEAR[op](shapes[0], options, weights)
        _held(weights)
        return _ONE[op](shapes[0], options)
    except (_Bad, UsageError) as error:
        raise UsageError(f"Layer {name!r} ({op}) {error}") from None


def _refuse(name: str, op: Any) -> NoReturn:
    raise UsageError(
        f"Layer {name!r} is of an unknown kind. Received: {op!r}."
        f"{did_you_mean(str(op), KINDS)} Known: {', '.join(KINDS)}."
    )
