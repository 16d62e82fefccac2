"""Stored shares: removal at three workers with different records, and the cache."""

from __future__ import annotations

import dataclasses
import os
import stat
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from tests.protocols.test_seeded import hold_input
from tests.refusals import raises
from tfe_bench.cluster import stored_shares
from tfe_bench.cluster.store import FOREIGN, NONE, OWN, SUFFIX, UNREADABLE, ShareStore
from tfe_bench.cluster.stored import DATA, StoredFacts, StoredTensor
from tfe_bench.clusters import LocalCluster
from tfe_bench.errors import ConfigError, TfeBenchError, UsageError
from tfe_bench.models.inference.private import convert
from tfe_bench.protocols.session import seeded
from tfe_bench.protocols.session.seeded import Seeded


class _ScriptedParty:
    """A party with given messages of the other two."""

    def __init__(self, messages: list[bytes]) -> None:
        self._told = messages

    def exchange_facts(self, subject: str, mine: bytes) -> list[bytes]:
        assert mine in self._told
        return self._told


_STATES = list(product((NONE, OWN, FOREIGN, UNREADABLE), repeat=3))


@pytest.mark.parametrize("states", _STATES, ids=str)
def test_a_name_goes_at_all_three_or_at_none(states: tuple[int, ...], tmp_path: Path) -> None:
    stores = [ShareStore(tmp_path / str(p), p, 64, 16, 3).for_kind(DATA) for p in range(3)]
    words = StoredTensor({"m": np.zeros(3, np.int64)}, 0, 16)
    for store, state in zip(stores, states, strict=True):
        if state != NONE:
            owner = "bob" if state == FOREIGN else "alice"
            store.prepare_file(StoredFacts("rows", owner, ("*",), "d1", {}), {"x": words}).commit()
        if state == UNREADABLE:
            (store.folder / f"rows.data{SUFFIX}").write_bytes(b"x")
    messages = [bytes([store.get_ownership("rows", "alice")]) for store in stores]
    assert [each[0] for each in messages] == list(states)
    ends: list[type[TfeBenchError] | None] = []
    for store in stores:
        try:
            stored_shares.remove_stored_shares(
                cast(Any, _ScriptedParty(messages)), store, "rows", "alice"
            )
            ends.append(None)
        except TfeBenchError as error:
            ends.append(type(error))
            if isinstance(error, UsageError):
                # The error is the same for another client's name and for an unknown one.
                assert str(error).startswith("This client stores no data set 'rows'.")
    removed = OWN in states and FOREIGN not in states
    lost = not removed and UNREADABLE in states and FOREIGN not in states
    assert ends == [None if removed else ConfigError if lost else UsageError] * 3
    left = [store.list_names() == ["rows"] for store in stores]
    assert left == [state != NONE and not removed for state in states]


def deploy_words(
    store: ShareStore, name: str, value: int, many: int, clients: tuple[str, ...] = ()
) -> None:
    """Deploy words that all have the value."""
    parts = {field: np.full(many, value) for field in ("m", "l1")}
    few = StoredTensor({field: words[:3] for field, words in parts.items()}, 0, 16)
    facts = StoredFacts(name, "alice", clients, f"{value:032x}", {})
    store.prepare_file(facts, {"few": few, "many": StoredTensor(parts, 0, 16)}).commit()


@pytest.mark.parametrize("party", range(3))
def test_seeds_are_kept_in_place_of_masks(
    party: int, tmp_path: Path, rng: np.random.Generator
) -> None:
    store, value = ShareStore(tmp_path, party, 64, 16, 9), rng.integers(-(2**63), 2**63, (70, 30))
    x = dataclasses.replace(hold_input(party, value), fractional_bits=5)
    facts = StoredFacts("net", "alice", (), "d" * 32, {})
    store.prepare_file(facts, {"w": stored_shares.to_stored_tensor(x)}).commit()
    path = tmp_path / f"net{SUFFIX}"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_size < 2000 + (value.nbytes if party else 0)
    weight = stored_shares.load_cached_shares(store, "net", "alice")[1]["w"]
    assert isinstance(weight, Seeded) and weight.shape == (70, 30) and weight.fractional_bits == 5
    one, other = seeded.expand_masks(weight), seeded.expand_masks(x)
    for mine, theirs in ((one.m, other.m), (one.l1, other.l1), (one.l2, other.l2)):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs))
    # a header with another statement about them
    blob = path.read_bytes()
    for wrong in (rb"[70, 29]", rb"[70,-30]", rb"[70, "):
        path.write_bytes(blob.replace(rb"\"shape\": [70, 30]", rb"\"shape\": " + wrong))
        changed = path.read_bytes() != blob
        assert changed
        if party or wrong != rb"[70, 29]":  # D holds nothing that contradicts it
            with raises(ConfigError, "file-damaged"):
                stored_shares.load_cached_shares(store, "net", "alice")


