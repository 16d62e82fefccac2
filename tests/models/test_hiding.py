"""Masks written as numbers: -1e9 before a softmax masks positions, whatever the range is."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.models.test_norm_ranges import run_plan
from tests.refusals import Matching, raises
from tfe_bench.errors import RangeError, UsageError
from tfe_bench.models.inference.private import PrivateModel, convert

keras: Any = pytest.importorskip("keras")
L: Any = keras.layers
K: Any = keras.ops
N = 5

TRIANGLE = np.array([[0, 0, -1e9, 0, -1e9]], np.float32)

# Scores x and a mask m, both [batch, N]: 1 for an unmasked position.
FORMS: dict[str, Callable[[Any, Any], Any]] = {
    "plus": lambda x, m: x + (1 - m) * -1e9,
    "minus": lambda x, m: x - (1 - m) * 1e9,
    "first": lambda x, m: (m - 1) * 1e9 + x,
    "of_padding": lambda x, m: x + (1 - m) * 3e4 * -1.0,
    "least_of_float32": lambda x, m: x + (1 - m) * -3.4028235e38,
    "bert": lambda x, m: x + (1 - m) * -10000.0,
    "times": lambda x, m: x * m + (1 - m) * -1e9,
    "where": lambda x, m: K.where(m > 0.5, x, -1e9),
    "where_not": lambda x, m: K.where(K.equal(m, 0), -1e9, x),
    "where_bool": lambda x, m: K.where(K.cast(m, "bool"), x, -1e9),
    "where_infinite": lambda x, m: K.where(m > 0.5, x, -np.inf),
    "where_full": lambda x, m: K.where(m > 0.5, x, K.full((1, N), -1e9)),
    "added_where": lambda x, m: x + K.where(m > 0.5, 0.0, -1e9),
    "layers": lambda x, m: L.Add()([x, L.Rescaling(1e9, -1e9)(m)]),
    "three": lambda x, m: L.Add()([x, L.Rescaling(1e9, -1e9)(m), 0.5 * x]),
    "behind": lambda x, m: ((x * 0.5 + (1 - m) * -1e9) + x * 0.25) / 3.0 + 0.7,
    "moved": lambda x, m: K.reshape(x[:, None, ::-1] + ((1 - m) * -1e9)[:, None, ::-1], (-1, N)),
    "table": lambda x, m: x + TRIANGLE,
    "table_of_two": lambda x, m: x + (TRIANGLE + np.linspace(0, 1, N, dtype=np.float32)),
    "table_and_mask": lambda x, m: x + TRIANGLE + (1 - m) * -1e9,
    "of_values": lambda x, m: K.where(x > 0.1, x, -1e9),
}


def model_of(form: Callable[[Any, Any], Any]) -> Any:
    x, m = keras.Input((N,), name="x"), keras.Input((N,), name="m")
    return keras.Model([x, m], K.softmax(form(x, m)))


def draw_scores(rng: np.random.Generator, scale: float = 2.0) -> list[Any]:
    """Return rows in which each form leaves some positions unmasked."""
    mask = rng.integers(0, 2, (4, N)).astype(float)
    mask[:, 0] = 1
    x = rng.normal(0, scale, (4, N))
    x[:, 0] = np.abs(x[:, 0]) + 0.2
    return [x, mask]


def keras_output(model: Any, values: list[Any]) -> Any:
    return np.asarray(model([v.astype(np.float32) for v in values], training=False))


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_mask_becomes_one_layer(form: str, rng: np.random.Generator) -> None:
    values = draw_scores(rng)
    model = model_of(FORMS[form])
    for samples in (None, values):
        private = convert(model, samples)  # (which compares it with Keras)
        ops = [x.op for x in private.graph.layers]
        assert "hide" in ops and ops[-1] == "softmax"
        wide = [n.bits for n in private.plan.numbers.values()]
        assert max(wide) <= (36 if samples is None else 27)
        np.testing.assert_allclose(private.plain(values), keras_output(model, values), atol=1e-6)


def check_forms(rng: np.random.Generator, scale: float, samples: bool, forms: Any) -> None:
    x, m = keras.Input((N,), name="x"), keras.Input((N,), name="m")
    rows = [K.softmax(FORMS[form](x, m)) for form in forms]
    model, values = keras.Model([x, m], L.Concatenate()(rows)), draw_scores(rng, scale)
    private = convert(model, values if samples else None)
    got, left, _ = run_plan(private.plan, values)
    assert not left.any()
    np.testing.assert_allclose(got, keras_output(model, values), atol=2e-4)


def test_masks_hide_in_fixed_point(rng: np.random.Generator) -> None:
    check_forms(rng, 2.0, True, ("table_and_mask", "where_not"))


@pytest.mark.slow
@pytest.mark.parametrize(("scale", "samples"), [(2.0, True), (400.0, False)])
def test_all_masks_hide_in_fixed_point(
    rng: np.random.Generator, scale: float, samples: bool
) -> None:
    check_forms(rng, scale, samples, FORMS)


def test_a_number_that_hides_nothing_is_added_as_it_is() -> None:
    x, m = keras.Input((2,), name="x"), keras.Input((2,), name="m")
    model = keras.Model([x, m], K.softmax(x + (1 - m) * -1e4))
    values = [np.array([[0.0, 12_000.0], [0.0, 9_999.0]]), np.array([[1.0, 0.0]] * 2)]
    private = convert(model, values)
    got, _, _ = run_plan(private.plan, values)
    np.testing.assert_allclose(got, keras_output(model, values), atol=1e-3)
    assert got[0, 1] > 0.99 > 0.3 > got[1, 1] > 0.2


def attention_model(padded: bool) -> Any:
    """Build two heads with matmul, a causal triangle, and a mask of the keys."""
    x, m = keras.Input((N, 4), name="x"), keras.Input((N,), name="m", dtype="int32")

    def heads(y: Any) -> Any:
        return K.transpose(K.reshape(y, (-1, N, 2, 3)), (0, 2, 1, 3))

    q, k, v = (heads(L.Dense(6)(x)) for _ in range(3))
    scores = K.matmul(q, K.transpose(k, (0, 1, 3, 2))) / np.sqrt(3)
    scores = scores + ((1.0 - np.tri(N, dtype=np.float32)) * -1e9)[None, None]
    if padded:
        scores = scores + (1.0 - K.cast(m, "float32"))[:, None, None, :] * -1e9
    mixed = K.matmul(K.softmax(scores, axis=-1), v)
    out = L.Dense(3)(K.reshape(K.transpose(mixed, (0, 2, 1, 3)), (-1, N, 6)))
    return keras.Model([x, m] if padded else x, out)


@pytest.mark.slow
@pytest.mark.parametrize("padded", [True, False])
def test_attention_by_hand_takes_its_usual_masks(padded: bool, rng: np.random.Generator) -> None:
    model = attention_model(padded)
    x, mask = (
        rng.normal(0, 1, (3, N, 4)),
        np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1] + [0] * 4]),
    )
    values = [x, mask] if padded else x
    private = convert(model, values)
    assert private.graph.masks == (("m",) if padded else ())
    got, left, _ = run_plan(private.plan, values)
    assert not left.any()
    want = model([x.astype("float32"), mask] if padded else x.astype("float32"), training=False)
    np.testing.assert_allclose(got, np.asarray(want), atol=2e-3)
    if padded:
        with raises(UsageError, "invalid-mask", operation="m", received=9):
            private.shared_inputs([x, mask * 2])


def test_large_numbers_elsewhere_are_refused_in_words(rng: np.random.Generator) -> None:
    x, m = keras.Input((N,), name="x"), keras.Input((N,), name="m")
    values = draw_scores(rng)
    for form in ("where", "where_infinite"):
        model = keras.Model([x, m], K.max(FORMS[form](x, m), -1, keepdims=True))
        for samples in (None, values):
            with raises(RangeError, "range-too-large", received=Matching(r"\d")):
                convert(model, samples)
    model = keras.Model([x, m], K.max(FORMS["plus"](x, m), -1, keepdims=True))
    with raises(RangeError, "value-out-of-range", operation="m", names=("Rescaling",)):
        convert(model).shared_inputs(values)


# ---- constants that are too small


def convert_warned(model: Any, samples: Any = None) -> tuple[PrivateModel, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        private = convert(model, samples)
    return private, [str(w.message) for w in caught if w.category is UserWarning]


@pytest.mark.parametrize(
    ("function", "warned"),
    [
        (lambda x: K.log(L.Softmax()(x) + 1e-7), "1e-07, of which 16 fractional bits make 0"),
        (lambda x: K.log(x + 1e-5), "1e-05"),
        (lambda x: 1 / K.sqrt(K.square(x) + 1e-6), "1e-06"),
        (lambda x: K.log(x + 0.01), ""),
        (lambda x: L.Dense(1)(x + 1e-7), ""),
        (lambda x: L.Normalization(mean=1e-6, variance=1.0)(x), ""),
    ],
)
def test_numbers_below_the_resolution_are_warned_of(function: Any, warned: str) -> None:
    x = keras.Input((3,))
    _, result = convert_warned(keras.Model(x, function(x)))
    assert len(result) == bool(warned) and all(warned in text for text in result)


def test_norms_of_small_rows_are_planned_for(rng: np.random.Generator) -> None:
    small = rng.normal(0, 1e-4, (4, 16))
    norm = L.LayerNormalization(epsilon=1e-12)
    model = keras.Sequential([keras.Input((16,)), norm])
    got, _, _ = run_plan(convert(model, small).plan, small)
    np.testing.assert_allclose(got, np.asarray(norm(small)), atol=2e-3)
    with pytest.warns(UserWarning, match="Convert the model with samples"):
        convert(model).shared_inputs(small)
