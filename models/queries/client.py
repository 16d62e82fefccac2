"""Private tables from a client's side: put, list, remove, ask.

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
from tfe_bench.cluster.requests import JobResult, PrivateInput, Progress, input_spec
from tfe_bench.cluster.stored import TABLE, check_name
from tfe_bench.errors import ProtocolError, RangeError, UsageError, did_you_mean
from tfe_bench.models.programs import table_put as put_program
from tfe_bench.models.queries import (
    explain,
    hash_bins,
    io,
    notes,
    reading,
    relations,
    sql,
    training,
)
from tfe_bench.models.queries.execute import OVER, ROWS, result_words
from tfe_bench.models.queries.plan import BOUNDED, Plan
from tfe_bench.models.queries.price import Price, price_plan
from tfe_bench.models.queries.report import TableReport
from tfe_bench.models.queries.rights import Table
from tfe_bench.models.queries.schema import ALL, DEFAULT_MIN_GROUP, Column, Schema, parse_rights
from tfe_bench.models.queries.training import Alignment
from tfe_bench.models.queries.types import BOOL, HASHES, Type
from tfe_bench.models.queries.upload import encode_columns, prepare_table
from tfe_bench.models.stored_shares import StoredEntry, storage_parameters


def tables(cluster: Client) -> Tables:
    """The private tables that a cluster's workers keep, as its client may use them."""
    return Tables(cluster)


