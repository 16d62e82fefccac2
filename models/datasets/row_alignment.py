"""Private record linkage of tables: their common rows, in an order that no party knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tfe_bench.cluster import profiles
from tfe_bench.cluster.stored import LABEL_BITS
from tfe_bench.errors import PolicyError
from tfe_bench.models.datasets.record_linkage import LinkageRequest, LinkageSchema, LinkedFeature
from tfe_bench.models.datasets.request import FEATURE_BITS
from tfe_bench.protocols.order import one_hot, sort
from tfe_bench.protocols.ring import (
    arithmetic,
    convert,
    relational,
    shapes,
    small_ring,
    truncation,
)
from tfe_bench.protocols.session import io, tensor_ops
from tfe_bench.protocols.session.counting import CostParty, Private
from tfe_bench.protocols.session.message_graph import MessageGraph
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import arrange, bits, joins
from tfe_bench.protocols.tables.arrange import PrivatePermutation
from tfe_bench.queries import stored
from tfe_bench.queries.price import Price
from tfe_bench.queries.rights import TableAccess
from tfe_bench.queries.types import CATEGORY

# Loads stored words of a table by the table's number and the words' names.
LoadColumns = Callable[[int, Sequence[str]], Mapping[str, Shared]]


def align_rows(
    party: Party,
    order: LinkageRequest,
    alignment: LinkageSchema,
    tables: Sequence[TableAccess],
    load: LoadColumns,
    profile: str,
    progress: Callable[[float, str], None] = lambda fraction, text: None,
) -> tuple[int, Shared, Shared]:
    """Return the number of common rows, their features [rows, width], and their labels.

    Raises:
        PolicyError: the number is below an owner's minimum.
    """
    progress(0.0, "aligning")
    schemas = [table.schema for table in tables]
    keys = []
    for i, part in enumerate(order.tables):
        words = load(i, stored.column_word_names(schemas[i], part.on))
        keys.append(stored.build_stored_relation(schemas[i], part.on, words))
    on = [range(len(part.on)) for part in order.tables]
    common_rows = joins.link_records(party, keys, on, profile=profile)
    count = reveal_row_count(party, common_rows.valid, alignment.min_rows)
    progress(0.6, "moving the columns")
    features = [*alignment.features, alignment.label]
    columns: dict[LinkedFeature, Shared] = {}
    for i, arrangement in enumerate(build_random_order(party, common_rows, count)):
        listed = list(schemas[i].columns)
        names = {f: f"v{listed.index(f.column)}" for f in features if f.table == i}
        words = load(i, list(names.values()))
        moved_columns = arrangement.apply([words[name] for name in names.values()])
        columns.update(zip(names, (c.map(lambda a: a[:count]) for c in moved_columns), strict=True))
    return count, *encode_training_rows(party, alignment, [columns[f] for f in features])


def build_random_order(
    party: Party, common_rows: joins.RecordLinkage, count: int
) -> list[PrivatePermutation]:
    """Return permutations that bring the common rows to the front, in an order that no party knows.

    The order of their keys would disclose whose rows a training uses.  Random row numbers are moved
    back to each row's position in its table, so that all columns of a table move once.

    Rounds and bits, for one word: those of arrange.shuffle_columns and, for each table, of
    PrivatePermutation.apply_inverse and
    arrange.permute_by_target.
    """
    width = max(2, sort.sort_index_bits(max(order.n for order in common_rows.permutations)))

    def share_numbers(first: int, last: int) -> Shared:
        numbers = arithmetic.share_public(common_rows.valid, np.arange(first, last, dtype=np.int64))
        return small_ring.reduce_ring(numbers, width)

    (row_numbers,) = arrange.shuffle_columns(party, [share_numbers(0, count)])
    permutations = []
    for order in common_rows.permutations:
        (target,) = order.apply_inverse(
            [shapes.concat([row_numbers, share_numbers(count, order.n)], 0)]
        )
        permutations.append(arrange.permute_by_target(party, target))
    return permutations


def reveal_row_count(party: Party, valid: Shared, least: int) -> int:
    """Return the number of valid rows; it becomes public unless it is too small.

    Raises:
        PolicyError: the number is too small; that fact alone became public.
    """
    width = max(int(valid.shape[0]), least).bit_length() + 1

    def compare_count(valid: Shared) -> tuple[Shared, Any]:
        ones = bits.to_number(party, valid)
        total = ones.map(lambda a: tensor_ops.reduce_sum(a, [0], True))
        short = relational.is_negative(
            party, arithmetic.add_constant(total, np.int64(-least)), width
        )
        short_number = bits.from_masked(party, short)
        return total, io.reveal(party, short_number, what="checks of the number of common rows")

    def reveal_count(total: Shared) -> Any:
        return io.reveal(party, total, what="numbers of common rows")

    total, short = arrange.cached_graph(party, "enough common", compare_count, least, width)(valid)
    if isinstance(party, CostParty):
        reveal_count(total)
        return int(valid.shape[0])
    if int(short.numpy()[0]) & 1:
        raise PolicyError(
            f"Fewer than {least} rows are common to these tables; owners require at least that "
            "many (table put --min-group). Nothing is stored, and nothing else was revealed.",
            code="group-too-small",
            operation="align",
            expected=least,
        )
    opened = arrange.cached_graph(party, "count common", reveal_count)(total)
    return int(opened.numpy()[0])


def encode_training_rows(
    party: Party, alignment: LinkageSchema, columns: Sequence[Shared]
) -> tuple[Shared, Shared]:
    """Encode stored distances as features [rows, width] and labels of a training."""

    def encode_columns(*column_values: Shared) -> tuple[Shared, Shared]:
        x = [
            number
            for feature, column in zip(alignment.features, column_values, strict=False)
            for number in _encode_column(party, feature, column, FEATURE_BITS)
        ]
        label = alignment.label
        if alignment.about["target"] == "binary":  # the number of the class is its bit
            label = replace(label, names=label.names[:1])
        y = _encode_column(party, label, column_values[-1], LABEL_BITS)
        return shapes.stack(x, 1), shapes.stack(y, 1)

    encoded_rows: tuple[Shared, Shared] = party.function(encode_columns)(*columns)
    return encoded_rows


def _encode_column(party: Party, feature: LinkedFeature, column: Shared, f: int) -> list[Shared]:
    """Encode a column's distances [n] for a model, with f fractional bits."""
    n, names = int(column.shape[0]), feature.names
    if feature.schema_column.type.kind == CATEGORY and len(names) > 1:
        width = (len(names) - 1).bit_length() + 1
        hot = convert.b2a(party, one_hot.one_hot(party, column, len(names), width))
        rows = shapes.reshape(arithmetic.mul_public(hot, np.int64(1 << f)), [len(names), n])
        return [
            replace(rows.map(lambda a, i=i: a[i]), fractional_bits=f) for i in range(len(names))
        ]
    kind = feature.schema_column.type
    centered = arithmetic.add_constant(column, np.int64(kind.offset - feature.center))
    if feature.shift <= f:
        number = arithmetic.mul_public(centered, np.int64(1 << (f - feature.shift)))
    else:
        number = truncation.truncate(party, centered, feature.shift - f)
    return [replace(number, fractional_bits=f)]


def price_alignment(
    order: LinkageRequest,
    alignment: LinkageSchema,
    tables: Sequence[TableAccess],
    profile: str = "local",
) -> Price:
    """Count the cost of an alignment in which all rows of the smallest table are common.

    Raises:
        UsageError: the profile is unknown.
    """

    def load_placeholders(number: int, names: Sequence[str]) -> dict[str, Shared]:
        return {name: Private((tables[number].schema.rows,), 0).to_symbolic() for name in names}

    messages = MessageGraph()
    party = CostParty(expected=True, graph=messages)
    with party.active():
        align_rows(
            party, order, alignment, tables, load_placeholders, profiles.get_profile(profile).plan
        )
    return Price(
        profile,
        (party.total_cost,),
        (party.moved_words,),
        messages,
        (range(party.finished_calls),),
        cost=party.total_cost,
        largest=party.largest,
        openings=party.openings.list_openings(),
    )
