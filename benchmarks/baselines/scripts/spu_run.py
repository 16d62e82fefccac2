"""Run one workload with SPU in three processes; the package's docstring defines the JSON.

This process compiles the work, shares the input and puts the result together; three children
compute over TCP, each in the network namespace of its host if hosts are given.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.metadata
import json
import multiprocessing
import os
import socket
import sys
import time
from typing import Any

_PARTIES = 3
_CLONE_NEWNET = 0x40000000


def make_workload(workload: str, n: int) -> tuple[Any, Any, Any]:
    """Return the inputs, the function to run on them, and the expected results."""
    workloads: Any = importlib.import_module("workloads")
    jax: Any = importlib.import_module("jax")
    jnp: Any = importlib.import_module("jax.numpy")
    # Its comparison subtracts, so that keys of the full range would overflow.
    inputs = workloads.make_inputs(workload, n, 62)

    def step_network(images: Any, labels: Any, *weights: Any) -> Any:
        zeros = [jnp.zeros(w.shape) for w in weights]
        return workloads.step_weights(jnp, images, labels, list(weights), zeros)

    functions = {
        "sort": jnp.sort,
        "max": lambda v: jnp.max(v, axis=1),
        "relu": lambda v: jnp.maximum(v, 0),
        "matmul": jnp.matmul,
        "softmax": lambda v: jax.nn.softmax(v, axis=1),
        "train": step_network,
    }
    return inputs, functions[workload], workloads.compute_results(workload, inputs)


def enter(namespace: int | None) -> None:
    """Move this process into a host's namespace, before any thread starts; silence its log."""
    os.dup2(2, 1)
    if namespace is not None:
        with open(f"/proc/{os.getppid()}/fd/{namespace}", "rb") as space:
            if ctypes.CDLL(None).setns(space.fileno(), _CLONE_NEWNET) != 0:
                raise OSError("a network namespace cannot be entered")


def run_spu_party(
    rank: int, namespace: int | None, nodes: list[str], program: Any, pipe: Any
) -> None:
    """Run one party; the first run is not timed; send (seconds, shares of its output)."""
    enter(namespace)
    libspu: Any = importlib.import_module("spu.libspu")
    spu: Any = importlib.import_module("spu")
    code, parts, repeat = program
    desc = libspu.link.Desc()
    for i, node in enumerate(nodes):
        desc.add_party(f"P{i}", node)
    link = libspu.link.create_brpc(desc, rank)
    runtime = spu.Runtime(link, make_spu_config(libspu))
    executable = libspu.Executable(**code)
    shares = [make_share(libspu, part) for part in parts]
    seconds = []
    for _ in range(repeat + 1):
        for name, share in zip(code["input_names"], shares, strict=True):
            runtime.set_var(name, share)
        # Twice: after the first, one party may be a delay ahead of the others.
        link.barrier()
        link.barrier()
        started = time.perf_counter()
        runtime.run(executable)
        seconds.append(time.perf_counter() - started)
    results = [runtime.get_var(name) for name in code["output_names"]]
    pipe.send((seconds[1:], [split_share(result) for result in results]))
    pipe.recv()  # the others may still need this one's link


def split_share(share: Any) -> tuple[bytes, list[bytes]]:
    """Return a share's meta data and chunks, which a pipe can send."""
    return bytes(share.meta), [bytes(chunk) for chunk in share.share_chunks]


def make_share(libspu: Any, part: tuple[bytes, list[bytes]]) -> Any:
    """Return the share of its meta data and chunks."""
    share = libspu.Share()
    share.meta, share.share_chunks = part
    return share


def make_spu_config(libspu: Any) -> Any:
    """Return the configuration of ABY3 over 64 bits."""
    kind, field = libspu.ProtocolKind.ABY3, libspu.FieldType.FM64
    return libspu.RuntimeConfig(protocol=kind, field=field)


def free_ports() -> list[int]:
    """Return free ports of the loopback."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(_PARTIES)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def main() -> None:
    """Read the request, run it, print the answer."""
    workloads: Any = importlib.import_module("workloads")
    request = json.load(sys.stdin)
    numpy: Any = importlib.import_module("numpy")
    jax: Any = importlib.import_module("jax")
    jax.config.update("jax_enable_x64", True)
    libspu: Any = importlib.import_module("spu.libspu")
    spu: Any = importlib.import_module("spu")
    frontend: Any = importlib.import_module("spu.utils.frontend")

    inputs, function, expected = make_workload(request["workload"], request["n"])
    secret = libspu.Visibility.VIS_SECRET
    executable, _ = frontend.compile(
        *(frontend.Kind.JAX, function, tuple(inputs), {}),
        *([f"in{i}" for i in range(len(inputs))], [secret] * len(inputs)),
        lambda out: [f"out{i}" for i in range(len(out))],
    )
    io = spu.Io(_PARTIES, make_spu_config(libspu))
    shared_inputs = [io.make_shares(numpy.array(x), secret) for x in inputs]
    code = {
        "name": executable.name,
        "input_names": list(executable.input_names),
        "output_names": list(executable.output_names),
        "code": executable.code,
    }
    namespaces = request.get("namespaces") or [None] * _PARTIES
    hosts = request.get("hosts")
    ports = [9700] * _PARTIES if hosts else free_ports()
    nodes = [f"{h}:{p}" for h, p in zip(hosts or ["127.0.0.1"] * _PARTIES, ports, strict=True)]
    context = multiprocessing.get_context("spawn")
    pipes, children = [], []
    for rank in range(_PARTIES):
        mine, theirs = context.Pipe()
        parts = [split_share(shares[rank]) for shares in shared_inputs]
        party_args = (rank, namespaces[rank], nodes, (code, parts, request["repeat"]), theirs)
        children.append(context.Process(target=run_spu_party, args=party_args, daemon=True))
        children[-1].start()
        theirs.close()
        pipes.append(mine)
    outputs, seconds = [], []
    for pipe in pipes:
        took, parts = pipe.recv()
        outputs.append([make_share(libspu, part) for part in parts])
        seconds.append(took)
    for pipe in pipes:
        pipe.send(None)
    results = [io.reconstruct(list(shares)) for shares in zip(*outputs, strict=True)]
    results = results[: len(expected)]  # after a step, velocities follow the weights
    answer = {
        "seconds": [max(turn) for turn in zip(*seconds, strict=True)],
        "bytes_sent": None,
        "correct": workloads.results_agree(request["workload"], results, expected, 1e-3),
        "version": importlib.metadata.version("spu"),
        "setting": "ABY3, FM64, three processes, no TLS; inputs and outputs not counted",
    }
    sys.stdout.flush()
    print(json.dumps(answer))
    sys.stdout.flush()
    for child in children:
        child.terminate()
    os._exit(0)


if __name__ == "__main__":
    main()
