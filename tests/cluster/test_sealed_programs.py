"""Every program runs sealed or is refused: a walk over all kinds of jobs on three workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tfe_bench as tfe
from tests.models.tiny import draw_data, model_of, private_model, text_model
from tests.refusals import raises
from tfe_bench import LocalCluster
from tfe_bench.cluster import jobs
from tfe_bench.cluster.requests import JobResult, PrivateInput
from tfe_bench.errors import PolicyError
from tfe_bench.models.datasets import owners
from tfe_bench.models.datasets.readers import Rows
from tfe_bench.models.inference.private import convert
from tfe_bench.models.training import evaluate
from tfe_bench.models.training.program import MEAN_LOSSES
from tfe_bench.private_tables import tables
from tfe_bench.protocols.session.openings import SHUFFLED_COMPARISONS, SHUFFLED_POSITIONS

Job = Callable[[LocalCluster], object]
X, Y = draw_data()
OPERATIONS: Any = tfe


def _submit(program: str, parameters: dict[str, Any], **inputs: np.ndarray[Any, Any]) -> Job:
    """Return a job of a program with integers as inputs."""
    shared = {name: PrivateInput(np.asarray(words, np.int64)) for name, words in inputs.items()}
    return lambda cluster: cluster.run(program, parameters, shared)


def _sort(algorithm: str) -> Job:
    return _submit("sort", {"algorithm": algorithm, "warm_up": 0}, keys=np.arange(600)[::-1])


def _query(text: str, **timing: int) -> Job:
    return lambda cluster: tables(cluster).sql(text).run(timing=timing)


def _train(**options: Any) -> Job:
    return lambda cluster: private_model().fit(
        cluster, X, Y, batch_size=64, epochs=2, verbose=0, **options
    )


def _train_with_stopping(cluster: LocalCluster) -> None:
    import keras

    stopping = keras.callbacks.EarlyStopping(monitor="loss", patience=5)
    _train(reveal_loss=True, callbacks=[stopping])(cluster)


def _put(name: str, rows: int = 24, **columns: str) -> Job:
    values: dict[str, Any] = {"k": np.arange(rows)[::-1], "c": ["a", "b"] * (rows // 2)}
    values |= {"v": np.arange(rows) % 7, "y": np.arange(rows) % 2 == 0}

    def put(cluster: LocalCluster) -> None:
        chosen = {column: np.asarray(values[column]).tolist() for column in columns}
        tables(cluster).put(
            *(name, chosen),
            types=columns,
            unique=[column for column in columns if column == "k"],
            replace=True,
            min_group=1,
        )

    return put


def _align(cluster: LocalCluster) -> None:
    tables(cluster).align(["t", "u"], ["k"], "joined", "y", replace=True).run()


def _provide(cluster: LocalCluster) -> None:
    owners.provide(cluster, "rows", Rows(X, Y, "binary", 2, tuple("abcde"), "test"))


def _look_up(cluster: LocalCluster) -> None:
    OPERATIONS.gather(cluster.private(np.arange(8) + 5), cluster.private(np.arange(4))).reveal()


def _keep(cluster: LocalCluster) -> None:
    (cluster.private(np.arange(3)) * 2).keep("doubled", replace=True)


def _train_on_provided_rows(cluster: LocalCluster) -> None:
    private_model().fit(cluster, rows_of=["rows"], batch_size=64, epochs=1, verbose=0)


# Kinds of jobs that open nothing, with their program.
SEALED: dict[str, tuple[str, Job]] = {
    "predict": ("predict", lambda c: c.predict(convert(model_of(), X[:9]), X[:2])),
    "deploy": ("deploy", lambda c: c.deploy(convert(model_of(), X[:9]), "kept", replace=True)),
    "serve": ("serve", lambda c: c.predict("kept", X[:2])),
    "undeploy": ("undeploy", lambda c: c.undeploy("kept")),
    "generate": ("generate", lambda c: c.generate(text_model(), [1, 2], 3)),
    "generate with a temperature": (
        "generate",
        lambda c: c.generate(text_model(), [1, 2], 3, temperature=1.0),
    ),
    "train": ("train", _train()),
    "train with range checks": ("train", _train(check_range=True)),
    "train with test rows": ("train", _train(validation_data=(X[:20], Y[:20]))),
    "provide": ("provide", _provide),
    "train on provided rows": ("train", _train_on_provided_rows),
    "withdraw": ("withdraw", lambda c: owners.withdraw(c, "rows")),
    "expression": ("compute", lambda c: (c.private(X) @ c.private(X.T)).sum().reveal()),
    "maximum": ("compute", lambda c: c.private(X).max().reveal()),
    "lookup by one-hot": ("compute", _look_up),
    "kept array": ("compute", _keep),
    "array_remove": ("array_remove", lambda c: c.forget("doubled")),
    "network sort": ("sort", _sort("network")),
    "operation": ("operation", _submit("operation", {"operation": "relu"}, x=np.arange(9))),
    "matmul": ("matmul", _submit("matmul", {}, x=np.eye(3), y=np.eye(3))),
    "exp": ("exp", lambda c: c.run("exp", {}, {"x": PrivateInput(np.arange(4) << 16, 16)})),
    "channel": ("channel", _submit("channel", {"rounds": 1, "megabytes": 1, "repeat": 1})),
    "links": ("links", _submit("links", {"pings": 1, "kilobytes": 1, "turns": 1})),
    "dense groups": ("query", _query("select c, sum(v), count(*) from t group by c")),
    "totals": ("query", _query("select sum(v) from t where v > 3")),
    "table_put of texts": ("table_put", _put("texts", c="text")),
    "table_remove": ("table_remove", lambda c: tables(c).remove("texts")),
}
# Kinds of jobs that open values, with their program and the kinds of these values.
POSITIONS = {SHUFFLED_COMPARISONS, SHUFFLED_POSITIONS}
OPENING: dict[str, tuple[str, Job, set[str]]] = {
    "quick sort": ("sort", _sort("quick"), {SHUFFLED_COMPARISONS}),
    "all-pairs sort": ("sort", _sort("all-pairs"), {SHUFFLED_COMPARISONS}),
    "sorted array": (
        "compute",
        lambda c: OPERATIONS.sort(c.private(np.arange(9))).reveal(),
        {SHUFFLED_COMPARISONS},
    ),
    "select": ("query", _query("select v from long order by v limit 3"), {SHUFFLED_COMPARISONS}),
    "repeated query": (
        "query",
        _query("select v from t order by v", repeat=2, warm_up=1, trace=True),
        {SHUFFLED_COMPARISONS},
    ),
    "median": ("query", _query("select median(v) from t"), {SHUFFLED_COMPARISONS}),
    "table_put with ranges": ("table_put", _put("other", v="int[0,9]"), {"checks"}),
    "table_put with unique keys": (
        "table_put",
        _put("other", k="int[0,99]"),
        {"checks", SHUFFLED_COMPARISONS},
    ),
    "join": ("query", _query("select v, y from t join u using (k)"), {SHUFFLED_COMPARISONS}),
    "window": (
        "query",
        _query("select k, row_number() over (partition by c order by v) p from t"),
        {SHUFFLED_COMPARISONS},
    ),
    "sorted groups": ("query", _query("select v, count(*) from t group by v"), POSITIONS),
    "align": ("align", _align, POSITIONS),
    "train with a revealed loss": ("train", _train(reveal_loss=True), {MEAN_LOSSES}),
    "train with a guard": ("train", _train(guard_every=2), {evaluate.WEIGHT_CHECKS}),
    "train with early stopping": ("train", _train_with_stopping, {MEAN_LOSSES}),
}


@pytest.fixture(scope="module")
def stocked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Provide workers that store two tables, a model, a text table, rows and an array."""
    with LocalCluster(models=tmp_path_factory.mktemp("sealed") / "models") as cluster:
        _put("t", k="int[0,99]", c="category(a,b)", v="int[0,9]")(cluster)
        _put("u", k="int[0,99]", y="bool")(cluster)
        _put("long", 300, v="int[0,9]")(cluster)
        yield cluster


