"""Stored shares: values that workers keep between jobs, written at all three or at none.

Loaded values are checked against the other workers' shares.  The module also defines the common
part of programs that store values (`storing_program`) and remove them (`removing_program`).
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import numpy as np

from tfe_bench.cluster import holders
from tfe_bench.cluster.job_use import JobUse
from tfe_bench.cluster.jobs import Context, InputSpec, Program, Size, reject_inputs
from tfe_bench.cluster.schema import Request, flag_field, parsed_field
from tfe_bench.cluster.store import FOREIGN, NONE, OWN, UNREADABLE, ShareStore
from tfe_bench.cluster.store_layout import PARTS
from tfe_bench.cluster.stored import (
    Sources,
    StoredFacts,
    StoredKind,
    StoredTensor,
    check_client_names,
    check_name,
    check_stored_sources,
    client_input_source,
)
from tfe_bench.errors import ConfigError, ProtocolError, UsageError
from tfe_bench.protocols.session import aligned_buffers, seeded
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.seeded import Seeded
from tfe_bench.protocols.session.sharing import Shared

# The cache of models and tables between requests takes 1/8 of the machine's memory.
_MOST_IN_MEMORY = 8
# Bytes of a deployment number, and of each worker's random contribution to it.
_DEPLOYMENT_BYTES = 16


@dataclass(frozen=True, eq=False, kw_only=True)
class StoredEntry:
    """Description of stored shares for a client that may use them.

    Attributes:
        name, owner: the name, and the client that stored the values.
        clients: other clients that may use them; None except for the owner.
        deployment: a number that changes whenever the values are replaced.
        about: public facts.
        complete: whether all three workers have this deployment.
        spent: spent part of a table's privacy budget, in billionths of rho.
        ready: number of predictions of a model for which material is ready.
    """

    name: str
    owner: str
    clients: tuple[str, ...] | None
    deployment: str
    about: Mapping[str, Any]
    complete: bool
    spent: int = 0
    ready: int = 0

    @classmethod
    def from_row(cls, row: Mapping[str, Any], **details: Any) -> Self:
        """Build the description from a row of Client.stored, and from details of a subclass."""
        return cls(
            name=str(row["name"]),
            owner=str(row["owner"]),
            clients=None if row["clients"] is None else tuple(row["clients"]),
            deployment=str(row["deployment"]),
            about=row["about"],
            complete=bool(row["complete"]),
            spent=int(row.get("spent", 0)),
            ready=int(row.get("ready", 0)),
            **details,
        )


def refresh_stored_shares(party: Party, values: Mapping[str, Shared]) -> dict[str, Shared]:
    """Refresh the masks of values for this session, in one graph call."""
    from tfe_bench.protocols.ring import refresh

    def refresh_all(*shared_values: Shared) -> list[Shared]:
        return [refresh.refresh(party, x) for x in shared_values]

    with party.kept_graphs("refreshed"):
        fresh_values = party.function(refresh_all)(*values.values())
    return dict(zip(values, fresh_values, strict=True))


def track_store_use(store: ShareStore, use: JobUse | None) -> ShareStore:
    """Return a copy of a store for one job; it records its use in `use`, if that is given."""
    tracked = copy.copy(store)
    tracked.use = use
    return tracked


def require_share_store(context: Context) -> ShareStore:
    """Return the store of the worker that runs a job.

    Raises:
        UsageError: the job does not run in a worker.
    """
    if context.store is None:
        raise UsageError("A simulation has no store; only workers store values.", code="no-store")
    return context.store


def to_stored_tensor(x: Shared | Seeded) -> StoredTensor:
    """Convert a shared value to its stored form."""
    if isinstance(x, Seeded):
        seeds = {k: np.asarray(v).view(np.int64) for k, v in x.seeds.items()}
        m = {} if x.m is None else {"m": np.asarray(x.m, np.int64)}
        return StoredTensor({**m, **seeds}, x.dealer, x.fractional_bits, 1, x.shape)
    fields = {"m": x.m, "l1": x.l1, "l2": x.l2}
    parts = {k: np.asarray(v, np.int64) for k, v in fields.items() if v is not None}
    return StoredTensor(parts, x.dealer, x.fractional_bits, x.limbs)


def stored_to_shared(tensor: StoredTensor) -> Shared:
    """Convert a stored tensor to a shared value, without copying its words if possible."""
    return seeded.expand_masks(stored_to_shared_or_seeded(tensor))


def stored_to_shared_or_seeded(tensor: StoredTensor) -> Shared | Seeded:
    """Convert a stored tensor to a shared value, with seeds in place of words if it has seeds."""
    if tensor.shape is not None:
        words = {k: v for k, v in tensor.parts.items() if k != "m"}
        seeds = {k: v.view(np.uint8) for k, v in words.items()}
        m = tensor.parts.get("m")
        m = None if m is None else aligned_buffers.view_words_as_tensor(m)
        return Seeded.from_seeds(m, seeds, tensor.shape, tensor.dealer, tensor.fractional_bits)
    parts: dict[str, Any] = {"m": None, "l1": None, "l2": None}
    parts.update(
        {k: aligned_buffers.view_words_as_tensor(words) for k, words in tensor.parts.items()}
    )
    return Shared(
        **parts,
        dealer=tensor.dealer,
        fractional_bits=tensor.fractional_bits,
        limbs=tensor.limbs,
    )


def load_cached_shares(
    store: ShareStore, name: str, client: str
) -> tuple[StoredFacts, dict[str, Shared | Seeded]]:
    """Load all values of a name; they are read once and cached until the file changes.

    The last used values stay in memory, and others as long as all together fit.

    Raises:
        UsageError, PolicyError, ConfigError, SecurityError: as ShareStore.load, at each call.
    """
    facts = store.get_facts(name, client)
    key = _shares_cache_key(store, name, facts)
    values = store.program_cache.pop(key, None)
    if values is None:
        evict_cached_shares(store, name)
        facts, tensors = store.load(name, client)
        values = {part: stored_to_shared_or_seeded(tensors.pop(part)) for part in list(tensors)}
    _evict_oldest_shares(store, _share_bytes(values))
    store.program_cache[key] = values
    return facts, dict(values)


def _evict_oldest_shares(store: ShareStore, size: int) -> bool:
    """Evict the least recently used values until a size fits; return whether it fits."""
    room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // _MOST_IN_MEMORY
    used = sum(map(_share_bytes, store.program_cache.values()))
    for oldest in list(store.program_cache):
        if used + size > room:
            used -= _share_bytes(store.program_cache.pop(oldest))
    return size <= room


def take_seeded_inputs(context: Context) -> tuple[Values, Mapping[str, Shared]]:
    """Return a job's inputs for `storing_program`, large ones with seeds in place of masks."""
    return {name: seeded.get_seeded_input(context.inputs, name) for name in context.inputs}, {}


