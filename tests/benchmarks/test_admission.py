"""Requests of clients are refused before they use resources, or their size is known."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import resource
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.benchmarks import sizes
from tests.models.tiny import text_model
from tests.refusals import assert_memory_edges, raises
from tfe_bench.benchmarks import operations
from tfe_bench.cluster import jobs
from tfe_bench.cluster.jobs import GROWTH, Context, InputSpec, Program, Size
from tfe_bench.cluster.policy import WorkerPolicy
from tfe_bench.cluster.schema import Request
from tfe_bench.cluster.simulate import simulate
from tfe_bench.cluster.stored import LABEL_BITS
from tfe_bench.errors import PolicyError, TfeBenchError, UsageError
from tfe_bench.models.convert import tables
from tfe_bench.models.inference import generation, weights
from tfe_bench.models.inference.private import PrivateModel, convert
from tfe_bench.models.inference.programs import predict
from tfe_bench.models.training import program as train
from tfe_bench.models.training.recipe import Recipe
from tfe_bench.models.training.training_job import TrainingJob
from tfe_bench.protocols.nn import gelu
from tfe_bench.queries import types
from tfe_bench.queries.schema import TableColumn, TableSchema

HUGE = 1 << 40
SHAPES: list[Any] = [
    (),
    (0,),
    (HUGE,),
    (HUGE, 0),
    (0, HUGE),
    (1 << 20, 0),
    (1 << 31, 0, 1 << 31),
    (1 << 16, 1 << 16),
    (-1,),
    (-(1 << 63), 1),
    (1 << 64,),
    (10**30, 0),
    (1,) * 40,
    (1.5,),
    ("4",),
    (True,),
    (None,),
    ([3],),
]
VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    1 << 31,
    1 << 62,
    10**30,
    -(10**30),
    1e308,
    math.nan,
    -math.inf,
    "",
    "abc",
    "x" * 100_000,
    [],
    {},
    [HUGE],
    [[HUGE, HUGE], [1]],
    {"a": {"b": [None]}},
    [0] * 10_000,
]


class NoStore:
    """A worker without stored items."""

    party = 0

    def for_kind(self, kind: object) -> NoStore:
        return self

    def get_facts(self, name: str, client: str) -> Any:
        raise UsageError("nothing is kept")


@dataclass(frozen=True)
class Job:
    """A job of a client."""

    program: str
    parameters: Mapping[str, Any]
    inputs: tuple[InputSpec, ...]


def _make_model() -> tuple[Any, PrivateModel]:
    import keras

    layers = [
        keras.Input((6, 6, 1)),
        keras.layers.Conv2D(2, 3, activation="relu"),
        keras.layers.MaxPooling2D(2),
        keras.layers.Flatten(),
        keras.layers.Dense(3, activation="softmax"),
    ]
    model = keras.Sequential(layers)
    return model, convert(model, np.random.default_rng(2).uniform(0, 1, (8, 6, 6, 1)))


@pytest.fixture(scope="module")
def ordinary() -> list[Job]:
    """Return a job of every installed program, and of every operation of the catalogue."""
    model, private = _make_model()
    plan = private.plan
    about = {"plan": plan.to_header(), "bounds": private.bounds, "preprocessing": None}
    language = text_model()
    asked_for_text, _ = generation.build_generation_request(language, [1, 2], 3, None)
    prompt = InputSpec("prompt", (1, 2, 5), 16)
    keep = {"name": "a", "clients": ["b"], "replace": False}
    samples = (InputSpec("input0", (2, 6, 6, 1), plan.fraction),)
    recipe = Recipe.build(model, "adam", "categorical_crossentropy", 2)
    job = TrainingJob(recipe, 1, 4, 0, test=2)
    data = {"rows": 4, "x": [3], "y": [], "target": "numeric", "classes": 1, "columns": list("abc")}
    data["target"] = next(iter(tables.TARGETS))
    provided = (InputSpec("x", (4, 3), 16), InputSpec("y", (4,), LABEL_BITS))
    features, through = {**data, "rows": 2, "columns": []}, {"plan": plan.to_header(), "batch": 2}
    columns = {
        "k": TableColumn(types.parse_type("int[0,9]"), True),
        "c": TableColumn(types.parse_type("category(a,b)")),
    }
    table = TableSchema(9, columns, padded=True, unique=("k",), rights={"b": {"*": ("filter",)}})
    scan = {"op": "scan", "in": [], "table": "t", "columns": ["k"]}
    where = {"op": "filter", "in": [0], "where": ["<", ["col", "t.k"], ["int", 4]]}
    group = {"op": "group", "in": [1], "keys": ["t.k"], "aggregates": [["n", "count", None]]}
    about_t = {"t": {"name": "a", "deployment": "0" * 32}}
    request = {"tables": about_t, "steps": [scan, where, {**group, "bound": 4}], "output": 2}
    part = {"deployment": "0" * 32, "on": ["k"]}
    both = [{**part, "name": "t", "columns": ["c"]}, {**part, "name": "u", "columns": ["d"]}]
    results = (*weights.weight_specs(plan), *samples, InputSpec("y", (2,), LABEL_BITS))
    leaf, relu = ["input", "fixed", [2, 3], 16], ["relu", [["ref", 0]], {}]
    expression = {"leaves": [leaf], "steps": [relu], "outputs": [[["ref", 1], "reveal", {}]]}
    jobs_of_all = [
        Job(
            "sort",
            {"algorithm": "quick", "profile": "lan", "descending": True},
            (_input_spec("keys", 9),),
        ),
        Job("channel", {"rounds": 2, "megabytes": 1, "repeat": 1}, ()),
        Job("links", {"pings": 1, "kilobytes": 1, "turns": 1, "pair_kilobytes": 1}, ()),
        Job(
            "matmul", {"repeat": 1, "warm_up": 0}, (_input_spec("x", 2, 3), _input_spec("y", 3, 4))
        ),
        Job("exp", {"method": "taylor", "iterations": 8, "clamp": "none"}, (_input_spec("x", 5),)),
        Job("deploy", {**keep, "about": about}, tuple(weights.weight_specs(plan))),
        Job("undeploy", {"name": "a"}, ()),
        Job("serve", {"name": "a", "deployment": "0" * 32, "batch": 2}, samples),
        Job(
            "predict",
            {"plan": plan.to_header(), "batch": 2},
            (*weights.weight_specs(plan), *samples),
        ),
        Job("generate", asked_for_text, (*weights.weight_specs(language.plan), prompt)),
        Job("train", job.to_header(), tuple(job.expected_inputs())),
        Job("provide", {**keep, "about": data}, provided),
        Job("provide", {**keep, "about": features, "through": through}, results),
        Job("withdraw", {"name": "a"}, ()),
        Job("table_put", {**keep, "about": table.to_header()}, (InputSpec("words", (4, 9), 0),)),
        Job("table_remove", {"name": "a"}, ()),
        Job("align", {**keep, "about": {"tables": both, "label": ["u", "c"]}}, ()),
        Job("query", {"plan": request, "profile": "wan"}, ()),
        Job("compute", {"plan": expression, "free": []}, (_input_spec("x0", 2, 3),)),
        Job("array_remove", {"name": "a"}, ()),
    ]
    extents = {1: (9,), 2: (3, 5), 3: (3, 4, 5), 4: (1, 6, 6, 4)}
    for name, operation in operations.OPERATIONS.items():
        shapes = operation.shapes(extents[len(operation.size)])
        specs = tuple(InputSpec(n, s, operation.input_bits) for n, s in shapes.items())
        options = {**operation.options, **({"k": 2} if "k" in operation.options else {})}
        jobs_of_all.append(Job("operation", {"operation": name, **options}, specs))
    return [Job(j.program, json.loads(json.dumps(j.parameters)), j.inputs) for j in jobs_of_all]


def _input_spec(name: str, *shape: int) -> InputSpec:
    return InputSpec(name, shape, 16)


def _list_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Return the paths within a JSON value; of long lists the first entries only."""
    yield path
    if isinstance(value, dict):
        for key in list(value)[:40]:
            yield from _list_paths(value[key], (*path, key))
    elif isinstance(value, list):
        for i in range(min(2, len(value))):
            yield from _list_paths(value[i], (*path, i))


