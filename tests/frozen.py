"""Freeze the behavior of all simulations in tests: messages and results for fixed keys.

    TFE_BENCH_TEST_SEED=1 python -m pytest -p tests.frozen --freeze before.json tests/protocols
    ... refactor ...
    TFE_BENCH_TEST_SEED=1 python -m pytest -p tests.frozen --compare before.json tests/protocols

Three parties with the same keys, inputs and sites compute the same results bit for bit. A changed
byte, round, mask or order of invocations therefore shows, and `--compare` fails. Simulations
that occur in one run only are not compared, and the printed count omits them.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfe_bench.cluster import simulate as simulation

_records: dict[str, dict[str, Any]] = {}
_position: list[Any] = ["", 0]


def _yield_numbers(value: Any) -> Iterator[bytes]:
    """Yield the bytes of all numbers in nested results."""
    if isinstance(value, (bool, int, float, np.ndarray, np.generic)):
        array = np.asarray(value)
        yield f"{array.shape}{array.dtype}".encode()
        yield repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from _yield_numbers(v)
    elif isinstance(value, dict):
        for k in sorted(value, key=str):
            yield from _yield_numbers(value[k])
    elif is_dataclass(value) and not isinstance(value, type):
        for f in fields(value):
            yield from _yield_numbers(getattr(value, f.name))


def _digest_numbers(value: Any) -> str:
    digest = hashlib.sha256()
    for leaf in _yield_numbers(value):
        digest.update(leaf)
    return digest.hexdigest()[:16]


def _record_simulations(simulate: Any) -> Any:
    @functools.wraps(simulate)
    def wrapped(*args: Any, **options: Any) -> Any:
        name = f"{_position[0]}#{_position[1]}"
        _position[1] += 1
        if options.get("keys") is None:
            options["keys"] = [
                hashlib.sha256(f"{name}/{i}".encode()).digest()[:16] for i in (0, 1, 2)
            ]
        result = simulate(*args, **options)
        _records[name] = {
            "to": [list(row) for row in result.to],
            "rounds": [result.rounds, result.with_dealing],
            "outputs": [_digest_numbers(out) for out in result.outputs],
        }
        return result

    return wrapped


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--freeze", type=Path, help="write what simulations send and give")
    parser.addoption("--compare", type=Path, help="fail if that has changed")


def pytest_configure() -> None:
    simulation.simulate = _record_simulations(simulation.simulate)


def pytest_runtest_setup(item: pytest.Item) -> None:
    _position[:] = [item.nodeid, 0]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Collect the results of a test process that has finished."""
    _records.update(getattr(node, "workeroutput", {}).get("frozen", {}))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["frozen"] = _records
        return
    if path := session.config.getoption("--freeze"):
        path.write_text(json.dumps(_records, indent=0, sort_keys=True))
    if path := session.config.getoption("--compare"):
        before = json.loads(path.read_text())
        same = before.keys() & _records.keys()
        changed = sorted(name for name in same if before[name] != _records[name])
        print(f"\n{len(same)} simulations compared, {len(changed)} changed")
        for name in changed:
            what = [k for k in before[name] if before[name][k] != _records[name][k]]
            print(f"  {name}: {', '.join(what)}")
        if changed or not same:
            session.exitstatus = 1
