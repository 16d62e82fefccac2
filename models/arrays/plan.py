"""Plans of expressions: leaves, steps and outputs as closed JSON data, never executed as code.

A value is known by its number: leaves first, then steps, each of which takes earlier ones.  What a
plan claims of its leaves is nothing: every worker compares it with what it holds.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfe_bench.cluster.jobs import MOST_AXES, MOST_WORDS
from tfe_bench.cluster.stored import check_clients, check_deployment, check_name
from tfe_bench.errors import UsageError
from tfe_bench.models.arrays import operations

MOST_STEPS, MOST_LEAVES, MOST_OUTPUTS = 1000, 256, 256
# Of one public array inside of a plan, and of all; of one operation's arguments, nested.
MOST_CONSTANT, MOST_CONSTANTS, MOST_NESTED, MOST_PARTS = 1 << 14, 1 << 17, 4, 4096
MOST_TEXT = 200
FIXED, INT, BITS = "fixed", "int", "bits"
KINDS = (FIXED, INT, BITS)
INPUT, HANDLE, STORED = "input", "handle", "stored"
REVEAL, KEEP = "reveal", "keep"
_INT = 1 << 63
_DTYPES = {"bool": np.bool_, "int64": np.int64, "float64": np.float64}


@dataclass(frozen=True)
class Ref:
    """A value of a plan: by its number, and by its place where a step makes several."""

    number: int
    place: int | None = None


@dataclass(frozen=True)
class Leaf:
    """A private value that a plan begins with.

    Attributes:
        source: INPUT, HANDLE or STORED.
        kind: FIXED, INT or BITS.
        shape, scale: its elements', and their fractional bits.
        about: of a handle its id; of what is stored its kind's infix, name, deployment and part.
    """

    source: str
    kind: str
    shape: tuple[int, ...]
    scale: int
    about: tuple[str, ...] = ()

    def header(self) -> list[Any]:
        """As JSON."""
        return [self.source, self.kind, list(self.shape), self.scale, *self.about]


@dataclass(frozen=True)
class Step:
    """An operation on earlier values.

    Attributes:
        op: its name.
        args, named: its arguments, as JSON.
    """

    op: str
    args: list[Any]
    named: Mapping[str, Any]

    def refs(self) -> list[Ref]:
        """The values that it takes."""
        return [ref for each in (*self.args, *self.named.values()) for ref in _refs(each)]

    def arguments(self, values: Mapping[Ref, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Its arguments with values in place."""
        args = tuple(decoded(each, values) for each in self.args)
        return args, {name: decoded(each, values) for name, each in self.named.items()}


@dataclass(frozen=True)
class Output:
    """What becomes of a value.

    Attributes:
        then: REVEAL, HANDLE or KEEP.
        about: of a handle its id; of what is kept: name, clients, replace, deployment.
    """

    ref: Ref
    then: str
    about: Mapping[str, Any]

    def header(self) -> list[Any]:
        """As JSON."""
        return [encoded(self.ref), self.then, dict(self.about)]


@dataclass(frozen=True)
class Plan:
    """A checked plan."""

    leaves: tuple[Leaf, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Output, ...]

    def header(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "leaves": [leaf.header() for leaf in self.leaves],
            "steps": [[s.op, s.args, dict(s.named)] for s in self.steps],
            "outputs": [output.header() for output in self.outputs],
        }

    def shape(self) -> str:
        """All that graphs and costs depend on: no names and no handles."""
        return json.dumps(
            [
                [leaf.header()[:4] for leaf in self.leaves],
                [[s.op, s.args, dict(s.named)] for s in self.steps],
                [[encoded(o.ref), o.then] for o in self.outputs],
            ],
            sort_keys=True,
        )

    @classmethod
    def of(cls, given: object) -> Plan:
        """From JSON of anybody.

        Raises:
            UsageError: it is no plan.
        """
        if not isinstance(given, Mapping) or set(given) != {"leaves", "steps", "outputs"}:
            raise UsageError("A plan has leaves, steps and outputs, and nothing else.")
        leaves = tuple(_leaf(each) for each in _list(given["leaves"], 0, MOST_LEAVES, "leaves"))
        steps: list[Step] = []
        left = [MOST_CONSTANTS]
        for each in _list(given["steps"], 0, MOST_STEPS, "steps"):
            steps.append(_step(each, len(leaves) + len(steps), left))
        known = len(leaves) + len(steps)
        rows = _list(given["outputs"], 0, MOST_OUTPUTS, "outputs")
        outputs = tuple(_output(each, known) for each in rows)
        taken = [str(o.about.get("handle") or o.about.get("name")) for o in outputs if o.about]
        if len(set(taken)) != len(taken):
            raise UsageError("A plan's outputs have different names.")
        used = {o.ref.number for o in outputs} | {r.number for s in steps for r in s.refs()}
        if used != set(range(known)):
            raise UsageError("Every leaf and every step of a plan is used.")
        return cls(leaves, tuple(steps), outputs)


