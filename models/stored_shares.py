"""Shares that workers keep between jobs: written at all three or at none, checked when read.

And what the programs have in common that keep them (`keeping`), and those that remove them
(`removing`).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from tfe_bench.cluster import holders
from tfe_bench.cluster.jobs import Context, InputSpec, Program, check_known
from tfe_bench.cluster.store import FOREIGN, NONE, OWN, PARTS, UNREADABLE, Store
from tfe_bench.cluster.stored import (
    Sources,
    StoredFacts,
    StoredKind,
    StoredTensor,
    check_clients,
    check_name,
    check_sources,
    input_source,
)
from tfe_bench.errors import ConfigError, ProtocolError, UsageError
from tfe_bench.protocols.session import aligned_buffers, seeded
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.seeded import Seeded
from tfe_bench.protocols.session.sharing import Shared

# Of the machine's memory, what stays of models and tables between requests: an eighth.
_MOST_IN_MEMORY = 8
# Bytes of a deployment, and of what each worker draws for it.
_DEPLOYMENT_BYTES = 16


@dataclass(frozen=True, eq=False, kw_only=True)
class StoredEntry:
    """What workers keep under a name, as a client that may use it knows it.

    Attributes:
        name, owner: the client that had it kept.
        clients: who else may use it; None to all but its owner.
        deployment: changes whenever it is kept anew.
        about: public facts.
        complete: whether all three workers have this deployment.
        spent: of a table's privacy budget, in billionths of rho.
    """

    name: str
    owner: str
    clients: tuple[str, ...] | None
    deployment: str
    about: Mapping[str, Any]
    complete: bool
    spent: int = 0

    @classmethod
    def from_row(cls, row: Mapping[str, Any], **details: Any) -> Self:
        """What a row of Client.stored says, and what a kind knows besides."""
        return cls(
            name=str(row["name"]),
            owner=str(row["owner"]),
            clients=None if row["clients"] is None else tuple(row["clients"]),
            deployment=str(row["deployment"]),
            about=row["about"],
            complete=bool(row["complete"]),
            spent=int(row.get("spent", 0)),
            **details,
        )


def storage_parameters(
    name: str, clients: Sequence[str], replace: bool, about: Mapping[str, Any]
) -> dict[str, Any]:
    """Parameters of a program that keeps values, as `check_keeping` takes them."""
    return {
        "name": name,
        "clients": list(clients),
        "replace": replace,
        "about": about,
    }


def refresh_values(party: Party, values: Mapping[str, Shared]) -> dict[str, Shared]:
    """The same values under masks of this session, one graph call."""
    from tfe_bench.protocols.ring import refresh

    def refresh_all(*shared_values: Shared) -> list[Shared]:
        return [refresh.refresh(party, x) for x in shared_values]

    with party.kept_graphs("refreshed"):
        fresh_values = party.function(refresh_all)(*values.values())
    return dict(zip(values, fresh_values, strict=True))


def require_store(context: Context) -> Store:
    """What the worker of a job keeps.

    Raises:
        UsageError: the job runs in no worker.
    """
    if context.store is None:
        raise UsageError("Only workers keep values. Received: a simulation without a store.")
    return context.store


def to_stored_tensor(x: Shared | Seeded) -> StoredTensor:
    """A shared value as a store keeps it."""
    if isinstance(x, Seeded):
        seeds = {k: np.asarray(v).view(np.int64) for k, v in x.seeds.items()}
        m = {} if x.m is None else {"m": np.asarray(x.m, np.int64)}
        return StoredTensor({**m, **seeds}, x.dealer, x.fractional_bits, 1, x.shape)
    fields = {"m": x.m, "l1": x.l1, "l2": x.l2}
    parts = {k: np.asarray(v, np.int64) for k, v in fields.items() if v is not None}
    return StoredTensor(parts, x.dealer, x.fractional_bits, x.limbs)


def to_shared(tensor: StoredTensor) -> Shared:
    """What a store kept, as a shared value; its words are not copied where they can be taken."""
    return seeded.expand_masks(to_shared_or_seeded(tensor))


def to_shared_or_seeded(tensor: StoredTensor) -> Shared | Seeded:
    """The same, with seeds where there are seeds."""
    if tensor.shape is not None:
        words = {k: v for k, v in tensor.parts.items() if k != "m"}
        seeds = {k: v.view(np.uint8) for k, v in words.items()}
        m = tensor.parts.get("m")
        m = None if m is None else aligned_buffers.as_tensor(m)
        return Seeded.from_seeds(m, seeds, tensor.shape, tensor.dealer, tensor.fractional_bits)
    parts: dict[str, Any] = {"m": None, "l1": None, "l2": None}
    parts.update({k: aligned_buffers.as_tensor(words) for k, words in tensor.parts.items()})
    return Shared(
        **parts,
        dealer=tensor.dealer,
        fractional_bits=tensor.fractional_bits,
        limbs=tensor.limbs,
    )


def load_cached(
    store: Store, name: str, client: str
) -> tuple[StoredFacts, dict[str, Shared | Seeded]]:
    """All that is kept under a name; read once, and then as long as its file is the same.

    What was used last stays in memory, and others as far as they are a part of it together.

    Raises:
        UsageError, PolicyError, ConfigError, SecurityError: as Store.load, each time.
    """
    facts = store.get_facts(name, client)
    key = _cache_key(store, name, facts)
    values = store.program_cache.pop(key, None)
    if values is None:
        evict_cached(store, name)
        facts, tensors = store.load(name, client)
        values = {part: to_shared_or_seeded(tensors.pop(part)) for part in list(tensors)}
    _evict_oldest(store, _value_bytes(values))
    store.program_cache[key] = values
    return facts, dict(values)


def _evict_oldest(store: Store, size: int) -> bool:
    """Lets go of what was used longest ago until so many bytes fit; whether they do."""
    room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // _MOST_IN_MEMORY
    used = sum(map(_value_bytes, store.program_cache.values()))
    for oldest in list(store.program_cache):
        if used + size > room:
            used -= _value_bytes(store.program_cache.pop(oldest))
    return size <= room


def take_seeded_inputs(context: Context) -> tuple[Values, Mapping[str, Shared]]:
    """For `keeping`: a job's inputs as the worker holds them, large ones with seeds for masks."""
    return {name: seeded.get_held_input(context.inputs, name) for name in context.inputs}, {}


