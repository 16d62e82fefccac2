"""A record is complete, survives its file, and refuses unknown fields."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.benchmarks.conftest import USUAL
from tests.paths import ROOT
from tests.refusals import raises
from tfe_bench.benchmarks import provenance
from tfe_bench.benchmarks.provenance import Machine
from tfe_bench.benchmarks.records import (
    Record,
    RecordedOpening,
    Seconds,
    append_record,
    read_records,
)
from tfe_bench.errors import DataError, UsageError


def a_record(**changes: Any) -> Record:
    every: dict[str, Any] = {
        "parameters": {"n": 1024, "kind": "int64", "shape": (2, 3), "none": None},
        "repeats": 3,
        "seconds": Seconds.from_times([0.3, 0.1, 0.2]),
        "build_seconds": 1.5,
        "start_seconds": 2,
        "share_seconds": 0.0,
        "bytes_sent": [1, 2, 3],
        "frame_bytes": (4, 5, 6),
        "rounds": 10,
        "rounds_ahead": 7,
        "peak_memory": [2**40, 0, 1],
        "idle_memory": [5, 5, 5],
        "protocol": "exact",
        "profile": "lan",
        "profile_emulation": "host-limited",
    }
    usual = {name: value for name, value in USUAL.items() if name != "machine"}
    return Record(**{**usual, **every, **changes})


def drop_fields(record: Record, **changes: Any) -> str:
    flat = json.loads(record.to_json()) | changes
    return json.dumps({k: v for k, v in flat.items() if v != "DROP"})


OPTIONAL = [
    "build_seconds",
    "start_seconds",
    "share_seconds",
    "bytes_sent",
    "frame_bytes",
    "rounds",
    "rounds_ahead",
    "peak_memory",
    "idle_memory",
    "correct",
    "max_error",
    "profile_emulation",
    "commit",
]


def test_a_record_equals_what_is_read_back() -> None:
    record = a_record()
    line = record.to_json()
    assert "\n" not in line
    assert json.loads(line)["schema"] == 1
    assert Record.from_json(line) == record
    assert record.parameters["shape"] == [2, 3]
    empty = a_record(**dict.fromkeys(OPTIONAL))
    assert Record.from_json(empty.to_json()) == empty


@settings(deadline=None, print_blob=True)
@example(times=[0.0])
@example(times=[0.1, 0.2])
@example(times=[5e-324, 1.7e308])
@example(times=[0.1, 0.1, 0.3])
@given(times=st.lists(st.floats(0, 1e300), min_size=1, max_size=20))
def test_times_survive_exactly_with_their_statistics(times: list[float]) -> None:
    record = a_record(seconds=Seconds.from_times(times), repeats=len(times))
    back = Record.from_json(record.to_json()).seconds
    assert back.all == tuple(times)
    assert back.min == min(times) <= back.median <= max(times) == back.max


@pytest.mark.parametrize("error", [0.0, 1e-9, 3, math.inf, -math.inf, math.nan])
def test_an_unbounded_error_is_recorded_in_valid_json(error: float) -> None:
    line = a_record(correct=False, max_error=error).to_json()

    def refuse(_: str) -> None:
        raise AssertionError("not JSON")

    json.loads(line, parse_constant=refuse)
    back = Record.from_json(line).max_error
    assert back == error or (math.isnan(error) and back is not None and math.isnan(back))


def test_numpy_scalars_become_plain_numbers() -> None:
    record = a_record(
        parameters={"n": np.int64(5), "x": np.float32(0.5), "b": np.bool_(True)},
        bytes_sent=(np.int64(1), np.uint64(2), 3),
        rounds=np.int32(4),
        correct=np.bool_(False),
        max_error=np.float32(0.25),
        seconds=Seconds.from_times(list(np.array([1.0, 2.0, 3.0]))),
    )
    assert Record.from_json(record.to_json()) == record
    assert type(record.rounds) is int
    assert record.correct is False


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("wrong-type", {"workload": ""}),
        ("wrong-type", {"workload": None}),
        ("wrong-type", {"parameters": [1]}),
        ("wrong-type", {"parameters": {"x": math.nan}}),
        ("wrong-type", {"parameters": {"x": object()}}),
        ("wrong-type", {"parameters": {"x": {"y": b""}}}),
        ("length-mismatch", {"repeats": 2}),
        ("wrong-type", {"repeats": True}),
        ("wrong-type", {"seconds": 1.0}),
        ("missing-argument", {"machine": {}}),
        ("number-out-of-range", {"build_seconds": -1}),
        ("number-out-of-range", {"build_seconds": math.inf}),
        ("number-out-of-range", {"build_seconds": 10**400}),
        ("wrong-type", {"build_seconds": "1"}),
        ("wrong-type", {"bytes_sent": 3}),
        ("wrong-type", {"bytes_sent": [1, 2]}),
        ("number-out-of-range", {"bytes_sent": [1, 2, -3]}),
        ("wrong-type", {"bytes_sent": [1, 2, 3.0]}),
        ("wrong-type", {"rounds": 1.5}),
        ("wrong-type", {"ring": None}),
        ("wrong-type", {"correct": 1}),
        ("wrong-type", {"tls": None}),
        ("wrong-type", {"tls": "yes"}),
        ("invalid-name", {"cluster": "/home/ann/cluster.toml"}),
        ("unknown-name", {"versions": {"numpy": "2"}}),
        ("wrong-type", {"versions": dict.fromkeys(provenance.VERSIONED, 3)}),
        ("invalid-time", {"time": "yesterday"}),
        ("invalid-time", {"time": "2025-01-01T00:00:00"}),
        ("invalid-time", {"time": "2025-01-01T00:00:00+01:00"}),
        ("invalid-time", {"time": None}),
    ],
)
def test_figures_that_cannot_be_are_refused_here_and_in_files(
    code: str, changes: dict[str, Any]
) -> None:
    with raises(UsageError, code):
        a_record(**changes)
    try:
        line = drop_fields(a_record(), **changes)
    except (TypeError, ValueError):
        return  # JSON cannot express this
    with pytest.raises(DataError):
        Record.from_json(line)


@pytest.mark.parametrize(
    "arguments",
    [
        (1.0, 1.0, 1.0, ()),
        (2.0, 1.0, 1.0, (1.0,)),
        (1.0, 0.5, 1.0, (1.0,)),
        (1.0, 1.0, 1.5, (1.0,)),
        (-1.0, -1.0, -1.0, (-1.0,)),
        (math.nan, math.nan, math.nan, (math.nan,)),
    ],
)
def test_times_that_disagree_are_refused(arguments: Any) -> None:
    with pytest.raises(UsageError):
        Seconds(*arguments)
    with pytest.raises(UsageError):
        Seconds.from_times([])


@pytest.mark.parametrize(
    ("text", "code", "fields", "part"),
    [
        ("", "invalid-json", {"operation": "a record of this version"}, ""),
        ("[]", "not-an-object", {"operation": "a record of this version", "received": "list"}, ""),
        ("{", "invalid-json", {"operation": "a record of this version"}, ""),
        (
            '{"schema": 1, "max_error": NaN}',
            "invalid-json",
            {"operation": "a record of this version"},
            "NaN",
        ),
        ("[" * 100_000, "invalid-json", {"operation": "a record of this version"}, ""),
        ("{}", "unsupported-format", {"operation": "schema", "received": None}, ""),
        (drop_fields(a_record(), schema=2), "unsupported-format", {"received": 2}, ""),
        (drop_fields(a_record(), schema=True), "unsupported-format", {"received": True}, ""),
        (
            drop_fields(a_record(), round=3),
            "unknown-option",
            {"operation": "a record of this version", "received": "round"},
            'Did you mean "rounds"',
        ),
        (
            drop_fields(a_record(), rounds="DROP", tls="DROP"),
            "missing-argument",
            {"operation": "rounds"},
            "",
        ),
        (
            drop_fields(a_record(), seconds=[1]),
            "wrong-type",
            {"operation": "seconds of a record"},
            "",
        ),
        (
            drop_fields(a_record(), seconds={"median": 1}),
            "missing-argument",
            {"operation": "min"},
            "",
        ),
        (
            drop_fields(a_record(), seconds={"median": 1, "min": 1, "max": 1, "all": 1}),
            "wrong-type",
            {"operation": "all"},
            "",
        ),
        (
            drop_fields(a_record(), machine={"host": "x"}),
            "unknown-option",
            {"operation": "the machine of a record", "received": "host"},
            "",
        ),
        (drop_fields(a_record(), max_error="big"), "wrong-type", {"operation": "max_error"}, ""),
    ],
)
def test_lines_that_are_no_record_are_data_errors(
    text: str, code: str, fields: dict[str, Any], part: str
) -> None:
    with raises(DataError, code, **fields) as caught:
        Record.from_json(text)
    assert part in str(caught.value)


def test_parameters_have_names() -> None:
    with raises(UsageError, "wrong-type", operation="parameters"):
        a_record(parameters={1: 2})


def test_records_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        a_record().rounds = 3  # type: ignore[misc]


def test_changing_the_callers_parameters_does_not_change_the_record() -> None:
    parameters: dict[str, Any] = {"sizes": [1]}
    record = a_record(parameters=parameters)
    parameters["sizes"].append(2)
    parameters["more"] = 1
    assert record.parameters == {"sizes": [1]}


# --- files ------------------------------------------------------------------------------------


def test_appended_records_are_read_in_order_from_a_private_file(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    first, second = a_record(), a_record(workload="max", parameters={"text": "a\nb\u2028ö\udcff"})
    append_record(path, first)
    append_record(str(path), second)
    assert read_records(path) == [first, second]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_bytes().count(b"\n") == 2


def test_a_line_that_was_cut_short_does_not_spoil_the_next(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"schema"')
    append_record(path, a_record())
    lines = path.read_text().splitlines()
    assert lines[0] == '{"schema"'
    assert Record.from_json(lines[1]).workload == "sort"
    with raises(DataError, "invalid-json") as caught:
        read_records(path)
    assert "Line 1 of" in str(caught.value)


def test_several_processes_append_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    (tmp_path / "line").write_text(a_record(parameters={"x": "y" * 5000}).to_json())
    code = (
        "import sys, pathlib\n"
        "from tfe_bench.benchmarks.records import Record, append_record\n"
        "r = Record.from_json(pathlib.Path(sys.argv[2]).read_text())\n"
        "[append_record(sys.argv[1], r) for _ in range(50)]\n"
    )
    command = [sys.executable, "-c", code, str(path), str(tmp_path / "line")]
    running = [subprocess.Popen(command, cwd=ROOT) for _ in range(2)]
    assert [process.wait(60) for process in running] == [0, 0]
    assert len(read_records(path)) == 100


def test_unwritable_and_unreadable_files_are_data_errors(tmp_path: Path) -> None:
    for bad in (tmp_path, tmp_path / "no" / "r.jsonl"):
        with raises(DataError, "file-not-writable"):
            append_record(bad, a_record())
        with raises(DataError, "file-not-readable"):
            read_records(bad)
    (tmp_path / "b").write_bytes(b"\xff")
    with raises(DataError, "not-utf8"):
        read_records(tmp_path / "b")


@pytest.fixture
def record_file(tmp_path: Path) -> tuple[Path, bytes]:
    """Return a file of one record, and its content."""
    path = tmp_path / "r.jsonl"
    append_record(path, a_record())
    return path, path.read_bytes()


def test_a_disk_that_is_full_halfway_keeps_what_was_there(
    record_file: tuple[Path, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, before = record_file
    whole = os.write
    monkeypatch.setattr(os, "write", lambda handle, line: whole(handle, line[:20]))
    for file in (path, path.with_name("new.jsonl")):
        with raises(DataError, "disk-full") as caught:
            append_record(file, a_record())
        assert caught.value.exit_code == 10
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["r.jsonl"]


def test_a_line_that_never_reached_the_disk_is_taken_back(
    record_file: tuple[Path, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, before = record_file

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with raises(DataError, "file-not-writable") as caught:
        append_record(path, a_record())
    assert os.strerror(errno.ENOSPC) in str(caught.value)
    assert path.read_bytes() == before


def test_records_of_before_the_breakdown_are_still_read() -> None:
    later = [
        "cpu_seconds",
        "messages",
        "bytes_by_link",
        "breakdown",
        "prediction",
        "instruction_sets",
        "opened",
    ]
    old = Record.from_json(drop_fields(a_record(), **dict.fromkeys(later, "DROP")))
    assert all(getattr(old, name) is None for name in later)


def test_the_breakdown_survives_its_file() -> None:
    part = {"run": 0.5, "waiting": [0.0, 0.1, 0.2], "processor": None, "ops": {"MatMul": 0.1}}
    record = a_record(
        cpu_seconds=(0.1, 0.2, 3),
        instruction_sets=["amx", "ifma", "avx2"],
        messages=[1, 2, 3],
        bytes_by_link=[[0, 1, 2], [3, 0, 4], [5, 6, 0]],
        breakdown=[part, part, part],
        prediction={"rounds": 3, "seconds": {"wan": 0.6}, "ratio": None},
        opened=(RecordedOpening("values", 2, 128, None), RecordedOpening("losses", 1, 64, 2)),
    )
    assert Record.from_json(record.to_json()) == record
    for bad in (
        {"cpu_seconds": [1, 2]},
        {"instruction_sets": ["amx", "", "amx"]},
        {"bytes_by_link": [[1], [2], [3]]},
        {"prediction": 1},
        {"opened": ["values"]},
        {"opened": [{"what": "values", "count": 1, "bits": 64}]},
        {"opened": [{"what": "values", "count": -1, "bits": 64, "to": None}]},
        {"opened": [{"what": "values", "count": 1, "bits": 64, "to": 3}]},
    ):
        with pytest.raises(UsageError):
            a_record(**bad)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_a_data_error() -> None:
    with raises(DataError, "file-not-writable") as caught:
        append_record("/dev/full", a_record())
    assert os.strerror(errno.ENOSPC) in str(caught.value)


# --- this machine -----------------------------------------------------------------------------


def test_this_machine_is_described_without_its_name() -> None:
    here = provenance.read_machine_facts()
    assert here == provenance.read_machine_facts()
    assert here.cpu and here.cores >= 1 and here.memory_bytes > 2**20
    assert here.kernel.split()[1] == os.uname().release
    assert [f.name for f in dataclasses.fields(Machine)] == [
        "cpu",
        "cores",
        "memory_bytes",
        "kernel",
    ]


def test_versions_are_found_without_importing_tensorflow_or_grpc() -> None:
    code = (
        "import sys, json\n"
        "from tfe_bench.benchmarks import provenance, records, table\n"
        "from tfe_bench.cli.data import columns, results\n"
        "from tfe_bench.protocols.session import fixedpoint\n"
        "print(json.dumps([provenance.versions(), sorted(sys.modules)]))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    versions, modules = json.loads(out)
    assert list(versions) == ["tfe_bench", "tensorflow", "numpy", "grpcio", "python"]
    assert versions["numpy"] == np.__version__
    assert versions["python"] == ".".join(map(str, sys.version_info[:3]))
    assert not {"tensorflow", "grpc", "pandas"} & set(modules)


def test_a_package_that_is_not_installed_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "_DISTRIBUTIONS", {"tensorflow": ("no-such-distribution",)})
    assert provenance.versions()["tensorflow"] is None


def run_git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    command = ["git", *identity, *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_the_commit_says_whether_the_checkout_was_modified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "code.py"
    file.write_text("1\n")
    run_git(tmp_path, "init", "-q")
    provenance.commit.cache_clear()
    assert provenance.commit(file) is None, "not tracked: an installed package within a checkout"
    run_git(tmp_path, "add", "code.py")
    provenance.commit.cache_clear()
    assert provenance.commit(file) is None, "no commit yet"
    run_git(tmp_path, "commit", "-q", "-m", "one")
    head = run_git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "stray").write_text("untracked files do not count")
    link = tmp_path.parent / f"{tmp_path.name}_link"
    link.symlink_to(tmp_path)
    monkeypatch.setenv("GIT_DIR", "/nowhere")  # as in a hook
    provenance.commit.cache_clear()
    assert provenance.commit(file) == head
    assert provenance.commit(link / "code.py") == head
    file.write_text("2\n")
    assert provenance.commit(file) == head, "the first answer is kept"
    provenance.commit.cache_clear()
    assert provenance.commit(file) == f"{head}+dirty"
    provenance.commit.cache_clear()


def test_the_commit_never_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    provenance.commit.cache_clear()
    assert provenance.commit(tmp_path / "code.py") is None
    assert provenance.commit(tmp_path / "no" / "such" / "code.py") is None
    monkeypatch.setenv("PATH", "")
    provenance.commit.cache_clear()
    assert provenance.commit() is None
    provenance.commit.cache_clear()
