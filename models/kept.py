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
from tfe_bench.cluster.store import ANOTHERS, NONE, OWN, PARTS, UNREADABLE, Store
from tfe_bench.cluster.stored import (
    Facts,
    Kind,
    Sources,
    Tensor,
    check_clients,
    check_name,
    check_sources,
    own_input,
)
from tfe_bench.errors import ConfigError, ProtocolError, UsageError
from tfe_bench.protocols.session import placed, seeded
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.seeded import Seeded
from tfe_bench.protocols.session.sharing import Shared

# Of the machine's memory, what stays of models and tables between requests: an eighth.
_MOST_IN_MEMORY = 8
# Bytes of a deployment, and of what each worker draws for it.
_WORD = 16


@dataclass(frozen=True, eq=False, kw_only=True)
class Kept:
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
    def of(cls, row: Mapping[str, Any], **more: Any) -> Self:
        """What a row of Client.stored says, and what a kind knows besides."""
        return cls(
            name=str(row["name"]),
            owner=str(row["owner"]),
            clients=None if row["clients"] is None else tuple(row["clients"]),
            deployment=str(row["deployment"]),
            about=row["about"],
            complete=bool(row["complete"]),
            spent=int(row.get("spent", 0)),
            **more,
        )


def ordered(
    name: str, clients: Sequence[str], replace: bool, about: Mapping[str, Any]
) -> dict[str, Any]:
    """Parameters of a program that keeps values, as `check_keeping` takes them."""
    return {
        "name": name,
        "clients": list(clients),
        "replace": replace,
        "about": about,
    }


def refreshed(party: Party, values: Mapping[str, Shared]) -> dict[str, Shared]:
    """The same values under masks of this session, one graph call."""
    from tfe_bench.protocols.ring import refresh

    def anew(*given: Shared) -> list[Shared]:
        return [refresh.refresh(party, x) for x in given]

    with party.kept_graphs("refreshed"):
        made = party.function(anew)(*values.values())
    return dict(zip(values, made, strict=True))


def store_of(context: Context) -> Store:
    """What the worker of a job keeps.

    Raises:
        UsageError: the job runs in no worker.
    """
    if context.store is None:
        raise UsageError("Only workers keep values. Received: a simulation without a store.")
    return context.store


def tensor_of(x: Shared | Seeded) -> Tensor:
    """A shared value as a store keeps it."""
    if isinstance(x, Seeded):
        seeds = {k: np.asarray(v).view(np.int64) for k, v in x.seeds.items()}
        m = {} if x.m is None else {"m": np.asarray(x.m, np.int64)}
        return Tensor({**m, **seeds}, x.dealer, x.fractional_bits, 1, x.shape)
    fields = {"m": x.m, "l1": x.l1, "l2": x.l2}
    parts = {k: np.asarray(v, np.int64) for k, v in fields.items() if v is not None}
    return Tensor(parts, x.dealer, x.fractional_bits, x.limbs)


def shared_of(tensor: Tensor) -> Shared:
    """What a store kept, as a shared value; its words are not copied where they can be taken."""
    return seeded.expanded(held_of(tensor))


def held_of(tensor: Tensor) -> Shared | Seeded:
    """The same, with seeds where there are seeds."""
    if tensor.shape is not None:
        words = {k: v for k, v in tensor.parts.items() if k != "m"}
        seeds = {k: v.view(np.uint8) for k, v in words.items()}
        m = tensor.parts.get("m")
        m = None if m is None else placed.tensor(m)
        return Seeded.of(m, seeds, tensor.shape, tensor.dealer, tensor.fractional_bits)
    parts: dict[str, Any] = {"m": None, "l1": None, "l2": None}
    parts.update({k: placed.tensor(words) for k, words in tensor.parts.items()})
    return Shared(
        **parts,
        dealer=tensor.dealer,
        fractional_bits=tensor.fractional_bits,
        limbs=tensor.limbs,
    )


def in_memory(store: Store, name: str, client: str) -> tuple[Facts, dict[str, Shared | Seeded]]:
    """All that is kept under a name; read once, and then as long as its file is the same.

    What was used last stays in memory, and others as far as they are a part of it together.

    Raises:
        UsageError, PolicyError, ConfigError, SecurityError: as Store.load, each time.
    """
    facts = store.facts(name, client)
    key = _key(store, name, facts)
    values = store.made.pop(key, None)
    if values is None:
        forget(store, name)
        facts, tensors = store.load(name, client)
        values = {each: held_of(tensors.pop(each)) for each in list(tensors)}
    _make_room(store, _bytes(values))
    store.made[key] = values
    return facts, dict(values)


