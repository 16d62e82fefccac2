"""Protocols whose messages are examined, and the layout of their messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tfe_bench.protocols.functions import exp_select
from tfe_bench.protocols.nn import adaptive, linear, relu
from tfe_bench.protocols.order import extremes, shuffle
from tfe_bench.protocols.ring import (
    arithmetic,
    backward,
    compare,
    convert,
    logic,
    products,
    range_check,
    relational,
    rotation,
    rss,
    truncation,
)
from tfe_bench.protocols.session import io
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

ALPHA = 1e-6
SIDE = 128
WORDS = SIDE * SIDE  # elements per message
SOME = 2048  # elements for correlations of every plane with every other
PAIRS = ((0, 1), (1, 2**63), (3, 2**64 - 1))
SECRETS = tuple(dict.fromkeys(s for pair in PAIRS for s in pair))
LOOSE = 24  # bits that truncate_reduce leaves: whole bytes
WIDTH = 4  # values per row where rows are compared
Words = np.ndarray[Any, Any]


def as_square(x: Shared) -> Shared:
    """Return the elements of a vector as [SIDE, SIDE]."""
    import tensorflow as tf

    return x.map(lambda a: tf.reshape(a, [SIDE, -1]))


def matmul(party: Party, x: Shared, y: Shared, plain: Any) -> Any:
    left, right = as_square(x).map(lambda a: a[:, :2]), as_square(y).map(lambda a: a[:2])
    return arithmetic.matmul(party, left, right)


def from_bits(party: Party, x: Shared, y: Shared, plain: Any) -> Any:
    bits = convert.mask_bits(party, compare.msb(party, x))
    return convert.b2a(party, bits), convert.inject(party, bits, y)


def secretly_shuffled(party: Party, x: Shared, y: Shared, plain: Any) -> Any:
    import tensorflow as tf

    rows = [c.map(lambda a: tf.reshape(a, [-1, 4])) for c in (x, y)]
    return shuffle.shuffle(party, rows)


def inject_extended(party: Party, x: Shared, y: Shared, plain: Any) -> Any:
    """Multiply a small ring's value by a bit, in the whole ring: three packed wraps in addition."""
    bits = convert.mask_bits(party, compare.msb(party, x))
    small = truncation.truncate_reduce(party, y, 16, LOOSE)
    return convert.inject(party, bits, small, extend_ring=True), convert.inject(
        party, bits, small, negated=True, extend_ring=True
    )


def inject_reduced(party: Party, x: Shared, y: Shared, plain: Any) -> Any:
    """Multiply a value by a bit, minus the part that leaves LOOSE bits: the message as above."""
    bits = convert.mask_bits(party, compare.msb(party, x))
    return backward.inject_truncated(party, bits, y, 64 - LOOSE)


def select_exponentials(party: Party, x: Shared, y: Shared, plain: Any) -> Any:
    """Compute exponentials times bits, inside and outside of the range."""
    bits = convert.mask_bits(party, compare.msb(party, x))
    return exp_select.select_exp(party, bits, replace(y, fractional_bits=16))


def lifted_product(party: Party, x: Shared, y: Shared, plain: Any) -> Any:
    """Compute a product with a factor of LOOSE bits: three packed fields in addition."""
    small = truncation.truncate_reduce(party, y, 16, LOOSE)
    return adaptive.lifted_product(party, x, small)


def adaptive_step(party: Party, x: Shared, y: Shared, plain: Any) -> Any:
    """Compute a direction of an adaptive optimizer; its results for such values are arbitrary."""
    return adaptive.scale_by_root(party, x, replace(y, fractional_bits=40))


def and_signs(party: Party, x: Shared, y: Shared, plain: Any) -> Any:
    signs = [convert.mask_bits(party, compare.msb(party, c, 31, 2)) for c in (x, y)]
    return convert.mask_bits(party, logic.and_bits(party, [*signs, logic.invert_bits(signs[0])]))


def truncate_product(party: Party, x: Shared, y: Shared, plain: Any) -> Any:
    """Compute a product with bias, truncated to a small ring of 24 bits from messages of 40."""
    bias = arithmetic.add(x, y)
    return relu.truncated_product(party, x, y, 16, LOOSE, products.sum_elementwise_products, bias)


def sum_products(party: Party, x: Shared, y: Shared, ring_bits: int) -> tuple[Shared, Shared]:
    """Compute two products and an addend, exchanged once: in the ring, and in a small one."""
    terms = [
        products.BilinearShareProduct(x, y, products.sum_elementwise_products),
        products.BilinearShareProduct(y, y, products.sum_elementwise_products),
    ]
    addend = arithmetic.add(x, y)
    z = products.exchange_sum(party, "product_sum", terms)
    return arithmetic.add(z, addend), products.exchange_truncated_sum(
        party, "truncated_sum", terms, addend, 16, ring_bits
    )[0]


