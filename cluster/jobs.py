"""Programs that workers run by name, and what a program sees of its job."""

from __future__ import annotations

import functools
import importlib.metadata
import math
import sys
import tomllib
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tfe_bench
from tfe_bench.errors import ConfigError, TfeBenchError, UsageError, did_you_mean

if TYPE_CHECKING:
    from tfe_bench.cluster.store import Store
    from tfe_bench.protocols.session.party import Party
    from tfe_bench.protocols.session.sharing import Shared

GROUP = "tfe_bench.programs"
# Of an array: no network has more axes, and no kernel takes more words (kernels/ops/kernel.h).
MOST_AXES, MOST_WORDS = 16, 1 << 33
# Words of the largest array that an operation makes, for each element of its largest input: of what
# is dealt for comparisons, and for functions that are polynomials after a normalization.
GROWTH, FUNCTION_GROWTH = 16, 64
_MOST_TEXT = 2000


@dataclass(frozen=True)
class InputSpec:
    """Public facts about one private input.

    Attributes:
        name: of the input.
        shape: public.
        fractional_bits: its scale.
        limbs: 64-bit words per element: 1 over Z_2^64, 2 over Z_2^128.
        late: it may arrive while the job runs already.

    Raises:
        UsageError: no array of a job has such a name, shape or scale.
    """

    name: str
    shape: tuple[int, ...]
    fractional_bits: int
    limbs: int = 1
    late: bool = False

    def __post_init__(self) -> None:
        sizes = self.shape
        is_shape = isinstance(sizes, tuple) and all(type(n) is int and n >= 0 for n in sizes)
        if not is_shape or len(sizes) > MOST_AXES or shape_extent(sizes) * self.limbs > MOST_WORDS:
            raise UsageError(
                f"An input has at most {MOST_AXES} axes and {MOST_WORDS} words. Received: "
                f"{str(self.name)[:80]!r} of shape {str(list(sizes))[:200]}."
            )
        bits = self.fractional_bits
        if type(bits) is not int or not 0 <= bits < 64 * self.limbs:
            raise UsageError(
                f"An input over Z_2^{64 * self.limbs} has 0 to {64 * self.limbs - 1} fractional "
                f"bits. Received: {str(self.name)[:80]!r} with {str(bits)[:40]}."
            )

    @property
    def elements(self) -> int:
        """How many ring elements it has."""
        return math.prod(self.shape)

    @property
    def words(self) -> int:
        """How many 64-bit words these take."""
        return self.elements * self.limbs

    @property
    def extent(self) -> int:
        """The words that count for limits: an axis of size 0 counts as 1."""
        return shape_extent(self.shape) * self.limbs

    @property
    def word_shape(self) -> tuple[int, ...]:
        """The shape of the words: with the axis of 2 where an element has two."""
        return self.shape if self.limbs == 1 else (*self.shape, self.limbs)


def shape_extent(sizes: Sequence[int]) -> int:
    """The product of a shape's sizes, in which a size of 0 counts as 1.

    Every limit on arrays compares this product.  An array of shape [0, 2^40] has no element, yet
    protocols make arrays of 2^40: positions along an axis, masks of its width, products of two.
    """
    return math.prod(max(1, n) for n in sizes)


@dataclass
class Context:
    """What a program gets: its party, its inputs, and the way to its client.

    Attributes:
        party: this worker's party.
        parameters: public, as submitted, equal at all three workers.
        inputs: private tensors by name, shared by the client; a program may take out what it needs
            no more. A late one is waited for when it is asked for.
        progress: tells the client how far the program is (a fraction and a word; public).
        measurements: public figures that go into the record.
        client: who ordered the job.
        store: what this worker keeps between jobs; None outside of a worker.
        at_end: figures that are known when the program has ended at all three.
    """

    party: Party
    parameters: Mapping[str, Any]
    inputs: MutableMapping[str, Shared]
    progress: Callable[[float, str], None]
    measurements: dict[str, Any] = field(default_factory=dict)
    client: str = ""
    store: Store | None = None
    at_end: Callable[[], Mapping[str, Any]] = dict


@dataclass(frozen=True)
class Size:
    """How large a run gets.

    Attributes:
        words: an upper bound on the 64-bit words of the largest array that it makes anywhere,
            messages and results included.
        sent: bytes that the three workers send together; 0: the program does not say.
        memory: bytes that it takes at a worker beside its inputs, about; 0: likewise.
        seconds: that it takes where no network is waited for, about; 0: the program does not say.
    """

    words: int
    sent: int = 0
    memory: int = 0
    seconds: float = 0.0


# What code raises that stumbles over parameters of another type.
ARGUMENT_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def get_name_parameter(parameters: Mapping[str, Any]) -> Sequence[str]:
    """The parameter "name", where a job has one."""
    name = parameters.get("name")
    return (name,) if isinstance(name, str) else ()