def is_cached(store: Store, name: str, client: str) -> bool:
    """Whether `in_memory` would read nothing.

    Raises:
        UsageError, PolicyError, ConfigError, SecurityError: as Store.facts.
    """
    return _cache_key(store, name, store.get_facts(name, client)) in store.program_cache


def _cache_key(store: Store, name: str, facts: StoredFacts) -> tuple[Any, ...]:
    return store.kind.infix, name, facts.deployment, store.file_stamp(name)


def evict_cached(store: Store, name: str) -> None:
    """Lets go of what is in memory of a name."""
    for key in [k for k in store.program_cache if k[:2] == (store.kind.infix, name)]:
        del store.program_cache[key]


def _value_bytes(values: Mapping[str, Shared | Seeded]) -> int:
    parts = (t for x in values.values() for t in (x.m, x.l1, x.l2) if t is not None)
    return sum(8 * math.prod(t.shape) for t in parts)


def load_values(
    party: Party, store: Store, name: str, client: str, deployment: str, names: Sequence[str]
) -> dict[str, Shared]:
    """Some of the values that are kept under a name, of the deployment that was looked at.

    They stay in memory as those of `in_memory` do, if they fit; others of the name do not.

    Raises:
        UsageError, PolicyError, ConfigError, SecurityError: as Store.load, each time; it was just
            replaced.
        ProtocolError: shares that do not fit each other.
    """
    facts = store.get_facts(name, client)
    key = (*_cache_key(store, name, facts), "some")
    values = store.program_cache.pop(key, {})
    missing = [part for part in names if part not in values]
    if missing:
        evict_cached(store, name)
        facts, tensors = store.load(name, client, missing)
        values = {**values, **{part: to_shared(tensors.pop(part)) for part in missing}}
    if facts.deployment != deployment:
        raise UsageError(f"The {store.kind.noun} {name!r} was just replaced. Ask again.")
    if _evict_oldest(store, _value_bytes(values)):
        store.program_cache[key] = values
    check_same(party, store, facts)
    return {part: values[part] for part in names}


def store_values(
    party: Party, store: Store, facts: StoredFacts, values: Mapping[str, Shared | Seeded]
) -> None:
    """Keeps values under a name: in place at all three workers, or at none.

    Its deployment is a word that the three draw together, whatever the facts say: no client
    chooses one, so that nothing takes the place of what was under the name before.

    All three have written them before one of them puts them in place.  Should one be lost between
    the two steps, the deployments differ, and whoever reads them next says so.

    Raises:
        ConfigError: they cannot be written.
    """
    drawn = b"".join(party.exchange(os.urandom(_DEPLOYMENT_BYTES)))
    named = json.dumps([store.kind.infix, facts.name, facts.owner]).encode()
    deployment = hashlib.sha256(drawn + named).hexdigest()[: 2 * _DEPLOYMENT_BYTES]
    facts = replace(facts, deployment=deployment, sources=check_sources(facts.sources))
    prepared = store.prepare_file(facts, {k: to_stored_tensor(x) for k, x in values.items()})
    try:
        party.exchange(b"written")
        evict_cached(store, facts.name)
        prepared.commit()
    finally:
        prepared.discard()


