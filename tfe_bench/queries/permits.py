"""Permission checks of one worker: whether a client may reveal, hold or train on derived data.

Every stored item and every value in a computation carries its sources: inputs of clients, columns
of tables, data sets and stored arrays, each with its deployment, as the workers drew it, and its
owner. `check_permission` looks up each source in this worker's store. A source that was removed,
replaced or taken over by another owner permits nothing, and neither does a value without known
sources.

An error names a source only to a client that may use the item with its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tfe_bench.cluster.store import ShareStore
from tfe_bench.cluster.stored import (
    ARRAY,
    DATA,
    INPUT,
    TABLE,
    Source,
    Sources,
    StoredFacts,
    StoredKind,
    client_input_source,
)
from tfe_bench.errors import PolicyError, UsageError
from tfe_bench.queries import stored
from tfe_bench.queries.rights import ColumnUse

_KINDS = {kind.infix: kind for kind in (ARRAY, DATA, TABLE)}
_WHAT = {
    ColumnUse.SHOW: "Revealing derived values",
    ColumnUse.HOLD: "Holding or keeping derived values",
    ColumnUse.ALIGNED: "Training on derived values",
}


def stored_item_sources(facts: StoredFacts, kind: StoredKind) -> Sources:
    """Return the sources of a value that is loaded from a stored item: the item and its own
    sources.

    The owner's inputs are excluded: the owner decides who may use them.

    Raises:
        UsageError: the item has no known sources.
    """
    if not facts.sources:
        raise UsageError(
            f"The sources of {kind.noun} {facts.name!r} are unknown, as an older version "
            f"stored it. {kind.remedy}",
            code="unknown-sources",
            operation=facts.name,
        )
    loaded_source = Source(kind.infix, facts.name, facts.deployment, facts.owner)
    return (facts.sources - client_input_source(facts.owner)) | {loaded_source}


def check_permission(
    store: ShareStore, client: str, use: ColumnUse, values: Sequence[Sources], subject: str
) -> None:
    """Reject a use of values that derive from stored items.

    Args:
        use: SHOW, HOLD or ALIGNED.
        values: the sources of each value; a repeated source is looked up once.
        subject: a name of the values for error texts.

    Raises:
        PolicyError: naming the missing right and the owner.
        UsageError: a source no longer exists, or a value has no known sources.
    """
    if not all(values):
        raise UsageError(
            f"The sources of {subject} are unknown. It permits nothing.",
            code="unknown-sources",
            operation=subject,
        )
    parts: dict[Source, list[str]] = {}
    for source in sorted(frozenset[Source]().union(*values)):
        parts.setdefault(replace(source, part="", alias=""), []).append(source.part)
    for source, columns in parts.items():
        if source.kind == INPUT:
            if source.owner != client:
                raise PolicyError(
                    f"{_WHAT[use]} of an input is not permitted to client {client!r}: "
                    f"{source.owner!r} sent it.",
                    code="not-own-input",
                    operation=use.name,
                )
            continue
        if source.kind not in _KINDS:
            raise UsageError(
                f"A source of {subject} is of an unknown kind. It permits nothing.",
                code="unknown-sources",
                operation=subject,
            )
        kind = _KINDS[source.kind]
        facts = _unchanged_source_facts(store, client, source, kind, subject)
        if kind is TABLE:
            table = stored.as_accessible_table(facts, client)
            for column in columns:
                table.check(use, column, _WHAT[use])
        elif kind is DATA and use is ColumnUse.SHOW and facts.owner != client:
            raise PolicyError(
                f"{_WHAT[use]} of data set {source.name!r} is not permitted to client "
                f"{client!r}: its owner, {source.owner!r}, provided it for training. Owners "
                'open values by column, in tables: `table put ... --right "column:open"`.',
                code="training-only",
                operation=source.name,
            )


def _unchanged_source_facts(
    store: ShareStore, client: str, source: Source, kind: StoredKind, subject: str
) -> StoredFacts:
    """Return the facts of a source if it is unchanged since the value was derived.

    Raises:
        UsageError: it no longer exists, or not for this client.
    """
    named = f"a {kind.noun}"
    try:
        facts = store.for_kind(kind).get_facts(source.name, client)
        named = f"{kind.noun} {source.name!r}"
    except UsageError:
        facts = None
    if facts is None or (facts.deployment, facts.owner) != (source.deployment, source.owner):
        raise UsageError(
            f"{subject[:1].upper()}{subject[1:]} derives from {named} that its owner has "
            "removed or replaced since then, or does not let this client use. Create it "
            f"again from present data. {kind.list_hint}",
            code="source-changed",
            operation=subject.removesuffix(","),
            received=named,
        )
    return facts