class Tables:
    """Private tables of one cluster.

    Args:
        cluster: a LocalCluster, a Cluster or a Client.
    """

    def __init__(self, cluster: Client) -> None:
        self._cluster = cluster
        self._texts: dict[str, str] = {}

    def show_texts(self, source: object) -> None:
        """Show a table's texts in results in place of their hashes; `put` does so for its own.

        Args:
            source: as of `put`.  It stays here.
        """
        self._texts |= reading.texts_by_hash(reading.read_columns(source))

    def listed(self) -> dict[str, StoredEntry]:
        """What the workers keep that this client may use, by name."""
        entries = self._cluster.stored(TABLE.infix)
        return {str(row["name"]): StoredEntry.from_row(row) for row in entries}

    def seen(self) -> dict[str, Table]:
        """The same with headers, as queries take them."""
        tables_by_name = {}
        client = self._cluster.identity
        for name, entry in self.listed().items():
            if entry.complete:
                schema = Schema.from_header(entry.about)
                facts = (name, entry.owner, entry.deployment, schema, client, entry.spent)
                tables_by_name[name] = Table(*facts)
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
        """Shares a table among the workers, which keep it under a name.

        Args:
            source: a file (.csv, .parquet, .feather), a pyarrow.Table, a pandas.DataFrame, or a
                dict of lists or arrays; an empty field and NaN are NULL.
            types: of columns, as `types.parse` takes them; others by their values, with elements up
                to 2^40: reals with few decimals become `decimal`, others `fixed`. "category"
                alone takes the words that the column has, which become public.
            columns: those that are put; None: all.
            nullable: columns that may be NULL though none of this table's rows is: whether one is
                would be public otherwise.
            unique: columns without a value that is there twice; the workers check it.
            sorted_by: the rows are sorted by it before they are shared.
            pad_to: as many rows as are public; the others are none, and nobody knows which.
            clients: who may use it besides this one; "*" for every client of the cluster.
            rights: as "income:aggregate,filter"; what is not said is not permitted.
            min_group: groups of fewer units are not told of, unless all of it is open.
            unit: the column that says whose record a row is; "" where every row is another's.
            scale: columns of numbers of which a power of two near the deviation and the mean to
                half of that are told, for trainings; "*": of all.
            open_count: whether it may be told how many rows it has in common with other tables.
            hashed_by: a unique column by which rows are put into bins, half as many again as there
                are rows; of tables that link to it no key is sorted for a join.
            links: as "customer=customers.id": to a column by which another table's rows are in
                bins; until that is replaced.
            budget: privacy that queries of other clients may spend, as rho of zero-concentrated
                differential privacy, 0.000000001 to 1000000: then only sums, counts and averages
                leave, with noise; what is spent stays so when the table is replaced.
            contributions: how many rows of one unit count in a sum, where it may be in several.
            replace: what this client put under the name before.
            rename: new names of columns, by the source's.

        Returns:
            what each column became: type, range, and the largest rounding error.

        Raises:
            UsageError, DataError, RangeError: it is no such table; all columns that do not fit are
                named, with a row, values are not.
            PolicyError: an operator does not let this client put tables.
        """
        check_name(name, put_program.NAME_SUBJECT)
        self._cluster.check_members(clients)
        parsed_rights = parse_rights(rights, clients)
        source_columns = reading.read_columns(source, rename)
        declared = dict(types or {})
        column_names = list(source_columns) if columns is None else list(columns)
        for each in (*column_names, *declared, *nullable, *unique, *scale, *hashed_by.split()):
            if each not in source_columns and (each != ALL or each not in scale):
                raise UsageError(
                    f"The table has no column {each[:80]!r}.{did_you_mean(each, source_columns)} Columns: "
                    f"{', '.join(list(source_columns)[:20])}."
                )
        encoded_columns = encode_columns(
            {each: source_columns[each] for each in column_names}, declared
        )
        rows = len(next(iter(encoded_columns.values())).distances) if encoded_columns else 0
        if pad_to is not None and pad_to < rows:
            raise UsageError(f"The table has {rows} rows; it cannot be padded to {pad_to}.")
        size = rows if pad_to is None else pad_to
        schema = Schema(
            hash_bins.bin_count(size) if hashed_by else size,
            {
                k: Column(
                    e.type,
                    e.null is not None or k in nullable,
                    training.training_scale(k, e, scale),
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
            budget=0 if budget is None else ledger.parse_rho(str(budget)),
            contributions=contributions,
        )
        for each in unique:
            io.check_unique(each, encoded_columns[each])
        schema, input_words = prepare_table(
            schema, encoded_columns, rows, links, self.seen() if links else {}
        )
        words = {k: PrivateInput(v) for k, v in input_words.items()}
        parameters = storage_parameters(name, clients, replace, schema.header())
        put_program.check_table(parameters, [input_spec(k, v) for k, v in words.items()])
        self._cluster.run("table_put", parameters, words, progress)
        report = TableReport.from_columns(name, schema, encoded_columns, source_columns)
        self._texts |= reading.texts_by_hash(
            {k: source_columns[k] for k, e in encoded_columns.items() if e.type == HASHES}
        )
        for each in report.warnings:
            warnings.warn(each, stacklevel=2)
        return report

    def remove(self, name: str) -> None:
        """Removes a table of this client's from all workers."""
        self._cluster.run("table_remove", {"name": check_name(name, put_program.NAME_SUBJECT)}, {})

    def align(
        self,
        names: Sequence[str],
        on: Sequence[str],
        name: str,
        label: str,
        *,
        columns: Sequence[str] | None = None,
        clients: Sequence[str] = (),
        replace: bool = False,
    ) -> Alignment:
        """What has the workers keep the rows that tables have in common, for trainings.

        They become a data set: `fit(cluster, rows_of=[name])`, and `train --rows name`; in an order
        that nobody knows.  How many they are is told to the workers and to who may train on them.

        Args:
            names: of 2 to 8 tables.
            on: the key's columns, "phone", or "phone=number" where the tables name one otherwise.
            name: of the data set.
            label: the column to be learned, "defaulted" or "accounts.defaulted".
            columns: features, likewise; None: all that this client may train on but keys and label.
            clients: who may train on the rows besides this one; owners must permit each.
            replace: what this client kept under the name before.

        Raises:
            UsageError: columns that are not there, or that nothing can be learned from.
            PolicyError: an owner does not permit it.
        """
        self._cluster.check_members(clients)
        available = self.seen()
        for each in names:
            if each not in available:
                raise relations.missing_table_error(each, list(available))
        tables = [available[each] for each in names]
        order = training.build_request(tables, on, label, columns)
        return Alignment(
            self._cluster, order, tables, storage_parameters(name, clients, replace, {})
        )

    def sql(self, query: object, *, max_rows: int | None = None, rho: object = None) -> Query:
        """A query, compiled but not run.

        Args:
            query: SQL in DuckDB's dialect, or an Ibis expression.
            max_rows: the most rows that the result may have, 1 to 2^24, and that a join may have
                of keys that neither side has once; with more of them `run` raises a RangeError.
            rho: privacy that the query spends of each table with a budget, each time it is run; the
                more, the less noise.

        Raises:
            UsageError: it is none, or is not offered.
            PolicyError: this client lacks a right that it takes.
        """
        available = self.seen()
        loss = 0 if rho is None else ledger.parse_rho(str(rho))
        text = _sql_text(query)
        plan = sql.compile_sql(text, available, max_rows, loss)
        return Query(self._cluster, plan, available, text, self._texts)


def _sql_text(query: object) -> str:
    if isinstance(query, str):
        return query
    if type(query).__module__.startswith("ibis."):
        to_sql = importlib.import_module("ibis").to_sql
        return str(to_sql(query, dialect="duckdb"))
    raise UsageError(f"A query is SQL, or an expression of Ibis. Received: {type(query).__name__}.")


class Query:
    """A plan that this client may run.

    Attributes:
        plan: as JSON: what the workers get.
    """

    def __init__(
        self,
        cluster: Client,
        plan: dict[str, Any],
        known: Mapping[str, Table],
        text: str = "",
        texts: Mapping[str, str] | None = None,
    ) -> None:
        self._cluster, self.plan, self._text, self._texts = cluster, plan, text, texts or {}
        checked = Plan.from_header(plan)
        tables = {alias: known[name] for alias, (name, _) in checked.tables.items()}
        self._checked, self._tables = checked, tables
        self._facts = relations.derive_relations(checked, tables)

    def price(self, profile: str = "local") -> Price:
        """What it costs under a network profile.

        Raises:
            UsageError: there is no such profile.
        """
        return price_plan(self._checked, self._facts, self._tables, profile)

    def explain(self, profiles: Sequence[str] = ("local", "wan")) -> str:
        """The steps with rows, bytes, rounds and seconds under profiles; and what who learns."""
        prices = [self.price(each) for each in profiles]
        return explain.explain_plan(self._checked, self._facts, self._tables, prices)

    def run(
        self, progress: Progress | None = None, timing: Mapping[str, Any] | None = None
    ) -> io.Result:
        """Runs it on the workers.

        Args:
            timing: "repeat", "warm_up" and "trace", of a measurement; None: it runs once.

        Raises:
            PolicyError: a worker does not permit it.
            RangeError: there are more rows than the query says.
            TfeBenchError: whatever else went wrong first.
        """
        profile = getattr(getattr(self._cluster, "profile", None), "name", "local")
        parameters = {"plan": self.plan, "profile": profile, **(timing or {})}
        result = self._cluster.run("query", parameters, {}, progress)
        decoded_result = decode_result(result, self._checked, self._facts, self._tables)
        return decoded_result.named(self._owner_spelling(decoded_result), self._texts)

    def _owner_spelling(self, result: io.Result) -> dict[str, str]:
        """Columns' names as their owners write them, unless the query itself has them otherwise.

        (SQL's names are not told apart by case: in results they are in lower case.)
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


def _check_bounds(result: JobResult, plan: Plan) -> None:
    bounded = [(i, step) for i, step in enumerate(plan.steps) if step.op in BOUNDED]
    exceeded = result.outputs.get(OVER, np.zeros(0))
    if exceeded.shape != (len(bounded),):
        raise ProtocolError("The workers sent other words than the plan makes.")
    for (number, step), over in zip(bounded, exceeded, strict=True):
        if over:
            subject = "The join" if step.op == "many_join" else "The result"
            raise RangeError(
                f"{subject} (step {number}) has more than {step['bound']} rows, and is not told in "
                "part. Ask for more (--max-rows), or for fewer rows."
            )


def decode_result(
    result: JobResult,
    plan: Plan,
    step_facts: Sequence[relations.Relation],
    tables: Mapping[str, Table],
) -> io.Result:
    """The rows that a result's words are.

    An aggregate without GROUP BY has one row, also where a rule withholds its values: NULL then.

    Args:
        every: facts of the plan's steps.
        tables: by the plan's aliases.

    Raises:
        ProtocolError: they are other words than the plan makes.
        RangeError: a step has more rows than its bound.
    """
    _check_bounds(result, plan)
    facts = step_facts[plan.output]
    words, listed = result.outputs[ROWS], result_words(facts)
    if words.shape != (len(listed), facts.rows):
        raise ProtocolError("The workers sent other rows than the plan makes.")
    valid_rows = np.flatnonzero(words[0])
    is_withheld = not len(valid_rows) and notes.is_total(plan, step_facts)
    at = {name: i for i, name in enumerate(listed)}
    types: dict[str, Type] = {}
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
            None if is_null else io.decode_element(int(word) + low, kind)
            for word, is_null in zip(column_words, missing, strict=True)
        ]
        if is_withheld:
            public = facts.columns[name].constant
            columns[name] = [None if public is None else io.decode_element(public, kind)]
    about = (
        tuple(notes.result_notes(plan, step_facts, tables)),
        notes.noise_deviations(plan, step_facts),
    )
    return io.Result(types, columns, result.measured, *about)
