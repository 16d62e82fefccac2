"""The exp study: metrics as in the published benchmark, and files that label their contents."""

from __future__ import annotations

import contextlib
import csv
import itertools
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.refusals import raises
from tfe_bench.benchmarks import prediction
from tfe_bench.benchmarks.exp_study import (
    advisor,
    compare,
    grid,
    levels,
    notes,
    plots,
    published,
    report,
    study,
    tables,
)
from tfe_bench.benchmarks.exp_study.forms import METHODS, ExpForm, main_exp_forms, variant_exp_forms
from tfe_bench.benchmarks.measured_links import MeasuredLinks
from tfe_bench.benchmarks.report import drawing, markdown
from tfe_bench.benchmarks.report.drawing import Picture
from tfe_bench.benchmarks.report.parts import Page
from tfe_bench.benchmarks.workloads.exp import parse_request
from tfe_bench.cluster.jobs import InputSpec
from tfe_bench.cluster.profiles import NetworkProfile
from tfe_bench.cluster.requests import JobResult, PrivateInput
from tfe_bench.errors import (
    ConfigError,
    DataError,
    PeerLost,
    PolicyError,
    ProfileError,
    TfeBenchError,
    UsageError,
)
from tfe_bench.protocols.session.fixedpoint import FixedPoint

# ---- the complete study, on workers that compute in the clear


