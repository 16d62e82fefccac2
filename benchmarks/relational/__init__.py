"""Queries on generated private tables: rows of suites, and `python -m tfe_bench relational`."""

from __future__ import annotations

from tfe_bench.benchmarks.relational import operators, orq, tpch
from tfe_bench.benchmarks.relational.workload import RelationalWorkload

WORKLOADS: dict[str, RelationalWorkload] = {
    w.name: w for w in (*operators.WORKLOADS, *tpch.WORKLOADS, *orq.WORKLOADS)
}
