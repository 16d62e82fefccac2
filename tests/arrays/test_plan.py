"""Plans as data: every submission is refused with an error, or runs as described."""

from __future__ import annotations

import copy
import json
import re
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.arrays.simulated import tfb
from tests.refusals import assert_memory_edges, raises, refuses
from tfe_bench.arrays import array, operations, plan
from tfe_bench.arrays.building import build
from tfe_bench.arrays.price import price_expression_plan
from tfe_bench.arrays.programs import compute
from tfe_bench.cluster import profiles
from tfe_bench.cluster.jobs import InputSpec, Size
from tfe_bench.cluster.policy import WorkerPolicy
from tfe_bench.errors import PolicyError, RangeError, UsageError
from tfe_bench.protocols.order.sort_costs import expected_quicksort_levels
from tfe_bench.protocols.session import slices

CLUSTER: Any = SimpleNamespace(
    config=SimpleNamespace(fractional_bits=16),
    profile=profiles.get_profile("local"),
    check_open=lambda: None,
)
X = np.arange(12.0).reshape(3, 4)


def make_array(values: Any, **more: Any) -> array.PrivateArray:
    return array.make_private_array(CLUSTER, values, **more)


def plan_header(*arrays: Any) -> tuple[dict[str, Any], list[InputSpec]]:
    built = build([a._node for a in arrays], [("reveal", {})] * len(arrays))
    specs = [InputSpec(n, v.shape, v.fractional_bits) for n, v in built.inputs.items()]
    return {"plan": built.plan.to_header(), "free": []}, specs


def make_expressions() -> list[Any]:
    x, w, b = make_array(X), make_array(np.ones((4, 2))), make_array(np.array([True, False, True]))
    n = make_array(np.arange(6).reshape(2, 3))
    return [
        tfb.relu(x @ w + np.array([1.0, -1.0])).mean(axis=0),
        tfb.where(b, x[:, 0], x[:, 1] * 2) > 3,
        tfb.concat([n, n[:, ::-1]], axis=1).sum(axis=0),
        tfb.unstack(tfb.softmax(x))[1],
        tfb.top_k(x, 2)[1],
        tfb.einsum("ij,jk->k", x, w),
        tfb.conv2d(tfb.reshape(x, [1, 3, 4, 1]), np.ones((2, 2, 1, 1))),
        tfb.one_hot(n, 7)[..., None, 0],
        tfb.pad(x, [(1, 0), (0, 2)]),
        tfb.scaled_dot_product_attention(x, x, x, is_causal=True),
        tfb.foldl(lambda s, row: tfb.relu(s + row * w[:, 0]), x, x[0]),
    ]


def _list_paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    paths = [path] if path else []
    if isinstance(value, (dict, list)):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            paths += _list_paths(each, (*path, key))
    return paths


def _mutate_header(header: Any, rng: np.random.Generator) -> Any:
    mutated = copy.deepcopy(header)
    for _ in range(int(rng.integers(1, 4))):
        places = _list_paths(mutated)
        *way, last = places[int(rng.integers(len(places)))]
        parent = mutated
        for key in way:
            parent = parent[key]
        other = places[int(rng.integers(len(places)))]
        value: Any = mutated
        for key in other:
            value = value[key] if isinstance(value, (dict, list)) else value
        names = list(operations.list_operations())
        choices: list[Any] = [
            *(None, True, 0, -1, 1, 2, 3, 7, 1 << 31, -(1 << 63), (1 << 63) - 1, 1 << 70),
            *(0.5, 1e300, -0.0, "", "x" * 300, "ref", [], {}, [[]], ["ref", 0], ["ref", 1, 0]),
            *(["list", []], ["tuple", [1, 2]], ["slice", None, None, 0], ["ellipsis"]),
            *(["array", "int64", [1 << 40], ""], ["array", "float64", [1], "AAAAAAAA+H8="]),
            *(names[int(rng.integers(len(names)))], copy.deepcopy(value)),
            *([1 << 20, 1 << 20], [1 << 31], [3, 4], [0], "bits", "int", "handle", "stored"),
        ]
        match int(rng.integers(3)):
            case 0 if isinstance(parent, list):
                parent.insert(last, choices[int(rng.integers(len(choices)))])
            case 1:
                del parent[last]
            case _:
                parent[last] = choices[int(rng.integers(len(choices)))]
    return mutated


