"""The program "compute": an expression of a client, which is data, on private arrays.

The client sends a plan.  Every worker checks it by itself, derives shapes, costs and whose data its
results come of, and compares them with what it keeps and permits, before anything runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tfe_bench.cluster.jobs import Context, InputSpec, Program, Size, check_known
from tfe_bench.cluster.store import Store
from tfe_bench.cluster.stored import ARRAY, DATA, TABLE, check_sources
from tfe_bench.cluster.timing import recorded
from tfe_bench.errors import UsageError
from tfe_bench.models import kept
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
from tfe_bench.models.arrays.price import price
from tfe_bench.models.queries import permits, stored
from tfe_bench.models.queries.rights import Use
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

NAME = "compute"
# Handles that one job tells of as let go of.
MOST_FREED = 1000
_WORD = 8


def input_name(i: int) -> str:
    """Of a leaf that the client sends, by its number."""
    return f"x{i}"


def output_name(i: int) -> str:
    """Of what is revealed, by the number of the plan's output."""
    return f"y{i}"


def check(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> None:
    """Refuses what is no plan, or inputs that are others than it says.

    Raises:
        UsageError: naming what does not fit.
    """
    check_known(NAME, parameters, ("plan", "free"))
    free = parameters.get("free", [])
    if not isinstance(free, list) or len(free) > MOST_FREED:
        raise UsageError(f"free is a list of at most {MOST_FREED} handles.")
    for handle in free:
        if handle != "*":
            check_handle(handle)
    plan = plan_of(parameters)
    wanted = [
        InputSpec(input_name(i), leaf.shape, leaf.scale)
        for i, leaf in enumerate(plan.leaves)
        if leaf.source == INPUT
    ]
    if list(inputs) != wanted:
        raise UsageError(
            "The inputs of an expression are those of its plan: "
            f"{[(i.name, list(i.shape)) for i in wanted][:4]}. Received: "
            f"{[(i.name, list(i.shape)) for i in inputs][:4]}."
        )
    price(plan)


def plan_of(parameters: Mapping[str, Any]) -> Plan:
    """The plan of checked parameters; one of nothing where only handles are let go of."""
    given = parameters.get("plan")
    return Plan((), (), ()) if given is None else Plan.of(given)


def _free(parameters: Mapping[str, Any]) -> list[str]:
    return list(parameters.get("free", []))


def permit(
    client: str, store: Store, parameters: Mapping[str, Any], inputs: Sequence[InputSpec]
) -> None:
    """Refuses a client that may not learn a result, hold it, or keep it.

    Raises:
        UsageError, PolicyError: as permits.check, Store.permit_writing, Handles.permit.
    """
    plan = plan_of(parameters)
    sources = lineage.of_outputs(plan, store, client)
    held = price(plan).held
    handles: list[str] = []
    sizes: list[int] = []
    ends = list(zip(plan.outputs, sources, strict=True))
    revealed = [own for output, own in ends if output.then == REVEAL]
    permits.check(store, client, Use.SHOW, revealed, "an expression")
    others = [own for output, own in ends if output.then != REVEAL]
    permits.check(store, client, Use.HOLD, others, "an expression")
    for output, own, meaning in zip(plan.outputs, sources, held, strict=True):
        if output.then == KEEP:
            about = output.about
            store.of(ARRAY).permit_writing(about["name"], client, about["replace"])
            check_sources(own)
        elif output.then == HANDLE:
            handles.append(output.about["handle"])
            sizes.append(_size_of(meaning))
    store.handles.permit(client, handles, sizes, set(_free(parameters)))


def _size_of(meaning: evaluate.Meaning) -> int:
    """Bytes of a party's two fields."""
    return 2 * _WORD * meaning.elements


def size(
    client: str, store: Store, parameters: Mapping[str, Any], inputs: Sequence[InputSpec]
) -> Size:
    """Of a run that is counted."""
    found = price(plan_of(parameters))
    return Size(found.largest, found.sent, found.memory, found.seconds("local"))


def _loaded(party: Party, store: Store, client: str, leaf: Leaf) -> Shared:
    """The words of a stored leaf."""
    infix, name, deployment, part = leaf.about
    kind = {k.infix: k for k in (ARRAY, DATA, TABLE)}[infix]
    offset, word = 0, part
    if kind is ARRAY:
        word = "value"
    elif kind is TABLE:
        schema = stored.kept_table(store, name, deployment, client)[0].schema
        word = f"v{list(schema.columns).index(part)}"
        offset = schema.columns[part].type.offset
    found = kept.loaded(party, store.of(kind), name, client, deployment, [word])[word]
    if kind is TABLE:
        # (as distances from the lowest)
        m = None if found.m is None else found.m + np.int64(offset)
        scale = 0 if leaf.kind == DECIMAL else leaf.scale
        found = replace(found, m=m, fractional_bits=scale)
        if tuple(found.shape) == leaf.shape:
            return found
    if found.fractional_bits != leaf.scale or tuple(found.shape) != leaf.shape:
        raise UsageError(
            f"The {kind.noun} {name!r} has {found.fractional_bits} fractional bits. Received: a "
            f"plan for {leaf.scale}. Load it again."
        )
    return found


def _leaf(context: Context, store: Store, i: int, leaf: Leaf) -> Shared:
    if leaf.source == INPUT:
        return context.inputs.pop(input_name(i))
    if leaf.source == HANDLE:
        value: Shared = store.handles.get(context.client, leaf.about[0]).value
        return value
    return _loaded(context.party, store, context.client, leaf)


def run(context: Context) -> dict[str, Shared]:
    """Carries the plan out; the words of what is revealed go to the client."""
    party, client, parameters = context.party, context.client, context.parameters
    store = kept.store_of(context)
    store.handles.free(client, _free(parameters))
    plan = plan_of(parameters)
    if not plan.outputs:
        return {}
    permit(client, store, {**parameters, "free": []}, ())
    sources = lineage.of_outputs(plan, store, client)
    held = price(plan).held
    name = (NAME, evaluate.traced(plan))

    def made() -> list[Shared]:
        leaves = [_leaf(context, store, i, leaf) for i, leaf in enumerate(plan.leaves)]
        return evaluate.run(party, plan, leaves, name, context.progress)

    results = recorded(context, made)
    leaving: dict[str, Shared] = {}
    for i, output in enumerate(plan.outputs):
        value = results[i]
        if output.then == REVEAL:
            leaving[output_name(i)] = value
        elif output.then == KEEP:
            order = {**output.about, "about": lineage.header(held[i])}
            facts = kept.facts_of(order, client, sources[i])
            kept.write(party, store.of(ARRAY), facts, {"value": value})
    handles = [(i, o) for i, o in enumerate(plan.outputs) if o.then == HANDLE]
    if handles:
        party.exchange(b"computed")  # held by all three, or by none
        for i, output in handles:
            store.handles.put(
                *(client, output.about["handle"], results[i]),
                *((held[i], sources[i]), _size_of(held[i])),
            )
    return leaving


def kept_names(parameters: Mapping[str, Any]) -> Sequence[str]:
    """What is stored and read, or kept."""
    plan = plan_of(parameters)
    read = {leaf.about[1] for leaf in plan.leaves if leaf.source == STORED}
    kept = {output.about["name"] for output in plan.outputs if output.then == KEEP}
    return sorted(read | kept)


PROGRAM = Program(
    *(NAME, run, check, "computes an expression on private arrays"),
    permit=permit,
    size=size,
    kept_names=kept_names,
)
