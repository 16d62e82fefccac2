"""The program "compute": an expression on private arrays, sent as data.

The client sends a plan.  Every worker checks it on its own.  It derives shapes, costs and sources
of the results, and compares them with its stored items and rights before anything runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tfe_bench.arrays import evaluate, lineage
from tfe_bench.arrays.array_spec import DECIMAL, ArraySpec
from tfe_bench.arrays.plan import (
    HANDLE,
    INPUT,
    KEEP,
    REVEAL,
    STORED,
    ExpressionLeaf,
)
from tfe_bench.arrays.request import (
    NAME,
    ComputeRequest,
    leaf_input_name,
    parse_expression,
    revealed_output_name,
)
from tfe_bench.cluster import stored_shares
from tfe_bench.cluster.jobs import Context, InputSpec, Program, Size
from tfe_bench.cluster.store import ShareStore
from tfe_bench.cluster.stored import ARRAY, DATA, TABLE, Sources, check_stored_sources
from tfe_bench.cluster.timing import run_recorded
from tfe_bench.errors import UsageError
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.queries import permits, stored
from tfe_bench.queries.rights import ColumnUse

_WORD_BYTES = 8


def permit_expression(
    client: str, store: ShareStore, request: ComputeRequest, inputs: Sequence[InputSpec]
) -> None:
    """Reject a client that may not learn a result, hold it, or store it.

    Raises:
        UsageError, PolicyError: as permits.check_permission, ShareStore.permit_writing,
            Handles.check_capacity.
    """
    _permit_outputs(client, store, request, set(request.free))


def _permit_outputs(
    client: str, store: ShareStore, request: ComputeRequest, freed: set[str]
) -> list[Sources]:
    """Check the rights of all outputs; return their sources.

    Args:
        freed: handles that are released before the results are held.
    """
    plan = request.plan
    sources = lineage.output_sources(plan, store, client)
    handles: list[str] = []
    sizes: list[int] = []
    results = list(zip(plan.outputs, sources, strict=True))
    revealed = [result_sources for output, result_sources in results if output.then == REVEAL]
    permits.check_permission(store, client, ColumnUse.SHOW, revealed, "an expression")
    held_results = [result_sources for output, result_sources in results if output.then != REVEAL]
    permits.check_permission(store, client, ColumnUse.HOLD, held_results, "an expression")
    for output, result_sources, meaning in zip(
        plan.outputs, sources, request.plan_price.output_specs, strict=True
    ):
        if output.then == KEEP:
            about = output.about
            store.for_kind(ARRAY).permit_writing(about["name"], client, about["replace"])
            check_stored_sources(result_sources)
        elif output.then == HANDLE:
            handles.append(output.about["handle"])
            sizes.append(_held_array_bytes(meaning))
    store.handles.check_capacity(client, handles, sizes, freed)
    return list(sources)


def _held_array_bytes(meaning: ArraySpec) -> int:
    """Return the bytes of a party's two fields of a value."""
    return 2 * _WORD_BYTES * meaning.elements


def estimate_expression_size(
    client: str, store: ShareStore, request: ComputeRequest, inputs: Sequence[InputSpec]
) -> Size:
    """Estimate the size of a run by counting."""
    price = request.plan_price
    seconds = price.least_seconds
    return Size(price.largest, price.sent_bytes, price.memory_bytes, seconds, price.openings)


def _load_stored(party: Party, store: ShareStore, client: str, leaf: ExpressionLeaf) -> Shared:
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
    value = stored_shares.load_stored_shares(
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


def _load_leaf(context: Context, store: ShareStore, i: int, leaf: ExpressionLeaf) -> Shared:
    if leaf.source == INPUT:
        return context.inputs.pop(leaf_input_name(i))
    if leaf.source == HANDLE:
        value: Shared = store.handles.get_value(context.client, leaf.about[0]).value
        return value
    return _load_stored(context.party, store, context.client, leaf)


def run_expression(context: Context) -> dict[str, Shared]:
    """Evaluate the plan; the words of revealed values go to the client."""
    party, client = context.party, context.client
    request: ComputeRequest = context.request
    plan, store = request.plan, stored_shares.require_share_store(context)
    store.handles.release_handles(client, list(request.free))
    if not plan.outputs:
        return {}
    sources = _permit_outputs(client, store, request, set())
    meanings = request.plan_price.output_specs
    name = (NAME, plan.graph_digest)

    def evaluate_plan() -> list[Shared]:
        leaves = [_load_leaf(context, store, i, leaf) for i, leaf in enumerate(plan.leaves)]
        return evaluate.run_expression_plan(party, plan, leaves, name, context.progress)

    results = run_recorded(context, evaluate_plan)
    leaving: dict[str, Shared] = {}
    for i, output in enumerate(plan.outputs):
        value = results[i]
        if output.then == REVEAL:
            leaving[revealed_output_name(i)] = value
        elif output.then == KEEP:
            order = {**output.about, "about": lineage.array_spec_header(meanings[i])}
            facts = stored_shares.build_stored_facts(order, client, sources[i])
            stored_shares.store_share_values(party, store.for_kind(ARRAY), facts, {"value": value})
    handles = [(i, o) for i, o in enumerate(plan.outputs) if o.then == HANDLE]
    if handles:
        party.exchange(b"computed")  # held by all three workers, or by none
        for i, output in handles:
            store.handles.put_value(
                *(client, output.about["handle"], results[i]),
                *((meanings[i], sources[i]), _held_array_bytes(meanings[i])),
            )
    return leaving


def kept_names(request: ComputeRequest) -> Sequence[str]:
    """Return the names of stored items that are read or written."""
    read = {leaf.about[1] for leaf in request.plan.leaves if leaf.source == STORED}
    written = {output.about["name"] for output in request.plan.outputs if output.then == KEEP}
    return sorted(read | written)


PROGRAM = Program(
    *(NAME, run_expression, parse_expression, "computes an expression on private arrays"),
    permit=permit_expression,
    size=estimate_expression_size,
    kept_names=kept_names,
)