def test_a_kept_model_of_seeds_answers_as_keras_does(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    keras: Any = pytest.importorskip("keras")
    model = keras.Sequential([keras.Input((128,)), keras.layers.Dense(160, activation="relu")])
    x = rng.uniform(-1, 1, (2, 128)).astype(np.float32)
    private = convert(model, samples=x)
    with LocalCluster(models=tmp_path) as cluster:
        cluster.deploy(private, "wide")
        sizes = sorted(p.stat().st_size for p in tmp_path.rglob(f"wide{SUFFIX}"))
        assert len(sizes) == 3 and sizes[0] < 20_000 and sizes[1] > 8 * 128 * 160
        for _ in range(2):
            predictions = cluster.predict("wide", x)
            np.testing.assert_allclose(predictions, np.asarray(model(x)), atol=1e-3)


def test_what_is_in_memory_is_what_the_file_is(tmp_path: Path) -> None:
    """Load 200 times, after replacement, damage and removal; rights are checked each time."""
    store = ShareStore(tmp_path, 0, 64, 16, 9)
    deploy_words(store, "net", 7, 4096)
    first = stored_shares.load_cached_shares(store, "net", "alice")[1]
    for _ in range(200):
        facts, values = stored_shares.load_cached_shares(store, "net", "alice")
        assert facts.deployment == f"{7:032x}" and values["many"].m is first["many"].m
    doubled = values["many"].m + values["many"].m  # no computation changes the stored arrays
    assert (doubled.numpy() == 14).all() and (values["many"].l1.numpy() == 7).all()
    with raises(UsageError, "name-not-found", operation="net"):
        stored_shares.load_cached_shares(store, "net", "bob")
    deploy_words(store, "net", 8, 4096, ("bob",))
    values = stored_shares.load_cached_shares(store, "net", "bob")[1]
    assert [int(values[k].m[2]) for k in ("few", "many")] == [8, 8] and len(
        store.program_cache
    ) == 1
    path = tmp_path / f"net{SUFFIX}"
    with path.open("r+b") as stream:
        stream.seek(-1, 2)
        stream.write(b"\1")
    with raises(ConfigError, "file-damaged"):
        stored_shares.load_cached_shares(store, "net", "alice")
    assert not store.program_cache
    deploy_words(store, "net", 9, 10)
    assert int(stored_shares.load_cached_shares(store, "net", "alice")[1]["many"].m[9]) == 9
    store.remove_file("net")
    with raises(UsageError, "name-not-found", operation="net"):
        stored_shares.load_cached_shares(store, "net", "alice")
    stored_shares.evict_cached_shares(store, "net")
    assert not store.program_cache


def test_what_was_used_last_stays_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ShareStore(tmp_path, 0, 64, 16, 9)
    for i, name in enumerate("abc"):
        deploy_words(store, name, i, 1000)
    one = 2 * 8 * 1003
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for room, left in ((2 * one, "bac"), (0, "c")):
        monkeypatch.setattr(stored_shares, "_MOST_IN_MEMORY", memory // room if room else memory)
        for name in "abac":
            stored_shares.load_cached_shares(store, name, "alice")
        assert [key[1] for key in store.program_cache] == list(left)[-2 if room else -1 :]


def test_columns_that_were_asked_for_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Load 200 times, after other columns and a replacement; rights are checked each time."""
    store, party = ShareStore(tmp_path, 0, 64, 16, 9), cast(Any, None)
    monkeypatch.setattr(stored_shares, "check_same", lambda *arguments: None)
    read: list[Any] = []
    load = ShareStore.load

    def counted(self: ShareStore, name: str, client: str, only: Any = None) -> Any:
        read.append(only)
        return load(self, name, client, only)

    monkeypatch.setattr(ShareStore, "load", counted)

    def ask(value: int, *names: str, client: str = "alice") -> list[int]:
        values = stored_shares.load_stored_shares(
            party, store, "net", client, f"{value:032x}", names
        )
        assert list(values) == list(names)
        return [int(values[name].m[2]) for name in names]

    deploy_words(store, "net", 7, 4096)
    assert all(ask(7, "many") == [7] for _ in range(200)) and read == [["many"]]
    assert ask(7, "few", "many") == [7, 7] and ask(7, "many", "few") == [7, 7]
    assert read == [["many"], ["few"]]
    with raises(UsageError, "name-not-found", operation="net"):
        ask(7, "many", client="bob")
    deploy_words(store, "net", 8, 4096)
    with raises(UsageError, "deployment-changed"):
        ask(7, "many")
    assert ask(8, "many") == [8] and len(store.program_cache) == 1
    # values that do not fit are evicted
    monkeypatch.setattr(stored_shares, "_MOST_IN_MEMORY", 1 << 60)
    assert ask(8, "few", "many") == [8, 8] and not store.program_cache
    store.remove_file("net")
    with raises(UsageError, "name-not-found", operation="net"):
        ask(8, "many")
