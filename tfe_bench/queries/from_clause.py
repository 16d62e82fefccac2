"""FROM and WHERE, with joins, IN and EXISTS, compiled to steps of a plan."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tfe_bench.errors import UsageError
from tfe_bench.queries import conditions, prepared_joins, sampling
from tfe_bench.queries.accepted import unsupported_sql_error
from tfe_bench.queries.builder import CommonTables, Names, QueryPlanBuilder
from tfe_bench.queries.rights import TableAccess
from tfe_bench.queries.scalars import typed_sql_null
from tfe_bench.queries.steps.group import Group

_FALSE = ["bool", False]


@dataclass(frozen=True)
class _FromTable:
    """A table of FROM.

    Attributes:
        join: its join; None for the first table.
    """

    join: Any
    step: int
    names: Names


class FromBuilder(QueryPlanBuilder):
    """Compiler of FROM and WHERE."""

    @abstractmethod
    def _limit_count(self, node: Any) -> int | None:
        """Return the number of a query's LIMIT."""

    @abstractmethod
    def _aggregate_calls(self, node: Any) -> list[Any]:
        """Return the aggregates of a SELECT without windows."""

    @abstractmethod
    def _compile_group(
        self, node: Any, calls: Sequence[Any], step: int, names: Names, first: Sequence[str] = ()
    ) -> tuple[int, Names, dict[str, str]]:
        """Compile GROUP BY; return the step, the names of its keys, and columns by the text of
        their expressions.
        """

    # ---- FROM

    def _compile_source(self, node: Any, ctes: CommonTables) -> tuple[int, Names]:
        exp = self._exp
        alias = node.alias_or_name
        if isinstance(node, exp.Subquery):
            step, listed = self.compile_query(node, ctes)
        elif isinstance(node, exp.Table) and node.name in ctes:
            step, listed = self._use_cte(ctes[node.name])
            step = self._add_sample(node, step)
        elif isinstance(node, exp.Table):
            step, names = self._add_scan(node, alias, self._tables[node.name.lower()])
            return self._add_sample(node, step), names
        else:
            raise unsupported_sql_error(f"FROM {type(node).__name__.upper()}")
        # separate names, so that it can be joined with itself
        prefix = self._fresh_name(alias or "query")
        columns = [[f"{prefix}.{name}", ["col", name]] for name in listed]
        step = self._add_step("project", [step], columns=columns)
        shown = _alias_columns(node, listed)
        return step, {(alias, s): f"{prefix}.{n}" for s, n in zip(shown, listed, strict=True)}

    def _add_scan(self, node: Any, alias: str, table: TableAccess) -> tuple[int, Names]:
        scan_alias = alias if alias not in self._scanned else self._fresh_name(alias)
        self._scanned[scan_alias] = table
        columns = list(table.schema.columns)
        step = self._add_step("scan", [], table=scan_alias, columns=columns)
        shown = _alias_columns(node, columns)
        names = {(alias, s): f"{scan_alias}.{c}" for s, c in zip(shown, columns, strict=True)}
        # (qualify writes names in lower case where a query does)
        lower = {(alias, s.lower()): scan_alias for (_, s), scan_alias in names.items()}
        return step, {**lower, **names}

    def _add_sample(self, node: Any, step: int) -> int:
        """Add TABLESAMPLE of a table or a subquery."""
        sample = node.args.get("sample")
        if sample is None:
            return step
        return self._add_step("sample", [step], **sampling.parse_sample(sample))

    def _compile_from(self, node: Any, ctes: CommonTables, where: list[Any]) -> tuple[int, Names]:
        """Compile the rows of FROM.

        Args:
            where: conditions of WHERE; equalities that join a table after a comma are removed from
                it.
        """
        step, names = self._compile_source(node.args["from_"].this, ctes)
        waiting = [
            _FromTable(join, *self._compile_source(join.this, ctes))
            for join in node.args.get("joins") or []
        ]
        while waiting:
            source = self._next_table(waiting, names, where)
            waiting.remove(source)
            if _is_cross_join(source.join):
                pairs, rest = conditions.split_equalities(self._exp, where, names, source.names)
                if not pairs:
                    raise UsageError(
                        "Tables are joined by an equality of a column of each: FROM a JOIN b "
                        "ON a.key = b.key, or FROM a, b WHERE a.key = b.key.",
                        code="missing-join-equality",
                        operation="from",
                    )
                where[:] = rest
                step = self._add_join(step, source.step, pairs, "inner")
                names = {**names, **source.names}
            else:
                step, names = self._compile_join(step, names, source)
        return step, names

    def _next_table(
        self, waiting: Sequence[_FromTable], names: Names, where: Sequence[Any]
    ) -> _FromTable:
        """Return the first table whose condition names only known tables: joins keep their order,
        tables after commas wait for the equality that joins them.
        """
        known_aliases = {alias for alias, _ in names}
        for source in waiting:
            own_aliases = {alias for alias, _ in source.names}
            if _is_cross_join(source.join):
                if conditions.split_equalities(self._exp, where, names, source.names)[0]:
                    return source
                continue
            on = source.join.args.get("on")
            if (
                on is None
                or conditions.referenced_aliases(self._exp, on) <= known_aliases | own_aliases
            ):
                return source
            break
        return waiting[0]

    def _compile_join(self, step: int, names: Names, source: _FromTable) -> tuple[int, Names]:
        join = source.join
        side, kind = (join.side or "").lower(), (join.kind or "").lower()
        known = side in ("", "left") and kind in ("", "inner", "outer", "semi", "anti")
        if join.args.get("method") or not known:
            words = (join.args.get("method") or "", side, kind, "join")
            raise unsupported_sql_error(" ".join(filter(None, words)).upper())
        on = conditions.split_sql_conjuncts(self._exp, join.args.get("on"))
        if not on:
            raise UsageError(
                "A join takes an equality: JOIN ... ON a.key = b.key, or USING (key).",
                code="missing-join-equality",
                operation="join",
            )
        pairs, rest = conditions.split_equalities(self._exp, on, names, source.names)
        if not pairs:
            raise UsageError(
                "A join takes an equality of a column of each side.",
                code="missing-join-equality",
                operation="join",
            )
        how = kind if kind in ("semi", "anti") else ("left" if side == "left" else "inner")
        step = self._join_with_conditions(step, source.step, pairs, how, names, source.names, rest)
        return step, (names if how in ("semi", "anti") else {**names, **source.names})

    def _join_with_conditions(
        self,
        left: int,
        right: int,
        pairs: list[list[str]],
        how: str,
        names: Names,
        right_names: Names,
        rest: Sequence[Any],
    ) -> int:
        """Join rows by pairs of keys, with further conditions."""
        aliases_by_side = {alias for alias, _ in names}, {alias for alias, _ in right_names}
        after_join, left_conditions = [], []
        for condition_node in rest:
            aliases = conditions.referenced_aliases(self._exp, condition_node)
            if how == "inner":
                after_join.append(condition_node)
            elif aliases <= aliases_by_side[1]:
                condition = self._scalar_compiler(right, right_names).compile_condition(
                    condition_node
                )
                right = self._add_step("filter", [right], where=condition)
            elif aliases <= aliases_by_side[0]:
                left_conditions.append(
                    self._scalar_compiler(left, names).compile_condition(condition_node)
                )
            else:
                subject = "EXISTS" if how in ("semi", "anti") else f"A {how} join"
                raise UsageError(
                    f"{subject} takes equalities of a column of each side, and other "
                    "conditions on one side each. Received: "
                    f"{condition_node.sql(dialect='duckdb')[:80]}.",
                    code="unsupported-join-condition",
                    operation=subject,
                )
        if left_conditions and how == "semi":
            for condition in left_conditions:
                left = self._add_step("filter", [left], where=condition)
        elif left_conditions:
            left, pairs = self._null_unmatched_keys(left, pairs, left_conditions)
        step = self._add_join(left, right, pairs, how)
        for condition_node in after_join:
            where = self._scalar_compiler(step, {**names, **right_names}).compile_condition(
                condition_node
            )
            step = self._add_step("filter", [step], where=where)
        return step

    def _null_unmatched_keys(
        self, step: int, pairs: list[list[str]], where: Sequence[Any]
    ) -> tuple[int, list[list[str]]]:
        """Set a key to NULL where a condition is false, so that these rows match nothing."""
        condition = where[0] if len(where) == 1 else ["and", *where]
        (first, other), *more = pairs
        name = self._fresh_name("key")
        columns: list[list[Any]]
        columns = [[each, ["col", each]] for each in self._facts[step].columns if "?" not in each]
        columns.append([name, ["case", condition, ["col", first], ["null"]]])
        return self._add_step("project", [step], columns=columns), [[name, other], *more]

    def _add_join(self, left: int, right: int, pairs: list[list[str]], how: str) -> int:
        if set(self._facts[left].records) & set(self._facts[right].records):
            raise UsageError(
                "A WITH query whose rows depend on a random choice (LIMIT, ROW_NUMBER, LAG) "
                "is computed once and cannot be joined with itself. Give it an ORDER BY of a "
                "unique column.",
                code="unrepeatable-query",
            )
        unique = self._facts[right].unique
        if how == "inner" and not self._has_link(left, right, pairs):
            swapped = [[b, a] for a, b in pairs]
            if self._has_link(right, left, swapped):
                return self._add_step("join", [right, left], on=swapped, kind=how)
        if not {b for _, b in pairs} & unique:
            if how == "inner" and {a for a, _ in pairs} & self._facts[left].unique:
                left, right = right, left
                pairs = [[b, a] for a, b in pairs]
            elif how in ("semi", "anti"):
                keys = [[b, ["col", b]] for b in dict.fromkeys(b for _, b in pairs)]
                right = self._add_step(
                    "distinct", [self._add_step("project", [right], columns=keys)]
                )
            elif self._bound is not None:
                about = {"on": pairs, "kind": how, "bound": self._bound}
                return self._add_step("many_join", [left, right], **about)
        return self._add_step("join", [left, right], on=pairs, kind=how)

    def _has_link(self, left: int, right: int, pairs: list[list[str]]) -> bool:
        first, other = self._facts[left], self._facts[right]
        link = prepared_joins.find_prepared_join(
            pairs, first.home, other.home, other.rows, self._scanned
        )
        return link is not None

    # ---- WHERE

    def _compile_where(
        self, step: int, names: Names, conjuncts: Sequence[Any], ctes: CommonTables
    ) -> int:
        """Filter rows by a conjunction."""
        exp = self._exp
        row_conditions = []
        for conjunct in conjuncts:
            negated = isinstance(conjunct, exp.Not)
            inner = conjunct.this.unnest() if negated else conjunct
            if isinstance(inner, exp.In) and inner.args.get("query") is not None:
                step = self._compile_in(step, names, inner, negated, ctes)
            elif isinstance(inner, exp.Exists):
                step = self._compile_exists(step, names, inner.this, negated, ctes)
            else:
                row_conditions.append(conjunct)
        for conjunct in row_conditions:
            where = self._scalar_compiler(step, names).compile_condition(conjunct)
            step = self._add_step("filter", [step], where=where)
        return step

    def _compile_in(
        self, step: int, names: Names, node: Any, negated: bool, ctes: CommonTables
    ) -> int:
        right, listed = self.compile_query(node.args["query"], ctes)
        key = node.this.unnest()
        if len(listed) != 1 or not isinstance(key, self._exp.Column):
            raise UsageError(
                "IN takes a column and a SELECT of one column.",
                code="unsupported-subquery",
                operation="in",
            )
        [_, name] = self._scalar_compiler(step, names).compile_expression(key)
        other = self._fresh_name("in")
        right = self._add_step("project", [right], columns=[[other, ["col", listed[0]]]])
        facts = self._facts
        nullable = facts[step].columns[name].nullable or facts[right].columns[other].nullable
        if negated and nullable:
            raise UsageError(
                "NOT IN is never true if one of the values is NULL. Use NOT EXISTS (SELECT "
                "... WHERE a.key = b.key).",
                code="nullable-column",
                operation="not in",
            )
        return self._add_join(step, right, [[name, other]], "anti" if negated else "semi")

    def _compile_exists(
        self, step: int, names: Names, node: Any, negated: bool, ctes: CommonTables
    ) -> int:
        """Compile EXISTS: columns, order and DISTINCT of its SELECT have no effect,
        everything else has.
        """
        exp = self._exp
        if not isinstance(node, exp.Select):
            raise unsupported_sql_error(f"EXISTS of a {type(node).__name__.upper()}")
        if node.args.get("qualify") is not None:
            raise unsupported_sql_error("QUALIFY in EXISTS")
        if node.args.get("from_") is None:
            raise UsageError(
                "EXISTS takes SELECT ... FROM ... WHERE a.key = b.key.",
                code="unsupported-subquery",
                operation="exists",
            )
        if self._limit_count(node) == 0:
            return step if negated else self._add_step("filter", [step], where=_FALSE)
        where = conditions.split_sql_conjuncts(
            exp, node.args.get("where") and node.args["where"].this
        )
        ctes = self._compile_ctes(node, ctes)
        right, right_names = self._compile_from(node, ctes, where)
        # a name of the inner query hides one of the enclosing query
        hidden = {alias for alias, _ in right_names}
        outer = {key: plan_name for key, plan_name in names.items() if key[0] not in hidden}
        pairs, rest = conditions.split_equalities(exp, where, outer, right_names)
        if not pairs:
            raise UsageError(
                "EXISTS takes an equality with a column of the enclosing query.",
                code="missing-join-equality",
                operation="exists",
            )
        inside = [each for each in rest if conditions.referenced_aliases(exp, each) <= hidden]
        right = self._compile_where(right, right_names, inside, ctes)
        rest = [each for each in rest if each not in inside]
        how = "anti" if negated else "semi"
        group, having = node.args.get("group"), node.args.get("having")
        calls = self._aggregate_calls(node)
        if not (calls or group or having):
            return self._join_with_conditions(step, right, pairs, how, outer, right_names, rest)
        if group is None and having is None:  # an aggregate without GROUP BY has one row
            return self._add_step("filter", [step], where=_FALSE) if negated else step
        keys = list(dict.fromkeys(b for _, b in pairs))
        right, grouped, more = self._compile_group(node, calls, right, right_names, keys)
        named = dict(zip(keys, self._group_step(right).keys, strict=False))
        pairs = [[a, named[b]] for a, b in pairs]
        if having is None:
            return self._join_with_conditions(step, right, pairs, how, outer, right_names, rest)
        condition = self._scalar_compiler(right, grouped, more).compile_condition(having.this)
        if group is not None:
            right = self._add_step("filter", [right], where=condition)
            return self._join_with_conditions(step, right, pairs, how, outer, right_names, rest)
        facts = self._facts[right]
        if facts.least or facts.release is not None:
            raise unsupported_sql_error("EXISTS with HAVING over groups that a rule may drop")
        # for rows without a partner HAVING applies to an aggregate of no rows
        empty = self._empty_group_condition(right, condition)
        holds = self._fresh_name("holds")
        columns: list[list[Any]]
        columns = [[b, ["col", b]] for b in dict.fromkeys(b for _, b in pairs)]
        columns.append([holds, ["coalesce", condition, _FALSE]])
        right = self._add_step("project", [right], columns=columns)
        step = self._join_with_conditions(step, right, pairs, "left", outer, right_names, rest)
        holds_condition = ["coalesce", ["col", holds], empty, _FALSE]
        return self._add_step(
            "filter", [step], where=["not", holds_condition] if negated else holds_condition
        )

    def _group_step(self, number: int) -> Group:
        step = self._steps[number]
        assert isinstance(step, Group)
        return step

    def _empty_group_condition(self, group: int, condition: Any) -> Any:
        """Return a condition on a group's aggregates as it is for a group without rows."""
        counts = {
            name: function == "count" for name, function, _ in self._group_step(group).aggregates
        }
        facts = self._facts[group].columns

        def replace_aggregates(e: Any) -> Any:
            if not isinstance(e, list):
                return e
            if e[:1] == ["col"] and e[1] in counts:
                return ["int", 0] if counts[e[1]] else typed_sql_null(facts[e[1]].value_type)
            return [replace_aggregates(each) for each in e]

        return replace_aggregates(condition)


def _is_cross_join(join: Any) -> bool:
    """Return whether a table stands after a comma or CROSS JOIN."""
    kind, method = (join.kind or "").lower(), join.args.get("method")
    return kind in ("", "cross") and not join.side and not method and join.args.get("on") is None


def _alias_columns(node: Any, columns: Sequence[str]) -> list[str]:
    """Return names of columns under an alias that names some of them: AS s(x, y)."""
    shown = node.alias_column_names
    if len(shown) > len(columns):
        raise UsageError(
            f"{node.alias_or_name[:80]!r} has {len(columns)} columns. Received: {len(shown)} "
            "names.",
            code="column-count-mismatch",
            received=len(shown),
            expected=len(columns),
        )
    return [*shown, *columns[len(shown) :]]
