"""docs/operations.md: its example runs, its table is complete and matches the wire."""

from __future__ import annotations

import re
from collections.abc import Callable
from operator import itemgetter
from typing import Any

import numpy as np
import pytest

import tfe_bench as tfe
from tests.pages import import_page
from tfe_bench.cluster.simulate import measure_graph_call, simulate, total_rounds
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

operations = import_page("operations")
OF_BITS, PAGE, F = (getattr(operations, n) for n in ("OF_BITS", "PAGE", "F"))
MEASURED = operations.find_cases(PAGE.read_text())

CLASSES = {"FixedPoint", "Party", "Shared"}
MODULES: dict[str, str] = tfe._public_modules()  # type: ignore[attr-defined]  # of no public name
OPERATIONS = {n for n, of in MODULES.items() if ".protocols." in of} - CLASSES


def measure_wire(part: slice) -> dict[str, tuple[int, float]]:
    """Return rounds and bytes per element, of all three parties, by name for some measured rows."""
    cases = dict(list(MEASURED.items())[part])

    def program(p: Party, x: Shared) -> Any:
        of_x = [measure_graph_call(p, p.function(case), x) for case, _ in cases.values()]
        bits = p.function(lambda x: x < 0)(x)
        return of_x + [
            measure_graph_call(p, p.function(case), x, bits) for case in OF_BITS.values()
        ]

    sim = simulate(program, np.full((100, 10), 1 << F), fractional_bits=F)
    costs = {}
    counts = {name: n for name, (_, n) in cases.items()} | dict.fromkeys(OF_BITS, 1000)
    for i, (name, n) in enumerate(counts.items()):
        sent, rounds = zip(*(out[i] for out in sim.outputs), strict=True)
        costs[name] = total_rounds(rounds, "ahead"), sum(sent) / 8 / n
    return costs


def table_rows(heading: str = "All operations") -> list[list[str]]:
    """Return the cells of the table of operations under a heading."""
    _, text = PAGE.read_text().split(f"## {heading}\n")
    lines = [line for line in text.split("\n## ")[0].splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def row_names(rows: list[list[str]]) -> set[str]:
    """Return the operations in the first cells."""
    return {name for row in rows for name in re.findall(r"`(\w+)`", row[0])}


def test_every_operation_is_in_the_table_and_no_other() -> None:
    assert row_names(table_rows()) == OPERATIONS


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_rounds_and_bytes_of_the_table_are_what_the_wire_carries(
    every: int, rng: np.random.Generator
) -> None:
    """The tests below count all rows, and each protocol's test compares its count with the wire."""
    table = {row[0]: row[-2:] for row in table_rows()}
    leading = {operations.row_name(name): cells for name, cells in table.items()}
    for name, (rounds, size) in measure_wire(slice(int(rng.integers(every)), None, every)).items():
        assert leading[name] == [str(rounds), f"{size:.0f}"], (name, rounds, size)


def test_no_row_with_numbers_escapes_the_counting() -> None:
    # Local operations cost 0; "by size" and several figures are not single numbers.
    numbered = {
        operations.row_name(row[0]) for row in table_rows() if row[-1].isdigit() and row[-1] != "0"
    }
    assert numbered <= operations.count_costs().keys()


def test_the_table_is_what_is_counted() -> None:
    assert operations.write_costs(PAGE.read_text()) == PAGE.read_text()


def test_every_operation_that_has_a_range_says_what_happens_outside_of_it() -> None:
    # operations on all values: shapes, logic and selection, sorting
    unlimited = row_names([row for row in table_rows() if row[1].startswith(("all", "bits"))])
    unlimited |= {"sort", "top_k"}
    documented = row_names(table_rows("Outside of the range"))
    assert documented == OPERATIONS - unlimited | {
        *("add", "subtract", "negative", "add_n", "cumsum", "reduce_sum", "cast")
    }


def test_what_comes_out_outside_of_the_range_is_what_the_page_says(
    rng: np.random.Generator,
) -> None:
    """The range has 20 bits: ring units below 2^19 are inside."""
    x = rng.integers(1 << 19, 1 << 40, (64, 4)) * rng.choice([-1, 1], (64, 4))
    y = rng.integers(-(1 << 40), 1 << 40, (64, 4))
    unit = 2.0**-F
    functions: dict[str, Callable[[Shared, Shared], Any]] = {
        "relu": lambda x, y: tfe.relu(x, 20),
        "relu_derivative": lambda x, y: tfe.relu_derivative(x, 20),
        "leaky_relu": lambda x, y: tfe.leaky_relu(x, 0.5, 20),
        "abs": lambda x, y: tfe.abs(x, 20),
        "sign": lambda x, y: tfe.sign(x, 20),
        "maximum": lambda x, y: tfe.maximum(x, y, 20),
        "minimum": lambda x, y: tfe.minimum(x, y, 20),
        "clip_by_value": lambda x, y: tfe.clip_by_value(x, -unit, unit, 20),
        "reduce_max": lambda x, y: tfe.reduce_max(x, 1, bits=20),
        "reduce_min": lambda x, y: tfe.reduce_min(tfe.concat([x, x, x], 1), 1, bits=20),
        "max_pool2d": lambda x, y: tfe.max_pool2d(tfe.reshape(x, [64, 2, 2, 1]), 2, bits=20),
        "argmax": lambda x, y: tfe.argmax(x, 1, 20),
        "less": lambda x, y: tfe.cast(tfe.less(x, y, 20)),
        "equal": lambda x, y: tfe.cast(tfe.equal(x, y, 20)),
        "add": lambda x, y: (x + x) * (1 << 40),
    }

    def program(p: Party, x: Shared, y: Shared) -> Any:
        return p.function(lambda x, y: [f(x, y) for f in functions.values()])(x, y)

    sim = simulate(program, x, y, fractional_bits=F)
    out = {name: sim.value(itemgetter(i)) for i, name in enumerate(functions)}

    def among(name: str, *choices: Any) -> None:
        # The truncation of leaky_relu is off by less than an ulp.
        near = [np.abs(out[name] - c) <= (name == "leaky_relu") for c in choices]
        assert np.any(near, 0).all(), name

    among("relu", x, 0)
    among("relu_derivative", 0, 1)
    among("leaky_relu", x, x / 2)
    among("abs", x, -x)
    among("sign", -1 << F, 0, 1 << F)
    among("maximum", x, y)
    among("minimum", x, y)
    among("clip_by_value", x, -1, 1)
    among("reduce_max", 0, *x.T)
    among("reduce_min", 0, *x.T)
    among("argmax", *range(4))
    assert np.isin(out["max_pool2d"].reshape(-1, 1), np.append(x, 0)).all()

    def modulo(v: Any, k: int) -> Any:
        return (v + (1 << (k - 1))) % (1 << k) - (1 << (k - 1))

    assert (out["less"] == (modulo(x - y, 20) < 0)).all()
    assert (out["equal"] == (modulo(x - y, 20) == 0)).all()
    assert (out["add"] == (x + x) << 40).all()
    assert (out["relu"] != np.maximum(x, 0)).any()


def test_the_example_of_the_page_runs_and_is_right() -> None:
    text = PAGE.read_text()
    (code,) = re.findall(r"```python run slow\n(.*?)```", text, re.S)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(code, str(PAGE), "exec"), names)
    assert abs(names["scores"] - names["expected"]).max() < 2.0**-13
    assert names["best"].tolist() == names["expected"].argmax(1).tolist()
