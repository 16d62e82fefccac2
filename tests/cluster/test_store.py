"""A worker's store: complete files, private, bound to their worker, and refused otherwise."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cluster.stored_files import Change, with_header
from tests.refusals import raises
from tfe_bench.cluster.store import FOREIGN, FORMATS, NONE, OWN, SUFFIX, UNREADABLE, ShareStore
from tfe_bench.cluster.stored import DATA, MOST_ABOUT, StoredFacts, StoredTensor, check_name
from tfe_bench.errors import (
    ConfigError,
    PolicyError,
    SecurityError,
    TfeBenchError,
    UsageError,
    VersionMismatch,
)

_SECRET = 0x5EC12E7  # in every share of these tests


def _open_store(
    folder: Path, party: int = 1, fractional_bits: int = 16, most: int = 3
) -> ShareStore:
    return ShareStore(folder, party, 64, fractional_bits, most)


def _make_facts(name: str = "mnist", *clients: str, deployment: str = "d1") -> StoredFacts:
    return StoredFacts(name, "owner", clients, deployment, {"layers": ["dense"]})


def _draw_tensors(rng: np.random.Generator) -> dict[str, StoredTensor]:
    def words(*shape: int) -> Any:
        return rng.integers(-(2**63), 2**63, shape, np.int64)

    return {
        "dense/kernel": StoredTensor({"m": words(7, 3), "l1": words(7, 3)}, 0, 16),
        "dense/bias": StoredTensor({"m": words(3), "l1": words(3)}, 0, 32),
        "wide": StoredTensor({"m": words(2, 2), "l1": words(2, 2)}, 2, 40, limbs=2),
        "none": StoredTensor({"m": words(0, 4), "l1": words(0, 4)}, 0, 16),
        "scalar": StoredTensor({"m": words(), "l1": words()}, 0, 16),
    }


def test_what_is_kept_comes_back_also_after_a_restart(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    kept = _draw_tensors(rng)
    folder = tmp_path / "models"
    store = _open_store(folder)
    prepared = store.prepare_file(_make_facts("mnist", "hospital"), kept)
    assert store.list_names() == []  # not before it is committed
    prepared.commit()
    (folder / f".mnist.{'0' * 16}.tmp").write_bytes(b"left by a worker that was killed")

    store.close()
    store = _open_store(folder)
    assert store.list_names() == ["mnist"]
    [path] = list(folder.iterdir())
    assert path.stat().st_mode & 0o777 == 0o600 and folder.stat().st_mode & 0o777 == 0o700
    for client in ("owner", "hospital"):
        facts, result = store.load("mnist", client)
        assert facts.owner == "owner" and facts.about == {"layers": ["dense"]}
        assert list(result) == list(kept)
        for name, tensor in kept.items():
            again = result[name]
            assert (again.dealer, again.fractional_bits, again.limbs) == (
                tensor.dealer,
                tensor.fractional_bits,
                tensor.limbs,
            )
            assert set(again.parts) == {"m", "l1"}
            for part, words in tensor.parts.items():
                np.testing.assert_array_equal(again.parts[part], words)
    assert "mnist" not in repr(facts) and "1" not in repr(result["scalar"]).split(" object")[0]


def test_files_have_the_layout_of_safetensors(tmp_path: Path, rng: np.random.Generator) -> None:
    kept = _draw_tensors(rng)
    _open_store(tmp_path).prepare_file(_make_facts(), kept).commit()
    blob = (tmp_path / f"mnist{SUFFIX}").read_bytes()
    length = int.from_bytes(blob[:8], "little")
    header = json.loads(blob[8 : 8 + length])
    assert set(header.pop("__metadata__")) == {"tfe_bench"}
    ends = [0]
    for name, row in header.items():
        begin, end = row["data_offsets"]
        assert begin == ends[-1] and row["dtype"] == "I64"
        ends.append(end)
        key, _, part = name.rpartition("/")
        words = np.frombuffer(blob[8 + length :][begin:end], np.int64).reshape(row["shape"])
        np.testing.assert_array_equal(words, kept[key].parts[part])
    assert 8 + length + ends[-1] == len(blob) and (8 + length) % 8 == 0


def test_only_permitted_clients_see_and_use_it(tmp_path: Path, rng: np.random.Generator) -> None:
    store = _open_store(tmp_path)
    for name, clients in (("one", ()), ("two", ("hospital",)), ("all", ("*",))):
        store.prepare_file(_make_facts(name, *clients), _draw_tensors(rng)).commit()
    visible = {
        c: [row["name"] for row in store.list_visible(c)] for c in ("owner", "hospital", "guest")
    }
    assert visible == {"owner": ["all", "one", "two"], "hospital": ["all", "two"], "guest": ["all"]}
    assert store.list_visible("guest")[0]["clients"] is None
    assert store.list_visible("owner")[2]["clients"] == ["hospital"]
    with raises(UsageError, "name-not-found", operation="tvo") as raised:
        store.load("tvo", "hospital")
    assert 'Did you mean "two"' in str(raised.value)
    # Another client's is indistinguishable from one that does not exist, and is never suggested.
    messages = []
    for name in ("two", "tvo"):
        with raises(UsageError, "name-not-found", operation=name) as raised:
            store.load(name, "guest")
        messages.append(str(raised.value).replace(name, "NAME"))
    assert messages[0] == messages[1] and "two" not in messages[1]


def test_only_owners_replace_and_remove(tmp_path: Path, rng: np.random.Generator) -> None:
    store = _open_store(tmp_path, most=2)
    store.permit_writing("one", "owner", False)
    store.prepare_file(_make_facts("one"), _draw_tensors(rng)).commit()
    with raises(UsageError, "name-in-use"):
        store.permit_writing("one", "owner", False)
    store.permit_writing("one", "owner", True)
    with raises(PolicyError, "name-of-another-client"):
        store.permit_writing("one", "guest", True)
    whose = [
        store.get_ownership(*each) for each in (("one", "owner"), ("one", "guest"), ("no", "guest"))
    ]
    assert whose == [OWN, FOREIGN, NONE]
    store.prepare_file(_make_facts("one", deployment="d2"), _draw_tensors(rng)).commit()
    assert store.get_facts("one", "owner").deployment == "d2"
    store.prepare_file(_make_facts("two"), _draw_tensors(rng)).discard()
    assert store.list_names() == ["one"] and len(list(tmp_path.iterdir())) == 1
    store.prepare_file(_make_facts("two"), _draw_tensors(rng)).commit()
    with raises(PolicyError, "too-many-names"):
        store.permit_writing("three", "owner", False)
    store.remove_file("one")
    store.remove_file("one")
    assert store.list_names() == ["two"] and store.get_ownership("one", "owner") == NONE


def test_names_are_no_paths() -> None:
    for name in ("a", "mnist-3_b", "0" * 63):
        assert check_name(name) == name
    for bad in ("", "../x", "a/b", "A", "-a", "_a", "a.b", "a b", "0" * 64, "é", "a\n", None, 3):
        with raises(UsageError, "invalid-name"):
            check_name(bad)


def test_a_worker_without_a_folder_keeps_nothing() -> None:
    store = ShareStore(None, 2, 64, 16, 3)
    assert store.list_visible("owner") == []
    refused: tuple[Callable[[], object], ...] = (
        lambda: store.load("mnist", "owner"),
        lambda: store.permit_writing("mnist", "owner", False),
    )
    for action in refused:
        with raises(PolicyError, "storage-not-configured"):
            action()


def _change_header(change: Change) -> Callable[[bytes], bytes]:
    """Return a change of a file's header and its metadata."""
    return lambda blob: with_header(blob, change)


