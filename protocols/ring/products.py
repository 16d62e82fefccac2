"""Sums of bilinear products of private values, exchanged once: matrices, convolutions, residuals.

With x = m_x - l1_x - l2_x and w alike, D deals G1 + G2 = sum_i lam_x . lam_w, and the evaluators
have additive shares of z = sum_i x_i . w_i after a local product each:

    E1: z1 = G1 - sum_i (m_x . l1_w + l1_x . m_w)
    E2: z2 = G2 + sum_i (m_x . (m_w - l2_w) - l2_x . m_w)

They exchange them under new masks, or first drop bits: floor(z1 / 2^drop) at E1 plus
ceil(z2 / 2^drop) at E2 is a rounding of z / 2^drop (truncation T4), of which only the bits of a
small ring are sent. A sum costs as much as one product.

Where bits are dropped, the parties share 2z instead and drop one bit more. It needs one product at
each party:

    D:  2 z = sum_i (2 l1_x + l2_x) . (2 l1_w + l2_w)
    E1:     - 2 sum_i (m_x + l1_x) . (m_w + l1_w)
    E2:     + sum_i (2 m_x - l2_x) . (2 m_w - l2_w)

An identity of bilinear maps over the integers, hence over Z_2^64. Three such products cannot share
z itself modulo a power of 2 (docs/protocols.md, multiplication and matmul).

Source: ASTRA (Chaudhari et al., CCSW 2019) and ABY2.0 (Patra et al., USENIX Security 2021).
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import checks, masked
from tfe_bench.protocols.ring.checks import is_integer_between
from tfe_bench.protocols.session import ops, sizes, slots, tensor_ops
from tfe_bench.protocols.session.cost import packed_bits
from tfe_bench.protocols.session.counting import CostParty
from tfe_bench.protocols.session.party import K1, Party, Site
from tfe_bench.protocols.session.sharing import Shared

RING = 64

BilinearMap = Callable[[list[Any], list[Any]], Any]
# Low bits that are read of products, while these are traced.
_READ_BITS = contextvars.ContextVar("read_bits", default=RING)


@contextlib.contextmanager
def limit_read_bits(bits: int) -> Iterator[None]:
    """State that only the low bits are read of all ring products that are traced inside.

    Bits above them are arbitrary, and differ between processors.
    """
    token = _READ_BITS.set(bits)
    try:
        yield
    finally:
        _READ_BITS.reset(token)


def count_read_bits() -> int:
    """Return the number of low bits that are read of a ring product that is traced here."""
    return _READ_BITS.get()


@dataclass(frozen=True)
class BilinearShareProduct:
    """x . w under a bilinear map.

    Attributes:
        x, w: private, over Z_2^64.
        bilinear: the sum of the map over paired operands, lists of equal length.
    """

    x: Shared
    w: Shared
    bilinear: BilinearMap

    @property
    def scale(self) -> int:
        """Fractional bits of the product."""
        return self.x.fractional_bits + self.w.fractional_bits

    @property
    def dealer(self) -> int:
        """Dealer of both operands."""
        return self.x.dealer


@dataclass(frozen=True, eq=False)
class LocalProduct:
    """x . w for one of many x, with each party's part computed before.

    Attributes:
        part: at D lam_x . lam_w, at the evaluators the term that they add to their shares of it.
        scale: fractional bits of the product.
        dealer: dealer of x and w.
    """

    part: Any
    scale: int
    dealer: int

    def map(self, function: Callable[[Any], Any]) -> LocalProduct:
        """Apply a linear map to the product. Local."""
        return replace(self, part=function(self.part))


def multiply_shares_locally(party: Party, name: str, product: BilinearShareProduct) -> LocalProduct:
    """Return each party's part of a product. Local: a sum exchanges it later.

    Raises:
        UsageError: operands of several rings or dealers.
    """
    x, w = product.x, product.w
    checks.check_factors(name, x, w)
    if isinstance(party, CostParty):
        symbolic = product.bilinear([x.any], [w.any])
        party.add_work(symbolic.work)
        return LocalProduct(replace(symbolic, work=0), product.scale, x.dealer)
    return LocalProduct(
        _share_product_part(party.index == x.dealer, (x.dealer + 1) % 3 == party.index, product),
        product.scale,
        x.dealer,
    )


def sum_elementwise_products(a: list[Any], b: list[Any]) -> Any:
    """Return the sum of paired elementwise products, with broadcasting."""
    return functools.reduce(
        tensor_ops.add, [tensor_ops.mul(p, q) for p, q in zip(a, b, strict=True)]
    )


def sum_matrix_products(a: list[Any], b: list[Any]) -> Any:
    """Return the sum of the matrix products of paired tensors over Z_2^64. Local.

    Combined weights (`tensor_ops.combine_terms`) are not stored: the kernel computes them in
    blocks, where it multiplies them.
    """
    if not (tensor_ops.is_concrete(a[0]) and tensor_ops.is_concrete(b[0])):
        left, right = a[0].shape, b[0].shape
        lead = np.broadcast_shapes(left[:-2], right[:-2])
        shape = [*lead, left[-2], right[-1]]
        return tensor_ops.symbolic_result(shape, *a, *b, work=math.prod([*shape, left[-1]]))
    is_matrix = len(b) == 1 and len(tensor_ops.static_shape(b[0])) == 2
    terms = tensor_ops.get_combined_terms(b[0]) if is_matrix else None
    if terms is not None:
        return ops.module().tfe_bench_mat_mul_combined(a=a[0], bits=count_read_bits(), **terms)
    return ops.module().tfe_bench_ring_mat_mul(a=a, b=b, bits=count_read_bits())


def _sum_product_parts(s: Site, products: Sequence[BilinearShareProduct | LocalProduct]) -> Any:
    """Return the party's part of the sum over Z_2^64."""
    parts = [_share_product_part(s.is_dealer, s.is_e1, p) for p in products]
    return functools.reduce(tensor_ops.add, parts)


