"""Training checkpoints: each worker stores its own shares, and all continue from a common step.

Two files of each name alternate.  A worker puts a checkpoint in place only after all three workers
have written it.  If workers are killed between the first and the last of these renames, the
previous checkpoint is still complete at all three workers.  Loaded values go through `refresh` in
the new session, so that no message of that session depends on masks of the old session.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfe_bench.cluster import stored_shares
from tfe_bench.cluster.store import FOREIGN, NONE, ShareStore
from tfe_bench.cluster.stored import CHECKPOINTS, Sources, StoredFacts, StoredTensor
from tfe_bench.errors import ConfigError, PolicyError, TfeBenchError, UsageError
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

_NONE, _GOOD, _DAMAGED, _FOREIGN = range(4)
_RUN_BYTES, _DIGEST_BYTES = 16, 32
# Fields: state, step, run and digest.
_REPORT_FORMAT = struct.Struct(f"<BQ{_RUN_BYTES}s{_DIGEST_BYTES}s")


@dataclass(frozen=True)
class _CheckpointFileReport:
    """A worker's report on one of its two files."""

    state: int
    step: int = 0
    run: str = "0" * 32
    digest: bytes = bytes(_DIGEST_BYTES)

    def to_bytes(self) -> bytes:
        return _REPORT_FORMAT.pack(self.state, self.step, bytes.fromhex(self.run), self.digest)


def _decode_reports(encoded: bytes) -> list[_CheckpointFileReport]:
    return [
        _CheckpointFileReport(state, at, run.hex(), digest)
        for state, at, run, digest in _REPORT_FORMAT.iter_unpack(encoded)
    ]


