"""Functional encryption in the report: times, growth of logarithms, and leakage of keys."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tfe_bench.benchmarks.report import drawing
from tfe_bench.benchmarks.report.drawing import Maker, Picture, Theme
from tfe_bench.benchmarks.report.parts import NOTHING, Cell, Figure, Number, Part, Section, Table
from tfe_bench.benchmarks.technologies import columns
from tfe_bench.benchmarks.technologies.columns import Column
from tfe_bench.benchmarks.technologies.measurement import Measurement

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

NAMES: Final = ("functional_logarithms", "functional_leakage")
_MEANS: Final = (
    ("walk_seconds", "a walk (modeled)", drawing.GREY, "^"),
    ("table_per_output_seconds", "a table for each result", drawing.ORANGE, "s"),
    ("one_table_seconds", "one table for all", drawing.BLUE, "o"),
)
_SIDE: Final = 28


def _select_functional_job(measured: Sequence[Measurement], job: str) -> list[Measurement]:
    return [m for m in measured if m.technology == "functional" and m.job == job]


def _newest_functional_measurement(measured: Sequence[Measurement], job: str) -> Measurement | None:
    return max(_select_functional_job(measured, job), key=lambda m: m.time, default=None)


def list_pictures(measured: Sequence[Measurement]) -> dict[str, Maker]:
    """Return the function that draws each picture, by name."""
    return {
        NAMES[0]: functools.partial(
            _draw_logarithms, _select_functional_job(measured, "logarithms")
        ),
        NAMES[1]: functools.partial(
            _draw_attacked_pictures, _newest_functional_measurement(measured, "LeNet-5 training")
        ),
    }


def _draw_logarithms(measurements: list[Measurement], theme: Theme, narrow: bool) -> Drawing | None:
    if not measurements:
        return None
    size = (drawing.NARROW, 3.4) if narrow else (6.4, 3.2)
    picture = drawing.new_figure(*size)
    axes = picture.subplots()
    newest = {m.parameters["result_bits"]: m for m in sorted(measurements, key=lambda m: m.time)}
    bits = sorted(newest)
    for name, label, color, marker in _MEANS:
        times = [newest[b].figures[name] for b in bits]
        axes.plot(bits, times, marker=marker, color=color, label=label)
    axes.set_yscale("log")
    drawing.set_plain_ticks(axes.yaxis, _format_time)
    axes.set_xticks(bits)
    axes.grid(True)
    axes.set_xlabel("bits of a result")
    axes.set_ylabel("time for a result")
    drawing.add_legend(axes, narrow, loc="upper left")
    return picture


def _draw_attacked_pictures(
    measurement: Measurement | None, theme: Theme, narrow: bool
) -> Drawing | None:
    import numpy as np

    if measurement is None:
        return None
    rows = list(measurement.figures["pictures"].items())
    count = len(rows[0][1])
    width = drawing.NARROW if narrow else 6.4
    picture = drawing.new_figure(width, width * 0.95 * len(rows) / (count + 0.6))
    grid = picture.subplots(len(rows), count, squeeze=False)
    for line, (label, cell_texts) in zip(grid, rows, strict=True):
        for axes, text in zip(line, cell_texts, strict=True):
            pixels = np.frombuffer(bytes.fromhex(text), np.uint8).reshape(_SIDE, _SIDE)
            axes.imshow(pixels, cmap="gray", vmin=0, vmax=255)
            axes.set_xticks([])
            axes.set_yticks([])
        line[0].set_ylabel(label)
    return picture


def _format_time(seconds: float) -> str:
    for unit, size in (("h", 3600.0), ("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.4g} {unit}"
    return f"{seconds * 1e9:.4g} ns"


def _time_column(name: str, factor: float) -> Column:
    def show(value: float | None) -> Cell:
        return NOTHING if value is None else Number(value, f"{value * factor:.4g}")

    return columns.figure_column(name, show)


def _size_column(name: str) -> Column:
    return lambda m: Number(m.parameters[name], str(m.parameters[name]))


_SWEEP_COLUMNS: Final[Mapping[str, Column]] = {
    "length": _size_column("length"),
    "bits": _size_column("result_bits"),
    "batch": _size_column("batch"),
    "scheme": columns.text_column("scheme", "parameters"),
    "threads": _size_column("threads"),
    "encrypt ms": _time_column("encrypt_seconds", 1e3),
    "key us": _time_column("derive_seconds", 1e6),
    "unpack ms": _time_column("decode_seconds", 1e3),
    "product us": _time_column("evaluate_seconds", 1e6),
    "logarithm us": _time_column("logarithm_seconds", 1e6),
    "decrypt us": _time_column("decrypt_seconds", 1e6),
}
_SWEEP_CAPTION: Final = (
    "Encryption and unpacking of one message, one key, and one result: decryption is a result's "
    "part of unpacking, product and logarithm."
)


def _build_training_hours(measurement: Measurement) -> Table:
    f = measurement.figures
    rows: list[list[Cell]] = [
        [
            "here, encrypted (extrapolated)",
            _format_hours(f["encrypt_all_hours"]),
            _format_hours(f["epoch_hours"]),
        ],
        ["here, in the clear", NOTHING, _format_hours(f["plain_epoch_hours"])],
    ]
    rows += [[f"published: {name}", e, t] for name, e, t in f["published_hours"]]
    cores = f"{measurement.parameters['threads']} threads"
    caption = (
        f"LeNet-5 on MNIST, batches of 64, {cores}: to encrypt all 60,000 pictures once, and of an "
        f"epoch here; measured batches: {measurement.parameters['batches']}. Published figures are "
        "of 128 cores and of a whole training."
    )
    return Table(("", "encryption", "training"), rows, caption)


def _format_hours(value: float) -> Number:
    shown, unit = _format_time(float(f"{3600 * value:.3g}")).split()
    return Number(value, shown, f" {unit}")


def build_sections(
    measured: Sequence[Measurement], pictures: Mapping[str, Picture]
) -> list[Section]:
    """Build the section on functional encryption, if anything was measured."""
    parts: list[Part] = []
    if sweep := _select_functional_job(measured, "sweep"):
        parts += [
            "A key authority gives a server keys for weights; the server learns the inner products "
            "of encrypted vectors with those weights, in the clear, and nothing else.",
            columns.build_table(_SWEEP_COLUMNS, sweep, _SWEEP_CAPTION),
        ]
    if NAMES[0] in pictures:
        words = "Time for a logarithm against the bits of a result, by three means."
        caption = "Discrete logarithms: one table of baby steps serves all results."
        parts.append(Figure(pictures[NAMES[0]], words, caption))
    for m in [m for m in measured if m.technology == "functional" and "modulo" in m.job]:
        f = m.figures
        parts.append(
            f"In a group {m.job} ({m.parameters['security_bits']} bits of security) encryption "
            f"takes {_format_time(f['encrypt_seconds'])} and a result "
            f"{_format_time(f['decrypt_seconds'])}: "
            f"{f['encrypt_ratio']:.3g} and {f['decrypt_ratio']:.3g} times as long as the same "
            "algorithms on the curve (128 bits)."
        )
    if (lenet := _newest_functional_measurement(measured, "LeNet-5 training")) is not None:
        f = lenet.figures
        parts.append(_build_training_hours(lenet))
        parts.append(
            f"Leakage: {f['leakage']}. From what it has decrypted, the server recovers "
            f"{f['pixels_recovered']:.1%} of the pixels exactly by least squares; from "
            f"{f['few_keys']} random keys, {f['few_keys_pixels_recovered']:.1%}. Accuracy on "
            f"{f['tested']} encrypted pictures: {f['accuracy']:.1%}, in the clear "
            f"{f['accuracy_in_the_clear']:.1%}."
        )
        if NAMES[1] in pictures:
            words = "Digits, and what a server reconstructs from all keys and from 128."
            caption = "Test pictures, and what least squares makes of the server's results."
            parts.append(Figure(pictures[NAMES[1]], words, caption))
    return [Section("functional", "Functional encryption", parts)] if parts else []
