"""The report: the records that it reads, the published figures next to them, and the page."""

from __future__ import annotations

import base64
import itertools
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import pytest

from tests.refusals import raises
from tfe_bench.benchmarks import published
from tfe_bench.benchmarks.records import append_record
from tfe_bench.benchmarks.relational import orq
from tfe_bench.benchmarks.report import (
    comparison_columns,
    drawing,
    files,
    html,
    learning,
    network,
    page,
    parts,
    plots,
    published_parts,
    reading,
)
from tfe_bench.cluster import profiles
from tfe_bench.errors import DataError, UsageError

if TYPE_CHECKING:
    from tests.benchmarks.conftest import Maker

_VOID = {"meta", "source", "img", "br", "link"}
_PNG = b"\x89PNG\r\n\x1a\n"
_EVIL = "<script>alert('x')</script>\"&$\\alpha$"


class _Page(HTMLParser):
    """Parser that checks the nesting of elements and collects the parts that tests examine."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] not in (["script"], ["style"]):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def _write_records(folder: Path, make_record: Maker) -> Path:
    """Write and return records for every section of the page."""
    shaped = {"profile": "wan", "profile_emulation": "netns+tun"}
    for n in (1024, 65536, 1 << 20):
        append_record(folder / "records.jsonl", make_record(parameters={"n": n}, seconds=n / 1e5))
        wan = make_record(parameters={"n": n}, seconds=0.4 + n / 1e5, **shaped)
        append_record(folder / "records.jsonl", wan)
    append_record(folder / "records.jsonl", make_record("max", correct=False, seconds=1e-9))
    limited = {"profile": "lan", "profile_emulation": "channel, host-limited"}
    append_record(folder / "other.jsonl", make_record("max", **limited, tls=False))
    evil = {"n": 7, "source": _EVIL, _EVIL: _EVIL}
    append_record(
        folder / "other.jsonl", make_record(_EVIL, parameters=evil, cluster="a&b", protocol=_EVIL)
    )
    return folder


@pytest.mark.usefixtures("one_theme")
def test_the_page_has_every_section_and_nothing_from_outside(
    tmp_path: Path, make_record: Maker
) -> None:
    report_input = reading.read_report_input([_write_records(tmp_path, make_record)])
    written = files.write_page(report_input, tmp_path / "report.html")
    text = written[0].read_text("utf-8")
    parsed = _Page(text)
    ids = [a["id"] for t, a in parsed.tags if t == "section"]
    sections = page.build_report_page(report_input, {}).sections
    assert ids == [section.key for section in sections] and len(ids) == 10
    assert all(section.title in parsed.text for section in sections)

    # Self-contained: no address except data and places on the page, and one script.
    for tag, attributes in parsed.tags:
        for name in ("src", "srcset", "href"):
            if name in attributes:
                assert re.match("data:image/png;base64,|#", attributes[name] or ""), (tag, name)
        assert not any(name.startswith("on") for name in attributes)
    assert "http" not in re.sub('data:image/png;base64,[^"]*', "", text).replace("http-equiv", "")
    assert sum(t == "script" for t, _ in parsed.tags) == 1

    # No text of a record becomes markup.
    assert "<script>alert" not in text and "&lt;script&gt;alert" in text
    assert "$\\alpha$" in parsed.text

    # Wrong results are reported, and never a headline.
    assert "Wrong results" in parsed.text and "1 of 9" in parsed.text
    assert "host-limited" in parsed.text and "no TLS" in parsed.text
    assert published.CAVEAT in parsed.text
    assert "tf-encrypted (README)" in parsed.text and "a CPU" in parsed.text

    # The pictures are PNG, in the page and in its folder.
    uris = re.findall('data:image/png;base64,([^"]+)', text)
    assert len(uris) == 16  # four, light and dark, wide and narrow
    for uri in uris:
        assert base64.b64decode(uri, validate=True).startswith(_PNG)
    names = {"report-time.png", "report-network.png", "report-bytes.png", "report-memory.png"}
    assert {p.name for p in written[1:]} == names
    assert all(p.read_bytes().startswith(_PNG) for p in written[1:])
    left = {p.name for p in tmp_path.iterdir()}
    assert left == {*names, "report.html", "records.jsonl", "other.jsonl"}


@pytest.mark.usefixtures("one_theme")
def test_a_telephone_gets_narrow_pictures_and_whole_captions(
    tmp_path: Path, make_record: Maker
) -> None:
    written = files.write_page(
        reading.read_report_input([_write_records(tmp_path, make_record)]), tmp_path / "report.html"
    )
    parsed = _Page(written[0].read_text("utf-8"))
    narrow = [a for t, a in parsed.tags if t == "source" and "max-width: 40rem" in str(a["media"])]
    assert len(narrow) == 8 and all(int(a["width"] or 999) <= 376 for a in narrow)
    # Elements that scroll sideways contain a table and no text, which would be cut off.
    scrolls = re.findall(r'<div class="scroll">(.*?)</div>', written[0].read_text("utf-8"), re.S)
    assert len(scrolls) == 6 and all(s.startswith("<table>") for s in scrolls)
    assert not any("caption" in s for s in scrolls)
    assert sum(t == "figcaption" for t, _ in parsed.tags) == 10
    # A report of other records does not describe this project's machine.
    assert "our development" not in parsed.text


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("name", ["time", "network", "bytes", "memory", "learning"])
def test_no_legend_title_or_number_of_a_picture_is_cut_off(
    make_record: Maker, name: str, narrow: bool
) -> None:
    scores = {"score": "accuracy", "epochs": [1, 2], "private": [0.9, 0.95], "plain": [0.9, 0.96]}
    fields = {"model": "network-a", "optimizer": "sgd", "batch": 128, "dataset": "mnist"}
    records = [make_record("train", parameters=fields, agreement=scores)]
    options = {"algorithm": "odd-even merge", "descending": True, "source": "int64, seed 1"}
    for n in (1024, 1 << 20):
        for profile in ("local", "lan", "wan"):
            records.append(make_record(parameters={"n": n, **options}, profile=profile))
            records.append(make_record("max", parameters={"shape": f"{n}x4"}, profile=profile))
    with matplotlib.rc_context(drawing.theme_settings(drawing.LIGHT)):
        drawn: Any = getattr(plots, f"_plot_{name}")(records, drawing.LIGHT, narrow)
        drawn.draw_without_rendering()
    assert not narrow or drawn.get_figwidth() <= 376 / 96
    whole = drawn.bbox.padded(1)
    for axes in drawn.axes:
        if axes.axison:
            parts = [axes.get_tightbbox(), axes.title.get_window_extent()]
            parts += [legend.get_window_extent() for legend in drawn.legends]
            for box in parts:
                assert whole.x0 <= box.x0 <= box.x1 <= whole.x1, (box, whole)
                assert whole.y0 <= box.y0 <= box.y1 <= whole.y1, (box, whole)
            shown = [t.get_window_extent() for t in axes.get_xticklabels() if t.get_text()]
            shown = sorted(
                (b for b in shown if axes.bbox.x0 - 1 <= (b.x0 + b.x1) / 2 <= axes.bbox.x1 + 1),
                key=lambda b: b.x0,
            )
            assert all(a.x1 <= b.x0 for a, b in itertools.pairwise(shown)), shown
            assert axes.bbox.height > 100 and axes.bbox.width > 100


def test_a_single_bare_record_makes_a_page(tmp_path: Path, make_record: Maker) -> None:
    bare = make_record(
        "unheard-of",
        parameters={},
        seconds=0.0,
        build_seconds=None,
        bytes_sent=None,
        frame_bytes=None,
        rounds=None,
        rounds_ahead=None,
        peak_memory=None,
        idle_memory=None,
        correct=None,
        max_error=None,
    )
    (tmp_path / "one.json").write_text(bare.to_json())
    written = files.write_page(
        reading.read_report_input([tmp_path / "one.json"]), tmp_path / "p.html"
    )
    parsed = _Page(written[0].read_text("utf-8"))
    assert "unheard-of" in parsed.text and "1 result not checked" in parsed.text
    assert written[1:] == []  # nothing to draw


@pytest.mark.parametrize(
    ("line", "code", "fields"),
    [
        ("{", "invalid-json", {}),
        ("[1]", "not-an-object", {"operation": "record", "received": "list"}),
        ("{}", "unsupported-format", {"operation": "schema", "received": None}),
        (
            '{"schema": 99, "workload": "sort"}',
            "unsupported-format",
            {"operation": "schema", "received": 99},
        ),
        ('{"schema": 1, "workload": "sort"}', "missing-argument", {"operation": "parameters"}),
        ('{"rounds": 1' + "0" * 30 + "}", "too-large", {}),
        ("[" * 100_000, "invalid-json", {}),
    ],
)
def test_a_line_that_is_no_record_is_named(
    tmp_path: Path, make_record: Maker, line: str, code: str, fields: dict[str, Any]
) -> None:
    file = tmp_path / "records.jsonl"
    file.write_text(make_record().to_json() + "\n" + line + "\n")
    with raises(DataError, code, **fields) as caught:
        reading.read_report_input([tmp_path])
    assert "Line 2 of " in str(caught.value)


def test_missing_files_are_data_errors(tmp_path: Path) -> None:
    with raises(DataError, "file-not-found"):
        reading.read_report_input([tmp_path / "none"])
    with raises(DataError, "no-records"):
        reading.read_report_input([tmp_path])
    (tmp_path / "x.csv").write_text("a")
    with raises(DataError, "unsupported-file-type"):
        reading.read_report_input([tmp_path / "x.csv"])
    (tmp_path / "x.jsonl").write_bytes(b"\xff\xfe")
    with raises(DataError, "not-utf8"):
        reading.read_report_input([tmp_path])


def test_other_versions_records_are_read_with_a_note(tmp_path: Path, make_record: Maker) -> None:
    flat = json.loads(make_record().to_json())
    flat["unheard_of"] = {"deep": 1}
    flat["machine"]["gpu"] = "none"
    flat["versions"]["jax"] = "1"
    del flat["idle_memory"], flat["versions"]["grpcio"]
    (tmp_path / "a.json").write_text(json.dumps([flat, flat]))
    (tmp_path / "trace.json").write_text('{"traceEvents": []}')
    report_input = reading.read_report_input([tmp_path])
    assert len(report_input.records) == 1 and report_input.records[0].idle_memory is None
    notes = " ".join(report_input.notes)
    assert "'unheard_of'" in notes and "'machine.gpu'" in notes and "'versions.jax'" in notes
    assert "trace.json holds no records" in notes and "1 records were there twice" in notes
    with raises(DataError, "unsupported-format") as caught:
        reading.read_report_input([tmp_path / "trace.json"])
    assert "trace.json" in str(caught.value)


def test_the_output_is_checked(tmp_path: Path) -> None:
    with raises(UsageError, "unsupported-file-type"):
        files.check_output(tmp_path / "report.pdf")
    with raises(DataError, "file-not-writable"):
        files.check_output(tmp_path / "none" / "report.html")


def test_published_figures_are_as_printed() -> None:
    figures = published.load_figures()
    assert len({(f.system, f.workload, f.size, f.optimizer, f.profile) for f in figures}) == len(
        figures
    )
    by = {(f.system, f.workload, f.size, f.profile): f for f in figures if not f.optimizer}
    assert by["tf-encrypted", "sort", "1000000", "wan"].seconds == 1133.0
    assert by["tf-encrypted", "max", "1000000x4", "lan"].build_seconds == 2.05
    assert by["tf-encrypted (README)", "infer", "resnet50", "wan"].seconds == 84.29
    assert by["tf-encrypted (README)", "max", "65536x4", "wan"].seconds == 1.14
    assert all(f.seconds > 0 and f.source for f in figures)
    assert all(f.setting for f in figures)
    assert {f.profile for f in figures} <= {"", *profiles.PROFILES}
    assert by["MP-SPDZ (32 threads)", "infer", "resnet50", "local"].seconds == 10
    assert by["MP-SPDZ (malicious, 32 threads)", "infer", "resnet50", "local"].seconds == 34
    assert by["CryptDough", "relational", "syan scale 1", "orq-wan"].seconds == 246.8
    assert by["ORQ", "relational", "comorbid scale 1", "orq-wan"].seconds == 494.7
    pigeon = by["PIGEON", "infer", "vgg16-cifar x192", "lan"]
    assert (pigeon.seconds, pigeon.cores) == (1.133, 72)
    assert by["CKKS-Llama", "generate", "llama-2-7b, a token", ""].seconds == 33
    assert by["Squirrel", "gbdt", "1M samples, one tree", "wan"].seconds == 90
    adam = [f for f in figures if f.optimizer == "adam" and f.size == "network-c"]
    assert {(f.system, f.profile) for f in adam} == {
        (s, p) for s in ("tf-encrypted", "mp-spdz") for p in ("lan", "wan")
    }


def test_the_nine_queries_have_published_figures_on_both_networks(make_record: Maker) -> None:
    for workload in orq.WORKLOADS:
        fields = {"question": workload.name, "scale": 1.0}
        for profile in ("local", "lan", "orq-wan"):
            record = make_record("relational", parameters=fields, profile=profile)
            pairs = comparison_columns.find_published_pairs(record)
            assert {p.figure.system for p in pairs} == {"ORQ", "CryptDough"}, (record, profile)
        wan = make_record("relational", parameters=fields, profile="wan")
        assert comparison_columns.find_published_pairs(wan) == []
    text = make_record("bert-base", parameters={"batch": 1}, profile="puma-lan")
    assert [p.figure.system for p in comparison_columns.find_published_pairs(text)] == ["PUMA"]


def test_batches_stand_beside_published_batches_by_core_second(make_record: Maker) -> None:
    fields = {"batch": 64, "images": "64 made up"}
    used = {"cpu_seconds": (4.0, 6.0, 6.0)}
    record = make_record("vgg16-cifar", seconds=8.0, parameters=fields, **used)
    ours = comparison_columns.batch_throughput(record)
    assert ours is not None and ours.per_second == pytest.approx(64 / 8.4)
    assert ours.per_core_second == 4.0
    theirs = {
        (f.system, f.profile): t for f, t in comparison_columns.published_throughputs("vgg16-cifar")
    }
    assert set(theirs) == {(s, p) for s in ("PIGEON", "CryptDough") for p in ("lan", "orq-wan")}
    assert theirs["PIGEON", "lan"].per_second == pytest.approx(192 / 1.133)
    assert theirs["PIGEON", "lan"].per_core_second == pytest.approx(192 / 1.133 / 72)
    tables = published_parts.build_throughput_parts([record])
    assert isinstance(tables[0], parts.Table) and len(tables[0].rows) == 5
    for other in (
        make_record("vgg16-cifar", parameters={**fields, "batch": 1}),
        make_record("vgg16-cifar", parameters=fields, correct=False),
        make_record("train", parameters={"batch": 128}),
        make_record("vgg16-cifar", parameters={**fields, "batch": True}),
    ):
        assert comparison_columns.batch_throughput(other) is None
    unused = comparison_columns.batch_throughput(make_record("vgg19", parameters=fields))
    assert unused is not None and unused.per_core_second is None
    assert comparison_columns.published_throughputs("vgg19") == []


def test_work_that_is_not_run_here_is_listed_with_its_source() -> None:
    rows = published_parts.build_unmatched_table().rows
    systems = {str(row[0]) for row in rows}
    assert {"Squirrel", "Cachemir", "CKKS-Llama"} < systems
    assert any(name.startswith("weirwood") for name in systems)
    assert all(str(row[3]) for row in rows)


def test_only_the_same_work_on_such_a_network_stands_beside_ours(make_record: Maker) -> None:
    exact = comparison_columns.best_published_pair(make_record(seconds=0.07))
    assert exact is not None and exact.exact
    assert exact.figure.seconds == 0.14 and exact.ratio == pytest.approx(0.14 / 0.0735)
    near = comparison_columns.best_published_pair(
        make_record(parameters={"n": 1 << 20}, profile="wan")
    )
    assert near is not None and not near.exact
    assert near.figure.seconds == 1133.0
    assert comparison_columns.best_published_pair(make_record(parameters={"n": 1100})) is None
    assert (
        comparison_columns.best_published_pair(make_record(parameters={"n": 1024, "rows": 4}))
        is None
    )
    assert (
        comparison_columns.best_published_pair(make_record("max", parameters={"shape": "1024x5"}))
        is None
    )
    assert comparison_columns.best_published_pair(make_record(profile="net3")) is None
    assert comparison_columns.best_published_pair(make_record(correct=False)) is None
    model = make_record("infer", parameters={"model": "resnet50"}, profile="wan")
    assert [p.figure.seconds for p in comparison_columns.find_published_pairs(model)] == [
        126.89,
        84.29,
    ]
    one = make_record("resnet50", parameters={"model": "ResNet50", "batch": 1}, profile="wan")
    assert [p.figure.seconds for p in comparison_columns.find_published_pairs(one)] == [
        126.89,
        84.29,
    ]
    several = make_record("resnet50", parameters={"model": "ResNet50", "batch": 2}, profile="wan")
    assert comparison_columns.find_published_pairs(several) == []
    fields = {"model": "network-a", "optimizer": "sgd", "batch": 128, "rows": 60000}
    trained = comparison_columns.find_published_pairs(
        make_record("train", parameters=fields, profile="wan")
    )
    assert {p.figure.seconds for p in trained} == {5.075, 9.724, 4.51}
    other = make_record("train", parameters={**fields, "batch": 64}, profile="wan")
    assert comparison_columns.find_published_pairs(other) == []


def test_curves_are_of_whole_epochs_and_of_the_newest(tmp_path: Path, make_record: Maker) -> None:
    fields = {"model": "network-a", "optimizer": "sgd", "batch": 128, "dataset": "mnist"}

    def trained(after: list[float], private: list[float], **more: Any) -> Any:
        plain = more.pop("plain", private)
        scores = {"score": "accuracy", "epochs": after, "private": private, "plain": plain}
        return make_record("train", parameters={**fields, **more}, agreement=scores)

    records = [
        trained([0.2], [0.5], steps=5),
        trained([1, 2], [0.9, 0.95], epochs=2, plain=[0.91, 0.96]),
        trained([1], [0.9], epochs=1),
        trained([1], [0.9], optimizer="adam", plain=None),
        make_record("train", parameters=fields, agreement={"top1": 1.0}),
    ]
    curves = learning.collect_curves(records)
    assert [(c.optimizer, c.epochs, c.plain) for c in curves] == [
        ("sgd", (1.0, 2.0), (0.91, 0.96)),
        ("adam", (1.0,), None),
    ]
    theirs = curves[0].published_figure()
    assert theirs is not None and theirs.accuracy == 96.8
    written = files.write_page(reading.ReportInput(tuple(records), (), ()), tmp_path / "r.html")
    assert tmp_path / "r-learning.png" in written
    drawn = plots.draw_record_plots(records)["learning"]
    assert drawn.light.startswith(_PNG) and drawn.dark.startswith(_PNG)
    document = page.build_report_page(
        reading.ReportInput(tuple(records), (), ()), {"learning": drawn}
    )
    text = html.render_html(document)
    assert "right answers by epochs" in text and "same weights to begin with" in text
    (learned,) = (section for section in document.sections if section.key == "learning")
    (table,) = (part for part in learned.parts if isinstance(part, parts.Table))
    numbers = {c.shown for row in table.rows for c in row if isinstance(c, parts.Number)}
    assert {"95.00", "96.00", "-1.00", "96.80", "90.00"} <= numbers


def test_the_newest_right_record_counts(make_record: Maker) -> None:
    old = make_record(time="2026-01-01T00:00:00+00:00")
    new = make_record(time="2026-01-02T00:00:00+00:00", seconds=0.1)
    wrong = make_record(time="2026-01-03T00:00:00+00:00", correct=False)
    wan = make_record(profile="wan")
    assert comparison_columns.latest_records([new, old, wrong, wan]) == [new, wan]


def test_the_networks_share(make_record: Maker) -> None:
    share = network.network_share(
        make_record(profile="wan", rounds_ahead=10, bytes_sent=(0, 44, 1))
    )
    assert share is not None
    assert share.latency == pytest.approx(0.2) and share.transfer == pytest.approx(1e-6)
    assert share.floor == share.latency
    assert network.network_share(make_record()) is None
    assert network.network_share(make_record(profile="wan", rounds_ahead=None)) is None
    forecast = {"seconds": {"wan": 0.25, "lan": 0.01}}
    assert network.predicted_seconds(make_record(profile="wan", prediction=forecast)) == 0.25
    assert network.predicted_seconds(make_record(prediction=forecast)) is None
    assert (
        network.predicted_seconds(make_record(profile="wan", prediction={"seconds": "none"}))
        is None
    )


def _find_browser() -> str | None:
    return next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )


@pytest.mark.slow
@pytest.mark.skipif(_find_browser() is None, reason="no browser here")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_shows_the_page(tmp_path: Path, make_record: Maker, scheme: str) -> None:
    import numpy as np
    from matplotlib import image

    report_input = reading.read_report_input([_write_records(tmp_path, make_record)])
    written = files.write_page(report_input, tmp_path / "report.html")
    browser = _find_browser()
    assert browser is not None
    common = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    common += [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1280,2400"]
    common += [f"--blink-settings=preferredColorScheme={int(scheme == 'light')}"]
    address = written[0].as_uri()
    shot = tmp_path / "shot.png"
    subprocess.run(
        [*common, f"--screenshot={shot}", address], check=True, capture_output=True, timeout=120
    )
    pixels = np.asarray(image.imread(shot))[..., :3]
    assert pixels.shape == (2400, 1280, 3)
    assert (np.median(pixels) > 0.9) == (scheme == "light")
    assert pixels.std() > 0.02  # the page is not empty
    # Its script ran: heads of tables are buttons now.
    dom = subprocess.run(
        [*common, "--dump-dom", address], check=True, capture_output=True, text=True, timeout=120
    ).stdout
    assert '<button type="button" title="sort">' in dom
