"""Find the common keys of two owners with SPU's PSI; the package's docstring defines the JSON.

Two processes, one for each owner, with a CSV file in and one out; both learn which rows match.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def run_psi_owner(
    rank: int, namespace: int | None, nodes: list[str], folder: str, runs: int, pipe: Any
) -> None:
    """Run one owner; the first run is not timed; send (seconds, matches)."""
    importlib.import_module("spu_run").enter(namespace)
    psi: Any = importlib.import_module("spu.psi")
    link: Any = importlib.import_module("spu.libspu").link
    desc = link.Desc()
    for i, node in enumerate(nodes):
        desc.add_party(f"P{i}", node)
    context = link.create_brpc(desc, rank)
    config = psi.PsiExecuteConfig(
        protocol_conf=psi.PsiProtocolConfig(
            protocol=psi.PsiProtocol.PROTOCOL_RR22, receiver_rank=0, broadcast_result=True
        ),
        input_params=psi.InputParams(
            path=f"{folder}/in{rank}.csv", selected_keys=["id"], keys_unique=True
        ),
        output_params=psi.OutputParams(path=f"{folder}/out{rank}.csv"),
    )
    seconds, intersection_size = [], 0
    for _ in range(runs + 1):
        started = time.perf_counter()
        intersection_size = int(psi.psi_execute(config, context).intersection_count)
        seconds.append(time.perf_counter() - started)
    pipe.send((seconds[1:], intersection_size))
    pipe.recv()  # the other may still need this one's link


def _write_tables(n: int, folder: str) -> int:
    """Write the owners' files of n unique keys each; return the number of common keys."""
    numpy: Any = importlib.import_module("numpy")
    rng = numpy.random.default_rng(1)
    keys = numpy.unique(rng.integers(0, 1 << 40, 2 * n + n // 8 + 64))
    keys = rng.permutation(keys)[: 2 * n - n // 2]
    for rank, owner_keys in enumerate((keys[:n], keys[len(keys) - n :])):
        lines = zip(
            rng.permutation(owner_keys).tolist(), rng.integers(0, 10**6, n).tolist(), strict=True
        )
        text = "".join(f"{key},{value}\n" for key, value in lines)
        Path(folder, f"in{rank}.csv").write_text(f"id,v\n{text}")
    return n // 2


def main() -> None:
    """Read the request, run it, print the answer."""
    request = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as folder:
        common = _write_tables(request["n"], folder)
        namespaces = request.get("namespaces") or [None] * 2
        hosts = request.get("hosts")
        ports = [9700] * 2 if hosts else importlib.import_module("spu_run").free_ports()[:2]
        nodes = [f"{h}:{p}" for h, p in zip((hosts or ["127.0.0.1"] * 2)[:2], ports, strict=True)]
        context = multiprocessing.get_context("spawn")
        pipes, children = [], []
        for rank in range(2):
            mine, theirs = context.Pipe()
            owner_args = (rank, namespaces[rank], nodes, folder, request["repeat"], theirs)
            children.append(context.Process(target=run_psi_owner, args=owner_args, daemon=True))
            children[-1].start()
            theirs.close()
            pipes.append(mine)
        seconds, intersection_sizes = zip(*(pipe.recv() for pipe in pipes), strict=True)
        for pipe in pipes:
            pipe.send(None)
        answer = {
            "seconds": [max(turn) for turn in zip(*seconds, strict=True)],
            "bytes_sent": None,
            "correct": set(intersection_sizes) == {common},
            "version": importlib.metadata.version("spu"),
            "setting": "PSI (RR22), two processes, CSV files in and out, no TLS; both owners learn "
            "which rows match",
        }
        sys.stdout.flush()
        print(json.dumps(answer))
        sys.stdout.flush()
        for child in children:
            child.terminate()
    os._exit(0)


if __name__ == "__main__":
    main()