def are_shares_cached(store: ShareStore, name: str, client: str) -> bool:
    """Return whether `load_cached_shares` would read nothing from disk.

    Raises:
        UsageError, PolicyError, ConfigError, SecurityError: as ShareStore.get_facts.
    """
    return _shares_cache_key(store, name, store.get_facts(name, client)) in store.program_cache


def _shares_cache_key(store: ShareStore, name: str, facts: StoredFacts) -> tuple[Any, ...]:
    return store.kind.infix, name, facts.deployment, store.file_stamp(name)


def evict_cached_shares(store: ShareStore, name: str) -> None:
    """Evict all cached values of a name."""
    for key in [k for k in store.program_cache if k[:2] == (store.kind.infix, name)]:
        del store.program_cache[key]


def _share_bytes(values: Mapping[str, Shared | Seeded]) -> int:
    parts = (t for x in values.values() for t in (x.m, x.l1, x.l2) if t is not None)
    return sum(8 * math.prod(t.shape) for t in parts)


def load_stored_shares(
    party: Party, store: ShareStore, name: str, client: str, deployment: str, names: Sequence[str]
) -> dict[str, Shared]:
    """Load some values of a name, from the deployment that was checked before.

    They are cached as by `load_cached_shares` if they fit; other values of the name are not.

    Raises:
        UsageError, PolicyError, ConfigError, SecurityError: as ShareStore.load, at each call; the
            values were just replaced.
        ProtocolError: the workers' shares do not match.
    """
    facts = store.get_facts(name, client)
    key = (*_shares_cache_key(store, name, facts), "some")
    values = store.program_cache.pop(key, {})
    missing = [part for part in names if part not in values]
    if missing:
        evict_cached_shares(store, name)
        facts, tensors = store.load(name, client, missing)
        values = {**values, **{part: stored_to_shared(tensors.pop(part)) for part in missing}}
    if facts.deployment != deployment:
        raise UsageError(
            f"The {store.kind.noun} {name!r} was just replaced. Submit the job again.",
            code="deployment-changed",
            operation=name,
        )
    if _evict_oldest_shares(store, _share_bytes(values)):
        store.program_cache[key] = values
    check_same(party, store, facts)
    return {part: values[part] for part in names}