class Checkpoints:
    """The checkpoints of one training, at one worker.

    Args:
        name: name of the training.
        client: the client that ordered the training; no other client may continue it.
        training_facts: public facts that a training must share with its checkpoint: its recipe, the
            order of its rows, the number of its rows.
        sources: the sources of the training data.
    """

    def __init__(
        self,
        party: Party,
        store: ShareStore,
        name: str,
        client: str,
        training_facts: Mapping[str, Any],
        sources: Sources,
    ) -> None:
        self._party = party
        self._stores = [store.for_kind(kind) for kind in CHECKPOINTS]
        self._name, self._client = name, client
        self._digest = hashlib.sha256(json.dumps(training_facts, sort_keys=True).encode()).digest()
        self._sources = sources
        self._next = 0
        self.last_step: int | None = None

    def load_latest(self) -> tuple[int, dict[str, Shared]] | None:
        """Load the last step that all three workers have; return None if no file exists.

        Returns:
            The step and its values by name.

        Raises:
            ConfigError: no step is complete at all three workers; the text names the incomplete
                workers.
            UsageError: the checkpoint belongs to another training.
            PolicyError: the checkpoint belongs to another client.
            ProtocolError: the workers' shares do not match.
        """
        files = [self._read_file(store) for store in self._stores]
        encoded_reports = self._party.exchange_facts(
            f"the checkpoint {self._name!r}", b"".join(row.to_bytes() for row, _, _ in files)
        )
        common = self._choose_common([_decode_reports(rows) for rows in encoded_reports])
        if common is None:
            return None
        for i, (row, facts, tensors) in enumerate(files):
            if (row.step, row.run) == (common.step, common.run) and row.state == _GOOD:
                assert facts is not None
                store = self._stores[i]
                stored_shares.check_same(self._party, store, facts)
                store.record_use(facts, facts.describe_right(self._client))
                self._next = 1 - i
                self.last_step = common.step
                return common.step, {
                    key: stored_shares.stored_to_shared(t) for key, t in tensors.items()
                }
        raise AssertionError("unreachable")

    def save_step(self, step: int, values: Mapping[str, Shared]) -> None:
        """Store the values of a step in place of the older of the two checkpoints.

        Raises:
            ConfigError: the values cannot be written.
            PolicyError: the store already holds as many checkpoints as its operator allows.
        """
        store = self._stores[self._next]
        if self._name not in store.list_names():  # the operator limits the number of names
            store.permit_writing(self._name, self._client, True)
        about = {"step": step, "what": self._digest.hex()}
        facts = StoredFacts(self._name, self._client, (), "", about, sources=self._sources)
        stored_shares.store_share_values(self._party, store, facts, values)
        self._next = 1 - self._next
        self.last_step = step

    def remove_files(self) -> None:
        """Remove both files at all three workers."""
        self.check_owner()
        for store in self._stores:
            store.remove_file(self._name)
        # A job that is killed after this point must not mix old files with its new ones.
        self._party.exchange(b"removed")
        self._next, self.last_step = 0, None

    def check_owner(self) -> None:
        """Reject a client that does not own this training.

        Raises:
            PolicyError: at some worker, the checkpoint belongs to another client.
        """
        foreign = any(self._read_file(store)[0].state == _FOREIGN for store in self._stores)
        subject = f"the owner of checkpoint {self._name!r}"
        if b"1" in self._party.exchange_facts(subject, b"1" if foreign else b"0"):
            raise self._ownership_error()

    def _ownership_error(self) -> PolicyError:
        return PolicyError(
            f"The checkpoint {self._name!r} belongs to another client. Received: client "
            f"{json.dumps(self._client)[:80]}. Choose another name (--checkpoint).",
            code="not-owner",
            operation=self._name,
        )

    def _read_file(
        self, store: ShareStore
    ) -> tuple[_CheckpointFileReport, StoredFacts | None, dict[str, StoredTensor]]:
        ownership = store.get_ownership(self._name, self._client)
        if ownership in (NONE, FOREIGN):
            return _CheckpointFileReport(_NONE if ownership == NONE else _FOREIGN), None, {}
        # (its use is not recorded yet: the other workers may lack this step)
        untracked = stored_shares.track_store_use(store, None)
        try:
            facts, tensors = untracked.load(self._name, self._client)
            step, digest = facts.about["step"], bytes.fromhex(facts.about["what"])
            if type(step) is not int or not 0 <= step < 1 << 62 or len(digest) != _DIGEST_BYTES:
                raise ValueError("no step")
            if len(bytes.fromhex(facts.deployment)) != _RUN_BYTES:
                raise ValueError("no run")
        except (TfeBenchError, ValueError, KeyError, TypeError):
            return _CheckpointFileReport(_DAMAGED), None, {}
        return _CheckpointFileReport(_GOOD, step, facts.deployment, digest), facts, tensors

    def _choose_common(
        self, reports: list[list[_CheckpointFileReport]]
    ) -> _CheckpointFileReport | None:
        """Choose the checkpoint to continue from; all workers hold `reports` and decide alike."""
        if any(row.state == _FOREIGN for each in reports for row in each):
            raise self._ownership_error()
        if all(row.state == _NONE for each in reports for row in each):
            return None
        valid_reports = [{row for row in each if row.state == _GOOD} for each in reports]
        common_reports = set.intersection(*valid_reports)
        if common_reports:
            best = max(common_reports, key=lambda row: row.step)
            if best.digest != self._digest:
                raise UsageError(
                    f"The checkpoint {self._name!r} belongs to another training: its model, "
                    "optimizer, batches, order or rows differ, or another version of tfe_bench "
                    "wrote it. Choose another name (--checkpoint), or train from the start "
                    "(--restart).",
                    code="checkpoint-mismatch",
                    operation=self._name,
                )
            return best
        newest = max(set.union(*valid_reports), key=lambda row: row.step, default=None)
        incomplete_parties = [p for p in range(3) if newest not in valid_reports[p]]
        problems = ", ".join(
            f"{'a damaged' if any(r.state == _DAMAGED for r in reports[p]) else 'no'} file "
            f"at party {p}"
            for p in incomplete_parties
        )
        step = "" if newest is None else f" of step {newest.step}"
        raise ConfigError(
            f"The checkpoint {self._name!r}{step} is not complete at all three workers. "
            f"Received: {problems}. Ask the operator there to restore "
            f"{self._name}.checkpoint*.safetensors in its folder for models, or train from the "
            "start (--restart).",
            code="checkpoint-incomplete",
            operation=self._name,
            received=problems,
        )
