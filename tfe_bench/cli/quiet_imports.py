"""Suppression of the messages that native libraries print while TensorFlow loads.

The libraries write to file descriptor 2, below Python and before they read any setting.  So
descriptor 2 is redirected only during the import: to a process that discards the messages
if the import succeeds, and prints them if it fails or if this process dies.  Before and after
the import, a library's last messages (a failed check, a sanitizer's report) reach the terminal.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

_PACKAGE = "tensorflow"
_WELL, _SHOW = b"\0well\0", b"\0show\0"
_WATCH = f"""
import os
said = b""
while piece := os.read(0, 65536):
    said += piece
    if said.endswith({_WELL!r}):
        os._exit(0)
    if said.endswith({_SHOW!r}):
        break
said = said.removesuffix({_SHOW!r})
while said:
    said = said[os.write(2, said):]
"""
_PATIENCE = 10.0


def install_quiet_import() -> None:
    """Suppress messages during a later import of TensorFlow in this process.

    Call this only in a command's own process: `sys.stderr` gets a separate descriptor, so that a
    progress bar and a log continue during the import.
    """
    sys.stderr.flush()
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, errors="backslashreplace")
    sys.meta_path.insert(0, _TensorflowFinder())


class _TensorflowFinder(importlib.abc.MetaPathFinder):
    """Import finder that locates TensorFlow with the other finders, once."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _PACKAGE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _QuietLoader(spec.loader)
        return spec


class _QuietLoader(importlib.abc.Loader):
    """Import loader that wraps another loader and withholds stderr during the import."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        with _withhold_stderr():
            self._loader.exec_module(module)

    def __getattr__(self, name: str) -> object:  # resources, source lines
        return getattr(self._loader, name)


@contextlib.contextmanager
def _withhold_stderr() -> Iterator[None]:
    """Withhold all output to descriptor 2; print it if the block fails."""
    real = os.dup(2)
    try:
        watcher = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _WATCH],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=real,
            start_new_session=True,  # Ctrl-C does not end it
        )
    except OSError:  # no more processes: better noise than no output
        os.close(real)
        yield
        return
    assert watcher.stdin is not None
    os.dup2(watcher.stdin.fileno(), 2)
    last = _SHOW
    try:
        yield
        last = _WELL
    except KeyboardInterrupt:
        last = _WELL
        raise
    finally:
        with contextlib.suppress(OSError):
            os.write(2, last)
        os.dup2(real, 2)
        os.close(real)
        with contextlib.suppress(OSError):
            watcher.stdin.close()
        try:
            watcher.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            watcher.kill()
            watcher.wait()
