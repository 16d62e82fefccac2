"""Random queries and rows of the supported SQL, for comparison with DuckDB."""

from __future__ import annotations

import datetime
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.queries.asked import TYPES, StoredTable, random_rows

# Further columns: full 64-bit words, seconds, and decimals and reals up to their ends.
MORE = {
    "big": "int64?",
    "ts": "timestamp(s)",
    "dd": "decimal(3)[-5000000,5000000]?",
    "f": "fixed(24)[-2,2]?",
}
WHOLE = ["k", "z", "id"]
EXACT = [*WHOLE, "p", "dd"]
NUMBERS = [*EXACT, "r", "f"]
KEYS = ["k", "z", "seg", "flag", "day", "word", "z > 1", "month(day)", "big", "k + 1", "p"]
# (x / 0 is NULL here, and infinity in DuckDB)
KEPT = "(case when k > 0 then k end)"
FIRST = ["id", "z desc, id", "day, id desc", "seg desc, k, id", "p desc, id", "flag, id"]


def random_tables(n: int, rng: np.random.Generator) -> dict[str, StoredTable]:
    """Draw `t` of n rows, of all types and often at their ends, and `u` with some of its ids."""

    def random_column(ends: list[Any], other: Any, null: bool = True) -> Any:
        if null and rng.random() < 0.2:
            return None
        return ends[rng.integers(len(ends))] if rng.random() < 0.4 else other

    rows = []
    for row in random_rows(rng, n):
        second = datetime.timedelta(seconds=int(rng.integers(1 << 31)))
        more = (
            random_column(
                [-(1 << 63), (1 << 63) - 1, 0, -1], int(rng.integers(-(1 << 62), 1 << 62))
            ),
            random_column(
                [datetime.datetime(1970, 1, 1)], datetime.datetime(1970, 1, 1) + second, False
            ),
            random_column(
                [-5e6, 5e6, 0.0, 0.001], int(rng.integers(-5_000_000_000, 5_000_000_000)) / 1000
            ),
            random_column(
                [-2.0, 2.0, 2.0**-24], int(rng.integers(-(1 << 25), 1 << 25)) / (1 << 24)
            ),
        )
        first = (
            random_column([0, 7], row[0], False),
            random_column([-10, 10], row[1]),
            random_column([-100.0, 100.0], row[2], False),
        )
        rows.append((*first, *row[3:], *more))
    held = [
        (i, None if i % 3 else i % 10, "abc"[i % 3]) for i in rng.permutation(2 * n)[:n].tolist()
    ]
    types = {"uid": "int[0,500]", "w": "int[0,9]?", "name": "category(a,b,c)"}
    return {
        "t": StoredTable({**TYPES, **MORE}, rows, pad=int(rng.integers(3)), unique=("id",)),
        "u": StoredTable(types, held, unique=("uid",)),
        "v": StoredTable(
            {"vk": "int[0,7]?", "q": "int[0,9]?"},
            [
                (random_column([None], i % 8), random_column([None], i % 10))
                for i in rng.integers(40, size=n).tolist()
            ],
        ),
    }


