"""A client that sends altered messages to some parties."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tfe_bench.cluster import wire
from tfe_bench.cluster.launch import LocalCluster

Change = Callable[[bytes], list[bytes]]


def alter_messages(
    monkeypatch: pytest.MonkeyPatch, cluster: LocalCluster, lies: dict[int, Change]
) -> None:
    """Replace the client's messages to some parties."""
    stub, channels = wire.stub, cluster.client._channels

    def send_altered(channel: Any, method: str) -> Any:
        call = stub(channel, method)
        change = next((c for p, c in lies.items() if channels[p] is channel), None)
        if change is None or method != wire.JOB:
            return call

        def alter_blobs(requests: Iterator[bytes]) -> Iterator[bytes]:
            for blob in requests:
                for message in wire.split_bundle(blob):
                    yield from change(message)

        return lambda requests, **options: call(alter_blobs(requests), **options)

    monkeypatch.setattr(wire, "stub", send_altered)


def alter_header(change: Callable[[dict[str, Any]], object]) -> Change:
    def apply(blob: bytes) -> list[bytes]:
        if not blob.startswith(b"E"):
            return [blob]
        header = json.loads(blob[1:])
        change(header)
        return [b"E" + json.dumps(header).encode()]

    return apply