@dataclass(frozen=True)
class Program:
    """A computation that workers offer.

    Attributes:
        name: by which jobs ask for it.
        run: builds and runs the graphs; returns the private tensors to reveal to the client.
        check: refuses unfit parameters or inputs before anything runs (raises UsageError).
        about: one line that says what it does.
        wide: whether it takes inputs over Z_2^128; others are refused before `check`.
        permit: refuses a client for what the store holds, before anything runs (raises UsageError
            or PolicyError). The store may change before the job's turn: `run` asks again.
        late: whether inputs may arrive while it runs; others are refused before `check`.
        size: how large a run gets: a Size, or its words alone; asked, as `permit` is, once both
            have let a job pass. A worker compares it with its limits before it takes any memory.
            None: nobody knows, and a run is bounded by its inputs and by what each kernel finds of
            the host's memory.
        together: how many samples a job brings, if waiting jobs with equal parameters may be run
            as one: their inputs joined along the first axis, their outputs parted again (see
            batching.py). 0 for a job that runs alone.
        kept_names: models, tables and data sets that a job with these parameters uses or makes, for
            operators' logs; by default what "name" says.
        needs: other programs that operators must allow to the client too: what a job with these
            parameters does of theirs on its way, such as keeping a model.
    """

    name: str
    run: Callable[[Context], Mapping[str, Shared]]
    check: Callable[[Mapping[str, Any], Sequence[InputSpec]], None] = lambda p, i: None
    about: str = ""
    wide: bool = False
    permit: Callable[[str, Store, Mapping[str, Any], Sequence[InputSpec]], None] | None = None
    late: bool = False
    together: Callable[[Mapping[str, Any], Sequence[InputSpec]], int] | None = None
    kept_names: Callable[[Mapping[str, Any]], Sequence[str]] = get_name_parameter
    needs: Callable[[Mapping[str, Any]], Sequence[str]] = lambda parameters: ()
    size: Callable[[str, Store, Mapping[str, Any], Sequence[InputSpec]], int | Size] | None = None

    def sized(
        self, client: str, store: Store, parameters: Mapping[str, Any], inputs: Sequence[InputSpec]
    ) -> Size:
        """How large a run gets, its inputs at least."""
        input_words = max((spec.extent for spec in inputs), default=0)
        declared = 0 if self.size is None else self.size(client, store, parameters, inputs)
        if not isinstance(declared, Size):
            declared = Size(declared)
        return replace(declared, words=max(input_words, declared.words))

    def admit(self, parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> None:
        """Refuses unfit parameters or inputs before anything runs.

        Raises:
            UsageError: naming what does not fit.
        """
        if not isinstance(parameters, Mapping):
            raise UsageError("The parameters of a program have names.")
        names = [spec.name for spec in inputs]
        if len(set(names)) != len(names):
            raise UsageError(
                f"The inputs of a job have different names. Received: {str(names)[:200]}."
            )
        for spec in inputs:
            if spec.limbs != 1 and not self.wide:
                raise UsageError(
                    f"The program {self.name!r} takes inputs over Z_2^64. Received: {spec.name!r} "
                    f"over Z_2^{64 * spec.limbs}."
                )
            if spec.late and not self.late:
                raise UsageError(
                    f"The program {self.name!r} wants all inputs before it begins. Received: a "
                    f"late {spec.name!r}."
                )
        try:
            self.check(parameters, inputs)
        except ARGUMENT_ERRORS as error:
            # It stumbled over a type that it did not expect, whose text could quote anything.
            raise UsageError(
                f"The program {self.name!r} does not take these parameters and inputs. Received: "
                f"values of another type ({type(error).__name__})."
            ) from error
        except TfeBenchError as error:
            if len(str(error)) <= _MOST_TEXT:
                raise
            # What a stranger sent is not sent back at any length.
            raise type(error)(f"{str(error)[:_MOST_TEXT]}...") from None


def check_known(program: str, parameters: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuses parameters that a program does not have.

    Raises:
        UsageError: naming the first one, with "did you mean".
    """
    for name in parameters:
        if name not in known:
            shortened = str(name)[:80]
            raise UsageError(
                f"{program} has no parameter {shortened!r}.{did_you_mean(shortened, known)}"
            )


def installed_programs() -> dict[str, importlib.metadata.EntryPoint]:
    """Programs registered by installed packages, by name."""
    entry_points = {e.name: e for e in _package_programs(tuple(sys.path))}
    # (what an installation wrote down of a checkout can be older than the checkout)
    entry_points.update({e.name: e for e in _checkout_programs()})
    return entry_points


@functools.lru_cache(maxsize=8)
def _package_programs(path: tuple[str, ...]) -> tuple[importlib.metadata.EntryPoint, ...]:
    """What packages on a path register: each job asks, and they are read from disk."""
    return tuple(importlib.metadata.entry_points(group=GROUP))


@functools.cache
def _checkout_programs() -> tuple[importlib.metadata.EntryPoint, ...]:
    """What the pyproject.toml beside this package registers; nothing where it is no checkout."""
    try:
        text = (Path(tfe_bench.__file__).resolve().parents[1] / "pyproject.toml").read_text()
        project = tomllib.loads(text)["project"]
        if project["name"] != "tfe-bench":  # of a folder that the package was copied into
            return ()
        listed = project["entry-points"][GROUP]
    except (OSError, ValueError, KeyError):
        return ()
    return tuple(importlib.metadata.EntryPoint(k, v, GROUP) for k, v in listed.items())


def third_party_programs() -> list[str]:
    """The names of programs that other packages register."""
    own_prefix = f"{tfe_bench.__name__}."
    return sorted(
        name
        for name, point in installed_programs().items()
        if not point.value.startswith(own_prefix)
    )


def load_program(name: str) -> Program:
    """The program of a name.

    Raises:
        UsageError: no installed package has it.
        ConfigError: its package is broken.
    """
    programs = installed_programs()
    if name not in programs:
        raise UsageError(
            f"No installed package has a program {name!r}.{did_you_mean(name, programs)} "
            f"Installed: {', '.join(sorted(programs))}."
        )
    try:
        program = programs[name].load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"The program {name!r} cannot be loaded: {error}.") from error
    if not isinstance(program, Program):
        raise ConfigError(
            f"The entry point {name!r} is not a Program. Received: {type(program).__name__}."
        )
    return program
