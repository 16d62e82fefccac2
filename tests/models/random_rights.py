"""Random programs over stored items, and the decision of the documented rules about each.

A `World` is one worker's store that random clients fill: tables with random rights, aligned and
provided data sets, stored arrays, handles. Items are removed, and other clients reuse names. Each
decision of the worker is compared with that of a small oracle, which identifies items directly, not
by names and deployments. Clients are patched: they use deployments of earlier items, handles of
other clients, and hidden columns.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from tfe_bench.arrays.array_spec import ArraySpec
from tfe_bench.cluster import stored_shares
from tfe_bench.cluster.store import ShareStore
from tfe_bench.cluster.stored import ARRAY, DATA, TABLE, StoredKind
from tfe_bench.errors import PolicyError, UsageError
from tfe_bench.protocols.session.sharing import Shared

CLIENTS = ("alice", "bob", "mallory")
COLUMNS = ("k", "a", "b")
ROWS = 12
GIVEN = ("open", "group", "aggregate", "quantile", "filter", "match", "train")
WORDS = Shared(np.zeros(1, np.int64), np.zeros(1, np.int64), None)
# A description, whether the rules permit it, a text for people, and the action.
Program = tuple[str, bool, Any, Callable[[], None]]


class LoneParty:
    """A party whose peers send the same messages as itself."""

    index = 0

    def exchange(self, payload: bytes) -> tuple[bytes, bytes, bytes]:
        return payload, payload, payload

    def exchange_facts(self, subject: str, payload: bytes) -> tuple[bytes, bytes, bytes]:
        return self.exchange(payload)


@dataclass(eq=False)
class StoredItem:
    """A stored item of the oracle, with its identity.

    Attributes:
        rights: of a table, by client and column.
        atoms: its sources: items and their columns, and inputs of clients.
        plain: of a table: whether sums of all its rows may be revealed.
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

    def has_right(self, client: str, column: str, *rights: str) -> bool:
        own = self.rights.get((client, column), frozenset()) if client != self.owner else {"open"}
        return bool({"open", *rights} & own)

    def known_to(self, client: str) -> bool:
        """Return whether the client may know which rows exist."""
        return any(self.has_right(client, column) for column in COLUMNS)


class World:
    """One store, its oracle, and a source of programs.

    Attributes:
        said: number of permitted and refused programs of each kind.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.store = ShareStore(folder, 0, 64, 16, 99)
        self.live: dict[tuple[str, str], StoredItem] = {}
        self.past: list[StoredItem] = []
        self.handles: dict[tuple[str, str], tuple[ArraySpec, frozenset[Any]]] = {}
        self.said: dict[tuple[str, bool], int] = {}

    # ---- the oracle

    def permits_use(self, client: str, use: str, atoms: frozenset[Any]) -> bool:
        """Return whether a client may "show", "hold" or "train" on a value with these atoms."""
        return bool(atoms) and all(self._permits_item(client, use, *atom) for atom in atoms)

    def _permits_item(self, client: str, use: str, thing: StoredItem | str, part: str) -> bool:
        if isinstance(thing, str):
            return thing == client
        if self.live.get((thing.kind.infix, thing.name)) is not thing or not thing.used_by(client):
            return False
        if thing.kind is TABLE:
            more = {"show": (), "hold": GIVEN, "train": ("train", "match")}[use]
            return thing.has_right(client, part, *more)
        return use != "show" or thing.kind is ARRAY or thing.owner == client

    def loaded_atoms(self, thing: StoredItem, part: str) -> frozenset[Any]:
        if thing.kind is TABLE:
            return frozenset([(thing, part)])
        return (thing.atoms - {(thing.owner, "")}) | {(thing, "")}

    def may_write(self, kind: StoredKind, name: str, client: str, replace: bool) -> bool:
        item = self.live.get((kind.infix, name))
        return item is None or (item.owner == client and replace)

    # ---- events

    def draw_one(self, values: Any) -> Any:
        return self.random.choice(list(values))

    def draw_chance(self, share: float) -> bool:
        return self.random.random() < share

    def run_step(self, programs: Sequence[Callable[[World, str], Program]]) -> str:
        """Run a random program; return a difference between worker and oracle, or ""."""
        name, is_permitted, text, act = self.draw_one(programs)(self, self.draw_one(CLIENTS))
        try:
            act()
            is_accepted, why = True, ""
        except (UsageError, PolicyError) as error:
            is_accepted, why = False, str(error)
        self.said[name, is_accepted] = self.said.get((name, is_accepted), 0) + 1
        return (
            ""
            if is_accepted == is_permitted
            else f"{name}: due {is_permitted}, found {is_accepted} {why}: {text}"
        )

    def check_listing(self) -> str:
        """Return how a list of items differs from the items that its client may see, or ""."""
        client, kind = self.draw_one(CLIENTS), self.draw_one((TABLE, DATA, ARRAY))
        rows = self.store.for_kind(kind).list_visible(client)
        due = {t.name for t in self.live.values() if t.kind is kind and t.used_by(client)}
        if (listed_names := {row["name"] for row in rows}) != due:
            return f"{client} sees {listed_names} of {kind.noun}s, due {due}"
        for row in rows:
            text = json.dumps(row)
            others = [t for t in self.past if t.word in text and t.word != row["deployment"]]
            if others:
                return f"{client} is told the word of {others[0].name} with {row['name']}"
        return ""

    def store_item(
        self, order: Mapping[str, Any], thing: StoredItem, derived: Any = frozenset()
    ) -> None:
        """Store an item as programs do; the worker draws its deployment."""
        facts = stored_shares.build_stored_facts(order, thing.owner, derived)
        words = {name: WORDS for name in ("x", "y", "value")}
        of = self.store.for_kind(thing.kind)
        stored_shares.store_share_values(cast(Any, LoneParty()), of, facts, cast(Any, words))
        self.put_item(thing)

    def put_item(self, thing: StoredItem) -> None:
        thing.word = self.store.for_kind(thing.kind).get_facts(thing.name, thing.owner).deployment
        self.live[thing.kind.infix, thing.name] = thing
        self.past.append(thing)

    def draw_item(self, kinds: tuple[StoredKind, ...], client: str) -> StoredItem | None:
        """Return an item to name: mostly an existing, usable one, sometimes a removed one."""
        listed = [t for t in self.live.values() if t.kind in kinds]
        if self.draw_chance(0.9):
            listed = [t for t in listed if t.used_by(client)] or listed
        if not listed or self.draw_chance(0.08):
            listed = [t for t in self.past if t.kind in kinds]
        return self.draw_one(listed) if listed else None

    def can_access(self, thing: StoredItem, client: str) -> bool:
        """Return whether a client that names an item and its deployment may access it."""
        now = self.live.get((thing.kind.infix, thing.name))
        return now is thing and thing.used_by(client)