def test_mutated_plans_are_refused_in_words_or_run_as_they_say(rng: np.random.Generator) -> None:
    whole = [plan_header(each) for each in make_expressions()]
    refused, longest = 0, 0.0
    for i in range(10_000):
        header, specs = whole[i % len(whole)]
        mutated = {**header, "plan": _mutate_header(header["plan"], rng)}
        started = time.process_time()
        try:
            compute.PROGRAM.admit(mutated, specs)
        except (UsageError, RangeError) as error:
            refused += 1
            assert str(error) and len(str(error)) < 2100
        else:
            checked = plan.ExpressionPlan.from_header(mutated["plan"])
            assert (
                plan.ExpressionPlan.from_header(json.loads(json.dumps(checked.to_header())))
                == checked
            )
        longest = max(longest, time.process_time() - started)
    assert 7_000 < refused < 10_000
    print(f"longest check: {longest:.3f} s")


BROKEN: dict[str, tuple[str, str, str | None]] = {
    "cycle": ('[["add", [["ref", 1], 1], {}]]', "invalid-reference", None),
    "later": (
        '[["add", [["ref", 2], 1], {}], ["add", [["ref", 0], 1], {}]]',
        "invalid-reference",
        None,
    ),
    "unknown": ('[["ad", [["ref", 0], 1], {}]]', "unsupported-operation", "ad"),
    "reveal": ('[["reveal", [["ref", 0]], {}]]', "unsupported-operation", "reveal"),
    "private name": ('[["__class__", [["ref", 0]], {}]]', "unsupported-operation", "__class__"),
    "arguments": ('[["relu", [["ref", 0]], {"alpha": 1}]]', "unsupported-argument", "relu"),
    "public": ('[["add", [1, 2], {}]]', "no-private-operand", "add"),
    "place": ('[["relu", [["ref", 0, 3]], {}]]', "missing-value", "relu"),
    "parts": (
        '[["unstack", [["ref", 0]], {}], ["relu", [["ref", 1, 9]], {}]]',
        "missing-value",
        "relu",
    ),
    "size": ('[["tile", [["ref", 0], ["list", [1048576, 1048576]]], {}]]', "too-large", "tile"),
    "deep": (
        '[["add_n", [["list", [["list", [["list", [["list", [["list", [["list", []]]]]]]]]]]]], '
        "{}]]",
        "too-large",
        "arguments",
    ),
    "nan": ('[["add", [["ref", 0], NaN], {}]]', "invalid-argument", None),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_plans_are_refused(name: str) -> None:
    steps, code, operation = BROKEN[name]
    listed = json.loads(steps)
    header = {
        "leaves": [["input", "fixed", [3, 4], 16]],
        "steps": listed,
        "outputs": [[["ref", len(listed)], "reveal", {}]],
    }
    with raises(UsageError, code, operation=operation):
        compute.PROGRAM.admit({"plan": header}, [InputSpec("x0", (3, 4), 16)])


def test_an_array_of_too_many_rows_is_not_taken_apart() -> None:
    header = {
        "leaves": [["input", "fixed", [1 << 30], 16]],
        "steps": [["unstack", [["ref", 0]], {}]],
        "outputs": [[["ref", 1, 0], "reveal", {}]],
    }
    with raises(UsageError, "too-many-results", operation="unstack"):
        compute.PROGRAM.admit({"plan": header}, [InputSpec("x0", (1 << 30,), 16)])


def test_too_many_operations_are_refused_with_the_bound() -> None:
    x = make_array(np.ones(2))
    with raises(UsageError, "plan-too-large"):
        for _ in range(2000):
            x = -x
    wide = [make_array(np.ones(1)) for _ in range(300)]
    with raises(UsageError, "plan-too-large"):
        plan_header(tfb.add_n(wide))
    steps = [["negative", [["ref", i]], {}] for i in range(1_000_000)]
    header = {"leaves": [["input", "fixed", [1], 16]], "steps": steps, "outputs": []}
    with raises(UsageError, "invalid-plan", operation="steps"):
        plan.ExpressionPlan.from_header(header)


def test_what_equals_another_is_computed_once() -> None:
    x = make_array(X)
    y = tfb.relu(x + 1) * tfb.relu(x + 1)
    z = tfb.relu(x + 1) * 2
    header, specs = plan_header(y, z, y)
    assert [step[0] for step in header["plan"]["steps"]] == ["add", "relu", "multiply", "multiply"]
    assert len(specs) == 1 and header["plan"]["outputs"][0] == header["plan"]["outputs"][2]


def test_plans_are_the_same_each_time_and_do_not_hold_on_to_arrays() -> None:
    weights = np.array([1.0, 2.0, 3.0, 4.0])
    y = make_array(X) * weights
    before = plan_header(y)[0]
    weights[0] = 9.0  # belongs to the caller; the expression has a copy
    assert plan_header(y)[0] == before
    assert plan_header(make_array(X) * np.array([1.0, 2.0, 3.0, 4.0]))[0] == before


MISTAKES: dict[str, tuple[Any, type[Exception], str]] = {
    "shapes": (lambda x: x + np.ones(3), UsageError, "shape-mismatch"),
    "kinds": (lambda x: x & (x > 1), UsageError, "unexpected-bits"),
    "large": (lambda x: x + np.zeros(20_000), UsageError, "constant-too-large"),
    "text": (lambda x: x + "a", UsageError, "not-a-number"),
    "object": (lambda x: x + object(), UsageError, "unsupported-type"),
    "nan": (lambda x: x + np.array([np.nan] * 4), UsageError, "not-finite"),
    "huge": (lambda x: x + 1e30, RangeError, "value-out-of-range"),
    "axis": (lambda x: x.sum(axis=5), UsageError, "axis-out-of-range"),
    "name": (lambda x: x["a"], UsageError, "invalid-index"),
    "other cluster": (
        lambda x: x + array.make_private_array(SimpleNamespace(**vars(CLUSTER)), X),  # type: ignore[arg-type]
        UsageError,
        "several-clusters",
    ),
    "numpy": (lambda x: np.arcsinh(x), UsageError, "unsupported-operation"),
    "near": (lambda x: np.fft.fft(x), UsageError, "unsupported-operation"),
    "out": (lambda x: np.add(x, 1, out=np.zeros((3, 4))), UsageError, "unsupported-operation"),
    "outer": (lambda x: np.multiply.outer(x, x), UsageError, "unsupported-operation"),
    "ddof": (lambda x: np.std(x, ddof=99), UsageError, "number-out-of-range"),
    "bool": (lambda x: bool(x > 1), TypeError, "where\\(x, a, b\\)"),
    "float": (lambda x: float(x.sum()), TypeError, "x\\.reveal\\(\\)"),
    "int": (lambda x: int(x.sum()), TypeError, "x\\.reveal\\(\\)"),
    "index": (lambda x: [1, 2][x], TypeError, "gather"),
    "array": (lambda x: np.asarray(x), TypeError, "x\\.reveal\\(\\)"),
    "iteration": (lambda x: list(x), TypeError, "unstack"),
    "in": (lambda x: 3 in x, TypeError, "\\(x == value\\)\\.sum\\(\\)"),
    "pickle": (lambda x: copy.deepcopy(x), TypeError, "x\\.keep\\(name\\)"),
    "format": (lambda x: f"{x:.2f}", TypeError, "format"),
    "length": (lambda x: len(x.sum()), TypeError, "no length"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_told_before_anything_is_sent(name: str) -> None:
    mistake, kind, why = MISTAKES[name]
    with refuses(kind, why):
        mistake(make_array(X))


def test_what_is_shown_is_public() -> None:
    x = make_array(np.array([[123.456]]))
    assert repr(x) == str(x) == "PrivateArray(shape=[1, 1], kind='fixed', fractional_bits=16)"
    for shown in (repr(vars(x)), (x + 1).explain("wan")):
        assert "123.4" not in shown and "8090812" not in shown
    assert len(make_array(X)) == 3 and np.shape(make_array(X)) == (3, 4)


@pytest.mark.parametrize(
    ("given", "more", "why"),
    [
        (["a"], {}, "real numbers"),
        ([1 + 2j], {}, "real numbers"),
        ([0.5], {"kind": "int"}, "whole numbers"),
        ([2], {"kind": "bits"}, "0 and 1"),
        ([1.0], {"kind": "real"}, "fixed, int, bits"),
        ([1], {"fractional_bits": 8}, "Only reals"),
        ([1.0], {"fractional_bits": 99}, "1 to 61"),
    ],
)
def test_what_cannot_be_private_is_refused(given: Any, more: dict[str, Any], why: str) -> None:
    with raises(
        *(UsageError, "unsupported-type", "not-whole", "not-bits", "unknown-name"),
        *("conflicting-options", "number-out-of-range"),
    ) as caught:
        make_array(given, **more)
    assert re.search(why, str(caught.value))


def test_values_that_do_not_fit_are_refused() -> None:
    for values in ([np.nan], [1e30], np.array([1 << 63], np.uint64)):
        with pytest.raises(RangeError):
            make_array(np.asarray(values))


def _plan_softmaxes(count: int, turns: int = 0) -> tuple[dict[str, Any], list[InputSpec]]:
    """Return a number of softmaxes of three numbers, or of iterations of them."""
    steps: list[Any] = [["softmax", [["ref", i]], {}] for i in range(count)]
    last = count
    if turns:
        whole = ["list", [["ref", 0]]]
        none = ["list", []]
        steps = [["foldl", [whole, none, none, turns], {}, [1, steps, [["ref", count]]]]]
        last = 1
    outputs = [[["ref", last], "reveal", {}]]
    plan = {"leaves": [["input", "fixed", [3], 16]], "steps": steps, "outputs": outputs}
    return {"plan": plan, "free": []}, [InputSpec("x0", (3,), 16)]


def test_the_price_of_a_plan_has_its_graph_and_its_time() -> None:
    def size(count: int, turns: int = 0) -> Size:
        header, specs = _plan_softmaxes(count, turns)
        request = compute.PROGRAM.admit(header, specs)
        return compute.PROGRAM.sized("", None, request, specs)  # type: ignore[arg-type]

    one, many = size(1), size(300)
    arrays = slices.estimate_memory(one.words)
    assert many.memory - arrays == 300 * (one.memory - arrays) > 256 << 20
    assert many.seconds == pytest.approx(300 * one.seconds) and one.seconds < 1
    with raises(UsageError, "expression-too-large"):
        size(990)
    policy = WorkerPolicy(0)
    policy.permit_size(many)
    long = size(300, 1 << 12)
    assert long.memory == many.memory  # an iteration is traced once
    with raises(PolicyError, "too-large", operation="a job of this duration", expected="3600"):
        policy.permit_size(long)


def test_an_expression_in_slices_is_refused_where_its_arrays_and_graph_do_not_fit() -> None:
    rows, classes = 1 << 19, 10
    leaves = [["input", "fixed", [rows, classes], 16]]
    outputs = [[["ref", 1], "reveal", {}]]
    header = {"leaves": leaves, "steps": [["softmax", [["ref", 0]], {}]], "outputs": outputs}
    specs = [InputSpec("x0", (rows, classes), 16)]
    request = compute.PROGRAM.admit({"plan": header, "free": []}, specs)
    size = compute.PROGRAM.sized("", None, request, specs)  # type: ignore[arg-type]
    result_bytes = 16 * rows * classes
    # At once it would take 70 words of correlated randomness for each element.
    assert result_bytes <= size.memory < 8 * result_bytes
    assert_memory_edges(size.memory)


def test_all_levels_of_a_sort_are_counted_as_one() -> None:
    steps = [["sort", [["ref", i]], {}] for i in range(20)]
    leaves = [["input", "fixed", [1 << 24], 16]]
    header = {"leaves": leaves, "steps": steps, "outputs": [[["ref", 20], "reveal", {}]]}
    price = price_expression_plan(plan.ExpressionPlan.from_header(header))
    levels = len(expected_quicksort_levels(1 << 24, "local"))
    assert price.ops < 20 * 100 and price.cost.rounds > 20 * levels
