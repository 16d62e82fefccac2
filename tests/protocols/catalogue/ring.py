"""Protocols of protocols/ring and protocols/session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.protocols import seeded
from tests.protocols.entry import (
    LOOSE,
    SIDE,
    SMALL,
    WORDS,
    Entry,
    K,
    reshape_shares,
    shrink_ring,
    sign_bits,
)
from tests.protocols.seeded import drop_mask, merge_masks
from tfe_bench.protocols.nn import linear, relu
from tfe_bench.protocols.ring import (
    arithmetic,
    backward,
    compare,
    conv,
    convert,
    logic,
    products,
    range_check,
    reductions,
    refresh,
    relational,
    rotation,
    rss,
    small_ring,
    truncation,
    wide_arithmetic,
)
from tfe_bench.protocols.session import io
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared


def owned_inputs(party: Party, x: Shared, y: Shared) -> Any:
    import tensorflow as tf

    known = tf.constant([5, -7, 0], tf.int64)
    return [io.share_input(party, p, known if party.index == p else None, (3,)) for p in range(3)]


def share_owned(owner: int) -> Callable[..., Any]:
    def protocol(party: Party, x: Shared, y: Shared, plain: Any) -> Any:
        return io.share_input(party, owner, plain if party.index == owner else None, (WORDS,))

    return protocol


def open_product(party: Party, x: Shared, y: Shared) -> Any:
    """Open a product for each reader, in the whole ring and in a small one."""
    z = arithmetic.mul(party, x, y)
    values = [z, small_ring.reduce_ring(z, 8)]
    return [io.reveal(party, v, to) for v in values for to in (None, 0, 1, 2)]


def multiply_narrow(party: Party, x: Shared, y: Shared, plain: Any) -> Any:
    left, right = (reshape_shares(a, SIDE, -1) for a in (x, y))
    return arithmetic.matmul(party, left.map(lambda a: a[:, :2]), right.map(lambda a: a[:2]))


def convolve_images(party: Party, x: Shared, y: Shared) -> Any:
    image, kernel = reshape_shares(x, 1, 2, 2, 1), reshape_shares(y, 2, 2, 1, 1)
    return conv.conv2d(party, image, kernel), conv.depthwise_conv2d(party, image, kernel)


def truncated_product(party: Party, x: Shared, y: Shared, ring_bits: int = SMALL) -> Shared:
    """Compute a product with bias, truncated to a small ring."""
    bias = arithmetic.add(x, y)
    elementwise = products.sum_elementwise_products
    return relu.truncated_product(party, x, y, 16, ring_bits, elementwise, bias)


def sum_products(party: Party, x: Shared, y: Shared, ring_bits: int = SMALL) -> Any:
    """Compute two products and an addend, exchanged once: in the ring, and in a small one."""
    terms = [products.BilinearShareProduct(a, y, products.sum_elementwise_products) for a in (x, y)]
    addend = arithmetic.add(x, y)
    z = products.exchange_sum(party, "product_sum", terms)
    return arithmetic.add(z, addend), products.exchange_truncated_sum(
        party, "truncated_sum", terms, addend, 16, ring_bits
    )[0]


def noisy_product(party: Party, x: Shared, y: Shared) -> Any:
    """Compute a product with the dealer's addend."""
    import tensorflow as tf

    own = tf.constant([5, -7, 1 << 16], tf.int64) if party.index == x.dealer else None
    terms = [products.BilinearShareProduct(x, y, products.sum_elementwise_products)]
    return products.exchange_truncated_sum(party, "truncated_sum", terms, None, 16, SMALL, 0, own)[
        0
    ]


def checked_relu(
    party: Party, x: Shared, y: Shared, samples: int, ring_bits: int, width: int, read_bits: int
) -> Any:
    """Compute a ReLU of a sum, and a flag for each sample with values that left their range."""
    watch = range_check.RangeMonitor(party, samples, x.dealer)
    product = products.BilinearShareProduct(
        reshape_shares(x, samples, -1),
        reshape_shares(y, samples, -1),
        products.sum_elementwise_products,
    )
    small, u = products.exchange_truncated_sum(
        party, "truncated_sum", [product], None, 16, ring_bits, width
    )
    beside = linear.monitored_lift(party, watch, small, u, width - 16, ring_bits, read_bits)
    if samples == 1:
        linear.monitor_range(party, watch, x, 40)
    return relu.relu(party, beside), watch.compute_flag()


