"""A worker's store of its parts of named shared values, such as a model's weights.

Each name has one file in the layout of safetensors (a length, a JSON header, the numbers): no
pickle that could run code, no zip whose parts are copied twice.  The numbers are read directly
into place, and other tools can check the format.

Why a worker may store the parts and use them again: a stored value is the RSS sharing that its
owner created from fresh seeds, x = m - (l1 + l2). Every party stores the two fields of its role,
which are uniform to it, and nothing that depends on a session: session keys, masks and correlated
randomness are fresh for every job, and no message is ever masked by l1 or l2 themselves. A second
job on the same sharing is therefore like a second use of one input within a job: each message has
its own pad, and nothing that a party sees twice depends on more than its two fields. A fresh
sharing of zero added at each load would hide nothing more from the one corrupted worker of the
threat model; it would cost 8 bytes per weight each way between the evaluators (2 x 205 MB
for ResNet50). A result is sent under masks of its own job (every layer that multiplies ends in a
truncation under a fresh mask), so that clients learn nothing about the stored masks either.  An
owner who needs new shares deploys again.

No text of this module contains a share: errors name files and remedies.

A client does not learn about values that it may not use: the error for another client's name
equals that for a name that does not exist.  (A name that is in use is visible to another client
that stores a value under it, as names are unique.)
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import os
import stat
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from tfe_bench import atomic
from tfe_bench.cluster import store_layout
from tfe_bench.cluster.handles import HandleStore
from tfe_bench.cluster.job_use import JobUse
from tfe_bench.cluster.ledger import MOST, PrivacyLedger
from tfe_bench.cluster.locked_folder import LockedFolder
from tfe_bench.cluster.spool import MaterialSpool
from tfe_bench.cluster.store_layout import PARTS, PreparedStoreFile
from tfe_bench.cluster.stored import (
    MODEL,
    NAME,
    TABLE,
    Ring,
    StoredFacts,
    StoredKind,
    StoredTensor,
    check_name,
    check_public_facts,
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

# The first two formats have no sources; the first has no seeds in place of masks.
FORMATS = 1, 2, 3
SUFFIX = ".safetensors"
# Bytes of a file's header, read and written: public facts, with texts escaped twice, and a row for
# each array.
_MOST_HEADER = 64 << 20
# State of a name for a client: free, its own, another client's, or unreadable.
NONE, OWN, FOREIGN, UNREADABLE = range(4)


class ShareStore:
    """A worker's folder of shared values.

    Args:
        folder: created (0700) if it does not exist; None if the operator stores nothing.
        party: the party whose parts are stored.
        ring, fractional_bits: of the cluster; a value with others is rejected.
        most: the number of names of each kind.
        kind: the kind of the names; `for_kind` returns the other kinds.
        handles: values that are held in memory, in addition to the folder.
        spool: material of future predictions of the stored models.

    Raises:
        ConfigError: the folder is not usable, or another worker uses it.
        SecurityError: other users of the machine can write to it.
    """

    def __init__(
        self,
        folder: Path | None,
        party: int,
        ring: int,
        fractional_bits: int,
        max_names: int,
        kind: StoredKind = MODEL,
        handles: HandleStore | None = None,
        spool: MaterialSpool | None = None,
    ) -> None:
        self.party, self.spool = party, spool or MaterialSpool(None)
        self.handles = HandleStore(party) if handles is None else handles
        self.kind = kind
        self.use: JobUse | None = None  # records what one job uses
        self._folder = folder
        self._precision = {"ring": ring, "fractional_bits": fractional_bits}
        self._max_names = max_names
        self.program_cache: dict[Any, Any] = {}  # computed from files, managed by programs
        self._locked_folder = None if folder is None else LockedFolder(folder)
        if folder is not None:
            self.spool.remove_leftovers()
            for leftover in folder.glob(".*.tmp"):  # of a worker that was killed during a write
                with contextlib.suppress(OSError):
                    leftover.unlink()

    def close(self) -> None:
        """Release the folder to another worker; this one writes no more."""
        self.spool.discard_all()
        if self._locked_folder is not None:
            self._locked_folder.close()

    def for_kind(self, kind: StoredKind) -> ShareStore:
        """Return the same folder for another kind."""
        other = copy.copy(self)
        other.kind = kind
        return other

    @property
    def folder(self) -> Path:
        """The folder of the files.

        Raises:
            PolicyError: this worker stores nothing.
        """
        if self._folder is None:
            raise PolicyError(
                f"Party {self.party} stores no {self.kind.noun}s. Its operator would allow it by "
                'the line models = "models" (a folder) in worker.toml.',
                code="storage-not-configured",
                party=self.party,
            )
        return self._folder

    def list_names(self) -> list[str]:
        """List the stored names of this kind."""
        end = f"{self.kind.infix}{SUFFIX}"
        candidates = (path.name.removesuffix(end) for path in self.folder.glob(f"*{end}"))
        return sorted(name for name in candidates if NAME.fullmatch(name))

    def get_facts(self, name: str, client: str) -> StoredFacts:
        """Return the public facts of a name, if the client may use it.

        Raises:
            UsageError: the name does not exist, or this client may not use it.
            PolicyError: this worker stores nothing.
            ConfigError, SecurityError, VersionMismatch: the file is damaged or belongs elsewhere.
        """
        facts = self._read_facts(name)
        if facts is None or not facts.is_permitted(client):
            raise self.unknown_name_error(name, client)
        self.record_use(facts, facts.describe_right(client))
        return facts

    def record_use(self, facts: StoredFacts, right: str) -> None:
        """Record that the job uses a stored value, and its right to it."""
        if self.use is not None:
            self.use.record_stored(self.kind.noun, facts, right)

    def get_ownership(self, name: str, client: str) -> int:
        """Return NONE, OWN, FOREIGN or UNREADABLE: the state of a name for a new owner.

        Raises:
            PolicyError: this worker stores nothing.
        """
        try:
            facts = self._read_facts(name)
        except (ConfigError, SecurityError):
            return UNREADABLE
        if facts is None:
            return NONE
        return OWN if facts.owner == client else FOREIGN

    def unknown_name_error(self, name: str, client: str) -> UsageError:
        """Return the error for a name that does not exist or that the client may not use."""
        visible_names = [row["name"] for row in self.list_visible(client)]
        problem = f"Party {self.party} has no {self.kind.noun} {name!r} that this client may use."
        problem += did_you_mean(name, visible_names)
        return UsageError(
            " ".join(filter(None, [problem, self.kind.list_hint, self.kind.access_hint])),
            code="name-not-found",
            operation=name,
            party=self.party,
        )

    def list_visible(self, client: str) -> list[dict[str, Any]]:
        """List the values that a client may use, as public facts; omit damaged files."""
        if self._folder is None:
            return []
        rows: list[dict[str, Any]] = []
        for name in self.list_names():
            try:
                facts = self._read_facts(name)
            except (ConfigError, SecurityError):
                continue  # its owner is unknown
            if facts is not None and facts.is_permitted(client):
                rows.append(
                    {
                        "name": name,
                        "owner": facts.owner,
                        "deployment": facts.deployment,
                        "clients": list(facts.clients) if client == facts.owner else None,
                        "about": dict(facts.about),
                        **({"spent": self._get_spent(name)} if self.kind == TABLE else {}),
                        **({"ready": self.spool.count_ready(name)} if self.kind == MODEL else {}),
                    }
                )
        return rows

    def _get_spent(self, name: str) -> int:
        """Return the spent privacy loss of a table; the maximum if it is not known."""
        with contextlib.suppress(SecurityError):
            return self.ledger.get_spent(name)
        return MOST

    def permit_writing(self, name: str, client: str, replace: bool) -> None:
        """Permit a client to store a value under a name.

        Raises:
            UsageError: the name is malformed, or is in use and may be replaced.
            PolicyError: it is another client's, or there are too many names.
            ConfigError, SecurityError, VersionMismatch: a file of the name cannot be read.
        """
        facts = self._read_facts(name)
        if facts is None:
            if len(self.list_names()) >= self._max_names:
                raise PolicyError(
                    f"Party {self.party} stores {self._max_names} {self.kind.noun}s. Received: "
                    "one more. Remove one (--remove NAME, with the command that lists them), or "
                    "its operator raises max_models under [limits] in worker.toml.",
                    code="too-many-names",
                    expected=self._max_names,
                    party=self.party,
                )
            return
        if facts.owner != client:
            raise PolicyError(
                f"The {self.kind.noun} {name!r} is another client's. Received: client "
                f"{json.dumps(client)[:80]}. Only its owner replaces it; choose another name.",
                code="name-of-another-client",
                operation=name,
                party=self.party,
            )
        if not replace:
            raise UsageError(
                f"Party {self.party} has a {self.kind.noun} {name!r} already. Choose another "
                "name, or replace it (--replace).",
                code="name-in-use",
                operation=name,
                party=self.party,
            )

    # ---- writing

    def prepare_file(
        self, facts: StoredFacts, tensors: Mapping[str, StoredTensor]
    ) -> PreparedStoreFile:
        """Write values to a temporary file; `PreparedStoreFile.commit` stores them.

        Raises:
            UsageError: the public facts are too long.
            ConfigError: the file cannot be written.
        """
        check_public_facts(facts.about)
        path = self._file_path(facts.name)
        layout = store_layout.lay_out_stored_values(tensors)
        metadata = {
            "format": FORMATS[-1],
            "party": self.party,
            "kind": self.kind.infix,
            **self._precision,
            **facts.to_header(),
            "digests": layout.digests,
            "tensors": layout.tensor_rows,
        }
        # safetensors: metadata are texts
        header = json.dumps(
            {"__metadata__": {"tfe_bench": json.dumps(metadata)}, **layout.places}
        ).encode()
        header += b" " * (-len(header) % 8)
        if len(header) > _MOST_HEADER:  # a longer header could not be read
            raise UsageError(
                f"The {self.kind.noun} {facts.name!r} has too many arrays to be stored. Received: "
                f"{len(tensors)}, described in {len(header)} bytes; at most {_MOST_HEADER}.",
                code="too-large",
                operation=facts.name,
                received=len(header),
                expected=_MOST_HEADER,
            )

        def write_content(stream: IO[bytes]) -> None:
            stream.write(len(header).to_bytes(8, "little") + header)
            for blob in layout.blobs:
                stream.write(blob)

        try:
            return PreparedStoreFile(path, atomic.write_temporary_file(path, write_content))
        except OSError as error:
            raise ConfigError(
                f"Party {self.party} cannot store {self.kind.noun} {facts.name!r}. Received: "
                f"{error.strerror} in its folder for models. Its operator frees space there.",
                code="file-not-writable",
                operation=facts.name,
                received=error.strerror,
                party=self.party,
            ) from None

    def remove_file(self, name: str) -> None:
        """Remove the file of a name, if it exists, even if it cannot be read."""
        with contextlib.suppress(FileNotFoundError):
            self._file_path(name).unlink()
            atomic.sync_folder_to_disk(self.folder)

    @property
    def ledger(self) -> PrivacyLedger:
        """The record of spent privacy loss of tables.

        Raises:
            PolicyError: this worker stores nothing.
        """
        return PrivacyLedger(self.folder, self.party)

    # ---- reading

    def load(
        self, name: str, client: str, wanted_keys: Collection[str] | None = None
    ) -> tuple[StoredFacts, dict[str, StoredTensor]]:
        """Load this party's parts of a name, checked against their digests.

        Args:
            wanted_keys: names of the wanted values; None for all.  (All are read for the digests.)

        Raises:
            UsageError, PolicyError, ConfigError, SecurityError, VersionMismatch: as `get_facts`.
        """
        facts = self.get_facts(name, client)
        path = self._file_path(name)
        digests = {part: hashlib.sha256() for part in PARTS}
        tensors: dict[str, StoredTensor] = {}
        with self._open_file(path) as stream:
            current, layout = self._read_header(path, stream)
            if current.deployment != facts.deployment:
                raise UsageError(
                    f"The {self.kind.noun} {name!r} was just replaced. Ask again.",
                    code="name-replaced",
                    operation=name,
                    party=self.party,
                )
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
                if wanted_keys is None or key in wanted_keys:
                    tensors[key] = StoredTensor(parts, **row)
        if any(digests[part].hexdigest() != expected for part, expected in facts.digests.items()):
            raise self._damaged_error(path)
        return facts, tensors

    def file_stamp(self, name: str) -> tuple[int, ...]:
        """Return numbers that change with the file of a name; the second is its size in bytes.

        Raises:
            ConfigError: it cannot be read.
        """
        try:
            status = self._file_path(name).stat()
        except OSError as error:
            raise ConfigError(
                f"{self._describe_file(self._file_path(name))} cannot be read. Received: "
                f"{error.strerror}. {self.kind.remedy}",
                code="file-not-readable",
                received=error.strerror,
                party=self.party,
            ) from None
        return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns

    # ---- files

    def _file_path(self, name: str) -> Path:
        return self.folder / f"{check_name(name)}{self.kind.infix}{SUFFIX}"

    def _read_facts(self, name: str) -> StoredFacts | None:
        """Return the facts of a file; None if it does not exist."""
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
            f"it from the folder for models. {self.kind.remedy}",
            code="file-damaged",
            operation=path.name,
            party=self.party,
        )

    def _open_file(self, path: Path) -> IO[bytes]:
        try:
            # The check uses the descriptor, not the name, so that the checked file is the one that
            # is read.
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                os.close(descriptor)
                raise self._damaged_error(path)
            mode = stat.S_IMODE(status.st_mode)
            if mode & 0o077 or status.st_uid not in (0, os.geteuid()):
                os.close(descriptor)
                raise SecurityError(
                    f"{self._describe_file(path)} is open to other users of its machine. Received: "
                    f"mode {mode:04o}, owner {status.st_uid} (the worker is {os.geteuid()}). Its "
                    "operator makes it the worker's own (chown, chmod 600); if others may have "
                    f"read it, {self.kind.remedy[0].lower()}{self.kind.remedy[1:]}",
                    code="insecure-permissions",
                    received=f"mode {mode:04o}, owner {status.st_uid}",
                    party=self.party,
                )
            return os.fdopen(descriptor, "rb")
        except OSError as error:
            raise ConfigError(
                f"{self._describe_file(path)} cannot be read. Received: {error.strerror}. "
                f"{self.kind.remedy}",
                code="file-not-readable",
                received=error.strerror,
                party=self.party,
            ) from None

    def _read_header(self, path: Path, stream: IO[bytes]) -> tuple[StoredFacts, dict[str, Any]]:
        """Return the facts and each part's place; leave the stream at the start of the numbers."""
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
                    f"{self.kind.remedy}",
                    code="format-version",
                    received=str(metadata["format"])[:20],
                    party=self.party,
                )
            places = store_layout.parse_stored_places(header, size - 8 - length)
            facts = StoredFacts.from_metadata(metadata, metadata["format"] < FORMATS[-1])
            tensors = store_layout.parse_stored_tensors(metadata["tensors"], places)
            identity = (facts.name, str(metadata.get("kind", "")), metadata["party"])
            precision = {key: metadata[key] for key in self._precision}
        except (UsageError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise self._damaged_error(path) from None
        expected_name = path.name.removesuffix(f"{self.kind.infix}{SUFFIX}")
        if identity != (expected_name, self.kind.infix, self.party):
            raise SecurityError(
                f"{self._describe_file(path)} belongs to another name or party. Its operator "
                "restores every party's own files: shares of two parties in one place are no "
                f"secret. {self.kind.remedy}",
                code="file-of-another-party",
                party=self.party,
            )
        if precision != self._precision:
            raise VersionMismatch(
                f"The {self.kind.noun} {facts.name!r} has another precision than the cluster. "
                f"Received: ring {precision['ring']} with {precision['fractional_bits']} "
                f"fractional bits, the cluster has {self._precision['ring']} with "
                f"{self._precision['fractional_bits']}. {self.kind.remedy}",
                code="precision-mismatch",
                operation=facts.name,
                party=self.party,
            )
        return facts, {"tensors": tensors, "places": places}
