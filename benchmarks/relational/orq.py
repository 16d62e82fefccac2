"""The nine further queries that ORQ measures, on tables of its sizes and distributions.

ORQ: Baum, Faisal, Kalavri, Liagouris, ... "ORQ: Complex analytics on private data with strong
security guarantees" (SOSP 2025); sizes, ranges and questions as in its repository
(CASP-Systems-BU/orq, bench/queries/other).  Where a question joins repeated keys only to add
something up, it is asked here with the sums taken before the join, which gives the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tfe_bench.benchmarks.relational.workload import GeneratedTable, Ints, RelationalWorkload


def _draw_orq_table(
    rows: float, rng: np.random.Generator, **columns: tuple[int, int]
) -> GeneratedTable:
    n = max(1, round(rows))
    drawn: dict[str, Ints] = {
        name: rng.integers(low, high, n) for name, (low, high) in columns.items()
    }
    return GeneratedTable(
        drawn, {name: f"int[{low},{high - 1}]" for name, (low, high) in columns.items()}
    )


def _orq_diagnosis_table(size: float, rng: np.random.Generator) -> GeneratedTable:
    rows = 3_000_000 * size
    return _draw_orq_table(
        rows, rng, pid=(0, max(1, int(rows / 2))), time=(0, 10_000), diag=(0, 10)
    )


def _orq_credit_tables(size: float, rng: np.random.Generator) -> Mapping[str, GeneratedTable]:
    rows = 5_000_000 * size
    users = (0, max(1, int(rows / 5)))
    return {"credit": _draw_orq_table(rows, rng, uid=users, year=(2020, 2030), cs=(300, 850))}


def _orq_password_tables(size: float, rng: np.random.Generator) -> Mapping[str, GeneratedTable]:
    rows = 5_000_000 * size
    most = max(1, int(rows / 10)), max(1, int(rows / 50))
    return {"password": _draw_orq_table(rows, rng, id=(0, most[0]), pwd=(0, most[1]))}


def _orq_taxi_tables(size: float, rng: np.random.Generator) -> Mapping[str, GeneratedTable]:
    taxi = _draw_orq_table(
        5_000_000 * size, rng, company=(0, 1000), fare=(0, 100), triptype=(0, 20)
    )
    taxi.columns["company"][:] = taxi.columns["company"] ** 2 % 1000
    return {"taxi": taxi}


def _orq_patient_tables(size: float, rng: np.random.Generator) -> Mapping[str, GeneratedTable]:
    return {"diagnosis": _orq_diagnosis_table(size, rng)}


def _orq_secrecy_tables(size: float, rng: np.random.Generator) -> Mapping[str, GeneratedTable]:
    rows = 2_000_000 * size  # of both: its S is made with R's size
    most = (0, max(1, int(rows**0.5)))
    return {
        "r": _draw_orq_table(rows, rng, id=most, ak=most),
        "s": _draw_orq_table(rows, rng, id=most),
    }


def _orq_cohort_tables(size: float, rng: np.random.Generator) -> Mapping[str, GeneratedTable]:
    patients = max(1, round(500_000 * size))
    return {
        "cohort": _draw_orq_table(patients, rng, pid=(0, 2 * patients)),
        "diagnosis": _draw_orq_table(5_000_000 * size, rng, pid=(0, 2 * patients), diag=(0, 1000)),
    }


def _orq_medication_tables(size: float, rng: np.random.Generator) -> Mapping[str, GeneratedTable]:
    rows = 2_000_000 * size
    medication = _draw_orq_table(
        rows, rng, pid=(0, max(1, int(rows / 2))), time=(0, 10_000), med=(0, 10)
    )
    # one range of identifiers on both sides
    both = "int[0,1499999]" if size <= 1 else f"int[0,{int(1_500_000 * size)}]"
    tables = {"diagnosis": _orq_diagnosis_table(size, rng), "medication": medication}
    return {
        name: GeneratedTable(table.columns, {**table.types, "pid": both}, table.unique)
        for name, table in tables.items()
    }


def _orq_cost_tables(size: float, rng: np.random.Generator) -> Mapping[str, GeneratedTable]:
    t1, t2 = 2_000_000 * size, 1_000_000 * size
    persons = (0, max(1, int(t1**0.5)))
    return {
        "t1": _draw_orq_table(t1, rng, person=persons, coinsurance=(0, 100)),
        "t2": _draw_orq_table(t2, rng, person=persons, disease=(0, 100), cost=(0, 10_000)),
        "t3": _draw_orq_table(t2, rng, disease=(0, 100), class_=(0, 16)),
    }


def _orq_code_tables(size: float, rng: np.random.Generator) -> Mapping[str, GeneratedTable]:
    people = max(1, round(500_000 * size))
    return {
        "demographic": _draw_orq_table(people, rng, pid=(0, people)),
        "diagnosis": _draw_orq_table(4_000_000 * size, rng, code=(0, 500), diag=(0, 500)),
        "medication": _draw_orq_table(people, rng, pid=(0, people), code=(0, 500), med=(0, 50)),
    }


_Make = Callable[[float, np.random.Generator], Mapping[str, GeneratedTable]]
_QUERIES: dict[str, tuple[str, str, _Make]] = {
    "credit": (
        "users whose scores differ by more than 150 in a year",
        "select uid from (select uid, min(cs) low, max(cs) high from credit where year = 2023 "
        "group by uid) s where high - low > 150",
        _orq_credit_tables,
    ),
    "pwd": (
        "users who have one password twice",
        "select id from password group by id, pwd having count(*) > 1",
        _orq_password_tables,
    ),
    "market": (
        "sum of the squares of market shares, from which the client computes the index",
        # (a company earns less than 2^24, so that the sum of squares fits at any size)
        "select sum(r * r) squares, sum(r) total from (select company, least(sum(fare), 16777215) "
        "r from taxi where triptype = 2 group by company) s",
        _orq_taxi_tables,
    ),
    "cdiff": (
        "patients who have a diagnosis again after 15 to 56 days",
        "select distinct pid from (select pid, time, lag(time) over (partition by pid "
        "order by time) before from diagnosis where diag = 3) r "
        "where time - before between 15 and 56",
        _orq_patient_tables,
    ),
    "secq2": (
        "pairs of equal keys by group",
        "select ak, sum(n) cnt from r join (select id, count(*) n from s group by id) c "
        "using (id) group by ak",
        _orq_secrecy_tables,
    ),
    "comorbid": (
        "the ten most frequent diagnoses of a cohort",
        "select diag, count(*) cnt from diagnosis where pid in (select pid from cohort) "
        "group by diag order by cnt desc, diag desc limit 10",
        _orq_cohort_tables,
    ),
    "aspirin": (
        "patients who got a medicine after a diagnosis",
        "with d as (select pid, min(time) t from diagnosis where diag = 1 group by pid), "
        "m as (select pid, max(time) t from medication where med = 1 group by pid) "
        "select count(*) from d join m on d.pid = m.pid and d.t <= m.t",
        _orq_medication_tables,
    ),
    "syan": (
        "costs by class of disease; data owners know the bounds",
        "with p as (select person, sum(100 - coinsurance) w from t1 group by person), "
        "s as (select disease, least(sum(cost * w), 1000000000000) v from t2 join p "
        "using (person) group by disease), "
        "g as (select disease, class_, least(count(*), 1000) n from t3 group by disease, class_) "
        "select class_, sum(v * n) total from g join s using (disease) group by class_",
        _orq_cost_tables,
    ),
    "patients": (
        "patients of a medicine for a diagnosis",
        "select distinct pid from medication where med = 7 "
        "and code in (select code from diagnosis where diag = 7) "
        "and pid in (select pid from demographic)",
        _orq_code_tables,
    ),
}
WORKLOADS = [
    RelationalWorkload(name, f"ORQ's {name}: {about}", sql, make, (0.1, 0.0005), True)
    for name, (about, sql, make) in _QUERIES.items()
]