def too_many() -> UsageError:
    """Of an expression that does not fit into a plan."""
    return UsageError(
        f"An expression has at most {MOST_STEPS} operations, on {MOST_LEAVES} arrays. Received: "
        "more. Have a part computed by itself: y = y.compute()."
    )


def _list(value: object, least: int, most: int, what: str) -> list[Any]:
    if not isinstance(value, list) or not least <= len(value) <= most:
        raise UsageError(f"A plan has a list of {least} to {most} {what}.")
    return value


def check_shape(shape: object) -> tuple[int, ...]:
    """A shape that an array may have.

    Raises:
        UsageError: it may not.
    """
    whole = isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)
    if not isinstance(shape, list) or not whole or len(shape) > MOST_AXES:
        raise UsageError(f"A shape is a list of at most {MOST_AXES} sizes.")
    if math.prod(max(1, n) for n in shape) > MOST_WORDS:
        raise UsageError(f"An array has at most {MOST_WORDS} elements.")
    return tuple(shape)


def check_handle(value: object) -> str:
    """A handle's id.

    Raises:
        UsageError: it is none.
    """
    if not isinstance(value, str):
        raise UsageError("A handle is 32 hexadecimal digits.")
    check_deployment(value)
    return value


def _leaf(given: object) -> Leaf:
    if not isinstance(given, list) or len(given) < 4:
        raise UsageError("A leaf of a plan says where it comes from, its kind, shape and scale.")
    source, kind, shape, scale, *about = given
    if not isinstance(kind, str) or kind not in KINDS:
        raise UsageError(f"A leaf's kind is one of {', '.join(KINDS)}.")
    if type(scale) is not int or not 0 <= scale <= 61 or (kind == FIXED) != (scale > 0):
        raise UsageError("A leaf has 1 to 61 fractional bits, integers and bits have none.")
    if source == HANDLE and len(about) == 1:
        check_handle(about[0])
    elif source == STORED and len(about) == 4 and all(isinstance(a, str) for a in about):
        check_name(about[1], "A stored name")
        check_deployment(about[2])
        if len(about[0]) > MOST_TEXT or len(about[3]) > MOST_TEXT:
            raise UsageError(f"A name in a plan has at most {MOST_TEXT} characters.")
    elif source != INPUT or about:
        raise UsageError("A leaf is an input, a handle, or what is stored, and nothing else.")
    return Leaf(str(source), kind, check_shape(shape), scale, tuple(about))


def _step(given: object, number: int, left: list[int]) -> Step:
    if not isinstance(given, list) or len(given) != 3:
        raise UsageError("A step is an operation, a list of arguments, and named ones.")
    op, args, named = given
    operation = operations.find(op)
    if not isinstance(args, list) or not isinstance(named, Mapping) or len(named) > 32:
        raise UsageError("A step is an operation, a list of arguments, and named ones.")
    parts = [MOST_PARTS]
    for each in [*args, *named.values()]:
        _check_argument(each, number, MOST_NESTED, parts, left)
    step = Step(op, args, dict(named))
    if not step.refs():
        raise UsageError(f"A step takes a private value. Received: {op} of public ones.")
    bound = operation.bound(tuple(args), step.named)
    for name, most in operation.sizes.items():
        _check_sizes(op, name, bound.arguments.get(name), most)
    return step