def and_signs(party: Party, x: Shared, y: Shared, bits: int = K, exchanges: int = 1) -> Any:
    signs = [sign_bits(party, c, bits, exchanges) for c in (x, y)]
    return convert.mask_bits(party, logic.and_bits(party, [*signs, logic.invert_bits(signs[0])]))


def share_and_inject_bits(party: Party, x: Shared, y: Shared, plain: Any) -> Any:
    bits = sign_bits(party, x, 64, None)
    return convert.b2a(party, bits), convert.inject(party, bits, y)


def inject_extended(party: Party, x: Shared, y: Shared, plain: Any) -> Any:
    """Multiply a small ring's value by a bit, in the whole ring: three packed wraps in addition."""
    bits, small = sign_bits(party, x, 64, None), shrink_ring(party, y, LOOSE)
    return [
        convert.inject(party, bits, small, negated=negated, extend_ring=True)
        for negated in (False, True)
    ]


def square_for_dealers(
    convert_dealer: Callable[..., Shared], with_sign: bool
) -> Callable[..., Any]:
    """Square shares for the two other dealers; multiply by the value's sign if wanted."""

    def protocol(party: Party, x: Shared, y: Shared) -> Any:
        others = [convert_dealer(party, x, (x.dealer + turn) % 3) for turn in (1, 2)]
        return [
            convert.inject(party, sign_bits(party, a), arithmetic.mul(party, a, a))
            if with_sign
            else arithmetic.mul(party, a, a)
            for a in others
        ]

    return protocol


def change_dealer(party: Party, x: Shared, y: Shared, plain: Any) -> Any:
    """Return shares for another dealer: its lambda is the masked value, and the reverse."""
    return [
        relu.relu(party, rotation.relabel_dealer(party, x, (x.dealer + turn) % 3))
        for turn in (1, 2)
    ]


def reuse_shares(party: Party, x: Shared, y: Shared) -> Any:
    """Use the same shares in two graph calls, like a model's weights in two jobs."""
    times = party.cached_function("kept", lambda: lambda a, b: arithmetic.mul(party, a, b))
    return [times(x, y) for _ in range(2)]


