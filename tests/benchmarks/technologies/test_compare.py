"""The comparison's cells, order, advice and page, from made-up records."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.refusals import raises
from tfe_bench.__main__ import main
from tfe_bench.benchmarks import records
from tfe_bench.benchmarks.records import Seconds
from tfe_bench.benchmarks.technologies.compare import advisor, cells, makers, page, table, tasks
from tfe_bench.benchmarks.technologies.compare.cells import Cost, Protection, Traffic
from tfe_bench.benchmarks.technologies.compare.table import Maker
from tfe_bench.benchmarks.technologies.compare.tasks import ComparedTask
from tfe_bench.benchmarks.technologies.measurement import Measurement
from tfe_bench.cluster import profiles
from tfe_bench.errors import ConfigError, DataError, UsageError

TASK = ComparedTask("J3", "batch 1", 1)
OTHER = ComparedTask("J3", "batch 64", 64)


def make_protection(leakage: str = "nothing", trust: str = "one-server") -> Protection:
    return Protection(
        parties=1,
        adversary="semi-honest",
        learns=f"others learn {leakage}",
        leakage=leakage,
        trust=trust,
        security_bits=128,
    )


def make_cell(
    technology: str,
    seconds: float,
    up: int = 1000,
    rounds: int = 2,
    task: ComparedTask = TASK,
    leakage: str = "nothing",
    **changed: Any,
) -> Measurement:
    fields: dict[str, Any] = {
        "seconds": Seconds.from_times([seconds]),
        "traffic": Traffic(up=up, down=10, rounds=rounds),
        "more": {},
        "parameters": {},
    }
    return cells.build_cell(technology, task, make_protection(leakage), Cost(**fields | changed))


# ---- cells


def test_a_network_costs_rounds_and_bytes_on_the_critical_path() -> None:
    traffic = Traffic(up=3000, down=500, between=1500, rounds=7, total=9999)
    for name in cells.NETWORKS:
        link = profiles.get_profile(name)
        expected = 0.25 + 7 * link.delay + 5000 * 8 / link.bits_per_second
        assert traffic.model_seconds(name, 0.25) == pytest.approx(expected)


def test_a_cell_says_what_is_modeled() -> None:
    m = make_cell("homomorphic", 0.5, up=44_000)
    assert m.figures["latency_seconds"] == 0.5 and m.figures["samples_per_second"] == 2
    assert set(m.modeled) == {"lan_seconds", "wan_seconds"}
    assert m.figures["wan_seconds"] == pytest.approx(0.5 + 2 * 0.02 + 44_010 * 8 / 352e6)
    assert m.figures["total_bytes"] == 44_010
    projected = make_cell(
        "storage", 1.0, latency=3.0, compute=2.0, modeled=("latency_seconds",), correct=None
    )
    assert projected.figures["latency_seconds"] == 3.0
    assert projected.figures["lan_seconds"] == pytest.approx(2.0, abs=1e-3)
    assert "latency_seconds" in projected.modeled
    assert Measurement.from_json(projected.to_json()) == projected


def test_times_of_short_functions_are_of_one_call() -> None:
    calls: list[int] = []

    def once() -> int:
        calls.append(1)
        return len(calls)

    seconds, result = cells.time_technology_task(once, 3)
    assert len(seconds.all) >= 3 and result == len(calls) > 3
    assert seconds.median < 1e-3


def test_every_job_has_rows_and_an_unknown_one_is_refused() -> None:
    every = tasks.list_tasks(tasks.WHOLE)
    assert [*dict.fromkeys(task.job for task in every)] == [*tasks.JOBS]
    assert len({task.label for task in every}) == len(every) == 12
    assert {t.batch for t in every if t.job in ("J2", "J3")} == {1, 64}
    assert [t.job for t in tasks.list_tasks(tasks.QUICK, ["J6", "J1"])] == ["J1", "J6", "J6"]
    with raises(UsageError, "unknown-name", operation="job", received="J9"):
        tasks.list_tasks(tasks.QUICK, ["J9"])
    assert not tasks.need_mnist_pictures(["J1", "J6"]) and tasks.need_mnist_pictures(None)


def test_inputs_are_the_same_for_every_technology() -> None:
    first, second = tasks.ComparisonInputs(), tasks.ComparisonInputs()
    assert (first.draw_vectors(3) == second.draw_vectors(3)).all()
    assert (first.draw_weights(4) == second.draw_weights(4)).all()
    assert first.draw_vectors(64).min() >= 0 and first.draw_vectors(64).max() <= 255
    assert abs(first.draw_weights(128)).max() <= 127
    assert not (tasks.ComparisonInputs(seed=2).draw_keys(8) == first.draw_keys(8)).all()


# ---- the table


class Fake:
    """A technology that takes the same time for each task."""

    def __init__(self, name: str, seconds: float) -> None:
        self._name, self._seconds = name, seconds

    def measure_task(self, task: ComparedTask) -> Measurement:
        if self._name == "functional":
            return cells.unsupported_technology_cell(self._name, task, "it has no such function")
        return make_cell(self._name, self._seconds, task=task)


def fail_missing() -> Fake:
    raise ConfigError("Homomorphic encryption needs the library seal.")


def make_fakes() -> dict[str, Maker]:
    return {
        "plaintext": lambda: Fake("plaintext", 0.25),
        "secret-sharing": lambda: Fake("secret-sharing", 2.0),
        "functional": lambda: Fake("functional", 1.0),
        "homomorphic": fail_missing,
    }


def test_the_table_sets_each_cell_beside_plaintext() -> None:
    texts: list[str] = []
    measurements = [
        *table.measure_tasks(make_fakes(), [TASK, OTHER], lambda f, words: texts.append(words))
    ]
    assert len(measurements) == 8 and texts[0] == "J3 batch 1, plaintext"
    by_name = {(m.technology, table.technology_cell_variant(m)): m for m in measurements}
    for variant in ("batch 1", "batch 64"):
        assert by_name["plaintext", variant].figures["slowdown"] == 1
        assert by_name["secret-sharing", variant].figures["slowdown"] == 8
        assert "no such function" in by_name["functional", variant].figures["unsupported"]
        assert "needs the library seal" in by_name["homomorphic", variant].figures["unsupported"]


def test_the_newest_of_each_cell_counts_and_others_records_do_not() -> None:
    old = dataclasses.replace(make_cell("homomorphic", 9.0), time="2020-01-01T00:00:00+00:00")
    new = make_cell("homomorphic", 1.0)
    alien = dataclasses.replace(new, job="encrypt")
    own = dataclasses.replace(new, technology="functional", parameters={"batch": 64})
    plain = make_cell("plaintext", 1.0, task=OTHER)
    chosen = table.select_technology_cells([new, old, alien, own, plain])
    assert [(m.technology, m.figures["latency_seconds"]) for m in chosen] == [
        ("homomorphic", 1.0),
        ("plaintext", 1.0),
    ]


# ---- advice

ALL = (
    make_cell("plaintext", 0.001, leakage="the inputs"),
    make_cell("secret-sharing", 0.1, rounds=20),
    make_cell("functional", 0.05, leakage="the inputs"),
    make_cell("homomorphic", 0.3),
    make_cell("storage", 0.01, modeled=("latency_seconds",)),
)


@pytest.mark.parametrize(
    ("network", "trust", "taken"),
    [
        ("local", "one-server", "homomorphic"),
        ("wan", "one-server", "homomorphic"),
        ("lan", "three-servers", "secret-sharing"),
        ("wan", "three-servers", "homomorphic"),  # 20 rounds of 20 ms exceed the limit
        ("lan", "key-authority", "homomorphic"),  # functional encryption leaks the inputs here
    ],
)
def test_the_fastest_that_leaks_nothing_is_taken(network: str, trust: str, taken: str) -> None:
    [advice] = advisor.advise_technologies(ALL, "J3", network, trust)
    assert advice.best is not None and advice.best.technology == taken
    assert f"on {network}" in advice.why[0] and "learn nothing" in advice.why[0]
    reasons = " ".join(advice.why)
    assert "storage would take" in reasons
    if trust == "key-authority":
        assert "Not functional: others learn the inputs" in reasons
        assert "Not secret-sharing: it takes three servers" in reasons


def test_what_leaks_results_is_taken_only_where_nothing_else_can() -> None:
    leaky = make_cell("functional", 0.05, leakage="the results")
    [first] = advisor.advise_technologies(
        [leaky, make_cell("homomorphic", 5.0)], "J3", "lan", "key-authority"
    )
    assert first.best is not None and first.best.technology == "homomorphic"
    assert "and others learn the results" in first.why[1]
    [second] = advisor.advise_technologies([leaky], "J3", "lan", "key-authority")
    assert second.best is leaky and "learn the results" in second.why[0]


def test_wrong_missing_and_untold_cells_are_not_taken() -> None:
    candidates = [
        make_cell("homomorphic", 0.1, correct=False),
        cells.unsupported_technology_cell("secret-sharing", TASK, "no workers here"),
        dataclasses.replace(
            make_cell("storage", 0.1), figures={"latency_seconds": "fast"}, modeled=()
        ),
    ]
    [advice] = advisor.advise_technologies(candidates, "J3", "wan", "three-servers")
    reasons = " ".join(advice.why)
    assert advice.best is None
    assert "was wrong" in reasons and "no workers here" in reasons and "no time is known" in reasons


@pytest.mark.parametrize(
    ("job", "network", "trust", "said"),
    [
        ("J33", "wan", "one-server", 'Did you mean "J3"'),
        ("J3", "wann", "one-server", 'Did you mean "wan"'),
        ("J3", "wan", "three-server", 'Did you mean "three-servers"'),
    ],
)
def test_unknown_words_are_refused(job: str, network: str, trust: str, said: str) -> None:
    with raises(UsageError, "unknown-name") as caught:
        advisor.advise_technologies(ALL, job, network, trust)
    assert said in str(caught.value)


def test_a_job_without_records_is_told() -> None:
    with raises(DataError, "no-records", operation="J1"):
        advisor.advise_technologies(ALL, "J1", "wan", "one-server")


# ---- the page


def test_the_report_shows_the_table_and_both_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], one_theme: None
) -> None:
    file = tmp_path / "all.jsonl"
    figures: dict[str, Any] = {"learns": 3, "rounds": "x", "latency_seconds": True}
    odd = dataclasses.replace(ALL[3], modeled=(), parameters={"variant": "<b>"}, figures=figures)
    wrong = make_cell("secret-sharing", 0.4, task=OTHER, correct=False)
    none = cells.unsupported_technology_cell("functional", OTHER, "because of <reasons>")
    for each in (*ALL, odd, wrong, none):
        records.append_record(file, each)
    assert main(["report", str(tmp_path)]) == 0
    assert "technologies-time.png" in capsys.readouterr().out
    text = (tmp_path / "report.html").read_text()
    assert "What private computing costs" in text
    assert "because of &lt;reasons&gt;" in text and "&lt;b&gt;" in text
    assert "projected" in text and "WRONG" in text
    assert (tmp_path / "report-technologies-bytes.png").stat().st_size > 1000


def test_without_records_of_the_comparison_there_is_no_section() -> None:
    assert page.build_sections([], {}) == []
    other = dataclasses.replace(ALL[1], job="decrypt")
    assert page.build_sections([other], {}) == []


# ---- the command


@pytest.fixture
def without_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(makers, "all_of", lambda *_: make_fakes())


def test_the_command_prints_parts_of_one_table(
    without_measuring: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "all.jsonl"
    words = ["technologies", "--job", "J1,J2", "--record", str(file)]
    assert main(words) == 0
    output = capsys.readouterr().out
    for part in ("Time here", "on a WAN, modeled", "Bytes", "Others learn", "needs the library"):
        assert part in output
    assert max(map(len, output.partition("Networks are")[0].splitlines())) <= 80
    measurements = [Measurement.from_json(line) for line in file.read_text().splitlines()]
    assert len(measurements) == 4 * 3
    assert main([*words, "--only", "secret-sharing", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {line["technology"] for line in lines} == {"plaintext", "secret-sharing"}


def test_the_command_advises_from_records_or_a_quick_run(
    without_measuring: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "all.jsonl"
    for each in ALL:
        records.append_record(file, each)
    words = ["technologies", "--job", "J3", "--network", "wan", "--trust", "three-servers"]
    assert main([*words, "--records", str(file)]) == 0
    assert "batch 1: take homomorphic." in capsys.readouterr().out
    assert main([*words, "--records", str(file), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["take"], document["variant"]) == ("homomorphic", "batch 1")
    assert main(["technologies", "--job", "J1", "--trust", "three-servers"]) == 0
    assert "take secret-sharing" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--job", "J8"], 2, '"J'),
        (["--only", "homomorfic"], 2, '"homomorphic"'),
        (["--trust", "one-server"], 2, "--job J3"),
        (["--trust", "one-server", "--job", "J1,J2"], 2, "--job J3"),
        (["--trust", "nobody", "--job", "J1"], 2, "[unknown-name]"),
        (["--network", "wan", "--job", "J1"], 2, "--trust"),
        (["--records", "x.jsonl", "--job", "J1"], 2, "--trust"),
        (["--trust", "one-server", "--job", "J1", "--network", "moon"], 2, "[unknown-name]"),
        (
            ["--trust", "one-server", "--job", "J1", "--records", "absent.jsonl"],
            10,
            "file-not-found",
        ),
        (["--job", "J3", "--data-dir", "absent"], 10, "[file-not-found]"),
        (["--repeat", "0"], 2, "--repeat is"),
        (["--record", "/absent/folder/x.jsonl"], 10, "--record"),
    ],
)
def test_what_does_not_fit_is_refused(
    words: list[str],
    code: int,
    said: str,
    without_measuring: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["technologies", *words]) == code
    caught = capsys.readouterr()
    assert said in caught.err and "Traceback" not in caught.err and not caught.out


def test_a_wrong_result_ends_the_command_with_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Wrong:
        def measure_task(self, task: ComparedTask) -> Measurement:
            return make_cell("plaintext", 1.0, task=task, correct=False)

    wrong: dict[str, Callable[[], Wrong]] = {"plaintext": Wrong}
    monkeypatch.setattr(makers, "all_of", lambda *_: wrong)
    assert main(["technologies", "--job", "J1"]) == 1
    assert "WRONG" in capsys.readouterr().out
