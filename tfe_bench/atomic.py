"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from tfe_bench.errors import DataError


def check_writable(file: Path, option: str, subject: str, existing: bool = False) -> None:
    """Refuses before a long computation a file that could not be written after it.

    Args:
        option: that names it.
        what: is to be written, for the text.
        existing: it is added to where it is there; else it takes a writable folder.

    Raises:
        DataError: naming the file and the option.
    """
    folder = file.absolute().parent
    is_new = not (existing and file.exists())
    target, needed_access = (folder, os.W_OK | os.X_OK) if is_new else (file, os.W_OK)
    if file.is_dir() or not folder.is_dir() or not os.access(target, needed_access):
        raise DataError(
            f"{subject} cannot be written to {str(file)!r}. Received: a folder, a missing or "
            f"read-only folder, or a read-only file. Choose another {option}."
        )


def write_atomically(
    file: Path, write_content: Callable[[IO[bytes]], object], mode: int = 0o600
) -> None:
    """Puts a file in place once it is whole, in place of an existing one; see `place`.

    Raises:
        DataError: it cannot be written.
    """
    try:
        place_file(file, write_content, mode)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise DataError(f"Cannot write {str(file)!r}: {reason}.") from error


def place_file(
    file: Path,
    write_content: Callable[[IO[bytes]], object],
    mode: int = 0o600,
    overwrite: bool = True,
) -> None:
    """Puts a file in place once it is whole; never one that is half-written.

    Args:
        put: writes its content.
        mode: its permissions; until it is whole its owner alone may read it.
        overwrite: an existing one is replaced.

    Raises:
        OSError: it cannot be written; FileExistsError where one is there and is not replaced.
    """
    temporary = write_aside(file, write_content, mode)
    try:
        if overwrite:
            os.replace(temporary, file)
        else:
            os.link(temporary, file)  # unlike a rename, fails where the name is taken
    finally:
        temporary.unlink(missing_ok=True)


def write_aside(
    file: Path, write_content: Callable[[IO[bytes]], object], mode: int = 0o600
) -> Path:
    """Writes a whole file beside the place that it is for, and says where.

    Raises:
        OSError: it cannot be written; nothing is left of it.
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


def sync_folder(folder: Path) -> None:
    """Makes what was renamed or removed in a folder outlast a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