ENTRIES: dict[str, Entry] = {
    "input": Entry(
        owned_inputs,
        ("input",),
        counted=False,
        faults={"an input without its mask": drop_mask("input", "is_e1")},
    ),
    **{f"input_by_{owner}": Entry(None, many=share_owned(owner)) for owner in range(3)},
    "reveal": Entry(open_product, ("reveal",), publishes=True),
    "mul": Entry(
        arithmetic.mul,
        ("mul",),
        scalable=True,
        many=lambda p, x, y, _: arithmetic.mul(p, x, y),
        faults={"mul exchanges under the dealt mask": merge_masks("mul", {1: 0})},
    ),
    "matmul": Entry(
        lambda p, x, y: arithmetic.matmul(p, reshape_shares(x, 2, 2), reshape_shares(y, 2, 2)),
        ("matmul",),
        n=4,
        many=multiply_narrow,
    ),
    "square": Entry(lambda p, x, y: reductions.square(p, x), ("square",)),
    "rss_mul": Entry(
        rss.mul_replicated,
        ("rss_mul",),
        scalable=True,
        many=lambda p, x, y, _: rss.mul_replicated(p, x, y),
        faults={"rss_mul without a sharing of zero": seeded.zero_masks("rss_mul")},
    ),
    "conv": Entry(convolve_images, ("conv2d", "depthwise_conv2d"), n=4),
    "truncate_safe": Entry(
        lambda p, x, y: truncation.truncate(p, x, 13),
        ("truncate_safe",),
        scalable=True,
        many=lambda p, x, y, _: truncation.truncate(p, x, 16),
    ),
    "truncate_safe_by_16": Entry(
        lambda p, x, y: truncation.truncate(p, x, 16),
        ("truncate_safe",),
        faults={
            "the wrap of a truncation shares a mask": seeded.change_message(
                "truncate_safe", 0, "is_dealer", seeded.wrap_under_the_mask_of_the_shifted_word
            )
        },
    ),
    "truncate_probable": Entry(
        lambda p, x, y: truncation.truncate(p, x, 13, "probable"),
        ("truncate_probable",),
        many=lambda p, x, y, _: truncation.truncate(p, x, 16, "probable"),
    ),
    "truncate_exact": Entry(
        lambda p, x, y: io.reveal(p, truncation.truncate(p, x, 5, "exact")),
        ("truncate_safe", "b2a"),
        publishes=True,
        many=lambda p, x, y, _: truncation.truncate(p, x, 16, "exact"),
    ),
    "truncate_reduce": Entry(
        lambda p, x, y: shrink_ring(p, x),
        ("truncate_reduce",),
        scalable=True,
        many=lambda p, x, y, _: shrink_ring(p, x, LOOSE),
    ),
    "truncated_product": Entry(
        truncated_product,
        ("truncated_product",),
        scalable=True,
        many=lambda p, x, y, _: truncated_product(p, x, y, LOOSE),
    ),
    "sums": Entry(
        sum_products,
        ("product_sum", "truncated_sum"),
        scalable=True,
        many=lambda p, x, y, _: sum_products(p, x, y, LOOSE),
        faults={
            "the dealer of product_sum says the masks' product": drop_mask(
                "product_sum", "is_dealer"
            ),
            "truncated_sum exchanges under the dealt mask": merge_masks("truncated_sum", {1: 0}),
        },
    ),
    "noisy": Entry(
        noisy_product,
        ("truncated_sum",),
        faults={
            "a sum with the dealer's noise leaves under the dealt mask": merge_masks(
                "truncated_sum", {1: 0}
            )
        },
    ),
    "watched": Entry(
        lambda p, x, y: checked_relu(p, x, y, 1, SMALL, 40, SMALL - 1),
        ("watch", "watch_zero", "watch_flag", "truncated_sum", "extend_small"),
        n=2,
        many=lambda p, x, y, _: checked_relu(p, x, y, WORDS, LOOSE, 64, LOOSE - 8),
        faults={
            "a flag of ranges without its mask": drop_mask("watch_flag", "is_e1"),
            "wraps of what is not lifted share a mask": seeded.change_message(
                "extend_small", 0, "is_dealer", seeded.second_field_under_the_first_mask(6)
            ),
        },
    ),
    "in_range": Entry(lambda p, x, y: range_check.in_range(p, x, K), ("all_of",), n=1),
    "wide_mul": Entry(wide_arithmetic.mul, ("wide_mul",), limbs=2, scalable=True),
    "wide_truncate_safe": Entry(
        lambda p, x, y: wide_arithmetic.truncate(p, x, 13, "safe"),
        ("wide_truncate_safe",),
        limbs=2,
        scalable=True,
        faults={
            "the wrap of a wide truncation shares a mask": merge_masks("wide_truncate_safe", {1: 0})
        },
    ),
    "wide_truncate_probable": Entry(
        lambda p, x, y: wide_arithmetic.truncate(p, x, 13, "probable"),
        ("wide_truncate_probable",),
        limbs=2,
    ),
    "msb": Entry(
        lambda p, x, y: sign_bits(p, x, 16, 3),
        ("msb", "mask_bits"),
        scalable=True,
        many=lambda p, x, y, _: compare.msb(p, x, 31, 2),
        faults={
            "mask_bits without E1's mask": drop_mask("mask_bits", "is_e1"),
            "levels of a comparison share a mask": seeded.change_message(
                "msb", 2, "is_e1", seeded.under_the_mask_of_the_level_before
            ),
        },
    ),
    "msb_top": Entry(
        lambda p, x, y: convert.mask_bits(p, compare.msb(p, x, 9, 2, absorb=False)), ("msb",)
    ),
    "reveal_bits": Entry(
        lambda p, x, y: io.reveal_bits(p, compare.msb(p, x, 9, 2)),
        ("reveal_bits",),
        publishes=True,
        scalable=True,
        faults={"reveal_bits sends D the shares as they are": seeded.zero_masks("reveal_bits")},
    ),
    "b2a": Entry(
        lambda p, x, y: convert.b2a(p, sign_bits(p, x)),
        ("b2a",),
        scalable=True,
        faults={"b2a exchanges under the dealt mask": merge_masks("b2a", {1: 0})},
    ),
    "inject": Entry(
        lambda p, x, y: convert.inject(p, sign_bits(p, x), y),
        ("inject",),
        scalable=True,
        many=share_and_inject_bits,
        faults={"an injection leaves under a dealt mask": seeded.leaves_under_a_dealt_mask},
    ),
    "inject_wide": Entry(
        lambda p, x, y: convert.inject(p, sign_bits(p, x), convert.extend_to_wide(p, y, 1)),
        ("extend", "inject"),
        n=1,
        many=lambda p, x, y, _: convert.extend_to_wide(p, x, 4),
    ),
    "inject_small": Entry(
        lambda p, x, y: convert.inject(p, sign_bits(p, x), shrink_ring(p, y), extend_ring=True),
        ("inject",),
        scalable=True,
        many=inject_extended,
    ),
    "inject_truncated": Entry(
        lambda p, x, y: backward.inject_truncated(p, sign_bits(p, x), y, 13),
        ("inject_truncated",),
        scalable=True,
        many=lambda p, x, y, _: backward.inject_truncated(
            p, sign_bits(p, x, 64, None), y, 64 - LOOSE
        ),
    ),
    "all_of": Entry(
        and_signs,
        ("all_of",),
        scalable=True,
        many=lambda p, x, y, _: and_signs(p, x, y, 31, 2),
    ),
    "equal": Entry(
        None, many=lambda p, x, y, _: relational.equal(p, x, y, 31, 2), compared=2 * WORDS
    ),
    "select": Entry(
        lambda p, x, y: small_ring.select(p, sign_bits(p, x), shrink_ring(p, x), shrink_ring(p, y)),
        ("select",),
        scalable=True,
    ),
    "extend_small": Entry(
        lambda p, x, y: small_ring.lift_signed(p, shrink_ring(p, x)),
        ("extend_small",),
        scalable=True,
        faults={
            "an extended ring's wraps share a mask": seeded.change_message(
                "extend_small", 0, "is_dealer", seeded.second_field_under_the_first_mask(64 - SMALL)
            )
        },
    ),
    "extend_some": Entry(
        lambda p, x, y: small_ring.lift_with_shares(p, shrink_ring(p, x), 30, 50)[0],
        ("extend_small",),
        scalable=True,
        faults={
            "some bits are lifted under a dealt mask": seeded.change_constant(
                small_ring, "FRESH", 0
            )
        },
    ),
    "refresh": Entry(
        lambda p, x, y: refresh.refresh(p, arithmetic.add(x, refresh.refresh(p, x))),
        ("refresh",),
        scalable=True,
        faults={
            "E2 refreshes without its mask": drop_mask("refresh", "is_e2"),
            "kept shares refreshed under one mask": seeded.one_site_for_all("refresh"),
        },
    ),
    "refresh_wide": Entry(lambda p, x, y: refresh.refresh(p, x), ("refresh",), limbs=2),
    "kept": Entry(reuse_shares, ("mul",), whole=True),
    "renamed": Entry(
        square_for_dealers(rotation.relabel_dealer, with_sign=True),
        ("inject",),
        n=1,
        many=change_dealer,
        faults={
            "a rotated dealer with the wrong keys": seeded.keys_of_the_party_s_own_dealer,
        },
    ),
    "handed": Entry(
        square_for_dealers(rotation.refresh_for_dealer, with_sign=False),
        ("refresh", "mul"),
        n=2,
        faults={
            "who dealt before hands over without its mask": drop_mask("refresh", "is_e2"),
            "who deals next hands over without its mask": drop_mask("refresh", "is_e1"),
        },
    ),
}