class CleartextCluster:
    """A cluster that behaves as declared: results of NumPy, bytes and rounds of the cost.

    At a network level it takes NETWORK times the modeled time.
    """

    NETWORK = 1.25

    def __init__(self, slow: float = 1e-6, extra_bytes: int = 0) -> None:
        self.slow, self.extra_bytes = slow, extra_bytes
        self.jobs: list[tuple[str, ExpForm, int]] = []
        self.emulation: str | None = None
        self.realized: MeasuredLinks | None = None
        self.level: NetworkProfile | None = None

    def select_network(self, profile: str) -> None:
        """Select another network."""
        self.level = next((v for v in levels.LEVELS if v.name == profile), None)
        self.emulation = self.realized = None
        if self.level is not None:
            limited = ", host-limited" if profile in ("net0", "net1") else ""
            self.emulation = f"netns+tun{limited}"
            delay, rate = self.level.delay, self.level.bits_per_second
            self.realized = MeasuredLinks((delay,) * 3, (rate, rate / 2, rate), 1.0, 0)

    def run(self, program: str, parameters: Any, inputs: Any) -> JobResult:
        assert program == "exp"
        private_input: PrivateInput = inputs["x"]
        options = {k: v for k, v in parameters.items() if k not in ("repeat", "warm_up")}
        form = ExpForm(ring_bits=64 * private_input.limbs, **options)
        parse_request(
            parameters,
            [
                InputSpec(
                    "x", private_input.shape, private_input.fractional_bits, private_input.limbs
                )
            ],
        )
        point = FixedPoint(private_input.fractional_bits, form.ring_bits)
        x = point.decode(private_input.ring)
        self.jobs.append((self.level.name if self.level else study.LOCAL, form, x.size))
        with np.errstate(over="ignore"):
            y = (1 + x / 2**form.iterations) ** 2**form.iterations
        exact = np.exp(x) if form.method != "taylor" else y
        exact = np.clip(exact, -point.limit / 2, point.limit / 2)
        cost = form.cost(x.size)
        sent = [bits // 8 + self.extra_bytes for bits in cost.by_party(0)]
        seconds = 0.01 + self.slow * x.size
        if self.level is not None:
            modeled = prediction.modeled_seconds(
                self.level, seconds, cost.with_dealing, tuple(sent)
            )
            seconds = self.NETWORK * modeled
        return JobResult(
            outputs={"y": point.encode(exact)},
            fractional_bits={"y": private_input.fractional_bits},
            limbs={"y": private_input.limbs},
            measured=[
                {
                    "payload": [0, sent[p], 0],
                    "rounds": [[cost.with_dealing, cost.rounds]],
                    "seconds": [seconds] * parameters["repeat"],
                    "idle_memory": 500 << 20,
                    "peak_memory": 100 * 1024 + 200 * x.size,
                }
                for p in range(3)
            ],
        )


def _run_study(
    plan: study.StudyPlan,
    cluster: CleartextCluster | None = None,
    refused: Mapping[str, TfeBenchError] | None = None,
) -> study.ExpStudy:
    cluster = cluster or CleartextCluster()

    @contextlib.contextmanager
    def opened(profile: str) -> Iterator[CleartextCluster]:
        if refused and profile in refused:
            raise refused[profile]
        cluster.select_network(profile)
        yield cluster

    return study.run_study(opened, plan)


@pytest.fixture(scope="module")
def quick_study() -> study.ExpStudy:
    """Return a quick study."""
    return _run_study(study.QUICK)


PICTURES = ("exp_error", "exp_memory", "exp_radar", "exp_range", "exp_time")


def _read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_form_is_measured_at_every_size_and_scored(quick_study: study.ExpStudy) -> None:
    assert [f.method for f in quick_study.main_forms] == list(METHODS) * 2
    assert quick_study.main_forms == main_exp_forms()
    for form in quick_study.main_forms:
        assert [m.n for m in quick_study.measurements[form]] == list(study.QUICK.sizes)
        assert all(m.matches_declared_cost for m in quick_study.measurements[form])
    assert (
        set(quick_study.accuracy)
        == set(quick_study.measurements)
        == {*main_exp_forms(), *variant_exp_forms(True)}
    )
    assert quick_study.cut == []


def test_fits_over_the_measurements_are_the_lines_behind_them(quick_study: study.ExpStudy) -> None:
    form = ExpForm("one-round", 128)
    cost = form.cost(1)
    assert quick_study.bytes_per_element(form) == pytest.approx([b / 8 for b in cost.by_party(0)])
    memory = quick_study.fit_quantity(form, "peak_rss_kb_P0")
    assert (memory.a, memory.b) == pytest.approx((200 / 1024, 500 * 1024 + 100))
    assert quick_study.fit_quantity(form, "seconds_local").a == pytest.approx(1e-6)
    for name, rate, latency, source, times in (
        ("net2", 100e6, 0.01, levels.MEASURED, CleartextCluster.NETWORK),
        ("net3", 10e6, 0.1, levels.MODELED, 1),
    ):
        slope, fixed = 1e-6 + max(cost.by_party(0)) / rate, 0.01 + latency * cost.with_dealing
        fit, model = (
            quick_study.fit_quantity(form, f"seconds_{name}"),
            quick_study.model_fit(form, f"seconds_{name}"),
        )
        assert quick_study.quantity_source(form, f"seconds_{name}") == source
        assert model is not None and fit.points == model.points == (2 if times > 1 else 3)
        assert (fit.a, fit.b) == pytest.approx((times * slope, times * fixed))
        assert (model.a, model.b) == pytest.approx((slope, fixed))
    assert (
        quick_study.quantity_source(form, "bytes_P0")
        == quick_study.quantity_source(form, "seconds_local")
        == levels.MEASURED
    )
    assert quick_study.model_fit(form, "seconds_local") is None


@pytest.mark.usefixtures("one_theme")
def test_the_report_has_every_file_and_labels_what_is_modeled(
    quick_study: study.ExpStudy, tmp_path: Path
) -> None:
    folder = tmp_path / "report"
    files = report.write_report(quick_study, folder)
    pictures = [f"{name}.png" for name in PICTURES]
    assert files == sorted([*report.FILES, *pictures])
    assert [p.name for p in tmp_path.iterdir()] == ["report"]
    for name in pictures:
        blob = (folder / name).read_bytes()
        assert blob.startswith(b"\x89PNG") and len(blob) > 10_000

    rows = _read_rows(folder / "exp.csv")
    assert list(rows[0]) == [
        *("protocol", "ring_bits", "fxp", "method", "params", "clamp_low", "clamp_high", "n"),
        *("net_level", "bytes_sent_P0", "bytes_sent_P1", "bytes_sent_P2", "bytes_total"),
        *("bytes_source", "rounds", "rounds_ahead"),
        *("peak_rss_kb_P0", "peak_rss_kb_P1", "peak_rss_kb_P2"),
        *("elapsed_s", "elapsed_source", "repeat"),
        *("modeled_s", "predicted_over_measured", "links"),
    ]
    mains = {(f.name, str(f.ring_bits)) for f in quick_study.main_forms}
    for row in rows:
        plan = study.QUICK.levels.get(row["net_level"])
        main = (row["params"], row["ring_bits"]) in mains
        there = main and plan is not None and int(row["n"]) in plan.sizes
        known = {"local": "measured", "": ""}
        expected = known.get(row["net_level"], "measured" if there else "modeled")
        assert row["elapsed_source"] == expected
        assert row["links"].startswith("netns+tun" if there else "") and bool(row["links"]) == there
        if there:
            assert float(row["predicted_over_measured"]) == pytest.approx(
                1 / CleartextCluster.NETWORK
            )
            assert float(row["elapsed_s"]) > float(row["modeled_s"])
        else:
            assert row["predicted_over_measured"] == ""
        if expected == "modeled":
            assert row["elapsed_s"] == row["modeled_s"]
        assert row["bytes_source"] == ("measured" if row["net_level"] else "closed form")
        assert int(row["bytes_total"]) == sum(int(row[f"bytes_sent_P{p}"]) for p in range(3))
    assert {int(r["n"]) for r in rows if not r["net_level"]} == {10**6, 10**7}

    rows = _read_rows(folder / "exp_accuracy.csv")
    assert len(rows) == len(quick_study.accuracy)
    for row in rows:
        shares = [float(row[name]) for name in grid.NAMES]
        assert float(row["mean6"]) == pytest.approx(np.mean(shares), abs=1e-6)
    fit_rows = _read_rows(folder / "exp_fits.csv")
    assert len(fit_rows) == 8 * len(study.QUANTITIES)
    for row in fit_rows:
        level = row["quantity"].removeprefix("seconds_")
        modeled = level in ("net0", "net3")
        assert row["source"] == ("modeled" if modeled else "measured")
        assert bool(row["modeled_a"]) == level.startswith("net")
        if level in study.QUICK.levels:
            ratio = float(row["predicted_over_measured_a"])
            assert ratio == pytest.approx(1 / CleartextCluster.NETWORK, rel=1e-5)
        else:
            assert row["predicted_over_measured_a"] == ""
    rows = _read_rows(folder / "exp_compare.csv")
    assert {r["published_method"] for r in rows} == set(published.METHODS)
    for row in rows:
        modeled = row["metric"].endswith(("net0", "net3"))
        assert row["ours_source"] == ("modeled" if modeled else "measured")
        assert ("MODELED" in row["note"]) == modeled
    level_rows = {r["net_level"]: r for r in _read_rows(folder / "exp_levels.csv")}
    assert list(level_rows) == ["net0", "net1", "net2", "net3"]
    sources = {name: r["source"] for name, r in level_rows.items()}
    assert sources == dict(net0="modeled", net1="measured", net2="measured", net3="modeled")
    assert level_rows["net1"]["host_limited"] == "true"
    assert level_rows["net2"]["host_limited"] == "false"
    assert float(level_rows["net2"]["realized_egress_mbit_P1"]) == 50
    assert level_rows["net3"]["why_not_measured"] == "not asked for"
    rounds = next(r for r in rows if r["metric"] == "rounds")
    assert float(rounds["times_better"]) == pytest.approx(12 / float(rounds["ours"]))

    text = (folder / "report.md").read_text()
    for word in (
        "~ MODELED",
        "host-limited",
        "50 .. 100 Mbit/s",
        published.SOURCE,
        published.CAVEAT,
        *published.find_contradictions(),
    ):
        assert word in text
    assert all(f"({name})" in text for name in pictures)
    page = (folder / "report.html").read_text()
    assert page.count("<table>") == 5 and page.count("<img ") == 5 and "~ MODELED" in page


def test_a_report_that_fails_leaves_nothing_behind(
    quick_study: study.ExpStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(page: Page) -> str:
        assert list(tmp_path.rglob("report.html"))  # a part of it exists
        raise KeyboardInterrupt

    empty = {name: Picture(name, b"", b"", 1) for name in PICTURES}
    monkeypatch.setattr(plots, "draw_pictures", lambda study: empty)
    with monkeypatch.context() as patch:
        patch.setattr(markdown, "render_markdown", failing)
        with pytest.raises(KeyboardInterrupt):
            report.write_report(quick_study, tmp_path / "report")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "report").mkdir()  # an empty folder is filled
    assert report.write_report(quick_study, tmp_path / "report")
    with raises(DataError, "file-exists"):
        report.write_report(quick_study, tmp_path / "report")
    with raises(DataError, "parent-not-writable"):
        report.write_report(quick_study, tmp_path / "none" / "report")
    assert [p.name for p in tmp_path.iterdir()] == ["report"]


def test_matplotlib_is_missed_before_the_study_and_needed_by_pictures_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawing.require_matplotlib()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with raises(ConfigError, "library-not-installed", operation="matplotlib"):
        drawing.require_matplotlib()


def test_sizes_that_would_take_too_long_are_left_out_and_named() -> None:
    plan = study.StudyPlan(sizes=(10, 1_000, 10_000, 100_000), quick=True, job_seconds=0.5)
    plan = replace(plan, levels={})
    cut = _run_study(plan, CleartextCluster(slow=1e-4))
    assert all([m.n for m in cut.measurements[f]] == [10, 1_000] for f in cut.main_forms)
    assert len(cut.cut) == 8 and "n = 10,000 left out" in cut.cut[0]
    assert any("Sizes left out" in note for note in notes.collect_study_notes(cut))
    assert any(
        "Times at net0 to net3 are MODELED" in note for note in notes.collect_study_notes(cut)
    )
    rows = compare.exp_rows(cut)
    assert {r["n"] for r in rows if r["bytes_source"] == "measured"} == {10, 1_000, 10_000}


def test_each_level_is_measured_by_one_cluster_at_the_sizes_that_fit_its_limit() -> None:
    cluster = CleartextCluster()
    plan = study.StudyPlan(sizes=(100, 1_000, 10_000), fresh=False)
    every = _run_study(plan, cluster)
    assert list(every.levels) == [level.name for level in levels.LEVELS]
    profiles = [profile for profile, *_ in cluster.jobs]
    assert [p for p, _ in itertools.groupby(profiles)] == [study.LOCAL, *every.levels]
    for name, at in every.levels.items():
        sizes = [n for n in plan.levels[name].sizes if n in plan.sizes]
        for form in every.main_forms:
            assert [m.n for m in at.measurements[form]] == sizes
            assert every.quantity_source(form, f"seconds_{name}") == levels.MEASURED
        assert at.host_limited == (name in ("net0", "net1"))
    assert every.cut == []
    assert not any("~" in str(cell) for row in tables.exp_times_table(every).rows for cell in row)
    assert "MODELED" not in tables.describe_exp_table_marks(every)
    assert [row[4] for row in tables.exp_links_table(every).rows] == ["16 measured"] * 3 + [
        "24 measured"
    ]
    checked = tables.exp_model_table(every)
    assert [*checked.head[1:]] == [f"net{level} n = 10,000" for level in range(4)] and all(
        str(cell).endswith(" s / 0.80") for row in checked.rows for cell in row[1:]
    )

    tight = {"net3": study.LevelPlan((100, 1_000, 10_000), 4.0)}
    cut = _run_study(replace(plan, levels=tight))
    form = ExpForm("pade", 128)  # 10 rounds of 0.1 s and 0.36 s of bytes for 1000 elements, 4 runs
    assert form in cut.main_forms and form not in cut.levels["net3"].measurements
    assert cut.quantity_source(form, "seconds_net3") == levels.MODELED
    assert cut.quantity_source(ExpForm("one-round", 128), "seconds_net3") == levels.MEASURED
    assert any(text.startswith("pade / 128 at net3: n = 100 left out, about") for text in cut.cut)


def test_links_that_fail_leave_their_level_modeled_and_the_reason_in_the_report() -> None:
    refused = {
        "net1": PolicyError("no shaping here"),
        "net2": ProfileError("one-way delay 0-1 15 ms instead of 10 ms"),
    }
    results = _run_study(study.QUICK, refused=refused)
    for form in results.main_forms:
        assert results.quantity_source(form, "seconds_net1") == levels.MODELED
        assert results.quantity_source(form, "seconds_net2") == levels.MODELED
    for name, error in refused.items():
        assert any(
            f"at {name}" in note and str(error) in note
            for note in notes.collect_study_notes(results)
        )
    rows = {r["net_level"]: r for r in compare.exp_level_rows(results)}
    assert rows["net2"]["source"] == "modeled" and "15 ms" in rows["net2"]["why_not_measured"]
    with pytest.raises(PeerLost):
        _run_study(study.QUICK, refused={"net2": PeerLost(1, "gone")})


def test_links_that_fail_once_are_tried_again_after_the_other_levels() -> None:
    opened: list[str] = []
    fractions: list[float] = []

    @contextlib.contextmanager
    def busy_at_first(profile: str) -> Iterator[CleartextCluster]:
        opened.append(profile)
        if profile == "net1" and opened.count("net1") == 1:
            raise ProfileError("busy")
        cluster = CleartextCluster()
        cluster.select_network(profile)
        yield cluster

    result = study.run_study(
        busy_at_first, study.QUICK, lambda fraction, text: fractions.append(fraction)
    )
    assert opened == ["local", "net1", "net2", "net1"] and list(result.levels) == ["net1", "net2"]
    assert fractions == sorted(fractions) and fractions[-1] == 1
    for name in result.levels:
        assert result.quantity_source(ExpForm("prime", 128), f"seconds_{name}") == levels.MEASURED


def test_bytes_other_than_declared_are_told() -> None:
    other = _run_study(study.QUICK, CleartextCluster(extra_bytes=8))
    assert any("NOT every measurement" in note for note in notes.collect_study_notes(other))


def test_progress_grows_to_the_end_and_a_lost_worker_ends_the_study() -> None:
    fractions: list[float] = []

    @contextlib.contextmanager
    def opened(profile: str) -> Iterator[CleartextCluster]:
        cluster = CleartextCluster(slow=1e-4)
        cluster.select_network(profile)
        yield cluster

    study.run_study(opened, study.QUICK, lambda fraction, text: fractions.append(fraction))
    assert fractions == sorted(fractions) and fractions[0] == 0 and fractions[-1] == 1

    class LosingCluster(CleartextCluster):
        def run(self, program: str, parameters: Any, inputs: Any) -> JobResult:
            raise PeerLost(1, "gone")

    with pytest.raises(PeerLost):
        _run_study(study.QUICK, LosingCluster())


def test_radar_scores_lie_between_nothing_and_the_best(quick_study: study.ExpStudy) -> None:
    scores = compare.radar_scores(quick_study)
    assert len(scores) == 8 + 3
    every = np.array(list(scores.values()))
    assert every.shape == (11, len(compare.AXES))
    assert (every > 0).all() and (every.max(axis=0) == 1).all()


# ---- advice


def test_advice_covers_the_range_and_is_the_cheapest_that_does() -> None:
    for low, high in advisor.RANGES:
        options = advisor.rank_exp_forms(low, high, 1000)
        assert all(a.low <= low and high <= a.high for a in options)
        assert [a.seconds["net2"] for a in options] == sorted(a.seconds["net2"] for a in options)
        text = advisor.advice_sentence(low, high)
        assert f"[{low:g}, {high:g}]" in text
        assert (options[0].form.name in text) if options else ("no form" in text)
    assert advisor.rank_exp_forms(-10, 10, 1000)
    assert "no form" in advisor.advice_sentence(0, 5000)
    for first, last in ((1, 0), (math.nan, 1), (-math.inf, 0)):
        with pytest.raises(UsageError):
            advisor.rank_exp_forms(first, last, 10)
    with pytest.raises(UsageError):
        advisor.rank_exp_forms(0, 1, 0)


# ---- the program


def _input_spec(name: str = "x", limbs: int = 1, bits: int = 16) -> list[InputSpec]:
    return [InputSpec(name, (5,), bits, limbs)]


@pytest.mark.parametrize(
    ("code", "parameters", "inputs"),
    [
        ("unknown-name", {"method": "tailor"}, _input_spec()),
        ("wrong-type", {"method": 1}, _input_spec()),
        ("unknown-option", {"methode": "pade"}, _input_spec()),
        ("unknown-name", {"clamp": "high"}, _input_spec()),
        ("wrong-type", {"clamp": None}, _input_spec()),
        ("number-out-of-range", {"iterations": 0, "method": "taylor"}, _input_spec()),
        ("wrong-type", {"iterations": 8.0, "method": "taylor"}, _input_spec()),
        ("wrong-type", {"iterations": True, "method": "taylor"}, _input_spec()),
        ("wrong-type", {"softmax": 1}, _input_spec()),
        ("number-out-of-range", {"repeat": 0}, _input_spec()),
        ("wrong-number-of-values", {}, _input_spec("y")),
        ("wrong-number-of-values", {}, [*_input_spec(), *_input_spec()]),
        ("wrong-number-of-values", {}, []),
        ("unsupported-scale", {}, _input_spec(bits=63)),
        ("unsupported-scale", {}, _input_spec(bits=0)),
    ],
)
def test_the_program_refuses_what_does_not_fit(
    code: str, parameters: dict[str, Any], inputs: list[InputSpec]
) -> None:
    with raises(UsageError, code):
        parse_request(parameters, inputs)


def test_the_program_takes_every_form_of_the_study() -> None:
    for form in (*main_exp_forms(), *variant_exp_forms()):
        parse_request(
            {**form.parameters, "repeat": 3}, _input_spec(limbs=form.ring_bits // 64, bits=form.fxp)
        )
        low, high = form.valid_range()
        assert low < 0 and high > -1e-5 and 0 <= form.failure_probability() < 1e-6