def _make_room(store: Store, size: int) -> bool:
    """Lets go of what was used longest ago until so many bytes fit; whether they do."""
    room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // _MOST_IN_MEMORY
    others = sum(map(_bytes, store.made.values()))
    for oldest in list(store.made):
        if others + size > room:
            others -= _bytes(store.made.pop(oldest))
    return size <= room


def as_held(context: Context) -> tuple[Values, Mapping[str, Shared]]:
    """For `keeping`: a job's inputs as the worker holds them, large ones with seeds for masks."""
    return {name: seeded.of(context.inputs, name) for name in context.inputs}, {}


def is_in_memory(store: Store, name: str, client: str) -> bool:
    """Whether `in_memory` would read nothing.

    Raises:
        UsageError, PolicyError, ConfigError, SecurityError: as Store.facts.
    """
    return _key(store, name, store.facts(name, client)) in store.made


def _key(store: Store, name: str, facts: Facts) -> tuple[Any, ...]:
    return store.kind.infix, name, facts.deployment, store.stamp(name)


def forget(store: Store, name: str) -> None:
    """Lets go of what is in memory of a name."""
    for key in [k for k in store.made if k[:2] == (store.kind.infix, name)]:
        del store.made[key]


def _bytes(values: Mapping[str, Shared | Seeded]) -> int:
    parts = (t for x in values.values() for t in (x.m, x.l1, x.l2) if t is not None)
    return sum(8 * math.prod(t.shape) for t in parts)


def loaded(
    party: Party, store: Store, name: str, client: str, deployment: str, names: Sequence[str]
) -> dict[str, Shared]:
    """Some of the values that are kept under a name, of the deployment that was looked at.

    They stay in memory as those of `in_memory` do, if they fit; others of the name do not.

    Raises:
        UsageError, PolicyError, ConfigError, SecurityError: as Store.load, each time; it was just
            replaced.
        ProtocolError: shares that do not fit each other.
    """
    facts = store.facts(name, client)
    key = (*_key(store, name, facts), "some")
    values = store.made.pop(key, {})
    absent = [each for each in names if each not in values]
    if absent:
        forget(store, name)
        facts, tensors = store.load(name, client, absent)
        values = {**values, **{each: shared_of(tensors.pop(each)) for each in absent}}
    if facts.deployment != deployment:
        raise UsageError(f"The {store.kind.noun} {name!r} was just replaced. Ask again.")
    if _make_room(store, _bytes(values)):
        store.made[key] = values
    check_same(party, store, facts)
    return {each: values[each] for each in names}


def write(party: Party, store: Store, facts: Facts, values: Mapping[str, Shared | Seeded]) -> None:
    """Keeps values under a name: in place at all three workers, or at none.

    Its deployment is a word that the three draw together, whatever the facts say: no client
    chooses one, so that nothing takes the place of what was under the name before.

    All three have written them before one of them puts them in place.  Should one be lost between
    the two steps, the deployments differ, and whoever reads them next says so.

    Raises:
        ConfigError: they cannot be written.
    """
    drawn = b"".join(party.exchange(os.urandom(_WORD)))
    named = json.dumps([store.kind.infix, facts.name, facts.owner]).encode()
    word = hashlib.sha256(drawn + named).hexdigest()[: 2 * _WORD]
    facts = replace(facts, deployment=word, sources=check_sources(facts.sources))
    prepared = store.prepare(facts, {k: tensor_of(x) for k, x in values.items()})
    try:
        party.exchange(b"written")
        forget(store, facts.name)
        prepared.commit()
    finally:
        prepared.discard()


