"""Where values come from and leave: constants, variables, inputs of players, outputs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfe_bench.errors import RangeError, UsageError
from tfe_bench.models.arrays.array import PrivateArray
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
    packed,
    unpacked,
)
from tfe_bench.tf_encrypted.protocol.protocol import Protocol
from tfe_bench.tf_encrypted.tensor import Factory, factories, fixed64_heuristic, int1factory
from tfe_bench.tf_encrypted.tensor.fixed import FixedpointConfig

# Public elements that travel inside of an expression; more are made private.
MOST_PUBLIC = 4096


def native(value: Any) -> npt.NDArray[Any]:
    """A public value as an array.

    Raises:
        UsageError: it is private, or holds something else than numbers and truth values.
    """
    if isinstance(value, ABY3PublicTensor):
        return value.value
    if isinstance(value, ABY3Tensor):
        raise UsageError(
            f"A public value is due here. Received: {value!r}. Reveal it if it may be."
        )
    found = np.asarray(value)
    if found.dtype.kind not in "biuf":
        raise UsageError(f"Numbers are due here. Received: {type(value).__name__}.")
    return found


class Definitions(Protocol):
    """What makes tensors, and what becomes of them.

    Args:
        server_0, server_1, server_2: kept for programs that name them; the workers are those of
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
                "operations are right to a few units of 2^-16; see docs/from_tf_encrypted.md."
            )
        if not isinstance(fixedpoint_config, FixedpointConfig):
            raise UsageError(f"Received: fixedpoint_config={fixedpoint_config!r}. Say 'l'.")
        fits = fixedpoint_config.nbits == 64 and fixedpoint_config.scaling_base == 2
        if not fits or not 1 <= fixedpoint_config.precision_fractional <= 24:
            raise UsageError(
                "Reals have 1 to 24 binary fractional bits in words of 64. Received: "
                f"{fixedpoint_config!r}."
            )
        names = ["server0", "server1", "server2"]
        given = [server_0, server_1, server_2]
        config = get_config()
        self.servers = [config.get_player(g or n) for g, n in zip(given, names, strict=True)]
        self.fixedpoint_config = fixedpoint_config
        self.default_nbits = fixedpoint_config.nbits
        self.default_factory = factories[self.default_nbits]

    @property
    def _fraction(self) -> int:
        return self.fixedpoint_config.precision_fractional

    # ---- between values and tensors

    def _words(self, value: npt.NDArray[Any], apply_scaling: bool) -> npt.NDArray[np.int64]:
        if apply_scaling:
            return FixedPoint(self._fraction).encode(value.astype(np.float64))
        whole = np.rint(value) if value.dtype.kind == "f" else value
        if not np.array_equal(whole, value):
            raise UsageError("Without scaling there are whole numbers only. Received: fractions.")
        return whole.astype(np.int64)

    def _made(
        self, value: Any, apply_scaling: bool, share_type: str, factory: Factory | None
    ) -> PrivateArray:
        own, ring, cluster = native(value), factory or self.default_factory, get_config().cluster
        if share_type == ShareType.BOOLEAN:
            words = self._words(own, apply_scaling and ring != int1factory)
            if ring == int1factory:
                if not np.isin(words, (0, 1)).all():
                    raise RangeError("Elements of one bit are 0 and 1. Received: other numbers.")
                bits = words == 1
            else:
                self._check_held(words, ring)
                bits = unpacked(words, ring.nbits)
            found: PrivateArray = cluster.private(bits, kind="bits")
            return found
        if share_type != ShareType.ARITHMETIC:
            raise UsageError(f"Shares are ARITHMETIC or BOOLEAN. Received: {share_type!r}.")
        if apply_scaling:
            scaled: PrivateArray = cluster.private(
                own.astype(np.float64), kind="fixed", fractional_bits=self._fraction
            )
            return scaled
        words = self._words(own, False)
        self._check_held(words, ring)
        integers: PrivateArray = cluster.private(words, kind="int")
        return integers

    @staticmethod
    def _check_held(words: npt.NDArray[np.int64], ring: Factory) -> None:
        bound = 1 << (ring.nbits - 1)
        if words.size and (int(words.min()) < -bound or int(words.max()) >= 2 * bound):
            raise RangeError(f"Elements have {ring.nbits} bits. Received: larger ones.")

    def _private(self, array: PrivateArray, like: ABY3PrivateTensor | None = None) -> Any:
        """A tensor of an array: of bits one for each element, of numbers as its kind says."""
        if array.kind == "bits":
            return ABY3PrivateTensor(self, array, False, ShareType.BOOLEAN, int1factory)
        ring = self.default_factory if like is None else like.backing_dtype
        ring = self.default_factory if ring == int1factory else ring
        return ABY3PrivateTensor(self, array, array.kind == "fixed", ShareType.ARITHMETIC, ring)

    def _public(self, value: npt.NDArray[Any], is_scaled: bool | None = None) -> ABY3PublicTensor:
        own = np.asarray(value)
        scaled = own.dtype.kind == "f" if is_scaled is None else is_scaled
        ring = int1factory if own.dtype.kind == "b" else self.default_factory
        return ABY3PublicTensor(self, own, scaled, ring)

    def _operand(self, x: Any) -> Any:
        """What an expression of private arrays takes: numbers, private or public."""
        if isinstance(x, ABY3PrivateTensor):
            if x.is_word:
                raise UsageError(f"Arithmetic shares are due here. Received: {x!r}. Use b2a.")
            return x.array.cast() if x.array.kind == "bits" else x.array
        value = native(x)
        if value.dtype.kind == "b":
            value = value.astype(np.int64)
        whole = value.dtype.kind == "f" and np.array_equal(value, np.rint(value))
        if whole and np.abs(value).max(initial=0) < 2.0**62:
            value = value.astype(np.int64)  # (a whole factor takes no truncation)
        if value.size > MOST_PUBLIC:
            kind = "fixed" if value.dtype.kind == "f" else "int"
            bits = self._fraction if kind == "fixed" else None
            return get_config().cluster.private(value, kind=kind, fractional_bits=bits)
        return value

    def lift(self, x: Any, y: Any = None) -> Any:
        """Numbers as public tensors; tensors as they are."""
        found = [
            v if isinstance(v, ABY3Tensor) else self._public(native(v))
            for v in (x, y)[: 1 + (y is not None)]
        ]
        return found[0] if y is None else tuple(found)

    # ---- definitions

    def define_constant(
        self,
        value: Any,
        apply_scaling: bool = True,
        name: str | None = None,
        factory: Factory | None = None,
    ) -> ABY3Constant:
        """A public value of the program."""
        own = self._rounded(native(value), apply_scaling)
        return ABY3Constant(self, own, apply_scaling, factory or self.default_factory)

    def _rounded(self, value: npt.NDArray[Any], apply_scaling: bool) -> npt.NDArray[Any]:
        words = self._words(value, apply_scaling)
        return np.asarray(FixedPoint(self._fraction).decode(words)) if apply_scaling else words

    def define_public_variable(
        self,
        initial_value: Any,
        apply_scaling: bool = True,
        name: str | None = None,
        factory: Factory | None = None,
    ) -> ABY3PublicVariable:
        """A public value that is assigned to."""
        own = self._rounded(native(initial_value), apply_scaling)
        return ABY3PublicVariable(self, own, apply_scaling, factory or self.default_factory)

    def define_private_variable(
        self,
        initial_value: Any,
        apply_scaling: bool = True,
        share_type: str = ShareType.ARITHMETIC,
        name: str | None = None,
        factory: Factory | None = None,
    ) -> ABY3PrivateVariable:
        """A private value that is assigned to.

        Raises:
            UsageError: no numbers.
            RangeError: elements that do not fit.
        """
        if isinstance(initial_value, ABY3PrivateTensor):
            own = initial_value
            about = (own.array, own.is_scaled, own.share_type, own.backing_dtype)
        else:
            array = self._made(initial_value, apply_scaling, share_type, factory)
            about = (array, apply_scaling, share_type, factory or self.default_factory)
        found = ABY3PrivateVariable(self, *about)
        get_config().settle_later(found)
        return found

    def define_private_input(
        self,
        player: Any,
        inputter_fn: Callable[[], Any],
        apply_scaling: bool = True,
        share_type: str = ShareType.ARITHMETIC,
        name_scope: str | None = None,
        factory: Factory | None = None,
    ) -> Any:
        """What a player's function returns, private."""
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
        """What a player's function returns, public."""
        given = inputter_fn()
        if isinstance(given, (list, tuple)):
            return [self.define_constant(v, apply_scaling, factory=factory) for v in given]
        return self.define_constant(given, apply_scaling, factory=factory)

    def define_private_placeholder(self, shape: Any, apply_scaling: bool = True, **_: Any) -> Any:
        """A private value that is fed with `assign` before it is used; zeros until then."""
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
        """A function of a player, who learns its private arguments; its results are private."""
        get_config().get_player(player)
        given = [] if arguments is None else arguments
        given = given if isinstance(given, (list, tuple)) else [given]
        made = computation_fn(*[self._told(each) for each in given])
        if made is None:
            return None
        if isinstance(made, (list, tuple)):
            return [self._input(v, apply_scaling, share_type, factory) for v in made]
        return self._input(made, apply_scaling, share_type, factory)

    def _input(self, value: Any, apply_scaling: bool, share_type: str, factory: Any) -> Any:
        array = self._made(value, apply_scaling, share_type, factory)
        ring = factory or self.default_factory
        found = ABY3PrivateTensor(self, array, apply_scaling, share_type, ring)
        found.own = native(value)
        get_config().settle_later(found)
        return found

    def _told(self, value: Any) -> Any:
        if isinstance(value, ABY3PrivateTensor):
            return value.reveal().to_native()
        return value.to_native() if isinstance(value, ABY3PublicTensor) else value

    def define_output(self, player: Any, arguments: Any, outputter_fn: Callable[..., Any]) -> Any:
        """Hands private arguments to a player's function, who learns them."""
        get_config().get_player(player)
        given = arguments if isinstance(arguments, (list, tuple)) else [arguments]
        return outputter_fn(*[self._told(each) for each in given])

    def local_computation(self, player_name: Any = None, **named: Any) -> Any:
        """Decorates a function of a player; see define_local_computation."""

        def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(function)
            def computed(*args: Any, **given: Any) -> Any:
                player = None if callable(player_name) else player_name
                player = player or given.get("player_name")
                player = player or (getattr(args[0], "player_name", None) if args else None)
                if player is None:
                    raise UsageError(
                        "local_computation wants a player's name: of the decorator, as the "
                        "argument player_name, or of the object."
                    )
                return self.define_local_computation(player, function, list(args), **named)

            return computed

        return decorated(player_name) if callable(player_name) else decorated

    # ---- what becomes of them

    def assign(self, variable: Any, value: Any) -> Any:
        """Gives a variable another value of its shape and kind."""
        if isinstance(variable, ABY3PublicVariable):
            new = self._rounded(native(value), variable.is_scaled)
            self._check_same(variable, new.shape)
            variable.value = new
            return variable
        if not isinstance(variable, ABY3PrivateVariable):
            raise UsageError(f"assign takes a variable. Received: {variable!r}.")
        if not isinstance(value, ABY3PrivateTensor):
            about = (variable.is_scaled, variable.share_type, variable.backing_dtype)
            value = self.define_private_variable(native(value), about[0], about[1], None, about[2])
        self._check_same(variable, tuple(value.shape.as_list()))
        if (value.share_type, value.array.kind) != (variable.share_type, variable.array.kind):
            raise UsageError(f"assign takes values of one kind. Received: {variable!r}, {value!r}.")
        variable.array = value.array
        get_config().settle_later(variable)
        return variable

    @staticmethod
    def _check_same(variable: ABY3Tensor, shape: tuple[int, ...]) -> None:
        if list(shape) != variable.shape.as_list():
            raise UsageError(
                f"assign takes values of one shape. Received: {variable.shape.as_list()} and "
                f"{list(shape)}."
            )

    def reveal(self, x: Any) -> Any:
        """What a private tensor is, or each of a list of them, by one job: this process learns it.

        Raises:
            PolicyError: an operator does not permit it.
        """
        several = x if isinstance(x, list) else [x]
        for each in several:
            if not isinstance(each, ABY3Tensor):
                raise UsageError(f"reveal takes tensors. Received: {type(each).__name__}.")
        hidden = [v for v in several if isinstance(v, ABY3PrivateTensor)]
        hidden = [v for v in hidden if v.known is None or v.known[0] is not v.array]
        values = get_config().run(hidden) if hidden else []
        for each, value in zip(hidden, values, strict=True):
            each.known = (each.array, self._revealed(each, value))
        found = [v.known[1] if isinstance(v, ABY3PrivateTensor) and v.known else v for v in several]
        return found if isinstance(x, list) else found[0]

    def _revealed(self, x: ABY3PrivateTensor, value: Any) -> ABY3PublicTensor:
        if not x.is_word:
            return ABY3PublicTensor(self, np.asarray(value), x.is_scaled, x.backing_dtype)
        words = packed(np.asarray(value), x.backing_dtype.nbits)
        own = FixedPoint(self._fraction).decode(words) if x.is_scaled else words
        return ABY3PublicTensor(self, np.asarray(own), x.is_scaled, x.backing_dtype)

    def zeros(
        self,
        shape: Any,
        apply_scaling: bool = True,
        share_type: str = ShareType.ARITHMETIC,
        factory: Factory | None = None,
        **_: Any,
    ) -> Any:
        """Zeros, private or public."""
        if share_type == ShareType.PUBLIC:
            return self.define_constant(np.zeros(list(shape)), apply_scaling, factory=factory)
        return self._input(np.zeros(list(shape)), apply_scaling, share_type, factory)

    def while_loop(self, cond: Any, body: Any, loop_vars: Any) -> Any:
        """A loop whose condition is public."""
        state = list(loop_vars)
        while bool(tf.convert_to_tensor(cond(*state))):
            state = list(body(*state))
        return state

    def _refused(self, name: str, instead: str) -> NoReturn:
        raise UsageError(f"{name} is not offered. {instead}")