def _sum_single_products(
    s: Site, products: Sequence[BilinearShareProduct | LocalProduct], bits: int
) -> Any:
    """Return the party's part of twice the sum, right modulo 2^(bits + 1): half of it at E1."""

    def combine_fields(v: Shared) -> Any:
        if s.is_dealer:
            return tensor_ops.combine_terms((2, v.l1), (1, v.l2))
        if s.is_e1:
            return tensor_ops.combine_terms((1, v.m), (1, v.l1))
        return tensor_ops.combine_terms((2, v.m), (-1, v.l2))

    def compute_part(p: BilinearShareProduct | LocalProduct) -> Any:
        if isinstance(p, LocalProduct):
            return p.part if s.is_e1 else tensor_ops.left_shift(p.part, 1)
        return p.bilinear([combine_fields(p.x)], [combine_fields(p.w)])

    with limit_read_bits(bits if s.is_e1 else bits + 1):
        return functools.reduce(tensor_ops.add, [compute_part(p) for p in products])


def _share_product_part(
    is_dealer: bool, is_e1: bool, p: BilinearShareProduct | LocalProduct
) -> Any:
    """Return the masks' product at D; at an evaluator the term of its share (E1's negated)."""
    if isinstance(p, LocalProduct):
        return p.part
    x, w = p.x, p.w
    if is_dealer:
        return p.bilinear([tensor_ops.add(x.l1, x.l2)], [tensor_ops.add(w.l1, w.l2)])
    if is_e1:
        return p.bilinear([x.m, x.l1], [w.l1, w.m])
    # (x, not w, is negated: the weights of all layers would be negated at once)
    return p.bilinear([x.m, tensor_ops.neg(x.l2)], [tensor_ops.sub(w.m, w.l2), w.m])


def _check_share_products(
    name: str, products: Sequence[BilinearShareProduct | LocalProduct], addend: Shared | None = None
) -> None:
    """Validate the operands of a sum of products."""
    if not products:
        raise UsageError(
            "Expected at least one product. Received: none.",
            code="empty-input",
            operation=name,
        )
    for p in products:
        if isinstance(p, BilinearShareProduct):
            checks.check_factors(name, p.x, p.w)
    kinds = {(p.scale, p.dealer) for p in products}
    if addend is not None:
        kinds.add((addend.fractional_bits, addend.dealer))
    if len(kinds) != 1:
        raise UsageError(
            f"{name} expects products and addend of one scale and one dealer. Received: (scale, "
            f"dealer) {sorted(kinds)}.",
            code="operand-mismatch",
            operation=name,
            received=sorted(kinds),
        )


