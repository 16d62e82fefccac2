"""Recurrent layers: steps, losses of a memory, costs on the wire, rejected arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.protocols.operands import Array
from tests.protocols.pads import assert_one_message_each, fields_of
from tests.protocols.test_series import evaluate_series
from tests.protocols.turns import in_time
from tests.refusals import raises
from tfe_bench.cluster.simulate import assert_costs, measure_graph_call, simulate
from tfe_bench.errors import ProtocolError, UsageError
from tfe_bench.protocols.nn import cells, recurrent, series
from tfe_bench.protocols.nn.cells import GATES, STATES, RecurrentCell, RecurrentFormat
from tfe_bench.protocols.nn.recurrent import RecurrentWeights
from tfe_bench.protocols.ring.range_check import RangeMonitor
from tfe_bench.protocols.session import loops
from tfe_bench.protocols.session.counting import Private, count_cost
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

F, SCALE = 16, 32
NAMES = ("kernel", "recurrent", "bias", "inner")


def sigmoid(v: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-v)))


CLEAR: dict[str, Callable[[Array], Array]] = {
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "ramp": lambda v: np.clip(v, 0, 1),
    "relu": lambda v: np.maximum(v, 0),
    "linear": lambda v: v,
}


def expected_steps(
    cell: RecurrentCell, x: Array, w: dict[str, Array], states: list[Array]
) -> tuple[Array, Array]:
    """Return the outputs of all steps and the last memory, in float64, by Keras' documentation."""
    f, s = CLEAR[cell.activation], CLEAR[cell.gate]
    u = w["recurrent"].shape[0]
    h, c, outputs = states[0], states[-1], []
    for step in np.moveaxis(x, 1, 0):
        projected = step @ w["kernel"] + w["bias"]
        if cell.kind == "simple":
            h = f(projected + h @ w["recurrent"])
        elif cell.kind == "lstm":
            i, forget, g, o = np.split(projected + h @ w["recurrent"], 4, -1)
            c = s(forget) * c + s(i) * f(g)
            h = s(o) * f(c)
        else:
            z, r = np.split(s(projected[:, : 2 * u] + h @ w["recurrent"][:, : 2 * u]), 2, -1)
            last = w["recurrent"][:, 2 * u :]
            inner = r * (h @ last + w["inner"]) if cell.kind == "gru" else (r * h) @ last
            h = z * h + (1 - z) * f(projected[:, 2 * u :] + inner)
        outputs.append(h)
    return np.stack(outputs, 1), c


