"""Whether a client may show, hold or train on what derives from stored data, at one worker.

Every stored thing and every value on its way carries its sources: inputs of clients, columns of
tables, data sets and kept arrays, each with the word that the workers drew for it and its owner.
`check` looks each of them up in what this worker keeps now.  What was removed, replaced, or taken
over by another owner permits nothing, and neither does a value of which no source is known.

A refusal names a source only to a client that may use what is under its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tfe_bench.cluster.store import Store
from tfe_bench.cluster.stored import (
    ARRAY,
    DATA,
    INPUT,
    TABLE,
    Source,
    Sources,
    StoredFacts,
    StoredKind,
    input_source,
)
from tfe_bench.errors import PolicyError, UsageError
from tfe_bench.models.queries import stored
from tfe_bench.models.queries.rights import Use

_KINDS = {kind.infix: kind for kind in (ARRAY, DATA, TABLE)}
_WHAT = {
    Use.SHOW: "Revealing what is made",
    Use.HOLD: "Holding or keeping what is made",
    Use.ALIGNED: "Training on what is made",
}


def loaded_sources(facts: StoredFacts, kind: StoredKind) -> Sources:
    """What a value derives from that is loaded from a stored thing: that, and its own sources.

    An input of its owner is not among them: to whom that is given, the owner says.

    Raises:
        UsageError: no source is known.
    """
    if not facts.sources:
        raise UsageError(
            f"Nothing says what {kind.noun} {facts.name!r} derives from, as an older version kept "
            f"it. {kind.remedy}"
        )
    loaded_source = Source(kind.infix, facts.name, facts.deployment, facts.owner)
    return (facts.sources - input_source(facts.owner)) | {loaded_source}


def check_permission(
    store: Store, client: str, use: Use, values: Sequence[Sources], subject: str
) -> None:
    """Refuses a use of values that derive from stored things.

    Args:
        use: SHOW, HOLD or ALIGNED.
        values: the sources of each; one that several have is looked up once.
        what: they are, in words.

    Raises:
        PolicyError: naming what is missing, and whose it is.
        UsageError: a source is not there any more, or none is known.
    """
    if not all(values):
        raise UsageError(f"Nothing says what {subject} derives from. It permits nothing.")
    parts: dict[Source, list[str]] = {}
    for source in sorted(frozenset[Source]().union(*values)):
        parts.setdefault(replace(source, part="", alias=""), []).append(source.part)
    for source, columns in parts.items():
        if source.kind == INPUT:
            if source.owner != client:
                raise PolicyError(
                    f"{_WHAT[use]} of an input is not for client {client!r}: {source.owner!r} "
                    "sent it."
                )
            continue
        if source.kind not in _KINDS:
            raise UsageError(f"A source of {subject} is of an unknown kind. It permits nothing.")
        kind = _KINDS[source.kind]
        facts = _current_facts(store, client, source, kind, subject)
        if kind is TABLE:
            table = stored.as_table(facts, client)
            for column in columns:
                table.check(use, column, _WHAT[use])
        elif kind is DATA and use is Use.SHOW and facts.owner != client:
            raise PolicyError(
                f"{_WHAT[use]} of data set {source.name!r} is not for client {client!r}: its "
                f"owner, {source.owner!r}, provided it for training. Values are opened by column, "
                'in tables: `table put ... --right "column:open"`.'
            )


def _current_facts(
    store: Store, client: str, source: Source, kind: StoredKind, subject: str
) -> StoredFacts:
    """The facts of a source, if it is what it was when something was made of it.

    Raises:
        UsageError: it is not there any more, or not for this client.
    """
    named = f"a {kind.noun}"
    try:
        facts = store.for_kind(kind).get_facts(source.name, client)
        named = f"{kind.noun} {source.name!r}"
    except UsageError:
        facts = None
    if facts is None or (facts.deployment, facts.owner) != (source.deployment, source.owner):
        raise UsageError(
            f"{subject[:1].upper()}{subject[1:]} derives from {named} that its owner has removed or "
            "replaced since then, or does not let this client use. Make it again from what there "
            f"is. {kind.list_hint}"
        )
    return facts
