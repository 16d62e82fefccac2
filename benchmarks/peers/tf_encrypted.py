"""TF Encrypted, in an environment that the user has: ABY3, its local server."""

from __future__ import annotations

from pathlib import Path

from tfe_bench.benchmarks.peers.base import (
    Measured,
    Missing,
    Request,
    call,
    only_local,
    python_of,
    run_script,
)

_SCRIPT = Path(__file__).parent / "scripts" / "tf_encrypted_run.py"


class TfEncrypted:
    """TF Encrypted with all parties in one process.

    Args:
        folder: a virtual environment with the package tf-encrypted.
    """

    name = "tf-encrypted"

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def available(self) -> Missing | None:
        """None if the environment has the package."""
        python = python_of(self._folder, "--tf-encrypted-env")
        if isinstance(python, Missing):
            return python
        found = call([str(python), "-c", "import tf_encrypted"], 120.0)
        if isinstance(found, Missing):
            return Missing(f"not found: {self._folder} has no package tf-encrypted")
        return None

    def run(self, request: Request) -> Measured | Missing:
        """Runs the work in the environment."""
        refused = only_local(self.name, request)
        if refused is not None:
            return refused
        python = python_of(self._folder, "--tf-encrypted-env")
        return python if isinstance(python, Missing) else run_script(python, _SCRIPT, request)
