"""Rounds and bytes of docs/operations.md, counted: python -m docs.operations [--write].

Without --write it fails if the page differs.  A test compares the same operations
with the wire.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import tfe_bench as tfe
from tfe_bench.protocols.session.counting import Private, PrivateBits, count_cost
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

PAGE = Path(__file__).with_suffix(".md")
F = 16

Case = tuple[Callable[[Shared], Any], int]


def _to_integers(x: Shared) -> Shared:
    """Encode reals as ring elements."""
    return replace(x, fractional_bits=0)


# Operations of the table's rows other than `tfe.name(x)`: on 1000 values at 16 fractional bits, as
# [100, 10] for rows and matrices, with the number of elements that divides the cost.
_CASES: dict[str, Case] = {
    "`multiply`": (lambda x: x * x, 1000),
    "`multiply` by a public real": (lambda x: x * 0.3, 1000),
    "`matmul`": (lambda x: x @ tfe.transpose(x), 10000),
    "`divide`": (lambda x: x / x, 1000),
    "`pow`": (lambda x: x**3, 1000),
    "`pow` by a private exponent": (lambda x: x**x, 1000),
    "`floordiv`": (lambda x: x // 3, 1000),
    "`floordiv` of two private ones": (lambda x: x // x, 1000),
    "`bitwise_and`": (lambda x: tfe.bitwise_and(_to_integers(x), 255), 1000),
    "`bitwise_and` of two private words": (
        lambda x: tfe.bitwise_and(_to_integers(x), _to_integers(x), 8),
        1000,
    ),
    "`bit_extract`": (lambda x: tfe.bit_extract(_to_integers(x), 31), 1000),
    "`unpack_bits`": (lambda x: tfe.unpack_bits(_to_integers(x), 8), 1000),
    "`popcount`": (lambda x: tfe.popcount(_to_integers(x), 8), 1000),
    "`right_shift`": (lambda x: tfe.right_shift(_to_integers(x), 8), 1000),
    "`einsum`": (lambda x: tfe.einsum("ij,kj->ik", x, x), 10000),
    "`reduce_prod`": (lambda x: tfe.reduce_prod(x, 1), 1000),
    "`cumprod`": (lambda x: tfe.cumprod(x, 1), 1000),
    "`cummax`": (lambda x: tfe.cummax(x, 1), 1000),
    "`norm`": (lambda x: tfe.norm(x, axis=1), 100),
    "`reduce_variance`": (lambda x: tfe.reduce_variance(x, 1), 100),
    "`reduce_std`": (lambda x: tfe.reduce_std(x, 1), 100),
    "`bincount`": (lambda x: tfe.bincount(_to_integers(x), maxlength=8), 1000),
    "`histogram_fixed_width`": (lambda x: tfe.histogram_fixed_width(x, [0, 1], 8), 1000),
    "`one_hot`": (lambda x: tfe.one_hot(_to_integers(x), 8), 1000),
    "`gather` with private indices": (lambda x: tfe.gather(x, _to_integers(x)[0], 1), 1000),
    "`max_pool_with_argmax`": (
        lambda x: tfe.max_pool_with_argmax(tfe.reshape(x, [10, 10, 10, 1]), 2),
        1000,
    ),
    "`adaptive_max_pool2d`": (
        lambda x: tfe.adaptive_max_pool2d(tfe.reshape(x, [10, 10, 10, 1]), 5),
        1000,
    ),
    "`adaptive_avg_pool2d`": (
        lambda x: tfe.adaptive_avg_pool2d(tfe.reshape(x, [10, 10, 10, 1]), 5),
        250,
    ),
    "`atan2`": (lambda x: tfe.atan2(x, x), 1000),
    "`less`": (lambda x: x < 0, 1000),
    "`equal`": (lambda x: x == 0, 1000),
    "`in_range`": (lambda x: tfe.in_range(x, 31), 1000),
    "`cast` to fewer fractional bits": (lambda x: tfe.cast(x, 8), 1000),
    "`cast` to the nearest": (lambda x: tfe.cast(x, 8, method="exact"), 1000),
    "`maximum`": (lambda x: tfe.maximum(x, 0), 1000),
    "`clip_by_value`": (lambda x: tfe.clip_by_value(x, -1, 1), 1000),
    "`reduce_mean`": (lambda x: tfe.reduce_mean(x, 1), 100),
    "`reduce_max`": (lambda x: tfe.reduce_max(x, 1), 1000),
    "`argmax`": (lambda x: tfe.argmax(x, 1), 1000),
    "`max_pool2d`": (lambda x: tfe.max_pool2d(tfe.reshape(x, [10, 10, 10, 1]), 2), 1000),
    "`avg_pool2d`": (lambda x: tfe.avg_pool2d(tfe.reshape(x, [10, 10, 10, 1]), 2), 250),
    "`conv2d`": (
        lambda x: tfe.conv2d(
            tfe.reshape(x, [10, 10, 10, 1]), tfe.reshape(x[0, :9], [3, 3, 1, 1]), 1, "SAME"
        ),
        1000,
    ),
    "`scaled_dot_product_attention`": (lambda x: tfe.scaled_dot_product_attention(x, x, x), 1000),
    "`polyval`": (lambda x: tfe.polyval([1.0, 2.0, 3.0], x), 1000),
}

# The same, with existing private bits b = [x < 0].
OF_BITS: dict[str, Callable[[Shared, MaskedBits], Any]] = {
    "`logical_and`": lambda x, b: b & b,
    "`cast` of bits": lambda x, b: tfe.cast(b),
    "`pack_bits`": lambda x, b: tfe.pack_bits(tfe.expand_dims(b, 1)),
    "`where`": lambda x, b: tfe.where(b, x, 0),
}


def row_name(first_cell: str) -> str:
    """Return the row's name in `measured` or OF_BITS, without examples and equivalents."""
    return re.sub(r"(,| \(here).*", "", first_cell)


