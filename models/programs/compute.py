"""The program "compute": an expression on private arrays, sent as data.

The client sends a plan.  Every worker checks it on its own.  It derives shapes, costs and sources
of the results, and compares them with its stored items and rights before anything runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tfe_bench.cluster.jobs import Context, InputSpec, Program, Size, check_known
from tfe_bench.cluster.store import Store
from tfe_bench.cluster.stored import ARRAY, DATA, TABLE, check_sources
from tfe_bench.cluster.timing import run_recorded
from tfe_bench.errors import UsageError
from tfe_bench.models import stored_shares
from tfe_bench.models.arrays import evaluate, lineage
from tfe_bench.models.arrays.plan import (
    DECIMAL,
    HANDLE,
    INPUT,
    KEEP,
    REVEAL,
    STORED,
    Leaf,
    Plan,
    check_handle,
)
from tfe_bench.models.arrays.price import price_plan
from tfe_bench.models.queries import permits, stored
from tfe_bench.models.queries.rights import Use
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

NAME = "compute"
# Largest number of handles that one job releases.
MAX_FREED = 1000
_WORD_BYTES = 8


def leaf_input_name(i: int) -> str:
    """Return the input name of a leaf that the client sends, from its number."""
    return f"x{i}"


def result_name(i: int) -> str:
    """Return the output name of a revealed value, from the number of the plan's output."""
    return f"y{i}"


