"""Lineage of expressions: every worker derives independently whose data a value depends on.

A value carries its sources through every operation, handle and name. queries/permits.py decides
whether it may be revealed, held or stored. A sum or mean over all rows of one column, multiplied
by and added to public numbers, requires the right `aggregate`; the result then belongs to the
client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tfe_bench.arrays.arguments import ValueReference, check_array_shape
from tfe_bench.arrays.array_spec import BITS, DECIMAL, FIXED, INT, KINDS, ArraySpec
from tfe_bench.arrays.plan import HANDLE, INPUT, ExpressionLeaf, ExpressionPlan, ExpressionStep
from tfe_bench.cluster.store import ShareStore
from tfe_bench.cluster.stored import ARRAY, DATA, TABLE, Sources, client_input_source
from tfe_bench.errors import UsageError
from tfe_bench.queries import permits, stored
from tfe_bench.queries.expressions import MAX_INEXACT
from tfe_bench.queries.rights import ColumnUse
from tfe_bench.queries.schema import TableSchema
from tfe_bench.queries.types import BOOL, NUMBER, TEXT, ColumnType

_ALL_ROWS = {"reduce_sum", "reduce_mean"}


# ---- stored arrays


def array_spec_header(spec: ArraySpec) -> dict[str, Any]:
    """Return the public header of a stored array."""
    return {"kind": spec.kind, "shape": list(spec.shape), "scale": spec.scale}


def parse_array_header(about: Mapping[str, Any]) -> ArraySpec:
    """Parse the header of a stored array.

    Raises:
        UsageError: the header is invalid.
    """
    try:
        kind, scale, shape = about["kind"], about["scale"], check_array_shape(about["shape"])
    except (KeyError, TypeError, ValueError):
        raise UsageError(
            "The item stored under this name is not a private array.", code="not-an-array"
        ) from None
    if kind not in KINDS or type(scale) is not int:
        raise UsageError(
            "The item stored under this name is not a private array.", code="not-an-array"
        )
    return ArraySpec(kind, shape, scale)


def column_spec(name: str, schema: TableSchema, column: str) -> ArraySpec:
    """Return the specification of a table's column as an array.

    Raises:
        UsageError: it cannot be an array, or may have gaps.
    """
    if column not in schema.columns:
        raise UsageError(
            f"Table {name!r} has no column {column[:80]!r}. Columns: "
            f"{', '.join(list(schema.columns)[:20])}.",
            code="column-not-found",
            operation=name,
            received=column[:80],
        )
    schema_column = schema.columns[column]
    if schema.padded or schema_column.nullable:
        gaps = "padding rows" if schema.padded else "NULLs"
        raise UsageError(
            f"Table {name!r} may have {gaps} in {column!r}, which an array cannot have. Query "
            "it with SQL: tfe_bench.tables(cluster).",
            code="column-with-gaps",
            operation=column,
        )
    return ArraySpec(*_column_type_spec(name, column, schema_column.type, schema.rows))


def _column_type_spec(
    name: str, column: str, column_type: ColumnType, rows: int
) -> tuple[str, tuple[int, ...], int]:
    if column_type.kind == BOOL:
        return BITS, (rows,), 0
    if column_type.kind == TEXT:
        raise UsageError(
            f"Column {column!r} of table {name!r} has texts, which arrays cannot hold. Query "
            "it with SQL.",
            code="unsupported-type",
            operation=column,
        )
    if column_type.digits:
        if column_type.magnitude.bit_length() > MAX_INEXACT:
            raise UsageError(
                f"Column {column!r} of table {name!r} has decimals of "
                f"{column_type.magnitude.bit_length()} bits; arrays hold up to {MAX_INEXACT}. "
                "Query it with SQL, or ask its owner to declare a narrower range, as "
                f'types={{"{column}": "decimal({column_type.digits})[0,1000]"}}.',
                code="value-too-wide",
                operation=column,
            )
        return DECIMAL, (rows,), column_type.digits
    if column_type.kind == NUMBER and column_type.fraction:
        return FIXED, (rows,), column_type.fraction
    return INT, (rows,), 0


def dataset_part_spec(name: str, about: Mapping[str, Any], part: str, scale: int) -> ArraySpec:
    """Return the specification of features ("x") or labels ("y") of a data set as an array.

    Raises:
        UsageError: the data set has no such part.
    """
    if part not in ("x", "y") or about.get(part) is None:
        raise UsageError(
            f"Data set {name!r} has no part {part[:20]!r}. It has x, y, or both.",
            code="column-not-found",
            operation=name,
            received=part[:20],
        )
    shape = (about["rows"], *about[part])
    return ArraySpec(FIXED if scale else INT, tuple(shape), scale)


# ---- leaves at a worker


def leaf_sources(store: ShareStore, client: str, leaf: ExpressionLeaf) -> Sources:
    """Return the sources of a leaf after comparing it with this worker's store.

    Raises:
        UsageError: it differs from the plan's description, or does not exist.
    """
    if leaf.source == INPUT:
        return client_input_source(client)
    if leaf.source == HANDLE:
        spec, sources_held = store.handles.get_value(client, leaf.about[0]).public_facts
        _check_leaf_matches_store(leaf, spec)
        sources: Sources = sources_held
        return sources
    infix, name, deployment, part = leaf.about
    if infix == TABLE.infix:
        table = stored.find_table(store, name, deployment, client)[0]
        _check_leaf_matches_store(leaf, column_spec(name, table.schema, part))
        return frozenset([table.source(part)])
    kinds = {kind.infix: kind for kind in (ARRAY, DATA)}
    if infix not in kinds:
        raise UsageError(
            "Arrays are loaded from tables, data sets and stored arrays.",
            code="invalid-leaf",
            operation="stored",
        )
    facts = store.for_kind(kinds[infix]).get_facts(name, client)
    if facts.deployment != deployment:
        raise UsageError(
            f"Party {store.party} has another {kinds[infix].noun} {name!r} than this plan was "
            "built for: it was replaced. Load it again.",
            code="deployment-changed",
            operation=name,
            party=store.party,
        )
    if infix == DATA.infix:
        _check_leaf_matches_store(leaf, dataset_part_spec(name, facts.about, part, leaf.scale))
    else:
        if part:
            raise UsageError(
                f"The private array {name!r} has no parts.", code="invalid-leaf", operation=name
            )
        _check_leaf_matches_store(leaf, parse_array_header(facts.about))
    return permits.stored_item_sources(facts, kinds[infix])


def _check_leaf_matches_store(leaf: ExpressionLeaf, spec: ArraySpec) -> None:
    if ArraySpec(leaf.kind, leaf.shape, leaf.scale) != spec:
        raise UsageError(
            f"A plan's leaf differs from the stored array. Received: {leaf.kind} of shape "
            f"{list(leaf.shape)} for {spec.kind} of shape {list(spec.shape)}.",
            code="leaf-mismatch",
        )


def output_sources(plan: ExpressionPlan, store: ShareStore, client: str) -> list[Sources]:
    """Return the sources of each output of a plan.

    Raises:
        UsageError: as `leaf_sources`.
    """
    sources_by_value: list[Sources] = [leaf_sources(store, client, leaf) for leaf in plan.leaves]
    columns: dict[int, int] = {n: n for n in range(len(plan.leaves))}
    for number, step in enumerate(plan.steps, len(plan.leaves)):
        refs = step.operand_refs()
        sources = frozenset().union(*(sources_by_value[ref.number] for ref in refs))
        column = columns.get(refs[0].number) if len(refs) == 1 else None
        if column is not None and refs[0] == ValueReference(refs[0].number):
            if _is_affine_operation(step, plan.leaves[column]):
                columns[number] = column
            elif (
                step.op in _ALL_ROWS
                and _sums_all_rows(step.args, step.named)
                and _can_aggregate(store, client, plan.leaves[column])
            ):
                sources = client_input_source(client)  # (the client may learn this sum)
        sources_by_value.append(sources)
    return [sources_by_value[output.ref.number] for output in plan.outputs]


def _is_affine_operation(step: ExpressionStep, leaf: ExpressionLeaf) -> bool:
    """Return whether an operation is exactly a * x + b with one public number for all rows.

    A product with a fraction is not: it rounds each row separately, so that a sum of such products
    would leak how many rows are large.
    """
    others = [each for each in [*step.args, *step.named.values()] if not isinstance(each, list)]
    if len(others) != len(step.args) + len(step.named) - 1:
        return False
    match step.op:
        case "negative":
            return not others
        case "add" | "subtract":
            return not step.named
        case "multiply":
            return not step.named and all(type(each) is int for each in others)
        case "cast":
            return leaf.kind == BITS and not others
    return False


def _sums_all_rows(args: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Return whether a sum covers all elements of a vector."""
    axis = args[1] if len(args) > 1 else named.get("axis")
    whole = axis is None or (type(axis) is int and axis in (0, -1))
    return whole and isinstance(args[0], list) and not isinstance(axis, list)


def _can_aggregate(store: ShareStore, client: str, leaf: ExpressionLeaf) -> bool:
    """Return whether a client may learn sums over all rows of a table's column."""
    if leaf.source in (INPUT, HANDLE) or leaf.about[0] != TABLE.infix:
        return False
    _, name, deployment, column = leaf.about
    table = stored.find_table(store, name, deployment, client)[0]
    schema = table.schema
    if schema.budget or schema.unit or schema.rows < schema.min_group:
        return False
    return table.permits(ColumnUse.SUM, column)