def checked_step(given: object, known: int) -> Step:
    """A step by itself, on so many values.

    Raises:
        UsageError: it is none.
    """
    return _step(given, known, [MOST_CONSTANTS])


def _check_sizes(op: str, name: str, value: object, most: int) -> None:
    """Refuses parameters that would have more made than a worker takes, before any is."""
    product, pending = 1, [decoded(value, {}) if not _holds_ref(value) else 1]
    while pending:
        each = pending.pop()
        if isinstance(each, (list, tuple)):
            pending.extend(each)
        elif isinstance(each, np.ndarray):
            pending.extend(each.reshape(-1).tolist())
        elif isinstance(each, (int, float)):
            product *= max(1, int(abs(each)))
        if product > most:
            raise UsageError(
                f"{op} takes {name} of at most {most} together. Received: one that asks for more."
            )


def _holds_ref(value: object) -> bool:
    return any(True for _ in _refs(value))


def _ref(given: object, known: int) -> Ref:
    if isinstance(given, list) and 2 <= len(given) <= 3 and given[0] == "ref":
        number, *place = given[1:]
        fits = type(number) is int and 0 <= number < known
        if fits and all(type(p) is int and 0 <= p < MOST_PARTS for p in place):
            return Ref(number, place[0] if place else None)
    raise UsageError("A plan takes earlier values by their numbers: it has no cycles.")


def _check_argument(
    given: object, known: int, depth: int, parts: list[int], left: list[int]
) -> None:
    parts[0] -= 1
    if parts[0] < 0 or depth < 0:
        raise UsageError(
            f"An operation has at most {MOST_PARTS} arguments, {MOST_NESTED} within one another."
        )
    if given is None or isinstance(given, bool):
        return
    if isinstance(given, str):
        fits = len(given) <= MOST_TEXT
    elif isinstance(given, int):
        fits = -_INT <= given < _INT
    elif isinstance(given, float):
        fits = math.isfinite(given)
    elif isinstance(given, list) and given and isinstance(given[0], str):
        _check_nested(given, known, depth, parts, left)
        return
    else:
        fits = False
    if not fits:
        raise UsageError("A public argument is a finite number, a short text, or a list of these.")


def _check_nested(
    given: list[Any], known: int, depth: int, parts: list[int], left: list[int]
) -> None:
    match given:
        case ["ref", *_]:
            _ref(given, known)
        case ["list" | "tuple", list(items)]:
            for each in items:
                _check_argument(each, known, depth - 1, parts, left)
        case ["slice", start, stop, step]:
            for each in (start, stop, step):
                if each is not None and (type(each) is not int or not -_INT <= each < _INT):
                    raise UsageError("A slice has whole public bounds.")
        case ["ellipsis"]:
            pass
        case ["array", _, _, _]:
            left[0] -= _array(given).size
            if left[0] < 0:
                raise UsageError(
                    f"A plan holds at most {MOST_CONSTANTS} public elements. Received: more. Make "
                    "the large ones private: cluster.private(array)."
                )
        case _:
            raise UsageError("A public argument is a number, text, list, slice or array.")


def _array(given: list[Any]) -> np.ndarray[Any, Any]:
    _, name, shape, text = given
    sizes = check_shape(shape)
    count = math.prod(sizes)
    if not isinstance(name, str) or name not in _DTYPES or count > MOST_CONSTANT:
        raise UsageError(
            f"A public array in a plan is {', '.join(_DTYPES)} with {MOST_CONSTANT} elements at "
            "most. Received: another. Make a large one private: cluster.private(array)."
        )
    dtype = np.dtype(_DTYPES[name])
    try:
        blob = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except (binascii.Error, ValueError):
        blob = b""
    if len(blob) != count * dtype.itemsize:
        raise UsageError("A public array in a plan has as many elements as its shape says.")
    if name == "bool" and max(blob, default=0) > 1:
        raise UsageError("Truth values are 0 or 1.")
    found = np.frombuffer(blob, dtype).reshape(sizes)
    if name == "float64" and not np.isfinite(found).all():
        raise UsageError("Public numbers are finite. Received: NaN or infinity.")
    return found


