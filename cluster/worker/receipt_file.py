"""A worker's receipts files: appended, rotated, and continued after a restart.

One file is written at a time.  Its first line is a start line, and names its number.  A worker
that is stopped during a write leaves a half-written last line: the next one removes it, and its
start line states the number of removed bytes.  A line is in the system's cache before its job's
results leave the worker, and on the disk about a second later: a loss of power may lose the last
lines.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from pathlib import Path

from tfe_bench import atomic
from tfe_bench.cluster.locked_folder import LockedFolder
from tfe_bench.cluster.receipts import MOST_LINE, NO_LINE, Line, digest_bytes, parse_line
from tfe_bench.errors import ConfigError, DataError, SecurityError

_NAME = re.compile(r"receipts-([0-9]{6,9})\.jsonl", re.ASCII)
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


def list_receipt_files(folder: Path) -> list[Path]:
    """Return the receipts files of a folder in their order."""
    numbered = ((_NAME.fullmatch(path.name), path) for path in folder.iterdir())
    return [path for _, path in sorted((int(m[1]), path) for m, path in numbered if m)]


class ReceiptFile:
    """The end of a worker's chain of lines, and the file to which the next one is appended.

    Args:
        party: the worker's party, for error texts.
        folder: created (0700) if it does not exist; None keeps no line.
        most_bytes: a file of this size is followed by another one.
        most_files: the oldest file is removed when there are more.

    Attributes:
        number, before, at: of the last line: its number, its digest and its time.
        dropped: bytes of a half-written line that was removed.

    Raises:
        ConfigError, SecurityError: the folder or a file is unusable, or other users can write to
            it; the last line is no receipt.
    """

    def __init__(self, party: int, folder: Path | None, most_bytes: int, most_files: int) -> None:
        self._party, self._folder = party, folder
        self._most_bytes, self._most_files = most_bytes, most_files
        self.number, self.before, self.at, self.dropped = 0, NO_LINE, 0, 0
        self._descriptor, self._index, self._size = -1, 0, 0
        self._is_synced, self._is_closed = True, False
        self._lock: LockedFolder | None = None
        if folder is None:
            return
        self._lock = LockedFolder(folder, "receipts")
        try:
            self._continue_chain(list_receipt_files(folder))
        except (ConfigError, SecurityError):
            self.close_file()
            raise
        except OSError as error:
            self.close_file()
            raise ConfigError(
                f"The receipts in {folder} cannot be used. Received: {error.strerror}. Correct "
                "the line receipts = ... in worker.toml.",
                code="file-not-writable",
                operation="receipts",
                received=error.strerror,
            ) from None

    @property
    def file_number(self) -> int:
        """The number of the present file, 0 before the first one."""
        return self._index

    @property
    def is_full(self) -> bool:
        """True if the next line begins another file."""
        is_written = self._folder is not None and not self._is_closed
        return is_written and (self._descriptor < 0 or self._size >= self._most_bytes)

    @property
    def is_empty(self) -> bool:
        """True if the present file has no start line yet."""
        return self._descriptor >= 0 and self._size == 0

    def _continue_chain(self, files: list[Path]) -> None:
        """Find the last line; remove what a stopped worker has written of another one."""
        while files:
            path = files.pop()
            first, tail = self._open_file(path)
            complete, end, partial = tail.rpartition(b"\n")
            if end:
                self._read_last_line(path, first, complete.rpartition(b"\n")[2])
            if len(partial) > MOST_LINE:  # (no line that a worker began)
                self._parse_line(path, partial)
            if partial:
                os.ftruncate(self._descriptor, self._size - len(partial))
                self._size -= len(partial)
                self.dropped += len(partial)
            if end:
                self._index = int(path.name[len("receipts-") : -len(".jsonl")])
                return
            # a file without a line: the worker was stopped when it began the file
            os.close(self._descriptor)
            self._descriptor, self._size = -1, 0
            path.unlink()

    def _open_file(self, path: Path) -> tuple[bytes, bytes]:
        """Open a file for appending, and return its first line and its last bytes."""
        with path.open("rb") as stream:
            self._descriptor = os.open(path, _APPEND)
            self._check_permissions(path)
            self._size = os.fstat(stream.fileno()).st_size
            first = stream.readline(MOST_LINE + 2)
            stream.seek(max(0, self._size - 2 * (MOST_LINE + 1)))
            return first, stream.read(2 * (MOST_LINE + 1))

    def _check_permissions(self, path: Path) -> None:
        status = os.fstat(self._descriptor)
        mode = stat.S_IMODE(status.st_mode)
        if mode & 0o077 or status.st_uid not in (0, os.geteuid()):
            raise SecurityError(
                f"The receipts file {path} is open to other users of this machine. Received: mode "
                f"{mode:04o}, owner {status.st_uid} (this worker is {os.geteuid()}). Make it the "
                "worker's own (chown, chmod 600), and verify it (audit verify).",
                code="insecure-permissions",
                operation="receipts",
                received=f"mode {mode:04o}, owner {status.st_uid}",
            )

    def _read_last_line(self, path: Path, first: bytes, last: bytes) -> None:
        """Continue after the last line of a file, whose first one names the party."""
        party = self._parse_line(path, first.removesuffix(b"\n")).seal.party
        if party != self._party:
            raise SecurityError(
                f"The receipts file {path} is another worker's. Received: one of party {party}. "
                "Give each worker a separate folder: correct the line receipts = ... in "
                "worker.toml.",
                code="file-of-another-party",
                operation="receipts",
                received=party,
                expected=self._party,
            )
        seal = self._parse_line(path, last).seal
        self.number, self.at, self.before = seal.number, seal.at, digest_bytes(last)

    def _parse_line(self, path: Path, blob: bytes) -> Line:
        try:
            return parse_line(blob, self._party)
        except ValueError as error:
            raise SecurityError(
                f"A line of the receipts file {path} was altered: {error}. Find the change (audit "
                "verify), and move the folder away: the worker then begins a new chain.",
                code="receipts-not-intact",
                operation="receipts",
                received=str(path),
            ) from None

    def begin_file(self) -> None:
        """Begin another file, and remove the oldest ones.

        Raises:
            DataError: it cannot be created.
        """
        assert self._folder is not None
        path = self._folder / f"receipts-{self._index + 1:06}.jsonl"
        try:
            descriptor = os.open(path, _APPEND | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise self._unwritable_error(error) from None
        self._close_descriptor()
        self._descriptor, self._size = descriptor, 0
        self._index += 1
        with contextlib.suppress(OSError):
            for oldest in list_receipt_files(self._folder)[: -self._most_files]:
                oldest.unlink()
            atomic.sync_folder_to_disk(self._folder)

    def append_line(self, line: Line) -> None:
        """Append the next line of the chain.

        Raises:
            DataError: it cannot be written; no part of it remains.
        """
        blob = line.encode_line()
        if self._folder is not None:
            try:
                self._is_synced = False
                if os.write(self._descriptor, blob + b"\n") != len(blob) + 1:
                    raise OSError(28, "No space left on device")
            except OSError as error:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._descriptor, self._size)
                raise self._unwritable_error(error) from None
            self._size += len(blob) + 1
        self.number, self.at, self.before = line.seal.number, line.seal.at, digest_bytes(blob)

    def sync_to_disk(self) -> None:
        """Make the lines survive a loss of power."""
        if not self._is_synced and self._descriptor >= 0:
            self._is_synced = True
            with contextlib.suppress(OSError):
                os.fdatasync(self._descriptor)

    def close_file(self) -> None:
        """Close the file, and release the folder to another worker; no line can be appended."""
        self._is_closed = True
        self._close_descriptor()
        if self._lock is not None:
            self._lock.close()

    def _close_descriptor(self) -> None:
        self.sync_to_disk()
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _unwritable_error(self, error: OSError) -> DataError:
        # (the client reads this text, so it does not contain the file's path)
        reason = error.strerror or type(error).__name__
        return DataError(
            f"Party {self._party} cannot write the receipt of this job. Received: {reason}. "
            "Without it no result is sent. Its operator frees space on the disk.",
            code="receipts-not-writable",
            operation="receipts",
            received=reason,
            party=self._party,
        )
