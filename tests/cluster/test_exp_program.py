"""The program "exp" on three workers: correct results, declared bytes and rounds, both rings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.refusals import raises
from tfe_bench.benchmarks.exp_study import measurement
from tfe_bench.benchmarks.exp_study.forms import ExpForm
from tfe_bench.cluster.requests import PrivateInput
from tfe_bench.errors import UsageError
from tfe_bench.protocols.session.fixedpoint import FixedPoint

if TYPE_CHECKING:
    from tfe_bench.cluster.launch import LocalCluster

FORMS = [
    ExpForm("one-round", 64),
    ExpForm("one-round", 128),
    ExpForm("one-round", 64, "low", softmax=True),
    ExpForm("prime", 64),
    ExpForm("prime", 128),
    ExpForm("taylor", 128, iterations=5),
    ExpForm("pade", 64),
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.label)
def test_a_form_is_within_its_tolerance_and_costs_what_it_declares(
    shared_cluster: LocalCluster, form: ExpForm, rng: np.random.Generator
) -> None:
    point = FixedPoint(form.fxp, form.ring_bits)
    low, high = measurement.drawing_range(form)
    x = point.decode(point.encode(rng.uniform(low, high, (40, 25))))
    result = shared_cluster.run(
        "exp", {**form.parameters, "repeat": 2}, measurement.encode_exp_inputs(form, x)
    )
    y = measurement.decode_exp_result(form, result)
    assert y.shape == x.shape and result.fractional_bits["y"] == form.fxp
    assert np.all(np.abs(y - np.exp(x)) <= form.error_tolerance(x))
    assert [len(m["seconds"]) for m in result.measured] == [2, 2, 2]
    sent = tuple(8 * sum(m["payload"]) for m in result.measured)
    assert sent == form.cost(x.size).by_party(0)
    assert str(result.measured[0]["variant"]).startswith(form.name.split()[0])


def test_a_study_of_real_workers_measures_what_is_declared(shared_cluster: LocalCluster) -> None:
    figures = measurement.measure_exp_form(shared_cluster, ExpForm("one-round", 128), 100, repeat=3)
    assert figures.matches_declared_cost and len(figures.seconds) == 3
    assert min(figures.peak_rss) > max(figures.growth) > 0
    accuracy = measurement.measure_exp_accuracy(
        shared_cluster, ExpForm("one-round", 128), float32=False
    )
    assert accuracy.mean6 > 0.8 and accuracy.mape < 1e-5
    assert accuracy.last == 40 and accuracy.first < -24


def test_an_unfit_exponential_is_refused_by_the_workers(shared_cluster: LocalCluster) -> None:
    x = {"x": PrivateInput(np.zeros(3, np.int64), 16)}
    for parameters, code, fact in (
        ({"method": "prim"}, "unknown-name", '"prime"'),
        ({"clamps": "low"}, "unknown-option", '"clamp"'),
        ({"softmax": 1}, "wrong-type", "softmax"),
    ):
        with raises(UsageError, code, names=(fact,)):
            shared_cluster.run("exp", parameters, x)
    with raises(UsageError, "wrong-number-of-values", operation="exp"):
        shared_cluster.run("exp", {}, {"y": x["x"]})
