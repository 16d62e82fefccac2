"""Checkpoints of a training: every worker keeps its own shares, and all go on from a common step.

Two files of each name take turns.  A checkpoint is put in place once all three have written it;
should workers be killed between that and the last of them, the one before is still whole at all
three.  What is loaded goes through `refresh` in the new session, so that nothing that is sent there
depends on masks of the old one.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfe_bench.cluster.store import ANOTHERS, NONE, Store
from tfe_bench.cluster.stored import CHECKPOINTS, Facts, Sources, Tensor
from tfe_bench.errors import ConfigError, PolicyError, TfeBenchError, UsageError
from tfe_bench.models import kept
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

_NONE, _GOOD, _DAMAGED, _FOREIGN = range(4)
_RUN, _WHAT = 16, 32
# State, step, run and digest.
_ROW = struct.Struct(f"<BQ{_RUN}s{_WHAT}s")


@dataclass(frozen=True)
class _Row:
    """What a worker says of one of its two files."""

    state: int
    step: int = 0
    run: str = "0" * 32
    what: bytes = bytes(_WHAT)

    def encode(self) -> bytes:
        return _ROW.pack(self.state, self.step, bytes.fromhex(self.run), self.what)


def _decoded(rows: bytes) -> list[_Row]:
    return [_Row(state, at, run.hex(), what) for state, at, run, what in _ROW.iter_unpack(rows)]


class Checkpoints:
    """The checkpoints of one training, at one worker.

    Args:
        name: of the training.
        client: who ordered it: nobody else goes on with it.
        what: public facts that a training must share with its checkpoint (its recipe, its order,
            its number of rows).
        sources: what it trains on.
    """

    def __init__(
        self,
        party: Party,
        store: Store,
        name: str,
        client: str,
        what: Mapping[str, Any],
        sources: Sources,
    ) -> None:
        self._party = party
        self._stores = [store.of(kind) for kind in CHECKPOINTS]
        self._name, self._client = name, client
        self._what = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).digest()
        self._sources = sources
        self._next = 0
        self.last: int | None = None

    def latest(self) -> tuple[int, dict[str, Shared]] | None:
        """The last step that all three workers have, and its values; None where nothing is kept.

        Raises:
            ConfigError: no step is whole at all three: it says which worker lacks its file.
            UsageError: the checkpoint is of another training.
            PolicyError: it is another client's.
            ProtocolError: shares that do not fit each other.
        """
        found = [self._look(store) for store in self._stores]
        told = self._party.exchange(b"".join(row.encode() for row, _, _ in found))
        common = self._common([_decoded(rows) for rows in told])
        if common is None:
            return None
        for i, (row, facts, tensors) in enumerate(found):
            if (row.step, row.run) == (common.step, common.run) and row.state == _GOOD:
                assert facts is not None
                kept.check_same(self._party, self._stores[i], facts)
                self._next = 1 - i
                self.last = common.step
                return common.step, {key: kept.shared_of(t) for key, t in tensors.items()}
        raise AssertionError("unreachable")

    def save(self, step: int, values: Mapping[str, Shared]) -> None:
        """Keeps the values of a step, in place of the older of the two checkpoints.

        Raises:
            ConfigError: they cannot be written.
            PolicyError: there are too many.
        """
        store = self._stores[self._next]
        if self._name not in store.names():  # as many as the operator allows
            store.permit_writing(self._name, self._client, True)
        about = {"step": step, "what": self._what.hex()}
        facts = Facts(self._name, self._client, (), "", about, sources=self._sources)
        kept.write(self._party, store, facts, values)
        self._next = 1 - self._next
        self.last = step

    def forget(self) -> None:
        """Removes both at all three workers."""
        self.permit()
        for store in self._stores:
            store.remove(self._name)
        # A job that is killed from here on must not find old ones beside its own.
        self._party.exchange(b"removed")
        self._next, self.last = 0, None

    def permit(self) -> None:
        """Refuses a client whose training it is not.

        Raises:
            PolicyError: the checkpoint is another client's, at whichever worker.
        """
        foreign = any(self._look(store)[0].state == _FOREIGN for store in self._stores)
        if b"1" in self._party.exchange(b"1" if foreign else b"0"):
            raise self._anothers()

    def _anothers(self) -> PolicyError:
        return PolicyError(
            f"The checkpoint {self._name!r} is another client's. Received: client "
            f"{json.dumps(self._client)[:80]}. Choose another name (--checkpoint)."
        )

    def _look(self, store: Store) -> tuple[_Row, Facts | None, dict[str, Tensor]]:
        found = store.whose(self._name, self._client)
        if found in (NONE, ANOTHERS):
            return _Row(_NONE if found == NONE else _FOREIGN), None, {}
        try:
            facts, tensors = store.load(self._name, self._client)
            step, what = facts.about["step"], bytes.fromhex(facts.about["what"])
            if type(step) is not int or not 0 <= step < 1 << 62 or len(what) != _WHAT:
                raise ValueError("no step")
            if len(bytes.fromhex(facts.deployment)) != _RUN:
                raise ValueError("no run")
        except (TfeBenchError, ValueError, KeyError, TypeError):
            return _Row(_DAMAGED), None, {}
        return _Row(_GOOD, step, facts.deployment, what), facts, tensors

    def _common(self, rows: list[list[_Row]]) -> _Row | None:
        """The checkpoint to go on from: the same decision at all three, who all have `rows`."""
        if any(row.state == _FOREIGN for each in rows for row in each):
            raise self._anothers()
        if all(row.state == _NONE for each in rows for row in each):
            return None
        whole = [{row for row in each if row.state == _GOOD} for each in rows]
        everywhere = set.intersection(*whole)
        if everywhere:
            best = max(everywhere, key=lambda row: row.step)
            if best.what != self._what:
                raise UsageError(
                    f"The checkpoint {self._name!r} is of another training: its model, optimizer, "
                    "batches, order or rows are others, or another version of tfe_bench wrote it. "
                    "Choose another name (--checkpoint), or train from the start (--restart)."
                )
            return best
        newest = max(set.union(*whole), key=lambda row: row.step, default=None)
        lacking = [p for p in range(3) if newest not in whole[p]]
        said = ", ".join(
            f"{'a damaged' if any(r.state == _DAMAGED for r in rows[p]) else 'no'} file at party "
            f"{p}"
            for p in lacking
        )
        step = "" if newest is None else f" of step {newest.step}"
        raise ConfigError(
            f"The checkpoint {self._name!r}{step} is not whole at all three workers. Received: "
            f"{said}. The operator there puts {self._name}.checkpoint*.safetensors back into its "
            "folder for models, or train anew (--restart)."
        )
