"""A worker reads a job once: its program's hooks share the request that `parse` returned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.arrays.simulated import Client, Workers
from tests.queries.asked import ANALYST, OWNER, StoredTable
from tfe_bench.arrays import lineage
from tfe_bench.arrays import plan as array_plans
from tfe_bench.arrays import request as expression_requests
from tfe_bench.arrays.programs import compute
from tfe_bench.cluster import jobs
from tfe_bench.cluster.jobs import InputSpec, Program
from tfe_bench.cluster.store import ShareStore
from tfe_bench.cluster.stored import TABLE
from tfe_bench.models.convert.graph import Graph, LayerSpec
from tfe_bench.models.training import program as training_program
from tfe_bench.models.training.losses import get_loss
from tfe_bench.models.training.optimizers import optimizer_from_name
from tfe_bench.models.training.recipe import Recipe
from tfe_bench.models.training.training_job import TrainingJob
from tfe_bench.queries import plan as query_plans
from tfe_bench.queries import relations, sql
from tfe_bench.queries.programs import query
from tfe_bench.queries.rights import TableAccess
from tfe_bench.queries.schema import TableSchema


def _count_calls(monkeypatch: pytest.MonkeyPatch, *places: tuple[Any, str]) -> Counter[str]:
    """Return a counter of calls of some functions, by their names."""
    calls: Counter[str] = Counter()

    def count(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            calls[name] += 1
            return function(*arguments, **options)

        return counted

    for module, name in places:
        monkeypatch.setattr(module, name, count(name, getattr(module, name)))
    return calls


def test_an_expression_is_parsed_and_priced_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = Workers(tmp_path)
    x = Client(workers, "ann").private(np.arange(4.0))
    calls = _count_calls(
        monkeypatch,
        *((array_plans, "_parse_steps"), (expression_requests, "price_expression_plan")),
        *((lineage, "output_sources"), (array_plans.ExpressionPlan, "to_header")),
    )
    admit = compute.PROGRAM.admit
    at_workers: list[Counter[str]] = []

    def count_admission(*arguments: Any) -> Any:
        before = calls.copy()
        request = admit(*arguments)
        at_workers.append(calls - before)
        return request

    monkeypatch.setattr(Program, "admit", lambda program, *arguments: count_admission(*arguments))
    for _ in range(2):
        np.testing.assert_allclose((x * 2.0 + 1.0).mean().reveal(), 4.0, atol=1e-3)
    workers.close()
    assert at_workers == [{"_parse_steps": 1, "price_expression_plan": 1}] * 6
    # The client checks a job before it sends it. Each worker determines the sources at admission
    # and again when the job starts, as rights may have changed.
    assert calls == {
        "_parse_steps": 2 + 6,
        "price_expression_plan": 2 + 6,
        "output_sources": 12,
        "to_header": 2,
    }


def test_a_query_is_parsed_derived_and_priced_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = Workers(tmp_path)
    types, rights = {"v": "int[0,9]"}, {ANALYST: {"v": ("open",)}}
    workers.put_table("t", StoredTable(types, [(i,) for i in range(5)], rights=rights))
    [row] = workers.stores[0].for_kind(TABLE).list_visible(ANALYST)
    facts = ("t", OWNER, row["deployment"], TableSchema.from_header(row["about"]), ANALYST, 0)
    plan = sql.compile_sql("select v + 1 w from t where v > 2", {"t": TableAccess(*facts)})
    calls = _count_calls(
        monkeypatch,
        (query_plans, "parse_query_step"),
        (relations, "derive_relations"),
        (query, "price_query_plan"),
    )
    Client(workers, ANALYST).run("query", {"plan": plan}, {})
    workers.close()
    steps = len(plan["steps"])
    assert calls == {"parse_query_step": 3 * steps, "derive_relations": 3, "price_query_plan": 3}


def test_a_training_is_parsed_once_for_all_hooks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = {"kernel": np.full((3, 1), 0.1), "bias": np.zeros(1)}
    layer = LayerSpec("a", "dense", ("x",), {}, weights)
    graph = Graph("m", {"x": (3,)}, (layer,), ("a",))
    loss, optimizer = get_loss("mean_squared_error"), optimizer_from_name("sgd")
    job = TrainingJob(Recipe(graph, loss, optimizer, 4), 1, 8, 0)
    calls = _count_calls(monkeypatch, (TrainingJob, "from_header"))
    parameters, specs = job.to_header(), job.expected_inputs()
    assert not calls  # the client creates the job, and does not read it
    program, store = training_program.PROGRAM, ShareStore(tmp_path, 0, 64, 16, 8)
    request = program.admit(parameters, specs)
    assert program.permit is not None
    program.permit("ann", store, request, specs)
    assert program.kept_names(request) == [] and program.needs(request) == ()
    assert program.sized("ann", store, request, specs).words > 0
    assert calls == {"from_header": 1}


def test_a_program_of_the_former_interface_runs_with_a_warning() -> None:
    def check(parameters: Any, inputs: Any) -> None:
        assert list(parameters) == ["n"]

    with pytest.warns(DeprecationWarning, match="check is called parse now"):
        old: Program[Any] = Program("old", lambda context: {}, check=check)
    assert old.admit({"n": 1}, []) == {"n": 1}
    positional: Program[Any] = Program("old", lambda context: {}, check)
    with pytest.warns(DeprecationWarning, match="returns the job's request"):
        assert positional.admit({"n": 1}, []) == {"n": 1}


def test_a_request_goes_to_every_hook() -> None:
    received: list[Any] = []

    def receive(*arguments: Any) -> Any:
        received.append(next(a for a in arguments if isinstance(a, int)))
        return ()

    program: Program[int] = Program(
        "p",
        lambda context: {},
        lambda parameters, inputs: int(parameters["n"]),
        permit=receive,
        kept_names=receive,
        needs=receive,
        size=lambda client, store, request, inputs: request,
    )
    request = program.admit({"n": 7}, [])
    store: Any = None
    assert program.permit is not None
    program.permit("ann", store, request, [])
    program.kept_names(request)
    program.needs(request)
    assert received == [7] * 3
    assert program.sized("ann", store, request, []) == jobs.Size(7)
    assert program.sized("ann", store, request, [InputSpec("x", (9,), 0)]) == jobs.Size(9)