class RandomLayer:
    """A layer with random weights, inputs and states."""

    def __init__(
        self,
        cell: RecurrentCell,
        ways: int,
        steps: int,
        rng: np.random.Generator,
        states: bool = True,
    ) -> None:
        self.cell, self.ways, inputs, units, batch = cell, ways, 3, 2, 2
        self.fraction = 13 if cell.series else F
        self.numbers = cells.derive_recurrent_format(
            cell, self.fraction, SCALE, self.fraction + 6, steps, states
        )
        wide = GATES[cell.kind] * units
        shapes = ((inputs, wide), (units, wide), (wide,), (units,))
        self.weights = [
            dict(zip(NAMES, (rng.normal(0, 0.6, s) for s in shapes), strict=True))
            for _ in range(ways)
        ]
        self.x = rng.normal(0, 1, (batch, steps, inputs))
        number = STATES[cell.kind] * ways if states else 0
        self.states = [rng.normal(0, 1, (batch, units)) for _ in range(number)]
        self.zeros = [np.zeros((batch, units))] * STATES[cell.kind]

    @property
    def values(self) -> list[tuple[Array, int]]:
        """All private values with their fractional bits."""
        scales = (SCALE - F, SCALE - self.fraction, SCALE, SCALE)
        names = NAMES if self.cell.kind == "gru" else NAMES[:3]
        return [
            (self.x, F),
            *((w[n], s) for w in self.weights for n, s in zip(names, scales, strict=False)),
            *((s, self.fraction) for s in self.states),
        ]

    @property
    def backwards(self) -> list[bool]:
        return [d == 1 for d in range(self.ways)]

    def run(self, party: Party, *shares: Shared) -> list[Shared]:
        remaining = iter(
            replace(a, fractional_bits=f) for a, (_, f) in zip(shares, self.values, strict=True)
        )
        x, each = next(remaining), 4 if self.cell.kind == "gru" else 3
        weights = [
            RecurrentWeights(*(next(remaining) for _ in range(each))) for _ in range(self.ways)
        ]
        watch = None if self.cell.is_bounded else RangeMonitor(party, self.x.shape[0], x.dealer)
        output = recurrent.run_recurrent(
            *(party, self.cell, x, weights, self.numbers),
            backwards=self.backwards,
            states=list(remaining),
            sequences=True,
            monitor=watch,
        )
        memory = [] if output.memory is None else [output.memory]
        return [output.output, *memory, *([] if watch is None else [watch.compute_flag()])]

    def expected_outputs(self) -> tuple[Array, Array]:
        """Return the expected outputs [batch, directions, steps, units] and memories."""
        n, runs = STATES[self.cell.kind], []
        for d, (w, back) in enumerate(zip(self.weights, self.backwards, strict=True)):
            states = self.states[d * n : (d + 1) * n] or self.zeros
            runs.append(expected_steps(self.cell, self.x[:, ::-1] if back else self.x, w, states))
        outputs, memories = zip(*runs, strict=True)
        return np.stack(outputs, 1), np.stack(memories, 1)

    def check(self, dealer: int) -> None:
        words = [np.rint(v * 2.0**f).astype(np.int64) for v, f in self.values]

        def program(party: Party, *shares: Shared) -> Any:
            graph = party.function(lambda *given: self.run(party, *given))
            return graph(*shares), measure_graph_call(party, graph, *shares)

        sim = simulate(program, *words, dealer=dealer)
        unit = 2.0**-self.fraction
        outputs, memory = self.expected_outputs()
        got = sim.value(lambda out: out[0][0]) * unit
        bound = 2.0**-9 if self.cell.series and self.cell.gate != "ramp" else 16 * unit
        assert np.abs(got - outputs).max() < bound, self.cell
        if self.cell.kind == "lstm":
            assert np.abs(sim.value(lambda out: out[0][1]) * unit - memory).max() < bound
        if not self.cell.is_bounded:
            assert not sim.value(lambda out: out[0][-1]).any()
        inputs = [Private(v.shape, f) for v, f in self.values]
        tally = count_cost(lambda party, *given: self.run(party, *given), *inputs)
        assert_costs([out[1] for out in sim.outputs], tally.cost, dealer)


CASES = [
    (RecurrentCell("lstm", series=True), 2, 4, True),
    (RecurrentCell("lstm"), 1, 2, False),
    (RecurrentCell("gru", series=True), 1, 3, False),
    (RecurrentCell("gru"), 2, 2, True),
    (RecurrentCell("gru_before", series=True), 1, 3, True),
    (RecurrentCell("gru_before", gate="ramp"), 2, 3, False),
    (RecurrentCell("simple"), 2, 3, True),
    (RecurrentCell("simple", "relu"), 1, 3, False),
    (RecurrentCell("lstm", "relu", series=True), 2, 3, True),
    (RecurrentCell("lstm", "linear", "ramp"), 1, 1, True),
    (RecurrentCell("gru", "sigmoid", "ramp", True), 1, 1, False),
    (RecurrentCell("gru", "relu"), 1, 2, True),
]


@pytest.mark.parametrize(
    ("cell", "ways", "steps", "states"),
    [c if i in (0, 7) else pytest.param(*c, marks=pytest.mark.slow) for i, c in enumerate(CASES)],
)
def test_steps_are_right_and_cost_what_is_declared(
    cell: RecurrentCell, ways: int, steps: int, states: bool, rng: np.random.Generator
) -> None:
    """Compare costs of loops too: bytes, online and total rounds."""
    RandomLayer(cell, ways, steps, rng, states).check(int(rng.integers(3)))


