"""Weights read at a set rate, and a real network that computes with them."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import numpy as np
import pytest

from tests.refusals import raises
from tfe_bench.__main__ import main
from tfe_bench.benchmarks.technologies.storage import streaming
from tfe_bench.benchmarks.technologies.storage.streaming import Bucket, PlaintextReader
from tfe_bench.errors import UsageError


def test_a_bucket_lets_bytes_pass_at_its_rate() -> None:
    bucket = Bucket(rate=100.0, now=0.0)
    assert bucket.due_time(50, now=0.0) == pytest.approx(0.5)
    assert bucket.due_time(50, now=0.1) == pytest.approx(1.0)
    # a short delay is caught up, a long one is not saved for later
    assert bucket.due_time(1, now=1.0 + streaming._CREDIT / 2) == pytest.approx(1.01)
    assert bucket.due_time(1, now=9.0) == pytest.approx(9.0 - streaming._CREDIT + 0.01)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf, 1e12])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    with raises(UsageError, "number-out-of-range", operation="The rate"):
        Bucket(rate, 0.0)


@pytest.mark.parametrize(("room", "rounds"), [(2, 2), (5, 1), (100, 2)])
def test_all_pieces_come_in_order_whatever_the_room(
    tmp_path: Path, rng: np.random.Generator, room: int, rounds: int
) -> None:
    pieces = [rng.bytes(int(n)) for n in rng.integers(0, 5000, 12)] + [rng.bytes(5000)]
    file = tmp_path / "pieces"
    file.write_bytes(b"".join(pieces))
    with PlaintextReader(file, [*map(len, pieces)], room * 5000) as reader:
        for _ in range(rounds):
            assert list(reader.iterate_pieces(1e9)) == pieces
            assert reader.reading_seconds() > 0


def test_reading_is_no_faster_than_the_rate(tmp_path: Path) -> None:
    file = tmp_path / "pieces"
    file.write_bytes(bytes(40_000))
    with PlaintextReader(file, [1000] * 40, 10_000) as reader:
        started = time.perf_counter()
        assert sum(map(len, reader.iterate_pieces(200_000.0))) == 40_000
        assert time.perf_counter() - started >= 0.2 - streaming._CREDIT


@pytest.mark.parametrize(
    ("sizes", "memory"), [([], 100), ([0, 0], 100), ([10, -1], 100), ([60, 60], 100)]
)
def test_a_reader_without_pieces_or_room_is_refused(
    tmp_path: Path, sizes: list[int], memory: int
) -> None:
    with raises(UsageError, "invalid-pieces", "memory-too-small"):
        PlaintextReader(tmp_path / "absent", sizes, memory)


# ---- with the homomorphic library


def test_the_networks_layers_take_each_key_once_and_all_weights() -> None:
    pytest.importorskip("seal")
    from tfe_bench.benchmarks.technologies.homomorphic.network import (
        EncryptedNetwork,
        choose_network_parameters,
    )
    from tfe_bench.benchmarks.technologies.homomorphic.parties import Setting
    from tfe_bench.benchmarks.technologies.storage import device, measured, model

    network = EncryptedNetwork(Setting(choose_network_parameters(8192)))
    stages = measured.describe_network_layers(network)
    assert stages.key_bytes == sum(network.key_bytes.values())
    each = [o.plaintext_bytes for layer in network.layers for o in layer.operations]
    assert stages.weight_bytes == sum(each) > 10e6
    assert max(level for _, level in model.list_needed(stages)) == 6
    costs = measured.operation_costs_from_table({name: [1e-3] * 6 for name in device.OPERATIONS})
    counted = sum(o.count for layer in stages.layers for o in layer.operations)
    assert model.processor_inference_seconds(stages, costs) == pytest.approx(1e-3 * counted)
    with raises(UsageError, "cost-missing", operation="rotate", expected="1 to 6"):
        costs("rotate", 7)
    with raises(UsageError, "cost-missing", operation="divide", expected="1 to 0"):
        costs("divide", 1)


def test_a_real_network_computes_right_with_weights_from_a_file(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("seal")
    words = ["storage", "--validate", "--bandwidth", "0.2", "--repeat", "1", "--json"]
    assert main(words) == 0
    document = json.loads(capsys.readouterr().out)
    figures = document["figures"]
    assert document["correct"] is True and figures["max_error"] <= 0.05
    size = document["parameters"]["weight_bytes"]
    assert figures["predicted_seconds"] >= max(size / 0.2e9, figures["in_memory_seconds"] * 0.99)
    assert figures["predicted_from_costs_seconds"] >= size / 0.2e9
    assert document["seconds"]["median"] >= size / 0.2e9 - streaming._CREDIT