def _replace_at(value: Any, path: Sequence[Any], other: Any) -> Any:
    if not path:
        return other
    changed = copy.copy(value)
    changed[path[0]] = _replace_at(value[path[0]], path[1:], other)
    return changed


def _largest_size(
    job: Job, program: Program[Any], inputs: Sequence[InputSpec], parameters: Any
) -> int:
    request = program.admit(parameters, inputs)
    return program.sized("client", NoStore(), request, inputs).words  # type: ignore[arg-type]


def _describe_outcome(job: Job, program: Program[Any], inputs: Any, parameters: Any) -> str:
    """Return "" for a refusal or an admission of known size, else the wrong outcome."""
    try:
        specs = [InputSpec(**{**vars(spec), **change}) for spec, change in inputs]
        largest = _largest_size(job, program, specs, parameters)
    except TfeBenchError as error:
        return "" if len(str(error)) < 3000 else f"a text of {len(str(error))} characters"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    words = max((spec.extent for spec in specs), default=0)
    return "" if type(largest) is int and largest >= words else f"a size of {largest!r}"


def test_every_installed_program_says_how_large_it_gets_or_holds_its_inputs_alone() -> None:
    unknown = {name for name in jobs.installed_programs() if jobs.load_program(name).size is None}
    assert unknown == {"deploy", "undeploy", "withdraw", "table_remove", "array_remove"}