@pytest.mark.parametrize(
    "short", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["series", "exact"]
)
def test_no_turn_takes_a_mask_again(short: bool, rng: np.random.Generator) -> None:
    """Run three iterations, two of them in a loop, and call the graph a second time."""
    drawn = RandomLayer(RecurrentCell("gru", series=short), 1, 3, rng, False)

    def program(party: Party, *shares: Shared) -> None:
        graph = party.function(lambda *given: drawn.run(party, *given))
        graph(*shares)
        graph(*shares)

    words = [np.rint(v * 2.0**f).astype(np.int64) for v, f in drawn.values]
    sim = simulate(program, *words, record=True)
    sent = assert_one_message_each(sim)
    assert set(fields_of(sent)["iteration"]) == {0, 2, 3}


def test_turns_of_one_number_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse them before a second message leaves under the first one's mask."""
    iteration = Party.iteration
    monkeypatch.setattr(Party, "iteration", lambda party, number: iteration(party, 0 * number))
    drawn = RandomLayer(RecurrentCell("simple", "linear"), 1, 4, np.random.default_rng(5), False)

    def program(party: Party, *shares: Shared) -> None:
        party.function(lambda *given: drawn.run(party, *given))(*shares)

    with pytest.raises(ProtocolError, match=r"twice|two"):
        in_time(program, *(np.rint(v * 2.0**f).astype(np.int64) for v, f in drawn.values))


# ---- memory of a held gate


def test_the_series_of_a_held_gate_is_near() -> None:
    """Check a quarter beyond the knots, and 0 and 1 from a quarter before them."""
    v = np.linspace(-9.75, 9.75, 20001)
    assert np.abs(evaluate_series(series.MEMORY_GATE.series, v) - sigmoid(v)).max() < 2.0**-13.7
    assert sigmoid(np.array(-9.25)) < 2.0**-13.3
    weights = series.MEMORY_GATE.series.weights
    assert len(weights) == 25 and sum(map(abs, weights)) < 8 << 16


def memory_error(series_of: bool, f: int, steps: int, levels: Array) -> Array:
    """Return the relative error of a memory of 3, for given gates before the sigmoid."""
    units = levels.size
    cell = RecurrentCell("lstm", series=series_of)
    numbers = cells.derive_recurrent_format(cell, f, SCALE + 2, f + 6, steps, True)
    bias = np.concatenate([np.full(units, -15.0), levels, np.zeros(units), np.zeros(units)])
    arrays = [
        (np.zeros((1, steps, 1)), 16),
        (np.zeros((1, 4 * units)), SCALE + 2 - 16),
        (np.zeros((units, 4 * units)), SCALE + 2 - f),
        (bias, SCALE + 2),
        (np.zeros((1, units)), f),
        (np.full((1, units), 3.0), f),
    ]

    def program(party: Party, *shares: Shared) -> Any:
        def graph(*shares: Shared) -> Any:
            x, kernel, recurrent_kernel, bias, h, c = (
                replace(a, fractional_bits=s) for a, (_, s) in zip(shares, arrays, strict=True)
            )
            weights = [RecurrentWeights(kernel, recurrent_kernel, bias)]
            return recurrent.run_recurrent(party, cell, x, weights, numbers, states=[h, c]).memory

        return party.function(graph)(*shares)

    sim = simulate(program, *(np.rint(a * 2.0**s).astype(np.int64) for a, s in arrays))
    right = 3 * sigmoid(levels) ** steps
    return np.asarray(np.abs(sim.value()[0, 0] * 2.0**-f - right) / right)


