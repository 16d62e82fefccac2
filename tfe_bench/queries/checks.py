"""Checks of workers before they store a table: declared properties become facts.

Comparisons of rows and keys are as narrow as the types of columns, and a key outside of its range
would make the order of other owners' keys leak information. Therefore workers do not trust
declarations: they compare every word with its bounds, and search for repeated values of unique
columns. Each check discloses one bit: whether the table satisfies its declaration.
"""

from __future__ import annotations

from collections.abc import Mapping

from tfe_bench.errors import ProtocolError, RangeError
from tfe_bench.protocols.session.counting import CostParty, Private, count_cost
from tfe_bench.protocols.session.openings import Opening
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import hashed_lookup, results
from tfe_bench.queries import stored
from tfe_bench.queries.schema import TableSchema

_WORD = 64


def check_table(party: Party, schema: TableSchema, words: Mapping[str, Shared]) -> None:
    """Reject a table that does not satisfy its header.

    Args:
        words: its words, named as by `stored.stored_row_word_names`.

    Raises:
        RangeError: a value is outside its column's range or repeated in a unique column, or a link
            is not a permutation.
    """
    for name, (word_text, top) in _upper_bounds(schema).items():
        results.check_range(party, words[name], 0, top, name=word_text)
    for name in schema.unique:
        results.check_unique(party, stored.build_stored_relation(schema, [name], words), [0])
    for i, link in enumerate(schema.links):
        try:
            hashed_lookup.permute_by_bins(party, words[stored.link_name(i)])
        except ProtocolError:
            raise RangeError(
                f"The link of {link.column!r} is not a permutation of bins and requests.",
                code="invalid-link",
                operation=link.column,
            ) from None


def count_check_openings(schema: TableSchema) -> tuple[Opening, ...]:
    """Return what `check_table` opens to workers, on average."""

    def check_symbolic_table(party: CostParty) -> None:
        words = {
            name: Private((schema.rows,), 0).to_symbolic()
            for name in stored.stored_row_word_names(schema)
        }
        for name, size in stored.link_sizes(schema).items():
            words[name] = Private((size,), 0).to_symbolic()
        check_table(party, schema, words)

    return count_cost(check_symbolic_table, graphs=True, expected=True).openings


def _upper_bounds(schema: TableSchema) -> dict[str, tuple[str, int]]:
    """Return a description and the upper bound of each word that has bounds."""
    upper_bounds = {"valid": ("The rows' validity", 1)} if schema.padded else {}
    for i, (name, column) in enumerate(schema.columns.items()):
        if column.type.width < _WORD:
            upper_bounds[f"v{i}"] = (f"The column {name!r}", column.type.high - column.type.low)
        if column.nullable:
            upper_bounds[f"n{i}"] = (f"The NULL bits of {name!r}", 1)
    return upper_bounds
