"""A worker's spool: material of future predictions, in files whose keys only this process holds.

An entry is the material of one future graph call (session/material.py): the messages of the peers
in one file, and in memory the masks, the file's key and the places of its messages. It is used at
most once:

* The masks leave the native register with their first use.
* The file is removed, and the folder written to disk, before its first byte is read.
* Keys are never written. After the end of this process, in a restored backup and in a copy, a file
  is undecipherable, and a worker removes all files of the folder when it starts.

A file consists of chunks under AES-256-GCM. A chunk's nonce is its number in the file; the entry,
its binding, the message's place and the chunk's position are authenticated with it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tfe_bench import atomic
from tfe_bench.errors import ConfigError, PolicyError, SecurityError

if TYPE_CHECKING:
    from tfe_bench.protocols.session.material import Material, Place

FOLDER = "ahead"
SUFFIX = ".material"
IDENTIFIER_BYTES = 16
# Largest number of entries of one binding: their identifiers fit a message of the workers.
MAX_ENTRIES = 64
_CHUNK_BYTES = 4 << 20
_TAG_BYTES = 16
# Space that stays free on the disk, and bytes between two checks of it.
MIN_FREE_BYTES = 1 << 30
_CHECKED_BYTES = 64 << 20


def bind_material(facts: Mapping[str, Any]) -> str:
    """Return the digest of everything for which a material is valid, hexadecimal."""
    canonical = json.dumps(["tfe-bench material 1", dict(facts)], sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


@dataclass(eq=False)
class SpoolEntry:
    """The material of one future call at this worker.

    Attributes:
        identifier: drawn by the three workers together.
        name: name of the model.
        binding: result of `bind_material`.
        path: its file.
        key: key of the file.
        places: first chunk's number, offset in the file and bytes of each message.
        bytes: size of the file.
        material: its masks; None until its making has ended.
    """

    identifier: bytes
    name: str
    binding: str
    path: Path
    key: bytes = field(default_factory=lambda: AESGCM.generate_key(256), repr=False)
    places: dict[Place, tuple[int, int, int]] = field(default_factory=dict)
    bytes: int = 0
    material: Material | None = None

    def discard_entry(self) -> None:
        """Wipe the keys and remove the file; the entry is not usable afterwards."""
        if self.material is not None:
            self.material.wipe_masks()
        self.key = b""
        with contextlib.suppress(OSError):
            self.path.unlink()


class SpoolWriter:
    """Writes an entry's messages; `finish_entry` or `discard_entry` ends it."""

    def __init__(self, spool: MaterialSpool, entry: SpoolEntry) -> None:
        self._spool, self.entry = spool, entry
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._stream = os.fdopen(os.open(entry.path, flags, 0o600), "wb", buffering=1 << 20)
        self._cipher = AESGCM(entry.key)
        self._chunks, self._lock, self._checked = 0, threading.Lock(), 0

    def put_message(self, place: Place, data: bytes) -> None:
        """Write a message.

        Raises:
            OSError: the disk does not hold it.
            PolicyError: the spool is full.
        """
        with self._lock:
            first, offset, entry = self._chunks, self.entry.bytes, self.entry
            view = memoryview(data)
            for begin in range(0, max(1, len(data)), _CHUNK_BYTES):
                self._spool.check_room(entry, len(view[begin : begin + _CHUNK_BYTES]))
                associated = _chunk_facts(entry, place, begin, len(data))
                sealed = self._cipher.encrypt(
                    _make_nonce(self._chunks), bytes(view[begin : begin + _CHUNK_BYTES]), associated
                )
                self._stream.write(sealed)
                self._chunks += 1
                entry.bytes += len(sealed)
            if entry.bytes - self._checked >= _CHECKED_BYTES:
                self._checked = entry.bytes
                check_free_space(entry.path.parent)
            entry.places[place] = (first, offset, len(data))

    def finish_entry(self) -> SpoolEntry:
        """Write everything to the file, and return the entry.

        Raises:
            OSError: the disk does not hold it.
        """
        self._stream.close()
        return self.entry

    def discard_entry(self) -> None:
        """Remove what was written."""
        with contextlib.suppress(OSError):
            self._stream.close()
        self._spool.forget_entry(self.entry)
        self.entry.discard_entry()


