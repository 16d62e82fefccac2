"""The MNIST network on encrypted pictures, with a description of its layers as data.

A stride of two splits a picture into four pictures of a quarter of its pixels, by the parities of
row and column: each tap of the kernel is one of them, shifted by at most a row and a column.  A
client sends the four, in one ciphertext if they fit, and the server shifts them with three
rotation keys; taps beyond the border have a weight of zero.

The scale of every plaintext factor is chosen so that the sum has the scale of the next layer:
prime sizes cause no loss.  Interval arithmetic on the weights bounds every slot, and a network is
refused if the last modulus does not hold the bound.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tfe_bench.benchmarks.technologies.homomorphic import model as plaintext
from tfe_bench.benchmarks.technologies.homomorphic.linear import (
    DiagonalProduct,
    SlotLayout,
    encode_slot_plaintext,
    power_of_two,
    take_layer_plaintexts,
)
from tfe_bench.benchmarks.technologies.homomorphic.model import CLASSES, MnistModel
from tfe_bench.benchmarks.technologies.homomorphic.parameters import Parameters
from tfe_bench.benchmarks.technologies.homomorphic.parties import (
    Encrypted,
    Server,
    Setting,
    Values,
)
from tfe_bench.errors import UsageError, check_range

DEPTH: Final = 5
_TAPS: Final = plaintext.KERNEL**2
_PHASES: Final = ((0, 0), (0, 1), (1, 0), (1, 1))  # parities of row and column
_COLUMN: Final = plaintext.MAPS  # positions from one cell to the next
_ROW: Final = plaintext.MAPS * plaintext.SIDE
_OUTPUT_BITS: Final = 21  # integer bits, including sign and guard
RELINEARIZE: Final = "relinearize"

# Five products deep; the special prime is larger than the first: key switching adds little noise.
_PARAMETERS: Final[Mapping[int, tuple[tuple[int, ...], int]]] = {
    8192: ((43, 25, 25, 25, 25, 25, 50), 25),
    16384: ((55, 38, 38, 38, 38, 38, 60), 38),
}


def choose_network_parameters(degree: int = 8192) -> Parameters:
    """Choose CKKS parameters of the network.

    Raises:
        UsageError: the five levels do not fit the degree.
    """
    if degree not in _PARAMETERS:
        raise UsageError(
            f"The network's {DEPTH} consecutive products take N = 8192 or 16384. Received: "
            f"{degree}.",
            code="degree-not-supported",
            received=degree,
        )
    bits, scale = _PARAMETERS[degree]
    return Parameters("CKKS", degree, bits, scale)


@dataclass(frozen=True)
class LayerOperation:
    """Operations of one kind in a layer.

    Attributes:
        op: name of the operation, as in `costs.OPERATIONS`.
        level: primes of the input.
        count: number of operations.
        plaintext_bytes: bytes of all plaintexts that they read.
        key_ids: names of the keys that they read, as in `EncryptedNetwork.key_bytes`.
    """

    op: str
    level: int
    count: int
    plaintext_bytes: int = 0
    key_ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class EncryptedLayer:
    """A layer of the network: the server's operations in order, and the number of plaintexts."""

    name: str
    operations: tuple[LayerOperation, ...]
    plaintexts: int


@dataclass(frozen=True)
class _CiphertextStep:
    """Scales and levels of one product with plaintexts."""

    level: int
    plain_scale: float
    bias_scale: float


def _place_kernel_tap(tap: int) -> tuple[int, int]:
    """Return the parity of a tap's row or column, and its shift in cells."""
    offset = tap - plaintext.BEFORE
    return offset % plaintext.STRIDE, offset // plaintext.STRIDE


@dataclass(frozen=True)
class _TapSpread:
    """Parities that share a ciphertext, and the shifts of their taps.

    Attributes:
        phases: (row, column) parities, one in each repeat of the layout.
        rows, columns: shifts in cells, in ascending order.
    """

    phases: tuple[tuple[int, int], ...]

    @property
    def rows(self) -> range:
        return _range_of_tap_shifts({row for row, _ in self.phases})

    @property
    def columns(self) -> range:
        return _range_of_tap_shifts({column for _, column in self.phases})

    @property
    def moves(self) -> tuple[tuple[int, int], ...]:
        return tuple(itertools.product(self.rows, self.columns))


def _range_of_tap_shifts(parities: set[int]) -> range:
    parts_moved = [
        move
        for parity, move in map(_place_kernel_tap, range(plaintext.KERNEL))
        if parity in parities
    ]
    return range(min(parts_moved), max(parts_moved) + 1)


