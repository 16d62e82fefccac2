"""Untrusted submissions: each field of every program is missing, or of another type or size."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from tests.models.tiny import BATCH, FEATURES, private_model, text_model
from tests.refusals import raises
from tfe_bench.cluster import jobs, wire
from tfe_bench.cluster.config import ClusterConfig, PartyConfig
from tfe_bench.cluster.jobs import InputSpec
from tfe_bench.cluster.policy import RevealRule, WorkerPolicy
from tfe_bench.cluster.store import ShareStore
from tfe_bench.cluster.stored import LABEL_BITS
from tfe_bench.cluster.worker import submission
from tfe_bench.cluster.worker.admission import accept_job_submission
from tfe_bench.cluster.worker.host import WorkerState
from tfe_bench.errors import PolicyError, ProtocolError, TfeBenchError, UsageError
from tfe_bench.models.inference import generation
from tfe_bench.models.inference.private import convert
from tfe_bench.models.inference.weights import weight_specs as array_specs
from tfe_bench.models.training import deploying
from tfe_bench.models.training.training_job import CheckpointOptions, TrainingJob
from tfe_bench.protocols.session import ops
from tfe_bench.queries import types
from tfe_bench.queries.schema import TableColumn, TableSchema

_DEPLOYMENT = "d" * 32
_MISSING = object()
_UNFIT: dict[str, Any] = {
    "missing": _MISSING,
    "null": None,
    "true": True,
    "false": False,
    "-1": -1,
    "0": 0,
    "2^63": 2**63,
    "2^64": 2**64,
    "10^300": 10**300,
    "1.5": 1.5,
    "1e308": 1e308,
    "empty": "",
    "abc": "abc",
    "a surrogate": "\ud800",
    "a long text": "x" * 70_000,
    "[]": [],
    "{}": {},
    "[[[]]]": [[[]]],
    "[true, null]": [True, None],
    "{'a': {'b': 1}}": {"a": {"b": 1}},
    "50 deep": None,
}
_FEW = ("missing", "null", "-1", "1e308", "abc", "[[[]]]")
for _ in range(50):
    _UNFIT["50 deep"] = [_UNFIT["50 deep"]]


class _Admission:
    """The part of a worker that checks submissions: no server, no threads."""

    def __init__(self, folder: Path | None, policy: WorkerPolicy | None = None) -> None:
        parties = tuple(PartyConfig(p, f"p{p}", "127.0.0.1", 7700 + p) for p in range(3))
        config = ClusterConfig("x", parties, tls=False)
        policy = policy or WorkerPolicy.for_local(1, None)
        self.host = WorkerState(config, policy, ShareStore(folder, 1, 64, 16, 8), cast(Any, None))

    def submission(self, program: str, parameters: Any, inputs: list[InputSpec]) -> dict[str, Any]:
        """Return a good submission."""
        rows = [
            {
                "name": i.name,
                "shape": list(i.shape),
                "fractional_bits": i.fractional_bits,
                "limbs": i.limbs,
                "late": i.late,
                "seeds": {"l1": "00" * 16},
            }
            for i in inputs
        ]
        facts = {
            k: v for k, v in self.host.get_facts().items() if k not in ("abi", "isa", "tensorflow")
        }
        fields = {"shaping": [1000, 10**6], "warm_up_bytes": 0}
        own = {"job": "a" * 32, "program": program, "parameters": parameters, "inputs": rows}
        return {"event": "submit", **own, **fields, **facts}

    def offer(self, fields: Any) -> Any:
        """Return the outcome of a submission."""
        return self.take(b"E" + json.dumps(fields).encode())

    def take(self, blob: bytes) -> Any:
        """Return the outcome of any first message."""
        return accept_job_submission(
            self.host, submission.parse_job_submission(blob), "alice", cast(Any, None)
        )


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Admission]:
    """Provide a worker that permits everything."""
    open_gate = _Admission(tmp_path_factory.mktemp("gate") / "models")
    yield open_gate
    pass


def _make_jobs() -> dict[str, tuple[dict[str, Any], list[InputSpec]]]:
    """Return a good job of every installed program."""
    timing = {"repeat": 2, "warm_up": 1, "trace": True, "profile": "lan"}
    about = {"rows": 3, "x": [2], "y": [1], "target": "binary", "classes": 2, "columns": ["a", "b"]}
    private = private_model()
    model = convert(private.keras, np.zeros((2, FEATURES)))
    weights = [InputSpec(k, v.shape, v.fractional_bits) for k, v in model.shared_weights().items()]
    inputs = model.shared_inputs(np.zeros((2, FEATURES)))
    images = [InputSpec(k, v.shape, v.fractional_bits) for k, v in inputs.items()]
    language = text_model()
    request, _ = generation.build_generation_request(language, [1, 2], 3, None)
    job = TrainingJob(
        *(private.recipe(BATCH), 2, 64, 1),
        profile="lan",
        test=8,
        saving=CheckpointOptions("saved"),
        deploy=deploying.trained_model_parameters(private.keras, "later", ["bob"]),
    )
    table = TableSchema(3, {"k": TableColumn(types.parse_type("int"))}, unique=("k",)).to_header()
    scan = {"op": "scan", "in": [], "table": "t", "columns": ["k"]}
    read = {"t": {"name": "t", "deployment": _DEPLOYMENT}}
    part = {"deployment": _DEPLOYMENT, "on": ["k"]}
    tables = [{**part, "name": "t", "columns": []}, {**part, "name": "u", "columns": ["v"]}]
    aligned = {"tables": tables, "label": ["t", "y"]}
    keep = {"clients": ["bob"], "replace": True}
    leaf, step = ["input", "fixed", [4], 16], ["relu", [["ref", 0]], {}]
    output = [["ref", 1], "reveal", {}]
    return {
        "sort": (
            {**timing, "algorithm": "auto", "descending": True, "indices": False},
            [InputSpec("keys", (4,), 16), InputSpec("p", (4,), 0)],
        ),
        "matmul": (timing, [InputSpec("x", (2, 3), 16), InputSpec("y", (3, 2), 16)]),
        "exp": (
            {**timing, "method": "taylor", "clamp": "none", "iterations": 8, "softmax": False},
            [InputSpec("x", (4,), 16)],
        ),
        "operation": (
            {**timing, "operation": "relu"},
            [InputSpec("x", (4,), 16)],
        ),
        "channel": ({"rounds": 1, "megabytes": 1, "repeat": 1}, []),
        "links": ({"pings": 1, "kilobytes": 1, "turns": 1}, []),
        "generate": (
            {**request, **timing, "positions": None},
            [*array_specs(language.plan), InputSpec("prompt", (1, 2, 5), 16)],
        ),
        "predict": ({**model.parameters("lan", 2), **timing}, [*weights, *images]),
        "serve": ({**timing, "name": "kept", "deployment": _DEPLOYMENT, "batch": 2}, images),
        "deploy": (
            {**deploying.trained_model_parameters(private.keras, "made", ["bob"]), **keep},
            weights,
        ),
        "undeploy": ({"name": "kept"}, []),
        "provide": (
            {**keep, "name": "rows", "about": about},
            [InputSpec("x", (3, 2), 16), InputSpec("y", (3, 1), LABEL_BITS)],
        ),
        "withdraw": ({"name": "rows"}, []),
        "table_put": ({**keep, "name": "t", "about": table}, [InputSpec("words", (1, 3), 0)]),
        "table_remove": ({"name": "t"}, []),
        "align": ({**keep, "name": "rows", "about": aligned, "profile": "lan"}, []),
        "query": ({"plan": {"tables": read, "steps": [scan], "output": 0}, "profile": "lan"}, []),
        "train": (job.to_header(), job.expected_inputs()),
        "compute": (
            {
                "plan": {"leaves": [leaf], "steps": [step], "outputs": [output]},
                "free": [_DEPLOYMENT],
            },
            [InputSpec("x0", (4,), 16)],
        ),
        "array_remove": ({"name": "t"}, []),
    }


@pytest.fixture(scope="module")
def programs() -> dict[str, tuple[dict[str, Any], list[InputSpec]]]:
    """Provide good jobs."""
    return _make_jobs()


def _yield_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the places of a value: every field, and one element of each list."""
    keys: Any = ()
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list):
        keys = range(min(len(value), 1))
    for key in keys:
        yield (*path, key)
        yield from _yield_paths(value[key], (*path, key))


