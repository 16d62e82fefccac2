"""Homomorphic encryption in the report: operations compared with the published table, jobs."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from tfe_bench.benchmarks.report import cells, drawing
from tfe_bench.benchmarks.report.drawing import Maker, Picture, Theme
from tfe_bench.benchmarks.report.parts import NOTHING, Cell, Figure, Part, Section, Table
from tfe_bench.benchmarks.table import format_three_digits
from tfe_bench.benchmarks.technologies import columns
from tfe_bench.benchmarks.technologies.columns import Column
from tfe_bench.benchmarks.technologies.homomorphic import advice, published
from tfe_bench.benchmarks.technologies.homomorphic.operations import BY_N, DEPTH, OPERATIONS
from tfe_bench.benchmarks.technologies.homomorphic.parameters import SCHEMES, usual_primes
from tfe_bench.benchmarks.technologies.measurement import Measurement

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

NAMES: Final = ("homomorphic",)
_COLORS: Final = dict(zip(SCHEMES, (drawing.BLUE, drawing.GREEN, drawing.RED), strict=True))
_TABLED: Final = (*OPERATIONS, BY_N, DEPTH)
_SIZES: Final = (
    *("fresh_ciphertext_bytes", "relinearization_key_bytes", "rotation_keys_bytes"),
    "peak_memory_bytes",
)
_NUMBERS: Final = (
    *("published_seconds", "published_ratio", "noise_budget_bits", "max_abs_error", "accuracy"),
    *("throughput_per_second", "bytes_up", "bytes_down", "key_bytes"),
)


def list_pictures(measured: Sequence[Measurement]) -> dict[str, Maker]:
    """Return the function that draws the operations, at the largest degree of all schemes."""
    return {
        "homomorphic": functools.partial(_draw_operations, _newest_scheme_measurements(measured))
    }


def build_sections(
    measured: Sequence[Measurement], pictures: Mapping[str, Picture]
) -> list[Section]:
    """Build one section, if anything was measured."""
    newest = _newest_scheme_measurements(measured)
    table = [m for m in newest if m.job in _TABLED]
    jobs = [m for m in newest if m.job not in _TABLED]
    parts: list[Part] = []
    if "homomorphic" in pictures:
        words = "time of each operation by scheme, ours and published"
        caption = (
            "Median of each operation at the largest degree measured, logarithmic: filled marks "
            f"are ours, hollow ones published. {published.DEBUG_BUILD}"
        )
        parts.append(Figure(pictures["homomorphic"], words, caption))
    if table:
        parts += [_build_scheme_operations(table), published.DEFECT]
        if depths := [m for m in table if m.job == DEPTH]:
            parts.append(columns.build_table(_SECURITY_COLUMNS, depths, _SECURITY_CAPTION))
        parts.append(_build_advice(table))
    if jobs:
        parts.append(columns.build_table(_JOB_COLUMNS, jobs, _JOB_CAPTION))
    return [Section("homomorphic", "Homomorphic encryption", parts)] if parts else []


def _newest_scheme_measurements(measured: Sequence[Measurement]) -> list[Measurement]:
    """Select the newest correct measurement of each job, parameters (but the seed) and machine."""
    newest: dict[str, Measurement] = {}
    for measurement in sorted(measured, key=lambda m: m.time):
        if _is_whole(measurement) and measurement.correct is not False:
            of = {k: v for k, v in measurement.parameters.items() if k != "seed"}
            newest[repr((measurement.job, sorted(of.items()), measurement.machine))] = measurement
    return sorted(newest.values(), key=_scheme_sort_key)


def _is_whole(m: Measurement) -> bool:
    """Return True if it is a measurement with all figures of the tables; files are untrusted."""
    of = m.parameters
    if m.technology != "homomorphic" or of.get("scheme") not in SCHEMES:
        return False
    bits = of.get("prime_bits")
    numbers = [of.get("degree"), *(bits if isinstance(bits, list) else [None])]
    needed: tuple[str, ...] = ()
    if m.job == DEPTH:
        numbers.append(of.get("security_bits"))
        needed = ("depth", *_SIZES)
    elif m.job in _TABLED:
        needed = ("per_slot_seconds",)
    if m.job in _TABLED and of["scheme"] != "CKKS":
        numbers.append(of.get("plaintext_modulus_bits"))
    numbers += [m.figures.get(name) for name in needed]
    numbers += [m.figures[name] for name in _NUMBERS if name in m.figures]
    return all(isinstance(n, (int, float)) for n in numbers)


def _scheme_sort_key(m: Measurement) -> tuple[int, int, int, str]:
    scheme = str(m.parameters.get("scheme", ""))
    rank = SCHEMES.index(scheme) if scheme in SCHEMES else len(SCHEMES)
    job = _TABLED.index(m.job) if m.job in _TABLED else len(_TABLED)
    return rank, int(m.parameters.get("degree", 0)), job, m.job


def _label_measurement(m: Measurement) -> str:
    return f"{m.parameters['scheme']}, N = {m.parameters['degree']:,}"


# At the largest degree.
_LARGEST_COLUMNS: Final = {
    "per slot, ns": columns.figure_column("per_slot_seconds", scale=1e9),
    "noise left, bits": columns.figure_column("noise_budget_bits", cells.whole),
    "error": columns.figure_column("max_abs_error", columns.format_error),
}


def _build_scheme_operations(table: Sequence[Measurement]) -> Table:
    degrees = sorted({int(m.parameters["degree"]) for m in table})
    grouped: dict[tuple[str, str], dict[int, Measurement]] = {}
    for m in table:
        if m.seconds is not None:
            key = (_describe_scheme(m), m.job)
            grouped.setdefault(key, {})[int(m.parameters["degree"])] = m
    rows: list[list[Cell]] = []
    for (scheme, job), by_degree in grouped.items():
        row: list[Cell] = [scheme, job]
        for degree in degrees:
            row += _compare_published(by_degree.get(degree))
        largest = by_degree[max(by_degree)]
        rows.append([*row, *(cell(largest) for cell in _LARGEST_COLUMNS.values())])
    each = [(f"N = {n:,}, ms", "published, ms", "ratio") for n in degrees]
    head = ("scheme", "operation", *(name for names in each for name in names))
    caption = (
        "Medians on one thread; the last three columns are of the largest degree. A slot is one of "
        "the values in a ciphertext. BFV and BGV compute exactly until no noise budget is left; "
        "CKKS has an error. With ?: an error of copying in the published table."
    )
    return Table((*head, *_LARGEST_COLUMNS), rows, caption)


def _describe_scheme(m: Measurement) -> str:
    """Name the scheme, with its primes if they are not the default ones."""
    of = m.parameters
    name, bits = str(of["scheme"]), tuple(of["prime_bits"])
    if bits == usual_primes(name, int(of["degree"])):
        return name
    return f"{name}, primes of {', '.join(map(str, bits))} bits"


def _compare_published(m: Measurement | None) -> list[Cell]:
    """Return our figure, the published figure and their ratio."""
    if m is None or m.seconds is None:
        return [NOTHING] * 3
    figures = m.figures
    theirs = figures.get("published_seconds")
    suspect = " ?" if "published_suspect" in figures else ""
    return [
        cells.seconds(m.seconds.median * 1e3),
        NOTHING
        if theirs is None
        else cells.report_number_cell(format_three_digits, suspect, theirs * 1e3),
        cells.ratio(figures.get("published_ratio")),
    ]


def _build_advice(table: Sequence[Measurement]) -> Table:
    rows: list[list[Cell]] = []
    for name, work in advice.USUAL.items():
        choices = advice.list_scheme_choices(work, table)
        able = [c for c in choices if c.seconds is not None]
        refused = next((c.reason for c in choices if c.reason), "")
        if able:
            best = able[0]
            assert best.seconds is not None
            took = cells.seconds(best.seconds * 1e3)
            rows.append(
                [name, f"{best.scheme}, N = {best.degree:,}", took, cells.whole(best.slots)]
            )
        else:
            rows.append([name, f"none ({refused})", NOTHING, NOTHING])
    caption = (
        "The fastest measured choice, by each job's count of operations. For another job: "
        "python -m tfe_bench homomorphic --advise exact,plain=128,rotate=16,depth=2."
    )
    return Table(("job", "take", "ms", "results side by side"), rows, caption)


_SECURITY_COLUMNS: Final[Mapping[str, Column]] = {
    "parameters": _label_measurement,
    "bits of the primes": lambda m: ", ".join(map(str, m.parameters["prime_bits"])),
    "security, bits": lambda m: (
        cells.whole(security) if (security := int(m.parameters["security_bits"])) else "below 128"
    ),
    "depth": columns.figure_column("depth", cells.whole),
    "ciphertext, MB": columns.figure_column(_SIZES[0], cells.megabytes),
    "key for products, MB": columns.figure_column(_SIZES[1], cells.megabytes),
    "all rotation keys, MB": columns.figure_column(_SIZES[2], cells.megabytes),
    "peak memory, MB": columns.figure_column(_SIZES[3], cells.megabytes),
}
_SECURITY_CAPTION: Final = (
    "Security by the Homomorphic Encryption Standard's table; depth is the number of consecutive "
    "squarings with a correct result."
)
_JOB_COLUMNS: Final[Mapping[str, Column]] = {
    "job": lambda m: m.job,
    "parameters": _label_measurement,
    "batch": lambda m: cells.whole(m.parameters.get("batch", m.parameters.get("images"))),
    "ms": columns.median_column(1e3),
    "a second": columns.figure_column("throughput_per_second"),
    "up, MB": columns.figure_column("bytes_up", cells.megabytes),
    "down, MB": columns.figure_column("bytes_down", cells.megabytes),
    "keys, MB": columns.figure_column("key_bytes", cells.megabytes),
    "error": columns.figure_column("max_abs_error", columns.format_error),
    "accuracy": columns.figure_column("accuracy", cells.part, 100),
}
_JOB_CAPTION: Final = (
    "Encrypting, computing and decrypting. The server learns nothing; the client has the secret "
    "key and decrypts alone."
)


def _draw_operations(newest: Sequence[Measurement], theme: Theme, narrow: bool) -> Drawing | None:
    timed = [m for m in newest if m.job in OPERATIONS and m.seconds is not None]
    if not timed:
        return None
    degrees = {int(m.parameters["degree"]) for m in timed}
    schemes_of = {
        d: {m.parameters["scheme"] for m in timed if m.parameters["degree"] == d} for d in degrees
    }
    degree = max(degrees, key=lambda d: (len(schemes_of[d]), d))
    shown = {(m.parameters["scheme"], m.job): m for m in timed if m.parameters["degree"] == degree}
    names = [name for name in OPERATIONS if any(job == name for _, job in shown)]
    figure = drawing.new_figure(drawing.NARROW if narrow else 7.6, 0.34 * len(names) + 1.8)
    axes: Any = figure.subplots()
    for place, scheme in enumerate(SCHEMES):
        of = {name: shown[scheme, name] for name in names if (scheme, name) in shown}
        heights = [names.index(name) + 0.22 * (place - 1) for name in of]
        ours = [m.seconds.median for m in of.values() if m.seconds is not None]
        if not of:
            continue
        axes.plot(ours, heights, "o", color=_COLORS[scheme], label=f"{scheme}, ours")
        theirs = [
            (m.figures["published_seconds"], h)
            for m, h in zip(of.values(), heights, strict=True)
            if "published_seconds" in m.figures
        ]
        if theirs:
            axes.plot(
                *zip(*theirs, strict=True),
                **{"marker": "o", "linestyle": "none", "markerfacecolor": "none"},
                color=_COLORS[scheme],
                label=f"{scheme}, published",
            )
    axes.set_xscale("log")
    axes.set_xticks([1e-4, 1e-2, 1.0])
    drawing.set_plain_ticks(axes.xaxis, lambda v: f"{v * 1e3:g} ms" if v < 1 else f"{v:g} s")
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.grid(True, axis="both")
    axes.set_title(f"Operations at N = {degree:,}", loc="left", fontweight="bold", fontsize=10)
    # below the axis, so that our and published marks stand side by side
    axes.legend(loc="upper center", bbox_to_anchor=(0.4, -0.06), ncols=2 if narrow else 3)
    del theme
    return figure