@pytest.mark.parametrize(
    ("series_of", "f", "steps"),
    [
        (True, 13, 20),
        *(pytest.param(s, f, 100, marks=pytest.mark.slow) for s, f in ((True, 13), (False, 16))),
    ],
)
def test_a_held_memory_is_held(series_of: bool, f: int, steps: int) -> None:
    """Check the relative error, at most steps 2^-13 + 2^-9, for every gate that holds."""
    levels = np.array([4.0, 4.1, 5.7, 6.4, 6.8, 7.7, 8.5, 9.3, 9.5, 9.6, 12, 30])
    assert memory_error(series_of, f, steps, levels).max() <= steps * 2.0**-13 + 2.0**-9


# ---- costs, and rejected arguments


def count_run(cell: RecurrentCell, steps: int, **options: Any) -> Any:
    f = 13 if cell.series else F
    numbers = cells.derive_recurrent_format(cell, f, SCALE, f + 6, steps)
    wide = GATES[cell.kind] * 128

    def run(party: Party, x: Shared, *own: Shared) -> Any:
        return recurrent.run_recurrent(
            party, cell, x, [RecurrentWeights(*own)], numbers, **options
        ).output

    shapes = (((64, wide), SCALE - F), ((128, wide), SCALE - f), ((wide,), SCALE))
    return count_cost(run, Private((16, steps, 64), F), *(Private(*s) for s in shapes)).cost


@pytest.mark.parametrize(
    ("kind", "short", "megabytes", "rounds"),
    [
        ("lstm", True, 1.3, 12),
        ("lstm", False, 5.3, 18),
        ("gru", True, 0.9, 12),
        ("gru", False, 3.3, 18),
        ("gru_before", True, 0.9, 14),
        ("simple", True, 0.24, 5),
        ("simple", False, 1.15, 8),
    ],
)
def test_a_step_of_128_units_and_16_samples(
    kind: str, short: bool, megabytes: float, rounds: int
) -> None:
    """Compare the numbers of docs/recurrent.md."""
    each = [
        count_run(RecurrentCell(kind, series=short), n, exchanges=lambda n, bits: 1) for n in (5, 6)
    ]
    assert each[1].rounds - each[0].rounds == rounds
    bits = each[1].total - each[0].total
    assert 0.9 * megabytes * 8e6 < bits <= megabytes * 8e6


def test_a_thousand_steps_are_counted_as_if_each_was(monkeypatch: pytest.MonkeyPatch) -> None:
    for cell in (RecurrentCell("gru", series=True), RecurrentCell("lstm", "relu")):
        short = [count_run(cell, n, sequences=True) for n in (5, 6, 1024)]
        with monkeypatch.context() as patched:
            patched.setattr(loops, "_COUNTED", 1024)
            assert [count_run(cell, n, sequences=True) for n in (5, 6, 30)] == [
                *short[:2],
                count_run(cell, 30, sequences=True),
            ]
        assert short[2].rounds == short[0].rounds + 1019 * (short[1].rounds - short[0].rounds)
        assert count_run(cell, 30, sequences=True).total < short[2].total < 2**40


def test_what_does_not_fit_is_refused_in_words() -> None:
    good = cells.derive_recurrent_format(RecurrentCell("lstm"), 16, 32, 20, 4)
    x = Private((2, 4, 3))
    weights = (Private((3, 8), 16), Private((2, 8), 16), Private((8,), 32))

    def run(numbers: RecurrentFormat, x: Any = x, **options: Any) -> None:
        def graph(party: Party, x: Shared, *own: Shared) -> Any:
            more = {"states": [x] * options.pop("states", 0), **options}
            return recurrent.run_recurrent(
                party, numbers.cell, x, [RecurrentWeights(*own)], numbers, **more
            )

        count_cost(graph, x, *weights)

    run(good)
    for numbers, options in (
        (replace(good, fraction=12), {}),
        (replace(good, scale=31), {}),
        (replace(good, z=46), {}),
        (replace(good, scale=60), {}),
        (good, {"x": Private((2, 1025, 3))}),
        (good, {"x": Private((2, 3))}),
        (good, {"backwards": [True, False]}),
        (good, {"states": 1}),
    ):
        with raises(UsageError, "shape-mismatch", operation="recurrent"):
            run(numbers, **options)
