"""Files that are written whole or not at all, secret ones for their owner alone."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

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
    _write(Path(path), data, mode=0o600, overwrite=overwrite)


def write_public(path: str | os.PathLike[str], data: bytes, *, overwrite: bool = False) -> None:
    """Writes a file that holds no secret whole or not at all (mode 0644).

    Args and errors: as for `write_private`.
    """
    _write(Path(path), data, mode=0o644, overwrite=overwrite)


def _write(path: Path, data: bytes, *, mode: int, overwrite: bool) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(file.fileno(), mode)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if overwrite:
                os.replace(temporary, path)
            else:
                os.link(temporary, path)  # unlike a rename, fails where the name is taken
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
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