def _count_share_products(
    party: CostParty, products: Sequence[BilinearShareProduct | LocalProduct]
) -> tuple[tensor_ops.SymbolicTensor, list[Any]]:
    """Return the symbolic sum, and all of its operands."""
    parts = [
        p.part if isinstance(p, LocalProduct) else p.bilinear([p.x.any], [p.w.any])
        for p in products
    ]
    party.add_work(sum(part.work for part in parts))
    total = functools.reduce(tensor_ops.add, parts)
    operand_groups = [(p.part,) if isinstance(p, LocalProduct) else (p.x, p.w) for p in products]
    return total, [v for group in operand_groups for v in group]


def exchange_sum(
    party: Party, name: str, products: Sequence[BilinearShareProduct | LocalProduct], *agreed: Any
) -> Shared:
    """Compute sum_i x_i . w_i over Z_2^64 under a fresh mask, at the scale of the products.

    Args:
        name: name of the protocol's site, also in errors.
        agreed: further values on which the three parties must agree.

    Rounds: 1 online (2 total). Bits sent: D, E1, E2 64 per element of the result each.
    Raises:
        UsageError: no products, or operands of several scales, rings or dealers.
    """
    _check_share_products(name, products)
    dealer, scale = products[0].dealer, products[0].scale
    if isinstance(party, CostParty):
        total, operands = _count_share_products(party, products)
        dealt = 64 * total.shape.num_elements()
        return party.count_exchange(total.shape, dealt, *operands, scale=scale, dealer=dealer)
    # (Static shapes are not compared: one role may know less of them than another.)
    s = party.site(
        name,
        scale,
        len(products),
        *agreed,
        dealer=dealer,
        slots={0: slots.declare_dealt(), 1: slots.declare_exchanged()},
    )
    if s.is_dealer:
        with s.in_dealing_order():
            gamma = _sum_product_parts(s, products)
        masked.deal(s, gamma, None, 0)
        z, shape = None, tensor_ops.dynamic_shape(gamma)
    else:
        crossed = _sum_product_parts(s, products)
        shape = tensor_ops.dynamic_shape(crossed)
        if s.is_e1:
            z = s.apply_mask(tensor_ops.neg(crossed), K1, 0, "add", sent=False)
        else:
            z = tensor_ops.add(crossed, masked.deal(s, None, shape, 0))
    return masked.exchange_masked(s, z, shape, 1, 1, scale=scale)


