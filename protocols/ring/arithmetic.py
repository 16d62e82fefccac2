"""Linear operations and products of private values, in dealer form.

Products follow ASTRA (Chaudhari et al., CCSW 2019) and ABY2.0 (Patra et al.,
USENIX Security 2021) on the masked view: D deals lam_x * lam_y, the evaluators
open the masked product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.session import local, ops, wide
from tfe_bench.protocols.session.cost import Cost
from tfe_bench.protocols.session.counting import Counting
from tfe_bench.protocols.session.party import K1, Party, Site
from tfe_bench.protocols.session.sharing import Shared

if TYPE_CHECKING:
    import tensorflow as tf


def check_pair(operation: str, x: Shared, y: Shared, same_scale: bool = True) -> None:
    if not isinstance(x, Shared) or not isinstance(y, Shared):
        raise UsageError(
            f"{operation} wants two private tensors. Received: {type(x).__name__} and "
            f"{type(y).__name__}. Use {operation}_public for a public operand."
        )
    if x.dealer != y.dealer or x.limbs != y.limbs or x.ring_bits != y.ring_bits:
        raise UsageError(
            f"{operation} wants operands with one dealer and one ring. Received: {x!r} and {y!r}."
        )
    if same_scale and x.fractional_bits != y.fractional_bits:
        raise UsageError(
            f"{operation} wants operands of one scale. Received: {x.fractional_bits} and "
            f"{y.fractional_bits} fractional bits. Truncate the one with more."
        )


def _broadcastable(operation: str, x: Shared, y: Shared) -> None:
    try:
        local.broadcast_shape(x.any.shape, y.any.shape)
    except ValueError:
        raise UsageError(
            f"{operation} wants shapes that broadcast. Received: {x.shape.as_list()} and "
            f"{y.shape.as_list()}."
        ) from None


def _pairwise(function: Callable[[Any, Any], Any], x: Shared, y: Shared) -> Shared:
    m, l1, l2 = (
        None if a is None else function(a, b) for a, b in ((x.m, y.m), (x.l1, y.l1), (x.l2, y.l2))
    )
    return Shared(m, l1, l2, x.dealer, x.fractional_bits, x.limbs, x.bits)


def add(x: Shared, y: Shared) -> Shared:
    """x + y, with broadcasting.  Local."""
    check_pair("add", x, y)
    _broadcastable("add", x, y)
    return _pairwise((lambda a, b: a + b) if x.limbs == 1 else wide.add, x, y)


def sub(x: Shared, y: Shared) -> Shared:
    """x - y, with broadcasting.  Local."""
    check_pair("sub", x, y)
    _broadcastable("sub", x, y)
    return _pairwise((lambda a, b: a - b) if x.limbs == 1 else wide.sub, x, y)


def neg(x: Shared) -> Shared:
    """-x.  Local."""
    return x.map((lambda a: -a) if x.limbs == 1 else wide.negate)


def _only_64(name: str, x: Shared, ring: object) -> None:
    if isinstance(ring, Shared):
        raise UsageError(
            f"{name} wants a public second operand. Received: {ring!r}. "
            f"Use {name.removesuffix('_public')} for two private ones."
        )
    if not isinstance(x, Shared):
        raise UsageError(
            f"{name} wants a private and a public tensor. Received: {type(x).__name__} first."
        )
    if x.limbs != 1:
        raise UsageError(f"{name} works on 64-bit words. Received: {x!r}.")


def add_public(x: Shared, ring: tf.Tensor) -> Shared:
    """x + c for public ring elements c (already encoded at x's scale).  Local: only m moves."""
    _only_64("add_public", x, ring)
    if not local.known(x.any):
        return replace(x, m=x.m + ring)
    import tensorflow as tf

    if x.m is None:
        # The dealer's masks take the shape that m gets by broadcasting.
        shape = tf.broadcast_dynamic_shape(tf.shape(x.any), tf.shape(ring))
        return x.map(lambda a: tf.broadcast_to(a, shape))
    m = x.m + ring
    return replace(
        x,
        m=m,
        l1=None if x.l1 is None else tf.broadcast_to(x.l1, tf.shape(m)),
        l2=None if x.l2 is None else tf.broadcast_to(x.l2, tf.shape(m)),
    )


def mul_public(x: Shared, ring: tf.Tensor, fractional_bits: int = 0) -> Shared:
    """x * c for public ring elements c with their own scale.  Local; scales add up."""
    _only_64("mul_public", x, ring)
    y = x.map(lambda a: a * ring)
    return replace(y, fractional_bits=x.fractional_bits + fractional_bits)


def public(like: Shared, ring: Any) -> Shared:
    """Public ring elements as shares with masks of zero, with the dealer of others.  Local."""
    if not local.known(like.any):
        return Shared(local.joined(np.shape(ring)), None, None, like.dealer)
    zero = local.zeros_like(ring)
    return Shared(
        None if like.m is None else ring,
        None if like.l1 is None else zero,
        None if like.l2 is None else zero,
        like.dealer,
    )


def ring_tensor(operation: str, value: Any) -> Any:
    """Public ring elements as an int64 tensor or array.

    Raises:
        UsageError: the value is private, or not of integers (reals must be encoded first).
    """
    if not isinstance(value, Shared):
        tensor = value if local.is_tensor(value) else np.asarray(value)
        if not isinstance(tensor, np.ndarray) and tensor.dtype == np.int64:
            return tensor
        if isinstance(tensor, np.ndarray) and tensor.dtype.kind in "iu":
            return tensor.astype(np.int64)
    what = repr(value) if isinstance(value, Shared) else getattr(value, "dtype", type(value))
    raise UsageError(
        f"{operation} wants public ring elements, int64. Received: {what}. Encode reals as fixed "
        f"point; use {operation.removesuffix('_public')} for a private operand."
    )


def matmul_public(
    x: Any,
    y: Any,
    fractional_bits: int = 0,
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> Shared:
    """x @ y for one private and one public operand, in either order.  Local; scales add up.

    Args:
        x, y: [..., m, k] and [..., k, n], one of them public ring elements with `fractional_bits`;
            leading dimensions broadcast.
        transpose_a, transpose_b: take an operand with its last two dimensions swapped.
    """
    private, public = (x, y) if isinstance(x, Shared) else (y, x)
    _only_64("matmul_public", private, public)
    ring = ring_tensor("matmul_public", public)
    shape = local.static_shape(ring)
    left, right = (private.shape, shape) if private is x else (shape, private.shape)
    check_multipliable("matmul_public", left, right, transpose_a, transpose_b)

    def times(a: Any) -> Any:
        operands = (a, ring) if private is x else (ring, a)
        return matrix_product(
            [_swapped(operands[0], transpose_a)], [_swapped(operands[1], transpose_b)]
        )

    return replace(private.map(times), fractional_bits=private.fractional_bits + fractional_bits)


def product_shares(
    s: Site,
    x: Shared,
    y: Shared,
    two: Callable[[list[Any], list[Any]], Any],
    tensor: int,
    slot: int,
) -> Any:
    """The evaluators' additive shares (z1 at E1, z2 at E2) of a bilinear product, unopened.

    Args:
        two: sum of products of paired operands.
        tensor, slot: number of the dealt mask product and of its message.

    E1: z1 = G1 - m_x l1_y - l1_x m_y;  E2: z2 = G2 + m_x (m_y - l2_y) - l2_x m_y.
    Rounds: 0 with D ahead, else 1.  Bits sent: D 64 per product element.
    """
    import tensorflow as tf

    if s.is_dealer:
        with s.in_turn():
            gamma = two([x.l1 + x.l2], [y.l1 + y.l2])
        s.deal(gamma, None, tensor, slot)
        return None
    if s.is_e1:
        crossed = two([x.m, x.l1], [y.l1, y.m])
        return s.apply_mask(-crossed, K1, tensor, "add", sent=False)
    crossed = two([x.m, x.l2], [y.m - y.l2, -y.m])
    return crossed + s.recv(tf.shape(crossed, out_type=tf.int64), s.d, slot)


def _elementwise(a: list[Any], b: list[Any]) -> Any:
    if len(a) == 1:
        return a[0] * b[0]
    import tensorflow as tf

    return tf.add_n([p * q for p, q in zip(a, b, strict=True)])


def matrix_product(a: list[Any], b: list[Any]) -> Any:
    """The sum of the matrix products of paired tensors over Z_2^64.  Local."""
    if not (local.known(a[0]) and local.known(b[0])):
        left, right = a[0].shape, b[0].shape
        lead = np.broadcast_shapes(left[:-2], right[:-2])
        return local.joined([*lead, left[-2], right[-1]], *a, *b)
    return ops.module().tfe_bench_ring_mat_mul(a=a, b=b)


def product(
    party: Party,
    name: str,
    x: Shared,
    y: Shared,
    two: Callable[[list[Any], list[Any]], Any],
    shape: Callable[[Any, Any], Any],
    *about: Any,
) -> Shared:
    """A bilinear product under a fresh mask; the scales add up.

    Args:
        two: sum of products of paired operands.
        shape: dynamic shape of the product, by one field of each operand (the dealer draws the
            masks of the result without having it).
        about: what else the three parties must agree on.

    Rounds: 1 (cold 2).  Bits sent: D, E1, E2 64 per element of the result each.
    """
    scale = x.fractional_bits + y.fractional_bits
    if isinstance(party, Counting):
        z = two([x.any], [y.any])
        m = party.sent(mul_cost(z.shape.num_elements()), z.shape, x, y)
        return Shared(m, None, None, x.dealer, scale)
    import tensorflow as tf

    # (Static shapes are not part of what is agreed: a role may know less of them than another.)
    s = party.site(name, x.fractional_bits, y.fractional_bits, *about, dealer=x.dealer)
    z = product_shares(s, x, y, two, tensor=0, slot=0)
    if s.is_dealer:
        size = tf.cast(shape(x.any, y.any), tf.int64)
        m = None
    else:
        size = tf.shape(z, out_type=tf.int64)
        m = s.open_mask(z, tensor=1, slot=1)
    l1, l2 = s.new_mask(size, tensor=1)
    return Shared(m, l1, l2, x.dealer, scale)


def check_factors(name: str, x: Shared, y: Shared) -> None:
    """Raises UsageError unless x and y are private, of one dealer and over Z_2^64."""
    check_pair(name, x, y, same_scale=False)
    if x.limbs != 1 or x.ring_bits != 64:
        raise UsageError(f"{name} works over Z_2^64. Received: {x!r}.")


def _swapped(a: Any, transpose: bool) -> Any:
    if not transpose:
        return a
    if not local.known(a):
        return a.like([*a.shape[:-2], a.shape[-1], a.shape[-2]])
    import tensorflow as tf

    return tf.linalg.matrix_transpose(a)


def check_multipliable(
    name: str, a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False
) -> None:
    if a.rank is None or b.rank is None:
        return
    fits = a.rank >= 2 and b.rank >= 2
    if fits:
        depth_a, depth_b = a[-2 if transpose_a else -1], b[-1 if transpose_b else -2]
        fits = depth_a is None or depth_b is None or depth_a == depth_b
        try:
            local.broadcast_shape(a[:-2], b[:-2])
        except ValueError:
            fits = False
    if not fits:
        flags = f" with transpose_a={transpose_a}, transpose_b={transpose_b}"
        raise UsageError(
            f"{name} wants [..., m, k] and [..., k, n] with leading dimensions that broadcast. "
            f"Received: {a.as_list()} and {b.as_list()}"
            f"{flags if transpose_a or transpose_b else ''}. Reshape or transpose an operand."
        )


def product_shape(a: Any, b: Any, two: Callable[[list[Any], list[Any]], Any]) -> Any:
    """Dynamic shape of an elementwise or matrix product."""
    import tensorflow as tf

    left, right = tf.shape(a, out_type=tf.int64), tf.shape(b, out_type=tf.int64)
    if two is _elementwise:
        return tf.broadcast_dynamic_shape(left, right)
    lead = tf.broadcast_dynamic_shape(left[:-2], right[:-2])
    return tf.concat([lead, left[-2:-1], right[-1:]], axis=0)


def mul(party: Party, x: Shared, y: Shared) -> Shared:
    """x * y elementwise, with broadcasting; the scales add up (truncate afterwards).

    Rounds: 1 (cold 2).  Bits sent: D, E1, E2 64 per element each.
    """
    check_factors("mul", x, y)
    _broadcastable("mul", x, y)
    return product(party, "mul", x, y, _elementwise, lambda a, b: product_shape(a, b, _elementwise))


def matmul(
    party: Party, x: Shared, y: Shared, transpose_a: bool = False, transpose_b: bool = False
) -> Shared:
    """x @ y over the last two dimensions, the leading ones broadcast; the scales add up.

    Args:
        x, y: [..., m, k] and [..., k, n], of rank 2 at least.
        transpose_a, transpose_b: take an operand with its last two dimensions swapped.

    Rounds: 1 (cold 2).  Bits sent: D, E1, E2 64 per element of the result each.
    """
    check_factors("matmul", x, y)
    check_multipliable("matmul", x.shape, y.shape, transpose_a, transpose_b)
    x = x.map(lambda a: _swapped(a, transpose_a))
    y = y.map(lambda b: _swapped(b, transpose_b))
    return product(
        party, "matmul", x, y, matrix_product, lambda a, b: product_shape(a, b, matrix_product)
    )


def mul_cost(n: int) -> Cost:
    """Cost of `mul` and `matmul` for n result elements."""
    return Cost(dealer=64 * n, e1=64 * n, e2=64 * n, rounds=1, cold=2)
