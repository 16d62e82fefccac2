"""Nothing private becomes public implicitly: no conversion, repr or error text shows a value."""

from __future__ import annotations

import math
import operator
import pprint
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rich.pretty import pretty_repr

from tests.refusals import raises
from tfe_bench.cluster.simulate import reconstruct, share_for_party, simulate
from tfe_bench.errors import ProtocolError, TfeBenchError, UsageError
from tfe_bench.protocols.order.sort import SortResult
from tfe_bench.protocols.ring import arithmetic
from tfe_bench.protocols.session.sharing import EvaluatorBits, MaskedBits, Shared

# Recognizable in decimal and in hexadecimal.
CANARY = 1234567890123456
SIGNS = (str(CANARY), f"{CANARY:x}", str(CANARY)[:10])


def private_objects() -> list[Any]:
    """Return private objects that hold the canary in every field, as constants and as arrays."""
    import tensorflow as tf

    word = np.array([CANARY, CANARY])
    tensor = tf.constant(word)
    n = tf.constant(2, tf.int64)
    return [
        Shared(tensor, tensor, None, 1, 16),
        Shared(None, word, word, 2, 16),
        Shared(word[0], None, word[0]),
        Shared(word.reshape(1, 2), word.reshape(1, 2), None, limbs=2, bits=75),
        EvaluatorBits(tensor, None, n),
        EvaluatorBits(None, tensor, n),
        MaskedBits(tensor, None, n),
        MaskedBits(None, tensor, n),
    ]


def to_tensor(x: Any) -> Any:
    import tensorflow as tf

    return tf.convert_to_tensor(x)


def branch_on(x: Any) -> Any:
    import tensorflow as tf

    return tf.where(x, 1, 2)


def python_if(x: Any) -> int:
    return 1 if x else 0


CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "bool": bool,
    "not": operator.not_,
    "if": python_if,
    "float": float,
    "complex": complex,
    "int": int,
    "index": operator.index,
    "range": range,
    "indexing": lambda x: [1, 2, 3][x],
    "slicing": lambda x: [1, 2, 3][:x],
    "hex": hex,
    "floor": math.floor,
    "square root": math.sqrt,
    "iteration": list,
    "unpacking": lambda x: (lambda *a: a)(*x),
    "sum": sum,
    "max": max,
    "numpy array": np.array,
    "numpy asarray": np.asarray,
    "numpy typed array": lambda x: np.asarray(x, np.int64),
    "numpy float": np.float64,
    "numpy array of them": lambda x: np.array([x, x], np.int64),
    "numpy indexing": lambda x: np.arange(3)[x],
    "numpy save": lambda x: np.save("/dev/null", x),
    "tensor": to_tensor,
    "tensor function": branch_on,
}


@pytest.mark.parametrize("name", CONVERSIONS)
def test_a_private_value_never_converts_and_says_reveal(name: str) -> None:
    for x in private_objects():
        with pytest.raises(TypeError, match="reveal") as caught:
            CONVERSIONS[name](x)
        text = "".join(traceback.format_exception(caught.value))
        assert not any(sign in text for sign in SIGNS)


SHOWN: dict[str, Callable[[Any], str]] = {
    "repr": repr,
    "str": str,
    "format": format,
    "percent": lambda x: f"{'%s %r' % (x, x)}",  # noqa: UP031
    "list": lambda x: repr([x]),
    "dict": lambda x: repr({"x": x}),
    "dataclass": lambda x: repr(SortResult(x, (x,), x)),
    "pprint": pprint.pformat,
    "pprint of a dataclass": lambda x: pprint.pformat(SortResult(x, (x, x, x, x), x)),
    "rich": pretty_repr,
}


@pytest.mark.parametrize("name", SHOWN)
def test_no_text_form_of_a_private_value_shows_it(name: str) -> None:
    for x in private_objects():
        text = SHOWN[name](x)
        assert not any(sign in text for sign in SIGNS)
        assert type(x).__name__ in text


def test_repr_shows_shape_scale_ring_and_role() -> None:
    first, *_, wide = private_objects()[:4]
    assert repr(first) == ("Shared(shape=(2,), fractional_bits=16, ring=2^64, dealer=1, held=ml1)")
    assert "shape=(1,)" in repr(wide) and "ring=2^75" in repr(wide)


