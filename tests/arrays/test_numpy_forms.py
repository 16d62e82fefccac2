"""Further forms of NumPy: operands of different kinds, keywords, types."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.arrays.simulated import Client, Workers, tfb
from tests.refusals import raises
from tfe_bench.arrays.building import build
from tfe_bench.arrays.methods import NumpyArrayMethods
from tfe_bench.errors import UsageError


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    workers = Workers(tmp_path_factory.mktemp("forms"))
    yield Client(workers, "ann")
    workers.close()


X, N, B = np.array([[1.5, -2.25], [0.5, 3.75]]), np.array([[3, -1], [2, 7]]), np.eye(2) > 0
# By name: functions of reals, integers and truth values, private ones or NumPy's.
FORMS: dict[str, Callable[..., Any]] = {
    "a sum of kinds": lambda x, n, b: x + n - b,
    "a product with truths": lambda x, n, b: (x > 0) * x,
    "a masked mean": lambda x, n, b: np.where(b, x, 0.0).sum() / b.sum(),
    "a comparison": lambda x, n, b: x < n,
    "integers and a fraction": lambda x, n, b: n + 0.5,
    "ddof": lambda x, n, b: x.std(ddof=1),
    "an axis": lambda x, n, b: x.var(0, ddof=1),
    "integers": lambda x, n, b: n.std(),
    "one limit": lambda x, n, b: x.clip(0, None) + x.clip(max=1),
    "NumPy's clip": lambda x, n, b: np.clip(x, None, 1.0),
    "kept axes": lambda x, n, b: np.argmax(x, 1, keepdims=True),
    "tiles": lambda x, n, b: np.tile(x, (2, 1, 2)),
    "whole parts": lambda x, n, b: x.astype(int),
    "reals": lambda x, n, b: n.astype(float) / 2,
    "truths": lambda x, n, b: n.astype(bool),
    "dot": lambda x, n, b: x.dot(n) + x.dot(2.0) + np.dot(x, x[0]),
}
BETWEEN: dict[str, Callable[..., Any]] = {
    "a quantile": lambda x, n, b: np.quantile(x, 0.25),
    "a percentile": lambda x, n, b: np.percentile(x, 75, axis=0),
}


def _check_forms(client: Client, forms: dict[str, Callable[..., Any]]) -> None:
    private = [client.private(v) for v in (X, N, B)]
    expressions = [of(*private) for of in forms.values()]
    for (name, of), array, result in zip(
        forms.items(), expressions, client.reveal(*expressions), strict=True
    ):
        expected = np.asarray(of(X, N, B))
        assert array.shape == expected.shape and array.dtype.kind == np.asarray(result).dtype.kind
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4, err_msg=name)


def test_forms_are_as_in_numpy(client: Client) -> None:
    _check_forms(client, FORMS)


@pytest.mark.slow
def test_quantiles_are_as_in_numpy(client: Client) -> None:
    _check_forms(client, BETWEEN)


REFUSED: dict[str, tuple[Callable[[Any], Any], str, str]] = {
    "a mask": (lambda x: x[x > 1], "private-index", r"where\(mask, x, 0\)"),
    "places": (lambda x: x[tfb.argmax(x, 0)], "private-index", "gather"),
    "a text": (lambda x: x.astype("U3"), "unsupported-type", "float, int or bool"),
    "an integer that wraps around": (lambda x: x.astype(np.uint8), "unsupported-type", "float"),
    "stacks of matrices": (
        lambda x: x.dot(np.ones((2, x.shape[1], 2))),
        "unsupported-operation",
        "tensordot",
    ),
    "freedom": (lambda x: x.std(ddof=4), "number-out-of-range", "ddof .* 0 to 3"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_what_to_write(client: Client, name: str) -> None:
    of, code, advice = REFUSED[name]
    with raises(UsageError, code) as caught:
        of(client.private(X))
    assert re.search(advice, str(caught.value))


# Another value of each parameter of NumPy's methods, by the parameter's name.
OTHER_VALUES: dict[str, Any] = {
    **{"axis": 1, "keepdims": True, "ddof": 1, "min": 0.5, "max": 0.25},
    **{"fractional_bits": 8, "method": "exact"},
}


@pytest.mark.parametrize("name", sorted(set(vars(NumpyArrayMethods)) - {"dtype", "T", "kind"}))
def test_every_parameter_of_a_method_is_read(client: Client, name: str) -> None:
    method = getattr(NumpyArrayMethods, name)
    if name.startswith("_") or not callable(method):
        return
    x = client.private(X[:, :1])
    parameters = inspect.signature(method).parameters
    for parameter in list(parameters.values())[1:]:
        if parameter.default is inspect.Parameter.empty:
            continue  # (a value without default is an operand, a type or a shape)
        usual = {"fractional_bits": 4} if parameter.name == "method" else {}
        plans = [
            _plan_text(getattr(x, name)(**usual, **options))
            for options in ({}, {parameter.name: OTHER_VALUES[parameter.name]})
        ]
        assert plans[0] != plans[1], parameter.name


def _plan_text(value: Any) -> str:
    return json.dumps(build([value._node], [("reveal", {})]).plan.to_header())


def test_a_loop_may_begin_with_public_values(client: Client) -> None:
    x = client.private(np.array([1.0, 2.0]))
    assert np.allclose(tfb.foldl(lambda s: s + x, 3, np.ones(2)).reveal(), [4, 7])


def test_a_misspelt_operation_has_a_hint() -> None:
    with pytest.raises(AttributeError, match='Did you mean "relu"'):
        tfb.rleu  # noqa: B018
