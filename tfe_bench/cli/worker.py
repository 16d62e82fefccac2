"""`python -m tfe_bench worker`: the long-running process of one party."""

from __future__ import annotations

import argparse
import functools
import gc
import inspect
import logging
import os
import queue
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tfe_bench.cli import common
from tfe_bench.cli.signals import Signals, catch_signals, wait_signal
from tfe_bench.errors import ConfigError, TfeBenchError, UsageError
from tfe_bench.lazy_tensorflow import tf

if TYPE_CHECKING:
    from tfe_bench.cluster.config import ClusterConfig
    from tfe_bench.cluster.policy import WorkerPolicy
    from tfe_bench.cluster.worker.server import Worker


def _add_worker_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("--party", type=int, choices=(0, 1, 2))
    common.add_option(p, "--cluster FILE", "cluster.toml of the three hosts", required=True)
    common.add_option(
        p,
        "--config FILE",
        "worker.toml of this operator (default: workerN.toml in the folder of cluster.toml)",
    )
    common.add_option(p, "--bind HOST", "host to listen on (default: the host in cluster.toml)")
    common.add_option(
        p, "--threads N", "number of threads for kernels (default: one for each core)", type=int
    )
    p.add_argument(
        "--log-level",
        default="info",
        choices=("debug", "info", "warning", "error"),
        help="least severity of log lines; info includes starts and ends of jobs (default: info)",
    )
    common.add_option(p, "--local", argparse.SUPPRESS)
    common.add_option(p, "--temporary", argparse.SUPPRESS)
    common.add_option(p, "--models FOLDER", argparse.SUPPRESS)
    common.add_option(p, "--namespaces FD", argparse.SUPPRESS, type=int, nargs=3)


def run_worker_command(arguments: argparse.Namespace) -> int:
    """Run one party's worker."""
    if arguments.local:
        return _run_local_workers(arguments)
    if arguments.party is None:
        raise UsageError(
            "worker requires --party 0, 1 or 2. Received: no --party.",
            code="missing-argument",
            operation="--party",
        )
    return _run_party_worker(arguments, arguments.party)


def _run_local_workers(arguments: argparse.Namespace) -> int:
    """Run all three workers, in separate processes that share the imported modules."""
    from tfe_bench.cluster import local_workers

    _import_tensorflow()
    import tfe_bench.cluster.worker.server  # noqa: F401

    gc.freeze()
    return local_workers.fork_local_workers(
        arguments.cluster.parent, lambda party: _run_party_worker(arguments, party)
    )


def _run_party_worker(arguments: argparse.Namespace, party: int) -> int:
    """Run one party's worker until it is stopped."""
    from tfe_bench.cluster import tls
    from tfe_bench.cluster.addresses import check_worker_port_free

    if arguments.namespaces is not None:
        _enter_worker_namespace(arguments.namespaces[party])
    logging.basicConfig(
        stream=sys.stderr,
        level=arguments.log_level.upper(),
        format=f"%(asctime)s [party {party}] %(message)s",
        force=True,
    )
    # Before slow steps: a service that is stopped while it starts also exits with 0.
    caught: Signals = queue.SimpleQueue()
    catch_signals(caught, signal.SIGTERM, signal.SIGINT)
    if not arguments.local:
        catch_signals(caught, signal.SIGHUP)
    config, policy = _load_worker_files(arguments, party)
    me = config.parties[party]
    if config.tls:
        tls.select_key_certificate(policy.load_key(), me.certificates)
    config.check_bind(arguments.bind or me.host)
    if not arguments.local:
        check_worker_port_free(party, arguments.bind or me.host, me.port)
    start_tensorflow(arguments.threads)
    import_extension_packages()

    from tfe_bench.cluster.worker.server import Worker

    worker = Worker(config, policy, arguments.bind)
    if arguments.local:
        left = arguments.cluster.parent if arguments.temporary else None
        threading.Thread(target=_stop_worker_with_parent, args=(caught, left), daemon=True).start()
    else:
        print(f"party {party} ready on {config.parties[party].address}", file=sys.stderr)
    while (number := wait_signal(caught)) in (None, signal.SIGHUP):
        if number is not None:
            _reload_worker_files(worker, arguments, party)
    worker.stop()
    sys.stdout.flush()
    sys.stderr.flush()
    # A graph that still runs in a TensorFlow thread must not keep the process.
    os._exit(0)


def _load_worker_files(
    arguments: argparse.Namespace, party: int
) -> tuple[ClusterConfig, WorkerPolicy]:
    """Return the current cluster.toml and this operator's worker.toml."""
    from tfe_bench.cluster.config import ClusterConfig
    from tfe_bench.cluster.policy import WorkerPolicy

    folder = arguments.cluster.parent
    config = ClusterConfig.load(arguments.cluster)
    if arguments.local:
        models = arguments.models / f"party{party}"
        return config, WorkerPolicy.for_local(party, folder / f"party{party}.key", models)
    path = arguments.config or folder / f"worker{party}.toml"
    policy = WorkerPolicy.load(path)
    if policy.party != party:
        raise ConfigError(
            f"Expected the worker.toml of party {party}. Received: {path} of party "
            f"{policy.party}. Use the file of --party.",
            code="file-of-another-party",
            operation="--party",
            received=party,
            expected=policy.party,
        )
    return config, policy


