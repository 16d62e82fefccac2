"""The study beside the published figures, as rows of the four files."""

from __future__ import annotations

import math
from typing import Any

from tfe_bench.benchmarks.exp_study import published
from tfe_bench.benchmarks.exp_study.forms import Form
from tfe_bench.benchmarks.exp_study.grid import NAMES
from tfe_bench.benchmarks.exp_study.levels import CLOSED_FORM, LEVELS, MEASURED, MODELLED
from tfe_bench.benchmarks.exp_study.published import Published
from tfe_bench.benchmarks.exp_study.study import QUANTITIES, Measurement, Study

Row = dict[str, Any]
PROTOCOL = "RSS3"

PAIRS = (
    (Form("one-round", 128), "prime"),
    (Form("prime", 128), "prime"),
    (Form("prime", 128, "low"), "prime"),
    (Form("taylor", 128), "taylor-8"),
    (Form("pade", 128), "pade"),
    (Form("pade", 128, "both"), "pade"),
    (Form("one-round", 64), "prime"),
    (Form("taylor", 64), "taylor-8"),
    (Form("pade", 64), "pade"),
)
"""Which form is held against which published column."""


def exp_rows(study: Study) -> list[Row]:
    """exp.csv: each measurement locally and modelled at four levels, and closed forms beyond."""
    rows = []
    for form, measurements in study.measurements.items():
        for m in measurements:
            rows.append(_exp_row(form, m, "local", MEASURED, m.median))
            rows += [
                _exp_row(form, m, level.name, MODELLED, m.modelled(i))
                for i, level in enumerate(LEVELS)
            ]
        if len(measurements) > 1:
            rows += [
                _closed_form_row(form, n) for n in study.plan.closed_form if n > measurements[-1].n
            ]
    return rows


def _form_columns(form: Form) -> Row:
    return {
        "protocol": PROTOCOL,
        "ring_bits": form.ring_bits,
        "fxp": form.fxp,
        "method": form.method,
        "params": form.name,
        "clamp_low": form.clamp in ("low", "both"),
        "clamp_high": form.clamp == "both",
    }


def _exp_row(form: Form, m: Measurement, level: str, source: str, seconds: float) -> Row:
    return {
        **_form_columns(form),
        "n": m.n,
        "net_level": level,
        **{f"bytes_sent_P{p}": m.sent[p] for p in range(3)},
        "bytes_total": sum(m.sent),
        "bytes_source": MEASURED,
        "rounds": m.rounds,
        "rounds_ahead": m.rounds_ahead,
        **{f"peak_rss_kb_P{p}": round(m.peak_rss[p] / 1024) for p in range(3)},
        "elapsed_s": seconds,
        "elapsed_source": source,
        "repeat": len(m.seconds),
    }