def exchange_truncated_sum(
    party: Party,
    name: str,
    products: Sequence[BilinearShareProduct | LocalProduct],
    addend: Shared | None,
    drop: int,
    bits: int,
    width: int = 0,
    dealer_addend: Any = None,
) -> tuple[Shared, Any]:
    """Compute (sum_i x_i . w_i + addend) / 2^drop in Z_2^bits and the evaluators' shares of it.

    Truncation T4.

    Stochastically rounded.

    Args:
        name: name of the protocol's site, also in errors.
        addend: private, at the scale of the products, broadcast to them.
        bits: k; right for |sum| <= 2^(k-1+drop) - 2^drop, and never fails there.
        width: bits of the sum that are shared. The returned shares are right modulo
            2^(width-drop): they contain the bits of a sum below 2^(width-1) that Z_2^bits loses.
            0: drop + bits, and no shares are returned.
        dealer_addend: at D, None elsewhere: int64 of the result's shape, in ring units, added to
            the result. It is part of the product of masks that D deals: no further message is sent.

    Reads `width` bits of all operands, and one bit more of masks.
    Rounds: 1 online (2 total). Bits sent: D width + 1 (64 for 64), E1, E2 bits per element.
    Raises:
        UsageError: as `exchange_sum`; bits, drop and width that do not fit a word, or an addend
            that does not broadcast.
    """
    _check_share_products(name, products, addend)
    integers = isinstance(drop, int) and isinstance(bits, int)
    if not (integers and bits >= 2 and drop > 0 and bits + drop <= RING):
        raise UsageError(
            f"{name} expects drop >= 1, bits >= 2 and a sum of both of at most 64. "
            f"Received: drop={drop}, bits={bits}.",
            code="number-out-of-range",
            operation=name,
            received=f"drop={drop}, bits={bits}",
        )
    keeps_shares, width = width > 0, width or drop + bits
    if not is_integer_between(width, drop + bits, RING):
        raise UsageError(
            f"{name} deals {drop + bits} to {RING} bits. Received: {width!r}.",
            code="number-out-of-range",
            operation=name,
            received=width,
            expected=f"{drop + bits} to {RING}",
        )
    dealer, scale = products[0].dealer, products[0].scale - drop
    # Twice the sum and one bit more to drop: one product at each party, where the bits fit a word.
    shift = 1 if width < RING else 0

    def check_addend(product: Any) -> None:
        """Reject an addend that would make the sum larger than the value for which D deals."""
        if addend is None:
            return
        try:
            joint = tensor_ops.broadcast_shape(product.shape, addend.shape)
        except ValueError:
            joint = None
        if joint is None or not joint.is_compatible_with(product.shape):
            raise UsageError(
                f"{name} expects a bias that broadcasts to the product's shape {product.shape}. "
                f"Received: {addend!r}.",
                code="shape-mismatch",
                operation=name,
                received=repr(addend),
            )

    if isinstance(party, CostParty):
        z, operands = _count_share_products(party, products)
        check_addend(z)
        u = party.count_dealt(z.shape, *operands, addend)
        dealt = packed_bits(z.shape.num_elements(), width + shift)
        operands += [addend]
        y = party.count_exchange(z.shape, dealt, *operands, scale=scale, width=bits, dealer=dealer)
        return y, u
    s = party.site(
        name,
        len(products),
        drop,
        bits,
        width,
        addend is not None,
        dealer=dealer,
        slots={0: slots.declare_dealt(width + shift), 1: slots.declare_exchanged(bits)},
    )
    sum_parts = functools.partial(_sum_single_products, bits=width) if shift else _sum_product_parts
    if s.is_dealer:
        with s.in_dealing_order():
            gamma = sum_parts(s, products)
        check_addend(gamma)
        if dealer_addend is not None:
            gamma = tensor_ops.add(gamma, tensor_ops.left_shift(dealer_addend, drop + shift))
        message = s.pack_masked(gamma, K1, 0, "sub", width + shift)
        s.send(message, s.e2, 0, run_ahead=True)
        shape = tensor_ops.dynamic_shape(gamma)
        return masked.exchange_masked(s, None, shape, 1, 1, scale=scale), None
    crossed = sum_parts(s, products)
    check_addend(crossed)
    n = sizes.tensor_size(crossed)
    message, u = ops.module().tfe_bench_sum_share(
        crossed=crossed,
        addend=_repeat_addend(s, addend, crossed),
        dealt=s.receive_dealt(n),
        width=width + shift,
        drop=drop + shift,
        bits=bits,
        shift=shift,
        keep=keeps_shares,
        **s._named(s.own_key, 1),
    )
    shape = tensor_ops.dynamic_shape(crossed)
    y = masked.exchange_masked(s, message, shape, 1, 1, scale=scale, is_masked=True)
    return y, u if keeps_shares else None


def _repeat_addend(s: Site, addend: Shared | None, total: Any) -> Any:
    """Return an evaluator's share of an addend: its last axes, which repeat, or all elements."""
    if addend is None:
        return tensor_ops.constant([])
    share = tensor_ops.sub(addend.m, addend.l1) if s.is_e1 else tensor_ops.neg(addend.l2)
    repeated = list(addend.shape)
    while repeated and repeated[0] == 1:
        repeated = repeated[1:]
    last = list(total.shape)[len(total.shape) - len(repeated) :]
    is_repeated = None not in repeated and repeated == last
    return share if is_repeated else tensor_ops.broadcast_to(share, tensor_ops.dynamic_shape(total))
