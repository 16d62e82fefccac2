"""What workers make sure of before they keep a table: an owner's promises become facts.

Comparisons of rows and keys are as narrow as columns' types say, and a key that is out of its range
would make the order of the other owners' keys tell something.  So nobody is believed: the workers
compare every word with its bounds, and look for values that a unique column has twice.  They learn
one bit of each check: whether the table is as its owner says.
"""

from __future__ import annotations

import numpy as np

from tfe_bench.errors import RangeError
from tfe_bench.models.queries import operators
from tfe_bench.models.queries.schema import Schema
from tfe_bench.models.queries.stored import bit_of
from tfe_bench.protocols.ring import arithmetic, relational, shapes
from tfe_bench.protocols.session.io import reveal
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import arrange, bits

# Words that are compared by one graph call.
_AT_ONCE = 1 << 19
_WORD = 64


def check(party: Party, schema: Schema, words: dict[str, Shared]) -> None:
    """Refuses a table that is not what its header says.

    Args:
        words: as `stored_names` lists them.

    Raises:
        RangeError: a value outside of its column's range, or twice in a unique column.
    """
    tops = _tops(schema)
    for name, top in tops.items():
        inside = [
            _inside(party, words[name].map(lambda a, b=b: a[b : b + _AT_ONCE]), top)  # type: ignore[misc]
            for b in range(0, schema.rows, _AT_ONCE)
        ]
        if not _opened(party, inside):
            raise RangeError(
                f"The workers found a value outside of its declared range in the column "
                f"{_column_of(schema, name)!r}, or a bit that is none. Nothing is kept."
            )
    for name in schema.unique:
        if not _is_unique(party, schema, words, name):
            raise RangeError(
                f"The workers found a value twice in the column {name!r}, which is said to be "
                "unique. Nothing is kept."
            )


def stored_names(schema: Schema) -> list[str]:
    """The words of a table: values v0, v1, ..., NULL bits n0, ... of nullable columns, valid."""
    found = []
    for i, column in enumerate(schema.columns.values()):
        found.append(f"v{i}")
        if column.nullable:
            found.append(f"n{i}")
    return [*found, "valid"] if schema.padded else found


def _column_of(schema: Schema, name: str) -> str:
    return "validity" if name == "valid" else list(schema.columns)[int(name[1:])]


def _tops(schema: Schema) -> dict[str, int]:
    """The largest word of each column that has bounds; the least is 0."""
    found = {}
    columns = list(schema.columns.values())
    for name in stored_names(schema):
        if not name.startswith("v") or name == "valid":
            found[name] = 1
            continue
        kind = columns[int(name[1:])].type
        if kind.width < _WORD:
            found[name] = kind.high - kind.low
    return found


def _inside(party: Party, x: Shared, top: int) -> Shared:
    """One bit: every word is from 0 to top."""

    def made(x: Shared, top: int) -> Shared:
        far = arithmetic.moved(arithmetic.neg(x), np.int64(top))
        both = shapes.concat([x, far], 0)
        below = bits.of(party, relational.negative(party, both))
        return all_rows(party, bits.invert(below))

    graph = party.cached_function(("tables.inside", top), lambda: lambda x: made(x, top))
    found: Shared = graph(x)
    return found


def all_rows(party: Party, bit: Shared) -> Shared:
    """The AND of all rows' bits, [1]; called inside of graphs."""
    while (n := int(bit.shape[0])) > 1:
        quarter = -(-n // 4)
        if quarter * 4 > n:
            ones = bits.public(bit, np.ones(quarter * 4 - n, np.int64))
            bit = shapes.concat([bit, ones], 0)
        parts = [
            bit.map(lambda a, b=b, e=b + quarter: a[b:e])  # type: ignore[misc]
            for b in range(0, 4 * quarter, quarter)
        ]
        bit = bits.all_of(party, parts)
    return bit


def _opened(party: Party, several: list[Shared]) -> bool:
    """Whether all bits [1] are 1: the one thing that workers learn."""

    def made(several: list[Shared]) -> object:
        return reveal(party, operators.all_of(party, several))

    found = party.function(made)(several)
    return bool(int(found.numpy()[0]) & 1)


def _is_unique(party: Party, schema: Schema, words: dict[str, Shared], name: str) -> bool:
    if schema.rows < 2:
        return True
    i = list(schema.columns).index(name)
    width = schema.columns[name].type.width
    value, null, valid = words[f"v{i}"], words.get(f"n{i}"), words.get("valid")

    def keys(value: Shared, null: Shared | None, valid: Shared | None) -> list[Shared]:
        there = [bits.public(value, np.ones(schema.rows, np.int64))]
        there += [] if null is None else [bits.invert(bit_of(null))]
        there += [] if valid is None else [bit_of(valid)]
        all_there = operators.all_of(party, there)
        return [bits.number(party, bits.invert(all_there)), bits.times(party, all_there, value)]

    made = party.function(keys)(value, null, valid)
    arranged = arrange.by_keys(party, [(made[0], 1), (made[1], width)])
    moved = arranged.forward(made)

    def different(moved: list[Shared]) -> Shared:
        missing = bit_of(moved[0])
        same = operators.equal_to_before(party, moved[1], width)
        there = [bits.invert(missing.map(lambda a, k=k: a[k[0] : k[1]])) for k in _PAIRS]  # type: ignore[misc]
        return all_rows(party, bits.invert(bits.all_of(party, [same, *there])))

    return _opened(party, [party.function(different)(moved)])


# Each row but the first, and the one before it.
_PAIRS = ((1, None), (None, -1))