@pytest.mark.parametrize(
    "compare", [operator.lt, operator.le, operator.gt, operator.ge, operator.contains]
)
def test_outside_of_a_program_private_values_have_neither_order_nor_members(
    compare: Callable[[Any, Any], Any],
) -> None:
    for x in private_objects():
        for other in (x, CANARY):
            with pytest.raises((TypeError, TfeBenchError)) as caught:
                compare(x, other)
            assert not any(sign in str(caught.value) for sign in SIGNS)


@pytest.mark.parametrize("compare", [operator.eq, operator.ne])
def test_outside_of_a_program_private_tensors_are_not_compared(
    compare: Callable[[Any, Any], Any],
) -> None:
    for x in private_objects():
        if isinstance(x, Shared):
            with pytest.raises(TfeBenchError) as caught:
                compare(x, CANARY)
            assert not any(sign in str(caught.value) for sign in SIGNS)


@pytest.mark.parametrize("function", [np.sum, np.exp, lambda x: np.add(np.ones(2), x)])
def test_numpy_functions_refuse_private_values(function: Callable[[Any], Any]) -> None:
    for x in private_objects():
        with pytest.raises(TypeError) as caught:
            function(x)
        assert not any(sign in str(caught.value) for sign in SIGNS)


def test_private_values_hash_by_identity() -> None:
    for x, same in zip(private_objects(), private_objects(), strict=True):
        assert len({x, x, same}) == 2


def test_errors_that_name_operands_show_no_value() -> None:
    x, y = np.full(2, CANARY), np.full(2, CANARY)

    def scales(x: Shared, y: Shared) -> Any:
        return arithmetic.add(x, arithmetic.mul_public(y, CANARY, 3))

    def public(x: Shared, y: Shared) -> Any:
        return arithmetic.add(x, np.full(2, CANARY))  # type: ignore[arg-type]

    def dealers(x: Shared, y: Shared) -> Any:
        return arithmetic.sub(x, Shared(y.m, y.l1, y.l2, (y.dealer + 1) % 3))

    for program in (scales, public, dealers):
        with pytest.raises(UsageError) as caught:
            simulate(lambda p, x, y, program=program: program(x, y), x, y)
        assert not any(sign in str(caught.value) for sign in SIGNS)


def test_a_public_operation_refuses_a_private_operand() -> None:
    for operation in (arithmetic.add_public, arithmetic.mul_public, arithmetic.matmul_public):

        def program(p: Any, x: Shared, operation: Any = operation) -> Any:
            return p.function(lambda x: operation(x, x))(x)

        with pytest.raises((TypeError, UsageError)) as caught:
            simulate(program, np.full((2, 2), CANARY))
        assert not any(sign in str(caught.value) for sign in SIGNS)


@pytest.mark.parametrize("dealer", range(3))
def test_each_party_holds_the_two_parts_of_its_role_and_they_make_the_value(dealer: int) -> None:
    values = np.array([0, 1, -1, np.iinfo(np.int64).min, np.iinfo(np.int64).max])
    shares = [share_for_party(values, p, b"seed", 16, dealer) for p in range(3)]
    for party, x in enumerate(shares):
        held = {k for k in ("m", "l1", "l2") if getattr(x, k) is not None}
        assert held == [{"l1", "l2"}, {"m", "l1"}, {"m", "l2"}][(party - dealer) % 3]
        assert (x.shape.as_list(), x.ring_bits, x.fractional_bits) == ([5], 64, 16)
    assert np.array_equal(reconstruct(shares), values)


def test_parts_that_two_parties_hold_differently_do_not_reconstruct() -> None:
    good = [share_for_party(np.arange(3), p, b"seed") for p in range(3)]
    for party in range(3):
        bad = list(good)
        bad[party] = bad[party].map(lambda a: a + 1)
        with raises(ProtocolError, "inconsistent-shares"):
            reconstruct(bad)


def test_map_applies_to_the_parts_held_and_keeps_the_rest() -> None:
    x = Shared(np.arange(4), None, np.arange(4), 2, 5, 1, 31)
    y = x.map(lambda a: a.reshape(2, 2))
    assert y.m.shape == y.l2.shape == (2, 2) and y.l1 is None
    assert (y.dealer, y.fractional_bits, y.limbs, y.ring_bits) == (2, 5, 1, 31)
