"""Scaled dot-product attention of three values, with a private or a public mask."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Array, Options, Shape, Shapes
from tfe_bench.protocols.nn import attention
from tfe_bench.protocols.session.sharing import Shared

# The spread of a row's scores may exceed that of samples by this factor, which applies four times.
_SPARE = 0.5
_DIGITS = "0123456789abcdef"


def pack_attention_mask(keep: Array) -> list[str]:
    """Return the option `keys` for truth values [queries, keys]."""
    return [f"{int(''.join('01'[int(v)] for v in row), 2):x}" for row in keep]


def _unpack_attention_mask(options: Options, queries: int, keys: int) -> Array:
    """Return the truth values of the options `keys` and `causal`."""
    rows = [f"{int(row, 16):0{keys}b}" for row in options["keys"]]
    keep = np.array([[c == "1" for c in row] for row in rows], bool)
    return keep & np.tri(queries, keys, dtype=np.bool_) if options["causal"] else keep


def _build_attention_mask(options: Options, queries: int, keys: int) -> Array | None:
    """Return the mask of the scores to compute; None: all."""
    if "keys" in options:
        return _unpack_attention_mask(options, queries, keys)
    return np.tri(queries, keys, dtype=np.bool_) if options["causal"] else None


class DotProductAttention(L.Kind):
    """softmax(scale Q K^T) V of [..., n, depth], [..., m, depth] and [..., m, channels].

    A fourth input is a private mask of the keys, for all queries ([m]) or each ([n, m]). The option
    `keys` is a public mask: for each query the keys that it attends to, as bits of a hexadecimal
    number, the last key in the lowest bit.
    """

    op = "attend"
    is_memory_heavy = True
    uses_wide_words = True

    # ---- model description

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        L.check_weights(weights)
        L.check_options({k: v for k, v in options.items() if k != "keys"}, "scale", "causal")
        L.check_value(
            len(input_shapes) in (3, 4), "queries, keys, values and maybe a mask", len(input_shapes)
        )
        q, k, v = input_shapes[:3]
        is_valid = len(q) == len(k) == len(v) >= 2 and q[:-2] == k[:-2] == v[:-2]
        is_valid = is_valid and q[-1] == k[-1] and k[-2] == v[-2]
        L.check_value(
            is_valid,
            "[..., n, depth], [..., m, depth], [..., m, channels]",
            list(map(list, input_shapes)),
        )
        max_keys = attention.MAX_KEYS
        L.check_value(k[-2] <= max_keys, f"{max_keys} keys at most", k[-2])
        if len(input_shapes) == 4:
            masks = ((k[-2],), (1, k[-2]), (q[-2], k[-2]))
            L.check_value(
                input_shapes[3] in masks,
                f"a mask [{k[-2]}] of the keys, or for each query",
                input_shapes[3],
            )
        scale, causal = options["scale"], options["causal"]
        L.check_value(
            L.is_real(scale) and 2**-16 <= scale <= 2**8, "a scale from 2^-16 to 2^8", scale
        )
        L.check_value(isinstance(causal, bool), "true or false for causal", causal)
        if "keys" in options:
            L.check_value(
                len(input_shapes) == 3, "a public mask or a private one", len(input_shapes)
            )
            rows = options["keys"]
            is_valid = isinstance(rows, (list, tuple)) and len(rows) == q[-2]
            is_valid = is_valid and all(
                isinstance(r, str) and 0 < len(r) <= k[-2] // 4 + 1 for r in rows
            )
            is_valid = is_valid and all(c in _DIGITS for r in rows for c in r)
            L.check_value(
                is_valid and all(int(r, 16) >> k[-2] == 0 for r in rows), "keys of each query", rows
            )
            mask = _unpack_attention_mask(options, q[-2], k[-2])
            L.check_value(bool(mask.any(1).all()), "a key for each query", rows)
        return (*q[:-1], v[-1])

    def find_position_axis(
        self, x: L.LayerSpec, input_shapes: Sequence[Shape], axes: Sequence[int]
    ) -> int:
        """Return the axis before the channels, for causal attention, which decoding supports."""
        if not x.options["causal"]:
            raise L.NotPositionwise(
                "attends to positions behind its own; causal attention does not"
            )
        if len(axes) == 4:
            raise L.NotPositionwise("has a private mask")
        axis = L.get_common_axis(axes)
        if axis != len(input_shapes[0]) - 1:
            raise L.NotPositionwise("attends along an axis other than positions")
        return axis

    # ---- plaintext

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        q, k, v = values[:3]
        s = x.options["scale"] * (q @ np.swapaxes(k, -1, -2))
        keep = _build_attention_mask(x.options, *s.shape[-2:])
        if keep is not None:
            least = np.where(keep, s, np.inf).min(-1)
            s = np.where(keep, s, -np.inf)
        else:
            least = s.min(-1)
        observe(f"{x.name}:spread", _SPARE * (s.max(-1) - least))
        if len(values) == 4:
            hidden = values[3].reshape(self._mask_shape(s.shape, values[3].shape)) < 0.5
            # (if all keys are masked, none is)
            s = np.where(hidden & ~hidden.all(-1, keepdims=True), -np.inf, s)
        e = np.exp(s - self._row_maximum(s))
        return np.asarray(e @ v / e.sum(-1, keepdims=True))

    @staticmethod
    def _row_maximum(s: Array) -> Array:
        """Return the maximum of each row; 0 where a causal row has no visible score."""
        top = s.max(-1, keepdims=True)
        return np.where(np.isfinite(top), top, 0.0)

    @staticmethod
    def _mask_shape(scores: Shape, mask: Shape) -> tuple[int, ...]:
        """Return the shape of a mask that broadcasts to scores, both with the batch."""
        queries = mask[1] if len(mask) == 3 else 1
        return (scores[0], *([1] * (len(scores) - 3)), queries, scores[-1])

    # ---- fixed point

    def plan_format(self, planner: L.LayerFormatPlanner, x: L.LayerSpec) -> L.FixedPointFormat:
        f, m = planner.get_fractional_bits(x.inputs[2]), planner.get_magnitude(x.inputs[2])
        keys = planner.shapes[x.inputs[1]][-2]
        bits = max(f + 1 + m, 2)
        if bits > attention.max_attention_value_bits(keys):
            planner.report_unfit(x, f"weighs values up to {2.0**m:g}")
        spread = planner.bounds.get(f"{x.name}:spread", 0.0)
        if spread > self._largest_spread(x, keys):
            planner.report_unfit(x, f"has scores {spread:g} apart")
        return L.FixedPointFormat(f, 0, min(bits, 63))

    @staticmethod
    def _largest_spread(x: L.LayerSpec, keys: int) -> float:
        return attention.max_attention_score_spread(keys, len(x.inputs) == 4) * math.log(2)

    def check_format(self, node: L.PlacedLayer) -> None:
        if node.numbers.fraction != node.input_scales[2]:
            raise UsageError(
                "has other fractional bits than its values.", code="invalid-fixed-point-format"
            )
        max_bits = attention.max_attention_value_bits(node.input_shapes[1][-2])
        if not 2 <= node.numbers.bits <= max_bits:
            raise UsageError(
                f"supports values of 2 to {max_bits} bits. Received: {node.numbers.bits}.",
                code="invalid-fixed-point-format",
            )

    def bound_output(self, node: L.PlacedLayer, input_limits: list[int]) -> int | None:
        """Bound a mean of the values: weights add up to 1, except for their rounding."""
        return input_limits[2] + (input_limits[2] >> 8) + 16

    def bound_comparison_bits(self, node: L.PlacedLayer, input_limits: list[int]) -> int:
        """Return the bits of a value."""
        return max(input_limits[2].bit_length() + 1, 2)

    def can_check_range(self, node: L.PlacedLayer, input_limits: list[int] | None) -> bool:
        max_bits = attention.max_attention_value_bits(node.input_shapes[1][-2])
        return input_limits is None or self.bound_comparison_bits(node, input_limits) <= max_bits

    # ---- private inference

    def count_input_bits(self, node: L.PlacedLayer, input_index: int) -> int:
        if input_index == 3:
            return 64
        (*_, depth), (*_, keys, _) = node.input_shapes[:2]
        scale, bits = float(node.layer.options["scale"]), node.numbers.bits
        query, key, *_ = node.input_scales
        of_scores, of_values = attention.attention_read_bits(query, key, depth, keys, bits, scale)
        return min(of_values if input_index == 2 else of_scores, 64)

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        return self._run_attention(p, node, values, causal=node.layer.options["causal"])

    def _run_attention(
        self, p: L.ForwardContext, node: L.PlacedLayer, values: Sequence[Shared], **more: Any
    ) -> Shared:
        query, key, value = values[:3]
        mask: Any = None
        if "keys" in node.layer.options:
            mask = _unpack_attention_mask(
                node.layer.options, node.input_shapes[0][-2], node.input_shapes[1][-2]
            )
        if len(values) == 4:
            scores = (*p.ops.get_shape(query)[:-1], p.ops.get_shape(key)[-2])
            mask_shape = self._mask_shape(scores, p.ops.get_shape(values[3]))
            mask = p.ops.reshape_value(values[3], mask_shape)
        return p.ops.run_protocol(
            attention.attention,
            query,
            key,
            value,
            scale=float(node.layer.options["scale"]),
            mask=mask,
            **more,
            bits=node.numbers.bits,
            profile=p.ops.setting.pooling_profile,
            monitor=p.ops.range_check,
            to=node.used_bits,
        )