def _closed_form_row(form: Form, n: int) -> Row:
    cost = form.cost(n)
    sent = [bits // 8 for bits in cost.by_party(0)]
    return {
        **_form_columns(form),
        "n": n,
        "net_level": "",
        **{f"bytes_sent_P{p}": sent[p] for p in range(3)},
        "bytes_total": sum(sent),
        "bytes_source": CLOSED_FORM,
        "rounds": cost.cold,
        "rounds_ahead": cost.rounds,
        **{f"peak_rss_kb_P{p}": "" for p in range(3)},
        "elapsed_s": "",
        "elapsed_source": "",
        "repeat": 0,
    }


def accuracy_rows(study: Study) -> list[Row]:
    """exp_accuracy.csv."""
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


def fit_rows(study: Study) -> list[Row]:
    """exp_fits.csv: y = a n + b for every quantity of every main form."""
    rows = []
    for form in study.main:
        for quantity in QUANTITIES:
            fit = study.fit(form, quantity)
            modelled = quantity.startswith("seconds_net")
            rows.append(
                {
                    **_form_columns(form),
                    "quantity": quantity,
                    "a_per_element": fit.a,
                    "b": fit.b,
                    "r2": fit.r2,
                    "points": fit.points,
                    "source": MODELLED if modelled else MEASURED,
                }
            )
    return rows


def compare_rows(study: Study) -> list[Row]:
    """exp_compare.csv: ours, the published figure, and how many times better ours is."""
    rows = []
    for form, method in PAIRS:
        if form in study.measurements:
            rows += _pair(study, form, published.columns()[method])
    return rows


def _pair(study: Study, form: Form, theirs: Published) -> list[Row]:
    rows: list[Row] = []

    def put(
        metric: str, ours: float, other: float, source: str, note: str = "", more: bool = False
    ) -> None:
        ratio = (ours / other if more else other / ours) if ours > 0 and other > 0 else math.nan
        rows.append(
            {
                "metric": metric,
                "ours_form": form.name,
                "ring_bits": form.ring_bits,
                "ours": ours,
                "published_method": theirs.method,
                "published": other,
                "times_better": ratio,
                "better_is": "more" if more else "less",
                "ours_source": source,
                "note": note,
            }
        )

    per_party = study.bytes_per_element(form)
    largest, accuracy = study.largest(form), study.accuracy[form]
    put(
        "bytes per element, busiest party",
        max(per_party),
        theirs.bytes_per_element,
        MEASURED,
        "ours with the dealer's material, published without",
    )
    put(
        "bytes per element, all parties",
        sum(per_party),
        2 * theirs.bytes_per_element,
        MEASURED,
        "published: two parties, the dealer's not counted",
    )
    put(
        "bytes per element, evaluator",
        max(per_party[1:]),
        theirs.bytes_per_element,
        MEASURED,
        "like for like: the dealer's not counted on either side",
    )
    put("rounds", largest.rounds, theirs.rounds, MEASURED, "ours from a cold start")
    put(
        "rounds, dealer ahead",
        largest.rounds_ahead,
        theirs.rounds,
        MEASURED,
        "like for like: the dealer's material is there on either side",
    )
    put("range score (mean of six)", accuracy.mean6, theirs.mean6, MEASURED, more=True)
    for name, ours, other in zip(NAMES, accuracy.shares, theirs.shares, strict=True):
        put(name, ours, other, MEASURED, more=True)
    for name in ("mse", "mae", "mape"):
        put(
            f"{name} on [-20, 20]",
            getattr(accuracy, name),
            getattr(theirs, name),
            MEASURED,
            "" if study.plan.float32 else "published with inputs rounded to float32",
        )
    if form not in study.main:
        return rows
    memory = max((study.fit(form, f"peak_rss_kb_P{p}") for p in range(3)), key=lambda f: f.a)
    put("memory slope, kB per element", memory.a, theirs.memory.a, MEASURED, "largest worker")
    put("memory intercept, kB", memory.b, theirs.memory.b, MEASURED, "ours holds TensorFlow")
    for level in LEVELS:
        if level.name in theirs.times:
            put(
                f"seconds per element at {level.name}",
                study.fit(form, f"seconds_{level.name}").a,
                theirs.times[level.name].a,
                MODELLED,
                f"{level.text}; ours MODELLED, published measured on shaped links",
            )
    return rows


# ---- six axes

AXES = (
    "bytes",
    "rounds",
    "range\nscore",
    "MAPE",
    "memory\nslope",
    "net2 time\nslope",
)


def radar(study: Study) -> dict[str, tuple[float, ...]]:
    """Six scores by label, 1 for the best: 1 / (1 + log10(how many times worse than the best))."""
    figures: dict[str, tuple[float, ...]] = {}
    for form in study.main:
        a = study.accuracy[form]
        slope = max(study.fit(form, f"peak_rss_kb_P{p}").a for p in range(3))
        figures[form.label] = (
            max(study.bytes_per_element(form)),
            study.largest(form).rounds,
            1 / max(a.mean6, 1e-9),
            a.mape,
            slope,
            study.fit(form, "seconds_net2").a,
        )
    for method, column in published.columns().items():
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


def notes(study: Study) -> list[str]:
    """What a reader must know, contradictions of the published figures included."""
    declared = all(m.as_declared for rows in study.measurements.values() for m in rows)
    found = [
        published.CAVEAT,
        "Times at net0 to net3 are MODELLED: local measured time + rounds x latency + bytes of the "
        "busiest party x 8 / rate, rounds from a cold start; no link is shaped, and what real ones "
        "add is not in it. Published times were measured on shaped links: they took "
        + ", ".join(
            f"{low:.1f} to {high:.1f} times ({level})"
            for level in ("net1", "net2", "net3")
            for low, high in [published.slower_than_modelled(level)]
        )
        + " what the formula gives for their network alone.",
        "Rounds and bytes are measured at the channel"
        + (
            " and equal the declared closed form in every measurement."
            if declared
            else "; NOT every measurement equals the declared closed form."
        ),
        f"Beyond the measured sizes (to n = {max(study.plan.closed_form):,}) bytes and rounds are "
        "that closed form, marked as such.",
        "Shares of points and MAPE are over ranges that reach beyond what some forms declare (the "
        "softmax ones above all): see their declared range. Towards its lower end e^x is below the "
        "last place, 2^-16 or 2^-40, and comes out as 0 or one unit: a large relative error.",
        "Memory is the peak resident size of each worker, TensorFlow included; the published one "
        "is of their process.",
    ]
    if study.cut:
        found.append("Sizes left out: " + "; ".join(study.cut) + ".")
    return found + published.contradictions()
