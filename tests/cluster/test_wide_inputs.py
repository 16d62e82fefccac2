"""Elements of Z_2^128 pass through the cluster as those of Z_2^64 do."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.cluster.lies import alter_header, alter_messages
from tests.paths import ROOT
from tests.refusals import raises
from tfe_bench.cluster.jobs import InputSpec
from tfe_bench.cluster.launch import LocalCluster
from tfe_bench.cluster.requests import PrivateInput
from tfe_bench.cluster.simulate import share_for_party, simulate
from tfe_bench.errors import PolicyError, ProtocolError, TfeBenchError, UsageError, VersionMismatch
from tfe_bench.protocols.session import words
from tfe_bench.protocols.session.fixedpoint import FixedPoint

Change = Callable[[dict[str, Any]], object]
EDGES = [0, 1, -1, 2**63, -(2**63), 2**64 - 1, 2**64, -(2**64), 2**127 - 1, -(2**127)]
_PROGRAM = """
from tfe_bench import Program
from tfe_bench.protocols.ring import arithmetic


def run(context):
    party = context.party
    twice = party.function(lambda x: arithmetic.add(x, x))
    return {name: twice(x) for name, x in context.inputs.items()}


PROGRAM = Program("double", run, wide=True)
"""


@pytest.fixture(scope="module")
def doubling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Start workers with an installed third-party program."""
    site = tmp_path_factory.mktemp("site")
    (site / "doubling.py").write_text(_PROGRAM)
    about = site / "doubling-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: doubling\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[tfe_bench.programs]\ndouble = doubling:PROGRAM\n")
    paths = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    with pytest.MonkeyPatch.context() as patch:
        root = str(ROOT)
        patch.setenv("PYTHONPATH", os.pathsep.join([str(site), *paths, root]))
        with LocalCluster() as cluster:
            yield cluster


def test_wide_and_narrow_values_of_any_shape_come_back_doubled(
    doubling: LocalCluster, rng: np.random.Generator
) -> None:
    random = rng.integers(-(2**63), 2**63 - 1, (3, 50, 2), np.int64, endpoint=True)
    unsigned: Any = words.integers_to_128bit_words(EDGES).view(np.uint64)
    inputs = {
        "edges": PrivateInput(words.integers_to_128bit_words(EDGES), 40, 2),
        "random": PrivateInput(random, 3, 2),
        "narrow": PrivateInput(random, 16),
        "scalar": PrivateInput(words.integers_to_128bit_words(2**100), 0, 2),
        "empty": PrivateInput(np.zeros((0, 4, 2), np.int64), 0, 2),
        "unsigned": PrivateInput(unsigned, 0, 2),
    }
    result = doubling.run("double", {}, inputs)
    assert result.limbs == {n: i.limbs for n, i in inputs.items()}
    assert result.fractional_bits == {n: i.fractional_bits for n, i in inputs.items()}
    for name, private_input in inputs.items():
        got = result.outputs[name]
        ring = private_input.ring.view(np.int64)
        assert got.dtype == np.int64 and got.shape == ring.shape
        with np.errstate(over="ignore"):
            expected = (
                words.add_128bit_words(ring, ring) if private_input.limbs == 2 else ring + ring
            )
        np.testing.assert_array_equal(got, expected)


def test_real_numbers_beyond_64_bits_come_back(doubling: LocalCluster) -> None:
    values = np.array([2.0**60, -(2.0**80), 1e-9, -1e-9, np.exp(20.0)])
    point = FixedPoint(40, 128)
    result = doubling.run("double", {}, {"x": PrivateInput(point.encode(values), 40, 2)})
    back = point.decode(result.outputs["x"])
    np.testing.assert_allclose(back, 2 * values, atol=2.0**-40, rtol=0)


def test_a_program_that_does_not_say_so_gets_no_wide_inputs(doubling: LocalCluster) -> None:
    with raises(UsageError, "unsupported-ring", received="Z_2^128", expected="Z_2^64"):
        doubling.run("sort", {}, {"keys": PrivateInput(np.zeros((4, 2), np.int64), 0, 2)})
    result = doubling.run("sort", {}, {"keys": PrivateInput(np.array([3, 1, 2]))})
    assert result.outputs["keys"].tolist() == [1, 2, 3] and result.limbs["keys"] == 1


