"""Plans run on plain rows: the meaning of a compiled query without any protocol."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

from tests.queries.asked import StoredTable
from tfe_bench.queries import io
from tfe_bench.queries.plan import QueryPlan
from tfe_bench.queries.plan_syntax import PARTS, parse_quantile
from tfe_bench.queries.types import HASHES, UNITS, days_to_date, hash_column_text

Row = dict[str, Any]
_EPOCH = datetime.datetime(1970, 1, 1)


def run_plan(plan: QueryPlan, tables: Mapping[str, StoredTable]) -> list[tuple[Any, ...]]:
    """Return the rows of a plan's result."""
    outputs: list[tuple[list[str], list[Row]]] = []
    for step in plan.steps:
        inputs = [outputs[i] for i in step.inputs]
        outputs.append(_STEPS[step.op](step, inputs, plan, tables))
    names, rows = outputs[plan.output]
    return [tuple(_as_result(row[name]) for name in names) for row in rows]


def _as_exact(value: Any, kind: Any) -> Any:
    """Return a value as its column holds it, numbers as fractions."""
    if value is None:
        return None
    match kind.kind:
        case "number":
            whole = Fraction(Decimal(repr(value))) * kind.denominator
            return Fraction(round(whole), kind.denominator)
        case "text":
            return io.decode_column_element(hash_column_text(value), HASHES)
    return value


def _as_result(value: Any) -> Any:
    if isinstance(value, Fraction):
        return int(value) if value.denominator == 1 else float(value)
    return value


def _run_scan(step: Any, _: Any, plan: QueryPlan, tables: Mapping[str, StoredTable]) -> Any:
    table = tables[plan.tables[step.table][0]]
    at = {name: i for i, name in enumerate(table.types)}
    names = [f"{step.table}.{name}" for name in step.columns]
    rows = [
        {n: _as_exact(row[at[c]], table.types[c]) for n, c in zip(names, step.columns, strict=True)}
        for row in table.rows
    ]
    return names, rows


def _run_filter(step: Any, inputs: Any, *_: Any) -> Any:
    [(names, rows)] = inputs
    return names, [row for row in rows if compute_value(step.where, row) is True]


def _run_project(step: Any, inputs: Any, *_: Any) -> Any:
    [(_names, rows)] = inputs
    return [n for n, _ in step.columns], [
        {name: compute_value(e, row) for name, e in step.columns} for row in rows
    ]


def _run_group(step: Any, inputs: Any, *_: Any) -> Any:
    [(_names, rows)] = inputs
    keys, groups = step.keys, dict[Any, list[Row]]()
    for row in rows:
        groups.setdefault(tuple(row[k] for k in keys), []).append(row)
    if not keys:
        groups.setdefault((), [])
    names = [*keys, *(name for name, _, _ in step.aggregates)]
    output_rows = [
        {
            **dict(zip(keys, key, strict=True)),
            **{
                name: compute_aggregate(function, [r[a] if a else 1 for r in several])
                for name, function, a in step.aggregates
            },
        }
        for key, several in groups.items()
    ]
    return names, output_rows


