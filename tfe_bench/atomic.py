"""Atomic writes: a file exists completely or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from tfe_bench.errors import DataError


def check_output_writable(file: Path, option: str, subject: str, existing: bool = False) -> None:
    """Check before a long computation that a file can be written after it.

    Args:
        option: that names the file.
        subject: of the text: the contents of the file.
        existing: the file may exist, and is extended; otherwise its folder must be writable.

    Raises:
        DataError: naming the file and the option.
    """
    folder = file.absolute().parent
    is_new = not (existing and file.exists())
    target, needed_access = (folder, os.W_OK | os.X_OK) if is_new else (file, os.W_OK)
    if file.is_dir() or not folder.is_dir() or not os.access(target, needed_access):
        raise DataError(
            f"{subject} cannot be written to {str(file)!r}. Received: a folder, a missing or "
            f"read-only folder, or a read-only file. Choose another {option}.",
            code="file-not-writable",
            operation=option,
            received=str(file),
        )


def write_atomically(
    file: Path, write_content: Callable[[IO[bytes]], object], mode: int = 0o600
) -> None:
    """Write a file atomically and replace an existing one; see `place_complete_file`.

    Raises:
        DataError: it cannot be written.
    """
    try:
        place_complete_file(file, write_content, mode)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise DataError(
            f"Cannot write {str(file)!r}: {reason}.", code="file-not-writable", received=reason
        ) from error


def place_complete_file(
    file: Path,
    write_content: Callable[[IO[bytes]], object],
    mode: int = 0o600,
    overwrite: bool = True,
) -> None:
    """Write a complete file, then move it to its place; never a partial one.

    Args:
        write_content: writes the content.
        mode: its permissions; before it is complete only its owner may read it.
        overwrite: replace an existing file.

    Raises:
        OSError: it cannot be written; FileExistsError if it exists and is not replaced.
    """
    temporary = write_temporary_file(file, write_content, mode)
    try:
        if overwrite:
            os.replace(temporary, file)
        else:
            os.link(temporary, file)  # unlike a rename, fails if the name exists
    finally:
        temporary.unlink(missing_ok=True)


def write_temporary_file(
    file: Path, write_content: Callable[[IO[bytes]], object], mode: int = 0o600
) -> Path:
    """Write a complete temporary file in the folder of its future place; return its path.

    Raises:
        OSError: it cannot be written; no part of it remains.
    """
    handle, name = tempfile.mkstemp(".tmp", f".{file.name}.", file.absolute().parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            write_content(stream)
            os.fchmod(stream.fileno(), mode)
            stream.flush()
            os.fsync(stream.fileno())
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    return temporary


def sync_folder_to_disk(folder: Path) -> None:
    """Make renames and removals in a folder survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
