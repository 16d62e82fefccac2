"""The four network levels, and the modeled time of a job at each.

A time at a level is MEASURED on links that meet its figures (study.py), or MODELED from the
local measurement otherwise; every file, table and picture marks which.
"""

from __future__ import annotations

from tfe_bench.cluster.profiles import PROFILES

MODELED = "modeled"
MEASURED = "measured"
CLOSED_FORM = "closed form"

LEVELS = tuple(PROFILES[name] for name in ("net0", "net1", "net2", "net3"))
