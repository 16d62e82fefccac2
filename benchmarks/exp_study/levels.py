"""The four network levels, and the time that a job would take at one by the model.

A time at a level is MEASURED on links that hold its figures (study.py), or MODELED from what
was measured locally where nothing was measured; every file, table and picture says which.
"""

from __future__ import annotations

from tfe_bench.cluster.profiles import PROFILES

MODELED = "modeled"
MEASURED = "measured"
CLOSED_FORM = "closed form"

LEVELS = tuple(PROFILES[name] for name in ("net0", "net1", "net2", "net3"))
