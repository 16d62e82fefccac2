"""A party whose private values know Python's operators: whoever makes one takes it from here."""

from tfe_bench.protocols.api import operators, predicates
from tfe_bench.protocols.ring import shapes
from tfe_bench.protocols.session import sharing
from tfe_bench.protocols.session.party import Party

__all__ = ["Party"]

sharing.bind(
    *(operators.add, operators.subtract, operators.multiply, operators.matmul, operators.divide),
    *(operators.negative, operators.abs, operators.pow, shapes.getitem),
    *(predicates.less, predicates.less_equal, predicates.greater, predicates.greater_equal),
    *(predicates.equal, predicates.not_equal, predicates.logical_not),
    *(predicates.logical_and, predicates.logical_or, predicates.logical_xor),
)
