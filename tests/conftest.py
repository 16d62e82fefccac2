"""Fixtures of all tests: a printed seed that replays a failure, and a separate data folder."""

from __future__ import annotations

import collections
import itertools
import json
import logging
import os
import signal
import subprocess
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Threads of NumPy's products wait for each other by spinning, which slows down other processes.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pytest

from tests import fork_server, high_bits

# A background job of a shell ignores Ctrl-C, and all processes that tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# The longest files start first; otherwise one process runs them alone in the last minutes.  These
# are seconds of files for a checkout without an earlier run.
LONG = {
    **{"test_types": 125.0, "test_sort": 73.0, "test_kernels": 60.0, "test_widths": 56.0},
    **{"test_read_bits": 49.0, "test_programs": 46.0, "test_joint_views": 40.0},
    **{"test_joint_faults": 30.0, "test_shape_fuzz": 27.0, "test_layers": 25.0},
    **{"test_optimizers": 25.0, "test_service": 24.0, "test_execute": 20.0, "test_fit": 20.0},
}
_DURATIONS = "tfe_bench/durations"
_EARLIER = pytest.StashKey[dict[str, float]]()


class _Durations:
    """Durations of tests, kept for the order of files in the next run."""

    def __init__(self, config: pytest.Config) -> None:
        self.cache = getattr(config, "cache", None)  # (the plug-in can be off)
        self.earlier: dict[str, float] = self.cache.get(_DURATIONS, {}) if self.cache else {}
        self._measured: dict[str, float] = collections.defaultdict(float)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Give every process the same durations, so that all collect in the same order."""
        node.workerinput["durations"] = self.earlier

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._measured[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Replace the durations of the tests that have run; short ones need no entry."""
        kept = {name: s for name, s in self.earlier.items() if name not in self._measured}
        kept |= {name: round(s, 1) for name, s in self._measured.items() if s >= 0.1}
        if self.cache:
            self.cache.set(_DURATIONS, kept)


def pytest_configure(config: pytest.Config) -> None:
    """Measure durations in the process that distributes the tests."""
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        config.stash[_EARLIER] = worker["durations"]
    else:
        durations = _Durations(config)
        config.stash[_EARLIER] = durations.earlier
        config.pluginmanager.register(durations)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the files by their last durations; --no-loadscope-reorder keeps this order."""
    seconds: dict[Path, float] = collections.defaultdict(float)
    for item in items:
        seconds[item.path] += config.stash[_EARLIER].get(item.nodeid, 0.0)
    for path in seconds:
        seconds[path] = seconds[path] or LONG.get(path.stem, 0.0)
    items.sort(key=lambda item: -seconds[item.path])


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start TensorFlow as workers do if a test runs graphs in this process."""
    folders = {item.path.parent for item in session.items}
    if not session.config.option.collectonly and any(
        folder.relative_to(session.config.rootpath / "tests").parts[:1]
        in (("protocols",), ("models",), ("queries",), ("arrays",), ("tf_encrypted",))
        for folder in folders
    ):
        from tfe_bench.cli import worker

        # The tests trace many small graphs: oneDNN would search each one for products of floats.
        os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
        worker.start_tensorflow(None)
        del os.environ["TF_ENABLE_ONEDNN_OPTS"]  # (other workers start with the default)
        high_bits.randomize_unread_bits()


@pytest.fixture(autouse=True)
def _log_ends_with_its_test() -> Iterator[None]:
    """Close the log of a command with its test: it writes to the standard error of that test."""
    before = logging.root.handlers[:]
    yield
    for handler in logging.root.handlers[:]:
        if type(handler) is logging.StreamHandler and handler not in before:
            logging.root.removeHandler(handler)


# JSON objects have no order: code that reads them by position gives wrong results silently.
ORDERS = (
    lambda pairs: sorted(pairs),
    lambda pairs: sorted(pairs, reverse=True),
    lambda pairs: [*pairs[1:], *pairs[:1]],
)


def reorder_keys(value: Any, order: Any) -> Any:
    """Return the JSON value with the keys of all objects in another order."""
    if isinstance(value, dict):
        return {k: reorder_keys(v, order) for k, v in order([*value.items()])}
    return [reorder_keys(v, order) for v in value] if isinstance(value, list) else value


@pytest.fixture(autouse=True, scope="session")
def objects_without_order() -> Iterator[None]:
    """Send each submission to the workers with the keys of its objects in another order."""
    from tfe_bench.cluster import wire

    sent, orders = wire.event, itertools.cycle(ORDERS)

    def event(kind: str, **fields: Any) -> bytes:
        if kind != "submit":
            return sent(kind, **fields)
        return sent(kind, **reorder_keys(json.loads(json.dumps(fields)), next(orders)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "event", event)
        yield


@pytest.fixture(autouse=True, scope="session")
def own_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the data of local workers out of the home folder, whose contents then affect no test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture(autouse=True, scope="session")
def forked_workers() -> Iterator[None]:
    """Fork the workers of local clusters; see fork_server.py."""
    from tfe_bench.cluster import local_workers

    functions = {**vars(subprocess), "Popen": fork_server.start_process}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_workers, "subprocess", types.SimpleNamespace(**functions))
        yield


@pytest.fixture(scope="module")
def real_processes() -> Iterator[None]:
    """Start the workers of a module as users do, for tests of starts and ends."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fork_server, "forking", False)
        yield


@pytest.fixture
def seed() -> int:
    """Return a fresh seed, or TFE_BENCH_TEST_SEED to replay a failure."""
    setting = os.environ.get("TFE_BENCH_TEST_SEED")
    value = int(setting) if setting else int.from_bytes(os.urandom(4), "little")
    print(f"seed={value}")
    return value


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    """Return a generator from `seed`."""
    return np.random.default_rng(seed)


def _set_rewriting(graphs: bool) -> None:
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": not graphs})


@pytest.fixture(scope="session")
def as_in_a_worker() -> None:
    """Run graphs without TensorFlow's rewriting, as cli/worker.py does."""
    _set_rewriting(False)


@pytest.fixture(scope="module")
def rewritten(as_in_a_worker: None) -> Iterator[None]:
    """Let TensorFlow rewrite graphs, as it does by default: results must not depend on that
    option.
    """
    _set_rewriting(True)
    yield
    _set_rewriting(False)
