"""What a worker keeps between jobs: its parts of named shared values, such as a model's weights.

One file for each name, in the layout of safetensors (a length, a JSON header, the numbers): no
pickle that could run code, no zip whose parts are copied twice, numbers that are read straight
into place, and a format that other tools can check.

Why the parts may lie there and be used again. A stored value is the RSS sharing that its owner
made from fresh seeds, x = m - (l1 + l2). Every party keeps the two fields of its role, which are
uniform to it, and nothing that depends on a session: session keys, masks and dealt material are
made afresh for every job, and no message is ever masked by l1 or l2 themselves. So a second job
on the same sharing is what a second use of one input within a job is: each message hides behind a
pad of its own, and nothing that a party sees twice depends on more than its two fields. A fresh
sharing of zero added at each load would therefore hide nothing more from the one corrupted worker
of the threat model; it would cost 8 bytes per weight each way between the evaluators (2 x 205 MB
for ResNet50). A result goes out under masks of its own job (every layer that multiplies ends in a
truncation under a fresh mask), so that clients learn nothing of the stored masks either.  An owner
who wants new shares deploys again.

No share is ever in a text of this module: errors name files and what to do.

What a client may not use it is not told of: an error about somebody else's name is the one about a
name that there is not.  (That a name is taken shows where another client wants to keep something
under it, as names are there once.)
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import os
import stat
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from tfe_bench import atomic
from tfe_bench.cluster.handles import HandleStore
from tfe_bench.cluster.ledger import MOST, Ledger
from tfe_bench.cluster.locked_folder import LockedFolder
from tfe_bench.cluster.stored import (
    MODEL,
    NAME,
    TABLE,
    Ring,
    StoredFacts,
    StoredKind,
    StoredTensor,
    check_about,
    check_name,
    lies_within,
    parse_tensor_row,
)
from tfe_bench.errors import (
    ConfigError,
    PolicyError,
    SecurityError,
    UsageError,
    VersionMismatch,
    did_you_mean,
)
from tfe_bench.protocols.session import aligned_buffers

# Files of the first two say nothing of sources; the first has no seeds in place of masks.
FORMATS = 1, 2, 3
SUFFIX = ".safetensors"
PARTS = ("m", "l1", "l2")
# Of a file's header, read and written: public facts, their texts escaped twice, and a line for each
# array.
_MOST_HEADER = 64 << 20
# What a worker has under a name, to a client.
NONE, OWN, FOREIGN, UNREADABLE = range(4)


class Store:
    """A worker's folder of shared values.

    Args:
        folder: made (0700) if it does not exist; None if the operator keeps nothing.
        party: which party's parts.
        ring, fractional_bits: of the cluster; a value of another one is refused.
        most: how many names of each kind there may be.
        kind: what the names stand for; `of` gives the others.
        handles: what is held in memory beside the folder.

    Raises:
        ConfigError: the folder cannot be used, or another worker uses it.
        SecurityError: other users of the machine can write there.
    """

    def __init__(
        self,
        folder: Path | None,
        party: int,
        ring: int,
        fractional_bits: int,
        most: int,
        kind: StoredKind = MODEL,
        handles: HandleStore | None = None,
    ) -> None:
        self.party = party
        self.handles = HandleStore(party) if handles is None else handles
        self.kind = kind
        self._folder = folder
        self._precision = {"ring": ring, "fractional_bits": fractional_bits}
        self._max_names = most
        # what a program has made of files, which it looks after
        self.program_cache: dict[Any, Any] = {}
        self._locked_folder = None if folder is None else LockedFolder(folder)
        if folder is not None:
            for leftover in folder.glob(".*.tmp"):  # of a worker that was killed while writing
                with contextlib.suppress(OSError):
                    leftover.unlink()

    def close(self) -> None:
        """Lets another worker have the folder; this one writes no more."""
        if self._locked_folder is not None:
            self._locked_folder.close()

    def for_kind(self, kind: StoredKind) -> Store:
        """The same folder for another kind."""
        other = copy.copy(self)
        other.kind = kind
        return other

    @property
    def folder(self) -> Path:
        """Where the files are.

        Raises:
            PolicyError: this worker keeps none.
        """
        if self._folder is None:
            raise PolicyError(
                f"Party {self.party} keeps no {self.kind.noun}s. Its operator would by adding the "
                'line models = "models" (a folder) to worker.toml.'
            )
        return self._folder

    def list_names(self) -> list[str]:
        """Under which something is kept."""
        end = f"{self.kind.infix}{SUFFIX}"
        candidates = (path.name.removesuffix(end) for path in self.folder.glob(f"*{end}"))
        return sorted(name for name in candidates if NAME.fullmatch(name))

    def get_facts(self, name: str, client: str) -> StoredFacts:
        """What is kept under a name, if the client may use it.

        Raises:
            UsageError: nothing is, or nothing that this client may use.
            PolicyError: nothing is kept at all.
            ConfigError, SecurityError, VersionMismatch: the file is damaged or not of here.
        """
        facts = self._read_facts(name)
        if facts is None or not facts.is_permitted(client):
            raise self.unknown_name_error(name, client)
        return facts

    def get_ownership(self, name: str, client: str) -> int:
        """NONE, OWN, ANOTHERS or UNREADABLE: what is under a name, to a client that would own it.

        Raises:
            PolicyError: nothing is kept at all.
        """
        try:
            facts = self._read_facts(name)
        except (ConfigError, SecurityError):
            return UNREADABLE
        if facts is None:
            return NONE
        return OWN if facts.owner == client else FOREIGN

    def unknown_name_error(self, name: str, client: str) -> UsageError:
        """What a client is told of a name that is nobody's, and of one that it may not use."""
        visible_names = [row["name"] for row in self.list_visible(client)]
        problem = f"Party {self.party} has no {self.kind.noun} {name!r} that this client may use."
        problem += did_you_mean(name, visible_names)
        return UsageError(
            " ".join(filter(None, [problem, self.kind.list_hint, self.kind.access_hint]))
        )

    def list_visible(self, client: str) -> list[dict[str, Any]]:
        """What a client may use, as public facts; a damaged file is one with an "error"."""
        if self._folder is None:
            return []
        rows: list[dict[str, Any]] = []
        for name in self.list_names():
            try:
                facts = self._read_facts(name)
            except (ConfigError, SecurityError):
                continue  # whose it is cannot be known
            if facts is not None and facts.is_permitted(client):
                rows.append(
                    {
                        "name": name,
                        "owner": facts.owner,
                        "deployment": facts.deployment,
                        "clients": list(facts.clients) if client == facts.owner else None,
                        "about": dict(facts.about),
                        **({"spent": self._get_spent(name)} if self.kind == TABLE else {}),
                    }
                )
        return rows

    def _get_spent(self, name: str) -> int:
        """Of a table's privacy budget; all that there can be, where that is not known."""
        try:
            return self.ledger.get_spent(name)
        except SecurityError:
            return MOST

    def permit_writing(self, name: str, client: str, replace: bool) -> None:
        """Permits a client to deploy under a name.

        Raises:
            UsageError: the name is none, or is taken and may be replaced.
            PolicyError: it is somebody else's, or there are too many.
            ConfigError, SecurityError, VersionMismatch: a file of the name cannot be read.
        """
        facts = self._read_facts(name)
        if facts is None:
            if len(self.list_names()) >= self._max_names:
                raise PolicyError(
                    f"Party {self.party} keeps {self._max_names} {self.kind.noun}s. Received: one more. "
                    "Remove one (--remove NAME, where they are listed), or its operator raises "
                    "max_models under [limits] in worker.toml."
                )
            return
        if facts.owner != client:
            raise PolicyError(
                f"The {self.kind.noun} {name!r} is another client's. Received: client "
                f"{json.dumps(client)[:80]}. Only its owner replaces it; choose another name."
            )
        if not replace:
            raise UsageError(
                f"Party {self.party} has a {self.kind.noun} {name!r} already. Choose another "
                "name, or replace it (--replace)."
            )

    # ---- writing

    def prepare_file(self, facts: StoredFacts, tensors: Mapping[str, StoredTensor]) -> PreparedFile:
        """Writes values aside; they are kept once the result is committed.

        Raises:
            UsageError: what is public about them is too long.
            ConfigError: they cannot be written.
        """
        check_about(facts.about)
        path = self._file_path(facts.name)
        blobs: list[memoryview] = []
        layout: dict[str, Any] = {}
        tensor_rows: dict[str, Any] = {}
        offset = 0
        digests = {part: hashlib.sha256() for part in PARTS}
        for name, tensor in tensors.items():
            for part, words in tensor.parts.items():
                if part not in PARTS or words.dtype != np.int64:
                    raise AssertionError("a stored value has fields of int64 words")
                blob = np.ascontiguousarray(words).reshape(-1).view(np.uint8).data
                digests[part].update(blob)
                end = offset + blob.nbytes
                layout[f"{name}/{part}"] = {
                    "dtype": "I64",
                    "shape": list(words.shape),
                    "data_offsets": [offset, end],
                }
                blobs.append(blob)
                offset = end
            tensor_rows[name] = {
                "dealer": tensor.dealer,
                "fractional_bits": tensor.fractional_bits,
                "limbs": tensor.limbs,
                **({} if tensor.shape is None else {"shape": list(tensor.shape)}),
            }
        stored_fields = {part for tensor in tensors.values() for part in tensor.parts}
        metadata = {
            "format": FORMATS[-1],
            "party": self.party,
            "kind": self.kind.infix,
            **self._precision,
            "name": facts.name,
            "owner": facts.owner,
            "clients": list(facts.clients),
            "deployment": facts.deployment,
            "about": dict(facts.about),
            "sources": [source.to_header() for source in sorted(facts.sources)],
            "digests": {part: digests[part].hexdigest() for part in PARTS if part in stored_fields},
            "tensors": tensor_rows,
        }
        # safetensors: metadata are texts
        header = json.dumps(
            {"__metadata__": {"tfe_bench": json.dumps(metadata)}, **layout}
        ).encode()
        header += b" " * (-len(header) % 8)
        if len(header) > _MOST_HEADER:  # or it could never be read, nor its owner be known
            raise UsageError(
                f"The {self.kind.noun} {facts.name!r} has too many arrays to be kept. Received: "
                f"{len(tensors)}, described in {len(header)} bytes; at most {_MOST_HEADER}."
            )

        def write_content(stream: IO[bytes]) -> None:
            stream.write(len(header).to_bytes(8, "little") + header)
            for blob in blobs:
                stream.write(blob)

        try:
            return PreparedFile(path, atomic.write_aside(path, write_content))
        except OSError as error:
            raise ConfigError(
                f"Party {self.party} cannot keep {self.kind.noun} {facts.name!r}. Received: "
                f"{error.strerror} in its folder for models. Its operator makes room there."
            ) from None

    def remove_file(self, name: str) -> None:
        """Removes what is kept under a name, if anything is, also what cannot be read."""
        with contextlib.suppress(FileNotFoundError):
            self._file_path(name).unlink()
            atomic.sync_folder(self.folder)

    @property
    def ledger(self) -> Ledger:
        """What queries have spent of the privacy budgets of tables.

        Raises:
            PolicyError: this worker keeps none.
        """
        return Ledger(self.folder, self.party)

    # ---- reading

    def load(
        self, name: str, client: str, wanted: Collection[str] | None = None
    ) -> tuple[StoredFacts, dict[str, StoredTensor]]:
        """This party's parts of what is kept under a name, checked against their digests.

        Args:
            only: the values that are wanted; None for all.  (All are read for the digests.)

        Raises:
            UsageError, PolicyError, ConfigError, SecurityError, VersionMismatch: as `facts`.
        """
        facts = self.get_facts(name, client)
        path = self._file_path(name)
        digests = {part: hashlib.sha256() for part in PARTS}
        tensors: dict[str, StoredTensor] = {}
        with self._open_file(path) as stream:
            current, layout = self._read_header(path, stream)
            if current.deployment != facts.deployment:
                raise UsageError(f"The {self.kind.noun} {name!r} was just replaced. Ask again.")
            start = stream.tell()
            for key, row in layout["tensors"].items():
                parts: dict[str, Ring] = {}
                for part in PARTS:
                    place = layout["places"].get(f"{key}/{part}")
                    if place is None:
                        continue
                    shape, (begin, _) = place
                    stream.seek(start + begin)
                    words = aligned_buffers.allocate_words(shape)
                    blob = words.reshape(-1).view(np.uint8).data
                    if stream.readinto(blob) != blob.nbytes:  # type: ignore[attr-defined]
                        raise self._damaged_error(path)
                    digests[part].update(blob)
                    parts[part] = words
                if wanted is None or key in wanted:
                    tensors[key] = StoredTensor(parts, **row)
        if any(digests[part].hexdigest() != expected for part, expected in facts.digests.items()):
            raise self._damaged_error(path)
        return facts, tensors

    def file_stamp(self, name: str) -> tuple[int, ...]:
        """Changes whenever the file of a name does; the second number is its size in bytes.

        Raises:
            ConfigError: it cannot be read.
        """
        try:
            status = self._file_path(name).stat()
        except OSError as error:
            raise ConfigError(
                f"{self._describe_file(self._file_path(name))} cannot be read. Received: {error.strerror}. "
                f"{self.kind.remedy}"
            ) from None
        return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns

    # ---- files

    def _file_path(self, name: str) -> Path:
        return self.folder / f"{check_name(name)}{self.kind.infix}{SUFFIX}"

    def _read_facts(self, name: str) -> StoredFacts | None:
        """The facts of a file; None if there is none."""
        path = self._file_path(name)
        if not path.exists():
            return None
        with self._open_file(path) as stream:
            return self._read_header(path, stream)[0]

    def _describe_file(self, path: Path) -> str:
        return f"The {self.kind.noun} file {path.name} of party {self.party}"

    def _damaged_error(self, path: Path) -> ConfigError:
        return ConfigError(
            f"{self._describe_file(path)} is damaged. Its operator removes "
            f"it from the folder for models. {self.kind.remedy}"
        )

    def _open_file(self, path: Path) -> IO[bytes]:
        try:
            # The descriptor is asked, not the name, so that the file checked is the file read.
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                os.close(descriptor)
                raise self._damaged_error(path)
            mode = stat.S_IMODE(status.st_mode)
            if mode & 0o077 or status.st_uid not in (0, os.geteuid()):
                os.close(descriptor)
                raise SecurityError(
                    f"{self._describe_file(path)} is open to other users of its machine. Received: mode "
                    f"{mode:04o}, owner {status.st_uid} (the worker is {os.geteuid()}). Its "
                    "operator makes it the worker's own (chown, chmod 600); if others may have "
                    f"read it, {self.kind.remedy[0].lower()}{self.kind.remedy[1:]}"
                )
            return os.fdopen(descriptor, "rb")
        except OSError as error:
            raise ConfigError(
                f"{self._describe_file(path)} cannot be read. Received: {error.strerror}. {self.kind.remedy}"
            ) from None

    def _read_header(self, path: Path, stream: IO[bytes]) -> tuple[StoredFacts, dict[str, Any]]:
        """The facts, and where each part lies; leaves the stream where the numbers begin."""
        size = os.fstat(stream.fileno()).st_size
        try:
            length = int.from_bytes(stream.read(8), "little")
            if not 2 <= length <= min(_MOST_HEADER, size - 8):
                raise ValueError("a header of another length")
            header = json.loads(stream.read(length))
            metadata = json.loads(header.pop("__metadata__")["tfe_bench"])
            if metadata["format"] not in FORMATS:
                raise VersionMismatch(
                    f"{self._describe_file(path)} is of another version. "
                    f"Received: format {str(metadata['format'])[:20]}, this one reads {FORMATS}. "
                    f"{self.kind.remedy}"
                )
            places = {
                key: (tuple(row["shape"]), row["data_offsets"]) for key, row in header.items()
            }
            for (shape, (begin, end)), row in zip(places.values(), header.values(), strict=True):
                if row["dtype"] != "I64" or not lies_within(shape, begin, end, size - 8 - length):
                    raise ValueError("a part that lies elsewhere")
            facts = StoredFacts.from_header(metadata, metadata["format"] < FORMATS[-1])
            tensors = {
                str(k): parse_tensor_row(
                    row, {p: places[f"{k}/{p}"][0] for p in PARTS if f"{k}/{p}" in places}
                )
                for k, row in metadata["tensors"].items()
            }
            identity = (facts.name, str(metadata.get("kind", "")), metadata["party"])
            precision = {key: metadata[key] for key in self._precision}
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
            raise self._damaged_error(path) from None
        expected_name = path.name.removesuffix(f"{self.kind.infix}{SUFFIX}")
        if identity != (expected_name, self.kind.infix, self.party):
            raise SecurityError(
                f"{self._describe_file(path)} was made for another name or "
                "party. Its operator puts every party's own files back: shares that lie together "
                f"are no secret. {self.kind.remedy}"
            )
        if precision != self._precision:
            raise VersionMismatch(
                f"The {self.kind.noun} {facts.name!r} has another precision than the cluster. "
                f"Received: ring {precision['ring']} with {precision['fractional_bits']} "
                f"fractional bits, the cluster has {self._precision['ring']} with "
                f"{self._precision['fractional_bits']}. {self.kind.remedy}"
            )
        return facts, {"tensors": tensors, "places": places}


@dataclass(frozen=True)
class PreparedFile:
    """A file that is whole but not yet in its place."""

    path: Path
    temporary: Path

    def commit(self) -> None:
        """Puts it there, in place of what was."""
        os.replace(self.temporary, self.path)
        atomic.sync_folder(self.path.parent)

    def discard(self) -> None:
        """Removes it, if it was not committed."""
        with contextlib.suppress(FileNotFoundError):
            self.temporary.unlink()