class RandomQueries:
    """Generator of queries of `tables`.

    Args:
        reals: numbers that a query compares reals with, written like values of the rows.
    """

    def __init__(self, seed: int, reals: Sequence[str] = ("0.5", "-1.234")) -> None:
        self._random = random.Random(seed)
        self._reals = list(reals)
        self.one = self._random.choice

    def draw_optional(self, text: str, often: float = 0.5) -> str:
        return text if self._random.random() < often else ""

    def draw_number(self, depth: int, columns: list[str] = NUMBERS) -> str:
        if depth <= 0 or self.draw_optional("x", 0.35):
            return self.one([*columns, self.one(["0", "1", "-1", "7", "10"])])
        a, b = (self.draw_number(depth - 1, columns) for _ in range(2))
        when = f"case when {self.draw_condition(depth - 1)} then {a}"
        return self.one(
            [
                *(f"({a} + {b})", f"({a} - {b})", f"({a} * {self.one(WHOLE)})", f"abs({a})"),
                *(f"(-{self.one(columns)})", f"{when} else {b} end", f"{when} end"),
                *(f"coalesce({a}, {b})", f"greatest({a}, {b})", f"least({a}, {b})"),
                f"case {self.one(WHOLE)} when 1 then {a} when '2' then {b} end",
                f"if({self.draw_condition(depth - 1)}, {a}, {b})",
            ]
        )

    def draw_condition(self, depth: int) -> str:
        if depth > 0 and self.draw_optional("x"):
            a, b = (self.draw_condition(depth - 1) for _ in range(2))
            return self.one([f"({a} and {b})", f"({a} or {b})", f"(not {a})"])
        compares = self.one(["<", "<=", ">", ">=", "=", "<>"])
        no = self.draw_optional("not ")
        later = self.draw_optional(
            f" + interval {self.one([1, 2])} {self.one(['day', 'month', 'year'])}"
        )
        a, b = (self.draw_number(depth - 1, EXACT) for _ in range(2))
        one, two = (self.one(self._reals) for _ in range(2))
        return self.one(
            [
                *(f"r {compares} {one}", f"r {no}in ({one}, {two})", f"-r {compares} {two}"),
                *(f"r {no}between {one} and {two}", f"case r when {one} then z > 0 else flag end"),
                *(f"ts {compares} day", f"ts::date {compares} date '2003-05-06'"),
                *(f"ts {compares} timestamp '2003-05-06 07:08:09'{later}", "id <> '5'"),
                f"{self.draw_word() if depth >= 0 else 'seg'} {compares} 'b'",
                *(f"{a} {compares} {b}", f"{self.one(EXACT)} between -1 and {self.one([0, 3])}"),
                *(f"{self.one(WHOLE)} {no}in (0, 2, 5)", f"seg {no}in ('a', 'c')", "flag"),
                *(
                    f"{self.one(['z', 'flag', 'word', 'big', 'f'])} is {no}null",
                    f"flag is {no}true",
                ),
                *(f"day {compares} date '2020-02-1{self.one('0123')}'{later}", "seg <> 'b'"),
                *(f"year(day) {compares} 2020", f"month(day) {compares} 2", f"big {compares} -5"),
                *(
                    f"word {self.one(['=', '<>'])} '{self.one(['x', 'ä', ''])}'",
                    f"dd {compares} 1.5",
                ),
            ]
        )

    def draw_word(self) -> str:
        """Draw a word, sometimes one that no column has."""
        other, more = self.one(["'b'", "'hi'", "seg"]), self.one(["'lo'", "seg", "'b'"])
        return self.one(
            [
                f"case when {self.draw_condition(-1)} then 'hi' else {more} end",
                f"coalesce(case when {self.draw_condition(-1)} then {other} end, 'none')",
            ]
        )

    def draw_exists(self) -> str:
        """Draw a condition on another table's rows."""
        source, key, value = self.one([("u", "uid = id", "w"), ("v", "vk = k", "q")])
        more = self.draw_optional(f" and {self.one([f'{value} > 2', 'z > 0', 'flag'])}", 0.4)
        having = f" having {self.one(['count(*) <> 1', f'sum({value}) is null', 'count(*) = 0'])}"
        behind = self.one(["", "", having, f" group by {value}{having}", " limit 0", " limit 2"])
        what = self.one(["1", value, "count(*)"] if "group" not in behind else ["1", value])
        before = (
            f"with {source}2 as (select * from {source}) " if self.draw_optional("x", 0.2) else ""
        )
        table = f"{source}2" if before else source
        text = f"{before}select {what} from {table} where {key}{more}{behind}"
        return f"{self.draw_optional('not ')}exists ({text})"

    def draw_where(self) -> str:
        return self.draw_optional(f" where {self.draw_condition(2)}", 0.6)

    def draw_aggregate(self) -> str:
        some = self.draw_optional(f" filter (where {self.draw_condition(1)})", 0.2)
        of = self.one([*NUMBERS, "day", "seg", "flag", "ts", "big", self.draw_number(1, EXACT)])
        part = self.one(["0", "0.25", "0.5", "0.9", "1"])
        return self.one(
            [
                *(f"count(*){some}", f"count({self.one(['z', 'flag', 'word', 'big'])}){some}"),
                *(f"sum({self.draw_number(1)}){some}", f"avg({self.one(NUMBERS)}){some}"),
                *(f"min({of}){some}", f"max({of}){some}", f"median({self.one(WHOLE)})"),
                f"count(distinct {self.one(['z', 'k', 'seg', 'word', 'big'])})",
                f"quantile_disc({self.one(['z', 'p', 'day', 'id', 'dd'])}, {part})",
            ]
        )

    def draw_window(self) -> str:
        keys = self._random.sample(["k", "z", "seg", "flag", "word", "day"], self.one([1, 2]))
        part = self.draw_optional(f"partition by {', '.join(keys)}", 0.6)
        order, of = f"order by {self.one(FIRST)}", self.one(["z", "p", "k"])
        how = self.one(["sum", "count", "avg", "min", "max"])
        ties = self.one(["z", "k desc", "day", "seg, flag", "p", "dd"])
        before = self.one(["unbounded", "0", "1", "3", "100"])
        shifted = f"({self.one(['z', 'flag', 'day', 'word', 'big'])}, {self.one([1, 2, 5])})"
        return self.one(
            [
                *(f"row_number() over ({part} {order})", f"{how}({of}) over ({part})"),
                f"{self.one(['rank', 'dense_rank'])}() over ({part} order by {ties})",
                f"{self.one(['lag', 'lead'])}{shifted} over ({part} {order})",
                f"{how}({of}) over ({part} order by {ties})",
                f"{self.one(['sum', 'avg'])}({of}) over ({part} {order} rows {before} preceding)",
            ]
        )

    def draw_item(self) -> str:
        real = f"{self.one(['p', 'z', 'r', 'dd'])} / {self.one(['7', '(k + 1)', '4.5', KEPT])}"
        kept = self.one(["day", "ts", "word", "big", "seg", "flag"])
        expression = self.one(
            ["ts::date", "year(ts)", "ts::date - day", "day::timestamp", self.draw_word()]
        )
        return self.one(
            [
                self.draw_number(2),
                self.draw_number(2),
                self.draw_condition(1),
                kept,
                real,
                expression,
            ]
        )

    def draw_several(self, one: Any, most: int = 3) -> str:
        return ", ".join(f"{one()} as c{i}" for i in range(self._random.randint(1, most)))

    def draw_query(self) -> str:
        """Draw a query."""
        where, keys = self.draw_where(), ", ".join(dict.fromkeys(self.one(KEYS) for _ in "ab"))
        order = self.one(["", " order by big, id", " order by z desc, id limit 5"])
        having = self.draw_optional(
            f" having {self.one(['count(*) > 1', 'max(z) < 5', 'avg(p) > 0'])}", 0.3
        )
        join = f"{self.one(['join', 'left join'])} u on id = uid{where}"
        first = (
            f" qualify row_number() over (partition by {self.one(['k', 'flag'])} order by id) < 3"
        )
        groups = self.draw_several(self.draw_aggregate)
        of_u = self.one(["sum(w)", "max(w)", "avg(w)", "sum(p)", "sum(k * w)", "min(name)"])
        return self.one(
            [
                f"select id, {self.draw_several(self.draw_item)} from t{where}{order}",
                f"select {groups} from t{where}",
                *[f"select {keys}, {groups} from t{where} group by {keys}{having}"] * 2,
                f"select distinct {keys} from t{where}",
                f"select id, {self.draw_several(self.draw_window)} from t{where}"
                f"{self.draw_optional(first, 0.25)}",
                f"select id, w, name, {self.draw_number(1)} v from t {join}",
                f"select seg, name, count(*), {of_u} from t {join} group by seg, name",
                f"select k from t{where} union {self.draw_optional('all')} select z from t",
                *[f"select id from t where {self.draw_exists()}"] * 2,
                f"select id from t where {self.draw_exists()} and {self.draw_exists()}",
                f"select id, w, name from t, u where id = uid and {self.draw_condition(1)}",
                f"select id, w, name from t left join u on id = uid and {self.draw_condition(1)}"
                f"{self.draw_optional(' and w > 3')}",
                f"with s as (select id, k, z from t{where}) select a.id, b.z from s a join s b on "
                "a.id = b.id where a.k > 1",
                f"select k as a, z as b from t{where} union {self.draw_optional('all')} by name "
                f"select {self.one(['q as b, vk as a', 'vk as a', 'q as b, q as c'])} from v",
                f"select k, count(*) n, sum(z) s from t{where} group by k "
                f"order by {self.one(['n * -1', 's + n', '-s', 'n + k'])}, k",
                f"select -k as k, z as j, id from t{where} order by "
                f"{self.one(['k * 2', 'j + k'])}, id fetch first {self.one([1, 4])} rows only",
                f"select count(*), {self.one(['count(1)', 'sum(2)'])} from "
                f"(select {self.one(['k', 'distinct seg', self.draw_window()])} from t{where}) q",
                f"select {self.draw_word()} as c, count(*) from t{where} group by c",
                f"with s as (select k, sum({self.one(EXACT)}) x from t{where} group by k)"
                " select id, x from t left join s using (k)",
                f"select n, count(*) from (select k, count(*) n from t{where} group by k) q "
                "group by n",
            ]
        )
