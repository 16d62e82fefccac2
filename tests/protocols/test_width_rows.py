"""Every operation that takes `bits` has a row in WIDTHS, or is covered by another row.

The operations are found by their signatures, so that a new one without a row fails here.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import Any

import tfe_bench as tfe
from tests.protocols.test_widths import WIDTHS
from tfe_bench import arrays, models, protocols, queries
from tfe_bench.protocols.nn import gated

# Functions that pass their width to an operation with a row under another name, or receive it from
# one. (A protocol is covered by the public operation of its name.)
BEHIND = {
    "activations.sigmoid_parts": "neural.sigmoid",
    "attention.attention": "neural.scaled_dot_product_attention",
    "bit_planes.extract_planes": "bitwise.popcount",
    **{f"bitwise.bitwise_{name}": "bitwise.popcount" for name in ("and", "or", "xor")},
    "compare.compare_coarsely": "series.evaluate_series",
    "compare.msb": "predicates.less",
    "compare.less_than": "predicates.less",
    "elu.elu_with_slope": "elu.elu",
    "extremes.argmax_bits": "ranking.argmax",
    "extremes.reduce_labeled": "pooling.max_pool_with_argmax",
    "gelu.minus_residual": "neural.gelu",
    "harmonics.evaluate_series": "series.evaluate_series",
    "linear.monitored_lift": "linear.relu_at_knots",
    "linear.monitor_range": "linear.relu_at_knots",
    "lookup.lookup_one_hot": "indexing.gather",
    "one_hot.compare_edges": "statistics.bincount",
    "piecewise.evaluate_pieces": "piecewise.logistic",
    "polyline.evaluate_line": "linear.relu_at_knots",
    "relational.is_negative": "predicates.less",
    "relational.is_zero": "predicates.equal",
    "roots.reciprocal_root": "elementary.rsqrt",
    "rounding.floor_div": "rounding.floordiv",
    "rounding.mod": "rounding.floormod",
    "relu.rectify_value": "neural.relu",
    "relu.relu_in": "neural.relu",
    "relu.relu_with_derivative": "neural.relu",
    "softplus.log_sigmoid": "softplus.softplus",
    "softplus.log_sigmoid_slope": "softplus.slope",
    "softplus.split_sides": "softplus.softplus",
    "softsign.softsign_with_reciprocal": "softsign.softsign",
}

# Functions whose row keeps the name that they had, as it is the id of tests.
RENAMED = {
    "batch_norm.normalize": "batch_norm.normalize_batch",
    "linear.above": "linear.relu_at_knots",
    "ramped.ramped": "ramped.ramp_with_slope",
    "series.bent": "series.evaluate_series",
}

# Functions with bounds of private arrays, which tests/arrays/test_edges.py covers.
BOUNDED = {
    *(f"wide_range.{name}" for name in ("norm", "divide_by_count", "reduce_mean")),
    *(f"wide_range.reduce_{name}" for name in ("std", "variance")),
    *(f"flooring.{name}" for name in ("floor_div", "mod")),
}


def taking_bits() -> set[str]:
    """Return "module.function" of every public operation on private values that takes a width."""
    names = set()
    for package in (protocols, models, arrays, queries):
        for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(each.name)
            functions = [(n, v) for n, v in vars(module).items() if isinstance(v, gated.Slope)]
            every: list[tuple[str, Any]] = [
                *inspect.getmembers(module, inspect.isfunction),
                *functions,
            ]
            for name, function in every:
                home = module.__name__ if (name, function) in functions else function.__module__
                if home != module.__name__ or name.startswith("_"):
                    continue
                parameters = inspect.signature(function).parameters
                width = parameters.get("bits")
                kinds = {str(p.annotation) for p in parameters.values()}
                operation = name in tfe.__all__ or kinds & {"Party", "Shared"}
                if operation and width is not None and str(width.annotation).startswith("int"):
                    names.add(f"{each.name.rpartition('.')[2]}.{name}")
    return names


def test_every_operation_that_takes_bits_has_a_row() -> None:
    rows = {name.partition(",")[0] for name in WIDTHS}
    named = {RENAMED.get(row, row) for row in rows}
    public = {row.partition(".")[2] for row in named} & set(tfe.__all__)
    rest = {each for each in taking_bits() - named if each.partition(".")[2] not in public}
    assert rest == set(BEHIND) | BOUNDED and set(BEHIND.values()) <= named <= taking_bits()
