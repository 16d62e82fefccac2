"""Functions that are 0 far below 0 and x far above: one module each, with a FUNCTION.

test_gated.py compares values, slopes and costs; test_widths.py has their rows of widths, and the
catalogue their entries of views and of seeded faults.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType

import numpy as np

from tests.protocols.entry import Entry
from tests.protocols.operands import Array, draw_below
from tests.protocols.seeded import Fault


@dataclass(frozen=True)
class Function:
    """A function under test.

    Attributes:
        module: module of its protocol, with its name and `slope`.
        rest: max(v, 0) - f(v): as a difference, since doubles do not hold all of 62 bits.
        slope: derivative in float64.
        ulps: its documented error.
        edges: fractional bits -> the ring elements other than 0 that it compares with.
        slope_edge: the outermost knot of its slope, as a real.
        widths: widths for 16 fractional bits at which the behavior changes.
        sites: sites of its protocol that its row of joint views tests; empty if it consists of
            other protocols, which have rows.
        slope_fitted: True if its slope is fitted by pieces, at a separate site.
        exact_beyond: True if it is max(x, 0) from the last of its edges on, and 0 at 0.
        faults: seeded faults by description.
    """

    module: ModuleType
    rest: Callable[[Array], Array]
    slope: Callable[[Array], Array]
    ulps: int
    edges: Callable[[int], Sequence[int]]
    slope_edge: int
    widths: tuple[int, ...]
    sites: tuple[str, ...] = ()
    slope_fitted: bool = True
    exact_beyond: bool = False
    faults: Mapping[str, Fault] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.module.__name__.rpartition(".")[2]

    @property
    def protocol(self) -> Callable[..., object]:
        function: Callable[..., object] = getattr(self.module, self.name)
        return function

    def value(self, x: Array, f: int) -> Array:
        """Return the exact values for ring elements, in ring units."""
        return np.asarray(np.maximum(x, 0) - self.rest(x * 2.0**-f) * 2.0**f)

    def error_of(self, got: Array, x: Array, f: int) -> Array:
        """Return the error of a result, in ring units: small numbers that doubles hold."""
        return np.asarray((got - np.maximum(x, 0)) + self.rest(x * 2.0**-f) * 2.0**f)

    def operands(self, width: int, f: int, rng: np.random.Generator) -> Array:
        """Return ring elements: the middle, the whole range, both sides of every comparison."""
        middle = rng.integers(-6 << f, 6 << f, 600)
        top = 1 << (width - 1)
        inside = middle[np.abs(middle) < top]
        return np.concatenate([draw_below(top, rng, self.edges(f)), inside])

    def entries(self) -> dict[str, Entry]:
        """Return the entries of the catalogue."""
        module, protocol = self.module, self.protocol
        faults = {f"{self.name}: {what}": fault for what, fault in self.faults.items()}
        value = Entry(
            lambda p, x, y: protocol(p, x, bits=12),
            self.sites,
            n=1,
            fractional_bits=8,
            faults=faults,
        )
        own = (f"{self.name}_slope",)
        slope = Entry(lambda p, x, y: module.slope(p, x, bits=25), own, n=1, fractional_bits=20)
        views = {self.name: value} if self.sites else {}
        return views | ({f"{self.name}_slope": slope} if self.slope_fitted else {})


FUNCTIONS: dict[str, Function] = {
    found.name: importlib.import_module(f"{__name__}.{found.name}").FUNCTION
    for found in pkgutil.iter_modules(__path__)
}