def remove_values(party: Party, store: Store, name: str, client: str) -> None:
    """Removes what a client keeps under a name, at all three workers.

    One that has it no more, or cannot read its file, goes by what the others know of the owner.

    Raises:
        UsageError: the client keeps nothing of this name; somebody else's is as unknown as none.
        ConfigError: whose it is none of them can tell.
    """
    ownership = store.get_ownership(name, client)
    ownerships = [message[0] for message in party.exchange(bytes([ownership]))]
    if OWN not in ownerships and FOREIGN not in ownerships and UNREADABLE in ownerships:
        parties = ", ".join(str(p) for p, state in enumerate(ownerships) if state == UNREADABLE)
        raise ConfigError(
            f"Nobody can tell whose {store.kind.noun} {name!r} is: the files of party {parties} "
            "cannot be read. Its operator removes them from the folder for models."
        )
    if FOREIGN in ownerships or OWN not in ownerships:
        raise UsageError(f"This client keeps no {store.kind.noun} {name!r}. {store.kind.list_hint}")
    evict_cached(store, name)
    if ownership != NONE:
        store.remove_file(name)


def check_same(party: Party, store: Store, facts: StoredFacts) -> None:
    """The three hold shares of one deployment: each field the same at both who hold it.

    Raises:
        ProtocolError: they do not.
    """
    descriptions = {
        part: f"{facts.deployment} {facts.owner} {facts.digests.get(part)}".encode()
        for part in PARTS
    }
    peer = holders.find_differing_peer(party, descriptions)
    if peer is not None:
        raise ProtocolError(
            f"Parties {party.index} and {peer} hold shares of {store.kind.noun} "
            f"{facts.name!r} that do not fit each other. {store.kind.remedy}"
        )


# ---- programs

CheckHook = Callable[[Mapping[str, Any], Sequence[InputSpec]], None]


def check_storage_parameters(
    program: str, parameters: Mapping[str, Any], subject: str, extra: Sequence[str] = ()
) -> Mapping[str, Any]:
    """What is public about values that a client wants to be kept.

    Args:
        what: of a name, in errors.
        more: parameters that are the program's own.

    Raises:
        UsageError: naming the parameter that does not fit.
    """
    known_names = ("name", "clients", "replace", "about", *extra)
    check_known(program, parameters, known_names)
    check_name(parameters.get("name"), subject)
    check_clients(parameters.get("clients"))
    if type(parameters.get("replace")) is not bool:
        raise UsageError(f"replace is true or false. Received: {parameters.get('replace')!r}.")
    about = parameters.get("about")
    return about if isinstance(about, Mapping) else {}


def build_facts(
    parameters: Mapping[str, Any], owner: str, sources: Sources = frozenset()
) -> StoredFacts:
    """The facts under which checked parameters have values kept; `write` draws the deployment.

    Args:
        sources: of the values, unless they are their owner's input.
    """
    p, derived = parameters, sources or input_source(owner)
    return StoredFacts(p["name"], owner, tuple(p["clients"]), "", p["about"], sources=derived)


Values = Mapping[str, Shared | Seeded]


def storing_program(
    program: str,
    kind: StoredKind,
    check: CheckHook,
    about: str,
    prepare: Callable[[Context], tuple[Values, Mapping[str, Shared]]] = lambda c: (c.inputs, {}),
    **options: Any,
) -> Program:
    """A program that keeps values under a name: at all three workers, or at none.

    Args:
        made: what is kept, and what leaves to the client, of a job; its inputs unless given.
        more: of the Program.
    """

    def permit_storing(
        client: str, store: Store, parameters: Mapping[str, Any], _: Sequence[InputSpec]
    ) -> None:
        store.for_kind(kind).permit_writing(parameters["name"], client, parameters["replace"])

    def run_storing(context: Context) -> dict[str, Shared]:
        store = require_store(context)
        permit_storing(context.client, store, context.parameters, ())
        values, leaving = prepare(context)
        context.progress(0.0, "writing")
        facts = build_facts(context.parameters, context.client)
        store_values(context.party, store.for_kind(kind), facts, values)
        return dict(leaving)

    return Program(program, run_storing, check, about, permit=permit_storing, **options)


def removing_program(
    program: str,
    kind: StoredKind,
    subject: str,
    about: str,
    then: Callable[[Store, str], None] = lambda store, name: None,
) -> Program:
    """A program that removes what the asking client keeps under a name.

    Args:
        then: what goes with it, once it is gone.
    """

    def check_removal(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> None:
        check_known(program, parameters, ("name",))
        check_name(parameters.get("name"), subject)
        if inputs:
            raise UsageError(f"{program} has no inputs. Received: {[i.name for i in inputs][:4]}.")

    def run_removal(context: Context) -> dict[str, Shared]:
        store = require_store(context).for_kind(kind)
        name = context.parameters["name"]
        remove_values(context.party, store, name, context.client)
        then(store, name)
        return {}

    return Program(program, run_removal, check_removal, about)