def remove(party: Party, store: Store, name: str, client: str) -> None:
    """Removes what a client keeps under a name, at all three workers.

    One that has it no more, or cannot read its file, goes by what the others know of the owner.

    Raises:
        UsageError: the client keeps nothing of this name; somebody else's is as unknown as none.
        ConfigError: whose it is none of them can tell.
    """
    mine = store.whose(name, client)
    told = [each[0] for each in party.exchange(bytes([mine]))]
    if OWN not in told and ANOTHERS not in told and UNREADABLE in told:
        where = ", ".join(str(p) for p, said in enumerate(told) if said == UNREADABLE)
        raise ConfigError(
            f"Nobody can tell whose {store.kind.noun} {name!r} is: the files of party {where} "
            "cannot be read. Its operator removes them from the folder for models."
        )
    if ANOTHERS in told or OWN not in told:
        raise UsageError(f"This client keeps no {store.kind.noun} {name!r}. {store.kind.listed}")
    forget(store, name)
    if mine != NONE:
        store.remove(name)


def check_same(party: Party, store: Store, facts: Facts) -> None:
    """The three hold shares of one deployment: each field the same at both who hold it.

    Raises:
        ProtocolError: they do not.
    """
    said = {
        part: f"{facts.deployment} {facts.owner} {facts.digests.get(part)}".encode()
        for part in PARTS
    }
    peer = holders.differing(party, said)
    if peer is not None:
        raise ProtocolError(
            f"Parties {party.index} and {peer} hold shares of {store.kind.noun} "
            f"{facts.name!r} that do not fit each other. {store.kind.again}"
        )


# ---- programs

Check = Callable[[Mapping[str, Any], Sequence[InputSpec]], None]


def check_keeping(
    program: str, parameters: Mapping[str, Any], what: str, more: Sequence[str] = ()
) -> Mapping[str, Any]:
    """What is public about values that a client wants to be kept.

    Args:
        what: of a name, in errors.
        more: parameters that are the program's own.

    Raises:
        UsageError: naming the parameter that does not fit.
    """
    known = ("name", "clients", "replace", "about", *more)
    check_known(program, parameters, known)
    check_name(parameters.get("name"), what)
    check_clients(parameters.get("clients"))
    if type(parameters.get("replace")) is not bool:
        raise UsageError(f"replace is true or false. Received: {parameters.get('replace')!r}.")
    about = parameters.get("about")
    return about if isinstance(about, Mapping) else {}


def facts_of(parameters: Mapping[str, Any], owner: str, sources: Sources = frozenset()) -> Facts:
    """The facts under which checked parameters have values kept; `write` draws the deployment.

    Args:
        sources: of the values, unless they are their owner's input.
    """
    p, derived = parameters, sources or own_input(owner)
    return Facts(p["name"], owner, tuple(p["clients"]), "", p["about"], sources=derived)


Values = Mapping[str, Shared | Seeded]


def keeping(
    program: str,
    kind: Kind,
    check: Check,
    about: str,
    made: Callable[[Context], tuple[Values, Mapping[str, Shared]]] = lambda c: (c.inputs, {}),
    **more: Any,
) -> Program:
    """A program that keeps values under a name: at all three workers, or at none.

    Args:
        made: what is kept, and what leaves to the client, of a job; its inputs unless given.
        more: of the Program.
    """

    def permit(
        client: str, store: Store, parameters: Mapping[str, Any], _: Sequence[InputSpec]
    ) -> None:
        store.of(kind).permit_writing(parameters["name"], client, parameters["replace"])

    def run(context: Context) -> dict[str, Shared]:
        store = store_of(context)
        permit(context.client, store, context.parameters, ())
        values, leaving = made(context)
        context.progress(0.0, "writing")
        facts = facts_of(context.parameters, context.client)
        write(context.party, store.of(kind), facts, values)
        return dict(leaving)

    return Program(program, run, check, about, permit=permit, **more)


def removing(
    program: str,
    kind: Kind,
    what: str,
    about: str,
    then: Callable[[Store, str], None] = lambda store, name: None,
) -> Program:
    """A program that removes what the asking client keeps under a name.

    Args:
        then: what goes with it, once it is gone.
    """

    def check(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> None:
        check_known(program, parameters, ("name",))
        check_name(parameters.get("name"), what)
        if inputs:
            raise UsageError(f"{program} has no inputs. Received: {[i.name for i in inputs][:4]}.")

    def run(context: Context) -> dict[str, Shared]:
        store = store_of(context).of(kind)
        name = context.parameters["name"]
        remove(context.party, store, name, context.client)
        then(store, name)
        return {}

    return Program(program, run, check, about)
