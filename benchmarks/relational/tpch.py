"""Five of TPC-H's queries on tables of its shape (TPC Benchmark H, revision 3, clauses 2.4, 4.2).

Columns that no query reads are left out, words are categories, and keys have no gaps.  LIKE is not
supported: the promotion flag of a part is a column that its owner would make.  Words are listed in
their order, which ORDER BY uses.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tfe_bench.benchmarks.relational.workload import GeneratedTable, RelationalWorkload

_MODES = "AIR,FOB,MAIL,RAIL,REG AIR,SHIP,TRUCK"
_PRIORITIES = "1-URGENT,2-HIGH,3-MEDIUM,4-NOT SPECIFIED,5-LOW"
_SEGMENTS = "AUTOMOBILE,BUILDING,FURNITURE,MACHINERY,HOUSEHOLD"
# Days from 1970: orders are from 1992-01-01 to 1998-08-02, what is after 1995-06-17 is open.
_FIRST, _LAST, _TODAY = 8035, 10440, 9298
_DATES = "date[1992-01-01,1998-12-31]"


def _make_tpch_tables(size: float, rng: np.random.Generator) -> Mapping[str, GeneratedTable]:
    customers, orders, parts = (max(1, round(size * k)) for k in (150_000, 1_500_000, 200_000))
    placed = rng.integers(_FIRST, _LAST + 1, orders)
    of = np.repeat(np.arange(orders), rng.integers(1, 8, orders))  # 1 to 7 lines of an order
    n = len(of)
    quantity = rng.integers(1, 51, n)
    part = rng.integers(0, parts, n)
    # a retail price of clause 4.2.3, in hundredths
    retail = 90_000 + (part // 10) % 20_001 + 100 * (part % 1000)
    shipped = placed[of] + rng.integers(1, 122, n)
    received = shipped + rng.integers(1, 31, n)
    key = f"int[0,{orders - 1}]"
    return {
        "customer": GeneratedTable(
            {"c_custkey": np.arange(customers), "c_mktsegment": rng.integers(0, 5, customers)},
            {"c_custkey": f"int[0,{customers - 1}]", "c_mktsegment": f"category({_SEGMENTS})"},
            ("c_custkey",),
        ),
        "orders": GeneratedTable(
            {
                "o_orderkey": rng.permutation(orders),
                "o_custkey": rng.integers(0, customers, orders),
                "o_orderdate": placed,
                "o_shippriority": np.zeros(orders, np.int64),
                "o_orderpriority": rng.integers(0, 5, orders),
            },
            {
                "o_orderkey": key,
                "o_custkey": f"int[0,{customers - 1}]",
                "o_orderdate": _DATES,
                "o_shippriority": "int[0,1]",
                "o_orderpriority": f"category({_PRIORITIES})",
            },
            ("o_orderkey",),
        ),
        "part": GeneratedTable(
            {"p_partkey": np.arange(parts), "p_promo": (rng.integers(0, 6, parts) == 0) * 1},
            {"p_partkey": f"int[0,{parts - 1}]", "p_promo": "bool"},
            ("p_partkey",),
        ),
        "lineitem": GeneratedTable(
            {
                "l_orderkey": of,
                "l_partkey": part,
                "l_quantity": quantity,
                "l_extendedprice": quantity * retail,
                "l_discount": rng.integers(0, 11, n),
                "l_tax": rng.integers(0, 9, n),
                "l_returnflag": np.where(received <= _TODAY, rng.integers(0, 2, n) * 2, 1),
                "l_linestatus": (shipped > _TODAY) * 1,
                "l_shipdate": shipped,
                "l_commitdate": placed[of] + rng.integers(30, 91, n),
                "l_receiptdate": received,
                "l_shipmode": rng.integers(0, 7, n),
            },
            {
                "l_orderkey": key,
                "l_partkey": f"int[0,{parts - 1}]",
                "l_quantity": "int[0,63]",
                "l_extendedprice": "decimal(2)[0,104999.99]",
                "l_discount": "decimal(2)[0,0.10]",
                "l_tax": "decimal(2)[0,0.08]",
                "l_returnflag": "category(A,N,R)",
                "l_linestatus": "category(F,O)",
                "l_shipdate": _DATES,
                "l_commitdate": _DATES,
                "l_receiptdate": _DATES,
                "l_shipmode": f"category({_MODES})",
            },
        ),
    }


_QUERIES = {
    "q1": (
        "pricing summary",
        "select l_returnflag, l_linestatus, sum(l_quantity) sum_qty, "
        "sum(l_extendedprice) sum_base_price, "
        "sum(l_extendedprice * (1 - l_discount)) sum_disc_price, "
        "sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)) sum_charge, "
        "avg(l_quantity) avg_qty, avg(l_extendedprice) avg_price, avg(l_discount) avg_disc, "
        "count(*) count_order from lineitem "
        "where l_shipdate <= date '1998-12-01' - interval 90 day "
        "group by l_returnflag, l_linestatus order by l_returnflag, l_linestatus",
    ),
    "q3": (
        "shipping priority",
        # summed by order first: what is joined and put in order then are orders, not their lines
        "with r as (select l_orderkey, sum(l_extendedprice * (1 - l_discount)) revenue "
        "from lineitem where l_shipdate > date '1995-03-15' group by l_orderkey), "
        "o as (select o_orderkey, o_orderdate, o_shippriority from orders join customer "
        "on o_custkey = c_custkey where c_mktsegment = 'BUILDING' "
        "and o_orderdate < date '1995-03-15') "
        "select o_orderkey, revenue, o_orderdate, o_shippriority from o "
        "join r on o_orderkey = l_orderkey order by revenue desc, o_orderdate limit 10",
    ),
    "q6": (
        "forecast of revenue",
        "select sum(l_extendedprice * l_discount) revenue from lineitem "
        "where l_shipdate >= date '1994-01-01' and l_shipdate < date '1995-01-01' "
        "and l_discount between 0.05 and 0.07 and l_quantity < 24",
    ),
    "q12": (
        "modes of shipping",
        "select l_shipmode, sum(case when o_orderpriority in ('1-URGENT', '2-HIGH') then 1 else 0 "
        "end) high, sum(case when o_orderpriority not in ('1-URGENT', '2-HIGH') then 1 else 0 end) "
        "low from lineitem join orders on l_orderkey = o_orderkey "
        "where l_shipmode in ('MAIL', 'SHIP') and l_commitdate < l_receiptdate "
        "and l_shipdate < l_commitdate and l_receiptdate >= date '1994-01-01' "
        "and l_receiptdate < date '1995-01-01' group by l_shipmode order by l_shipmode",
    ),
    "q14": (
        "effect of promotions",
        "select sum(case when p_promo then l_extendedprice * (1 - l_discount) else 0 end) promo, "
        "sum(l_extendedprice * (1 - l_discount)) revenue "
        "from lineitem join part on l_partkey = p_partkey "
        "where l_shipdate >= date '1995-09-01' and l_shipdate < date '1995-10-01'",
    ),
}
WORKLOADS = [
    RelationalWorkload(
        name, f"TPC-H {name.upper()}, {about}", sql, _make_tpch_tables, (0.1, 0.001), True
    )
    for name, (about, sql) in _QUERIES.items()
]