def checked_relu(party: Party, x: Shared, y: Shared, plain: Any) -> Any:
    """Compute a ReLU of a sum and, for each element, whether it left its range."""
    watch = range_check.RangeMonitor(party, WORDS, x.dealer)
    product = products.BilinearShareProduct(x, y, products.sum_elementwise_products)
    small, u = products.exchange_truncated_sum(
        party, "truncated_sum", [product], None, 16, LOOSE, 64
    )
    beside = linear.monitored_lift(party, watch, small, u, 48, LOOSE, LOOSE - 8)
    return relu.relu(party, beside), watch.compute_flag()


def change_dealer(party: Party, x: Shared, y: Shared, plain: Any) -> Any:
    """Return shares for another dealer: its lambda is the masked value, and the reverse."""
    return [
        relu.relu(party, rotation.relabel_dealer(party, x, (x.dealer + turn) % 3))
        for turn in (1, 2)
    ]


def rows_of(x: Shared) -> Shared:
    import tensorflow as tf

    return x.map(lambda a: tf.reshape(a, [WIDTH, -1]))


def pick_largest(party: Party, x: Shared, y: Shared, plain: Any) -> Any:
    """Return the largest of each row by comparisons of all pairs, and its position."""
    return extremes._find_extreme(party, rows_of(x), "all-pairs", 31, None, index=True)


def halve_rows(party: Party, x: Shared, y: Shared, plain: Any) -> Any:
    return extremes.argmin(party, rows_of(x).map(lambda a: a[:2]), 0, bits=31, method="tree")


def both_ways(party: Party, x: Shared, y: Shared, plain: Any) -> Any:
    return relational.equal(party, x, y, 31, 2)


def share_owned(owner: int) -> Callable[..., Any]:
    def protocol(party: Party, x: Shared, y: Shared, plain: Any) -> Any:
        return io.share_input(party, owner, plain if party.index == owner else None, (WORDS,))

    return protocol


PROTOCOLS: dict[str, Callable[..., Any]] = {
    "input_by_0": share_owned(0),
    "input_by_1": share_owned(1),
    "input_by_2": share_owned(2),
    "mul": lambda p, x, y, _: arithmetic.mul(p, x, y),
    "matmul": matmul,
    "rss_mul": lambda p, x, y, _: rss.mul_replicated(p, x, y),
    "truncate_safe": lambda p, x, y, _: truncation.truncate(p, x, 16),
    "truncate_probable": lambda p, x, y, _: truncation.truncate(p, x, 16, "probable"),
    "truncate_exact": lambda p, x, y, _: truncation.truncate(p, x, 16, "exact"),
    "truncate_reduce": lambda p, x, y, _: truncation.truncate_reduce(p, x, 16, LOOSE),
    "from_bits": from_bits,
    "extend": lambda p, x, y, _: convert.extend_to_wide(p, x, 4),
    "msb_31": lambda p, x, y, _: compare.msb(p, x, 31, 2),
    "shuffle": secretly_shuffled,
    "extended": inject_extended,
    "inject_truncated": inject_reduced,
    "select_exp": select_exponentials,
    "lifted_product": lifted_product,
    "update": adaptive_step,
    "all_of": and_signs,
    "truncated_product": truncate_product,
    "product_sum": lambda p, x, y, _: sum_products(p, x, y, LOOSE),
    "watched": checked_relu,
    "relu": lambda p, x, y, _: relu.relu(p, x),
    "renamed": change_dealer,
    "small_relu": lambda p, x, y, _: relu.relu(p, truncation.truncate_reduce(p, x, 16, LOOSE)),
    "all_pairs": pick_largest,
    "tree": halve_rows,
    "equal": both_ways,
}
# Sites whose messages are bit planes, by superblocks of 8 words; all others are ring elements.
PLANES = ("msb", "mask_bits", "extend", "reveal_bits", "all_of")
# Comparisons at a time, if more than one per element.
COMPARED = {pick_largest: WIDTH * (WIDTH - 1) // 2 * WORDS // WIDTH, halve_rows: WORDS // WIDTH}
COMPARED[both_ways] = 2 * WORDS
# Sites where D deals two words and, for values of LOOSE bits, three packed wraps per element.
INJECTED = ("inject", "inject_truncated", "pick")
WRAP = (64 - LOOSE) // 8
# Widths of the arrays, one value per element each, in packed messages of incomplete bytes.
LAYOUTS = {
    ("adaptive_select", 0): ([26] * 3 + [24] * 3, [26] * 5 + [24] * 5 + [26] * 5),
    ("adaptive_select", 1): ([24], [11]),
    ("adaptive_select", 2): ([26],),
    ("adaptive_root", 1): ([14],),
}
# Factors' rings of lifted products, in a protocol that is their test.
LIFTED = (LOOSE, 26, 14)
# Bytes per element below which words repeat by chance: too short to tell from unmasked ones.
TELLING = 5
