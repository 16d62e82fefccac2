"""Smooth activations by short Fourier series: off by up to 2^-10, for a quarter of the bytes."""

from __future__ import annotations

from dataclasses import replace

from tfe_bench.errors import UsageError
from tfe_bench.models.kinds import registry
from tfe_bench.models.kinds.checks import alone, need, only
from tfe_bench.models.kinds.kind import Kind, Watch
from tfe_bench.models.kinds.layer import Array, Layer, Node, Numbers, Options, Shape, Shapes
from tfe_bench.models.kinds.passes import Pass, brought
from tfe_bench.models.kinds.planning import Planner
from tfe_bench.protocols.nn import series
from tfe_bench.protocols.session.sharing import Shared


class Series(Kind):
    """An activation of series.BENDS, named as the kind that computes it exactly."""

    op = "series"
    pointwise = True

    @classmethod
    def of(cls, x: Layer) -> Layer:
        """The layer with a series for its activation, if there is one."""
        if x.op not in series.BENDS or x.options:
            return registry.find(x.op).in_series(x)
        return replace(x, op=cls.op, options={"function": x.op})

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        only(options, "function")
        function = options["function"]
        need(function in list(series.BENDS), f"a function of {', '.join(series.BENDS)}", function)
        return alone(given, weights)

    def label(self, x: Layer) -> str:
        return f"{x.options['function']}, series"

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        function = str(x.options["function"])
        return registry.find(function).plain(replace(x, op=function, options={}), values, seen)

    def approximated(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        return series.BENDS[str(x.options["function"])].at(values[0])

    # ---- in fixed point: `bits` are those of what comes in, at the scale of `taken`

    def taken(self, node: Node) -> int:
        """Fractional bits of what is bent: the value's own, or one less."""
        return node.numbers.fraction - series.more_bits(str(node.layer.options["function"]))

    def numbers(self, planner: Planner, x: Layer) -> Numbers:
        function = str(x.options["function"])
        f, m = planner.most(x)
        f = min(max(f, series.FEWEST_BITS), series.MOST_BITS)
        bits = planner.width(x, f, m)
        if bits > series.most_bits(function, f):
            planner.lost(x, f"takes values up to {2.0**m:g}")
        return Numbers(f + series.more_bits(function), 0, bits)

    def check(self, node: Node) -> None:
        f, bits = self.taken(node), node.numbers.bits
        if not series.FEWEST_BITS <= f <= series.MOST_BITS:
            raise UsageError(
                f"takes {f} fractional bits, not {series.FEWEST_BITS} to {series.MOST_BITS}."
            )
        most = series.most_bits(str(node.layer.options["function"]), f)
        if not 2 <= bits <= most:
            raise UsageError(f"takes values of {bits} bits, not 2 to {most}.")

    def limit(self, node: Node, given: list[int]) -> int | None:
        one = 1 << node.numbers.fraction
        if series.BENDS[str(node.layer.options["function"])].ends is not None:
            return one + (one >> 8)
        return node.moved(given)[0] + one

    def compared(self, node: Node, given: list[int]) -> int:
        return self._bent(node, given[0]).bit_length() + 1

    def _bent(self, node: Node, limit: int) -> int:
        """A limit of what comes in, at the scale of `taken`."""
        shift = self.taken(node) - node.scales[0]
        return limit << shift if shift >= 0 else (limit >> -shift) + 1

    def watchable(self, node: Node, given: list[int] | None) -> bool:
        most = series.most_bits(str(node.layer.options["function"]), self.taken(node))
        return given is None or self.compared(node, given) <= most

    # ---- in private

    def reads(self, node: Node, given: int) -> int:
        f, function = self.taken(node), str(node.layer.options["function"])
        if node.scales[0] > f:
            return 64  # it is truncated first
        return series.read_bits(function, f, self._below(node))

    def _below(self, node: Node) -> int:
        """A bound |x| < below on what is bent, at its scale."""
        planned = 1 << (node.numbers.bits - 1)
        return min(self._bent(node, node.limits[0]) + 1, planned) if node.limits else planned

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        x, function = (
            brought(p.ops, values[0], self.taken(node)),
            str(node.layer.options["function"]),
        )
        return p.ops.call(
            series.bent, x, function, node.numbers.bits, None, node.wide, self._below(node)
        )
