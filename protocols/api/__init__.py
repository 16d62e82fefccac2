"""Public operations by name, and Python's operators, bound to private values here."""

from tfe_bench.protocols.api import operators, powers, predicates, rounding
from tfe_bench.protocols.ring import shapes
from tfe_bench.protocols.session import sharing

sharing.bind_operators(
    *(operators.add, operators.subtract, operators.multiply, operators.matmul, operators.divide),
    *(operators.negative, operators.abs, powers.pow, shapes.getitem),
    *(predicates.less, predicates.less_equal, predicates.greater, predicates.greater_equal),
    *(predicates.equal, predicates.not_equal, predicates.logical_not),
    *(rounding.floordiv, rounding.floormod),
    *(predicates.logical_and, predicates.logical_or, predicates.logical_xor),
)