def _set_field(key: str, value: Any) -> Callable[[bytes], bytes]:
    return _change_header(lambda header, ours: ours.update({key: value}))


_SPOILT: dict[str, tuple[Callable[[bytes], bytes], type[TfeBenchError]]] = {
    "empty": (lambda b: b"", ConfigError),
    "short": (lambda b: b[:5], ConfigError),
    "cut in its header": (lambda b: b[:40], ConfigError),
    "cut in its numbers": (lambda b: b[:-8], ConfigError),
    "one bit": (lambda b: b[:-3] + bytes([b[-3] ^ 4]) + b[-2:], ConfigError),
    "noise": (lambda b: bytes(range(256)) * 20, ConfigError),
    "a long header": (lambda b: b"\xff" * 8 + b[8:], ConfigError),
    "JSON of another kind": (lambda b: (4).to_bytes(8, "little") + b"[12]" + b, ConfigError),
    "without metadata": (_change_header(lambda h, o: o.clear()), ConfigError),
    "offsets": (
        _change_header(lambda h, o: h["dense/bias/m"].update(data_offsets=[0, 1 << 40])),
        ConfigError,
    ),
    "negative sizes": (
        _change_header(lambda h, o: h["dense/bias/m"].update(shape=[-3])),
        ConfigError,
    ),
    "another type": (
        _change_header(lambda h, o: h["dense/bias/m"].update(dtype="F64")),
        ConfigError,
    ),
    "a part missing": (_change_header(lambda h, o: h.pop("dense/bias/m")), ConfigError),
    "another dealer": (
        _change_header(lambda h, o: o["tensors"]["wide"].update(dealer=7)),
        ConfigError,
    ),
    "another party": (_set_field("party", 2), SecurityError),
    "another name": (_set_field("name", "cifar"), SecurityError),
    "another format": (_set_field("format", 9), VersionMismatch),
    "another precision": (_set_field("fractional_bits", 20), VersionMismatch),
    "another ring": (_set_field("ring", 128), VersionMismatch),
}


