"""Run time by number of cores: the model's properties, and the records that it takes."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from tfe_bench.benchmarks import suite
from tfe_bench.benchmarks.report import comparison_columns, curve, parts

if TYPE_CHECKING:
    from tests.benchmarks.conftest import Maker

_TIMES = (1e-3, 0.5, 1.0, 1.999, 2.0, 2.001, 1e3)


def make_core_records(make_record: Maker, one: float, two: float, **fields: Any) -> list[Any]:
    """Return records of a sort with 1 and with 2 cores."""
    return [
        make_record(seconds=seconds / 1.05, parameters={"n": 1024, "cores": cores}, **fields)
        for cores, seconds in ((1, one), (2, two))
    ]


@pytest.mark.parametrize(("one", "two"), list(itertools.product(_TIMES, _TIMES)))
def test_more_cores_never_take_longer_and_no_bound_is_broken(one: float, two: float) -> None:
    for work, bound in itertools.product(_TIMES, _TIMES):
        model = curve.ProcessorModel({1: one, 2: two}, work, {"rounds": bound})
        assert 0 <= model.fixed_seconds <= two
        times = [model.predict_seconds(n) for n in curve.MODELED]
        assert times == sorted(times, reverse=True)
        assert times[0] <= max(two, work / 4, bound)
        for cores, seconds in zip(curve.MODELED, times, strict=True):
            assert seconds >= max(work / cores, bound, model.fixed_seconds)


def test_the_model_is_amdahls_law_within_counted_bounds(make_record: Maker) -> None:
    used = {"graph": 0.5, "transport": 0.25, "other": 0.125}
    records = make_core_records(
        make_record,
        *(8.0, 5.0),
        cpu_seconds=(2.0, 3.0, 2.0),
        breakdown=({"processor": used}, {"processor": {**used, "other": 0.375}}, {}),
        rounds_ahead=1000,
    )
    ((record, model),) = curve.build_models(records)
    assert record is records[1] and model.work == 7.0
    assert model.fixed_seconds == pytest.approx(2.0)
    assert model.bounds == {"transport": 0.625, "rounds": pytest.approx(0.12)}
    assert model.predict_seconds(4) == pytest.approx(2 + 6 / 4)
    assert model.predict_seconds(32) == pytest.approx(2 + 6 / 32)
    assert model.name_limit(32) == "fixed part" and model.name_limit(2) == "computing"
    # twice as fast with twice the cores: only counted bounds stay
    ((_, ideal),) = curve.build_models(
        make_core_records(make_record, 8.0, 4.0, cpu_seconds=(3.0, 3.0, 2.0), rounds_ahead=10_000)
    )
    assert ideal.fixed_seconds == pytest.approx(0, abs=1e-9)
    assert [ideal.predict_seconds(n) for n in (4, 16)] == pytest.approx([2.0, 1.2])
    assert ideal.name_limit(16) == "rounds"


def test_a_networks_share_bounds_the_curve(make_record: Maker) -> None:
    fields = {"profile": "wan", "rounds_ahead": 100, "bytes_sent": (44_000_000, 0, 0)}
    ((_, model),) = curve.build_models(make_core_records(make_record, 4.0, 3.0, **fields))
    assert model.bounds["network"] == pytest.approx(2.0)


def test_only_right_pairs_of_one_machine_make_a_curve(make_record: Maker) -> None:
    one, two = make_core_records(make_record, 2.0, 1.5)
    assert curve.build_models([one]) == curve.build_models([two]) == []
    assert curve.build_models([one, make_record()]) == []
    wrong = make_record(parameters={"n": 1024, "cores": 2}, correct=False)
    assert curve.build_models([one, wrong]) == []
    other = make_record(parameters={"n": 2048, "cores": 2})
    assert curve.build_models([one, other]) == []
    odd = make_record(parameters={"n": 1024, "cores": True})
    assert curve.build_models([one, odd]) == []
    assert "suite cores" in str(curve.build_curve_parts([one])[0])
    table = curve.build_curve_parts([one, two])[0]
    assert isinstance(table, parts.Table) and len(table.rows) == 1
    assert [h for h in table.head if "model" in h] == [f"{n}, model" for n in (4, 8, 16, 32)]
    assert "not a measurement" in table.caption
    # such records are in no other section
    assert comparison_columns.latest_records([one, two]) == []


def test_rows_of_the_suite_are_of_their_number_of_cores(make_record: Maker) -> None:
    rows = suite.suite_rows("cores")
    assert {r.name for r in rows} == {"sort", "resnet50", "bert-base"}
    assert [r.parameters["cores"] for r in rows] == [1, 2] * 3
    assert all(r.command[-2:] == ("--cores", str(r.parameters["cores"])) for r in rows)
    plain = suite.suite_rows("models", only="resnet50")[0]
    limited = next(r for r in rows if r.name == "resnet50" and r.parameters["cores"] == 1)
    whole = make_record("resnet50", parameters={"model": "ResNet50", "batch": 1})
    one = make_record("resnet50", parameters={"model": "ResNet50", "batch": 1, "cores": 1})
    for record, row in ((whole, plain), (one, limited)):
        record = type(record).from_json(record.to_json())
        assert row.parameters.items() <= record.parameters.items()
    assert whole.parameters.get("cores") != one.parameters.get("cores")
