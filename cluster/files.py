"""Atomic writes of files; secret files are readable by their owner only."""

from __future__ import annotations

import os
from pathlib import Path

from tfe_bench import atomic
from tfe_bench.errors import ConfigError


def write_secret_file(
    path: str | os.PathLike[str], data: bytes, *, overwrite: bool = False
) -> None:
    """Write a secret file atomically, readable by its owner only from the first byte.

    Args:
        path: the file; its folder must exist.
        data: the complete content.
        overwrite: replace an existing file.

    Raises:
        ConfigError: the file exists (without ``overwrite``) or cannot be written.
    """
    _write_file_atomically(Path(path), data, mode=0o600, overwrite=overwrite)


def write_public_file(
    path: str | os.PathLike[str], data: bytes, *, overwrite: bool = False
) -> None:
    """Write a file without secrets atomically (mode 0644).

    Args and errors: as for `write_secret_file`.
    """
    _write_file_atomically(Path(path), data, mode=0o644, overwrite=overwrite)


def _write_file_atomically(path: Path, data: bytes, *, mode: int, overwrite: bool) -> None:
    try:
        atomic.place_complete_file(path, lambda file: file.write(data), mode, overwrite)
    except FileExistsError:
        raise ConfigError(
            f"{path} exists already and is not overwritten. Choose another folder, or move the "
            "file away first.",
            code="file-exists",
            received=str(path),
        ) from None
    except OSError as error:
        raise ConfigError(
            f"Cannot write {path}. Received: {error.strerror}. Check the folder, its permissions "
            "and the free space.",
            code="file-not-writable",
            received=error.strerror,
        ) from None