def store_share_values(
    party: Party, store: ShareStore, facts: StoredFacts, values: Mapping[str, Shared | Seeded]
) -> None:
    """Store values under a name: at all three workers, or at none.

    The three workers draw the deployment number together, whatever the facts contain.  So no client
    chooses one, and no values pass for an earlier deployment of the name.
    All three workers write the values before one of them puts them in place.  If a worker is lost
    between these two steps, the deployments differ, and the next reader reports it.

    Raises:
        ConfigError: the values cannot be written.
    """
    subject = f"the deployment of {store.kind.noun} {facts.name!r}"
    drawn = b"".join(party.exchange_facts(subject, os.urandom(_DEPLOYMENT_BYTES)))
    named = json.dumps([store.kind.infix, facts.name, facts.owner]).encode()
    deployment = hashlib.sha256(drawn + named).hexdigest()[: 2 * _DEPLOYMENT_BYTES]
    facts = replace(facts, deployment=deployment, sources=check_stored_sources(facts.sources))
    prepared = store.prepare_file(facts, {k: to_stored_tensor(x) for k, x in values.items()})
    try:
        party.exchange(b"written")
        evict_cached_shares(store, facts.name)
        prepared.commit()
        store.record_use(facts, "stored")
        store.spool.drop_entries(store.kind.infix, facts.name)
    finally:
        prepared.discard()


def remove_stored_shares(party: Party, store: ShareStore, name: str, client: str) -> None:
    """Remove a client's values of a name at all three workers.

    A worker without the file, or with an unreadable file, follows the others' record of the owner.

    Raises:
        UsageError: the client stores nothing under this name; the error for another client's name
            is the same.
        ConfigError: no worker can determine the owner.
    """
    ownership = store.get_ownership(name, client)
    statements = party.exchange_facts(
        f"the owner of {store.kind.noun} {name!r}", bytes([ownership])
    )
    ownerships = [statement[0] for statement in statements]
    if OWN not in ownerships and FOREIGN not in ownerships and UNREADABLE in ownerships:
        parties = ", ".join(str(p) for p, state in enumerate(ownerships) if state == UNREADABLE)
        raise ConfigError(
            f"The owner of {store.kind.noun} {name!r} cannot be determined: the files of party "
            f"{parties} are unreadable. Ask its operator to remove them from the folder for "
            "models.",
            code="owner-unknown",
            operation=name,
            received=parties,
        )
    if FOREIGN in ownerships or OWN not in ownerships:
        raise UsageError(
            f"This client stores no {store.kind.noun} {name!r}. {store.kind.list_hint}",
            code="not-stored",
            operation=name,
        )
    evict_cached_shares(store, name)
    store.spool.drop_entries(store.kind.infix, name)
    store.record_use(StoredFacts(name, client, (), "", {}), "removed")
    if ownership != NONE:
        store.remove_file(name)


