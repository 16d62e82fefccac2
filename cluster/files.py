"""Files that are written whole or not at all, secret ones for their owner alone."""

from __future__ import annotations

import os
from pathlib import Path

from tfe_bench import atomic
from tfe_bench.errors import ConfigError


def write_private(path: str | os.PathLike[str], data: bytes, *, overwrite: bool = False) -> None:
    """Writes a secret file whole or not at all, readable by its owner only from the first byte.

    Args:
        path: where to write; its folder must exist.
        data: the whole content.
        overwrite: replace an existing file.

    Raises:
        ConfigError: the file exists (without ``overwrite``) or cannot be written.
    """
    _write_file(Path(path), data, mode=0o600, overwrite=overwrite)


def write_public(path: str | os.PathLike[str], data: bytes, *, overwrite: bool = False) -> None:
    """Writes a file that holds no secret whole or not at all (mode 0644).

    Args and errors: as for `write_private`.
    """
    _write_file(Path(path), data, mode=0o644, overwrite=overwrite)


def _write_file(path: Path, data: bytes, *, mode: int, overwrite: bool) -> None:
    try:
        atomic.place_file(path, lambda file: file.write(data), mode, overwrite)
    except FileExistsError:
        raise ConfigError(
            f"{path} exists already and is not overwritten. Choose another folder, or move the "
            "file away first."
        ) from None
    except OSError as error:
        raise ConfigError(
            f"Cannot write {path}. Received: {error.strerror}. Check the folder, its permissions "
            "and the free space."
        ) from None
