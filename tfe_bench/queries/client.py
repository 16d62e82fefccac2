"""Private tables at the client: put, list, remove and query.

```python
db = tfe_bench.tables(cluster)
db.put("customers", "customers.csv", types={"income": "fixed(16)[0,500000]"}, unique=["id"],
       clients=["analyst"], rights=["income:aggregate", "segment:group,filter"])
query = db.sql("select segment, avg(income) from customers group by segment")
print(query.explain())
query.run().to_pandas()
```
"""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfe_bench.cluster import ledger
from tfe_bench.cluster.client import Client
from tfe_bench.cluster.requests import JobResult, PrivateInput, Progress, private_input_spec
from tfe_bench.cluster.stored import TABLE, check_name
from tfe_bench.cluster.stored_shares import StorageRequest, StoredEntry
from tfe_bench.errors import ProtocolError, RangeError, UsageError, did_you_mean
from tfe_bench.queries import explain, hash_bins, io, notes, reading, relations, sql
from tfe_bench.queries.execute import OVER, ROWS, query_result_words
from tfe_bench.queries.plan import QueryPlan
from tfe_bench.queries.price import Price, price_query_plan
from tfe_bench.queries.relation_facts import Relation
from tfe_bench.queries.report import TableReport
from tfe_bench.queries.request import NAME_SUBJECT, parse_table
from tfe_bench.queries.rights import TableAccess
from tfe_bench.queries.schema import ALL, DEFAULT_MIN_GROUP, TableColumn, TableSchema, parse_rights
from tfe_bench.queries.types import BOOL, HASHES, ColumnType
from tfe_bench.queries.upload import encode_columns, prepare_table, training_scale


