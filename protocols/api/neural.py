"""Neural network layers on private tensors, with the names of tf.nn.

Values of layers are below 2^(bits-1) ring units, by default |v| < 2^14 at 16 fractional bits;
outside this range a result is wrong, but nothing leaks. Images are [n, h, w, channels].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from tfe_bench.errors import UsageError
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.api import operands, operators, predicates
from tfe_bench.protocols.nn import activations, attention, pool
from tfe_bench.protocols.nn import gelu as gelus
from tfe_bench.protocols.nn import relu as rectifier
from tfe_bench.protocols.nn import silu as silus
from tfe_bench.protocols.ring import arithmetic, checks, compare, conv, reductions
from tfe_bench.protocols.session.party import current_party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared
from tfe_bench.protocols.session.types import Operand, Public

LAYER_BITS = compare.LAYER_BITS

Window: TypeAlias = "int | Sequence[int]"
Padding: TypeAlias = "str | Sequence[Sequence[int]]"


@operands.check_arguments(check=checks.check_private_word_tensor, max_bits=64)
def relu(x: Shared, bits: int = LAYER_BITS) -> Shared:
    """Compute max(x, 0), exact for |x| < 2^(bits-1) ring units; see relu.relu.

    Rounds: 4 online, 5 in total. Bits sent: those of relu.relu.
    """
    return rectifier.relu(current_party(), x, bits)


@operands.check_arguments(check=checks.check_private_word_tensor, max_bits=64)
def relu_derivative(x: Shared, bits: int = LAYER_BITS) -> Shared:
    """Return [x >= 0] as the integers 0 and 1; |x| < 2^(bits-1) ring units. At 0 it is 1.

    Rounds: 4 online, 5 in total.
    """
    return rectifier.relu_derivative(current_party(), x, bits)


@operands.check_arguments()
def leaky_relu(x: Shared, alpha: float = 0.2, bits: int = LAYER_BITS) -> Shared:
    """Return x for x >= 0, else alpha x: relu(x) + alpha (x - relu(x)).

    Args:
        alpha: a public number.
        bits: |x| < 2^(bits-1) ring units; with a fraction for alpha at most 39, as alpha is held
            with 24 significant bits and the product is truncated.

    Error: below 1 ulp, and that of alpha (see multiply); none for x >= 0.
    Rounds: 5 online, 6 in total. Bits sent: those of `relu` and a truncation.
    """
    factor = operands.static_number("leaky_relu", alpha, "alpha")
    if x.fractional_bits == 0:
        raise UsageError(
            f"leaky_relu expects fractional bits. Received: {x!r}. Use cast(x, 16).",
            code="unsupported-scale",
            operation="leaky_relu",
            received=repr(x),
        )
    bits = operands.check_comparison_width("leaky_relu", bits, _max_leaky_relu_input_bits(factor))
    positive = rectifier.relu(current_party(), x, bits)
    low = operators.multiply_by_public_weight(
        "leaky_relu", arithmetic.sub(x, positive), factor, arithmetic.mul_public
    )
    return arithmetic.add(positive, low)


def _max_leaky_relu_input_bits(alpha: Public) -> int:
    """Return the widest x whose product with alpha can be truncated: below 2^62 ring units (T3)."""
    ring, scale = operands.encode_public_weight("leaky_relu", alpha)
    factor = abs(int(ring))
    return 63 - (factor - 1).bit_length() if scale else 64


@operands.check_arguments(max_bits=62)
def sigmoid(x: Shared, bits: int = LAYER_BITS) -> Shared:
    """Compute 1 / (1 + e^-x), error below 2 ulp, for |x| < 2^(bits-1) ring units.

    Rounds: 6 or 7 (many elements). Bits sent: those of activations.sigmoid.
    """
    return activations.sigmoid(current_party(), x, bits)


@operands.check_arguments(max_bits=62)
def tanh(x: Shared, bits: int = LAYER_BITS) -> Shared:
    """Compute tanh(x), error below 2 ulp, for |x| < 2^(bits-1) ring units; as `sigmoid`."""
    return activations.tanh(current_party(), x, bits)


@operands.check_arguments(max_bits=62)
def gelu(x: Shared, bits: int = LAYER_BITS) -> Shared:
    """Compute x Phi(x), the exact GELU, error below 3 ulp, for |x| < 2^(bits-1) ring units.

    Rounds: 4 or 5 (many elements). Bits sent: those of gelu.gelu.
    Raises:
        UsageError: x has more than 16 fractional bits.
    """
    return gelus.gelu(current_party(), x, bits)


@operands.check_arguments(max_bits=62)
def silu(x: Shared, bits: int = LAYER_BITS) -> Shared:
    """Compute x / (1 + e^-x), error below 2 ulp, for |x| < 2^(bits-1) ring units.

    Rounds: 6 or 7 (many elements). Bits sent: those of silu.silu.
    Raises:
        UsageError: x has fewer than 8 or more than 16 fractional bits.
    """
    return silus.silu(current_party(), x, bits)


@operands.check_arguments(max_bits=62)
def softmax(x: Shared, axis: int = -1, bits: int = LAYER_BITS) -> Shared:
    """Compute e^x_i / sum_j e^x_j along an axis, error below 2 ulp, for |x| < 2^(bits-1) units.

    Rounds and bits: those of activations.softmax.
    """
    at = checks.normalize_axis("softmax", axis, checks.check_private_rank_is_known("softmax", x))
    return activations.softmax(current_party(), x, at, bits=bits)


@operands.check_arguments("query", "key", "value", max_bits=62)
def scaled_dot_product_attention(
    query: Shared,
    key: Shared,
    value: Shared,
    mask: Shared | MaskedBits | Public | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    spread: float | None = None,
    bits: int = LAYER_BITS,
) -> Shared:
    """Compute softmax(scale query key^T) value, [..., queries, channels].

    The result has value's scale.

    Args:
        query, key, value: private, [..., queries, depth], [..., keys, depth] and [..., keys,
            channels], with the same leading axes (batch, heads); up to 1024 keys.
        mask: true (1) for keys that a query attends to, broadcast to [..., queries, keys]: public,
            with at least one key for each query, or private bits or numbers 0 and 1. A row whose
            private mask leaves no key attends as if it had no mask.
        is_causal: True: query i attends to keys up to i only, in addition to a mask.
        scale: public and positive; None: 1 / sqrt(depth).
        spread: upper bound of the distance between two scores of a row; None: 119.2, the largest,
            or with a private mask about 50. A row that exceeds it is wrong.
        bits: |value| < 2^(bits-1) ring units.

    Error: of a weight a factor of 1 +- 2^-11 and 2^-14; of the result 3 ulp in addition.
    Rounds and bits: those of attention.attention.
    Raises:
        UsageError: an argument does not fit, or the spread is above 119.2 (172 units of the base
            2).
    """
    name = "scaled_dot_product_attention"
    if isinstance(mask, MaskedBits):
        mask = predicates.cast(mask)
    try:
        return attention.attention(
            current_party(),
            query,
            key,
            value,
            scale=scale,
            mask=mask,
            causal=is_causal,
            spread=spread,
            bits=bits,
        )
    except UsageError as error:
        operation = name if error.operation == "attention" else None
        text = str(error).replace("attention ", f"{name} ", 1)
        raise error.with_text(text, operation) from None


# ---- windows


@operands.check_arguments(max_bits=64)
def max_pool2d(
    x: Shared,
    ksize: Window,
    strides: Window | None = None,
    padding: str = "VALID",
    bits: int = LAYER_BITS,
) -> Shared:
    """Return each window's maximum, as tf.nn.max_pool2d, exact for |x| < 2^(bits-2) ring units.

    Args:
        ksize, strides: an integer, a pair or [1, height, width, 1]; strides None: as ksize.
        padding: "VALID" or "SAME".
        bits: right while differences within a window are below 2^(bits-1) ring units.

    Rounds and bits: those of pool.max_pool2d.
    """
    kernel = conv.parse_window_pair("max_pool2d", "ksize", ksize)
    steps = kernel if strides is None else conv.parse_window_pair("max_pool2d", "strides", strides)
    chosen_padding = padding.upper() if isinstance(padding, str) else padding
    return pool.max_pool2d(current_party(), x, kernel, steps, chosen_padding, bits=bits)


@operands.check_arguments(known=True)
def avg_pool2d(
    x: Shared, ksize: Window, strides: Window | None = None, padding: Padding = "VALID"
) -> Shared:
    """Return the mean of each window's cells inside the image, as tf.nn.avg_pool2d.

    Args:
        ksize, strides, padding: as for `max_pool2d`.

    The mean of integers has 16 fractional bits.
    Error, domain, rounds and bits: reductions.avg_pool (1 round; 1 ulp and 2^-31 of the sum).
    """
    try:
        extra_bits = 0 if x.fractional_bits else operands.WEIGHT_BITS
        return reductions.avg_pool(
            current_party(), x, ksize, strides, padding, extra_bits=extra_bits
        )
    except UsageError as error:
        text = str(error).replace("avg_pool ", "avg_pool2d ", 1)
        raise error.with_text(text, "avg_pool2d") from None


def conv2d(
    x: Operand,
    filters: Operand,
    strides: Window = 1,
    padding: Padding = "VALID",
    dilations: Window = 1,
    bias: Operand | None = None,
) -> Shared:
    """Compute tf.nn.conv2d, plus a bias; images or kernel may be public.

    Args:
        x: images [n, h, w, channels].
        filters: [h, w, channels, filters].
        strides, dilations: an integer, a pair or [1, height, width, 1].
        padding: "SAME", "VALID" or ((top, bottom), (left, right)).
        bias: broadcast to the result and of its scale; private or public, or None.

    The result has the larger of the two scales; error below 1 ulp (T3), and that of a public kernel
    (see multiply). Rounds: 2 online, 3 in total; with a public kernel 1 online, 2 in total.
    """
    return _convolve_private_images("conv2d", x, filters, strides, padding, dilations, bias, False)


def depthwise_conv2d(
    x: Operand,
    filters: Operand,
    strides: Window = 1,
    padding: Padding = "VALID",
    dilations: Window = 1,
    bias: Operand | None = None,
) -> Shared:
    """Compute tf.nn.depthwise_conv2d, plus a bias: [h, w, channels, multiplier]; as `conv2d`."""
    return _convolve_private_images(
        "depthwise_conv2d", x, filters, strides, padding, dilations, bias, True
    )


def _convolve_private_images(
    name: str,
    x: Operand,
    filters: Operand,
    strides: Window,
    padding: Padding,
    dilations: Window,
    bias: Operand | None,
    depthwise: bool,
) -> Shared:
    private_operand = operands.check_private_operand(
        name, operands.either_private(name, x, filters)
    )
    x = operands.share_operand(name, x, private_operand)
    windows = conv.Windows.from_arguments(name, strides, padding, dilations)
    if operands.is_private(filters):
        filters = operands.check_private_operand(name, filters)
        conv.check_conv_shapes(name, x.shape, filters.shape, windows)
        party = operands.require_party_in_graph(name)
        z = conv.conv2d(party, x, filters, strides, padding, dilations, depthwise)
        y = operators.drop_product_scale(name, z, x.fractional_bits, filters.fractional_bits)
    else:
        conv.check_conv_shapes(name, x.shape, operands.public_shape(name, filters), windows)

        def convolve_public_images(a: Shared, ring: tf.Tensor, bits: int) -> Shared:
            return conv.conv2d_public(a, ring, strides, padding, dilations, bits, depthwise)

        y = operators.multiply_by_public_weight(name, x, filters, convolve_public_images)
    if bias is None:
        return y
    y, bias = operands.share_operand_pair(f"{name} with its bias", y, bias)
    if operands.broadcast_shapes(name, y.shape, bias.shape).as_list() != y.shape.as_list():
        raise UsageError(
            f"{name} expects a bias that broadcasts to the result {y.shape.as_list()}. "
            f"Received: {bias!r}.",
            code="shape-mismatch",
            operation=name,
            received=repr(bias),
            expected=y.shape.as_list(),
        )
    return arithmetic.add(y, bias)
