"""Results that one worker alters: the client returns nothing, and says what disagrees."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.refusals import raises
from tfe_bench.cluster import seeds, wire
from tfe_bench.cluster.job_results import JobResultCollector
from tfe_bench.cluster.launch import LocalCluster
from tfe_bench.cluster.requests import PrivateInput
from tfe_bench.cluster.worker import results
from tfe_bench.errors import ProtocolError
from tfe_bench.protocols.session.sharing import Shared

KEYS = np.arange(40, dtype=np.int64)[::-1].copy()
# What one worker sends: the description of a result, its part, and the messages for both.
Alteration = Callable[[dict[str, Any], bytes], list[tuple[dict[str, Any], bytes]]]


def _set_field(name: str, value: object) -> Alteration:
    return lambda fields, data: [({**fields, name: value}, data)]


def _flip_bit(fields: dict[str, Any], data: bytes) -> list[tuple[dict[str, Any], bytes]]:
    return [(fields, bytes([data[0] ^ 1]) + data[1:])]


def _halve_axis(fields: dict[str, Any], data: bytes) -> list[tuple[dict[str, Any], bytes]]:
    return [({**fields, "shape": [fields["shape"][0] // 2]}, data[: len(data) // 2])]


ALTERATIONS: dict[str, tuple[Alteration, str]] = {
    "part": (_flip_bit, "inconsistent-shares"),
    "digest": (_set_field("digest", "0" * 64), "inconsistent-shares"),
    "no digest": (_set_field("digest", ""), "inconsistent-shares"),
    "shape": (_halve_axis, "inconsistent-results"),
    "shape of as many words": (
        lambda fields, data: [({**fields, "shape": [1, *fields["shape"]]}, data)],
        "inconsistent-results",
    ),
    "scale": (_set_field("fractional_bits", 3), "inconsistent-results"),
    "role m": (_set_field("part", "m"), "inconsistent-results"),
    "role l1": (_set_field("part", "l1"), "inconsistent-results"),
    "role l2": (_set_field("part", "l2"), "inconsistent-results"),
    "no role": (_set_field("part", ""), "inconsistent-results"),
    "absent": (lambda fields, data: [], "inconsistent-results"),
    "other name": (
        lambda fields, data: [({**fields, "name": fields["name"] + "z"}, data)],
        "inconsistent-results",
    ),
    "another": (
        lambda fields, data: [(fields, data), ({**fields, "name": fields["name"] + "z"}, data)],
        "inconsistent-results",
    ),
    "repeated": (lambda fields, data: [(fields, data)] * 2, "malformed-message"),
}


def _alter_results(blobs: Iterator[bytes], alter: Alteration) -> Iterator[bytes]:
    messages = (message for blob in blobs for message in wire.split_bundle(blob))
    for message in messages:
        fields = json.loads(message[1:]) if message[:1] == b"E" else {}
        if fields.get("event") != "result":
            yield message
            continue
        has_data = 0 not in fields["shape"]
        for altered, data in alter(fields, next(messages)[1:] if has_data else b""):
            yield b"E" + json.dumps(altered).encode()
            yield from wire.chunk_stream_data(data)


def _is_role_kept(party: int, name: str, dealer: int) -> bool:
    return name == f"role {wire.RESULT_PARTS[(party - dealer) % 3][0]}"


@pytest.mark.parametrize("name", ALTERATIONS)
@pytest.mark.parametrize("party", range(3))
def test_a_client_takes_no_result_that_one_worker_alters(
    monkeypatch: pytest.MonkeyPatch, shared_cluster: LocalCluster, party: int, name: str
) -> None:
    alter, code = ALTERATIONS[name]
    if _is_role_kept(party, name, dealer=0):
        return  # (the honest share)
    read_stream = JobResultCollector.read_stream

    def read_altered(collector: JobResultCollector, source: int, call: Iterator[bytes]) -> None:
        read_stream(collector, source, _alter_results(call, alter) if source == party else call)

    with monkeypatch.context() as patch:
        patch.setattr(JobResultCollector, "read_stream", read_altered)
        with raises(ProtocolError, code) as error:
            shared_cluster.run("sort", {}, {"keys": PrivateInput(KEYS)})
    if code == "inconsistent-shares":
        assert f"{party}" in str(error.value).split("returned")[0]
        assert str(KEYS[0]) not in str(error.value).replace("keys", "")
    outputs = shared_cluster.run("sort", {}, {"keys": PrivateInput(KEYS)}).outputs
    np.testing.assert_array_equal(outputs["keys"], np.sort(KEYS))


@pytest.mark.parametrize("dealer", range(3))
@pytest.mark.parametrize("count", [0, 4])
@pytest.mark.parametrize("limbs", [1, 2])
def test_shares_of_every_dealer_are_reconstructed_or_refused(
    shared_cluster: LocalCluster, rng: np.random.Generator, limbs: int, count: int, dealer: int
) -> None:
    """Check honest shares, and shares of which one worker's part or digest is altered."""
    x, l1, l2 = (rng.integers(-(2**63), 2**63, (count, limbs)[:limbs]) for _ in range(3))
    value = Shared(seeds.mask_values(x, l1, l2, limbs), l1, l2, dealer, 16, limbs)

    def collect(altering_party: int | None, alter: Alteration) -> JobResultCollector:
        collector = JobResultCollector(shared_cluster.config, None)
        for party in range(3):
            blobs = iter([*results.encode_result_share(party, "y", value), wire.event("done")])
            altered = _alter_results(blobs, alter) if party == altering_party else blobs
            collector.read_stream(party, altered)
        collector.collect_result()
        return collector

    honest = collect(None, _flip_bit).result
    np.testing.assert_array_equal(honest.outputs["y"], x)
    for party in range(3):
        for name, (alter, code) in ALTERATIONS.items():
            if not _is_role_kept(party, name, dealer) and (count or name not in ("part", "shape")):
                with raises(ProtocolError, code):
                    collect(party, alter)