def test_what_is_ordered_ordinarily_is_admitted(ordinary: list[Job]) -> None:
    assert {job.program for job in ordinary} == set(jobs.installed_programs())
    for job in ordinary:
        if job.program not in ("serve", "query", "align"):  # these need stored items
            assert (
                _largest_size(job, jobs.load_program(job.program), job.inputs, job.parameters)
                < 1 << 26
            )


# A value of each JSON type; a parameter accepts one type: 1.5 in addition to 3.
OF_TYPES: list[Any] = [True, 3, "no", [1], {"a": 1}]


def test_every_parameter_of_every_program_has_one_type(
    ordinary: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that `descending: "no"` is not true, and `repeat: true` is not 1."""
    several, requested, named = {}, set(), set[str]()
    check_known = jobs.check_known

    def checked(program: str, parameters: Mapping[str, Any], known: Sequence[str]) -> None:
        named.update(known)
        check_known(program, parameters, known)

    field_names = Request.field_names

    def record_fields(request: type[Request]) -> list[str]:
        names = field_names.__func__(request)  # type: ignore[attr-defined]
        named.update(names)
        return list(names)

    monkeypatch.setattr(Request, "field_names", classmethod(record_fields))
    for job in ordinary:
        jobs.load_program(job.program)
    for module in list(sys.modules.values()):
        if getattr(module, "check_known", None) is check_known:
            monkeypatch.setattr(module, "check_known", checked)
    for job in ordinary:
        program = jobs.load_program(job.program)
        named.clear()
        with contextlib.suppress(TfeBenchError):
            program.admit(job.parameters, job.inputs)
        for name in sorted(named | set(job.parameters)):
            requested.add((job.program, name))
            own = [type(job.parameters[name])] if name in job.parameters else []
            selected = set(own)
            for value in OF_TYPES:
                with contextlib.suppress(TfeBenchError):
                    program.admit({**job.parameters, name: value}, job.inputs)
                    selected.add(type(value))
            if len(selected - {type(None)}) > 1:
                several[job.program, name] = sorted(t.__name__ for t in selected)
    assert ("sort", "descending") in requested and ("sort", "indices") in requested
    assert several == {}


def test_hostile_orders_are_refused_in_words_and_cost_nothing(ordinary: list[Job]) -> None:
    wrong: dict[str, str] = {}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for job in ordinary:
        program = jobs.load_program(job.program)
        plain: list[tuple[InputSpec, dict[str, Any]]] = [(spec, {}) for spec in job.inputs]
        for path in _list_paths(job.parameters):
            for value in VALUES:
                parameters = _replace_at(job.parameters, path, value)
                result = _describe_outcome(job, program, plain, parameters)
                if result:
                    wrong[f"{job.program} {path} {str(value)[:40]}"] = result
        every = [plain[:-1], [*plain, *plain[:1]], [(_input_spec("z", 1), {}), *plain]]
        for i in range(len(plain)):
            changes: list[dict[str, Any]] = [{"shape": shape} for shape in SHAPES]
            changes += [{"fractional_bits": v} for v in VALUES] + [{"name": "z"}, {"limbs": 2}]
            spec = plain[i][0]
            every += [[*plain[:i], (spec, c), *plain[i + 1 :]] for c in changes]
        # all inputs at once: so they may be consistent
        every += [[(spec, {"shape": shape}) for spec, _ in plain] for shape in SHAPES]
        for inputs in every:
            result = _describe_outcome(job, program, inputs, job.parameters)
            if result:
                wrong[f"{job.program} {[c for _, c in inputs]}"] = result
    assert wrong == {}
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # KiB


@pytest.mark.parametrize("sizes", [(HUGE, 0), (1 << 20, 0)])
def test_matrices_without_elements_whose_product_has_many_are_refused(
    sizes: tuple[int, int],
) -> None:
    policy, program = WorkerPolicy.for_local(0, None), jobs.load_program("matmul")
    with raises(TfeBenchError, "invalid-shape", "too-large"):
        inputs = [InputSpec("x", sizes, 16), InputSpec("y", sizes[::-1], 16)]
        request = program.admit({}, inputs)
        policy.permit_size(program.sized("", NoStore(), request, inputs))  # type: ignore[arg-type]


def test_a_program_of_ones_own_is_admitted_by_its_inputs() -> None:
    program: Program[Any] = Program("own", lambda context: {})
    specs = [InputSpec("a", (3, 0, 5), 0), InputSpec("b", (4,), 0)]
    program.admit({"anything": 1}, specs)
    assert program.sized("", NoStore(), {}, specs) == Size(15)  # type: ignore[arg-type]
    with raises(UsageError, "duplicate-name"):
        program.admit({}, [specs[0], specs[0]])
    several: list[Any] = [[], None, "x", 3]
    for parameters in several:
        with raises(UsageError, "wrong-type", operation="parameters"):
            program.admit(parameters, [])


def test_the_largest_array_of_an_operation_is_counted() -> None:
    n, k = 1000, 31
    # for the last step of a GELU, D sends two polynomials and an injection
    terms = sum(part.plan.dealt_words for part in gelu.residual_for_scale(16).parts)
    words = operations.find_operation("gelu").estimate_size((n,), {}).words
    assert words >= (terms + 2) * n > GROWTH * n
    assert operations.find_operation("relu").estimate_size((n,), {}).words == GROWTH * n
    rows = operations.find_operation("softmax").estimate_size((n, k), {"profile": "local"}).words
    assert rows >= GROWTH * n * k


def test_limits_of_growth_times_the_largest_input_and_of_what_is_sent() -> None:
    policy = WorkerPolicy(0, max_elements=10, max_sent_per_job=1000)
    policy.permit_size(Size(160, 1000))
    with raises(
        PolicyError,
        "too-large",
        operation="a job of this size",
        received="arrays of up to 161 words",
        expected="160",
    ):
        policy.permit_size(Size(161))
    with raises(
        PolicyError,
        "too-large",
        operation="a job with this traffic",
        received="1001 bytes between the workers",
        expected="1000",
    ):
        policy.permit_size(Size(160, 1001))


# ---- the sizes are upper bounds of the arrays


def _measure_largest(job: Job, program: Program[Any], inputs: Mapping[str, Any]) -> float:
    """Return the words of the largest array of a run in this process."""
    specs = {spec.name: spec for spec in job.inputs}

    def of_party(party: Any, *shares: Any) -> Any:
        from dataclasses import replace

        held = {
            name: replace(share, fractional_bits=specs[name].fractional_bits)
            for name, share in zip(inputs, shares, strict=True)
        }
        request = program.admit(job.parameters, job.inputs)
        context = Context(party, job.parameters, held, lambda *_: None, request=request)
        return list(program.run(context).values())

    with sizes.record_arrays() as arrays:
        simulate(of_party, *inputs.values())
    return max(arrays)[0]


def test_a_prediction_makes_no_larger_array_than_it_says(
    ordinary: list[Job], rng: np.random.Generator
) -> None:
    job = next(job for job in ordinary if job.program == "predict")
    _, private = _make_model()
    arrays = {
        weights.weight_input_name(i): w for i, w in enumerate(weights.encode_weights(private.plan))
    }
    arrays["input0"] = rng.integers(0, 1 << 16, (2, 6, 6, 1))
    parameters = {**job.parameters, "repeat": 1, "warm_up": 0}
    job = Job("predict", parameters, job.inputs)
    largest_array = _measure_largest(job, predict.PROGRAM, arrays)
    assert (
        largest_array
        <= _largest_size(job, predict.PROGRAM, job.inputs, job.parameters)
        < 50 * largest_array
    )


def test_a_training_makes_no_larger_array_than_it_says(
    ordinary: list[Job], rng: np.random.Generator
) -> None:
    job = next(job for job in ordinary if job.program == "train")
    arrays = {spec.name: rng.integers(0, 1 << 10, spec.shape) for spec in job.inputs}
    largest_array = _measure_largest(job, train.PROGRAM, arrays)
    assert (
        largest_array
        <= _largest_size(job, train.PROGRAM, job.inputs, job.parameters)
        < 100 * largest_array
    )


def test_an_operation_in_slices_is_refused_where_its_slices_and_result_do_not_fit() -> None:
    n = 1 << 22
    program = jobs.load_program("operation")

    def estimate_memory(name: str) -> int:
        specs = [InputSpec("x", (n,), 16)]
        request = program.admit({"operation": name}, specs)
        return program.sized("", NoStore(), request, specs).memory  # type: ignore[arg-type]

    needed = estimate_memory("reciprocal")
    # At once it would take 32 words of correlated randomness for each element.
    assert 16 * n <= needed < 8 * 16 * n
    assert_memory_edges(needed)
