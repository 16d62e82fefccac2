"""Sources and targets of values: constants, variables, inputs of players, outputs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from tfe_bench.arrays.array import PrivateArray
from tfe_bench.errors import RangeError, UsageError
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.session.fixedpoint import FixedPoint
from tfe_bench.tf_encrypted.config import get_config
from tfe_bench.tf_encrypted.protocol.aby3.tensors import (
    ABY3Constant,
    ABY3PrivateTensor,
    ABY3PrivateVariable,
    ABY3PublicTensor,
    ABY3PublicVariable,
    ABY3Tensor,
    ShareType,
    pack_words,
    unpack_words,
)
from tfe_bench.tf_encrypted.protocol.protocol import Protocol
from tfe_bench.tf_encrypted.tensor import Factory, factories, fixed64_heuristic, int1factory
from tfe_bench.tf_encrypted.tensor.fixed import FixedpointConfig

# Public elements in an expression's plan; larger arrays are shared.
MOST_PUBLIC = 4096


def to_numpy(value: Any) -> npt.NDArray[Any]:
    """Return a public value as an array.

    Raises:
        UsageError: it is private, or holds other values than numbers and truth values.
    """
    if isinstance(value, ABY3PublicTensor):
        return value.value
    if isinstance(value, ABY3Tensor):
        raise UsageError(
            f"Expected a public value. Received: {value!r}. Reveal it if that is permitted.",
            code="public-value-required",
        )
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise UsageError(
            f"Expected numbers. Received: {type(value).__name__}.",
            code="not-a-number",
            received=type(value).__name__,
        )
    return array


class Definitions(Protocol):
    """Creation, assignment and reveal of tensors.

    Args:
        server_0, server_1, server_2: for programs that name them; the workers are those of
            the configuration.
        fixedpoint_config: one of 64 bits, "l" or "low".
    """

    def __init__(
        self,
        server_0: Any = None,
        server_1: Any = None,
        server_2: Any = None,
        fixedpoint_config: Any = None,
    ) -> None:
        if fixedpoint_config in (None, "l", "low"):
            fixedpoint_config = fixed64_heuristic
        if fixedpoint_config in ("h", "high"):
            raise UsageError(
                "Words of 128 bits are not offered. Received: fixedpoint_config='h'. With 64 bits "
                "operations are right to a few units of 2^-16; see docs/from_tf_encrypted.md.",
                code="unsupported-ring",
                operation="fixedpoint_config",
            )
        if not isinstance(fixedpoint_config, FixedpointConfig):
            raise UsageError(
                f"fixedpoint_config is 'l' or a FixedpointConfig. Received: {fixedpoint_config!r}.",
                code="unsupported-argument",
                operation="fixedpoint_config",
            )
        fits = fixedpoint_config.nbits == 64 and fixedpoint_config.scaling_base == 2
        if not fits or not 1 <= fixedpoint_config.precision_fractional <= 24:
            raise UsageError(
                "Reals have 1 to 24 binary fractional bits in words of 64. Received: "
                f"{fixedpoint_config!r}.",
                code="unsupported-argument",
                operation="fixedpoint_config",
            )
        names = ["server0", "server1", "server2"]
        players = [server_0, server_1, server_2]
        config = get_config()
        self.servers = [config.get_player(g or n) for g, n in zip(players, names, strict=True)]
        self.fixedpoint_config = fixedpoint_config
        self.default_nbits = fixedpoint_config.nbits
        self.default_factory = factories[self.default_nbits]

    @property
    def _fractional_bits(self) -> int:
        return self.fixedpoint_config.precision_fractional

    # ---- conversions between values and tensors

    def _encode_words(self, value: npt.NDArray[Any], apply_scaling: bool) -> npt.NDArray[np.int64]:
        if apply_scaling:
            return FixedPoint(self._fractional_bits).encode(value.astype(np.float64))
        rounded = np.rint(value) if value.dtype.kind == "f" else value
        if not np.array_equal(rounded, value):
            raise UsageError(
                "Without scaling there are whole numbers only. Received: fractions.",
                code="not-an-integer",
                operation="apply_scaling",
            )
        return rounded.astype(np.int64)

    def _make_array(
        self, value: Any, apply_scaling: bool, share_type: str, factory: Factory | None
    ) -> PrivateArray:
        array, ring, cluster = (
            to_numpy(value),
            factory or self.default_factory,
            get_config().cluster,
        )
        if share_type == ShareType.BOOLEAN:
            words = self._encode_words(array, apply_scaling and ring != int1factory)
            if ring == int1factory:
                if not np.isin(words, (0, 1)).all():
                    raise RangeError(
                        "Elements of one bit are 0 and 1. Received: other numbers.",
                        code="value-out-of-range",
                        operation="value",
                    )
                bits = words == 1
            else:
                self._check_ring_range(words, ring)
                bits = unpack_words(words, ring.nbits)
            private_bits: PrivateArray = cluster.private(bits, kind="bits")
            return private_bits
        if share_type != ShareType.ARITHMETIC:
            raise UsageError(
                f"Shares are ARITHMETIC or BOOLEAN. Received: {share_type!r}.",
                code="unknown-name",
                operation="share_type",
                received=share_type,
            )
        if apply_scaling:
            scaled: PrivateArray = cluster.private(
                array.astype(np.float64), kind="fixed", fractional_bits=self._fractional_bits
            )
            return scaled
        words = self._encode_words(array, False)
        self._check_ring_range(words, ring)
        integers: PrivateArray = cluster.private(words, kind="int")
        return integers

    @staticmethod
    def _check_ring_range(words: npt.NDArray[np.int64], ring: Factory) -> None:
        bound = 1 << (ring.nbits - 1)
        if words.size and (int(words.min()) < -bound or int(words.max()) >= 2 * bound):
            raise RangeError(
                f"Elements have {ring.nbits} bits. Received: larger ones.",
                code="value-out-of-range",
                expected=f"{ring.nbits} bits",
            )

    def _wrap_private(self, array: PrivateArray, like: ABY3PrivateTensor | None = None) -> Any:
        """Wrap an array in a tensor: of single bits, or of numbers by the array's kind."""
        if array.kind == "bits":
            return ABY3PrivateTensor(self, array, False, ShareType.BOOLEAN, int1factory)
        ring = self.default_factory if like is None else like.backing_dtype
        ring = self.default_factory if ring == int1factory else ring
        return ABY3PrivateTensor(self, array, array.kind == "fixed", ShareType.ARITHMETIC, ring)

    def _wrap_public(
        self, value: npt.NDArray[Any], is_scaled: bool | None = None
    ) -> ABY3PublicTensor:
        array = np.asarray(value)
        scaled = array.dtype.kind == "f" if is_scaled is None else is_scaled
        ring = int1factory if array.dtype.kind == "b" else self.default_factory
        return ABY3PublicTensor(self, array, scaled, ring)

    def _to_operand(self, x: Any) -> Any:
        """Return an operand of private arrays' expressions: numbers, private or public."""
        if isinstance(x, ABY3PrivateTensor):
            if x.is_word:
                raise UsageError(
                    f"Expected arithmetic shares. Received: {x!r}. Use b2a.",
                    code="wrong-share-type",
                )
            return x.array.cast() if x.array.kind == "bits" else x.array
        value = to_numpy(x)
        if value.dtype.kind == "b":
            value = value.astype(np.int64)
        is_whole = value.dtype.kind == "f" and np.array_equal(value, np.rint(value))
        if is_whole and np.abs(value).max(initial=0) < 2.0**62:
            value = value.astype(np.int64)  # (an integer factor needs no truncation)
        if value.size > MOST_PUBLIC:
            kind = "fixed" if value.dtype.kind == "f" else "int"
            bits = self._fractional_bits if kind == "fixed" else None
            return get_config().cluster.private(value, kind=kind, fractional_bits=bits)
        return value

    def lift(self, x: Any, y: Any = None) -> Any:
        """Return numbers as public tensors, and tensors unchanged."""
        tensors = [
            v if isinstance(v, ABY3Tensor) else self._wrap_public(to_numpy(v))
            for v in (x, y)[: 1 + (y is not None)]
        ]
        return tensors[0] if y is None else tuple(tensors)

    # ---- definitions

    def define_constant(
        self,
        value: Any,
        apply_scaling: bool = True,
        name: str | None = None,
        factory: Factory | None = None,
    ) -> ABY3Constant:
        """Define a public value of the program."""
        rounded = self._round_values(to_numpy(value), apply_scaling)
        return ABY3Constant(self, rounded, apply_scaling, factory or self.default_factory)

    def _round_values(self, value: npt.NDArray[Any], apply_scaling: bool) -> npt.NDArray[Any]:
        words = self._encode_words(value, apply_scaling)
        return (
            np.asarray(FixedPoint(self._fractional_bits).decode(words)) if apply_scaling else words
        )

    def define_public_variable(
        self,
        initial_value: Any,
        apply_scaling: bool = True,
        name: str | None = None,
        factory: Factory | None = None,
    ) -> ABY3PublicVariable:
        """Define a public value that can be assigned."""
        rounded = self._round_values(to_numpy(initial_value), apply_scaling)
        return ABY3PublicVariable(self, rounded, apply_scaling, factory or self.default_factory)

    def define_private_variable(
        self,
        initial_value: Any,
        apply_scaling: bool = True,
        share_type: str = ShareType.ARITHMETIC,
        name: str | None = None,
        factory: Factory | None = None,
    ) -> ABY3PrivateVariable:
        """Define a private value that can be assigned.

        Raises:
            UsageError: the value is no array of numbers.
            RangeError: elements that do not fit.
        """
        if isinstance(initial_value, ABY3PrivateTensor):
            tensor = initial_value
            about = (tensor.array, tensor.is_scaled, tensor.share_type, tensor.backing_dtype)
        else:
            array = self._make_array(initial_value, apply_scaling, share_type, factory)
            about = (array, apply_scaling, share_type, factory or self.default_factory)
        variable = ABY3PrivateVariable(self, *about)
        get_config().settle_later(variable)
        return variable

    def define_private_input(
        self,
        player: Any,
        inputter_fn: Callable[[], Any],
        apply_scaling: bool = True,
        share_type: str = ShareType.ARITHMETIC,
        name_scope: str | None = None,
        factory: Factory | None = None,
    ) -> Any:
        """Return the result of a player's function as a private tensor."""
        return self.define_local_computation(
            player, inputter_fn, None, apply_scaling, share_type, name_scope, factory
        )

    def define_public_input(
        self,
        player: Any,
        inputter_fn: Callable[[], Any],
        apply_scaling: bool = True,
        name_scope: str | None = None,
        factory: Factory | None = None,
    ) -> Any:
        """Return the result of a player's function as a public tensor."""
        inputs = inputter_fn()
        if isinstance(inputs, (list, tuple)):
            return [self.define_constant(v, apply_scaling, factory=factory) for v in inputs]
        return self.define_constant(inputs, apply_scaling, factory=factory)

    def define_private_placeholder(self, shape: Any, apply_scaling: bool = True, **_: Any) -> Any:
        """Define a private value that is set with `assign` before its use; zeros until then."""
        return self.define_private_variable(np.zeros(list(shape)), apply_scaling)

    def define_local_computation(
        self,
        player: Any,
        computation_fn: Callable[..., Any],
        arguments: Any = None,
        apply_scaling: bool = True,
        share_type: str = ShareType.ARITHMETIC,
        name_scope: str | None = None,
        factory: Factory | None = None,
    ) -> Any:
        """Run a function of a player, who learns its private arguments; its results are private."""
        get_config().get_player(player)
        operands = [] if arguments is None else arguments
        operands = operands if isinstance(operands, (list, tuple)) else [operands]
        results = computation_fn(*[self._reveal_argument(operand) for operand in operands])
        if results is None:
            return None
        if isinstance(results, (list, tuple)):
            return [self._make_input(v, apply_scaling, share_type, factory) for v in results]
        return self._make_input(results, apply_scaling, share_type, factory)

    def _make_input(self, value: Any, apply_scaling: bool, share_type: str, factory: Any) -> Any:
        array = self._make_array(value, apply_scaling, share_type, factory)
        ring = factory or self.default_factory
        tensor = ABY3PrivateTensor(self, array, apply_scaling, share_type, ring)
        tensor.own = to_numpy(value)
        get_config().settle_later(tensor)
        return tensor

    def _reveal_argument(self, value: Any) -> Any:
        if isinstance(value, ABY3PrivateTensor):
            return value.reveal().to_native()
        return value.to_native() if isinstance(value, ABY3PublicTensor) else value

    def define_output(self, player: Any, arguments: Any, outputter_fn: Callable[..., Any]) -> Any:
        """Reveal private arguments to a player's function."""
        get_config().get_player(player)
        operands = arguments if isinstance(arguments, (list, tuple)) else [arguments]
        return outputter_fn(*[self._reveal_argument(operand) for operand in operands])

    def local_computation(self, player_name: Any = None, **named: Any) -> Any:
        """Decorate a function of a player; see define_local_computation."""

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(function)
            def compute_locally(*args: Any, **kwargs: Any) -> Any:
                player = None if callable(player_name) else player_name
                player = player or kwargs.get("player_name")
                player = player or (getattr(args[0], "player_name", None) if args else None)
                if player is None:
                    raise UsageError(
                        "local_computation takes a player's name: of the decorator, as the "
                        "argument player_name, or of the object. Received: none.",
                        code="missing-argument",
                        operation="player_name",
                    )
                return self.define_local_computation(player, function, list(args), **named)

            return compute_locally

        return decorate(player_name) if callable(player_name) else decorate

    # ---- assignment and reveal

    def assign(self, variable: Any, value: Any) -> Any:
        """Assign another value of its shape and kind to a variable."""
        if isinstance(variable, ABY3PublicVariable):
            new = self._round_values(to_numpy(value), variable.is_scaled)
            self._check_same_shape(variable, new.shape)
            variable.value = new
            return variable
        if not isinstance(variable, ABY3PrivateVariable):
            raise UsageError(
                f"assign takes a variable. Received: {variable!r}.",
                code="wrong-type",
                operation="variable",
            )
        if not isinstance(value, ABY3PrivateTensor):
            about = (variable.is_scaled, variable.share_type, variable.backing_dtype)
            value = self.define_private_variable(
                to_numpy(value), about[0], about[1], None, about[2]
            )
        self._check_same_shape(variable, tuple(value.shape.as_list()))
        if (value.share_type, value.array.kind) != (variable.share_type, variable.array.kind):
            raise UsageError(
                f"assign takes values of one kind. Received: {variable!r}, {value!r}.",
                code="wrong-share-type",
                operation="value",
            )
        variable.array = value.array
        get_config().settle_later(variable)
        return variable

    @staticmethod
    def _check_same_shape(variable: ABY3Tensor, shape: tuple[int, ...]) -> None:
        if list(shape) != variable.shape.as_list():
            raise UsageError(
                f"assign takes values of one shape. Received: {variable.shape.as_list()} and "
                f"{list(shape)}.",
                code="shape-mismatch",
                operation="value",
                received=list(shape),
                expected=variable.shape.as_list(),
            )

    def reveal(self, x: Any) -> Any:
        """Reveal a private tensor, or a list of them by one job, to this process.

        Raises:
            PolicyError: an operator does not permit it.
        """
        several = x if isinstance(x, list) else [x]
        for tensor in several:
            if not isinstance(tensor, ABY3Tensor):
                raise UsageError(
                    f"reveal takes tensors. Received: {type(tensor).__name__}.",
                    code="wrong-type",
                    operation="x",
                    received=type(tensor).__name__,
                )
        hidden = [v for v in several if isinstance(v, ABY3PrivateTensor)]
        hidden = [v for v in hidden if v.known is None or v.known[0] is not v.array]
        values = get_config().run(hidden) if hidden else []
        for tensor, value in zip(hidden, values, strict=True):
            tensor.known = (tensor.array, self._wrap_revealed(tensor, value))
        revealed = [
            v.known[1] if isinstance(v, ABY3PrivateTensor) and v.known else v for v in several
        ]
        return revealed if isinstance(x, list) else revealed[0]

    def _wrap_revealed(self, x: ABY3PrivateTensor, value: Any) -> ABY3PublicTensor:
        if not x.is_word:
            return ABY3PublicTensor(self, np.asarray(value), x.is_scaled, x.backing_dtype)
        words = pack_words(np.asarray(value), x.backing_dtype.nbits)
        decoded = FixedPoint(self._fractional_bits).decode(words) if x.is_scaled else words
        return ABY3PublicTensor(self, np.asarray(decoded), x.is_scaled, x.backing_dtype)

    def zeros(
        self,
        shape: Any,
        apply_scaling: bool = True,
        share_type: str = ShareType.ARITHMETIC,
        factory: Factory | None = None,
        **_: Any,
    ) -> Any:
        """Return zeros, private or public."""
        if share_type == ShareType.PUBLIC:
            return self.define_constant(np.zeros(list(shape)), apply_scaling, factory=factory)
        return self._make_input(np.zeros(list(shape)), apply_scaling, share_type, factory)

    def while_loop(self, cond: Any, body: Any, loop_vars: Any) -> Any:
        """Run a loop with a public condition."""
        state = list(loop_vars)
        while bool(tf.convert_to_tensor(cond(*state))):
            state = list(body(*state))
        return state

    def _refuse_operation(self, name: str, instead: str) -> NoReturn:
        raise UsageError(
            f"{name} is not offered. {instead}", code="unsupported-operation", operation=name
        )
