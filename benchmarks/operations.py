"""The catalogue of private operations: what each is, on what, and how right it must be.

The client makes the inputs and checks the result against float64; the workers build
the graph.  Only `run` touches TensorFlow, so a client needs none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError, did_you_mean

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]

FRACTIONAL_BITS = 16
ULP = 2.0**-FRACTIONAL_BITS


@dataclass(frozen=True)
class Operation:
    """One private operation.

    Attributes:
        name: by which commands and records know it.
        about: one line.
        size: of the table that `ops` prints; the shape of the first input.
        inputs: from a shape and a generator, the real-valued private inputs by name.
        run: builds the graph: (party, shares by name, options) -> the private result.
        reference: the exact result of the inputs.
        tolerance: largest error allowed, element by element, from inputs and exact result.
        options: that `run` understands, with their defaults.
        variant: of the protocol, for the record.
        stepwise: `run` makes graph calls itself (sorting); else it is traced as one graph.
    """

    name: str
    about: str
    size: tuple[int, ...]
    inputs: Callable[[tuple[int, ...], np.random.Generator], dict[str, Array]]
    run: Callable[[Any, Mapping[str, Any], Mapping[str, Any]], Any]
    reference: Callable[[Arrays, Mapping[str, Any]], Array]
    tolerance: Callable[[Arrays, Array], Array]
    options: Mapping[str, Any]
    variant: str
    stepwise: bool = False


OPERATIONS: dict[str, Operation] = {}


def _register(**fields: Any) -> None:
    fields.setdefault("options", {})
    operation = Operation(**fields)
    OPERATIONS[operation.name] = operation


def find(name: str) -> Operation:
    """The operation of a name.

    Raises:
        UsageError: there is none.
    """
    if name not in OPERATIONS:
        raise UsageError(
            f"Unknown operation {name!r}.{did_you_mean(name, OPERATIONS)} Known: "
            f"{', '.join(sorted(OPERATIONS))}."
        )
    return OPERATIONS[name]


def no_data() -> np.random.Generator:
    """A generator for where only names and shapes of inputs are asked for."""
    return np.random.default_rng(0)


def _uniform(low: float, high: float, *names: str) -> Any:
    def inputs(shape: tuple[int, ...], rng: np.random.Generator) -> dict[str, Array]:
        return {name: rng.uniform(low, high, shape) for name in names or ("x",)}

    return inputs


def _ulps(count: float) -> Any:
    return lambda inputs, exact: np.full(np.shape(exact), count * ULP)


# ---- comparison and selection


def _relu(party: Any, x: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    from tfe_bench.protocols.relu import relu

    return relu(party, x["x"])


_register(
    name="relu",
    about="max(x, 0), |x| < 2^14",
    size=(1 << 20,),
    inputs=_uniform(-100, 100),
    run=_relu,
    reference=lambda x, _: np.maximum(x["x"], 0),
    tolerance=_ulps(0.5),
    variant="LUT-msb 31 bits, injection",
)


def _max(party: Any, x: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    from tfe_bench.protocols.extremes import reduce_max

    return reduce_max(party, x["x"], axis=-1, method=options["method"], profile=options["profile"])


_register(
    name="max",
    about="largest of each row",
    size=(1 << 20, 4),
    inputs=_uniform(-1e6, 1e6),
    run=_max,
    reference=lambda x, _: np.max(x["x"], axis=-1),
    tolerance=_ulps(0.5),
    options={"method": "auto", "profile": "local"},
    variant="LUT-msb 64 bits, injection",
)
