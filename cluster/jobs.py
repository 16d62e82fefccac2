"""Programs that workers run by name, and a program's access to its job."""

from __future__ import annotations

import importlib.metadata
import math
import warnings
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tfe_bench import extensions
from tfe_bench.cluster.job_use import JobUse
from tfe_bench.errors import ConfigError, TfeBenchError, UsageError, did_you_mean

if TYPE_CHECKING:
    from tfe_bench.cluster.store import ShareStore
    from tfe_bench.protocols.session.openings import Opening
    from tfe_bench.protocols.session.party import Party
    from tfe_bench.protocols.session.sharing import Shared

# What a program derives from a job's parameters.
R = TypeVar("R")

GROUP = "tfe_bench.programs"
# Limits of an array: no network has more axes, and no kernel accepts more words
# (kernels/ops/kernel.h).
MOST_AXES, MOST_WORDS = 16, 1 << 33
# Words of the largest array that an operation creates, per element of its largest input:
# correlated randomness of comparisons, and of functions that are polynomials after a
# normalization.
GROWTH, FUNCTION_GROWTH = 16, 64
_MOST_TEXT = 2000
# What a job may open to workers: what its program declares, or nothing (a sealed job).
OPENS = DECLARED, NOTHING = "declared", "nothing"


@dataclass(frozen=True)
class InputSpec:
    """Public facts about one private input.

    Attributes:
        name: the input's name.
        shape: its public shape.
        fractional_bits: its scale.
        limbs: 64-bit words per element: 1 over Z_2^64, 2 over Z_2^128.
        late: it may arrive while the job is running.

    Raises:
        UsageError: a name, shape or scale is not valid for an input of a job.
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
                f"{str(self.name)[:80]!r} of shape {str(list(sizes))[:200]}.",
                code="invalid-shape",
                operation=str(self.name)[:80],
                received=str(list(sizes))[:200],
            )
        bits = self.fractional_bits
        if type(bits) is not int or not 0 <= bits < 64 * self.limbs:
            raise UsageError(
                f"An input over Z_2^{64 * self.limbs} has 0 to {64 * self.limbs - 1} fractional "
                f"bits. Received: {str(self.name)[:80]!r} with {str(bits)[:40]}.",
                code="number-out-of-range",
                operation="fractional_bits",
                received=str(bits)[:40],
                expected=f"0 to {64 * self.limbs - 1}",
            )

    @property
    def elements(self) -> int:
        """The number of ring elements."""
        return math.prod(self.shape)

    @property
    def words(self) -> int:
        """The number of 64-bit words."""
        return self.elements * self.limbs

    @property
    def extent(self) -> int:
        """The words that count for limits: an axis of size 0 counts as 1."""
        return shape_extent(self.shape) * self.limbs

    @property
    def word_shape(self) -> tuple[int, ...]:
        """The shape of the words: with a last axis of 2 for elements of two words."""
        return self.shape if self.limbs == 1 else (*self.shape, self.limbs)


def shape_extent(sizes: Sequence[int]) -> int:
    """Return the product of a shape's sizes, in which a size of 0 counts as 1.

    Every limit on arrays compares this product.  An array of shape [0, 2^40] has no element, yet
    protocols create arrays of 2^40: positions along an axis, masks of its width, products of two.
    """
    return math.prod(max(1, n) for n in sizes)


def digest_job(
    program: str,
    parameters: Mapping[str, Any],
    client: str,
    certificate: str,
    inputs: Sequence[InputSpec],
    shaping: Sequence[int] | None,
    warm_up_bytes: int,
    is_sealed: bool,
) -> str:
    """Return the digest of a job, which is equal at its three workers and its client.

    Args:
        parameters: as the client sends them, in JSON.
        certificate: the fingerprint of the client's certificate; "" without TLS.
        shaping, warm_up_bytes, is_sealed: as in worker.pending.Job.
    """
    from tfe_bench.cluster import handshake

    return handshake.program_digest(
        program,
        dict(parameters),
        [
            [client, certificate],
            [[i.name, i.shape, i.fractional_bits, i.limbs, i.late] for i in inputs],
            [shaping, warm_up_bytes, is_sealed],
        ],
    )


@dataclass
class Context:
    """The environment of a running program: its party, its inputs and its connection.

    Attributes:
        party: this worker's party.
        parameters: public, as submitted, equal at all three workers.
        inputs: private tensors by name, shared by the client; a program may remove inputs that
            it no longer needs. Access to a late input waits for its arrival.
        progress: reports a fraction and a word to the client; both are public.
        measurements: public figures for the record.
        client: the client that submitted the job.
        store: values that this worker keeps between jobs; None outside of a worker.
        at_end: figures that are known when the program has ended at all three workers.
        request: what the program's `parse` returned for the parameters.
        use: what the job uses, for its receipt.
        joined_jobs: the number of jobs whose inputs are joined; see Program.together.
        afterwards: work that follows in the same session when the clients have their results. Its
            arguments: whether no job waits for some seconds (at party 0), and what logs a text.
    """

    party: Party
    parameters: Mapping[str, Any]
    inputs: MutableMapping[str, Shared]
    progress: Callable[[float, str], None]
    measurements: dict[str, Any] = field(default_factory=dict)
    client: str = ""
    store: ShareStore | None = None
    at_end: Callable[[], Mapping[str, Any]] = dict
    request: Any = None
    use: JobUse = field(default_factory=JobUse)
    joined_jobs: int = 1
    afterwards: Callable[[Callable[[float], bool], Callable[[str], None]], None] | None = None


@dataclass(frozen=True)
class Size:
    """The size of a run.

    Attributes:
        words: an upper bound on the 64-bit words of the largest array that the run creates,
            messages and results included.
        sent: bytes that the three workers send together; 0 if the program does not declare it.
        memory: approximate bytes at a worker in addition to its inputs; 0 if not declared.
        seconds: approximate computing time without waits for the network; 0 if not declared.
        openings: what becomes public to workers, on average where it depends on a secret shuffle;
            the run may open these kinds of values alone. None if not declared: it may open any.
    """

    words: int
    sent: int = 0
    memory: int = 0
    seconds: float = 0.0
    openings: tuple[Opening, ...] | None = None


# Errors that parameters of an unexpected type cause.
ARGUMENT_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def get_name_parameter(request: object) -> Sequence[str]:
    """Return the name that a request states, as a sequence; empty if it states none."""
    name = request.get("name") if isinstance(request, Mapping) else getattr(request, "name", None)
    return (name,) if isinstance(name, str) else ()


def _parse_nothing(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> Any:
    return parameters


Check = Callable[[Mapping[str, Any], "Sequence[InputSpec]"], None]


@dataclass(frozen=True)
class Program(Generic[R]):
    """A computation that workers offer.

    Each worker parses a job once: `parse` returns a request, an object of the program's own type,
    and all other functions take it.

    Attributes:
        name: the name that jobs refer to.
        run: builds and runs the graphs; returns the private tensors to reveal to the client.
        parse: returns the request of parameters and inputs, and rejects invalid ones before the
            run (raises UsageError). By default the request is the parameters.
        about: one line that describes the program.
        wide: whether it accepts inputs over Z_2^128; others are rejected before `parse`.
        permit: rejects a client because of the store's contents, before the run (raises UsageError
            or PolicyError). The store may change before the job starts: `run` checks again.
        late: whether inputs may arrive during the run; otherwise they are rejected before `parse`.
        size: the size of a run: a Size, or its words alone. It is called after `parse` and
            `permit` have accepted a job, and may use the store as `permit` does. A worker
            compares it with its limits before it allocates any memory. None: the size is
            unknown, and a run is bounded by its inputs and by each kernel's check of the host's
            memory.
        together: the number of samples of a job, if waiting jobs with equal parameters may run as
            one batch: their inputs are joined along the first axis, their outputs split again (see
            batching.py). 0 for a job that runs alone.
        kept_names: models, tables and data sets that a job with this request uses or creates, for
            operators' logs; by default the name in the request.
        needs: other programs that operators must also allow to the client: those whose effects a
            job with this request has, such as keeping a model.
        is_sealed: whether jobs of this program open nothing to workers; a run that would is
            refused. Other programs declare their openings in their size.
        check: the former `parse`, which returns nothing: the request is the parameters.
            Deprecated.
    """

    name: str
    run: Callable[[Context], Mapping[str, Shared]]
    parse: Callable[[Mapping[str, Any], Sequence[InputSpec]], R] = _parse_nothing
    about: str = ""
    wide: bool = False
    permit: Callable[[str, ShareStore, R, Sequence[InputSpec]], None] | None = None
    late: bool = False
    together: Callable[[R, Sequence[InputSpec]], int] | None = None
    kept_names: Callable[[R], Sequence[str]] = get_name_parameter
    needs: Callable[[R], Sequence[str]] = lambda request: ()
    size: Callable[[str, ShareStore, R, Sequence[InputSpec]], int | Size] | None = None
    is_sealed: bool = False
    check: Check | None = None

    def __post_init__(self) -> None:
        if self.check is not None:
            warnings.warn(
                f"Program {self.name!r}: check is called parse now, and returns the job's request.",
                DeprecationWarning,
                stacklevel=3,
            )
            object.__setattr__(self, "parse", self.check)

    def sized(
        self, client: str, store: ShareStore, request: R, inputs: Sequence[InputSpec]
    ) -> Size:
        """Return the size of a run, with at least the words of its inputs."""
        input_words = max((spec.extent for spec in inputs), default=0)
        declared = 0 if self.size is None else self.size(client, store, request, inputs)
        if not isinstance(declared, Size):
            declared = Size(declared)
        openings = () if self.is_sealed else declared.openings
        return replace(declared, words=max(input_words, declared.words), openings=openings)

    def admit(self, parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> R:
        """Return the request of a job; reject invalid parameters or inputs before the run.

        Raises:
            UsageError: naming the value that does not fit.
        """
        if not isinstance(parameters, Mapping):
            raise UsageError(
                "parameters is a dict by name. Received: another type.",
                code="wrong-type",
                operation="parameters",
            )
        names = [spec.name for spec in inputs]
        if len(set(names)) != len(names):
            raise UsageError(
                f"The inputs of a job have different names. Received: {str(names)[:200]}.",
                code="duplicate-name",
                operation="inputs",
            )
        for spec in inputs:
            if spec.limbs != 1 and not self.wide:
                raise UsageError(
                    f"The program {self.name!r} takes inputs over Z_2^64. Received: {spec.name!r} "
                    f"over Z_2^{64 * spec.limbs}.",
                    code="unsupported-ring",
                    operation=spec.name,
                    received=f"Z_2^{64 * spec.limbs}",
                    expected="Z_2^64",
                )
            if spec.late and not self.late:
                raise UsageError(
                    f"The program {self.name!r} requires all inputs before it starts. Received: a "
                    f"late {spec.name!r}.",
                    code="late-input-not-supported",
                    operation=spec.name,
                )
        try:
            request = self.parse(parameters, inputs)
        except ARGUMENT_ERRORS as error:
            # An argument has an unexpected type; the text of this error could quote any value.
            raise UsageError(
                f"The program {self.name!r} does not accept these parameters and inputs. Received: "
                f"values of another type ({type(error).__name__}).",
                code="wrong-type",
                operation=self.name,
            ) from error
        except TfeBenchError as error:
            if len(str(error)) <= _MOST_TEXT:
                raise
            # The text may quote an untrusted client, so its length is bounded.
            raise error.with_text(f"{str(error)[:_MOST_TEXT]}...") from None
        if request is not None:
            return request
        warnings.warn(
            f"Program {self.name!r}: parse returns the job's request. Received: None, as from the "
            "former check.",
            DeprecationWarning,
            stacklevel=2,
        )
        return parameters  # type: ignore[return-value]


def reject_inputs(program: str, inputs: Sequence[InputSpec]) -> None:
    """Reject the inputs of a program that has none.

    Raises:
        UsageError: there is an input.
    """
    if inputs:
        raise UsageError(
            f"The program {program} has no inputs. Received: {[i.name for i in inputs][:4]}.",
            code="unexpected-inputs",
            operation=program,
            received=[i.name for i in inputs][:4],
        )


def check_known(program: str, parameters: Mapping[str, Any], known: Sequence[str]) -> None:
    """Reject parameters that a program does not have.

    Raises:
        UsageError: naming the first unknown one, with "did you mean".
    """
    for name in parameters:
        if name not in known:
            shortened = str(name)[:80]
            raise UsageError(
                f"{program} has no parameter {shortened!r}.{did_you_mean(shortened, known)}",
                code="unknown-option",
                operation=program,
                received=shortened,
                expected=", ".join(known),
            )


def installed_programs() -> dict[str, importlib.metadata.EntryPoint]:
    """Return the programs that installed packages register, by name."""
    return extensions.list_entry_points(GROUP)


def third_party_programs() -> list[str]:
    """Return the names of programs that other packages register."""
    return sorted(n for n, point in installed_programs().items() if not extensions.is_own(point))


def load_program(name: str) -> Program[Any]:
    """Return the program of a name.

    Raises:
        UsageError: no installed package has it.
        ConfigError: its package is broken.
    """
    programs = installed_programs()
    if name not in programs:
        raise UsageError(
            f"No installed package has a program {name!r}.{did_you_mean(name, programs)} "
            f"Installed: {', '.join(sorted(programs))}.",
            code="unknown-program",
            received=name,
            expected=", ".join(sorted(programs)),
        )
    try:
        program = programs[name].load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"The program {name!r} cannot be loaded: {error}.",
            code="program-not-loadable",
            operation=name,
        ) from error
    if not isinstance(program, Program):
        raise ConfigError(
            f"The entry point {name!r} is not a Program. Received: {type(program).__name__}.",
            code="program-not-loadable",
            operation=name,
            received=type(program).__name__,
        )
    return program