def table_rows(page: str) -> list[list[str]]:
    """Return the cells of the rows of all operations."""
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in page.splitlines()]
    return [row for row in cells if len(row) == 5 and row[0].startswith("`")]


def find_cases(page: str) -> dict[str, Case]:
    """Return the operation of each row with a cost: functions of x alone, and those above."""
    found = {}
    for cells in table_rows(page):
        name = row_name(cells[0])
        if name in OF_BITS or cells[-1] == "by size":
            continue
        if name in _CASES:
            found[name] = _CASES[name]
        elif function := getattr(tfe, name.strip("`"), None):
            wanted = [p for p in inspect.signature(function).parameters.values()]
            if [p.name for p in wanted if p.default is p.empty] == ["x"]:
                found[name] = function, 1000
    return found


def count_costs(page: str | None = None) -> dict[str, tuple[int, str]]:
    """Count (rounds, bytes per element by all three parties together) of each row with a cost.

    Args:
        page: None for the present page.
    """
    page = PAGE.read_text() if page is None else page
    x, b = Private((100, 10), F), PrivateBits((100, 10))
    found = {}
    for name, (operation, n) in find_cases(page).items():
        cost = count_cost(lambda party, x, f=operation: f(x), x).cost
        found[name] = cost.rounds, f"{cost.total / 8 / n:.0f}"
    for name, of_bits in OF_BITS.items():
        cost = count_cost(lambda party, x, b, f=of_bits: f(x, b), x, b).cost
        found[name] = cost.rounds, f"{cost.total / 8 / 1000:.0f}"
    return found


def write_costs(page: str) -> str:
    """Return the page with counted costs in the last two cells of every row with a cost."""
    costs = count_costs(page)
    lines = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `") and len(cells) == 5 and row_name(cells[0]) in costs:
            rounds, size = costs[row_name(cells[0])]
            line = f"| {' | '.join([*cells[:3], str(rounds), size])} |"
        lines.append(line)
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write or compare the page; return the exit status."""
    page = PAGE.read_text()
    wanted = write_costs(page)
    if "--write" in sys.argv[1:]:
        PAGE.write_text(wanted)
    elif page != wanted:
        print(f"{PAGE.name} is not what is counted. Write it: python -m docs.operations --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
