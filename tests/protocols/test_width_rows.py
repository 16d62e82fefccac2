"""Every operation that takes `bits` has a row in WIDTHS, or is behind one that has.

The operations are found by their signatures, so that a new one without a row fails here.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import tfe_bench as tfe
from tests.protocols.test_widths import WIDTHS
from tfe_bench import models, protocols

# Operations that hand their width on to one with a row, or are handed it by one.
BEHIND = {
    "range_check.in_range": "predicates.in_range",
    "activations.sigmoid": "neural.sigmoid",
    "activations.tanh": "neural.tanh",
    "activations.softmax": "neural.softmax",
    "activations.halves": "neural.sigmoid",
    "gelu.gelu": "neural.gelu",
    "silu.silu": "neural.silu",
    "compare.msb": "predicates.less",
    "compare.less_than": "predicates.less",
    "extremes.reduce_max": "ranking.reduce_max",
    "extremes.reduce_min": "ranking.reduce_min",
    "extremes.argmax": "ranking.argmax",
    "extremes.argmin": "ranking.argmin",
    "extremes.one_hot": "ranking.argmax",
    "logarithm.log": "elementary.log",
    "piecewise.evaluate": "piecewise.logistic",
    "polynomial.polyval": "elementary.polyval",
    "pool.max_pool2d": "neural.max_pool2d",
    "reciprocal.divide": "operators.divide",
    "reciprocal.reciprocal": "elementary.reciprocal",
    "relational.equal": "predicates.equal",
    "relational.greater": "predicates.greater",
    "relational.greater_equal": "predicates.greater_equal",
    "relational.less": "predicates.less",
    "relational.less_equal": "predicates.less_equal",
    "relational.maximum": "ranking.maximum",
    "relational.minimum": "ranking.minimum",
    "relational.negative": "predicates.less",
    "relational.not_equal": "predicates.not_equal",
    "relational.zero": "predicates.equal",
    "relu.derivative": "neural.relu_derivative",
    "relu.relu": "neural.relu",
    "relu.relu_with_derivative": "neural.relu",
    "roots.rsqrt": "elementary.rsqrt",
    "roots.sqrt": "elementary.sqrt",
}


def taking_bits() -> set[str]:
    """ "module.function" of every public operation on private values that takes a width."""
    found = set()
    for package in (protocols, models):
        for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(each.name)
            for name, function in inspect.getmembers(module, inspect.isfunction):
                if function.__module__ != module.__name__ or name.startswith("_"):
                    continue
                parameters = inspect.signature(function).parameters
                width = parameters.get("bits")
                kinds = {str(p.annotation) for p in parameters.values()}
                operation = name in tfe.__all__ or kinds & {"Party", "Shared"}
                if operation and width is not None and str(width.annotation).startswith("int"):
                    found.add(f"{each.name.rpartition('.')[2]}.{name}")
    return found


def test_every_operation_that_takes_bits_has_a_row() -> None:
    named = {name.partition(",")[0] for name in WIDTHS}
    assert taking_bits() == named | set(BEHIND) and not named & set(BEHIND)
    assert set(BEHIND.values()) <= named