@pytest.mark.parametrize("case", _SPOILT)
def test_damaged_and_foreign_files_are_named_with_a_remedy(
    case: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    spoil, kind = _SPOILT[case]
    store = _open_store(tmp_path)
    kept = _draw_tensors(rng)
    kept["dense/bias"].parts["m"][:] = _SECRET
    store.prepare_file(_make_facts(), kept).commit()
    store.prepare_file(_make_facts("other"), kept).commit()
    path = tmp_path / f"mnist{SUFFIX}"
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(kind) as raised:
        store.load("mnist", "owner")
    text = str(raised.value)
    assert "mnist" in text and "deploy" in text, text
    assert str(_SECRET) not in text and raised.value.__cause__ is None
    assert "other" in [row["name"] for row in store.list_visible("owner")]
    store.load("other", "owner")


@pytest.mark.parametrize("number", FORMATS)
def test_files_of_every_format_so_far_are_read(
    number: int, tmp_path: Path, rng: np.random.Generator
) -> None:
    """The upgrade that docs/backup.md describes: an older version wrote the files."""

    def older(_: dict[str, Any], ours: dict[str, Any]) -> None:
        ours["format"] = number
        if number < FORMATS[-1]:
            ours.pop("sources", None)

    store, kept = _open_store(tmp_path), _draw_tensors(rng)
    store.prepare_file(_make_facts(), kept).commit()
    path = tmp_path / f"mnist{SUFFIX}"
    path.write_bytes(_change_header(older)(path.read_bytes()))
    facts, read = store.load("mnist", "owner")
    assert facts.owner == "owner" and set(read) == set(kept)


def test_files_that_others_can_read_and_links_are_refused(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    store = _open_store(tmp_path)
    store.prepare_file(_make_facts(), _draw_tensors(rng)).commit()
    path = tmp_path / f"mnist{SUFFIX}"
    path.chmod(0o640)
    with raises(SecurityError, "insecure-permissions"):
        store.load("mnist", "owner")
    path.chmod(0o600)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with raises(ConfigError, "file-not-readable"):
        store.load("mnist", "owner")
    path.unlink()
    os.mkfifo(path, 0o600)
    with raises(ConfigError, "file-damaged"):
        store.load("mnist", "owner")


def test_a_full_disk_leaves_what_was(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = _open_store(tmp_path)
    store.prepare_file(_make_facts(), _draw_tensors(rng)).commit()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with raises(ConfigError, "file-not-writable"):
        store.prepare_file(_make_facts(deployment="d2"), _draw_tensors(rng))
    monkeypatch.undo()
    assert len(list(tmp_path.iterdir())) == 1
    assert store.load("mnist", "owner")[0].deployment == "d1"


def test_an_unusable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with raises(ConfigError, "file-not-writable", operation="models"):
        _open_store(tmp_path / "file")


@pytest.mark.parametrize("mode", [0o777, 0o720, 0o702, 0o1777])
def test_a_folder_where_others_may_write_is_refused(mode: int, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    folder.chmod(mode)
    left = folder / ".mnist.tmp"
    left.write_bytes(b"")
    with raises(SecurityError, "insecure-permissions", operation="models") as refused:
        _open_store(folder)
    assert f"mode {mode:04o}" in str(refused.value)
    assert left.exists()
    folder.chmod(0o755)
    _open_store(folder)


def test_a_folder_and_a_file_of_somebody_else_are_refused(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = _open_store(tmp_path)
    store.prepare_file(_make_facts(), _draw_tensors(rng)).commit()
    other = os.geteuid() or 4712
    if os.geteuid() == 0:  # root's files are accepted as a worker's own
        os.chown(tmp_path / f"mnist{SUFFIX}", other, -1)
        os.chown(tmp_path, other, -1)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with raises(SecurityError, "insecure-permissions"):
        store.load("mnist", "owner")
    store.close()
    with raises(SecurityError, "insecure-permissions", operation="models") as refused:
        _open_store(tmp_path)
    assert f"owner {other} (this worker is 4711)" in str(refused.value)


def test_a_second_worker_does_not_get_the_folder_of_the_first(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    first = _open_store(tmp_path)
    prepared = first.prepare_file(_make_facts(), _draw_tensors(rng))
    for party in (0, 1):
        with raises(ConfigError, "folder-in-use"):
            _open_store(tmp_path, party)
    prepared.commit()  # the partial file still exists
    other = first.for_kind(DATA)
    del first
    with raises(ConfigError, "folder-in-use"):
        _open_store(tmp_path)
    del other
    assert _open_store(tmp_path).load("mnist", "owner")[0].name == "mnist"


@pytest.mark.parametrize("text", ["c" * 200, "\u00e9" * 200, '"' * 200, "\\" * 200, "\ud800" * 200])
def test_what_cannot_be_read_again_is_not_written(
    text: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    store = _open_store(tmp_path).for_kind(DATA)
    # as many names as fit, and one more
    size = len(json.dumps(text)) + 2
    most = [text] * ((MOST_ABOUT - len('{"columns": []}')) // size)
    kept = _draw_tensors(rng)
    store.prepare_file(StoredFacts("wide", "owner", (), "d1", {"columns": most}), kept).commit()
    assert store.get_facts("wide", "owner").about == {"columns": most}
    assert store.list_visible("owner")[0]["about"] == {"columns": most}
    store.permit_writing("wide", "owner", True)
    with raises(UsageError, "too-large", operation="about", expected=1048576):
        store.prepare_file(
            StoredFacts("wider", "owner", (), "d1", {"columns": [*most, text]}), kept
        )
    assert store.list_names() == ["wide"] and len(list(tmp_path.iterdir())) == 1


def test_a_file_of_too_many_arrays_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = _open_store(tmp_path)
    none = np.zeros(0, np.int64)
    monkeypatch.setattr("tfe_bench.cluster.store._MOST_HEADER", 4000)
    for count in (1, 10, 100):
        kept = {f"x{i}": StoredTensor({"m": none, "l1": none}, 0, 16) for i in range(count)}
        if count < 100:
            store.prepare_file(_make_facts(), kept).commit()
            assert len(store.load("mnist", "owner")[1]) == count
            continue
        with raises(UsageError, "too-large"):
            store.prepare_file(_make_facts(), kept)
    assert len(list(tmp_path.iterdir())) == 1


def test_what_cannot_be_read_can_be_removed(tmp_path: Path, rng: np.random.Generator) -> None:
    store = _open_store(tmp_path)
    store.prepare_file(_make_facts(), _draw_tensors(rng)).commit()
    (tmp_path / f"mnist{SUFFIX}").write_bytes(b"x" * 100)
    assert (
        store.get_ownership("mnist", "owner") == store.get_ownership("mnist", "guest") == UNREADABLE
    )
    with raises(ConfigError, "file-damaged"):
        store.permit_writing("mnist", "owner", True)
    store.remove_file("mnist")
    assert store.list_names() == []
