"""m / sqrt(v) for adaptive optimizers: 6 bits of precision for hundreds of thousands of weights.

v = X 2^-VARIANCE_BITS with X = c 4^e and c in [1/4, 1): 1 / sqrt(v) = 2^20 2^-e / sqrt(c). As in
normalize.py, comparisons with powers of two, in two stages, select the shift that maps X to c and
the corresponding factor U = 2^(20 - e). Powers of four leave no square root of two, and require
half as many comparisons. Then follow a polynomial g of c, the product m U at the same time, and the
product of both.

The result is a step of an optimizer, so more precision costs more than it is worth: Dettmers et
al., ICLR 2022, store m and v themselves with 8 bits and learn as well. Zero requires no separate
comparison: v = 0 counts as about 2^-43, as if the optimizer's epsilon were EPSILON. Selection and
products are one kernel each (kernels/ops/adaptive_ops.cc).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from tfe_bench.errors import UsageError
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.functions import approximation, normalize, polynomial
from tfe_bench.protocols.functions.normalize_plan import Cut, Segment, Stage
from tfe_bench.protocols.order import extremes
from tfe_bench.protocols.ring import checks, masked, rotation
from tfe_bench.protocols.session import ops, sizes, slots, tensor_ops
from tfe_bench.protocols.session.cost import Cost, packed_bits
from tfe_bench.protocols.session.counting import CostParty, Private, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

RING = 64
VARIANCE_BITS = 40  # fractional bits of v
TOP = 46  # v < 2^(TOP - VARIANCE_BITS)
GROUP = 12  # binades that the first stage does not separate
_NORMAL = 22  # the first stage maps X to [2^(_NORMAL - GROUP), 2^_NORMAL)
# A value within 2^-_RESOLUTION below a cut may be classified as above it.
_RESOLUTION = 4
_UNITS = 9  # fractional bits of c
_ROOT_BITS = 10  # fractional bits of g
_FINE = 3  # fractional bits of U
_FACTOR_WIDTH = 26  # U < 2^23, with room for the lift to a larger ring
_ROOT_WIDTH = 14  # g < 4
_ERROR = Decimal("0.016")
RESULT_BITS = _FINE + _ROOT_BITS  # fractional bits beyond those of m
EPSILON = 3.0e-7  # v = 0 counts as EPSILON^2


@dataclass(frozen=True)
class _AdaptiveRootScheme:
    """Two stages, and the factor of U for each segment; all public."""

    stages: tuple[Stage, Stage]
    factors: tuple[tuple[int, ...], tuple[int, ...]]


def _make_variance_cut(power: int, top: int) -> Cut:
    """Return the cut [x < 2^power] for 0 <= x < 2^top."""
    drop = max(0, power - _RESOLUTION)
    return Cut(1 << power, drop, top - drop + 1)


@functools.cache
def _build_scheme() -> _AdaptiveRootScheme:
    tops = [TOP - GROUP * g for g in range(TOP // GROUP, -1, -1)]
    coarse = Stage(
        tuple(_make_variance_cut(t, TOP) for t in tops[:-1]),
        tuple(Segment(1, _NORMAL - t) for t in tops),
        2,
        _NORMAL + 2,
    )
    quads = [_NORMAL - 2 * q for q in range(GROUP // 2 - 1, -1, -1)]
    fine = Stage(
        tuple(_make_variance_cut(t, _NORMAL) for t in quads[:-1]),
        tuple(Segment(1, _NORMAL - t) for t in quads),
        1,
        _NORMAL + 2,
    )
    # The largest X has the factor 2^(20 + _FINE - TOP / 2) = 1.
    return _AdaptiveRootScheme(
        (coarse, fine),
        (
            tuple(1 << ((TOP - t) // 2) for t in tops),
            tuple(1 << ((_NORMAL - t) // 2) for t in quads),
        ),
    )


@functools.cache
def _fit_reciprocal_root() -> polynomial.FittedPolynomial:
    """Fit g(c) = 1 / sqrt(c) with _ROOT_BITS, in a ring with room for the lift."""
    low = (1 - Decimal(2) ** -_RESOLUTION) / 4 - Decimal(2) ** -_UNITS
    polynomial_fit = approximation.fit_approximation(
        approximation.decimal_rsqrt, low, 1 + Decimal(2) ** -(_UNITS - 1), _UNITS, _ERROR
    )
    # v = 0 results in c = 0.
    bits = polynomial_fit.center.bit_length() + 1
    return polynomial.fit_polynomial(
        polynomial_fit, _ROOT_BITS, bits=bits, out_bits=_ROOT_WIDTH, spare=0
    )


# ---- selection


def _select_variance_segment(
    party: Party,
    x: Shared,
    u: Shared | None,
    bits: MaskedBits,
    stage: Stage,
    factors: Sequence[int],
    drop: int,
) -> tuple[Shared, Shared]:
    """Return (x shifted by its segment / 2^drop, its factor times u), exchanged in small rings.

    Rounds: 1 online, 2 in total. Bits sent: D `_variance_field_widths` per cut and element, E1, E2
    those of the two rings.
    """
    width = stage.width - drop
    if isinstance(party, CostParty):
        n = x.shape.num_elements()
        dealt = sum(
            len(stage.cuts) * packed_bits(n, w)
            for w in _variance_field_widths(stage, u is not None)
        )
        exchanged = packed_bits(n, width) + packed_bits(n, _FACTOR_WIDTH)
        m = party.count_messages(
            Cost(dealt, exchanged, exchanged, rounds=1, with_dealing=2), x.shape, x, u, bits
        )
        return (
            Shared(m, None, None, x.dealer, 0, 1, width),
            Shared(m, None, None, x.dealer, 0, 1, _FACTOR_WIDTH),
        )
    widths = _variance_field_widths(stage, u is not None)
    s = party.site(
        "adaptive_select",
        stage,
        tuple(factors),
        drop,
        u is None,
        dealer=x.dealer,
        slots={
            0: slots.declare_dealt(*widths, times=len(stage.cuts)),
            1: slots.declare_exchanged(width),
            2: slots.declare_exchanged(_FACTOR_WIDTH),
        },
    )
    attributes = {
        **s.kernel_attributes(),
        "ring": x.ring_bits,
        "shifts": [segment.shift for segment in stage.segments],
        "factors": list(factors),
        "width": stage.width,
        "factor_width": _FACTOR_WIDTH,
        "multiply": u is not None,
    }
    empty = tf.zeros([0], tf.int64)
    y = f = None
    if s.is_dealer:
        message = ops.module().tfe_bench_select_deal(
            beta=bits.beta,
            l1=x.l1,
            l2=x.l2,
            u1=empty if u is None else u.l1,
            u2=empty if u is None else u.l2,
            **attributes,
        )
        s.send(message, s.e2, 0, run_ahead=True)
    else:
        y, f = ops.module().tfe_bench_select_share(
            masked_bits=bits.masked,
            m=x.m,
            part=x.l1 if s.is_e1 else x.l2,
            um=empty if u is None else u.m,
            upart=empty if u is None else u.l1 if s.is_e1 else u.l2,
            dealt=s.receive_dealt(sizes.tensor_size(x.m)),
            drop=drop,
            **attributes,
        )
    shape = tensor_ops.dynamic_shape(x.any)
    return (
        masked.exchange_masked(s, y, shape, 3, 1),
        masked.exchange_masked(s, f, shape, 4, 2),
    )


def _variance_field_widths(stage: Stage, multiply: bool) -> list[int]:
    widths = [max(stage.width, _FACTOR_WIDTH), stage.width]
    return [*widths, _FACTOR_WIDTH] if multiply else widths


# ---- products


def lifted_product(party: Party, x: Shared, y: Shared) -> Shared:
    """Compute x y over Z_2^64, exactly, for y of a small ring; the scales add up.

    Args:
        x: over Z_2^64.
        y: of Z_2^k with 3 <= k < 64 and |y| < 2^(k-2), of x's shape.

    As an integer y = P - lam + (1 - b) t 2^k. P and the bit b are public to the evaluators; lam =
    l1 + l2 - 2^k om and its top bit t are known to D, who deals lam_x lam and, mod 2^(64-k), om, t
    and lam_x t.
    Rounds: 1 online, 2 in total. Bits sent: D 64 + 3 (64 - k), E1, E2 64 per element each.
    Raises:
        UsageError: rings, shapes or dealers do not fit.
    """
    _check_product(x, y)
    k, scale = y.ring_bits, x.fractional_bits + y.fractional_bits
    if isinstance(party, CostParty):
        n = x.shape.num_elements()
        return party.count_exchange(
            x.shape, 64 * n + 3 * packed_bits(n, RING - k), x, y, scale=scale
        )
    s = party.site(
        "lifted_product",
        k,
        x.fractional_bits,
        y.fractional_bits,
        dealer=x.dealer,
        slots={0: slots.declare_dealt(RING, *[RING - k] * 3), 1: slots.declare_exchanged()},
    )
    attributes = {**s.kernel_attributes(), "ring": k}
    mask_number = 4
    product_share = None
    if s.is_dealer:
        message = ops.module().tfe_bench_lifted_product_deal(
            x1=x.l1, x2=x.l2, y1=y.l1, y2=y.l2, **attributes
        )
        s.send(message, s.e2, 0, run_ahead=True)
    else:
        product_share = ops.module().tfe_bench_lifted_product_share(
            x=x.m,
            xpart=x.l1 if s.is_e1 else x.l2,
            y=y.m,
            ypart=y.l1 if s.is_e1 else y.l2,
            dealt=s.receive_dealt(sizes.tensor_size(x.m)),
            mask=mask_number,
            **attributes,
        )
    return masked.exchange_masked(
        s,
        product_share,
        tensor_ops.dynamic_shape(x.any),
        mask_number,
        1,
        scale=scale,
        is_masked=True,
    )


def _check_product(x: Shared, y: Shared) -> None:
    for factor in (x, y):
        checks.check_private("lifted_product", factor)
    if x.limbs != 1 or x.ring_bits != RING or y.limbs != 1 or not 3 <= y.ring_bits < RING:
        raise UsageError(
            "lifted_product expects a factor of Z_2^64 and one of a smaller ring. "
            f"Received: {x!r} and {y!r}.",
            code="unsupported-ring",
            operation="lifted_product",
            received=f"{x!r} and {y!r}",
        )
    if x.dealer != y.dealer or not x.shape.is_compatible_with(y.shape):
        raise UsageError(
            "lifted_product expects factors of one shape and one dealer. Received: "
            f"{x!r} and {y!r}.",
            code="dealer-mismatch" if x.dealer != y.dealer else "shape-mismatch",
            operation="lifted_product",
            received=f"{x!r} and {y!r}",
        )


# ---- the update


def scale_by_root(party: Party, m: Shared, v: Shared, *, profile: str = "local") -> Shared:
    """Compute m / sqrt(v) elementwise over Z_2^64, with RESULT_BITS = 13 more fractional bits.

    Nothing is truncated here: the optimizer step's own truncation drops those bits too.

    Args:
        m: over Z_2^64; |m / sqrt(v)| 2^(bits of m + 13) < 2^63, and |m| < 2^(27 - bits of m) where
            v = 0.
        v: with VARIANCE_BITS fractional bits, 0 <= v < 64; v = 0 counts as EPSILON^2. Other values
            give garbage.
        profile: network profile; with "wan" each party is the dealer of a third of the elements if
            bandwidth is the bottleneck.

    Error: at most 2^-6 of the result, 2^-7 in the root mean square, 2^-9 in the mean.
    Rounds: 9 online, 10 in total.
    Raises:
        UsageError: m and v have other rings, scales, shapes or dealers; the profile is unknown.
    """
    for operand in (m, v):
        checks.check_private_64bit_tensor("update", operand)
    shape = m.shape.as_list()
    if m.dealer != v.dealer or shape != v.shape.as_list() or None in shape:
        raise UsageError(
            "scale_by_root expects m and v of one known shape and one dealer. Received: "
            f"{m!r} and {v!r}.",
            code="dealer-mismatch" if m.dealer != v.dealer else "shape-mismatch",
            operation="scale_by_root",
            received=f"{m!r} and {v!r}",
        )
    if v.fractional_bits != VARIANCE_BITS or not 0 <= m.fractional_bits <= 32:
        raise UsageError(
            f"scale_by_root expects v with {VARIANCE_BITS} fractional bits, and m with "
            f"at most 32. Received: {m!r} and {v!r}.",
            code="unsupported-scale",
            operation="scale_by_root",
            received=f"{m!r} and {v!r}",
        )
    flat = [a.map(lambda t: tensor_ops.reshape(t, [-1])) for a in (m, v)]
    if _is_rotation_worthwhile(int(flat[0].shape[0]), profile):
        y = rotation.compute_by_thirds(
            party, lambda m, v: [_scale_moments_by_root(party, m, v)], flat
        )[0]
    else:
        y = _scale_moments_by_root(party, *flat)
    return y.map(lambda a: tensor_ops.reshape(a, shape))


def _scale_moments_by_root(party: Party, m: Shared, v: Shared) -> Shared:
    scheme = _build_scheme()
    (coarse, fine), (first, second) = scheme.stages, scheme.factors
    x = replace(v, fractional_bits=0)
    bits = normalize.compare_with_cuts(party, x, coarse)
    x, u = _select_variance_segment(party, x, None, bits, coarse, first, 0)
    bits = normalize.compare_with_cuts(party, x, fine)
    c, u = _select_variance_segment(party, x, u, bits, fine, second, _NORMAL - _UNITS)
    g = _fit_reciprocal_root().evaluate(party, "adaptive_root", c)
    scaled = lifted_product(party, m, replace(u, fractional_bits=_FINE))
    return lifted_product(party, scaled, g)


def _is_rotation_worthwhile(n: int, profile: str) -> bool:
    extremes.choose_extreme_method("tree", 1, 1, profile)  # rejects an unknown profile
    if profile != "wan" or n < 3:
        return False
    cost = cost_of(_scale_moments_by_root, Private((n,)), Private((n,), VARIANCE_BITS))
    return rotation.is_worthwhile(cost, extremes.ROUND_BITS[profile])