class SpoolReader:
    """Reads the messages of a burnt entry through a descriptor of its removed file."""

    def __init__(self, entry: SpoolEntry, descriptor: int) -> None:
        self.entry, self._descriptor = entry, descriptor
        self._cipher = AESGCM(entry.key)

    def list_places(self) -> list[Place]:
        """Return the places of all messages."""
        return list(self.entry.places)

    def read_message(self, place: Place) -> bytes:
        """Return a message.

        Raises:
            SecurityError: the file was changed or is incomplete.
        """
        chunk, offset, size = self.entry.places[place]
        parts = []
        for begin in range(0, max(1, size), _CHUNK_BYTES):
            count = min(_CHUNK_BYTES, size - begin) + _TAG_BYTES
            sealed = _read_fully(self._descriptor, count, offset)
            try:
                parts.append(
                    self._cipher.decrypt(
                        _make_nonce(chunk), sealed, _chunk_facts(self.entry, place, begin, size)
                    )
                )
            except InvalidTag:
                raise SecurityError(
                    "A file of material was changed after it was written. Received: "
                    f"{self.entry.path.name}. The job is refused; submit it again.",
                    code="material-damaged",
                    received=self.entry.path.name,
                ) from None
            chunk, offset = chunk + 1, offset + count
        return b"".join(parts) if len(parts) > 1 else parts[0]

    def close_file(self) -> None:
        """Release the file: its space is free again, and its key is wiped."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1
        self.entry.discard_entry()


class MaterialSpool:
    """The entries of one worker.

    Args:
        models: the folder for models, in which the spool has its own; None: nothing is kept.
        max_entries, max_bytes: limits of all entries together; 0 entries: nothing is made.
        member_facts: versions and settings that all members have in common, for bindings.
    """

    def __init__(
        self,
        models: Path | None,
        max_entries: int = 0,
        max_bytes: int = 0,
        member_facts: Mapping[str, Any] | None = None,
    ) -> None:
        self.member_facts = dict(member_facts or {})
        self._folder = None if models is None else models / FOLDER
        self._max_entries, self._max_bytes = max_entries, max_bytes
        self._entries: list[SpoolEntry] = []
        self._lock = threading.RLock()

    def remove_leftovers(self) -> None:
        """Remove the files of an earlier process, whose keys have ended with it.

        Raises:
            ConfigError: the folder cannot be used.
        """
        if self._folder is None or not self._folder.is_dir():
            return
        try:
            for leftover in self._folder.glob(f"*{SUFFIX}"):
                leftover.unlink()
            atomic.sync_folder_to_disk(self._folder)
        except OSError as error:
            raise ConfigError(
                f"The folder for material cannot be used: {self._folder}. Received: "
                f"{error.strerror}. Make the worker its owner.",
                code="file-not-writable",
                operation="models",
                received=error.strerror,
            ) from None

    def begin_entry(self, identifier: bytes, name: str, binding: str) -> SpoolWriter:
        """Return a writer for a new entry.

        Raises:
            PolicyError: the spool is full, or the worker keeps nothing.
            OSError: the file cannot be created.
        """
        with self._lock:
            self.check_entries()
            assert self._folder is not None
            self._folder.mkdir(mode=0o700, exist_ok=True)
            check_free_space(self._folder)
            path = self._folder / f"{identifier.hex()}{SUFFIX}"
            entry = SpoolEntry(identifier, name, binding, path)
            writer = SpoolWriter(self, entry)
            self._entries.append(entry)
            return writer

    def check_allowed(self) -> None:
        """Check that this worker keeps material at all.

        Raises:
            PolicyError: it does not.
        """
        if self._folder is None or self._max_entries == 0:
            raise PolicyError(
                "This worker keeps no material ahead of time. Deploy without it, or its operator "
                "sets max_ahead under [limits] in worker.toml.",
                code="spool-not-allowed",
                operation="max_ahead",
            )

    def check_entries(self) -> None:
        """Check that there is room for one more entry.

        Raises:
            PolicyError: the spool is full.
        """
        if self._folder is None or len(self._entries) >= self._max_entries:
            raise PolicyError(
                f"This worker keeps {self._max_entries if self._folder else 0} entries of material "
                "ahead of time. Received: one more. Its operator sets max_ahead under [limits] in "
                "worker.toml.",
                code="spool-full",
                operation="max_ahead",
                expected=self._max_entries,
            )

    def check_room(self, entry: SpoolEntry, size: int) -> None:
        """Check that a chunk of an entry fits.

        Raises:
            PolicyError: it does not.
        """
        with self._lock:
            used = sum(other.bytes for other in self._entries)
        if used + size + _TAG_BYTES > self._max_bytes:
            raise PolicyError(
                f"This worker keeps {self._max_bytes} bytes of material ahead of time. Received: "
                "more. Its operator sets max_ahead_bytes under [limits] in worker.toml.",
                code="spool-full",
                operation="max_ahead_bytes",
                expected=self._max_bytes,
            )

    def count_ready(self, name: str) -> int:
        """Return the number of complete entries of a model."""
        with self._lock:
            return sum(e.name == name and e.material is not None for e in self._entries)

    def list_ready(self, binding: str) -> list[bytes]:
        """Return the identifiers of the complete entries of a binding, in their order."""
        with self._lock:
            return [
                e.identifier
                for e in self._entries
                if e.binding == binding and e.material is not None
            ]

    def burn_first(self, binding: str) -> SpoolReader | None:
        """Take the first entry of a binding, and remove its file before its first byte is read.

        Returns:
            A reader of the removed file; None if there is no entry, or its file is not usable.
        """
        with self._lock:
            entry = next(
                (e for e in self._entries if e.binding == binding and e.material is not None), None
            )
            if entry is None:
                return None
            self._entries.remove(entry)
        descriptor = -1
        try:
            descriptor = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            remove_burnt_file(entry.path)
        except OSError:
            if descriptor >= 0:
                os.close(descriptor)
            entry.discard_entry()
            return None
        return SpoolReader(entry, descriptor)

    def keep_only(self, name: str, is_kept: Callable[[SpoolEntry], bool]) -> None:
        """Discard the entries of a model that a function does not accept."""
        with self._lock:
            dropped = [e for e in self._entries if e.name == name and not is_kept(e)]
            self._entries = [e for e in self._entries if e not in dropped]
        for entry in dropped:
            entry.discard_entry()

    def drop_entries(self, kind: str, name: str) -> None:
        """Discard the entries of a name whose stored value was replaced or removed.

        Args:
            kind: infix of the kind of the value; only models, whose infix is empty, have entries.
        """
        if not kind:
            self.keep_only(name, lambda entry: False)

    def forget_entry(self, entry: SpoolEntry) -> None:
        """Remove an entry from the list."""
        with self._lock:
            if entry in self._entries:
                self._entries.remove(entry)

    def discard_all(self) -> None:
        """Discard all entries."""
        with self._lock:
            entries, self._entries = self._entries, []
        for entry in entries:
            entry.discard_entry()


def remove_burnt_file(path: Path) -> None:
    """Remove a file, and write its folder to disk.

    Raises:
        OSError: it cannot be removed.
    """
    path.unlink()
    atomic.sync_folder_to_disk(path.parent)


def check_free_space(folder: Path) -> None:
    """Check that the disk keeps some space for its other users.

    Raises:
        PolicyError: it has less.
    """
    free = shutil.disk_usage(folder).free
    if free < MIN_FREE_BYTES:
        raise PolicyError(
            f"Material ahead of time leaves {MIN_FREE_BYTES} bytes of the disk free. Received: "
            f"{free} free bytes. Its operator frees space in the folder for models.",
            code="disk-full",
            received=free,
            expected=MIN_FREE_BYTES,
        )


def _make_nonce(chunk: int) -> bytes:
    return chunk.to_bytes(12, "big")


def _chunk_facts(entry: SpoolEntry, place: Place, begin: int, size: int) -> bytes:
    numbers = (*place, begin, size)
    return entry.identifier + bytes.fromhex(entry.binding) + repr(numbers).encode()


def _read_fully(descriptor: int, count: int, offset: int) -> bytes:
    parts = []
    while count > 0 and (part := os.pread(descriptor, count, offset)):
        parts.append(part)
        count, offset = count - len(part), offset + len(part)
    return b"".join(parts)