class _Recorder:
    """The openings that a cluster's jobs announce, and their results."""

    def __init__(self, cluster: LocalCluster, patch: pytest.MonkeyPatch, sealed: bool) -> None:
        self.announced: list[Any] = []
        self.results: list[JobResult] = []
        self.programs: list[str] = []
        run = cluster.run

        def record_run(program: str, *operands: Any, **named: Any) -> JobResult:
            self.programs.append(program)
            self.results.append(run(program, *operands, **named))
            return self.results[-1]

        patch.setattr(cluster, "run", record_run)
        patch.setattr(cluster, "sealed", sealed)
        patch.setattr(cluster, "on_openings", self.announced.append)


@pytest.mark.parametrize("kind", SEALED)
def test_a_job_that_opens_nothing_runs_sealed(
    stocked: LocalCluster, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    program, run = SEALED[kind]
    recorder = _Recorder(stocked, monkeypatch, sealed=True)
    run(stocked)
    assert recorder.programs[-1] == program
    assert all(result.opened == () for result in recorder.results)
    assert recorder.announced == []


@pytest.mark.parametrize("kind", OPENING)
def test_a_job_that_opens_values_is_refused_sealed_and_else_announces_them(
    stocked: LocalCluster, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    program, run, opened_kinds = OPENING[kind]
    with monkeypatch.context() as patch:
        recorder = _Recorder(stocked, patch, sealed=True)
        with raises(PolicyError, "opening-not-permitted"):
            run(stocked)
        assert recorder.programs[-1] == program and recorder.announced == []
    recorder = _Recorder(stocked, monkeypatch, sealed=False)
    run(stocked)
    [announced], opened = recorder.announced, recorder.results[-1].opened
    kinds = {opening.what.split(" of stored")[0] for opening in opened}
    assert kinds <= {o.what.split(" of stored")[0] for o in announced}
    assert opened_kinds <= kinds
    if kind not in ("quick sort", "select", "median"):  # (their numbers depend on the shuffle)
        assert set(opened) == set(announced)


def test_every_program_is_in_one_of_the_two_lists() -> None:
    walked = {program for program, *_ in [*SEALED.values(), *OPENING.values()]}
    assert walked == set(jobs.installed_programs()) - set(jobs.third_party_programs())