def compute_aggregate(function: str, values: Sequence[Any]) -> Any:
    """Compute an aggregate of values without NULLs."""
    there = [v for v in values if v is not None]
    if function == "count":
        return Fraction(len(there))
    if not there:
        return None
    if (quantile := parse_quantile(function)) is not None:
        there.sort()
        if quantile[0] == "quantile_disc":
            return there[max(0, -(-quantile[1] * len(there) // PARTS) - 1)]
        at = Fraction(quantile[1], PARTS) * (len(there) - 1)
        low, high = there[at.__floor__()], there[at.__ceil__()]
        return low + (high - low) * (at - at.__floor__())
    total: Any = sum(there) if function in ("sum", "avg") else None
    return {"sum": lambda: total, "avg": lambda: total / len(there)}.get(
        function, lambda: (min if function == "min" else max)(there)
    )()


def _run_distinct(step: Any, inputs: Any, *_: Any) -> Any:
    [(names, rows)] = inputs
    return names, list({tuple(row[n] for n in names): row for row in rows}.values())


def _sort_rows(rows: list[Row], by: Sequence[Sequence[str]]) -> list[Row]:
    ordered = list(rows)
    for name, way in reversed(by):
        there = [row for row in ordered if row[name] is not None]
        there.sort(key=lambda row: row[name], reverse=way == "desc")
        ordered = [*there, *(row for row in ordered if row[name] is None)]
    return ordered


def _run_order(step: Any, inputs: Any, *_: Any) -> Any:
    [(names, rows)] = inputs
    return names, _sort_rows(rows, step.by)[: step.count if step.op == "top" else None]


def _run_limit(step: Any, inputs: Any, *_: Any) -> Any:
    [(names, rows)] = inputs
    return names, rows[: step.count]


def _run_union(_step: Any, inputs: Any, *_: Any) -> Any:
    first, output_rows = inputs[0][0], []
    for names, rows in inputs:
        output_rows += [dict(zip(first, (row[n] for n in names), strict=True)) for row in rows]
    return first, output_rows


def _run_join(step: Any, inputs: Any, *_: Any) -> Any:
    (names, rows), (others, more) = inputs
    kind, output_rows = step.kind, []
    for row in rows:
        matches = [
            other
            for other in more
            if all(row[a] is not None and row[a] == other[b] for a, b in step.on)
        ]
        if kind in ("semi", "anti"):
            output_rows += [row] if bool(matches) == (kind == "semi") else []
        elif matches or kind == "left":
            output_rows += [{**row, **o} for o in matches or [dict.fromkeys(others)]]
    return (names if kind in ("semi", "anti") else [*names, *others]), output_rows


def compute_value(e: Any, row: Row) -> Any:
    """Compute an expression's value, None for NULL."""
    name, *rest = e
    if name in _CONSTANTS:
        return _CONSTANTS[name](*rest)
    if name == "col":
        return row[rest[0]]
    if name == "case":
        for condition, result in zip(rest[:-1:2], rest[1:-1:2], strict=True):
            if compute_value(condition, row) is True:
                return compute_value(result, row)
        return compute_value(rest[-1], row)
    operands = [compute_value(each, row) for each in rest]
    if name == "coalesce":
        return next((v for v in operands if v is not None), None)
    if name == "is_null":
        return operands[0] is None
    if name in ("and", "or"):
        stop = name == "or"
        return stop if stop in operands else None if None in operands else not stop
    if name == "in":
        first, *others = operands
        same = [None if None in (first, v) else _common_scale(first, v) for v in others]
        return True if True in same else None if None in same else False
    if None in operands:
        return None
    return _OPERATORS[name](*operands)


def _common_scale(a: Any, b: Any) -> bool:
    return bool(a == b)


def _add_values(a: Any, b: Any, sign: int = 1) -> Any:
    if isinstance(a, datetime.date):
        if isinstance(b, datetime.date):
            return Fraction((a - b).days)
        return a + datetime.timedelta(days=int(sign * b))
    return a + sign * b


_CONSTANTS: Mapping[str, Callable[..., Any]] = {
    "int": Fraction,
    "decimal": lambda v, digits: Fraction(v, 10**digits),
    "fixed": lambda v, bits: Fraction(v, 1 << bits),
    "bool": bool,
    "date": days_to_date,
    "timestamp": lambda v, unit: _EPOCH + datetime.timedelta(microseconds=v * 10**6 // UNITS[unit]),
    "word": str,
    "text": lambda v: io.decode_column_element(v, HASHES),
    "null": lambda: None,
}
_OPERATORS: Mapping[str, Callable[..., Any]] = {
    "+": _add_values,
    "-": lambda a, b: _add_values(a, b, -1),
    "*": lambda a, b: a * b,
    "/": lambda a, b: None if b == 0 else a / b,
    "=": _common_scale,
    "<>": lambda a, b: not _common_scale(a, b),
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "neg": lambda a: -a,
    "abs": abs,
    "not": lambda a: not a,
    "real": lambda a: a,
    "year": lambda d: Fraction(d.year),
    "month": lambda d: Fraction(d.month),
    "least": min,
    "greatest": max,
    "to_date": lambda t: t.date(),
    "to_timestamp": lambda d: datetime.datetime.combine(d, datetime.time()),
}
_STEPS: Mapping[str, Callable[..., Any]] = {
    "scan": _run_scan,
    "filter": _run_filter,
    "project": _run_project,
    "group": _run_group,
    "distinct": _run_distinct,
    "order": _run_order,
    "top": _run_order,
    "limit": _run_limit,
    "union": _run_union,
    "join": _run_join,
    "many_join": _run_join,
}