def _replace_at(fields: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    spoilt = copy.deepcopy(fields)
    at: Any = spoilt
    for key in path[:-1]:
        at = at[key]
    if value is _MISSING:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return spoilt


def test_every_program_has_a_good_job_here(programs: dict[str, Any]) -> None:
    assert set(programs) == set(jobs.installed_programs())


@pytest.mark.parametrize("name", sorted(jobs.installed_programs()))
def test_every_field_of_a_submission_is_accepted_or_refused_in_words(
    gate: _Admission, programs: dict[str, Any], name: str
) -> None:
    parameters, inputs = programs[name]
    good = gate.submission(name, parameters, inputs)
    if name in ("serve", "query", "align"):
        with raises(UsageError, "name-not-found"):
            gate.offer(good)
    else:
        assert gate.offer(good).header == json.loads(json.dumps(good))
    program = jobs.load_program(name)
    refused = 0
    for path in _yield_paths(good):
        # plans and recipes have hundreds of places
        for what in _UNFIT if len(path) < 4 else _FEW:
            value = _UNFIT[what]
            spoilt = _replace_at(good, path, value)
            try:
                job = gate.offer(spoilt)
            except TfeBenchError as error:
                refused += 1
                # its own text, not that of an unexpected type
                assert "values of another type" not in str(error), (path, what, error)
            else:
                assert all(type(d) is int for i in job.inputs for d in i.shape), (path, what)
                program.admit(job.header["parameters"], job.inputs)
    assert refused > 150


_TIMING_CODES = ("number-out-of-range", "wrong-type", "unknown-name")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("warm_up", v) for v in ("abc", "1", 1.0, -1, True, None, 1001)),
        *(("repeat", v) for v in ("abc", 0, 1.0, True, None)),
        *(("trace", v) for v in ("yes", 1, None)),
        *(("profile", v) for v in ("moon", 1, None, ["lan"])),
    ],
)
def test_a_timing_that_is_none_is_refused_before_the_job_begins(
    gate: _Admission, programs: dict[str, Any], field: str, value: Any
) -> None:
    timed = [name for name, (parameters, _) in programs.items() if "warm_up" in parameters]
    assert len(timed) == 7
    for name in timed:
        parameters, inputs = programs[name]
        with raises(UsageError, *_TIMING_CODES, operation=field):
            gate.offer(gate.submission(name, {**parameters, field: value}, inputs))


