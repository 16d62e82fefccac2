"""FROM, WHERE and what they take from other queries: joins, IN and EXISTS, as steps of a plan."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tfe_bench.errors import UsageError
from tfe_bench.models.queries import conditions, links
from tfe_bench.models.queries.accepted import refused
from tfe_bench.models.queries.builder import CommonTables, Names, PlanBuilder
from tfe_bench.models.queries.rights import Table
from tfe_bench.models.queries.scalars import null_of

_FALSE = ["bool", False]


@dataclass(frozen=True)
class _Source:
    """A table of FROM.

    Attributes:
        join: how it is joined; None of the first.
    """

    join: Any
    step: int
    names: Names


class SourceBuilder(PlanBuilder):
    """Makes the steps of FROM and WHERE."""

    @abstractmethod
    def _limit(self, node: Any) -> int | None:
        """The number of a query's LIMIT."""

    @abstractmethod
    def _calls(self, node: Any) -> list[Any]:
        """The aggregates of a SELECT, windows left out."""

    @abstractmethod
    def _grouped(
        self, node: Any, calls: Sequence[Any], step: int, names: Names, first: Sequence[str] = ()
    ) -> tuple[int, Names, dict[str, str]]:
        """GROUP BY: the step, names of its keys, and columns by the text of what they hold."""

    # ---- FROM

    def _source(self, node: Any, ctes: CommonTables) -> tuple[int, Names]:
        exp = self._exp
        alias = node.alias_or_name
        if isinstance(node, exp.Subquery):
            step, listed = self.query(node, ctes)
        elif isinstance(node, exp.Table) and node.name in ctes:
            step, listed = self._common(ctes[node.name])
        elif isinstance(node, exp.Table):
            return self._scan(node, alias, self._tables[node.name.lower()])
        else:
            raise refused(f"FROM {type(node).__name__.upper()}")
        # names of its own, so that it can be joined with itself
        own = self._name(alias or "query")
        columns = [[f"{own}.{name}", ["col", name]] for name in listed]
        step = self._add("project", [step], columns=columns)
        shown = _renamed(node, listed)
        return step, {(alias, s): f"{own}.{n}" for s, n in zip(shown, listed, strict=True)}

    def _scan(self, node: Any, alias: str, table: Table) -> tuple[int, Names]:
        own = alias if alias not in self._scanned else self._name(alias)
        self._scanned[own] = table
        columns = list(table.schema.columns)
        step = self._add("scan", [], table=own, columns=columns)
        shown = _renamed(node, columns)
        names = {(alias, s): f"{own}.{c}" for s, c in zip(shown, columns, strict=True)}
        # (qualify writes names in lower case where a query does)
        lower = {(alias, s.lower()): own for (_, s), own in names.items()}
        return step, {**lower, **names}

    def _from(self, node: Any, ctes: CommonTables, where: list[Any]) -> tuple[int, Names]:
        """The rows of FROM.

        Args:
            where: the conditions of WHERE; equalities that join a table after a comma are taken
                from it.
        """
        step, names = self._source(node.args["from_"].this, ctes)
        waiting = [
            _Source(join, *self._source(join.this, ctes)) for join in node.args.get("joins") or []
        ]
        while waiting:
            source = self._next(waiting, names, where)
            waiting.remove(source)
            if _is_product(source.join):
                pairs, rest = conditions.pairs_of(self._exp, where, names, source.names)
                if not pairs:
                    raise UsageError(
                        "Tables are joined by an equality of a column of each: FROM a JOIN b ON "
                        "a.key = b.key, or FROM a, b WHERE a.key = b.key."
                    )
                where[:] = rest
                step = self._matched(step, source.step, pairs, "inner")
                names = {**names, **source.names}
            else:
                step, names = self._join(step, names, source)
        return step, names

    def _next(self, waiting: Sequence[_Source], names: Names, where: Sequence[Any]) -> _Source:
        """The first table whose condition names only tables that are there: joins keep their order,
        tables after commas wait for the equality that joins them."""
        there = {alias for alias, _ in names}
        for source in waiting:
            own = {alias for alias, _ in source.names}
            if _is_product(source.join):
                if conditions.pairs_of(self._exp, where, names, source.names)[0]:
                    return source
                continue
            on = source.join.args.get("on")
            if on is None or conditions.aliases_of(self._exp, on) <= there | own:
                return source
            break
        return waiting[0]

    def _join(self, step: int, names: Names, source: _Source) -> tuple[int, Names]:
        join = source.join
        side, kind = (join.side or "").lower(), (join.kind or "").lower()
        known = side in ("", "left") and kind in ("", "inner", "outer", "semi", "anti")
        if join.args.get("method") or not known:
            words = (join.args.get("method") or "", side, kind, "join")
            raise refused(" ".join(filter(None, words)).upper())
        on = conditions.conjuncts(self._exp, join.args.get("on"))
        if not on:
            raise UsageError("A join takes an equality: JOIN ... ON a.key = b.key, or USING (key).")
        pairs, rest = conditions.pairs_of(self._exp, on, names, source.names)
        if not pairs:
            raise UsageError("A join takes an equality of a column of each side.")
        how = kind if kind in ("semi", "anti") else ("left" if side == "left" else "inner")
        step = self._matched_if(step, source.step, pairs, how, names, source.names, rest)
        return step, (names if how in ("semi", "anti") else {**names, **source.names})

    def _matched_if(
        self,
        left: int,
        right: int,
        pairs: list[list[str]],
        how: str,
        names: Names,
        theirs: Names,
        rest: Sequence[Any],
    ) -> int:
        """Rows matched by pairs of keys where other conditions hold, too."""
        own = {alias for alias, _ in names}, {alias for alias, _ in theirs}
        behind, before = [], []
        for each in rest:
            aliases = conditions.aliases_of(self._exp, each)
            if how == "inner":
                behind.append(each)
            elif aliases <= own[1]:
                condition = self._scalars(right, theirs).condition(each)
                right = self._add("filter", [right], where=condition)
            elif aliases <= own[0]:
                before.append(self._scalars(left, names).condition(each))
            else:
                what = "EXISTS" if how in ("semi", "anti") else f"A {how} join"
                raise UsageError(
                    f"{what} takes equalities of a column of each side, and other conditions on "
                    f"one side each. Received: {each.sql(dialect='duckdb')[:80]}."
                )
        if before and how == "semi":
            for condition in before:
                left = self._add("filter", [left], where=condition)
        elif before:
            left, pairs = self._keyed(left, pairs, before)
        step = self._matched(left, right, pairs, how)
        for each in behind:
            where = self._scalars(step, {**names, **theirs}).condition(each)
            step = self._add("filter", [step], where=where)
        return step

    def _keyed(
        self, step: int, pairs: list[list[str]], where: Sequence[Any]
    ) -> tuple[int, list[list[str]]]:
        """Rows that match nothing where a condition does not hold: their key is NULL there."""
        condition = where[0] if len(where) == 1 else ["and", *where]
        (first, other), *more = pairs
        name = self._name("key")
        columns: list[list[Any]]
        columns = [[each, ["col", each]] for each in self._facts[step].columns if "?" not in each]
        columns.append([name, ["case", condition, ["col", first], ["null"]]])
        return self._add("project", [step], columns=columns), [[name, other], *more]

    def _matched(self, left: int, right: int, pairs: list[list[str]], how: str) -> int:
        if set(self._facts[left].records) & set(self._facts[right].records):
            raise UsageError(
                "A WITH query whose rows depend on a random choice (LIMIT, ROW_NUMBER, LAG) is "
                "computed once and cannot be joined with itself. Give it an ORDER BY of a unique "
                "column."
            )
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
                keys = [[b, ["col", b]] for b in dict.fromkeys(b for _, b in pairs)]
                right = self._add("distinct", [self._add("project", [right], columns=keys)])
            elif self._bound is not None:
                about = {"on": pairs, "kind": how, "bound": self._bound}
                return self._add("many_join", [left, right], **about)
        return self._add("join", [left, right], on=pairs, kind=how)

    def _linked(self, left: int, right: int, pairs: list[list[str]]) -> bool:
        first, other = self._facts[left], self._facts[right]
        link = links.link_of(pairs, first.home, other.home, other.rows, self._scanned)
        return link is not None

    # ---- WHERE

    def _where(self, step: int, names: Names, given: Sequence[Any], ctes: CommonTables) -> int:
        """The rows where all of some conditions hold."""
        exp = self._exp
        plain = []
        for each in given:
            negated = isinstance(each, exp.Not)
            inner = each.this.unnest() if negated else each
            if isinstance(inner, exp.In) and inner.args.get("query") is not None:
                step = self._in(step, names, inner, negated, ctes)
            elif isinstance(inner, exp.Exists):
                step = self._exists(step, names, inner.this, negated, ctes)
            else:
                plain.append(each)
        for each in plain:
            where = self._scalars(step, names).condition(each)
            step = self._add("filter", [step], where=where)
        return step

    def _in(self, step: int, names: Names, node: Any, negated: bool, ctes: CommonTables) -> int:
        right, listed = self.query(node.args["query"], ctes)
        key = node.this.unnest()
        if len(listed) != 1 or not isinstance(key, self._exp.Column):
            raise UsageError("IN takes a column and a SELECT of one column.")
        [_, name] = self._scalars(step, names).expression(key)
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

    def _exists(self, step: int, names: Names, node: Any, negated: bool, ctes: CommonTables) -> int:
        """EXISTS: its SELECT's columns, order and DISTINCT say nothing, all else does."""
        exp = self._exp
        if not isinstance(node, exp.Select):
            raise refused(f"EXISTS of a {type(node).__name__.upper()}")
        if node.args.get("qualify") is not None:
            raise refused("QUALIFY in EXISTS")
        if node.args.get("from_") is None:
            raise UsageError("EXISTS takes SELECT ... FROM ... WHERE a.key = b.key.")
        if self._limit(node) == 0:
            return step if negated else self._add("filter", [step], where=_FALSE)
        where = conditions.conjuncts(exp, node.args.get("where") and node.args["where"].this)
        ctes = self._with(node, ctes)
        right, theirs = self._from(node, ctes, where)
        # a name of the inner query hides one of the query around it
        hidden = {alias for alias, _ in theirs}
        outer = {key: own for key, own in names.items() if key[0] not in hidden}
        pairs, rest = conditions.pairs_of(exp, where, outer, theirs)
        if not pairs:
            raise UsageError("EXISTS takes an equality with a column of the query around it.")
        inside = [each for each in rest if conditions.aliases_of(exp, each) <= hidden]
        right = self._where(right, theirs, inside, ctes)
        rest = [each for each in rest if each not in inside]
        how = "anti" if negated else "semi"
        group, having = node.args.get("group"), node.args.get("having")
        calls = self._calls(node)
        if not (calls or group or having):
            return self._matched_if(step, right, pairs, how, outer, theirs, rest)
        if group is None and having is None:  # one row, of whatever it is made
            return self._add("filter", [step], where=_FALSE) if negated else step
        keys = list(dict.fromkeys(b for _, b in pairs))
        right, grouped, more = self._grouped(node, calls, right, theirs, keys)
        named = dict(zip(keys, self._steps[right]["keys"], strict=False))
        pairs = [[a, named[b]] for a, b in pairs]
        if having is None:
            return self._matched_if(step, right, pairs, how, outer, theirs, rest)
        condition = self._scalars(right, grouped, more).condition(having.this)
        if group is not None:
            right = self._add("filter", [right], where=condition)
            return self._matched_if(step, right, pairs, how, outer, theirs, rest)
        facts = self._facts[right]
        if facts.least or facts.release is not None:
            raise refused("EXISTS with HAVING over groups that may be left out")
        # of rows without a partner HAVING sees an aggregate of no rows
        empty = self._of_no_rows(right, condition)
        holds = self._name("holds")
        columns: list[list[Any]]
        columns = [[b, ["col", b]] for b in dict.fromkeys(b for _, b in pairs)]
        columns.append([holds, ["coalesce", condition, _FALSE]])
        right = self._add("project", [right], columns=columns)
        step = self._matched_if(step, right, pairs, "left", outer, theirs, rest)
        there = ["coalesce", ["col", holds], empty, _FALSE]
        return self._add("filter", [step], where=["not", there] if negated else there)

    def _of_no_rows(self, group: int, condition: Any) -> Any:
        """A condition on a group's aggregates as it is where the group has no row."""
        counts = {
            name: function == "count" for name, function, _ in self._steps[group]["aggregates"]
        }
        facts = self._facts[group].columns

        def replaced(e: Any) -> Any:
            if not isinstance(e, list):
                return e
            if e[:1] == ["col"] and e[1] in counts:
                return ["int", 0] if counts[e[1]] else null_of(facts[e[1]].known)
            return [replaced(each) for each in e]

        return replaced(condition)


def _is_product(join: Any) -> bool:
    """Whether a table stands after a comma or CROSS JOIN."""
    kind, method = (join.kind or "").lower(), join.args.get("method")
    return kind in ("", "cross") and not join.side and not method and join.args.get("on") is None


def _renamed(node: Any, columns: Sequence[str]) -> list[str]:
    """Names of columns under an alias that names some of them: AS s(x, y)."""
    shown = node.alias_column_names
    if len(shown) > len(columns):
        raise UsageError(
            f"{node.alias_or_name[:80]!r} has {len(columns)} columns. Received: {len(shown)} names."
        )
    return [*shown, *columns[len(shown) :]]
