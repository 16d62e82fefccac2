"""Notes for readers of the study: measured parts, modeled parts, and gaps."""

from __future__ import annotations

from tfe_bench.benchmarks.exp_study import published
from tfe_bench.benchmarks.exp_study.compare import level_ratios
from tfe_bench.benchmarks.exp_study.levels import LEVELS
from tfe_bench.benchmarks.exp_study.study import ExpStudy


def collect_study_notes(study: ExpStudy) -> list[str]:
    """Return the notes, including contradictions of the published figures."""
    every = [study.measurements, *(at.measurements for at in study.levels.values())]
    declared = all(
        m.matches_declared_cost for forms in every for rows in forms.values() for m in rows
    )
    notes = [
        published.CAVEAT,
        *_time_notes(study),
        "Rounds and bytes are measured at the channel"
        + (
            " and equal the declared closed form in every measurement."
            if declared
            else "; NOT every measurement equals the declared closed form."
        ),
        f"Beyond the measured sizes (to n = {max(study.plan.closed_form):,}) bytes and rounds are "
        "that closed form, marked as such.",
        "Shares of points and MAPE are over ranges that reach beyond what some forms declare (the "
        "softmax ones above all): see their declared range. Toward its lower end e^x is below the "
        "last place, 2^-16 or 2^-40, and comes out as 0 or one unit: a large relative error.",
        "Memory is the peak resident size of each worker, TensorFlow included; the published one "
        "is of their process.",
    ]
    if study.cut:
        notes.append("Sizes left out: " + "; ".join(study.cut) + ".")
    return notes + published.find_contradictions()


def _time_notes(study: ExpStudy) -> list[str]:
    """Return notes on which times are measured, the error of the model, and modeled times."""
    notes = []
    for name, at in study.levels.items():
        ratios = level_ratios(study, name)
        if ratios:
            text = (
                f"Times at {name} ({at.level.text}) are measured on links made so ({at.emulation})"
                f"; the model gives {min(ratios):.2f} to {max(ratios):.2f} of what was measured."
            )
            if at.host_limited:
                text += (
                    " Host-limited: this machine does not hold the level's figures, see the "
                    "realized ones."
                )
            notes.append(text)
        elif at.refused:
            notes.append(f"Nothing is measured at {name}: {at.refused}")
    left = [v.name for v in LEVELS if not level_ratios(study, v.name)]
    where = "sizes that were not measured at a level"
    if len(left) == len(LEVELS):
        where = "Times at net0 to net3"
    elif left:
        where = f"Times at {' and '.join(left)}, and of {where},"
    else:
        where = f"Times of {where}"
    notes.append(
        f"{where} are MODELED: local measured time + total rounds x latency + bytes of the busiest "
        "party x 8 / rate. It leaves out the evaluators' own bytes where "
        "they wait for the dealer's first (one-round, prime), and that sending overlaps with "
        "computing. Published times were measured on shaped links: they took "
        + ", ".join(
            f"{low:.1f} to {high:.1f} times ({level})"
            for level in ("net1", "net2", "net3")
            for low, high in [published.compare_with_model(level)]
        )
        + " what the formula gives for their network alone."
    )
    return notes