_BLOBS: dict[str, bytes] = {
    "nothing": b"",
    "data": b"Dxxxx",
    "no JSON": b"E{",
    "no UTF-8": b'E{"event": "\xff"}',
    "no object": b"E[1]",
    "no event": b"E{}",
    "an event that is none": b'E{"event": {}}',
    "100,000 deep": b"E" + b"[" * 100_000,
    "100,000 deep in a field": b'E{"event": "submit", "x": ' + b"[" * 10**5 + b"]" * 10**5 + b"}",
    "65 deep": b'E{"event": "submit", "x": ' + b"[" * 65 + b"]" * 65 + b"}",
    "NaN": b'E{"event": "submit", "x": NaN}',
    "Infinity": b'E{"event": "submit", "x": -Infinity}',
    "1e999": b'E{"event": "submit", "x": 1e999}',
    "a number of 5000 digits": b'E{"event": "submit", "x": ' + b"9" * 5000 + b"}",
}


@pytest.mark.parametrize("case", _BLOBS)
def test_what_is_no_submission_is_refused(gate: _Admission, case: str) -> None:
    with pytest.raises(ProtocolError):
        gate.take(_BLOBS[case])


def test_a_question_is_small() -> None:
    for blob in (*_BLOBS.values(), wire.event("cancel", job="x" * 70_000)):
        with pytest.raises(ProtocolError):
            wire.JobStreamReader(iter([blob])).next_event(1 << 16)


