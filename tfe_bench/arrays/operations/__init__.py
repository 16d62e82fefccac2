"""Operations that a client's expression may name: a closed list, with the properties of each.

Each module of this package registers operations by `array_operation`, at the rule of their
bounds. The function of an operation takes parties' private values and public parameters, validates
both, declares its cost to a cost party, and opens nothing.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tfe_bench.arrays.bounds import BoundsRule, OperandGuard, widest_result_bounds
from tfe_bench.errors import UsageError, did_you_mean

# Largest product of parameters that determine the size of a result, or a number of repetitions.
MAX_ELEMENTS, MAX_REPEATS = 1 << 27, 1 << 12
# Conversions of operands (operand_scales.py): to numbers of one scale; of truth values to numbers
# only, as a product takes factors of any scale; to numbers of one scale, unless all are truth
# values.
ONE_SCALE, FACTORS, BITS_OR_NUMBERS = "one scale", "factors", "bits or numbers"

# Function that applies an operation to private arrays: array.apply_array_operation.
Apply = Callable[..., Any]
# Functions of Apply and of arguments by name, with private arrays among them.
Composer = Callable[[Apply, Mapping[str, Any]], Any]
GuardRule = Callable[[Apply, Mapping[str, Any]], "list[tuple[Any, OperandGuard]]"]


@dataclass(frozen=True)
class Operation:
    """An operation that an expression may name.

    Attributes:
        name: name of the operation.
        function: function of private values and public parameters of the current party.
        between: whether it calls graphs itself, and so runs between graphs of other steps.
        sizes: largest product of the numbers of a parameter.
        loops: whether it takes a body, which it runs in iterations.
        bits: default bits of values; None: the function's own default. Functions that take fewer
            bits by default need the most, as an expression's author does not know the ranges.
        bounds: rule of the bounds of its results.
        operands: ONE_SCALE, FACTORS or BITS_OR_NUMBERS; None: operands are not converted.
        compose: composition of other operations, each planned separately; it returns None for
            arguments that the function takes.
        guards: private arrays that it derives from its arguments and that must be in a range,
            with the guard of each.
        undefined: the operand without result, and the comparison with 0 that detects it, if the
            operation takes `otherwise`.
        view: the same selection or order of elements of a NumPy array, for positional arguments.
        check: check of its arguments by name, before it runs.
    """

    name: str
    function: Callable[..., Any]
    between: bool = False
    sizes: Mapping[str, int] = field(default_factory=dict)
    loops: bool = False
    bits: int | None = None
    bounds: BoundsRule = widest_result_bounds
    operands: str | None = None
    compose: Composer = lambda apply, arguments: None
    guards: GuardRule = lambda apply, arguments: []
    undefined: tuple[str, str] | None = None
    view: Callable[..., Any] | None = None
    check: Callable[[Mapping[str, Any]], None] | None = None

    @functools.cached_property
    def signature(self) -> inspect.Signature:
        """Signature of the function."""
        return inspect.signature(self.function)

    def bind_arguments(
        self, args: tuple[Any, ...], named: Mapping[str, Any]
    ) -> inspect.BoundArguments:
        """Bind arguments to the function's parameters.

        Raises:
            UsageError: the function does not take them.
        """
        try:
            return self.signature.bind(*args, **named)
        except TypeError as error:
            raise UsageError(
                f"{self.name} takes {self.name}{self._parameter_list()}. Received: {error}.",
                code="unsupported-argument",
                operation=self.name,
            ) from None

    def _parameter_list(self) -> str:
        return f"({', '.join(self.signature.parameters)})"

    def view_elements(self, args: Sequence[Any]) -> Any:
        """Return a view of the NumPy array args[0]; None: these arguments have no view."""
        if self.view is None or len(args) != len(inspect.signature(self.view).parameters):
            return None
        return self.view(*args)


_registered: dict[str, Operation] = {}


def _register(operation: Operation) -> None:
    if operation.name in _registered:
        raise UsageError(
            f"There is already an operation {operation.name!r}. Choose another name.",
            code="duplicate-name",
            operation=operation.name,
        )
    _registered[operation.name] = operation


def array_operation(
    *functions: Callable[..., Any],
    aliases: Mapping[str, Callable[..., Any]] | None = None,
    **properties: Any,
) -> Callable[[BoundsRule], BoundsRule]:
    """Register operations of a module of this package, at the rule of their bounds.

    Args:
        functions: functions of operations with the same properties, each with its name.
        aliases: further functions by the name of their operation.
        properties: as the attributes of Operation.
    """

    def register_rule(rule: BoundsRule) -> BoundsRule:
        named = {function.__name__: function for function in functions} | dict(aliases or {})
        for name, function in named.items():
            _register(Operation(name, function, bounds=rule, **properties))
        return rule

    return register_rule


def add(operation: Operation) -> None:
    """Register an operation of another package, at the client and at each worker that imports it.

    Raises:
        UsageError: the name is taken.
    """
    _import_modules()
    _register(operation)


@functools.cache
def _import_modules() -> None:
    """Import the modules of this package, which register their operations."""
    for module in pkgutil.iter_modules(__path__, __name__ + "."):
        importlib.import_module(module.name)


def list_operations() -> dict[str, Operation]:
    """Return all operations, by name."""
    _import_modules()
    return dict(_registered)


def find_operation(name: object) -> Operation:
    """Return the operation of a name.

    Raises:
        UsageError: it does not exist; the error suggests the closest name.
    """
    _import_modules()
    operation = _registered.get(name) if isinstance(name, str) else None
    if operation is None:
        shown = str(name)[:80]
        raise UsageError(
            f"Private arrays have no operation {shown!r}.{did_you_mean(shown, _registered)}",
            code="unsupported-operation",
            operation=shown,
        )
    return operation
