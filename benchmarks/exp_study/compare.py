"""Comparison of the study with the published figures, as rows of the five files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tfe_bench.benchmarks.exp_study import published
from tfe_bench.benchmarks.exp_study.forms import ExpForm
from tfe_bench.benchmarks.exp_study.grid import NAMES
from tfe_bench.benchmarks.exp_study.levels import CLOSED_FORM, LEVELS, MEASURED, MODELED
from tfe_bench.benchmarks.exp_study.measurement import ExpMeasurement
from tfe_bench.benchmarks.exp_study.published import Published
from tfe_bench.benchmarks.exp_study.study import LOCAL, QUANTITIES, ExpStudy, TimePoint
from tfe_bench.benchmarks.workloads.links import PAIRS as PAIRS_OF_WORKERS
from tfe_bench.cluster.profiles import NetworkProfile

Row = dict[str, Any]
PROTOCOL = "RSS3"

PAIRS = (
    (ExpForm("one-round", 128), "prime"),
    (ExpForm("prime", 128), "prime"),
    (ExpForm("prime", 128, "low"), "prime"),
    (ExpForm("taylor", 128), "taylor-8"),
    (ExpForm("pade", 128), "pade"),
    (ExpForm("pade", 128, "both"), "pade"),
    (ExpForm("one-round", 64), "prime"),
    (ExpForm("taylor", 64), "taylor-8"),
    (ExpForm("pade", 64), "pade"),
)
"""Which form is held against which published column."""
# Of these metrics more is better.
_MORE = ("range score (mean of six)", *NAMES)
_WITH_DEALER = "ours with the dealer's material, published without"
_TWO_PARTIES = "published: two parties, the dealer's not counted"
_NO_DEALER = "like for like: the dealer's not counted on either side"
_DEALER_AHEAD = "like for like: the dealer's material is there on either side"


def exp_rows(study: ExpStudy) -> list[Row]:
    """Return exp.csv: each measurement locally and at four levels, and larger n by closed forms.

    A level's time is measured there, or modeled if it was not; bytes, rounds and memory are
    those of the local measurement in either case.
    """
    rows = []
    for form, measurements in study.measurements.items():
        by_level = {level: study.times_at_level(form, level) for level in LEVELS}
        for i, m in enumerate(measurements):
            point = TimePoint(m.n, m.median, MEASURED, math.nan, len(m.seconds))
            rows.append(_exp_row(form, m, LOCAL, point, ""))
            for level, times in by_level.items():
                at = study.levels[level.name] if times[i].source == MEASURED else None
                rows.append(_exp_row(form, m, level.name, times[i], at.emulation if at else ""))
        if len(measurements) > 1:
            largest = measurements[-1].n
            rows += [_closed_form_row(form, n) for n in study.plan.closed_form if n > largest]
    return rows


def _form_columns(form: ExpForm) -> Row:
    return {
        "protocol": PROTOCOL,
        "ring_bits": form.ring_bits,
        "fxp": form.fxp,
        "method": form.method,
        "params": form.name,
        "clamp_low": form.clamp in ("low", "both"),
        "clamp_high": form.clamp == "both",
    }


_LEFT_BLANK = dict.fromkeys(
    (
        *("rounds", "rounds_ahead", "peak_rss_kb_P0", "peak_rss_kb_P1", "peak_rss_kb_P2"),
        *("elapsed_s", "elapsed_source", "repeat", "modeled_s", "predicted_over_measured"),
        "links",
    ),
    "",
)


def _make_exp_row(
    form: ExpForm, n: int, level: str, sent: Sequence[int], source: str, more: Row
) -> Row:
    """Return a line of exp.csv; columns that `more` lacks are blank."""
    return {
        **_form_columns(form),
        "n": n,
        "net_level": level,
        **{f"bytes_sent_P{p}": sent[p] for p in range(3)},
        "bytes_total": sum(sent),
        "bytes_source": source,
        **_LEFT_BLANK,
        **more,
    }


def _exp_row(form: ExpForm, m: ExpMeasurement, level: str, time: TimePoint, links: str) -> Row:
    measured = {
        "rounds": m.rounds,
        "rounds_ahead": m.rounds_ahead,
        **{f"peak_rss_kb_P{p}": round(m.peak_rss[p] / 1024) for p in range(3)},
        "elapsed_s": time.seconds,
        "elapsed_source": time.source,
        "repeat": time.repeat,
        "modeled_s": "" if math.isnan(time.modeled) else time.modeled,
        "predicted_over_measured": "" if math.isnan(time.ratio) else time.ratio,
        "links": links,
    }
    return _make_exp_row(form, m.n, level, m.sent, MEASURED, measured)


def _closed_form_row(form: ExpForm, n: int) -> Row:
    cost = form.cost(n)
    sent = [bits // 8 for bits in cost.by_party(0)]
    declared = {"rounds": cost.with_dealing, "rounds_ahead": cost.rounds, "repeat": 0}
    return _make_exp_row(form, n, "", sent, CLOSED_FORM, declared)


def exp_level_rows(study: ExpStudy) -> list[Row]:
    """Return exp_levels.csv: each level, its measured links, and the accuracy of the model."""
    rows = []
    for level in LEVELS:
        at = study.levels.get(level.name)
        links = at.realized if at else None
        ratios = level_ratios(study, level.name)
        rows.append(
            {
                "net_level": level.name,
                "one_way_ms": 1e3 * level.delay,
                "egress_mbit": level.bits_per_second / 1e6,
                "source": MEASURED if ratios else MODELED,
                "links": at.emulation if at else "",
                "host_limited": at.host_limited if at else "",
                **{
                    f"realized_one_way_ms_{a}_{b}": 1e3 * links.delays[i] if links else ""
                    for i, (a, b) in enumerate(PAIRS_OF_WORKERS)
                },
                **{
                    f"realized_egress_mbit_P{p}": links.rates[p] / 1e6 if links else ""
                    for p in range(3)
                },
                "times_measured": len(ratios),
                "least_predicted_over_measured": min(ratios, default=""),
                "most_predicted_over_measured": max(ratios, default=""),
                "why_not_measured": at.refused if at else "not asked for",
            }
        )
    return rows


def level_ratios(study: ExpStudy, name: str) -> list[float]:
    """Return predicted over measured for every time that was measured at a level."""
    level = next(v for v in LEVELS if v.name == name)
    every = (t.ratio for form in study.main_forms for t in study.times_at_level(form, level))
    return [ratio for ratio in every if not math.isnan(ratio)]


def exp_accuracy_rows(study: ExpStudy) -> list[Row]:
    """Return exp_accuracy.csv."""
    rows = []
    for form, a in study.accuracy.items():
        low, high = form.valid_range()
        rows.append(
            {
                **_form_columns(form),
                **dict(zip(NAMES, a.shares, strict=True)),
                "mean6": a.mean6,
                "mse": a.mse,
                "mae": a.mae,
                "mape": a.mape,
                "max_ape_in_range": a.max_ape,
                "max_ae_below_zero": a.max_ae_below_zero,
                "first_x_ape_lt_1pct": a.first,
                "last_x_ape_lt_1pct": a.last,
                "declared_low": low,
                "declared_high": high,
                "failure_probability": form.failure_probability(),
                "float32_input": study.plan.float32,
            }
        )
    return rows


def exp_fit_rows(study: ExpStudy) -> list[Row]:
    """Return exp_fits.csv: y = a n + b for every quantity of every main form.

    A line through times measured at a level is listed with the model's over the same sizes.
    """
    rows = []
    for form in study.main_forms:
        for quantity in QUANTITIES:
            fit, model = study.fit_quantity(form, quantity), study.model_fit(form, quantity)
            source = study.quantity_source(form, quantity)
            measured = source == MEASURED and model is not None
            rows.append(
                {
                    **_form_columns(form),
                    "quantity": quantity,
                    "a_per_element": fit.a,
                    "b": fit.b,
                    "r2": fit.r2,
                    "points": fit.points,
                    "source": source,
                    "modeled_a": model.a if model else "",
                    "modeled_b": model.b if model else "",
                    "predicted_over_measured_a": model.a / fit.a if model and measured else "",
                }
            )
    return rows


def exp_comparison_rows(study: ExpStudy) -> list[Row]:
    """Return exp_compare.csv: ours, the published figure, and the factor of improvement."""
    rows = []
    for form, method in PAIRS:
        if form in study.measurements:
            rows += _compare_with_method(study, form, published.published_columns()[method])
    return rows


def _compare_with_method(study: ExpStudy, form: ExpForm, theirs: Published) -> list[Row]:
    per_party = study.bytes_per_element(form)
    largest, accuracy = study.largest_measurement(form), study.accuracy[form]
    bytes_per_element, rounds = theirs.bytes_per_element, theirs.rounds
    # metric, ours, theirs, note
    measured: list[tuple[str, float, float, str]] = [
        ("bytes per element, busiest party", max(per_party), bytes_per_element, _WITH_DEALER),
        ("bytes per element, all parties", sum(per_party), 2 * bytes_per_element, _TWO_PARTIES),
        ("bytes per element, evaluator", max(per_party[1:]), bytes_per_element, _NO_DEALER),
        ("rounds", largest.rounds, rounds, "ours in total (offline + online)"),
        ("rounds, dealer ahead", largest.rounds_ahead, rounds, _DEALER_AHEAD),
        ("range score (mean of six)", accuracy.mean6, theirs.mean6, ""),
        *((n, a, b, "") for n, a, b in zip(NAMES, accuracy.shares, theirs.shares, strict=True)),
    ]
    rounded = "" if study.plan.float32 else "published with inputs rounded to float32"
    for name in ("mse", "mae", "mape"):
        ours, other = getattr(accuracy, name), getattr(theirs, name)
        measured.append((f"{name} on [-20, 20]", ours, other, rounded))
    if form in study.main_forms:
        a, b = study.fit_memory(form), theirs.memory
        measured += [
            ("memory slope, kB per element", a.a, b.a, "largest worker"),
            ("memory intercept, kB", a.b, b.b, "ours holds TensorFlow"),
        ]
    rows = [(metric, a, b, MEASURED, note) for metric, a, b, note in measured]
    if form in study.main_forms:
        rows += [_time_at_level(study, form, theirs, v) for v in LEVELS if v.name in theirs.times]
    return [_exp_comparison_row(form, theirs.method, *row) for row in rows]


def _time_at_level(
    study: ExpStudy, form: ExpForm, theirs: Published, level: NetworkProfile
) -> tuple[str, float, float, str, str]:
    quantity = f"seconds_{level.name}"
    source = study.quantity_source(form, quantity)
    how = source.upper()
    if source == MEASURED:
        sizes = [t.n for t in study.fitted_times(form, level)]
        links = study.levels[level.name].emulation
        how = f"measured ({links}; n = {sizes[0]:,} to {sizes[-1]:,})"
    return (
        f"seconds per element at {level.name}",
        study.fit_quantity(form, quantity).a,
        theirs.times[level.name].a,
        source,
        f"{level.text}; ours {how}, published measured on shaped links",
    )


def _exp_comparison_row(
    form: ExpForm, method: str, metric: str, ours: float, other: float, source: str, note: str
) -> Row:
    more = metric in _MORE
    ratio = (ours / other if more else other / ours) if ours > 0 and other > 0 else math.nan
    return {
        "metric": metric,
        "ours_form": form.name,
        "ring_bits": form.ring_bits,
        "ours": ours,
        "published_method": method,
        "published": other,
        "times_better": ratio,
        "better_is": "more" if more else "less",
        "ours_source": source,
        "note": note,
    }


# ---- six axes

AXES = ("bytes", "rounds", "range\nscore", "MAPE", "memory\nslope", "net2 time\nslope")


def radar_scores(study: ExpStudy) -> dict[str, tuple[float, ...]]:
    """Return six scores by label, 1 for the best: 1 / (1 + log10(factor worse than the best))."""
    figures: dict[str, tuple[float, ...]] = {}
    for form in study.main_forms:
        a = study.accuracy[form]
        figures[form.label] = (
            max(study.bytes_per_element(form)),
            study.largest_measurement(form).rounds,
            1 / max(a.mean6, 1e-9),
            a.mape,
            study.fit_memory(form).a,
            study.fit_quantity(form, "seconds_net2").a,
        )
    for method, column in published.published_columns().items():
        figures[f"published {method}"] = (
            column.bytes_per_element,
            column.rounds,
            1 / column.mean6,
            column.mape,
            column.memory.a,
            column.times["net2"].a,
        )
    floors = [min(row[i] for row in figures.values() if row[i] > 0) for i in range(len(AXES))]
    return {
        label: tuple(
            1.0 if v <= floor else 1 / (1 + math.log10(v / floor))
            for v, floor in zip(row, floors, strict=True)
        )
        for label, row in figures.items()
    }
