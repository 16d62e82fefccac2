"""A worker's folder of shares, which no other worker uses and no other user can change."""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path

from tfe_bench.errors import ConfigError, SecurityError


class LockedFolder:
    """A folder that no other worker uses meanwhile; the system lets go of it when this one ends.

    Args:
        folder: made (0700) if it does not exist.

    Raises:
        ConfigError: it cannot be used, or another worker has it.
        SecurityError: other users of this machine can write there.
    """

    def __init__(self, folder: Path) -> None:
        self._descriptor = -1
        problem = f"The folder for models cannot be used: {folder}. Received:"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            status = os.fstat(self._descriptor)
            mode = stat.S_IMODE(status.st_mode)
            if mode & 0o022 or status.st_uid not in (0, os.geteuid()):
                # Whoever may write there can remove files, and put others in their place.
                raise SecurityError(
                    f"The folder for models is open to other users of this machine: {folder}. "
                    f"Received: mode {mode:04o}, owner {status.st_uid} (this worker is "
                    f"{os.geteuid()}). Make it the worker's own: chown it, chmod 700, and look at "
                    "what lies there."
                )
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"{problem} another worker has it. Every worker has a folder of its own: stop the "
                "other one, or correct the line models = ... in worker.toml."
            ) from None
        except OSError as error:
            raise ConfigError(
                f"{problem} {error.strerror}. Correct the line models = ... in worker.toml, or "
                "leave it out."
            ) from None

    def close(self) -> None:
        """Lets others have it."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()
