"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from tfe_bench.errors import DataError


def check(file: Path, option: str, what: str, existing: bool = False) -> None:
    """Refuses before a long computation a file that could not be written after it.

    Args:
        option: that names it.
        what: is to be written, for the text.
        existing: it is added to where it is there; else it takes a writable folder.

    Raises:
        DataError: naming the file and the option.
    """
    folder = file.absolute().parent
    fresh = not (existing and file.exists())
    target, wanted = (folder, os.W_OK | os.X_OK) if fresh else (file, os.W_OK)
    if file.is_dir() or not folder.is_dir() or not os.access(target, wanted):
        raise DataError(
            f"{what} cannot be written to {str(file)!r}. Received: a folder, a missing or "
            f"read-only folder, or a read-only file. Choose another {option}."
        )


def write(file: Path, put: Callable[[IO[bytes]], object], mode: int = 0o600) -> None:
    """Puts a file in place once it is whole; never one that is half-written.

    Args:
        file: an existing one is replaced.
        put: writes its content.
        mode: its permissions; until it is whole its owner alone may read it.

    Raises:
        DataError: it cannot be written.
    """
    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(".tmp", f".{file.name}.", file.absolute().parent)
        with os.fdopen(handle, "wb") as stream:
            put(stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, file)
    except BaseException as error:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        if isinstance(error, OSError):
            reason = error.strerror or type(error).__name__
            raise DataError(f"Cannot write {str(file)!r}: {reason}.") from error
        raise
