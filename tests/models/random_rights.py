"""Random programs over stored things, and what the documented rules of rights say of each.

A `World` is one worker's store that random clients fill: tables with random rights, aligned and
provided data sets, kept arrays, handles; with removals, and names that somebody else takes.  Beside
each decision of the worker stands that of a small oracle, which knows things by what they are, not
by names and words.  Clients are patched: they name words of earlier things, others' handles, and
hidden columns.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from tfe_bench.cluster.store import Store
from tfe_bench.cluster.stored import ARRAY, DATA, TABLE, StoredKind
from tfe_bench.errors import PolicyError, UsageError
from tfe_bench.models import stored_shares
from tfe_bench.models.arrays import evaluate
from tfe_bench.protocols.session.sharing import Shared

CLIENTS = ("alice", "bob", "mallory")
COLUMNS = ("k", "a", "b")
ROWS = 12
GIVEN = ("open", "group", "aggregate", "quantile", "filter", "match", "train")
WORDS = Shared(np.zeros(1, np.int64), np.zeros(1, np.int64), None)
# What it is, whether the rules permit it, itself for people, and how it is done.
Program = tuple[str, bool, Any, Callable[[], None]]


class Alone:
    """A party whose peers say what it says."""

    index = 0

    def exchange(self, payload: bytes) -> tuple[bytes, bytes, bytes]:
        return payload, payload, payload


@dataclass(eq=False)
class Thing:
    """Something stored, as the oracle knows it: by itself.

    Attributes:
        rights: of a table, by client and column.
        atoms: what it derives from: things and their columns, and inputs of clients.
        plain: of a table: sums of all its rows may be told.
    """

    kind: StoredKind
    name: str
    owner: str
    clients: tuple[str, ...]
    word: str
    rights: Mapping[tuple[str, str], frozenset[str]] = field(default_factory=dict)
    atoms: frozenset[Any] = frozenset()
    plain: bool = True
    unit: str = ""
    budget: bool = False
    counted: bool = False

    def used_by(self, client: str) -> bool:
        return client == self.owner or client in self.clients or "*" in self.clients

    def has(self, client: str, column: str, *rights: str) -> bool:
        own = self.rights.get((client, column), frozenset()) if client != self.owner else {"open"}
        return bool({"open", *rights} & own)

    def known_to(self, client: str) -> bool:
        """Whether the client may know which rows there are."""
        return any(self.has(client, column) for column in COLUMNS)


class World:
    """One store, its oracle, and a source of programs.

    Attributes:
        said: how often each kind of program was permitted, and refused.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.store = Store(folder, 0, 64, 16, 99)
        self.live: dict[tuple[str, str], Thing] = {}
        self.past: list[Thing] = []
        self.handles: dict[tuple[str, str], tuple[evaluate.ArraySpec, frozenset[Any]]] = {}
        self.said: dict[tuple[str, bool], int] = {}

    # ---- the oracle

    def permits(self, client: str, use: str, atoms: frozenset[Any]) -> bool:
        """Whether a client may "show", "hold" or "train" on what derives from some atoms."""
        return bool(atoms) and all(self._permits(client, use, *atom) for atom in atoms)

    def _permits(self, client: str, use: str, thing: Thing | str, part: str) -> bool:
        if isinstance(thing, str):
            return thing == client
        if self.live.get((thing.kind.infix, thing.name)) is not thing or not thing.used_by(client):
            return False
        if thing.kind is TABLE:
            more = {"show": (), "hold": GIVEN, "train": ("train", "match")}[use]
            return thing.has(client, part, *more)
        return use != "show" or thing.kind is ARRAY or thing.owner == client

    def loaded(self, thing: Thing, part: str) -> frozenset[Any]:
        if thing.kind is TABLE:
            return frozenset([(thing, part)])
        return (thing.atoms - {(thing.owner, "")}) | {(thing, "")}

    def may_write(self, kind: StoredKind, name: str, client: str, replace: bool) -> bool:
        found = self.live.get((kind.infix, name))
        return found is None or (found.owner == client and replace)

    # ---- what happens

    def one(self, values: Any) -> Any:
        return self.random.choice(list(values))

    def often(self, share: float) -> bool:
        return self.random.random() < share

    def step(self, programs: Sequence[Callable[[World, str], Program]]) -> str:
        """One of some programs; how the worker's decision differs from the oracle's, or ""."""
        name, wanted, text, act = self.one(programs)(self, self.one(CLIENTS))
        try:
            act()
            found, why = True, ""
        except (UsageError, PolicyError) as error:
            found, why = False, str(error)
        self.said[name, found] = self.said.get((name, found), 0) + 1
        return "" if found == wanted else f"{name}: due {wanted}, found {found} {why}: {text}"

    def listed(self) -> str:
        """How a list of what there is differs from what its client may know, or ""."""
        client, kind = self.one(CLIENTS), self.one((TABLE, DATA, ARRAY))
        rows = self.store.for_kind(kind).list_visible(client)
        due = {t.name for t in self.live.values() if t.kind is kind and t.used_by(client)}
        if (found := {row["name"] for row in rows}) != due:
            return f"{client} sees {found} of {kind.noun}s, due {due}"
        for row in rows:
            text = json.dumps(row)
            others = [t for t in self.past if t.word in text and t.word != row["deployment"]]
            if others:
                return f"{client} is told the word of {others[0].name} with {row['name']}"
        return ""

    def keep(self, order: Mapping[str, Any], thing: Thing, derived: Any = frozenset()) -> None:
        """Keeps something as programs do; the worker draws its word."""
        facts = stored_shares.build_facts(order, thing.owner, derived)
        words = {name: WORDS for name in ("x", "y", "value")}
        of = self.store.for_kind(thing.kind)
        stored_shares.store_values(cast(Any, Alone()), of, facts, cast(Any, words))
        self.put(thing)

    def put(self, thing: Thing) -> None:
        thing.word = self.store.for_kind(thing.kind).get_facts(thing.name, thing.owner).deployment
        self.live[thing.kind.infix, thing.name] = thing
        self.past.append(thing)

    def thing(self, kinds: tuple[StoredKind, ...], client: str) -> Thing | None:
        """One to name, which is mostly there and usable, or one of the past."""
        listed = [t for t in self.live.values() if t.kind in kinds]
        if self.often(0.9):
            listed = [t for t in listed if t.used_by(client)] or listed
        if not listed or self.often(0.08):
            listed = [t for t in self.past if t.kind in kinds]
        return self.one(listed) if listed else None

    def found(self, thing: Thing, client: str) -> bool:
        """Whether a client that names a thing and its word gets at it."""
        now = self.live.get((thing.kind.infix, thing.name))
        return now is thing and thing.used_by(client)