class EncryptedNetwork:
    """Public plan to run a model on `images` pictures at a time.

    Args:
        setting: the library with parameters of `choose_network_parameters()`.
        images: pictures that share a ciphertext, 1 to slots / 1024.

    Attributes:
        layers: description of the server's operations, layer by layer.
        steps: rotations that require keys.

    Raises:
        UsageError: the parameters are not deep enough, or the images are too many.
    """

    def __init__(self, setting: Setting, images: int = 1) -> None:
        top = setting.parameters.levels
        if setting.parameters.scheme != "CKKS" or top <= DEPTH:
            raise UsageError(
                f"The network takes CKKS with {DEPTH + 1} levels. Received: "
                f"{setting.parameters.scheme} with {top}.",
                code="too-few-levels",
                operation="network",
                received=f"{setting.parameters.scheme} with {top}",
            )
        self.setting = setting
        slots = setting.parameters.slots
        most = slots // power_of_two(plaintext.FEATURES)
        check_range("The number of pictures in a ciphertext", images, 1, most)
        self.layout = SlotLayout.fit_layout(slots, plaintext.FEATURES, images, 1)
        self.images = images
        self._hidden = DiagonalProduct(plaintext.HIDDEN, plaintext.FEATURES, self.layout)
        inner = SlotLayout(slots, self._hidden.rows, self.layout.images)
        self._output = DiagonalProduct(CLASSES, plaintext.HIDDEN, inner)
        self._folds = tuple(
            self.layout.period * self.layout.images * 2**k
            for k in reversed(range(self.layout.repeats.bit_length() - 1))
        )
        repeats = self.layout.repeats
        self._spreads = tuple(
            _TapSpread(_PHASES[i : i + repeats]) for i in range(0, len(_PHASES), repeats)
        )
        self._plan_layers(top)
        moves = [step * self.layout.stride for step in (_COLUMN, _ROW, -_ROW)]
        steps = (*moves, *self._folds, *self._hidden.steps, *self._output.steps)
        self.steps = tuple(dict.fromkeys(steps))
        self.layers = self._describe_layers(top)

    @property
    def ciphertexts(self) -> int:
        """Number of ciphertexts that a client sends."""
        return len(self._spreads)

    def _plan_layers(self, top: int) -> None:
        prime, now = self.setting.prime_at, self.setting.scale
        # a smaller scale for the outputs, so that the first prime holds large outputs
        last = 2.0 ** (self.setting.parameters.prime_bits[0] - _OUTPUT_BITS)
        self._steps: list[_CiphertextStep] = []
        for level, scale in ((top, now), (top - 2, now), (top - 4, min(now, last))):
            plain = scale * prime(level) / now
            reached = now * plain / prime(level)
            self._steps.append(_CiphertextStep(level, plain, reached))
            now = reached * reached / prime(level - 1)

    # ---- the client's side

    def pack_pictures(self, pictures: npt.ArrayLike) -> list[Values]:
        """Arrange up to `images` pictures [n, 28, 28] from 0 to 1 in slots of ciphertexts."""
        pixels = plaintext.check_images(pictures)
        if not 1 <= len(pixels) <= self.images:
            raise UsageError(
                f"The network takes 1 to {self.images} pictures. Received: {len(pixels)}.",
                code="number-out-of-range",
                operation="pictures",
                received=len(pixels),
            )
        step = plaintext.STRIDE
        packed = []
        for spread in self._spreads:
            # shifted by the first column's move; a row's shift would reach into the next repeat
            first = spread.columns[0] * _COLUMN
            parts = []
            for row, column in spread.phases:
                cells = pixels[:, row::step, column::step].reshape(len(pixels), -1)
                padded = np.zeros((len(pixels), self.layout.period))
                padded[:, : plaintext.FEATURES] = np.repeat(cells, plaintext.MAPS, axis=1)
                parts.append(np.roll(padded, -first, axis=1))
            packed.append(self._join_parts(parts))
        return packed

    def _join_parts(self, parts: Sequence[Values]) -> Values:
        """Join vectors [images, n], one in each repeat of the layout; the other slots are zero."""
        repeats = self.layout.repeats
        once = SlotLayout(self.layout.slots // repeats, self.layout.period, self.layout.images)
        slots = np.zeros(self.layout.slots)
        for place, vectors in enumerate(parts):
            slots[place * once.slots : (place + 1) * once.slots] = once.pack_vectors(vectors)
        return slots

    def unpack_outputs(self, slots: Values, count: int) -> Values:
        """Extract the outputs [count, 10] from the slots of the result."""
        return self._output.layout.unpack_slots(slots, count, CLASSES)

    # ---- the server's side

    def encode_weights(self, model: MnistModel) -> Iterator[Any]:
        """Yield the encoded weights in the order of `run_network`; None for zeros.

        Raises:
            RangeError: the last modulus does not hold all possible outputs.
        """
        self.bound_products(model)
        kernels = self._arrange_kernels(model)
        biases = (np.tile(model.kernel_bias, plaintext.SIDE**2), model.hidden_bias)
        weights: list[tuple[Iterable[Values], Values, SlotLayout]] = [
            (kernels, biases[0], self.layout),
            (self._hidden.list_diagonals(model.hidden), biases[1], self._output.layout),
            (self._output.list_diagonals(model.output), model.output_bias, self._output_layout),
        ]
        for step, (products, bias, layout) in zip(self._steps, weights, strict=True):
            for values in products:
                yield encode_slot_plaintext(self.setting, values, step.plain_scale, step.level)
            packed = layout.pack_vectors(np.tile(bias, (layout.images, 1)))
            yield encode_slot_plaintext(self.setting, packed, step.bias_scale, step.level - 1)

    def _arrange_kernels(self, model: MnistModel) -> Iterator[Values]:
        """Yield the weights of every shift of every ciphertext; taps beyond the border are zero."""
        side, kernel = plaintext.SIDE, plaintext.KERNEL
        taps = {
            (row, column): model.kernels[y * kernel + x]
            for y, row in enumerate(map(_place_kernel_tap, range(kernel)))
            for x, column in enumerate(map(_place_kernel_tap, range(kernel)))
        }
        cell = np.arange(side)
        for spread in self._spreads:
            for down, right in spread.moves:
                inside = np.outer(
                    (cell + down >= 0) & (cell + down < side),
                    (cell + right >= 0) & (cell + right < side),
                )
                parts = []
                for row, column in spread.phases:
                    weights = taps.get(((row, down), (column, right)))
                    if weights is None:
                        weights = np.zeros(plaintext.MAPS)
                    features = (inside[..., None] * weights).reshape(1, -1)
                    parts.append(np.tile(features, (self.layout.images, 1)))
                yield self._join_parts(parts)

    @property
    def _output_layout(self) -> SlotLayout:
        return SlotLayout(self.layout.slots, self._output.rows, self.layout.images)

    def serialize_weights(self, model: MnistModel) -> Iterator[bytes]:
        """Yield the encoded weights as bytes for storage; empty for zeros."""
        for plain in self.encode_weights(model):
            yield b"" if plain is None else plain.to_bytes()

    def bound_products(self, model: MnistModel) -> tuple[float, float, float]:
        """Bound the slots after each product with weights, for pixels from 0 to 1.

        Raises:
            RangeError: the modulus does not hold a bound.
        """
        top, now = np.ones(_TAPS), []
        for weights, bias, step, copies in (
            (model.kernels.T, model.kernel_bias, self._steps[0], plaintext.SIDE**2),
            (model.hidden, model.hidden_bias, self._steps[1], 1),
            (model.output, model.output_bias, self._steps[2], 1),
        ):
            # inputs are from 0 to top, as pixels and squares are not negative
            high = np.maximum(weights, 0) @ top + np.maximum(bias, 0)
            low = np.maximum(-weights, 0) @ top + np.maximum(-bias, 0)
            largest = np.maximum(high, low)
            now.append(float(largest.max()))
            self.setting.check_room(now[-1], step.bias_scale, step.level - 1, "The network")
            top = np.tile(np.square(largest), copies)
        return now[0], now[1], now[2]

    def run_network(
        self,
        server: Server,
        inputs: Sequence[Encrypted],
        plaintexts: Iterable[Any],
        bounds: tuple[float, float, float],
    ) -> Encrypted:
        """Compute the encrypted outputs of up to `images` pictures.

        Args:
            server: the server.
            inputs: the encrypted results of `pack_pictures`.
            plaintexts: result of `encode_weights`, or the bytes of `serialize_weights`; they are
                read one by one on demand.
            bounds: result of `bound_products`.

        Raises:
            UsageError: ciphertexts or plaintexts are too few or too many.
            DataError: bytes are not plaintexts of these parameters.
            SecurityError: a ciphertext is under another key than the server's.
        """
        if len(inputs) != self.ciphertexts:
            raise UsageError(
                f"The network takes {self.ciphertexts} ciphertexts. Received: {len(inputs)}.",
                code="ciphertext-count",
                received=len(inputs),
                expected=self.ciphertexts,
            )
        reader = (self._read_plaintext(plain) for plain in plaintexts)
        rotated = self._rotate_inputs(server, inputs)
        x = server.inner_product(
            rotated, take_layer_plaintexts(reader, self._plain_product_count), bounds[0]
        )
        if x is None:
            raise UsageError(
                "Expected a kernel that is not 0. Received: zeros alone, whose result is known.",
                code="product-of-zeros",
                operation="kernels",
            )
        x = server.rescale(x)
        for step in self._folds:
            x = server.add(x, server.rotate(x, step), bounds[0])
        x = self._add_bias(server, x, reader)
        for product, bound in ((self._hidden, bounds[1]), (self._output, bounds[2])):
            x = server.multiply(x, x)
            x = product.multiply_diagonals(server, x, reader, bound)
            x = product.fold_rows(server, server.rescale(x), bound)
            x = self._add_bias(server, x, reader)
        if next(reader, self) is not self:
            raise UsageError(
                "Expected a plaintext for each weight. Received: more plaintexts than the network "
                "has weights.",
                code="too-many-plaintexts",
            )
        return x

    def _rotate_inputs(self, server: Server, inputs: Sequence[Encrypted]) -> Iterator[Encrypted]:
        """Yield every ciphertext at each of its shifts; a column's shift follows the previous."""
        stride = self.layout.stride
        for spread, first in zip(self._spreads, inputs, strict=True):
            for down in spread.rows:
                cell = server.rotate(first, down * _ROW * stride) if down else first
                for right in spread.columns:
                    if right != spread.columns[0]:
                        cell = server.rotate(cell, _COLUMN * stride)
                    yield cell

    @property
    def _plain_product_count(self) -> int:
        return sum(len(spread.moves) for spread in self._spreads)

    def _read_plaintext(self, plain: Any) -> Any:
        if isinstance(plain, (bytes, bytearray, memoryview)):
            return self.setting.load_plaintext(bytes(plain)) if len(plain) else None
        return plain

    def _add_bias(self, server: Server, x: Encrypted, reader: Iterator[Any]) -> Encrypted:
        (plain,) = take_layer_plaintexts(reader, 1)
        # the bound of x includes the bias
        return x if plain is None else server.add_plain(x, plain, 0.0)

    # ---- costs

    def _describe_layers(self, top: int) -> tuple[EncryptedLayer, ...]:
        taps = self._plain_product_count
        size = self.plaintext_bytes
        stride = self.layout.stride
        moves = [
            step
            for spread in self._spreads
            for step in [_COLUMN * stride] * (len(spread.rows) * (len(spread.columns) - 1))
            + [down * _ROW * stride for down in spread.rows if down]
        ]
        first = [
            *self._rotation_costs(top, moves, adds=False),
            LayerOperation("multiply_plain", top, taps, taps * size(top)),
            LayerOperation("add", top, taps - 1),
            LayerOperation("rescale", top, 1),
            *self._rotation_costs(top - 1, self._folds),
            LayerOperation("add_plain", top - 1, 1, size(top - 1)),
        ]
        layers = [EncryptedLayer("convolution 5x5", tuple(first), taps + 1)]
        for name, product, level in (
            ("dense 100", self._hidden, top - 2),
            ("dense 10", self._output, top - 4),
        ):
            square = (
                LayerOperation("square", level + 1, 1),
                LayerOperation("relinearize", level + 1, 1, key_ids=(RELINEARIZE,)),
                LayerOperation("rescale", level + 1, 1),
            )
            layers.append(EncryptedLayer("square", square, 0))
            stride, count = product.layout.stride, product.shift
            giant = product.baby * stride
            moves = [stride] * (product.baby - 1) + [giant] * (product.giant - 1)
            operations = (
                *self._rotation_costs(level, moves, adds=False),
                LayerOperation("multiply_plain", level, count, count * size(level)),
                LayerOperation("add", level, count - 1),
                LayerOperation("rescale", level, 1),
                *self._rotation_costs(level - 1, product.folds),
                LayerOperation("add_plain", level - 1, 1, size(level - 1)),
            )
            layers.append(EncryptedLayer(name, operations, count + 1))
        return tuple(layers)

    def _rotation_costs(
        self, level: int, steps: Sequence[int], adds: bool = True
    ) -> Iterator[LayerOperation]:
        if steps:
            keys = tuple(dict.fromkeys(f"rotate {step}" for step in steps))
            yield LayerOperation("rotate", level, len(steps), key_ids=keys)
            if adds:
                yield LayerOperation("add", level, len(steps))

    def plaintext_bytes(self, level: int) -> int:
        """Return the bytes of an encoded plaintext at a level, without its header."""
        return self.setting.parameters.degree * 8 * level

    @property
    def key_bytes(self) -> Mapping[str, int]:
        """Bytes of each key that the server reads, without headers."""
        primes = self.setting.parameters.levels
        each = primes * 2 * (primes + 1) * self.setting.parameters.degree * 8
        return dict.fromkeys((RELINEARIZE, *(f"rotate {step}" for step in self.steps)), each)