class StoredTables:
    """Private tables that the workers of one cluster store.

    Args:
        cluster: a LocalCluster, a Cluster or a Client.
    """

    def __init__(self, cluster: Client) -> None:
        self._cluster = cluster
        self._texts: dict[str, str] = {}

    def show_texts(self, source: object) -> None:
        """Show a table's texts in results instead of their hashes; `put` does so for its own
        texts.

        Args:
            source: as in `put`. It stays at this client.
        """
        self._texts |= reading.texts_by_hash(reading.read_columns(source))

    def listed(self) -> dict[str, StoredEntry]:
        """Return the stored tables that this client may use, by name."""
        entries = self._cluster.stored(TABLE.infix)
        return {str(row["name"]): StoredEntry.from_row(row) for row in entries}

    def seen(self) -> dict[str, TableAccess]:
        """Return the same tables with their headers, as queries take them."""
        tables_by_name = {}
        client = self._cluster.identity
        for name, entry in self.listed().items():
            if entry.complete:
                schema = TableSchema.from_header(entry.about)
                facts = (name, entry.owner, entry.deployment, schema, client, entry.spent)
                tables_by_name[name] = TableAccess(*facts)
        return tables_by_name

    def put(
        self,
        name: str,
        source: object,
        *,
        types: Mapping[str, str] | None = None,
        columns: Sequence[str] | None = None,
        nullable: Sequence[str] = (),
        unique: Sequence[str] = (),
        sorted_by: str = "",
        pad_to: int | None = None,
        clients: Sequence[str] = (),
        rights: Sequence[str] = (),
        min_group: int = DEFAULT_MIN_GROUP,
        unit: str = "",
        scale: Sequence[str] = (),
        open_count: bool = False,
        hashed_by: str = "",
        links: Sequence[str] = (),
        budget: object = None,
        contributions: int = 1,
        replace: bool = False,
        rename: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> TableReport:
        """Share a table among the workers, which store it under a name.

        Args:
            source: a file (.csv, .parquet, .feather), a pyarrow.Table, a pandas.DataFrame, or a
                dict of lists or arrays; an empty field and NaN are NULL.
            types: types of columns, as in `types.parse_type`. Other columns get a type by their
                values, with elements up to 2^40: reals with few decimals become `decimal`, others
                `fixed`. "category" alone takes the words of the column, which become public.
            columns: columns to put; None: all.
            nullable: columns that may be NULL although no row of this table is: otherwise the
                absence of NULL would be public.
            unique: columns without repeated values; the workers check them.
            sorted_by: column by which rows are sorted before they are shared.
            pad_to: public number of rows; padding rows are indistinguishable from real ones.
            clients: further clients that may use the table; "*" for every client of the cluster.
            rights: grants such as "income:aggregate,filter"; everything else is denied.
            min_group: smallest number of units in a released group, unless all columns are open.
            unit: column that identifies the privacy unit of a row; "" if every row is its own
                unit.
            scale: numeric columns whose scale becomes public for training: a power of two near the
                deviation, and the mean rounded to half of it; "*": all.
            open_count: whether the number of rows in common with other tables may be released.
            hashed_by: unique column by which rows are placed in hash bins, 3/2 as many bins as
                rows; joins of tables that link to it sort no keys.
            links: links such as "customer=customers.id" to a column by which another table is
                placed in hash bins; valid until that table is replaced.
            budget: privacy budget of queries by other clients, as rho of zero-concentrated
                differential privacy, 0.000000001 to 1000000. Then only sums, counts and averages
                with noise are released. The spent part remains when the table is replaced.
            contributions: number of rows of one unit that count in a sum, if a unit may have
                several.
            replace: whether to replace the table that this client stored under the name.
            rename: new names of columns, by names in the source.

        Returns:
            a report on each column: type, range, and largest rounding error.

        Raises:
            UsageError, DataError, RangeError: the table is invalid; the text names all unsuitable
                columns with a row, but no values.
            PolicyError: an operator does not let this client put tables.
        """
        check_name(name, NAME_SUBJECT)
        self._cluster.check_members(clients)
        parsed_rights = parse_rights(rights, clients)
        source_columns = reading.read_columns(source, rename)
        declared = dict(types or {})
        column_names = list(source_columns) if columns is None else list(columns)
        for each in (*column_names, *declared, *nullable, *unique, *scale, *hashed_by.split()):
            if each not in source_columns and (each != ALL or each not in scale):
                raise UsageError(
                    "The table has no column "
                    f"{each[:80]!r}.{did_you_mean(each, source_columns)} Columns: "
                    f"{', '.join(list(source_columns)[:20])}.",
                    code="column-not-found",
                    received=each[:80],
                )
        encoded_columns = encode_columns(
            {name: source_columns[name] for name in column_names}, declared
        )
        rows = len(next(iter(encoded_columns.values())).distances) if encoded_columns else 0
        if pad_to is not None and pad_to < rows:
            raise UsageError(
                f"Expected pad_to of at least {rows}, the number of rows. Received: {pad_to}.",
                code="number-out-of-range",
                operation="pad_to",
                received=pad_to,
            )
        size = rows if pad_to is None else pad_to
        schema = TableSchema(
            hash_bins.cuckoo_bin_count(size) if hashed_by else size,
            {
                k: TableColumn(
                    e.type,
                    e.null is not None or k in nullable,
                    training_scale(k, e, scale),
                )
                for k, e in encoded_columns.items()
            },
            pad_to is not None or bool(hashed_by),
            tuple(unique),
            sorted_by,
            parsed_rights,
            min_group,
            unit,
            open_count,
            hashed_by,
            budget=0 if budget is None else ledger.parse_privacy_loss(str(budget)),
            contributions=contributions,
        )
        for each in unique:
            io.check_unique_column(each, encoded_columns[each])
        schema, input_words = prepare_table(
            schema, encoded_columns, rows, links, self.seen() if links else {}
        )
        words = {k: PrivateInput(v) for k, v in input_words.items()}
        parameters = StorageRequest(name, clients, replace, schema.to_header()).to_parameters()
        parse_table(parameters, [private_input_spec(k, v) for k, v in words.items()])
        result = self._cluster.run("table_put", parameters, words, progress)
        report = TableReport.from_columns(
            name, schema, encoded_columns, source_columns, result.opened
        )
        self._texts |= reading.texts_by_hash(
            {k: source_columns[k] for k, e in encoded_columns.items() if e.type == HASHES}
        )
        for each in report.warnings:
            warnings.warn(each, stacklevel=2)
        return report

    def remove(self, name: str) -> None:
        """Remove a table of this client from all workers."""
        self._cluster.run("table_remove", {"name": check_name(name, NAME_SUBJECT)}, {})

    def sql(self, query: object, *, max_rows: int | None = None, rho: object = None) -> Query:
        """Compile a query without running it.

        Args:
            query: SQL in DuckDB's dialect, or an Ibis expression.
            max_rows: largest number of rows of the result, 1 to 2^24, and of a join whose keys are
                unique on neither side; if exceeded, `run` raises a RangeError.
            rho: privacy loss that each run of the query spends from each table with a budget; a
                larger loss means less noise.

        Raises:
            UsageError: the query is invalid or not supported.
            PolicyError: this client lacks a required right.
        """
        available = self.seen()
        loss = 0 if rho is None else ledger.parse_privacy_loss(str(rho))
        text = _sql_text(query)
        plan = sql.compile_sql(text, available, max_rows, loss)
        return Query(self._cluster, plan, available, text, self._texts)


def _sql_text(query: object) -> str:
    if isinstance(query, str):
        return query
    if type(query).__module__.startswith("ibis."):
        to_sql = importlib.import_module("ibis").to_sql
        return str(to_sql(query, dialect="duckdb"))
    raise UsageError(
        f"Expected SQL or an Ibis expression. Received: {type(query).__name__}.",
        code="wrong-type",
        operation="query",
        received=type(query).__name__,
    )


class Query:
    """A compiled plan that this client may run.

    Attributes:
        plan: the plan as JSON, as sent to the workers.
    """

    def __init__(
        self,
        cluster: Client,
        plan: dict[str, Any],
        known: Mapping[str, TableAccess],
        text: str = "",
        texts: Mapping[str, str] | None = None,
    ) -> None:
        self._cluster, self.plan, self._text, self._texts = cluster, plan, text, texts or {}
        checked = QueryPlan.from_header(plan)
        tables = {alias: known[name] for alias, (name, _) in checked.tables.items()}
        self._checked, self._tables = checked, tables
        self._facts = relations.derive_relations(checked, tables)

    def price(self, profile: str = "local") -> Price:
        """Estimate the cost under a network profile.

        Raises:
            UsageError: the profile does not exist.
        """
        return price_query_plan(self._checked, self._facts, self._tables, profile)

    def explain(self, profiles: Sequence[str] = ("local", "wan")) -> str:
        """Describe the steps with rows, bytes, rounds and seconds under profiles,
        and the disclosures.
        """
        prices = [self.price(each) for each in profiles]
        return explain.explain_query_plan(self._checked, self._facts, self._tables, prices)

    def run(
        self, progress: Progress | None = None, timing: Mapping[str, Any] | None = None
    ) -> io.Result:
        """Run the query on the workers.

        Args:
            timing: "repeat", "warm_up" and "trace" of a measurement; None: one run.

        Raises:
            PolicyError: a worker does not permit it.
            RangeError: more rows than the query's bound.
            TfeBenchError: the first other failure.
        """
        profile = getattr(getattr(self._cluster, "profile", None), "name", "local")
        parameters = {"plan": self.plan, "profile": profile, **(timing or {})}
        result = self._cluster.run("query", parameters, {}, progress)
        decoded_result = decode_query_result(result, self._checked, self._facts, self._tables)
        return decoded_result.named(self._owner_spelling(decoded_result), self._texts)

    def _owner_spelling(self, result: io.Result) -> dict[str, str]:
        """Map names of columns to their owners' spelling, unless the query itself spells them
        otherwise.

        (Names in SQL are case-insensitive and lower-case in results.)
        """
        owner_names: dict[str, set[str]] = {}
        for table in self._tables.values():
            for name in table.schema.columns:
                owner_names.setdefault(name.lower(), set()).add(name)
        spelled = {}
        for name in result.types:
            written = re.search(rf"(?<!\w){re.escape(name)}(?!\w)", self._text)
            if len(owner_names.get(name, ())) == 1 and not written:
                (owner_name,) = owner_names[name]
                if owner_name not in result.types:
                    spelled[name] = owner_name
        return spelled


def _check_query_bounds(result: JobResult, plan: QueryPlan) -> None:
    bounded = [(i, step) for i, step in enumerate(plan.steps) if step.row_bound is not None]
    exceeded = result.outputs.get(OVER, np.zeros(0))
    if exceeded.shape != (len(bounded),):
        raise ProtocolError(
            "The workers sent other words than the plan defines.", code="result-mismatch"
        )
    for (number, step), over in zip(bounded, exceeded, strict=True):
        if over:
            raise RangeError(
                f"{step.over_subject} (step {number}) has more than {step.row_bound} rows; partial "
                "results are never returned. Raise the bound (--max-rows), or request fewer "
                "rows.",
                code="row-bound-exceeded",
                operation=step.op,
                expected=step.row_bound,
            )


def decode_query_result(
    result: JobResult,
    plan: QueryPlan,
    step_facts: Sequence[Relation],
    tables: Mapping[str, TableAccess],
) -> io.Result:
    """Decode the words of a result to rows.

    An aggregate without GROUP BY has one row even if a rule withholds its values; they are NULL
    then.

    Args:
        step_facts: facts about the plan's steps.
        tables: tables by the plan's aliases.

    Raises:
        ProtocolError: the words do not fit the plan.
        RangeError: a step has more rows than its bound.
    """
    _check_query_bounds(result, plan)
    facts = step_facts[plan.output]
    words, listed = result.outputs[ROWS], query_result_words(facts)
    if words.shape != (len(listed), facts.rows):
        raise ProtocolError(
            "The workers sent other rows than the plan defines.", code="result-mismatch"
        )
    valid_rows = np.flatnonzero(words[0])
    is_withheld = not len(valid_rows) and notes.is_single_total_row(plan, step_facts)
    at = {name: i for i, name in enumerate(listed)}
    types: dict[str, ColumnType] = {}
    columns: dict[str, list[Any]] = {}
    for name, null in listed[1:]:
        if null:
            continue
        kind = types[name] = facts.columns[name].value_type
        low = 0 if kind.kind == BOOL else kind.offset
        column_words = words[at[(name, False)]][valid_rows]
        missing = (
            words[at[(name, True)]][valid_rows] if (name, True) in at else np.zeros(len(valid_rows))
        )
        columns[name] = [
            None if is_null else io.decode_column_element(int(word) + low, kind)
            for word, is_null in zip(column_words, missing, strict=True)
        ]
        if is_withheld:
            public = facts.columns[name].constant
            columns[name] = [None if public is None else io.decode_column_element(public, kind)]
    about = (
        tuple(notes.query_result_notes(plan, step_facts, tables)),
        notes.noise_deviations(plan, step_facts),
    )
    return io.Result(types, columns, result.measured, *about, result.opened)
