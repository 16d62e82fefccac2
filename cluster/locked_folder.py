"""A worker's folder, locked against other workers and closed to other users."""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path

from tfe_bench.errors import ConfigError, SecurityError


class LockedFolder:
    """A folder that one worker locks; the system releases the lock when the process ends.

    Args:
        folder: created (0700) if it does not exist.
        setting: the line of worker.toml that names it.

    Raises:
        ConfigError: the folder is not usable, or another worker has locked it.
        SecurityError: other users of this machine can write to it.
    """

    def __init__(self, folder: Path, setting: str = "models") -> None:
        self._descriptor = -1
        problem = f"The folder for {setting} cannot be used: {folder}. Received:"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            status = os.fstat(self._descriptor)
            mode = stat.S_IMODE(status.st_mode)
            if mode & 0o022 or status.st_uid not in (0, os.geteuid()):
                # A user with write permission could replace files.
                raise SecurityError(
                    f"The folder for {setting} is open to other users of this machine: {folder}. "
                    f"Received: mode {mode:04o}, owner {status.st_uid} (this worker is "
                    f"{os.geteuid()}). Make the worker its owner: chown it, chmod 700, and check "
                    "its contents.",
                    code="insecure-permissions",
                    operation=setting,
                    received=f"mode {mode:04o}, owner {status.st_uid}",
                )
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"{problem} another worker has locked it. Every worker has its own folder: stop "
                f"the other worker, or correct the line {setting} = ... in worker.toml.",
                code="folder-in-use",
                operation=setting,
                received=str(folder),
            ) from None
        except OSError as error:
            raise ConfigError(
                f"{problem} {error.strerror}. Correct the line {setting} = ... in worker.toml, or "
                "leave it out.",
                code="file-not-writable",
                operation=setting,
                received=error.strerror,
            ) from None

    def close(self) -> None:
        """Release the lock."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()
