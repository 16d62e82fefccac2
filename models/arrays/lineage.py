"""Whose data an expression comes of, and who may be told: decided by every worker by itself.

A value carries the sources that it is made of, through every operation, handle and name.  It may be
revealed to a client that has the right `open` to all of them, as rows of tables may
(queries/rights.py); a sum or mean of all rows of one column, times and plus public numbers, takes
the right `aggregate`, and what is made of it then needs no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tfe_bench.cluster.store import Store
from tfe_bench.cluster.stored import ARRAY, DATA, TABLE, check_deployment, check_name
from tfe_bench.errors import PolicyError, UsageError
from tfe_bench.models.arrays.arguments import Ref, check_shape
from tfe_bench.models.arrays.evaluate import Meaning
from tfe_bench.models.arrays.plan import (
    BITS,
    DECIMAL,
    FIXED,
    HANDLE,
    INPUT,
    INT,
    KINDS,
    Leaf,
    Plan,
    Step,
)
from tfe_bench.models.queries import rights, stored
from tfe_bench.models.queries.expressions import MOST_INEXACT
from tfe_bench.models.queries.schema import AGGREGATE, OPEN, Schema
from tfe_bench.models.queries.types import BOOL, NUMBER, TEXT, Type

# What is kept: its kind's infix, name and deployment, and a column of a table.
Source = tuple[str, str, str, str]
Sources = frozenset[Source]
# Of one kept value: a list of all that there is has to fit into one message.
MOST_SOURCES = 1000
_ALL_ROWS = {"reduce_sum", "reduce_mean"}


# ---- what is kept under a name


def header(meaning: Meaning, sources: Iterable[Source]) -> dict[str, Any]:
    """What is public of a kept array."""
    listed = sorted(map(list, sources))
    if len(listed) > MOST_SOURCES:
        raise UsageError(f"An array is made of at most {MOST_SOURCES} stored ones.")
    return {
        "kind": meaning.kind,
        "shape": list(meaning.shape),
        "scale": meaning.scale,
        "sources": listed,
    }


def read(about: Mapping[str, Any]) -> tuple[Meaning, Sources]:
    """What a kept array's header says.

    Raises:
        UsageError: it is none.
    """
    try:
        kind, scale, sources = about["kind"], about["scale"], about["sources"]
        shape = check_shape(about["shape"])
        found = frozenset((str(a), str(b), str(c), str(d)) for a, b, c, d in sources)
    except (KeyError, TypeError, ValueError):
        raise UsageError("What is kept under this name is no private array.") from None
    if kind not in KINDS or type(scale) is not int:
        raise UsageError("What is kept under this name is no private array.")
    for _, name, deployment, _ in found:
        check_name(name, "A stored name")
        check_deployment(deployment)
    return Meaning(kind, shape, scale), found


def of_column(name: str, schema: Schema, column: str) -> Meaning:
    """What a table's column is as an array.

    Raises:
        UsageError: it is none, or may have gaps.
    """
    if column not in schema.columns:
        raise UsageError(
            f"Table {name!r} has no column {column[:80]!r}. Columns: "
            f"{', '.join(list(schema.columns)[:20])}."
        )
    own = schema.columns[column]
    if schema.padded or own.nullable:
        what = "rows that are none" if schema.padded else "NULLs"
        raise UsageError(
            f"Table {name!r} may have {what} in {column!r}, which an array does not. Ask it with "
            "SQL: tfe_bench.tables(cluster)."
        )
    return Meaning(*_of_type(name, column, own.type, schema.rows))


def _of_type(name: str, column: str, own: Type, rows: int) -> tuple[str, tuple[int, ...], int]:
    if own.kind == BOOL:
        return BITS, (rows,), 0
    if own.kind == TEXT:
        raise UsageError(
            f"Column {column!r} of table {name!r} has texts, which no array holds. Ask it with SQL."
        )
    if own.digits:
        if own.magnitude.bit_length() > MOST_INEXACT:
            raise UsageError(
                f"Column {column!r} of table {name!r} has decimals of "
                f"{own.magnitude.bit_length()} bits; arrays hold up to {MOST_INEXACT}. Ask it with "
                f'SQL, or have its owner declare a narrower range, as types={{"{column}": '
                f'"decimal({own.digits})[0,1000]"}}.'
            )
        return DECIMAL, (rows,), own.digits
    if own.kind == NUMBER and own.fraction:
        return FIXED, (rows,), own.fraction
    return INT, (rows,), 0


def of_part(name: str, about: Mapping[str, Any], part: str, scale: int) -> Meaning:
    """What features ("x") or labels ("y") of a data set are as an array.

    Raises:
        UsageError: it has none.
    """
    if part not in ("x", "y") or about.get(part) is None:
        raise UsageError(f"Data set {name!r} has no part {part[:20]!r}. It has x, y, or both.")
    shape = (about["rows"], *about[part])
    return Meaning(FIXED if scale else INT, tuple(shape), scale)


# ---- leaves as a worker knows them


def origin(store: Store, client: str, leaf: Leaf) -> Sources:
    """The sources of a leaf, which is compared with what this worker has.

    Raises:
        UsageError: it is another one than the plan says, or not there.
    """
    if leaf.source == INPUT:
        return frozenset()
    if leaf.source == HANDLE:
        meaning, sources = store.handles.get(client, leaf.about[0]).about
        _check_same(leaf, meaning)
        found: Sources = sources
        return found
    infix, name, deployment, part = leaf.about
    own: Source = (infix, name, deployment, part)
    if infix == TABLE.infix:
        table = stored.kept_table(store, name, deployment, client)[0]
        _check_same(leaf, of_column(name, table.schema, part))
        return frozenset([own])
    kinds = {kind.infix: kind for kind in (ARRAY, DATA)}
    if infix not in kinds:
        raise UsageError("Arrays are loaded from tables, data sets and kept arrays.")
    facts = store.of(kinds[infix]).facts(name, client)
    if facts.deployment != deployment:
        raise UsageError(
            f"Party {store.party} has another {kinds[infix].noun} {name!r} than this was made "
            "for: it was replaced meanwhile. Load it again."
        )
    if infix == DATA.infix:
        _check_same(leaf, of_part(name, facts.about, part, leaf.scale))
        return frozenset([(infix, name, deployment, "")])
    if part:
        raise UsageError(f"The private array {name!r} has no parts.")
    meaning, sources = read(facts.about)
    _check_same(leaf, meaning)
    return sources | {own}


def _check_same(leaf: Leaf, meaning: Meaning) -> None:
    if Meaning(leaf.kind, leaf.shape, leaf.scale) != meaning:
        raise UsageError(
            f"A plan says of an array what it is not. Received: {leaf.kind} of shape "
            f"{list(leaf.shape)} for {meaning.kind} of shape {list(meaning.shape)}."
        )


def of_outputs(plan: Plan, store: Store, client: str) -> list[Sources]:
    """The sources of each of a plan's outputs.

    Raises:
        UsageError: as `origin`.
    """
    found: list[Sources] = [origin(store, client, leaf) for leaf in plan.leaves]
    columns: dict[int, int] = {n: n for n in range(len(plan.leaves))}
    for number, step in enumerate(plan.steps, len(plan.leaves)):
        refs = step.refs()
        sources = frozenset().union(*(found[ref.number] for ref in refs))
        column = columns.get(refs[0].number) if len(refs) == 1 else None
        if column is not None and refs[0] == Ref(refs[0].number):
            if _is_affine(step, plan.leaves[column]):
                columns[number] = column
            elif (
                step.op in _ALL_ROWS
                and _over_all(step.args, step.named)
                and _aggregated(store, client, plan.leaves[column])
            ):
                sources -= found[column]
        found.append(sources)
    return [found[output.ref.number] for output in plan.outputs]


def _is_affine(step: Step, leaf: Leaf) -> bool:
    """Whether an operation is a * x + b with one public number for all rows, and exact.

    A product with a fraction is none: it rounds each row by itself, so that a sum of such products
    says how many rows are large.
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


