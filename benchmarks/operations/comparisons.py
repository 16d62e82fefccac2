"""Comparison, selection, extremes and order statistics.

All but the median are exact: their results are ring elements of the input, bits or positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from tfe_bench.benchmarks.operations import catalogue
from tfe_bench.benchmarks.operations.catalogue import Array, Arrays, Options, Shape, call
from tfe_bench.cluster.jobs import shape_extent
from tfe_bench.errors import RangeError, UsageError, check_known, describe_array_position
from tfe_bench.protocols.nn import relu
from tfe_bench.protocols.order import extremes, order_statistics, sort
from tfe_bench.protocols.ring import convert, full_range, logic, relational
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

MOST_BITS = 64
LAYER_BITS = 31


def check_operand_magnitudes(name: str, rings: Arrays, bits: int, limit_text: str) -> None:
    """Reject ring elements of 2^bits and more; the text gives the position, never the value.

    Raises:
        RangeError: an element is outside.
    """
    for ring in rings.values():
        # -2^63 has no positive counterpart, so both ends are compared.
        outside = (ring >= 1 << bits) | (ring <= -(1 << bits))
        if np.any(outside):
            index = np.unravel_index(int(np.argmax(outside)), outside.shape)
            position = tuple(int(i) for i in index)
            raise RangeError(
                f"{name} is correct for values of {limit_text}. Received: a larger one "
                f"{describe_array_position(position)}.",
                position,
                code="own-values-out-of-range",
                operation=name,
            )


# ---- comparisons of two values


def draw_compared_reals(size: Shape, rng: np.random.Generator) -> dict[str, Array]:
    """Draw reals of all magnitudes; a quarter of the pairs are equal, a quarter neighbors."""
    x = catalogue.draw_log_uniform(rng, 2.0**-16, 2.0**45.9, size, signed=True)
    y = catalogue.draw_log_uniform(rng, 2.0**-16, 2.0**45.9, size, signed=True)
    kind = rng.integers(0, 4, size)
    near = x + rng.choice((-1.0, 1.0), size) * np.maximum(2.0**-16, np.abs(x) * 2.0**-52)
    return {"x": x, "y": np.where(kind == 0, x, np.where(kind == 1, near, y))}


def draw_compared_integers(size: Shape, rng: np.random.Generator) -> dict[str, Array]:
    """Draw integers of the whole 64-bit range; a quarter of the pairs are equal, some neighbors."""
    info = np.iinfo(np.int64)
    x, y = (rng.integers(info.min, info.max, size, np.int64, endpoint=True) for _ in range(2))
    ends = rng.choice(np.array([info.min, -1, 0, 1, info.max]), size)
    kind = rng.integers(0, 8, size)
    x = np.where(kind == 7, ends, x)
    with np.errstate(over="ignore"):
        near = x + rng.choice((-1, 1), size)
    return {"x": x, "y": np.select([kind < 2, kind == 2, kind == 6], [x, near, ends], y)}


def _compare_full_range(party: Party, name: str, x: Shared, y: Shared) -> MaskedBits:
    """Compare integers; some comparisons negate another one or swap its sides."""
    if name in ("equal", "not_equal"):
        bits = full_range.equal(party, x, y)
    elif name in ("less", "greater_equal"):
        bits = full_range.less(party, x, y)
    else:
        bits = full_range.less(party, y, x)
    return logic.invert_bits(bits) if name in ("not_equal", "greater_equal", "less_equal") else bits


def _comparison_run(name: str) -> catalogue.Run:
    def run(party: Party, x: catalogue.Shares, options: Options) -> Shared:
        # Differences of encoded reals fit 64 bits, those of integers need not.
        if x["x"].fractional_bits == 0:
            bits = _compare_full_range(party, name, x["x"], x["y"])
        else:
            bits = getattr(relational, name)(party, x["x"], x["y"])
        return convert.b2a(party, bits, tensor_ops.dynamic_shape(x["x"].any))

    return run


COMPARISONS: Mapping[str, tuple[str, Callable[[Array, Array], Array]]] = {
    "less": ("<", np.less),
    "less_equal": ("<=", np.less_equal),
    "greater": (">", np.greater),
    "greater_equal": (">=", np.greater_equal),
    "equal": ("==", np.equal),
    "not_equal": ("!=", np.not_equal),
}


def _exact_comparison(compared: Callable[[Array, Array], Array]) -> catalogue.Reference:
    return lambda x, _: compared(x["x"], x["y"]).astype(np.int64)


_pairwise = partial(
    catalogue.register,
    tolerance=None,
    size=(1 << 18,),
    shapes=catalogue.same_operand_shapes("x", "y"),
)
_SELECTION = "LUT-msb 64 bits, injection"

for _name, (_sign, _ufunc) in COMPARISONS.items():
    _pairwise(
        *(_name, f"[x {_sign} y] as 0 or 1", _comparison_run(_name), _exact_comparison(_ufunc)),
        inputs=draw_compared_reals,
        integers=True,
        variant="LUT-msb",
        listed=_name in ("less", "equal"),
    )

_pairwise(
    "maximum",
    "the larger of x and y",
    call(relational.maximum, "x", "y"),
    lambda x, _: np.maximum(x["x"], x["y"]),
    inputs=draw_compared_reals,
    variant=_SELECTION,
)


def _run_operand_selection(party: Party, x: catalogue.Shares, options: Options) -> Shared:
    bits = relational.is_negative(party, x["c"])
    return relational.where(party, bits, x["x"], x["y"])


_pairwise(
    "where",
    "x where c < 0, else y (with the comparison)",
    _run_operand_selection,
    lambda x, _: np.where(x["c"] < 0, x["x"], x["y"]),
    shapes=catalogue.same_operand_shapes("c", "x", "y"),
    inputs=lambda size, rng: {
        **catalogue.uniform(-100, 100, "c")(size, rng),
        **draw_compared_reals(size, rng),
    },
    variant=_SELECTION,
)


# ---- with zero


def _check_relu_options(size: Shape, options: Options) -> None:
    bits = options["bits"]
    if not 2 <= bits <= MOST_BITS:
        raise UsageError(
            f"relu compares 2 to {MOST_BITS} bits. Received: {bits!r}.",
            code="number-out-of-range",
            operation="relu",
            received=bits,
        )


def _check_relu_domain(rings: Arrays, options: Options) -> None:
    if options["bits"] < MOST_BITS:
        limit = options["bits"] - 1
        what = f"less than 2^{limit} ring units (2^{limit - 16} for reals; more bits take more)"
        check_operand_magnitudes("relu", rings, limit, what)


def _draw_activation_inputs(size: Shape, rng: np.random.Generator) -> dict[str, Array]:
    """Draw values of a layer: most of them small, some of any magnitude below 2^14."""
    large = catalogue.draw_log_uniform(rng, 2.0**-16, 2.0**13.9, size, signed=True)
    return {"x": np.where(rng.random(size) < 0.25, large, rng.uniform(-16, 16, size))}


catalogue.register(
    "relu",
    "max(x, 0), |x| < 2^14",
    call(relu.relu),
    lambda x, _: np.maximum(x["x"], 0),
    tolerance=None,
    size=(1 << 18,),
    inputs=_draw_activation_inputs,
    options={"bits": LAYER_BITS},
    help="set private values below zero to zero",
    helps={"bits": "compare K bits: |x| < 2^(K-17), of integers 2^(K-1); 64 for all (default 31)"},
    check=_check_relu_options,
    domain=_check_relu_domain,
    integers=True,
    variant="LUT-msb, injection",
)


# ---- along rows


def _check_extremes_options(size: Shape, options: Options) -> None:
    extremes.choose_extreme_method(options["method"], size[0], size[-1], options["profile"])


def _check_extreme_domain(rings: Arrays, options: Options) -> None:
    check_operand_magnitudes("max", rings, 62, "less than 2^62, as differences must fit 64 bits")


def _draw_order_statistic_rows(size: Shape, rng: np.random.Generator) -> dict[str, Array]:
    """Draw reals of all magnitudes, some of a row equal."""
    x = catalogue.draw_log_uniform(rng, 2.0**-16, 2.0**45.9, size, signed=True)
    return {"x": np.where(rng.random(size) < 0.1, x[..., :1], x)}


_extreme = partial(
    catalogue.register,
    tolerance=None,
    size=(1 << 16, 4),
    inputs=_draw_order_statistic_rows,
    options={"method": "auto", "profile": "local"},
    helps={"method": "auto, tree, all-pairs", "profile": "auto plans"},
    check=_check_extremes_options,
    domain=_check_extreme_domain,
    integers=True,
    variant=_SELECTION,
)
_extreme(
    "max",
    "largest of each row",
    call(extremes.reduce_max, axis=-1),
    lambda x, _: np.max(x["x"], axis=-1),
    help="find the largest of each row of private values",
)
_extreme(
    "argmax",
    "its position, the first of equals",
    call(extremes.argmax, axis=-1),
    lambda x, _: np.argmax(x["x"], -1),
)

_ORDER = {"algorithm": "auto", "profile": "local"}
_ORDER_HELPS = {"algorithm": ", ".join(sort.ALGORITHMS), "profile": "auto and quick plan"}


def _check_sort_options(size: Shape, options: Options) -> None:
    for name, known in (("algorithm", sort.ALGORITHMS), ("profile", tuple(sort.ROUND_COST))):
        check_known(name, options[name], known)


def _check_top_k_options(size: Shape, options: Options) -> None:
    _check_sort_options(size, options)
    k = options["k"]
    if not 1 <= k <= size[-1]:
        raise UsageError(
            f"top_k expects k from 1 to the row's {size[-1]} values. Received: {k!r}.",
            code="number-out-of-range",
            operation="top_k",
            received=k,
        )


def _count_sort_words(size: Shape, options: Options) -> int:
    *rows, n = size
    return sort.max_sort_array_words(
        shape_extent(rows), n, 1, options["algorithm"], options["profile"]
    )


_sorted = partial(
    catalogue.register,
    size=(1, 4096),
    most=_count_sort_words,
    shrinks=(1,),
    per_input=True,
    stepwise=True,
)
_sorted(
    "top_k",
    "the 16 largest of each row, by a sort",
    lambda party, x, options: order_statistics.top_k(party, x["x"], **options)[0],
    lambda x, o: -np.sort(-x["x"], axis=-1)[..., : o["k"]],
    tolerance=None,
    inputs=_draw_order_statistic_rows,
    options={"k": 16, **_ORDER},
    helps={"k": "how many of each row (default 16)", **_ORDER_HELPS},
    check=_check_top_k_options,
    variant="sort",
    least=(1, 1),
)
_sorted(
    "median",
    "the middle of each row, by a sort",
    call(order_statistics.median),
    lambda x, _: np.median(x["x"], axis=-1),
    tolerance=catalogue.ulps(1),
    inputs=catalogue.uniform(-1e6, 1e6),
    options=_ORDER,
    helps=_ORDER_HELPS,
    check=_check_sort_options,
    variant="sort, T3",
)
