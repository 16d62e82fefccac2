"""Predictions with material that was made before their request: results, limits and single use."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cluster.conftest import PATIENCE, Trio, wait_until
from tests.models.tiny import draw_pictures, picture_model
from tests.refusals import raises
from tfe_bench.cluster import spool
from tfe_bench.errors import PolicyError, SecurityError, UsageError
from tfe_bench.models.inference import service
from tfe_bench.models.inference.ahead_setting import KEY
from tfe_bench.models.inference.private import PrivateModel


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    """Provide three workers in this process."""
    trio = Trio(tmp_path_factory.mktemp("ahead"), ("owner", "guest"))
    try:
        yield trio
    finally:
        trio.close()


def list_files(three: Trio) -> list[Path]:
    return [
        path
        for worker in three.workers
        if worker._host.policy.models is not None
        for path in (worker._host.policy.models / spool.FOLDER).glob("*")
    ]


def wait_ready(three: Trio, client: Any, name: str, count: int) -> None:
    def is_ready() -> bool:
        rows = {row["name"]: row for row in client.stored()}
        return bool(rows[name]["ready"] == count and three.idle())

    wait_until(is_ready, f"{count} entries are ready", PATIENCE)


def list_sent(result: Any) -> list[int]:
    return [sum(row["payload"]) for row in result.measured]


def test_a_prediction_with_material_is_the_same_and_sends_less(
    three: Trio, rng: np.random.Generator
) -> None:
    owner, guest = three.client("owner"), three.client("guest")
    private = picture_model()
    service.deploy(owner, private, "tiny", ["guest"])
    images = draw_pictures(rng)
    _, plain = service.predict(guest, "tiny", images)
    service.deploy(owner, private, "tiny", ["guest"], replace=True, ahead=2)
    wait_ready(three, owner, "tiny", 2)
    assert len(list_files(three)) == 6
    for path in list_files(three):
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
    before = {path.name for path in list_files(three)}
    for _ in range(3):
        outputs, result = service.predict(guest, "tiny", images)
        np.testing.assert_allclose(outputs, private.plain(images), rtol=0, atol=2e-3)
        assert [row[KEY]["used"] for row in result.measured] == [1, 1, 1]
        assert result.outputs["range"].tolist() == [0]
        sent, whole = list_sent(result), list_sent(plain)
        assert sent[0] < 0.2 * whole[0]  # the dealer's material was sent before
        assert result.measured[0][KEY]["bytes"] > 0.8 * whole[0]
        wait_ready(three, owner, "tiny", 2)
    after = {path.name for path in list_files(three)}
    assert len(after) == 2 and not before & after
    service.undeploy(owner, "tiny")
    assert list_files(three) == []


def test_another_batch_or_setting_uses_no_material(three: Trio, rng: np.random.Generator) -> None:
    owner = three.client("owner")
    private = picture_model(3)
    service.deploy(owner, private, "other", ahead=1, ahead_batch=2)
    wait_ready(three, owner, "other", 1)
    for batch, options, used in ((1, {}, 0), (2, {"check_range": False}, 0), (5, {"batch": 2}, 2)):
        images = draw_pictures(rng, batch)
        outputs, result = service.predict(owner, "other", images, **options)
        np.testing.assert_allclose(outputs, private.plain(images), rtol=0, atol=2e-3)
        # (one entry is ready: the second whole batch runs without)
        assert result.measured[1][KEY]["used"] == min(used, 1)
        wait_ready(three, owner, "other", 1)
    service.undeploy(owner, "other")


def spools(three: Trio) -> list[spool.MaterialSpool]:
    return [worker._host.store.spool for worker in three.workers]


@pytest.fixture
def deployed(three: Trio) -> Iterator[tuple[Any, PrivateModel]]:
    """Provide a model with one entry that is ready."""
    owner, private = three.client("owner"), picture_model(4)
    service.deploy(owner, private, "model", ahead=1, replace=True)
    wait_ready(three, owner, "model", 1)
    yield owner, private
    service.undeploy(owner, "model")


def count_used(client: Any, private: PrivateModel, rng: np.random.Generator) -> list[int]:
    """Return how many entries each worker used for a right prediction."""
    images = draw_pictures(rng)
    outputs, result = service.predict(client, "model", images)
    np.testing.assert_allclose(outputs, private.plain(images), rtol=0, atol=2e-3)
    return [row[KEY]["used"] for row in result.measured]


@pytest.mark.parametrize("party", range(3))
def test_an_entry_that_one_worker_lacks_is_used_by_none(
    three: Trio, deployed: tuple[Any, PrivateModel], party: int, rng: np.random.Generator
) -> None:
    owner, private = deployed
    [entry] = spools(three)[party]._entries
    reader = spools(three)[party].burn_first(entry.binding)  # at this party only
    assert reader is not None
    reader.close_file()
    assert count_used(owner, private, rng) == [0, 0, 0]
    assert not any(entry.identifier.hex() in path.name for path in list_files(three))
    wait_ready(three, owner, "model", 1)  # making removes what not all three have
    assert count_used(owner, private, rng) == [1, 1, 1]
    wait_ready(three, owner, "model", 1)


def test_a_file_that_was_removed_or_changed_is_not_used(
    three: Trio, deployed: tuple[Any, PrivateModel], rng: np.random.Generator
) -> None:
    owner, private = deployed
    [entry] = spools(three)[2]._entries
    entry.path.unlink()
    assert count_used(owner, private, rng) == [0, 0, 0]
    wait_ready(three, owner, "model", 1)
    [entry] = spools(three)[2]._entries
    content = bytearray(entry.path.read_bytes())
    content[len(content) // 2] ^= 1
    entry.path.write_bytes(bytes(content))
    with raises(SecurityError, "material-damaged"):
        service.predict(owner, "model", draw_pictures(rng))
    count_used(owner, private, rng)
    wait_ready(three, owner, "model", 1)
    assert count_used(owner, private, rng) == [1, 1, 1]
    wait_ready(three, owner, "model", 1)


def test_a_restored_copy_is_not_used(
    three: Trio, deployed: tuple[Any, PrivateModel], rng: np.random.Generator
) -> None:
    owner, private = deployed
    copies = {path: path.read_bytes() for path in list_files(three)}
    assert count_used(owner, private, rng) == [1, 1, 1]
    for path, content in copies.items():
        path.write_bytes(content)
    wait_ready(three, owner, "model", 1)
    assert count_used(owner, private, rng) == [1, 1, 1]
    wait_ready(three, owner, "model", 1)
    current = {e.path for each in spools(three) for e in each._entries}
    assert current.isdisjoint(copies)
    for each in spools(three):  # as at the next start
        each.remove_leftovers()
    assert not list_files(three)
    assert count_used(owner, private, rng) == [0, 0, 0]
    wait_ready(three, owner, "model", 1)


@pytest.mark.parametrize("party", [0, 2])
def test_a_full_disk_stops_making_and_no_prediction(
    three: Trio,
    deployed: tuple[Any, PrivateModel],
    party: int,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    owner, private = deployed
    put, folder = spool.SpoolWriter.put_message, list_files(three)[party].parent

    def fail(writer: spool.SpoolWriter, place: Any, data: bytes) -> None:
        if writer._spool is spools(three)[party] and len(writer.entry.places) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        put(writer, place, data)

    monkeypatch.setattr(spool.SpoolWriter, "put_message", fail)
    assert count_used(owner, private, rng) == [1, 1, 1]
    wait_until(three.idle, "the workers are idle", PATIENCE)
    for _ in range(2):
        assert count_used(owner, private, rng) == [0, 0, 0]
    wait_until(lambda: not [*folder.glob("*")], "no part of an entry is left", PATIENCE)
    monkeypatch.undo()
    assert count_used(owner, private, rng) == [0, 0, 0]
    wait_ready(three, owner, "model", 1)
    assert count_used(owner, private, rng) == [1, 1, 1]
    wait_ready(three, owner, "model", 1)


def test_a_new_deployment_uses_no_material_of_the_old_one(
    three: Trio, deployed: tuple[Any, PrivateModel], rng: np.random.Generator
) -> None:
    owner, _ = deployed
    before = set(list_files(three))
    private = picture_model(5)
    service.deploy(owner, private, "model", replace=True, ahead=1)
    assert before.isdisjoint(list_files(three))
    count_used(owner, private, rng)
    wait_ready(three, owner, "model", 1)


def test_settings_are_checked_in_words(three: Trio, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, private = three.client("owner"), picture_model()
    refused: list[dict[str, Any]] = [
        {"ahead": 65},
        {"ahead": -1},
        {"ahead": 1, "ahead_batch": 1 << 13},
    ]
    for options in refused:
        with raises(UsageError, "invalid-parameters", operation=KEY):
            service.deploy(owner, private, "wrong", **options)
    monkeypatch.setattr(spools(three)[1], "_max_entries", 0)
    with raises(PolicyError, "spool-not-allowed", operation="max_ahead"):
        service.deploy(owner, private, "wrong", ahead=1)