def _reload_worker_files(worker: Worker, arguments: argparse.Namespace, party: int) -> None:
    """Read the files again on SIGHUP; invalid files change nothing."""
    log = logging.getLogger("tfe_bench.worker")
    try:
        worker.reload(*_load_worker_files(arguments, party))
    except TfeBenchError as error:
        log.error("the files are rejected, the previous settings stay in force: %s", error)
    else:
        log.info("the files were read again")


def _enter_worker_namespace(namespace: int) -> None:
    """Move into a network namespace, before any thread starts."""
    from tfe_bench.cluster.emulator import enter_network_namespace

    enter_network_namespace(namespace)
    os.close(namespace)


def _import_tensorflow() -> None:
    """Load TensorFlow and the ops without starting their threads.

    Keras is not loaded until a program requires it: TensorFlow loads Keras if it is installed, and
    Keras loads optional libraries (pandas, scikit-learn, matplotlib), which takes most of the time.
    """
    common.quiet_tensorflow()
    # (oneDNN computes nothing here, but brings an allocator that keeps large blocks: without it a
    # join of 2^20 rows takes twice as long)
    away = "keras.src"
    absent = away not in sys.modules
    # (None prevents the import, so that TensorFlow assumes that Keras is not installed)
    sys.modules.setdefault(away, None)  # type: ignore[arg-type]
    gc.disable()  # (it would scan the loaded modules ten times without effect)
    try:
        import tensorflow  # noqa: F401
    finally:
        gc.enable()
        if absent:
            del sys.modules[away]

    from tfe_bench.protocols.session import ops

    ops.native()


def _drop_graph_op_stacks() -> None:
    """Stop TensorFlow from storing the Python stack of every op of a graph.

    These stacks of 60 frames take more memory than the rest of a graph.
    """
    from tensorflow.python.framework import ops

    inspect.unwrap(ops._create_c_op).__defaults__ = (None, False)  # op_def, extract_traceback


def start_tensorflow(threads: int | None) -> None:
    """Initialize TensorFlow before the worker reports that it is ready."""
    _import_tensorflow()
    _drop_graph_op_stacks()
    cores = threads or len(os.sched_getaffinity(0))
    # Three workers may share few cores: an idle spinning thread takes time from other parties.
    options = tf.compat.v1.ConfigProto()
    options.experimental.disable_thread_spinning = True
    # (TensorFlow accepts options of eager execution only if it was disabled before)
    tf.compat.v1.disable_eager_execution()
    tf.compat.v1.enable_eager_execution(config=options)
    # Graphs need no rewriting, which costs time at the first call; and nothing may merge, fold or
    # reorder operations that consume masks.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    tf.config.threading.set_intra_op_parallelism_threads(cores)
    tf.config.threading.set_inter_op_parallelism_threads(max(2, cores))
    tf.constant(0)
    # Imported objects stay: a full collection that scans them would stop the graphs for 0.1 s.
    gc.freeze()


def import_extension_packages() -> None:
    """Load layers and programs of other packages before the worker reports that it is ready.

    Their imports, such as Keras, can take longer than a peer waits for a heartbeat in a job.  The
    log names a package that cannot be loaded, and so does an error of a job that requires it.
    """
    from importlib.metadata import entry_points

    from tfe_bench.cluster import jobs

    log = logging.getLogger("tfe_bench.worker")

    def load_layers() -> None:
        pass

    loaders: list[tuple[str, Callable[[], object]]] = [
        (f"the program {name!r}", functools.partial(jobs.load_program, name))
        for name in jobs.third_party_programs()
    ]
    for point in entry_points(group="tfe_bench.layers"):
        loaders.append((f"the layer {point.name!r}", load_layers))
    for subject, load in loaders:
        try:
            load()
        except Exception as error:  # another package may raise anything during its import
            log.error("%s of another package cannot be loaded: %s", subject, error)
        else:
            log.info("%s of another package is loaded", subject)


def _stop_worker_with_parent(caught: Signals, folder: Path | None) -> None:
    """Stop when the parent process ends, and remove the folder that it created, if any."""
    while sys.stdin.buffer.read(1):
        pass
    # A killed parent could not remove its temporary keys.
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    caught.put(signal.SIGTERM)
    # Exit after 2 seconds even if the main thread is busy.
    threading.Timer(2.0, lambda: os._exit(0)).start()


COMMANDS = {"worker": (_add_worker_options, run_worker_command)}
