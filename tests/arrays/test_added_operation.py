"""An operation is one module: that of docs/adding_an_operation.md, to the letter."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.arrays.simulated import Client, Workers
from tests.pages import DOCS, import_page
from tests.refusals import raises
from tfe_bench.arrays import operations
from tfe_bench.arrays.array import apply_array_operation
from tfe_bench.arrays.operations import Operation
from tfe_bench.errors import RangeError, UsageError


@pytest.fixture
def added_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Add the module of the page to the package of operations."""
    blocks = import_page("samples").parse_blocks((DOCS / "adding_an_operation.md").read_text())
    name = "tfe_bench/arrays/operations/ranges.py"
    [text] = [block.text for block in blocks if block.rest == name]
    folder = tmp_path / "operations"
    folder.mkdir()
    (folder / "ranges.py").write_text(text)
    monkeypatch.setattr(operations, "__path__", [*operations.__path__, str(folder)])
    operations._import_modules.cache_clear()
    yield
    operations._registered.pop("ptp", None)
    sys.modules.pop("tfe_bench.arrays.operations.ranges", None)


def test_the_module_of_the_page_adds_an_operation(added_module: None, tmp_path: Path) -> None:
    workers = Workers(tmp_path)
    client = Client(workers, "ann")
    values = np.array([[1.5, -2.0, 7.25], [0.0, 3.5, -9.0]])
    x = client.private(values, bound=16)
    y = apply_array_operation("ptp", x, axis=1)
    assert y._node.range == (0, 32 << 16)  # the rule, from the bounds of x
    np.testing.assert_array_equal(y.reveal(), np.ptp(values, axis=1))
    assert apply_array_operation("ptp", client.private(values)).explain("local").count("ptp") == 1
    with raises(UsageError, "unsupported-argument", operation="ptp"):
        apply_array_operation("ptp", x, axes=1)
    with raises(RangeError, "own-values-out-of-range", operation="ptp"):
        apply_array_operation("ptp", client.private(np.array([2.0**45]), bound=2.0**45))
    workers.close()


def test_another_package_adds_an_operation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "_registered", operations.list_operations())
    operations.add(Operation("twice", lambda x: x + x))
    workers = Workers(tmp_path)
    x = Client(workers, "ann").private(np.array([3, -4]))
    np.testing.assert_array_equal(apply_array_operation("twice", x).reveal(), [6, -8])
    workers.close()
    with raises(UsageError, "duplicate-name", operation="relu"):
        operations.add(Operation("relu", lambda x: x))
