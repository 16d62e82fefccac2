"""Upload of a job's inputs: created when they are sent, not all at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.refusals import raises
from tfe_bench.cluster import input_upload, seeds
from tfe_bench.cluster.input_upload import InputUpload
from tfe_bench.cluster.launch import LocalCluster
from tfe_bench.cluster.requests import AnyInput, LateInput, LazyInput, PrivateInput
from tfe_bench.errors import TfeBenchError, UsageError


class Inputs:
    """Three inputs, the last one late; counts the creations of each."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.values = [rng.integers(-(2**63), 2**63, (4, 5)) for _ in range(3)]
        self.made = [0, 0, 0]
        rest = (LazyInput((4, 5), 3, lambda: self._make(1)), self._late())
        self.inputs: dict[str, AnyInput] = {"a": PrivateInput(self.values[0], 3)}
        self.inputs |= dict(zip("bc", rest, strict=True))

    def _late(self) -> LateInput:
        return LateInput((4, 5), 3, lambda: self._make(2))

    def _make(self, i: int) -> PrivateInput:
        self.made[i] += 1
        return PrivateInput(self.values[i], 3)


def read_messages(s: InputUpload, party: int) -> Iterator[bytes]:
    return s.worker_messages(party, {}, lambda _: None)


def submitted_names(blob: bytes) -> list[dict[str, Any]]:
    return list(json.loads(blob[1:])["inputs"])


@pytest.mark.parametrize("room", [0, input_upload.MOST_KEPT])
@pytest.mark.parametrize("together", [True, False])
def test_inputs_are_shared_one_by_one_and_both_evaluators_get_the_same(
    room: int, together: bool, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_upload, "MOST_KEPT", room)
    own = Inputs(rng)
    s = InputUpload(own.inputs)
    assert own.made == [0, 0, 0]
    (alone,) = read_messages(s, 0)
    streams = [read_messages(s, 1), read_messages(s, 2)]
    if together:
        sent = list(zip(*zip(*streams, strict=True), strict=True))
    else:  # one line is far slower than the other
        sent = [tuple(each) for each in streams]
    assert sent[0][1:] == sent[1][1:]
    assert own.made == [0, 1 if together or room else 2, 1]
    assert not s._masked
    rows = [submitted_names(each) for each in (alone, sent[0][0], sent[1][0])]
    held = [[set(row["seeds"]) for row in each] for each in rows]
    assert held == [[{"l1", "l2"}] * 3, [{"l1"}] * 3, [{"l2"}] * 3]
    for i, value in enumerate(own.values):
        one, two = (bytes.fromhex(rows[0][i]["seeds"][part]) for part in ("l1", "l2"))
        assert rows[1][i]["seeds"]["l1"] == one.hex() and rows[2][i]["seeds"]["l2"] == two.hex()
        m = np.frombuffer(sent[0][i + 1][1:], np.int64)
        lam = seeds.add_ring_words(seeds.expand_seed(one, m.size), seeds.expand_seed(two, m.size))
        unmasked = seeds.unmask_values(m, lam)
        np.testing.assert_array_equal(unmasked.reshape(4, 5), value)


def test_an_input_that_is_not_as_it_was_said_to_be_is_refused() -> None:
    for shape, bits in (((3,), 0), ((4,), 1)):
        lazy_input = LazyInput(shape, bits, lambda: PrivateInput(np.zeros(4, np.int64)))
        stream = read_messages(InputUpload({"x": lazy_input}), 1)
        next(stream)
        with raises(UsageError, "shape-mismatch"):
            next(stream)


def test_a_large_input_is_not_made_for_a_job_that_is_refused(shared_cluster: LocalCluster) -> None:
    creations: list[int] = []

    def make() -> PrivateInput:
        creations.append(1)
        return PrivateInput(np.zeros(1 << 22, np.int64))

    with pytest.raises(TfeBenchError):
        shared_cluster.run("predict", {"plan": {}}, {"x": LazyInput((1 << 22,), 0, make)})
    assert not creations
    sorted_keys = shared_cluster.run("sort", {}, {"keys": LazyInput((4,), 0, _make_keys)})
    assert sorted_keys.outputs["keys"].tolist() == [1, 2, 3, 4]


def _make_keys() -> PrivateInput:
    return PrivateInput(np.array([4, 2, 1, 3]))
