"""Run a test file of a checkout of tf-encrypted with this package in place of its imports.

`python -m tfe_bench.tf_encrypted.checkout CHECKOUT FILE` prints a line of JSON for each test;
with `--script ARGUMENTS` at the end it runs a program instead.
Nothing of the checkout is copied, and of tf-encrypted's own modules only test helpers are loaded.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import runpy
import signal
import sys
import tempfile
import time
import types
import unittest
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# The only modules of a checkout that are loaded: helpers of its tests.
_HELPERS = ("tf_encrypted.keras.testing_utils",)
_THEIRS = "tf_encrypted"


class _AliasLoader(importlib.abc.Loader):
    def __init__(self, module: types.ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return self._module

    def exec_module(self, module: types.ModuleType) -> None:
        module.__spec__ = self._spec


class Alias(importlib.abc.MetaPathFinder):
    """Import finder that resolves tf_encrypted to the modules of this package.

    Args:
        source: the checkout, for its tests' helpers.
    """

    def __init__(self, source: Path) -> None:
        self._source = source

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the specification of a module by tf-encrypted's name."""
        if name != _THEIRS and not name.startswith(f"{_THEIRS}."):
            return None
        if name in _HELPERS:
            file = self._source.joinpath(*name.split(".")).with_suffix(".py")
            return importlib.util.spec_from_file_location(name, file)
        own_name = f"tfe_bench.{name}"
        try:
            module = importlib.import_module(own_name)
        except ModuleNotFoundError as error:
            if error.name is None or not error.name.startswith(f"tfe_bench.{_THEIRS}"):
                raise
            raise ModuleNotFoundError(f"{own_name} is not offered", name=name) from None
        package = hasattr(module, "__path__")
        return importlib.machinery.ModuleSpec(name, _AliasLoader(module), is_package=package)


@contextmanager
def alias_imports(source: Path) -> Iterator[None]:
    """Resolve imports of tf_encrypted to this package within the block."""
    finder = Alias(source)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [n for n in sys.modules if n == _THEIRS or n.startswith(f"{_THEIRS}.")]:
            del sys.modules[name]


class Stopped(Exception):
    """A test exceeded its time limit."""


class _CheckoutTestResult(unittest.TestResult):
    """Prints the outcome of each test: passed, refused, failed, skipped, or stopped."""

    def __init__(self, seconds: int) -> None:
        super().__init__()
        self._seconds, self._began = seconds, 0.0

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        signal.alarm(self._seconds)
        self._began = time.perf_counter()

    def stopTest(self, test: unittest.TestCase) -> None:
        signal.alarm(0)
        super().stopTest(test)

    def _print_outcome(self, test: unittest.TestCase, outcome: str, words: str = "") -> None:
        seconds = round(time.perf_counter() - self._began, 3)
        about = {"test": test.id(), "outcome": outcome, "seconds": seconds, "words": words[:400]}
        print(json.dumps(about), flush=True)

    def addSuccess(self, test: unittest.TestCase) -> None:
        super().addSuccess(test)
        self._print_outcome(test, "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        super().addSkip(test, reason)
        self._print_outcome(test, "skipped", reason)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        super().addFailure(test, err)
        self._print_outcome(test, "failed", f"{err[0].__name__}: {err[1]}")

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        from tfe_bench.errors import TfeBenchError

        super().addError(test, err)
        kind = "failed"
        if issubclass(err[0], Stopped):
            kind = "stopped"
        elif issubclass(err[0], (TfeBenchError, NotImplementedError)):
            kind = "refused"
        self._print_outcome(test, kind, f"{err[0].__name__}: {err[1]}")


def run_tests(source: Path, file: Path, names: Sequence[str], seconds: int) -> None:
    """Run the tests of a file, or some of them by name, each for at most `seconds`."""

    def raise_stopped(*_: object) -> None:
        raise Stopped(f"it ran past {seconds} s")

    signal.signal(signal.SIGALRM, raise_stopped)
    with alias_imports(source):
        spec = importlib.util.spec_from_file_location(file.stem, file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[file.stem] = module
        spec.loader.exec_module(module)
        suite = unittest.defaultTestLoader.loadTestsFromModule(module)
        result = _CheckoutTestResult(seconds)
        for test in _iterate_checkout_tests(suite):
            if not names or any(name in test.id() for name in names):
                test(result)


def run_script(source: Path, file: Path, arguments: Sequence[str]) -> None:
    """Run an example program, with imports relative to its own folder.

    Files that it writes to its folder (data sets) go to a temporary folder.
    """
    sys.argv = [str(file), *arguments]
    sys.path[:0] = [str(file.parent), str(file.parent.parent.parent)]
    if (digits := os.environ.get("TFE_BENCH_MNIST")) is not None:
        os.environ["TFE_BENCH_MNIST"] = os.path.abspath(digits)
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder, alias_imports(source):
        os.chdir(folder)
        try:
            runpy.run_path(str(file), run_name="__main__")
        finally:
            os.chdir(before)


def _iterate_checkout_tests(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for part in suite:
        if isinstance(part, unittest.TestSuite):
            yield from _iterate_checkout_tests(part)
        else:
            yield part


def main() -> None:
    """Run one file, for `compare tf-encrypted`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--script", nargs=argparse.REMAINDER, help="run it with these arguments")
    args = parser.parse_args()
    if importlib.util.find_spec("tf_keras") is not None:  # tf-encrypted's tests need Keras 2
        os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    if args.script is not None:
        run_script(args.source.absolute(), args.file.absolute(), args.script)
    else:
        run_tests(args.source, args.file, args.only, args.seconds)


if __name__ == "__main__":
    main()