def check_same(party: Party, store: ShareStore, facts: StoredFacts) -> None:
    """Check that the workers hold shares of one deployment: each field equals that of its peer.

    Raises:
        ProtocolError: the shares differ.
    """
    descriptions = {
        part: f"{facts.deployment} {facts.owner} {facts.digests.get(part)}".encode()
        for part in PARTS
    }
    peer = holders.find_differing_peer(party, descriptions)
    if peer is not None:
        raise ProtocolError(
            f"Parties {party.index} and {peer} hold shares of {store.kind.noun} {facts.name!r} "
            f"that do not match. {store.kind.remedy}",
            code="shares-mismatch",
            operation=facts.name,
            party=peer,
        )


# ---- programs


def stored_name_field(subject: str) -> Any:
    """Declare a field for a name under which values are stored.

    Args:
        subject: the subject of errors about the name.
    """
    return parsed_field(lambda name: check_name(name, subject), str)


def _read_clients(clients: Any) -> list[str]:
    check_client_names(clients)
    return list(clients)


def _read_facts(about: object) -> Mapping[str, Any]:
    return about if isinstance(about, Mapping) else {}


@dataclass(frozen=True)
class StorageRequest(Request):
    """A request to store values under a name; programs declare what they derive from `about`.

    Attributes:
        name: the name.
        clients: other clients that may use the values.
        replace: whether to replace values that this client stored under the name before.
        about: public facts about the values.
    """

    name: str = stored_name_field("A name")
    clients: Sequence[str] = parsed_field(_read_clients, list)
    replace: bool = flag_field()
    about: Mapping[str, Any] = parsed_field(_read_facts, dict)


def build_stored_facts(
    parameters: Mapping[str, Any], owner: str, sources: Sources = frozenset()
) -> StoredFacts:
    """Build the stored facts from checked parameters; `store_share_values` draws the deployment.

    Args:
        sources: sources of the values; by default, the input of their owner.
    """
    p, derived = parameters, sources or client_input_source(owner)
    return StoredFacts(p["name"], owner, tuple(p["clients"]), "", p["about"], sources=derived)


Values = Mapping[str, Shared | Seeded]
S = TypeVar("S", bound=StorageRequest)


def storing_program(
    program: str,
    kind: StoredKind,
    parse: Callable[[Mapping[str, Any], Sequence[InputSpec]], S],
    about: str,
    prepare: Callable[[Context], tuple[Values, Mapping[str, Shared]]] = lambda c: (c.inputs, {}),
    size: Callable[[str, ShareStore, S, Sequence[InputSpec]], int | Size] | None = None,
    is_sealed: bool = True,
) -> Program[S]:
    """Return a program that stores values under a name: at all three workers, or at none.

    Args:
        parse, size, is_sealed: as in Program.
        prepare: returns, for a job, the values to store and the outputs for the client; by default,
            the job's inputs and no output.
    """

    def permit_storing(client: str, store: ShareStore, request: S, _: Sequence[InputSpec]) -> None:
        store.for_kind(kind).permit_writing(request.name, client, request.replace)

    def run_storing(context: Context) -> dict[str, Shared]:
        store = require_share_store(context)
        permit_storing(context.client, store, context.request, ())
        values, leaving = prepare(context)
        context.progress(0.0, "writing")
        facts = build_stored_facts(context.parameters, context.client)
        store_share_values(context.party, store.for_kind(kind), facts, values)
        return dict(leaving)

    return Program(
        *(program, run_storing, parse, about),
        permit=permit_storing,
        size=size,
        is_sealed=is_sealed,
    )


def removing_program(
    program: str,
    kind: StoredKind,
    subject: str,
    about: str,
    then: Callable[[ShareStore, str], None] = lambda store, name: None,
) -> Program[Any]:
    """Return a program that removes the submitting client's values of a name.

    Args:
        then: called after the removal, for what belongs to the name.
    """

    @dataclass(frozen=True)
    class RemovalRequest(Request):
        name: str = stored_name_field(subject)

    def parse_removal(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> RemovalRequest:
        reject_inputs(program, inputs)
        return RemovalRequest.from_parameters(parameters, program)

    def run_removal(context: Context) -> dict[str, Shared]:
        store = require_share_store(context).for_kind(kind)
        name = context.request.name
        remove_stored_shares(context.party, store, name, context.client)
        then(store, name)
        return {}

    return Program(program, run_removal, parse_removal, about, is_sealed=True)
