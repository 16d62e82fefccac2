"""What workers make sure of before they keep a table: an owner's promises become facts.

Comparisons of rows and keys are as narrow as columns' types say, and a key that is out of its range
would make the order of the other owners' keys tell something.  So nobody is believed: the workers
compare every word with its bounds, and look for values that a unique column has twice.  They learn
one bit of each check: whether the table is as its owner says.
"""

from __future__ import annotations

from collections.abc import Mapping

from tfe_bench.errors import ProtocolError, RangeError
from tfe_bench.models.queries import stored
from tfe_bench.models.queries.schema import Schema
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import hashed_lookup, results

_WORD = 64


def check_table(party: Party, schema: Schema, words: Mapping[str, Shared]) -> None:
    """Refuses a table that is not what its header says.

    Args:
        words: as `stored.word_names` lists them.

    Raises:
        RangeError: a value outside of its column's range, or twice in a unique column; a link
            that is no permutation.
    """
    for name, (word_text, top) in _upper_bounds(schema).items():
        results.check_range(party, words[name], 0, top, name=word_text)
    for name in schema.unique:
        results.check_unique(party, stored.build_relation(schema, [name], words), [0])
    for i, link in enumerate(schema.links):
        try:
            hashed_lookup.permute_by_bins(party, words[stored.link_name(i)])
        except ProtocolError:
            raise RangeError(
                f"The link of {link.column!r} is no order of bins and who asks them."
            ) from None


def _upper_bounds(schema: Schema) -> dict[str, tuple[str, int]]:
    """What a word is of, and the largest that it may be; of those that have bounds."""
    upper_bounds = {"valid": ("The rows' validity", 1)} if schema.padded else {}
    for i, (name, column) in enumerate(schema.columns.items()):
        if column.type.width < _WORD:
            upper_bounds[f"v{i}"] = (f"The column {name!r}", column.type.high - column.type.low)
        if column.nullable:
            upper_bounds[f"n{i}"] = (f"The NULL bits of {name!r}", 1)
    return upper_bounds