def _output(given: object, known: int) -> Output:
    if not isinstance(given, list) or len(given) != 3 or not isinstance(given[2], Mapping):
        raise UsageError("An output is a value, what becomes of it, and how.")
    ref, then, about = _ref(given[0], known), given[1], dict(given[2])
    if then == HANDLE and set(about) == {"handle"}:
        check_handle(about["handle"])
    elif then == KEEP and set(about) == {"name", "clients", "replace", "deployment"}:
        check_name(about["name"], "An array's name")
        check_clients(about["clients"])
        check_deployment(about["deployment"])
        if type(about["replace"]) is not bool:
            raise UsageError("replace is true or false.")
    elif then != REVEAL or about:
        raise UsageError("An output is revealed, kept under a name, or held under a handle.")
    return Output(ref, str(then), about)


# ---- arguments as JSON, and back


def _refs(given: object) -> Iterator[Ref]:
    if isinstance(given, list) and given:
        if given[0] == "ref":
            yield Ref(given[1], given[2] if len(given) > 2 else None)
        elif given[0] in ("list", "tuple") and len(given) == 2 and isinstance(given[1], list):
            for each in given[1]:
                yield from _refs(each)


def decoded(given: Any, values: Mapping[Ref, Any]) -> Any:
    """A checked argument, with values in place."""
    if not isinstance(given, list):
        return given
    match given[0]:
        case "ref":
            return values[next(_refs(given))]
        case "list":
            return [decoded(each, values) for each in given[1]]
        case "tuple":
            return tuple(decoded(each, values) for each in given[1])
        case "slice":
            return slice(*given[1:])
        case "ellipsis":
            return Ellipsis
        case _:
            return _array(given)


def encoded(value: object) -> Any:
    """A public argument, or a reference, as JSON.

    Raises:
        UsageError: it is nothing that a plan holds.
    """
    if isinstance(value, Ref):
        return ["ref", value.number, *([] if value.place is None else [value.place])]
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, [encoded(each) for each in _items(value)]]
    if isinstance(value, slice):
        return ["slice", *(_bound(each) for each in (value.start, value.stop, value.step))]
    if value is Ellipsis:
        return ["ellipsis"]
    return _encoded_array(value)


def _items(value: Sequence[Any]) -> Sequence[Any]:
    if len(value) > MOST_PARTS:
        raise UsageError(
            f"A list in an expression has at most {MOST_PARTS} parts. Received: {len(value)}. Give "
            "an array: np.array(values)."
        )
    return value


def _bound(value: object) -> object:
    return value.item() if isinstance(value, np.generic) else value


def _encoded_array(value: object) -> list[Any]:
    if not isinstance(value, np.ndarray) and not hasattr(value, "__array__"):
        raise UsageError(
            "An expression holds numbers, texts, arrays and slices beside private arrays. "
            f"Received: {type(value).__name__}."
        )
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise UsageError(
            f"An expression holds real numbers. Received: an array of {array.dtype.name}."
        )
    if array.size > MOST_CONSTANT:
        raise UsageError(
            f"A public array in an expression has at most {MOST_CONSTANT} elements. Received: "
            f"shape {list(array.shape)}. Make it private: cluster.private(array)."
        )
    name = {"b": "bool", "f": "float64"}.get(array.dtype.kind, "int64")
    if array.dtype.kind == "u" and array.size and int(array.max()) >= _INT:
        raise UsageError("Public integers are below 2^63. Received: larger ones.")
    own: np.ndarray[Any, Any] = np.ascontiguousarray(array, np.dtype(_DTYPES[name]))
    if name == "float64" and not np.isfinite(own).all():
        raise UsageError("Public numbers are finite. Received: NaN or infinity.")
    text = base64.b64encode(own.tobytes()).decode()
    return ["array", name, list(array.shape), text]