def _over_all(args: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Whether a sum is of all elements of a vector."""
    axis = args[1] if len(args) > 1 else named.get("axis")
    whole = axis is None or (type(axis) is int and axis in (0, -1))
    return whole and isinstance(args[0], list) and not isinstance(axis, list)


def _aggregated(store: Store, client: str, leaf: Leaf) -> bool:
    """Whether a client may be told sums of all rows of a table's column."""
    if leaf.source in (INPUT, HANDLE) or leaf.about[0] != TABLE.infix:
        return False
    _, name, deployment, column = leaf.about
    table = stored.kept_table(store, name, deployment, client)[0]
    schema = table.schema
    if schema.budget or schema.unit or schema.rows < schema.min_group:
        return False
    return AGGREGATE in table.allows(column)


# ---- who may be told


def check_revealed(store: Store, client: str, sources: Iterable[Source]) -> None:
    """Refuses to tell a client what is made of some sources.

    Raises:
        PolicyError: naming what is missing, and whose it is.
        UsageError: a source is there no more.
    """
    for infix, name, deployment, part in sorted(sources):
        if infix == TABLE.infix:
            table = stored.kept_table(store, name, deployment, client)[0]
            if OPEN not in table.allows(part) or (table.schema.budget and client != table.owner):
                raise rights.refused({name: table}, (name, part), OPEN, "Revealing what is made")
            continue
        kind = DATA if infix == DATA.infix else ARRAY
        facts = store.of(kind).facts(name, client)
        if facts.deployment != deployment:
            raise UsageError(
                f"The {kind.noun} {name!r}, of which this is made, was replaced meanwhile: whether "
                "it may be revealed nobody can tell. Load it again."
            )
        if kind is DATA and facts.owner != client:
            raise PolicyError(
                f"What is made of data set {name!r} is not revealed to client {client!r}: its "
                f"owner, {facts.owner!r}, provided it for training. Values are opened by column, "
                'in tables: `table put ... --right "column:open"`.'
            )