def check_expression(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> None:
    """Check a plan, and that the inputs match it.

    Raises:
        UsageError: a parameter or an input is invalid; the text names it.
    """
    check_known(NAME, parameters, ("plan", "free"))
    free = parameters.get("free", [])
    if not isinstance(free, list) or len(free) > MAX_FREED:
        raise UsageError(
            f"Expected a list of at most {MAX_FREED} handles as free.",
            code="invalid-parameters",
            operation="free",
            expected=MAX_FREED,
        )
    for handle in free:
        if handle != "*":
            check_handle(handle)
    plan = read_plan(parameters)
    expected = [
        InputSpec(leaf_input_name(i), leaf.shape, leaf.scale)
        for i, leaf in enumerate(plan.leaves)
        if leaf.source == INPUT
    ]
    if list(inputs) != expected:
        raise UsageError(
            "Expected the inputs of the plan: "
            f"{[(i.name, list(i.shape)) for i in expected][:4]}. Received: "
            f"{[(i.name, list(i.shape)) for i in inputs][:4]}.",
            code="unexpected-inputs",
            operation="compute",
            received=[i.name for i in inputs][:4],
        )
    price_plan(plan)


def read_plan(parameters: Mapping[str, Any]) -> Plan:
    """Return the plan of checked parameters; an empty plan if a job only releases handles."""
    header = parameters.get("plan")
    return Plan((), (), ()) if header is None else Plan.from_header(header)


def _freed_handles(parameters: Mapping[str, Any]) -> list[str]:
    return list(parameters.get("free", []))


def permit_expression(
    client: str, store: Store, parameters: Mapping[str, Any], inputs: Sequence[InputSpec]
) -> None:
    """Reject a client that may not learn a result, hold it, or store it.

    Raises:
        UsageError, PolicyError: as permits.check_permission, Store.permit_writing,
            Handles.check_capacity.
    """
    plan = read_plan(parameters)
    sources = lineage.output_sources(plan, store, client)
    meanings = price_plan(plan).output_specs
    handles: list[str] = []
    sizes: list[int] = []
    results = list(zip(plan.outputs, sources, strict=True))
    revealed = [result_sources for output, result_sources in results if output.then == REVEAL]
    permits.check_permission(store, client, Use.SHOW, revealed, "an expression")
    held_results = [result_sources for output, result_sources in results if output.then != REVEAL]
    permits.check_permission(store, client, Use.HOLD, held_results, "an expression")
    for output, result_sources, meaning in zip(plan.outputs, sources, meanings, strict=True):
        if output.then == KEEP:
            about = output.about
            store.for_kind(ARRAY).permit_writing(about["name"], client, about["replace"])
            check_sources(result_sources)
        elif output.then == HANDLE:
            handles.append(output.about["handle"])
            sizes.append(_held_bytes(meaning))
    store.handles.check_capacity(client, handles, sizes, set(_freed_handles(parameters)))


def _held_bytes(meaning: evaluate.ArraySpec) -> int:
    """Return the bytes of a party's two fields of a value."""
    return 2 * _WORD_BYTES * meaning.elements


def estimate_expression_size(
    client: str, store: Store, parameters: Mapping[str, Any], inputs: Sequence[InputSpec]
) -> Size:
    """Estimate the size of a run by counting."""
    plan_price = price_plan(read_plan(parameters))
    return Size(plan_price.largest, plan_price.sent, plan_price.memory, plan_price.seconds("local"))


def _load_stored(party: Party, store: Store, client: str, leaf: Leaf) -> Shared:
    """Load the words of a stored leaf."""
    infix, name, deployment, part = leaf.about
    kind = {k.infix: k for k in (ARRAY, DATA, TABLE)}[infix]
    offset, word = 0, part
    if kind is ARRAY:
        word = "value"
    elif kind is TABLE:
        schema = stored.find_table(store, name, deployment, client)[0].schema
        word = f"v{list(schema.columns).index(part)}"
        offset = schema.columns[part].type.offset
    value = stored_shares.load_values(
        party, store.for_kind(kind), name, client, deployment, [word]
    )[word]
    if kind is TABLE:
        # tables store distances from the lowest value
        m = None if value.m is None else value.m + np.int64(offset)
        scale = 0 if leaf.kind == DECIMAL else leaf.scale
        value = replace(value, m=m, fractional_bits=scale)
        if tuple(value.shape) == leaf.shape:
            return value
    if value.fractional_bits != leaf.scale or tuple(value.shape) != leaf.shape:
        raise UsageError(
            f"The {kind.noun} {name!r} has {value.fractional_bits} fractional bits. Received: a "
            f"plan for {leaf.scale}. Load it again.",
            code="scale-mismatch",
            operation=name,
            received=leaf.scale,
            expected=value.fractional_bits,
        )
    return value


def _load_leaf(context: Context, store: Store, i: int, leaf: Leaf) -> Shared:
    if leaf.source == INPUT:
        return context.inputs.pop(leaf_input_name(i))
    if leaf.source == HANDLE:
        value: Shared = store.handles.get_value(context.client, leaf.about[0]).value
        return value
    return _load_stored(context.party, store, context.client, leaf)


def run_expression(context: Context) -> dict[str, Shared]:
    """Evaluate the plan; the words of revealed values go to the client."""
    party, client, parameters = context.party, context.client, context.parameters
    store = stored_shares.require_store(context)
    store.handles.release_handles(client, _freed_handles(parameters))
    plan = read_plan(parameters)
    if not plan.outputs:
        return {}
    permit_expression(client, store, {**parameters, "free": []}, ())
    sources = lineage.output_sources(plan, store, client)
    meanings = price_plan(plan).output_specs
    name = (NAME, evaluate.trace_key(plan))

    def evaluate_plan() -> list[Shared]:
        leaves = [_load_leaf(context, store, i, leaf) for i, leaf in enumerate(plan.leaves)]
        return evaluate.run_plan(party, plan, leaves, name, context.progress)

    results = run_recorded(context, evaluate_plan)
    leaving: dict[str, Shared] = {}
    for i, output in enumerate(plan.outputs):
        value = results[i]
        if output.then == REVEAL:
            leaving[result_name(i)] = value
        elif output.then == KEEP:
            order = {**output.about, "about": lineage.spec_header(meanings[i])}
            facts = stored_shares.build_facts(order, client, sources[i])
            stored_shares.store_values(party, store.for_kind(ARRAY), facts, {"value": value})
    handles = [(i, o) for i, o in enumerate(plan.outputs) if o.then == HANDLE]
    if handles:
        party.exchange(b"computed")  # held by all three workers, or by none
        for i, output in handles:
            store.handles.put_value(
                *(client, output.about["handle"], results[i]),
                *((meanings[i], sources[i]), _held_bytes(meanings[i])),
            )
    return leaving


def kept_names(parameters: Mapping[str, Any]) -> Sequence[str]:
    """Return the names of stored items that are read or written."""
    plan = read_plan(parameters)
    read = {leaf.about[1] for leaf in plan.leaves if leaf.source == STORED}
    written = {output.about["name"] for output in plan.outputs if output.then == KEEP}
    return sorted(read | written)


PROGRAM = Program(
    *(NAME, run_expression, check_expression, "computes an expression on private arrays"),
    permit=permit_expression,
    size=estimate_expression_size,
    kept_names=kept_names,
)
