"""Scaled dot-product attention of three values, with a private or a public mask."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models.kinds.checks import held, need, only, real
from tfe_bench.models.kinds.kind import Kind, Mixes, Watch, one_axis
from tfe_bench.models.kinds.layer import Array, Layer, Node, Numbers, Options, Shape, Shapes
from tfe_bench.models.kinds.passes import Pass
from tfe_bench.models.kinds.planning import Planner
from tfe_bench.protocols.nn import attention
from tfe_bench.protocols.session.sharing import Shared

# Scores of a row may be this much further apart than on samples, which are taken four times.
_SPARE = 0.5
_DIGITS = "0123456789abcdef"


def packed(keep: Array) -> list[str]:
    """The option `keys` of truth values [queries, keys]."""
    return [f"{int(''.join('01'[int(v)] for v in row), 2):x}" for row in keep]


def _unpacked(options: Options, queries: int, keys: int) -> Array:
    """The truth values of it, and of the option `causal`."""
    rows = [f"{int(row, 16):0{keys}b}" for row in options["keys"]]
    keep = np.array([[c == "1" for c in row] for row in rows], bool)
    return keep & np.tri(queries, keys, dtype=np.bool_) if options["causal"] else keep


def _kept(options: Options, queries: int, keys: int) -> Array | None:
    """Which scores are computed; None: all."""
    if "keys" in options:
        return _unpacked(options, queries, keys)
    return np.tri(queries, keys, dtype=np.bool_) if options["causal"] else None


class Attend(Kind):
    """softmax(scale Q K^T) V of [..., n, depth], [..., m, depth] and [..., m, channels].

    A fourth input is a private mask of the keys, for all queries ([m]) or each ([n, m]).  The
    option `keys` is a public one: for each query the keys that it attends to, as bits of a number
    in hexadecimal, the last key the lowest.
    """

    op = "attend"
    heavy = True
    wide = True

    # ---- as data

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        held(weights)
        only({k: v for k, v in options.items() if k != "keys"}, "scale", "causal")
        need(len(given) in (3, 4), "queries, keys, values and maybe a mask", len(given))
        q, k, v = given[:3]
        fits = len(q) == len(k) == len(v) >= 2 and q[:-2] == k[:-2] == v[:-2]
        fits = fits and q[-1] == k[-1] and k[-2] == v[-2]
        need(fits, "[..., n, depth], [..., m, depth], [..., m, channels]", list(map(list, given)))
        most = attention.MOST_KEYS
        need(k[-2] <= most, f"{most} keys at most", k[-2])
        if len(given) == 4:
            masks = ((k[-2],), (1, k[-2]), (q[-2], k[-2]))
            need(given[3] in masks, f"a mask [{k[-2]}] of the keys, or for each query", given[3])
        scale, causal = options["scale"], options["causal"]
        need(real(scale) and 2**-16 <= scale <= 2**8, "a scale from 2^-16 to 2^8", scale)
        need(isinstance(causal, bool), "true or false for causal", causal)
        if "keys" in options:
            need(len(given) == 3, "a public mask or a private one", len(given))
            rows = options["keys"]
            fits = isinstance(rows, (list, tuple)) and len(rows) == q[-2]
            fits = fits and all(isinstance(r, str) and 0 < len(r) <= k[-2] // 4 + 1 for r in rows)
            fits = fits and all(c in _DIGITS for r in rows for c in r)
            need(fits and all(int(r, 16) >> k[-2] == 0 for r in rows), "keys of each query", rows)
            kept = _unpacked(options, q[-2], k[-2])
            need(bool(kept.any(1).all()), "a key for each query", rows)
        return (*q[:-1], v[-1])

    def positions(self, x: Layer, given: Sequence[Shape], axes: Sequence[int]) -> int:
        """Causal attention along the axis before the channels, which decoding does step by step."""
        if not x.options["causal"]:
            raise Mixes("attends to positions behind its own; causal attention does not")
        if len(axes) == 4:
            raise Mixes("has a private mask")
        axis = one_axis(axes)
        if axis != len(given[0]) - 1:
            raise Mixes("attends to something else than positions")
        return axis

    # ---- in the clear

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        q, k, v = values[:3]
        s = x.options["scale"] * (q @ np.swapaxes(k, -1, -2))
        keep = _kept(x.options, *s.shape[-2:])
        if keep is not None:
            least = np.where(keep, s, np.inf).min(-1)
            s = np.where(keep, s, -np.inf)
        else:
            least = s.min(-1)
        seen(f"{x.name}:spread", _SPARE * (s.max(-1) - least))
        if len(values) == 4:
            hidden = values[3].reshape(self._mask_shape(s.shape, values[3].shape)) < 0.5
            # (where all are hidden none is)
            s = np.where(hidden & ~hidden.all(-1, keepdims=True), -np.inf, s)
        e = np.exp(s - self._largest(s))
        return np.asarray(e @ v / e.sum(-1, keepdims=True))

    @staticmethod
    def _largest(s: Array) -> Array:
        """Of each row; 0 where a causal row has none that is not hidden."""
        top = s.max(-1, keepdims=True)
        return np.where(np.isfinite(top), top, 0.0)

    @staticmethod
    def _mask_shape(scores: Shape, mask: Shape) -> tuple[int, ...]:
        """That of a mask which broadcasts to scores, both with the batch."""
        queries = mask[1] if len(mask) == 3 else 1
        return (scores[0], *([1] * (len(scores) - 3)), queries, scores[-1])

    # ---- in fixed point

    def numbers(self, planner: Planner, x: Layer) -> Numbers:
        f, m = planner.of(x.inputs[2]), planner.magnitude(x.inputs[2])
        keys = planner.shapes[x.inputs[1]][-2]
        bits = max(f + 1 + m, 2)
        if bits > attention.most_bits(keys):
            planner.lost(x, f"weighs values up to {2.0**m:g}")
        spread = planner.bounds.get(f"{x.name}:spread", 0.0)
        if spread > self._spread(x, keys):
            planner.lost(x, f"has scores {spread:g} apart")
        return Numbers(f, 0, min(bits, 63))

    @staticmethod
    def _spread(x: Layer, keys: int) -> float:
        return attention.most_units(keys, len(x.inputs) == 4) * math.log(2)

    def check(self, node: Node) -> None:
        if node.numbers.fraction != node.scales[2]:
            raise UsageError("has other fractional bits than its values.")
        most = attention.most_bits(node.given[1][-2])
        if not 2 <= node.numbers.bits <= most:
            raise UsageError(f"takes values of 2 to {most} bits, not {node.numbers.bits}.")

    def limit(self, node: Node, given: list[int]) -> int | None:
        """Weights add up to 1, but for what they are rounded by."""
        return given[2] + (given[2] >> 8) + 16

    def compared(self, node: Node, given: list[int]) -> int:
        """Bits of a value."""
        return max(given[2].bit_length() + 1, 2)

    def watchable(self, node: Node, given: list[int] | None) -> bool:
        most = attention.most_bits(node.given[1][-2])
        return given is None or self.compared(node, given) <= most

    # ---- in private

    def reads(self, node: Node, given: int) -> int:
        if given == 3:
            return 64
        (*_, depth), (*_, keys, _) = node.given[:2]
        scale, bits = float(node.layer.options["scale"]), node.numbers.bits
        query, key, *_ = node.scales
        of_scores, of_values = attention.read_bits(query, key, depth, keys, bits, scale)
        return min(of_values if given == 2 else of_scores, 64)

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        return self._attended(p, node, values, causal=node.layer.options["causal"])

    def _attended(self, p: Pass, node: Node, values: Sequence[Shared], **more: Any) -> Shared:
        query, key, value = values[:3]
        mask: Any = None
        if "keys" in node.layer.options:
            mask = _unpacked(node.layer.options, node.given[0][-2], node.given[1][-2])
        if len(values) == 4:
            scores = (*p.ops.shape(query)[:-1], p.ops.shape(key)[-2])
            own = self._mask_shape(scores, p.ops.shape(values[3]))
            mask = p.ops.reshaped(values[3], own)
        return p.ops.call(
            attention.attention,
            query,
            key,
            value,
            scale=float(node.layer.options["scale"]),
            mask=mask,
            **more,
            bits=node.numbers.bits,
            profile=p.ops.setting.pooling,
            watch=p.ops.watch,
            to=node.wide,
        )
