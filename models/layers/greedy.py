"""The place of the largest logit as a row with one 1, which is the next token: greedy or drawn."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models.kinds.checks import need, whole
from tfe_bench.models.kinds.kind import Watch
from tfe_bench.models.kinds.layer import Array, Layer, Node, Numbers, Options, Shape, Shapes
from tfe_bench.models.kinds.passes import Pass
from tfe_bench.models.layers.remembered import Stepped
from tfe_bench.models.layers.sum import Sum
from tfe_bench.protocols.nn import linear
from tfe_bench.protocols.order import gumbel, winner
from tfe_bench.protocols.ring.products import Product, truncated
from tfe_bench.protocols.session.sharing import Shared

# Of Pass.public: what the dealer adds to logits, [rows at least, channels] at their scale.
NOISE: Final = "noise"
# Fractional bits of logits up to 2^_USUAL, and of noise of a temperature 1; smaller ones have more,
# and no more bits in all than are compared at once.
_FRACTION: Final = 12
_USUAL: Final = 4
_MOST_BITS: Final = 40
_MOST_DROPPED: Final = 48


class Greedy(Sum, Stepped):
    """A sum that is opened in a small ring Z_2^k, and the place of its largest channel.

    Its numbers: `fraction` is of the row, `scale` of the sum before, `bits` is k.  Its options are
    those of the sum, `fraction`, that of the logits, and `noisy`: whether the dealer adds noise.
    """

    op = "greedy"

    @classmethod
    def of(
        cls, x: Layer, numbers: Numbers, fraction: int, noise: float = 0.0
    ) -> tuple[Layer, Numbers]:
        """The choice among the values of a sum, and its fixed point.

        Args:
            numbers: of the sum, |v| < 2^(bits - 1) ring units.
            fraction: of the row.
            noise: the largest that the dealer adds to a logit; 0 for none.

        Raises:
            UsageError: the sum leaves no room to compare its values.
        """
        magnitude = numbers.bits - 1 - numbers.fraction
        fine = _FRACTION + max(0, _USUAL - magnitude)
        if noise:
            magnitude = math.ceil(math.log2(2.0**magnitude + noise))
            fine = max(fine, _FRACTION + math.ceil(math.log2(gumbel.LARGEST / noise)))
        # (differences fit, and what the watch extends)
        own = min(fine, numbers.scale - 1, _MOST_BITS - 2 - magnitude)
        bits = own + magnitude + 2
        drop = numbers.scale - own
        if not numbers.bits or own < 1 or drop > _MOST_DROPPED or drop + bits > 64:
            raise UsageError(
                f"The logits of {x.name!r} do not fit a choice of the largest. Received: values "
                f"up to 2^{magnitude} with {numbers.scale} fractional bits. Convert the model "
                "anew, with samples."
            )
        options = {**x.options, "fraction": own, "noisy": noise > 0}
        layer = replace(x, op=cls.op, options=options)
        reach = numbers.reach
        if reach and noise:
            more = math.ceil(noise * 2.0**numbers.scale)
            reach = ((1 << (reach - 1)) + more).bit_length() + 1
        return layer, Numbers(fraction, numbers.scale, max(bits, 3), reach=reach)

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        rest = {k: v for k, v in options.items() if k not in ("fraction", "noisy")}
        need(type(options.get("noisy")) is bool, "true or false for noisy", options.get("noisy"))
        need(whole(options.get("fraction")), "fractional bits of logits", options.get("fraction"))
        need(options.get("activation") == "none", "no activation", options.get("activation"))
        return super().shape(given, rest, weights)

    def label(self, x: Layer) -> str:
        return "largest of " + super().label(x)

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        logits = super().plain(x, values, seen)
        return np.asarray(np.eye(logits.shape[-1])[logits.argmax(-1)])

    def limit(self, node: Node, given: list[int]) -> int | None:
        return 1 << node.numbers.fraction

    def watchable(self, node: Node, given: list[int] | None) -> bool:
        return True

    def drop(self, node: Node) -> int:
        return node.numbers.scale - int(node.layer.options["fraction"])

    def reads(self, node: Node, given: int) -> int:
        least = self.drop(node) + node.numbers.bits
        return self.whole(node, least) if node.watched else least

    def _exchanged(
        self, p: Pass, node: Node, products: list[Product], addend: Shared | None
    ) -> Shared:
        ops, numbers = p.ops, node.numbers
        drop = self.drop(node)
        least, more = drop + numbers.bits, None
        whole = self.whole(node, least) if ops.watch is not None else least
        if node.layer.options["noisy"] and ops.party.index == products[0].x.dealer:
            rows = ops.shape(products[0].x)[0]
            more = p.public[NOISE][:rows]
        small, shares = ops.call(
            truncated, "truncated_sum", products, addend, drop, numbers.bits, whole, more
        )
        if ops.watch is not None:  # (what is chosen from need not wait for that)
            stays = numbers.bits
            ops.call(linear.watched_lift, ops.watch, small, shares, whole - drop, stays)
        row = ops.call(winner.one_hot, small, ops.setting.pooling)
        return ops.shifted(replace(row, fractional_bits=0), numbers.fraction)
