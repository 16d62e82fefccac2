"""SQL in DuckDB's dialect, compiled to a plan by the client: sqlglot parses and qualifies names.

What is no node of the ones below is refused by its name.  Nothing here decides what a client may
learn: workers derive that from the plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tfe_bench.errors import UsageError, imported
from tfe_bench.models.queries import aggregates, conditions, links, relations, rewrite, windows
from tfe_bench.models.queries.plan import check_bound
from tfe_bench.models.queries.privacy import budgeted, guarded
from tfe_bench.models.queries.rights import Table
from tfe_bench.models.queries.scalars import Scalars, refused

# Names of tables are not told apart by case, as in DuckDB; columns keep what their owner wrote.
Names = dict[tuple[str, str], str]
_TYPES = {"bool": "BOOLEAN", "date": "DATE", "timestamp": "TIMESTAMP"}


def sqlglot() -> Any:
    """The parser.

    Raises:
        UsageError: it is not installed.
    """
    return imported("sqlglot", "SQL takes sqlglot", 'pip install "tfe_bench[tables]"')


def compiled(
    text: str, tables: Mapping[str, Table], max_rows: int | None = None, loss: int = 0
) -> dict[str, Any]:
    """The plan of a query, as JSON.

    Args:
        text: one SELECT, or a UNION of several.
        tables: what the client may use, by name.
        max_rows: the most rows that the result has, and that a join has whose looked up keys are
            not unique; whether there are more the client is told, and then no row.
        loss: privacy that the query may spend of each table with a budget, in billionths of rho;
            groupings that take some share it equally.

    Raises:
        UsageError: it is no query, or one that is not offered.
        PolicyError: the client lacks a right that it takes.
    """
    parser = sqlglot()
    try:
        parsed = parser.parse(text, read="duckdb")
    except parser.errors.SqlglotError as error:
        raise UsageError(
            f"This is no SQL of DuckDB's dialect. Received: {_first(error)}."
        ) from None
    if len(parsed) != 1 or parsed[0] is None:
        raise UsageError(f"A query is one SELECT. Received: {len(parsed)} statements.")
    known = {table.lower(): name for name, table in ((n, n) for n in tables)}
    for node in parsed[0].find_all(parser.exp.Table):
        names = {cte.alias.lower() for cte in parsed[0].find_all(parser.exp.CTE)}
        if node.name.lower() not in known and node.name.lower() not in names:
            raise relations.missing_table(node.name, list(tables))
    from sqlglot.optimizer.qualify import qualify

    schema: dict[str, object] = {
        name: {c: _TYPES.get(own.type.kind, "BIGINT") for c, own in table.schema.columns.items()}
        for name, table in tables.items()
    }
    try:
        whole = qualify(parsed[0], schema=schema, dialect="duckdb", quote_identifiers=False)
    except parser.errors.SqlglotError as error:
        raise UsageError(
            f"This query does not fit its tables. Received: {_first(error)}."
        ) from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UsageError(f"sqlglot cannot take this query ({type(error).__name__}).") from None
    if max_rows is not None:
        check_bound(max_rows)
    plan = _plan(tables, whole, max_rows, loss)
    if (parts := sum("loss" in each for each in plan["steps"])) > 1:
        plan = _plan(tables, whole, max_rows, loss // parts)
    elif loss and not any(budgeted(tables, each["name"]) for each in plan["tables"].values()):
        raise UsageError("No table of this query has another owner's privacy budget: omit rho.")
    return plan


def _plan(
    tables: Mapping[str, Table], whole: Any, max_rows: int | None, loss: int
) -> dict[str, Any]:
    maker = _Maker(tables, whole, max_rows, loss)
    step, _ = maker.query(whole, {})
    return rewrite.pruned(maker.plan(step))


def _first(error: Exception) -> str:
    return str(error).splitlines()[0][:200].removesuffix(".")


class _Maker:
    """Makes the steps of one query; knows what each relation is as it is made."""

    def __init__(
        self, tables: Mapping[str, Table], whole: Any, max_rows: int | None, loss: int
    ) -> None:
        from sqlglot import exp

        self._whole, self._bound, self._loss = whole, max_rows, loss
        self._exp = exp
        self._tables = {name.lower(): table for name, table in tables.items()}
        self._scanned: dict[str, Table] = {}
        self._steps: list[dict[str, Any]] = []
        self._facts: list[relations.Relation] = []
        self._fresh = 0

    def plan(self, output: int) -> dict[str, Any]:
        """All of it."""
        tables = {
            alias: {"name": t.name, "deployment": t.deployment}
            for alias, t in self._scanned.items()
        }
        return {"tables": tables, "steps": self._steps, "output": output}

    def _add(self, op: str, inputs: Sequence[int], **about: Any) -> int:
        step = {"op": op, "in": list(inputs), **about}
        self._facts.append(
            relations.derive_step(step, [self._facts[i] for i in inputs], self._scanned)
        )
        self._steps.append(step)
        return len(self._steps) - 1

    def _name(self, like: str) -> str:
        self._fresh += 1
        return f"{like}_{self._fresh}"

    def _scalars(self, step: int, names: Names, more: Mapping[str, str] = {}) -> Scalars:
        return Scalars(self._facts[step].columns, names, more)

    # ---- relations

    def query(self, node: Any, ctes: Mapping[str, tuple[int, list[str]]]) -> tuple[int, list[str]]:
        """A SELECT or a UNION: its step, and the names of its columns."""
        exp = self._exp
        known = dict(ctes)
        for cte in (node.args.get("with_") or exp.With()).expressions:
            if (node.args["with_"]).args.get("recursive"):
                raise refused("WITH RECURSIVE")
            known[cte.alias] = self.query(cte.this, known)
        if isinstance(node, exp.Subquery):
            return self.query(node.this, known)
        if isinstance(node, exp.Union):
            return self._union(node, known)
        if not isinstance(node, exp.Select):
            raise refused(type(node).__name__.upper())
        return self._select(node, known)

    def _union(self, node: Any, ctes: Any) -> tuple[int, list[str]]:
        if type(node) is not self._exp.Union:
            raise refused(type(node).__name__.upper())
        left, names = self.query(node.this, ctes)
        right, others = self.query(node.expression, ctes)
        if len(names) != len(others):
            raise UsageError("UNION takes equally many columns of each SELECT.")
        step = self._add("union", [left, right])
        if node.args.get("distinct"):
            step = self._add("distinct", [step])
        step = self._trimmed(node, step, False)
        # (named as those of the first SELECT)
        scope: Names = {("", name): name for name in names}
        return self._ordered(node, step, scope, {}), names

    def _select(self, node: Any, ctes: Any) -> tuple[int, list[str]]:
        exp = self._exp
        for part in ("laterals", "pivots", "windows", "sample", "connect", "into"):
            if node.args.get(part):
                raise refused(part.upper())
        if node.args.get("from_") is None:
            raise UsageError("A query reads tables: SELECT ... FROM ...")
        step, names = self._from(node, ctes)
        if (where := node.args.get("where")) is not None:
            step = self._where(step, names, where.this, ctes)
        more: dict[str, str] = {}
        calls = [
            call
            for call in self._found(node, exp.AggFunc)
            if not isinstance(call.parent, exp.Window | exp.IgnoreNulls | exp.RespectNulls)
        ]
        if calls or node.args.get("group") is not None:
            step, names, more = self._grouped(node, calls, step, names)
        if (having := node.args.get("having")) is not None:
            condition = self._scalars(step, names, more).condition(having.this)
            step = self._add("filter", [step], where=condition)
        if over := self._found(node, exp.Window):
            step, more = self._windowed(over, step, names, more)
        if (qualify := node.args.get("qualify")) is not None:
            condition = self._scalars(step, names, more).condition(qualify.this)
            step = self._add("filter", [step], where=condition)
        outputs = [(e.alias_or_name, e.unalias()) for e in node.expressions]
        listed = [name for name, _ in outputs]
        if len(set(listed)) != len(listed):
            raise UsageError(f"A query names each of its columns once. Received: {listed[:20]}.")
        return self._projected(node, outputs, step, names, more), listed

    def _found(self, node: Any, kind: Any) -> list[Any]:
        """Expressions of one SELECT, none of the queries in it."""
        parts = [node.args.get(name) for name in ("having", "qualify", "order")]
        return [
            each
            for part in (*node.expressions, *parts)
            if part is not None
            for each in part.find_all(kind)
            if each.find_ancestor(self._exp.Select) is node
        ]

    def _windowed(
        self, over: Sequence[Any], step: int, names: Names, more: Mapping[str, str]
    ) -> tuple[int, dict[str, str]]:
        """A column for each window function, with those of the same order in one step."""
        scalars = self._scalars(step, names, more)
        found = dict(more)
        columns = [[name, ["col", name]] for name in self._facts[step].columns if "?" not in name]
        kept = len(columns)

        def named(node: Any) -> str:
            made = scalars.expression(node)
            if made[0] == "col":
                return str(made[1])
            columns.append([self._name("over"), made])
            return str(columns[-1][0])

        steps = windows.steps_of(over, named, self._name, found)
        if len(columns) > kept:
            step = self._add("project", [step], columns=columns)
        for about in steps:
            step = self._add("window", [step], **about)
        return step, found

    def _projected(
        self, node: Any, outputs: Sequence[Any], step: int, names: Names, more: Mapping[str, str]
    ) -> int:
        scalars = self._scalars(step, names, more)
        columns = [[name, scalars.expression(e)] for name, e in outputs]
        made = {name for name, _ in columns}
        hidden: dict[str, str] = {}
        distinct = node.args.get("distinct") is not None
        if distinct and node.args["distinct"].args.get("on"):
            raise refused("DISTINCT ON")
        for each in (node.args.get("order") or self._exp.Order()).expressions:
            e = each.this
            if isinstance(e, self._exp.Column) and not e.table and e.name in made:
                continue
            if distinct:
                raise UsageError("ORDER BY after DISTINCT takes columns of the SELECT.")
            name = hidden[e.sql()] = self._name("order")
            columns.append([name, scalars.expression(e)])
        step = self._add("project", [step], columns=columns)
        if distinct:
            step = self._add("distinct", [step])
        step = self._trimmed(node, step, distinct or bool(more))
        step = self._ordered(node, step, {("", name): name for name in made}, hidden)
        if hidden:
            kept = [[name, ["col", name]] for name, _ in outputs]
            step = self._add("project", [step], columns=kept)
        return step

    def _ordered(self, node: Any, step: int, names: Names, hidden: Mapping[str, str]) -> int:
        """With ORDER BY and LIMIT."""
        order, count = node.args.get("order"), self._limit(node)
        if order is None:
            return step if count is None else self._add("limit", [step], count=count)
        by: list[list[str]] = []
        for each in order.expressions:
            if each.args.get("nulls_first"):
                raise refused("NULLS FIRST")
            name = hidden.get(each.this.sql()) or names.get(("", each.this.name))
            if name is None:
                raise UsageError("ORDER BY of a UNION takes its columns.")
            if name not in [n for n, _ in by]:
                by.append([name, "desc" if each.args.get("desc") else "asc"])
        if count:
            return self._add("top", [step], by=by, count=count)
        step = self._add("order", [step], by=by)
        return step if count is None else self._add("limit", [step], count=0)

    def _trimmed(self, node: Any, step: int, grouped: bool) -> int:
        """No more rows than are asked for: groups, or all of a result that no LIMIT cuts."""
        asked = node is self._whole and (grouped or node.args.get("limit") is None)
        if self._bound is None or not asked or self._facts[step].rows <= self._bound:
            return step
        return self._add("trim", [step], bound=self._bound)

    def _limit(self, node: Any) -> int | None:
        if node.args.get("offset") is not None:
            raise refused("OFFSET")
        limit = node.args.get("limit")
        if limit is None:
            return None
        count = limit.expression if isinstance(limit, self._exp.Limit) else None
        if not isinstance(count, self._exp.Literal) or not str(count.this).isdigit():
            raise UsageError("LIMIT takes a public number of rows.")
        return min(int(count.this), 1 << 31)

    # ---- FROM

    def _source(self, node: Any, ctes: Any) -> tuple[int, Names]:
        exp = self._exp
        alias = node.alias_or_name
        if isinstance(node, exp.Subquery):
            step, listed = self.query(node.this, ctes)
        elif isinstance(node, exp.Table) and node.name in ctes and not node.db:
            step, listed = ctes[node.name]
        elif isinstance(node, exp.Table) and not node.db:
            return self._scan(alias, self._tables[node.name.lower()])
        else:
            raise refused(f"FROM {type(node).__name__.upper()}")
        # names of its own, so that it can be joined with itself
        own = self._name(alias)
        columns = [[f"{own}.{name}", ["col", name]] for name in listed]
        step = self._add("project", [step], columns=columns)
        return step, {(alias, name): f"{own}.{name}" for name in listed}

    def _scan(self, alias: str, table: Table) -> tuple[int, Names]:
        own = alias if alias not in self._scanned else self._name(alias)
        self._scanned[own] = table
        columns = list(table.schema.columns)
        step = self._add("scan", [], table=own, columns=columns)
        names = {(alias, name): f"{own}.{name}" for name in columns}
        # qualify writes names in lower case where a query does
        names.update({(alias, name.lower()): f"{own}.{name}" for name in columns})
        return step, names

    def _from(self, node: Any, ctes: Any) -> tuple[int, Names]:
        step, names = self._source(node.args["from_"].this, ctes)
        for join in node.args.get("joins") or []:
            step, names = self._join(step, names, join, ctes)
        return step, names

    def _join(self, step: int, names: Names, join: Any, ctes: Any) -> tuple[int, Names]:
        side, kind = (join.side or "").lower(), (join.kind or "").lower()
        known = side in ("", "left") and kind in ("", "inner", "outer", "semi", "anti")
        if join.args.get("method") or not known:
            words = (join.args.get("method") or "", side, kind, "join")
            raise refused(" ".join(filter(None, words)).upper())
        other, theirs = self._source(join.this, ctes)
        condition = join.args.get("on")
        if condition is None:
            raise UsageError("A join takes an equality: JOIN ... ON a.key = b.key, or USING (key).")
        pairs, rest = conditions.pairs_of(self._exp, condition, names, theirs)
        if not pairs:
            raise UsageError("A join takes an equality of a column of each side.")
        how = kind if kind in ("semi", "anti") else ("left" if side == "left" else "inner")
        if rest and how != "inner":
            raise UsageError(f"A {how} join takes equalities only.")
        both = {**names, **theirs}
        step = self._matched(step, other, pairs, how)
        for each in rest:
            where = self._scalars(step, both).condition(each)
            step = self._add("filter", [step], where=where)
        return step, (names if how in ("semi", "anti") else both)

    def _matched(self, left: int, right: int, pairs: list[list[str]], how: str) -> int:
        unique = self._facts[right].unique
        if how == "inner" and not self._linked(left, right, pairs):
            swapped = [[b, a] for a, b in pairs]
            if self._linked(right, left, swapped):
                return self._add("join", [right, left], on=swapped, kind=how)
        if not {b for _, b in pairs} & unique:
            if how == "inner" and {a for a, _ in pairs} & self._facts[left].unique:
                left, right = right, left
                pairs = [[b, a] for a, b in pairs]
            elif how in ("semi", "anti"):
                keys = [[b, ["col", b]] for _, b in pairs]
                right = self._add("distinct", [self._add("project", [right], columns=keys)])
            elif self._bound is not None:
                about = {"on": pairs, "kind": how, "bound": self._bound}
                return self._add("many_join", [left, right], **about)
        return self._add("join", [left, right], on=pairs, kind=how)

    def _linked(self, left: int, right: int, pairs: list[list[str]]) -> bool:
        facts = self._facts
        return links.link_of(pairs, facts[left], facts[right], self._scanned) is not None

    # ---- WHERE

    def _where(self, step: int, names: Names, condition: Any, ctes: Any) -> int:
        exp = self._exp
        plain = []
        for each in condition.flatten() if isinstance(condition, exp.And) else [condition]:
            each = each.unnest()
            negated = isinstance(each, exp.Not)
            inner = each.this.unnest() if negated else each
            if isinstance(inner, exp.In) and inner.args.get("query") is not None:
                step = self._in(step, names, inner, negated, ctes)
            elif isinstance(inner, exp.Exists):
                step = self._exists(step, names, inner, negated, ctes)
            else:
                plain.append(each)
        for each in plain:
            where = self._scalars(step, names).condition(each)
            step = self._add("filter", [step], where=where)
        return step

    def _in(self, step: int, names: Names, node: Any, negated: bool, ctes: Any) -> int:
        right, listed = self.query(node.args["query"].unnest(), ctes)
        key = node.this.unnest()
        if len(listed) != 1 or not isinstance(key, self._exp.Column):
            raise UsageError("IN takes a column and a SELECT of one column.")
        name = names[(key.table, key.name)]
        other = self._name("in")
        right = self._add("project", [right], columns=[[other, ["col", listed[0]]]])
        facts = self._facts
        nullable = facts[step].columns[name].nullable or facts[right].columns[other].nullable
        if negated and nullable:
            raise UsageError(
                "NOT IN with NULLs is never true where one is. Use NOT EXISTS (SELECT ... WHERE "
                "a.key = b.key)."
            )
        return self._matched(step, right, [[name, other]], "anti" if negated else "semi")

    def _exists(self, step: int, names: Names, node: Any, negated: bool, ctes: Any) -> int:
        exp = self._exp
        inner = node.this.unnest()
        where = inner.args.get("where") if isinstance(inner, exp.Select) else None
        if where is None or inner.args.get("group") or inner.args.get("limit"):
            raise UsageError("EXISTS takes SELECT ... FROM ... WHERE a.key = b.key.")
        right, theirs = self._from(inner, ctes)
        pairs, rest = conditions.pairs_of(self._exp, where.this, names, theirs)
        if not pairs:
            raise UsageError("EXISTS takes an equality with a column of the query around it.")
        for each in rest:
            condition = self._scalars(right, theirs).condition(each)
            right = self._add("filter", [right], where=condition)
        return self._matched(step, right, pairs, "anti" if negated else "semi")

    # ---- GROUP BY

    def _grouped(
        self, node: Any, calls: Sequence[Any], step: int, names: Names
    ) -> tuple[int, Names, dict[str, str]]:
        group = node.args.get("group")
        for part in ("grouping_sets", "cube", "rollup", "all", "totals"):
            if group is not None and group.args.get(part):
                raise refused(f"GROUP BY {part.upper()}")
        scalars = self._scalars(step, names)
        columns: list[list[Any]] = []
        more: dict[str, str] = {}
        keys: list[str] = []
        for e in group.expressions if group is not None else ():
            if e.sql() in more:
                continue
            name = more[e.sql()] = self._name("key")
            columns.append([name, scalars.expression(e)])
            keys.append(name)
        listed: list[list[Any]] = []
        counted: list[str] = []
        for call in calls:
            where = call.parent if isinstance(call.parent, self._exp.Filter) else None
            text = (where or call).sql()
            if text in more:
                continue
            function, argument = aggregates.call_of(call, counted)
            name = more[text] = self._name(function.replace(":", "_"))
            value = None if argument is None else scalars.expression(argument)
            if where is not None:
                condition = scalars.condition(where.expression.this)
                value = ["case", condition, value or ["int", 1], ["null"]]
            made = [name for name, other in columns[len(keys) :] if other == value]
            own = made[0] if made else None
            if value is not None and own is None:
                own = self._name("value")
                columns.append([own, value])
            listed.append([name, function, own])
        if counted and len(counted) != len(listed):
            raise refused("COUNT(DISTINCT) beside other aggregates")
        if columns:
            step = self._add("project", [step], columns=columns)
        if counted:
            if len({str(value) for _, value in columns[len(keys) :]}) != 1:
                raise refused("COUNT(DISTINCT) of different columns")
            step = self._add("distinct", [step])
        facts = self._facts[step]
        about: dict[str, Any] = {"keys": keys, "aggregates": listed}
        of = (facts.columns, facts.control, facts.records)
        if self._loss and guarded(self._scanned, *of):
            about["loss"] = self._loss
        step = self._add("group", [step], **about)
        # columns that are keys are found by themselves, too
        kept: Names = {}
        for e in group.expressions if group is not None else ():
            if isinstance(e, self._exp.Column):
                kept[(e.table, e.name)] = more[e.sql()]
        return step, kept, more
