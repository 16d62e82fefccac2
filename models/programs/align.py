"""The program "align": the workers keep the rows that several owners' tables have in common.

They are features and labels that are trained on like those of any data set (sources.py), in an
order that nobody knows.  How many they are becomes public, if they are no fewer than each owner
wants of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tfe_bench.cluster import profiles
from tfe_bench.cluster.jobs import Context, InputSpec, Program, Size
from tfe_bench.cluster.store import Store
from tfe_bench.cluster.stored import DATA, TABLE, check_about
from tfe_bench.cluster.timing import check_timing, recorded
from tfe_bench.errors import PolicyError, UsageError
from tfe_bench.models import kept
from tfe_bench.models.programs.provide import FEATURE_BITS
from tfe_bench.models.programs.provide import NAME_IS as DATA_NAME_IS
from tfe_bench.models.queries import aligned, stored
from tfe_bench.models.queries.aligned import Feature, Made, Order
from tfe_bench.models.queries.price import Price
from tfe_bench.models.queries.rights import Table
from tfe_bench.models.queries.types import CATEGORY
from tfe_bench.models.rows import LABEL_BITS
from tfe_bench.protocols.order import one_hot, sort
from tfe_bench.protocols.ring import (
    arithmetic,
    convert,
    relational,
    shapes,
    small_ring,
    truncation,
)
from tfe_bench.protocols.session import io, local
from tfe_bench.protocols.session.counting import Counting, Private
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import arrange, bits, joins
from tfe_bench.protocols.tables.arrange import Arrangement


def check(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> None:
    """Refuses what is no order.

    Raises:
        UsageError: naming what does not fit.
    """
    about = kept.check_keeping("align", parameters, DATA_NAME_IS, ("profile",))
    check_timing(parameters)
    Order.of(about)
    if inputs:
        raise UsageError(f"align has no inputs. Received: {[i.name for i in inputs][:4]}.")


def _derived(client: str, store: Store, parameters: Mapping[str, Any]) -> tuple[Order, Made, Any]:
    order, clients = Order.of(parameters["about"]), parameters["clients"]
    tables = aligned.tables_of(order, store, client, clients)
    return order, aligned.derive(order, tables, clients), tables


def permit(
    client: str, store: Store, parameters: Mapping[str, Any], _: Sequence[InputSpec]
) -> None:
    """Refuses a client whom an owner does not let learn from these columns, or keep the name.

    Raises:
        UsageError, PolicyError: as `aligned.derive`, Store.facts and Store.permit_writing.
    """
    store.of(DATA).permit_writing(parameters["name"], client, parameters["replace"])
    made = _derived(client, store, parameters)[1]
    check_about({**made.about, "rows": aligned.MOST_FEATURES})


def size(
    client: str, store: Store, parameters: Mapping[str, Any], inputs: Sequence[InputSpec]
) -> Size:
    """Of a run that is counted, by the headers that this worker keeps."""
    order, made, tables = _derived(client, store, parameters)
    found = price(order, made, tables, parameters.get("profile", "local"))
    return Size(found.largest, found.sent, seconds=found.least_seconds)


def price(order: Order, made: Made, tables: Sequence[Table], profile: str = "local") -> Price:
    """What aligning costs, if all rows of the smallest table are common.

    Raises:
        UsageError: there is no such profile.
    """

    def load(number: int, names: Sequence[str]) -> dict[str, Shared]:
        return {name: Private((tables[number].schema.rows,), 0).made() for name in names}

    party = Counting(expected=True)
    with party.active():
        carried_out(party, order, made, tables, load, profiles.get(profile).plan)
    return Price(profile, (party.total,), (party.moved,), party.total, party.largest)


def run(context: Context) -> dict[str, Shared]:
    """Aligns, and keeps the common rows."""
    store, parameters = kept.store_of(context), context.parameters
    permit(context.client, store, parameters, ())
    order, made, tables = _derived(context.client, store, parameters)
    own, party = store.of(TABLE), context.party

    def load(number: int, names: Sequence[str]) -> dict[str, Shared]:
        table = tables[number]
        return kept.loaded(party, own, table.name, context.client, table.deployment, names)

    profile = profiles.get(parameters.get("profile", "local")).plan
    count, x, y = recorded(
        context, lambda: carried_out(party, order, made, tables, load, profile, context.progress)
    )
    context.progress(0.9, "writing")
    facts = kept.facts_of(
        {**parameters, "about": {"rows": count, **made.about}},
        context.client,
        aligned.sources_of(order, tables),
    )
    kept.write(party, store.of(DATA), facts, {"x": x, "y": y})
    return {}


# The words of some names that are kept of a table, by its number.
Load = Callable[[int, Sequence[str]], Mapping[str, Shared]]


def carried_out(
    party: Party,
    order: Order,
    made: Made,
    tables: Sequence[Table],
    load: Load,
    profile: str,
    progress: Callable[[float, str], None] = lambda fraction, text: None,
) -> tuple[int, Shared, Shared]:
    """How many rows the tables have in common, their features [rows, width], and their labels.

    Raises:
        PolicyError: they are fewer than owners permit.
    """
    progress(0.0, "aligning")
    schemas = [table.schema for table in tables]
    keys = []
    for i, part in enumerate(order.parts):
        words = load(i, stored.names_of(schemas[i], part.on))
        keys.append(stored.relation(schemas[i], part.on, words))
    on = [range(len(part.on)) for part in order.parts]
    found = joins.align(party, keys, on, profile=profile)
    count = counted(party, found.valid, made.least)
    progress(0.6, "moving the columns")
    wanted = [*made.features, made.label]
    moved: dict[Feature, Shared] = {}
    for i, arrangement in enumerate(unordered(party, found, count)):
        listed = list(schemas[i].columns)
        names = {f: f"v{listed.index(f.column)}" for f in wanted if f.table == i}
        words = load(i, list(names.values()))
        there = arrangement.forward([words[name] for name in names.values()])
        moved.update(zip(names, (c.map(lambda a: a[:count]) for c in there), strict=True))
    return count, *encoded(party, made, [moved[f] for f in wanted])


def unordered(party: Party, found: joins.Alignment, count: int) -> list[Arrangement]:
    """Arrangements that bring the common rows to the front, in an order that nobody knows.

    That of their keys would tell whose rows a training takes.  What rows are renumbered by goes
    back to where each of them is in its table, so that all of its columns move once.

    Rounds and bits: of a word those of arrange.mixed and, for each table, of Arrangement.back and
    arrange.by_target.
    """
    width = max(2, sort.index_bits(max(order.n for order in found.orders)))

    def numbers(first: int, last: int) -> Shared:
        every = arithmetic.public(found.valid, np.arange(first, last, dtype=np.int64))
        return small_ring.reduced(every, width)

    (places,) = arrange.mixed(party, [numbers(0, count)])
    made = []
    for order in found.orders:
        (target,) = order.back([shapes.concat([places, numbers(count, order.n)], 0)])
        made.append(arrange.by_target(party, target))
    return made


def counted(party: Party, valid: Shared, least: int) -> int:
    """How many rows are valid; that becomes public, if they are not too few.

    Raises:
        PolicyError: they are fewer; that alone became public.
    """
    width = max(int(valid.shape[0]), least).bit_length() + 1

    def compared(valid: Shared) -> tuple[Shared, Any]:
        ones = bits.number(party, valid)
        total = ones.map(lambda a: local.reduce_sum(a, [0], True))
        short = relational.negative(party, arithmetic.moved(total, np.int64(-least)), width)
        return total, io.reveal(party, bits.of(party, short))

    total, short = arrange.graph(party, "enough common", compared, least, width)(valid)
    if isinstance(party, Counting):
        io.reveal(party, total)
        return int(valid.shape[0])
    if int(short.numpy()[0]) & 1:
        raise PolicyError(
            f"Fewer than {least} rows are common to these tables, and owners permit no fewer "
            "(table put --min-group). Nothing is kept, and nothing else was told."
        )
    opened = arrange.graph(party, "count common", lambda x: io.reveal(party, x))(total)
    return int(opened.numpy()[0])


def encoded(party: Party, made: Made, columns: Sequence[Shared]) -> tuple[Shared, Shared]:
    """Features [rows, width] and labels of distances that are kept, as trainings take them."""

    def whole(*given: Shared) -> tuple[Shared, Shared]:
        x = [
            number
            for feature, column in zip(made.features, given, strict=False)
            for number in _numbers(party, feature, column, FEATURE_BITS)
        ]
        label = made.label
        if made.about["target"] == "binary":  # a word's number is its bit
            label = replace(label, names=label.names[:1])
        y = _numbers(party, label, given[-1], LABEL_BITS)
        return shapes.stack(x, 1), shapes.stack(y, 1)

    found: tuple[Shared, Shared] = party.function(whole)(*columns)
    return found


def _numbers(party: Party, feature: Feature, column: Shared, f: int) -> list[Shared]:
    """What a column's distances [n] are to a model, with f fractional bits."""
    n, names = int(column.shape[0]), feature.names
    if feature.kept.type.kind == CATEGORY and len(names) > 1:
        width = (len(names) - 1).bit_length() + 1
        hot = convert.b2a(party, one_hot.one_hot(party, column, len(names), width))
        rows = shapes.reshape(arithmetic.mul_public(hot, np.int64(1 << f)), [len(names), n])
        return [
            replace(rows.map(lambda a, i=i: a[i]), fractional_bits=f) for i in range(len(names))
        ]
    kind = feature.kept.type
    centered = arithmetic.moved(column, np.int64(kind.offset - feature.center))
    if feature.shift <= f:
        number = arithmetic.mul_public(centered, np.int64(1 << (f - feature.shift)))
    else:
        number = truncation.truncate(party, centered, feature.shift - f)
    return [replace(number, fractional_bits=f)]


def kept_names(parameters: Mapping[str, Any]) -> Sequence[str]:
    """What is made, and the tables that it is made of."""
    return [parameters["name"], *(part.name for part in Order.of(parameters["about"]).parts)]


PROGRAM = Program(
    *("align", run, check, "keeps what tables have in common"),
    permit=permit,
    size=size,
    kept_names=kept_names,
)