def test_two_inputs_of_one_name_are_refused(gate: _Admission, programs: dict[str, Any]) -> None:
    good = gate.submission("sort", *programs["sort"])
    good["inputs"].append(good["inputs"][1])
    with raises(ProtocolError, "malformed-submission", operation="inputs"):
        gate.offer(good)


@pytest.mark.parametrize("letter", ["c", "\u00e9"])
def test_public_facts_that_could_not_be_read_again_are_refused_before_any_data(
    gate: _Admission, programs: dict[str, Any], letter: str
) -> None:
    parameters, _ = programs["provide"]
    columns = [f"{i}{letter}".rjust(200, letter) for i in range(49_000)]
    about = {**parameters["about"], "x": [49_000], "columns": columns}
    inputs = [InputSpec("x", (3, 49_000), 16), InputSpec("y", (3, 1), LABEL_BITS)]
    with raises(UsageError, "too-large", operation="about", expected=1048576):
        gate.offer(gate.submission("provide", {**parameters, "about": about}, inputs))
    short = {**about, "columns": [f"column {i}" for i in range(49_000)]}
    gate.offer(gate.submission("provide", {**parameters, "about": short}, inputs))


_ALONE: dict[str, Callable[[], WorkerPolicy]] = {
    "not allowed": lambda: WorkerPolicy(1, None, ("train",), (RevealRule("*", ("*",)),)),
    "not for this client": lambda: WorkerPolicy(
        1,
        None,
        ("train", "deploy"),
        (RevealRule("train", ("*",)), RevealRule("deploy", ("bob",))),
    ),
}


@pytest.mark.parametrize("case", _ALONE)
def test_a_training_deploys_only_where_the_operator_allows_deploying(
    case: str, tmp_path: Path, programs: dict[str, Any]
) -> None:
    strict = _Admission(tmp_path / "models", _ALONE[case]())
    parameters, inputs = programs["train"]
    good = {**strict.submission("train", parameters, inputs), "shaping": None}
    with raises(
        PolicyError, "program-not-allowed", "reveal-not-allowed", operation="deploy", party=1
    ):
        strict.offer(good)
    strict.offer({**good, "parameters": {**parameters, "deploy": None}})
    assert list((tmp_path / "models").iterdir()) == []


# ---- memory


def _wide_prediction(
    folder: Path, policy: WorkerPolicy | None = None
) -> tuple[_Admission, dict[str, Any]]:
    """Return a worker, and a prediction by a model of 9 million weights for it."""
    keras: Any = pytest.importorskip("keras")
    layers = [keras.layers.Dense(3000), keras.layers.Dense(10)]
    private = convert(keras.Sequential([keras.Input((3000,)), *layers]))
    shared = {**private.shared_weights(), **private.shared_inputs(np.zeros((2, 3000)))}
    specs = [InputSpec(k, v.shape, v.fractional_bits) for k, v in shared.items()]
    gate = _Admission(folder, policy)
    return gate, gate.submission("predict", private.parameters(), specs)


def test_a_model_that_does_not_fit_is_refused_by_its_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let three workers share the machine; m takes 72 MB, masks twice as much, 66 MB more."""
    gate, fields = _wide_prediction(tmp_path)
    there = [3 * 10**9]
    monkeypatch.setattr(ops.native(), "available_memory", lambda: there[0])
    gate.offer(fields)
    there[0] = 6 * 10**8
    facts = ("0.3 GB", "0.6 GB", "3 workers")
    with raises(PolicyError, "memory-not-available", names=facts):
        gate.offer(fields)


def test_an_operator_bounds_the_memory_of_a_job(tmp_path: Path) -> None:
    policy = dataclasses.replace(WorkerPolicy.for_local(1, None), max_memory_per_job=10**8)
    gate, fields = _wide_prediction(tmp_path, policy)
    with raises(PolicyError, "too-large", operation="a job of this memory", expected="100000000"):
        gate.offer(fields)


def test_a_worker_knows_how_much_memory_there_is() -> None:
    there = ops.native().available_memory()
    assert 1 << 20 < there <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
