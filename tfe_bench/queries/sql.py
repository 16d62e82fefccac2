"""Compilation of SQL in DuckDB's dialect to a plan at the client: sqlglot parses and qualifies
names.

SQL outside the lists of accepted.py is refused by name. The compiler decides nothing about rights:
workers derive these from the plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tfe_bench.errors import UsageError, import_optional_library
from tfe_bench.queries import accepted, aggregates, conditions, relations, rewrite, windows
from tfe_bench.queries.accepted import unsupported_sql_error
from tfe_bench.queries.builder import CommonTables, Names
from tfe_bench.queries.from_clause import FromBuilder
from tfe_bench.queries.naming import name_columns
from tfe_bench.queries.plan import QueryPlan
from tfe_bench.queries.plan_syntax import check_row_bound
from tfe_bench.queries.privacy import budgeted_aliases, has_budget
from tfe_bench.queries.rights import TableAccess
from tfe_bench.queries.scalars import typed_sql_null
from tfe_bench.queries.steps.group import Group

_TYPES = {"bool": "BOOLEAN", "date": "DATE", "timestamp": "TIMESTAMP"}


def import_sqlglot() -> Any:
    """Import the parser.

    Raises:
        UsageError: it is not installed.
    """
    return import_optional_library(
        "sqlglot", "SQL takes sqlglot", "Install it: pip install '.[tables]' in the checkout"
    )


def compile_sql(
    text: str, tables: Mapping[str, TableAccess], max_rows: int | None = None, loss: int = 0
) -> dict[str, Any]:
    """Compile a query to a plan, as JSON.

    Args:
        text: one SELECT, or a UNION of several.
        tables: tables that the client may use, by name.
        max_rows: largest number of rows of the result, and of a join whose looked up keys are not
            unique; if exceeded, the client learns this and receives no row.
        loss: privacy loss that the query may spend from each table with a budget, in billionths of
            rho; several groupings share it equally.

    Raises:
        UsageError: the query is invalid or not supported.
        PolicyError: the client lacks a required right.
    """
    return compile_tree(parse_sql(text), tables, max_rows, loss)


def parse_sql(text: str) -> Any:
    """Parse a query to a tree.

    Raises:
        UsageError: it is not one statement of DuckDB's dialect.
    """
    parser = import_sqlglot()
    try:
        statements = parser.parse(text, read="duckdb")
    except parser.errors.SqlglotError as error:
        raise UsageError(
            f"SQL syntax error (DuckDB dialect). Received: {_sql_error_first_line(error)}.",
            code="sql-syntax",
        ) from None
    if len(statements) != 1 or statements[0] is None:
        raise UsageError(
            f"Expected one SELECT. Received: {len(statements)} statements.",
            code="statement-count",
            received=len(statements),
        )
    return statements[0]


def compile_tree(
    tree: Any, tables: Mapping[str, TableAccess], max_rows: int | None = None, loss: int = 0
) -> dict[str, Any]:
    """Compile a parsed tree, as `compile_sql`; the tree is changed."""
    parser = import_sqlglot()
    accepted.check_sql_nodes(tree)
    known_names = {name.lower() for name in tables}
    known_names |= {cte.alias.lower() for cte in tree.find_all(parser.exp.CTE)}
    for node in tree.find_all(parser.exp.Table):
        if node.name.lower() not in known_names:
            raise relations.missing_table_error(node.name, list(tables))
    name_columns(tree)
    from sqlglot.optimizer.qualify import qualify

    schema: dict[str, object] = {
        name: {
            c: _TYPES.get(column.type.kind, "BIGINT") for c, column in table.schema.columns.items()
        }
        for name, table in tables.items()
    }
    try:
        whole = qualify(tree, schema=schema, dialect="duckdb", quote_identifiers=False)
    except parser.errors.SqlglotError as error:
        raise UsageError(
            f"This query does not fit its tables. Received: {_sql_error_first_line(error)}.",
            code="unresolved-name",
        ) from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UsageError(
            f"sqlglot cannot take this query ({type(error).__name__}).",
            code="sql-syntax",
            received=type(error).__name__,
        ) from None
    if max_rows is not None:
        check_row_bound(max_rows)
    plan = _build_query_plan(tables, whole, max_rows, loss)
    if (parts := sum(step.loss > 0 for step in plan.steps if isinstance(step, Group))) > 1:
        plan = _build_query_plan(tables, whole, max_rows, loss // parts)
    elif loss and not any(has_budget(tables, name) for name, _ in plan.tables.values()):
        raise UsageError(
            "Expected no rho, as no table of this query has another owner's privacy budget.",
            code="unexpected-rho",
        )
    return plan.to_header()


def _build_query_plan(
    tables: Mapping[str, TableAccess], whole: Any, max_rows: int | None, loss: int
) -> QueryPlan:
    builder = _QueryBuilder(tables, whole, max_rows, loss)
    step, _ = builder.compile_query(whole, {})
    return rewrite.prune_columns(builder.build_plan(step))


def _sql_error_first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:200].removesuffix(".")


class _QueryBuilder(FromBuilder):
    """Compiler of SELECT and UNION."""

    def __init__(
        self, tables: Mapping[str, TableAccess], whole: Any, max_rows: int | None, loss: int
    ) -> None:
        super().__init__(tables, max_rows, loss)
        self._whole = whole

    def compile_query(self, node: Any, ctes: CommonTables) -> tuple[int, list[str]]:
        """Compile a SELECT or a UNION; return its step and the names of its columns."""
        exp = self._exp
        known = self._compile_ctes(node, ctes)
        if isinstance(node, exp.Subquery):
            step, names = self.compile_query(node.this, known)
            step = self._add_ordering(node, step, {("", name): name for name in names}, {})
            return self._add_sample(node, step), names
        if isinstance(node, exp.Union):
            return self._compile_union(node, known)
        if not isinstance(node, exp.Select):
            raise unsupported_sql_error(accepted.sql_node_name(node))
        return self._compile_select(node, known)

    def _compile_union(self, node: Any, ctes: CommonTables) -> tuple[int, list[str]]:
        left, names = self.compile_query(node.this, ctes)
        right, others = self.compile_query(node.expression, ctes)
        if node.args.get("by_name"):
            left, right, names = self._match_by_name(left, names, right, others)
        elif len(names) != len(others):
            raise UsageError(
                "UNION takes the same number of columns from each SELECT.",
                code="column-count-mismatch",
                operation="union",
            )
        step = self._add_step("union", [left, right])
        if node.args.get("distinct"):
            step = self._add_step("distinct", [step])
        step = self._add_trim(node, step, False)
        # (named as those of the first SELECT)
        scope: Names = {("", name): name for name in names}
        return self._add_ordering(node, step, scope, {}), names

    def _match_by_name(
        self, left: int, names: Sequence[str], right: int, others: Sequence[str]
    ) -> tuple[int, int, list[str]]:
        """Give both sides all columns, matched by name; NULL where a side lacks one."""
        all_names = list(dict.fromkeys((*names, *others)))
        sides = []
        for step, own_names, other in ((left, names, right), (right, others, left)):
            columns = [
                [
                    name,
                    ["col", name]
                    if name in own_names
                    else typed_sql_null(self._facts[other].column_fact(name).value_type),
                ]
                for name in all_names
            ]
            sides.append(self._add_step("project", [step], columns=columns))
        return sides[0], sides[1], all_names

    def _compile_select(self, node: Any, ctes: CommonTables) -> tuple[int, list[str]]:
        if node.args.get("from_") is None:
            raise UsageError("A query reads tables: SELECT ... FROM ...", code="missing-from")
        where = conditions.split_sql_conjuncts(
            self._exp, node.args.get("where") and node.args["where"].this
        )
        step, names = self._compile_from(node, ctes, where)
        step = self._compile_where(step, names, where, ctes)
        more: dict[str, str] = {}
        calls, having = self._aggregate_calls(node), node.args.get("having")
        if calls or node.args.get("group") is not None:
            step, names, more = self._compile_group(node, calls, step, names)
        elif having is not None:
            raise UsageError(
                "HAVING takes GROUP BY or an aggregate; conditions on rows belong in WHERE.",
                code="misplaced-having",
            )
        if having is not None:
            condition = self._scalar_compiler(step, names, more).compile_condition(having.this)
            step = self._add_step("filter", [step], where=condition)
        if over := self._find_nodes(node, self._exp.Window):
            step, more = self._compile_windows(over, step, names, more)
        if (qualify := node.args.get("qualify")) is not None:
            condition = self._scalar_compiler(step, names, more).compile_condition(qualify.this)
            step = self._add_step("filter", [step], where=condition)
        outputs = [(e.alias_or_name, e.unalias()) for e in node.expressions]
        listed = [name for name, _ in outputs]
        if len(set(listed)) != len(listed):
            raise UsageError(
                f"Expected different names of result columns. Received: {listed[:20]}.",
                code="duplicate-name",
                operation="select",
                received=listed[:20],
            )
        return self._compile_outputs(node, outputs, step, names, more), listed

    def _find_nodes(self, node: Any, kind: Any) -> list[Any]:
        """Find expressions of one SELECT, without those of inner queries."""
        parts = [node.args.get(name) for name in ("having", "qualify", "order")]
        return [
            node_found
            for part in (*node.expressions, *parts)
            if part is not None
            for node_found in part.find_all(kind)
            if node_found.find_ancestor(self._exp.Select) is node
        ]

    def _aggregate_calls(self, node: Any) -> list[Any]:
        exp = self._exp
        return [
            call
            for call in self._find_nodes(node, exp.AggFunc)
            if not isinstance(call.parent, exp.Window | exp.RespectNulls)
        ]

    def _compile_windows(
        self, over: Sequence[Any], step: int, names: Names, more: Mapping[str, str]
    ) -> tuple[int, dict[str, str]]:
        """Add a column for each window function; functions of one order share a step."""
        scalars = self._scalar_compiler(step, names, more)
        columns_by_text = dict(more)
        columns = [[name, ["col", name]] for name in self._facts[step].columns if "?" not in name]
        column_count = len(columns)

        def column_for(node: Any) -> str:
            expression = scalars.compile_expression(node)
            if expression[0] == "col":
                return str(expression[1])
            columns.append([self._fresh_name("over"), expression])
            return str(columns[-1][0])

        steps = windows.window_steps(over, column_for, self._fresh_name, columns_by_text)
        if len(columns) > column_count:
            step = self._add_step("project", [step], columns=columns)
        for about in steps:
            step = self._add_step("window", [step], **about)
        return step, columns_by_text

    def _compile_outputs(
        self, node: Any, outputs: Sequence[Any], step: int, names: Names, more: Mapping[str, str]
    ) -> int:
        scalars = self._scalar_compiler(step, names, more)
        columns = [[name, scalars.compile_expression(e)] for name, e in outputs]
        outputs_by_name = dict(outputs)
        shown = {e.unnest().sql(): name for name, e in outputs}
        # columns of ORDER BY, by the text of their expressions
        ordered: dict[str, str] = {}
        distinct = node.args.get("distinct") is not None
        for each in (node.args.get("order") or self._exp.Order()).expressions:
            e = each.this
            if isinstance(e, self._exp.Column) and not e.table and e.name in outputs_by_name:
                continue
            text = e.sql()
            if text in ordered:
                continue
            e = self._resolve_names(e, outputs_by_name, names)
            if distinct and e.unnest().sql() not in shown:
                raise UsageError(
                    "ORDER BY after DISTINCT takes columns of the SELECT.",
                    code="invalid-order",
                    operation="distinct",
                )
            if distinct:
                ordered[text] = shown[e.unnest().sql()]
                continue
            ordered[text] = self._fresh_name("order")
            columns.append([ordered[text], scalars.compile_expression(e)])
        step = self._add_step("project", [step], columns=columns)
        if distinct:
            step = self._add_step("distinct", [step])
        step = self._add_trim(node, step, distinct or bool(more))
        step = self._add_ordering(
            node, step, {("", name): name for name in outputs_by_name}, ordered
        )
        if len(columns) > len(outputs):
            projection = [[name, ["col", name]] for name, _ in outputs]
            step = self._add_step("project", [step], columns=projection)
        return step

    def _resolve_names(self, e: Any, outputs: Mapping[str, Any], names: Names) -> Any:
        """Replace names of SELECT in an expression of ORDER BY by their expressions.

        As in DuckDB, a column of FROM takes precedence over a name of SELECT.
        """
        resolved = e.copy()
        for column in list(resolved.find_all(self._exp.Column)):
            if column.table:
                continue
            tables = {alias for alias, name in names if name == column.name and alias}
            if len(tables) > 1:
                raise UsageError(
                    f"The column {column.name[:80]!r} is in several tables.",
                    code="ambiguous-column",
                    received=column.name[:80],
                )
            if tables:
                replacement = self._exp.column(column.name, table=tables.pop())
            elif column.name in outputs:
                replacement = self._exp.paren(outputs[column.name].copy())
            else:
                continue
            resolved = replacement if column is resolved else resolved
            column.replace(replacement)
        return resolved

    def _add_ordering(self, node: Any, step: int, names: Names, hidden: Mapping[str, str]) -> int:
        """Add ORDER BY and LIMIT."""
        order, count = node.args.get("order"), self._limit_count(node)
        if order is None:
            return step if count is None else self._add_step("limit", [step], count=count)
        by: list[list[str]] = []
        for ordered in order.expressions:
            if ordered.args.get("nulls_first"):
                raise unsupported_sql_error("NULLS FIRST")
            name = hidden.get(ordered.this.sql()) or names.get(("", ordered.this.name))
            if name is None:
                raise UsageError(
                    "ORDER BY of a UNION takes its columns.",
                    code="invalid-order",
                    operation="union",
                )
            if name not in [n for n, _ in by]:
                by.append([name, "desc" if ordered.args.get("desc") else "asc"])
        if count:
            return self._add_step("top", [step], by=by, count=count)
        step = self._add_step("order", [step], by=by)
        return step if count is None else self._add_step("limit", [step], count=0)

    def _add_trim(self, node: Any, step: int, grouped: bool) -> int:
        """Bound the number of rows: of groups, or of a result without LIMIT."""
        is_bounded = node is self._whole and (grouped or node.args.get("limit") is None)
        if self._bound is None or not is_bounded or self._facts[step].rows <= self._bound:
            return step
        return self._add_step("trim", [step], bound=self._bound)

    def _limit_count(self, node: Any) -> int | None:
        limit = node.args.get("limit")
        if limit is None:
            return None
        fetched = isinstance(limit, self._exp.Fetch)
        count = limit.args.get("count") if fetched else limit.expression
        if fetched and count is None:  # FETCH FIRST ROW ONLY
            return 1
        if not isinstance(count, self._exp.Literal) or not str(count.this).isdigit():
            raise UsageError("LIMIT takes a public number of rows.", code="invalid-limit")
        return min(int(count.this), 1 << 31)

    # ---- GROUP BY

    def _compile_group(
        self, node: Any, calls: Sequence[Any], step: int, names: Names, first: Sequence[str] = ()
    ) -> tuple[int, Names, dict[str, str]]:
        group = node.args.get("group")
        scalars = self._scalar_compiler(step, names)
        columns: list[list[Any]] = []
        more: dict[str, str] = {}
        keys: list[str] = []
        for column in first:
            keys.append(self._fresh_name("key"))
            columns.append([keys[-1], ["col", column]])
        for e in group.expressions if group is not None else ():
            if e.sql() in more:
                continue
            name = more[e.sql()] = self._fresh_name("key")
            columns.append([name, scalars.compile_expression(e)])
            keys.append(name)
        listed: list[list[Any]] = []
        distinct_counts: list[str] = []
        for call in calls:
            where = call.parent if isinstance(call.parent, self._exp.Filter) else None
            text = (where or call).sql()
            if text in more:
                continue
            function, argument = aggregates.parse_aggregate(call, distinct_counts)
            name = more[text] = self._fresh_name(function.replace(":", "_"))
            value = None if argument is None else scalars.compile_expression(argument)
            if where is not None:
                condition = scalars.compile_condition(where.expression.this)
                value = ["case", condition, value or ["int", 1], ["null"]]
            same_columns = [name for name, other in columns[len(keys) :] if other == value]
            value_column = same_columns[0] if same_columns else None
            if value is not None and value_column is None:
                value_column = self._fresh_name("value")
                columns.append([value_column, value])
            listed.append([name, function, value_column])
        if distinct_counts and len(distinct_counts) != len(listed):
            raise unsupported_sql_error("COUNT(DISTINCT) with other aggregates")
        if columns:
            step = self._add_step("project", [step], columns=columns)
        if distinct_counts:
            if len({str(value) for _, value in columns[len(keys) :]}) != 1:
                raise unsupported_sql_error("COUNT(DISTINCT) of different columns")
            step = self._add_step("distinct", [step])
        facts = self._facts[step]
        about: dict[str, Any] = {"keys": keys, "aggregates": listed}
        of = (facts.columns, facts.control, facts.records)
        if self._loss and budgeted_aliases(self._scanned, *of):
            about["loss"] = self._loss
        step = self._add_step("group", [step], **about)
        # key columns are also found by their names
        key_names: Names = {}
        for e in group.expressions if group is not None else ():
            if isinstance(e, self._exp.Column):
                key_names[(e.table, e.name)] = more[e.sql()]
        return step, key_names, more