def in_first(change: Change) -> Callable[[bytes], list[bytes]]:
    """Change the first input in the header."""
    return alter_header(lambda header: change(header["inputs"][0]))


def _check_refused(
    cluster: LocalCluster,
    lies: dict[int, Change],
    kind: type[TfeBenchError],
    *codes: str,
) -> None:
    """Check that altered messages to some parties are refused; the cluster stays usable."""
    x = PrivateInput(words.integers_to_128bit_words(EDGES), 0, 2)
    with pytest.MonkeyPatch.context() as patch:
        alter_messages(patch, cluster, {p: in_first(change) for p, change in lies.items()})
        with raises(kind, *codes):
            cluster.run("double", {}, {"x": x})
    assert cluster.run("double", {}, {"x": x}).limbs == {"x": 2}


@pytest.mark.parametrize("limbs", [0, 3, -2, True, 2.0, "2", None, [2]])
def test_another_number_of_words_is_malformed(doubling: LocalCluster, limbs: Any) -> None:
    lies = dict.fromkeys(range(3), lambda row: row.update(limbs=limbs))
    _check_refused(doubling, lies, ProtocolError, "malformed-submission")


def test_the_number_of_words_must_be_said(doubling: LocalCluster) -> None:
    lies = dict.fromkeys(range(3), lambda row: row.pop("limbs"))
    _check_refused(doubling, lies, ProtocolError, "malformed-submission")


def test_workers_that_were_told_other_widths_refuse_each_other(doubling: LocalCluster) -> None:
    # The same words: 20 elements of one, or 10 of two.
    lies = {1: lambda row: row.update(limbs=1, shape=[20])}
    _check_refused(doubling, lies, VersionMismatch, "members-differ")


def test_other_seeds_of_a_wide_input_are_refused(doubling: LocalCluster) -> None:
    lies = {0: lambda row: row["seeds"].update(l1="ab" * 16)}
    _check_refused(doubling, lies, ProtocolError, "inconsistent-shares")


def test_a_wide_element_counts_as_two_against_the_limit(doubling: LocalCluster) -> None:
    lies = dict.fromkeys(range(3), lambda row: row.update(shape=[1 << 26, 2]))
    _check_refused(doubling, lies, PolicyError, "too-large")


@pytest.mark.parametrize(
    ("ring", "limbs"),
    [
        (np.zeros(3, np.int64), 2),
        (np.zeros((2, 3), np.int64), 2),
        (np.array(1), 2),
        (np.zeros((3, 2), np.int32), 2),
        (np.zeros((3, 2)), 2),
        (np.zeros(3), 1),
        ([1, 2], 1),
        (np.zeros((3, 2), np.int64), 3),
        (np.zeros((3, 2), np.int64), 0),
        (np.zeros((3, 2), np.int64), True),
    ],
)
def test_an_input_that_does_not_fit_is_refused_before_anything_is_sent(
    ring: Any, limbs: int
) -> None:
    with raises(UsageError, "shape-mismatch", "wrong-type", "number-out-of-range"):
        PrivateInput(ring, 0, limbs)


def test_the_words_of_an_input_are_counted() -> None:
    spec = InputSpec("x", (3, 5), 40, 2)
    assert (spec.elements, spec.words, spec.word_shape) == (15, 30, (3, 5, 2))
    assert InputSpec("x", (3, 5), 16).word_shape == (3, 5)


def test_simulated_parties_share_wide_inputs(rng: np.random.Generator) -> None:
    from tfe_bench.protocols.ring import arithmetic

    x = np.concatenate(
        [words.integers_to_128bit_words(EDGES), rng.integers(-9, 9, (1000, 2), np.int64)]
    )
    done = simulate(
        lambda p, x: p.function(lambda x: arithmetic.add(x, x))(x), x, fractional_bits=40, limbs=2
    )
    assert [out.limbs for out in done.outputs] == [2, 2, 2]
    expected = [2 * v % (1 << 128) for v in words.integers_from_128bit_words(x)]
    assert done.value().tolist() == expected
    for limbs, shape in ((2, (3,)), (3, (3, 2)), (0, (3,))):
        with raises(UsageError, "shape-mismatch", operation="limbs"):
            share_for_party(np.zeros(shape, np.int64), 0, b"s", limbs=limbs)
