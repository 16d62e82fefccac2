"""The spool: files of one use, whose keys are in memory only, within bounds."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pytest

from tests.paths import ROOT
from tests.refusals import raises
from tfe_bench.cluster import spool
from tfe_bench.cluster.spool import MaterialSpool, SpoolEntry, bind_material
from tfe_bench.errors import PolicyError, SecurityError

IDENTIFIER = bytes(range(16))
BINDING = bind_material({"name": "m"})


class Place(NamedTuple):
    """The place of a message, without TensorFlow."""

    peer: int
    site: int
    iteration: int
    slot: int


class Masks:
    """Masks that count how often they are wiped."""

    wiped = 0

    def wipe_masks(self) -> None:
        self.wiped += 1


def make_messages(rng: np.random.Generator) -> dict[Any, bytes]:
    sizes = (0, 1, 1000, spool._CHUNK_BYTES, 2 * spool._CHUNK_BYTES + 5)
    return {Place(i % 2, i, 0, i): rng.bytes(size) for i, size in enumerate(sizes)}


def write_entry(
    kept: MaterialSpool, messages: dict[Any, bytes], identifier: bytes = IDENTIFIER
) -> SpoolEntry:
    writer = kept.begin_entry(identifier, "m", BINDING)
    for place, data in messages.items():
        writer.put_message(place, data)
    entry = writer.finish_entry()
    entry.material = cast(Any, Masks())
    return entry


def test_messages_come_back_and_the_file_is_gone_before(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    kept = MaterialSpool(tmp_path, 2, 1 << 30)
    messages = make_messages(rng)
    entry = write_entry(kept, messages)
    assert entry.path.stat().st_mode & 0o777 == 0o600
    assert entry.bytes == entry.path.stat().st_size
    content = entry.path.read_bytes()
    assert messages[Place(0, 2, 0, 2)] not in content
    assert kept.list_ready(BINDING) == [IDENTIFIER] and kept.count_ready("m") == 1
    reader = kept.burn_first(BINDING)
    assert reader is not None and not entry.path.exists()
    assert kept.burn_first(BINDING) is None and kept.count_ready("m") == 0
    entry.path.write_bytes(content)  # a copy that is restored later changes nothing
    assert sorted(reader.list_places()) == sorted(messages)
    for place in reversed(messages):
        assert reader.read_message(place) == messages[place]
    reader.close_file()
    assert entry.key == b"" and cast(Any, entry.material).wiped == 1
    assert MaterialSpool(tmp_path, 2, 1 << 30).list_ready(BINDING) == []


@pytest.mark.parametrize("damage", ["changed", "cut", "swapped", "moved"])
def test_a_damaged_file_is_refused(tmp_path: Path, damage: str) -> None:
    kept = MaterialSpool(tmp_path, 2, 1 << 30)
    a, b = Place(1, 4, 0, 0), Place(1, 4, 0, 1)
    entry = write_entry(kept, {a: bytes(100), b: bytes(100)})
    content = bytearray(entry.path.read_bytes())
    if damage == "changed":
        content[7] ^= 1
    elif damage == "cut":
        content = content[:50]
    elif damage == "swapped":
        half = len(content) // 2
        content = content[half:] + content[:half]
    else:
        places: Any = entry.places
        places[a], places[b] = places[b], places[a]
    entry.path.write_bytes(bytes(content))
    reader = kept.burn_first(BINDING)
    assert reader is not None
    with raises(SecurityError, "material-damaged"):
        reader.read_message(cast(Any, a))
    reader.close_file()


def test_entries_of_another_binding_are_not_found(tmp_path: Path) -> None:
    kept = MaterialSpool(tmp_path, 2, 1 << 30)
    write_entry(kept, {})
    facts = {"name": "m", "version": "1", "cluster": "c", "batch": 1, "deployment": "d"}
    bindings = {bind_material({**facts, key: "other"}) for key in facts} | {bind_material(facts)}
    assert len(bindings) == len(facts) + 1
    for binding in bindings:
        assert kept.burn_first(binding) is None and kept.list_ready(binding) == []


def test_entries_bytes_and_free_space_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = MaterialSpool(tmp_path, 1, 1000)
    writer = kept.begin_entry(IDENTIFIER, "m", BINDING)
    writer.put_message(cast(Any, Place(0, 1, 0, 0)), bytes(900))
    with raises(PolicyError, "spool-full", operation="max_ahead_bytes"):
        writer.put_message(cast(Any, Place(0, 2, 0, 0)), bytes(100))
    with raises(PolicyError, "spool-full", operation="max_ahead"):
        kept.begin_entry(bytes(16), "m", BINDING)
    writer.discard_entry()
    assert not [*(tmp_path / spool.FOLDER).glob("*")]
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with raises(PolicyError, "disk-full"):
        kept.begin_entry(IDENTIFIER, "m", BINDING)
    for folder, entries in ((None, 3), (tmp_path, 0)):
        none = MaterialSpool(folder, entries, 1000)
        for check in (none.check_allowed, none.check_entries):
            with pytest.raises(PolicyError):
                check()


def test_a_disk_without_space_leaves_no_entry(tmp_path: Path) -> None:
    kept = MaterialSpool(tmp_path, 2, 1 << 30)
    writer = kept.begin_entry(IDENTIFIER, "m", BINDING)
    writer.put_message(cast(Any, Place(0, 1, 0, 0)), bytes(10))

    raw = writer._stream.raw  # type: ignore[attr-defined]
    os.close(raw.fileno())  # a write fails, as it does on a full disk
    with pytest.raises(OSError):
        writer.finish_entry()
    writer.discard_entry()
    assert kept.list_ready(BINDING) == [] and not [*(tmp_path / spool.FOLDER).glob("*")]


def test_removed_entries_are_wiped(tmp_path: Path) -> None:
    kept = MaterialSpool(tmp_path, 4, 1 << 30)
    entries = [write_entry(kept, {}, bytes([i]) * 16) for i in range(3)]
    kept.drop_entries(".data", "m")
    kept.keep_only("m", lambda entry: entry is entries[1])
    assert kept.list_ready(BINDING) == [entries[1].identifier]
    kept.drop_entries("", "m")
    assert all(e.key == b"" and cast(Any, e.material).wiped == 1 for e in entries)
    assert not [*(tmp_path / spool.FOLDER).glob("*")]


# Steps at which a process dies, and whether the file may still be there afterwards.
STEPS = {
    "put": True,
    "finish": True,
    "open": True,
    "unlink": False,
    "sync": False,
    "read": False,
}
_PROGRAM = """
import os, signal, sys
from pathlib import Path
from tests.cluster import test_spool
from tfe_bench.cluster import spool
folder, step = Path(sys.argv[1]), sys.argv[2]
def die(*_): os.kill(os.getpid(), signal.SIGKILL)
kept = spool.MaterialSpool(folder, 2, 1 << 30)
messages = {test_spool.Place(0, i, 0, 0): bytes([i]) * 5000 for i in range(9)}
if step == "put":
    writer = kept.begin_entry(test_spool.IDENTIFIER, "m", test_spool.BINDING)
    for place, data in messages.items():
        writer.put_message(place, data)
    writer._stream.flush()
    die()
entry = test_spool.write_entry(kept, messages)
if step == "finish":
    die()
if step == "open":
    spool.remove_burnt_file = die
if step == "unlink":
    spool.atomic.sync_folder_to_disk = die
if step == "sync":
    spool.SpoolReader = die
reader = kept.burn_first(test_spool.BINDING)
reader.read_message(next(iter(messages)))
die()
"""


@pytest.mark.parametrize("step", STEPS)
def test_after_a_kill_no_file_is_usable(tmp_path: Path, step: str) -> None:
    command = [sys.executable, "-c", _PROGRAM, str(tmp_path), step]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    files = [*(tmp_path / spool.FOLDER).glob("*")]
    assert len(files) == STEPS[step]
    kept = MaterialSpool(tmp_path, 2, 1 << 30)
    assert kept.list_ready(BINDING) == [] and kept.burn_first(BINDING) is None
    kept.remove_leftovers()
    assert not [*(tmp_path / spool.FOLDER).glob("*")]
