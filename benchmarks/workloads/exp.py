"""The exp benchmark: the exponential of private numbers, in one of four forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfe_bench.cluster.jobs import Context, InputSpec, Program
from tfe_bench.cluster.schema import flag_field, integer_field, text_field
from tfe_bench.cluster.timing import TimedRequest, measure_program_runs
from tfe_bench.errors import UsageError
from tfe_bench.protocols.session.sharing import Shared

if TYPE_CHECKING:
    from tfe_bench.cluster.store import ShareStore
    from tfe_bench.protocols.session.cost import Cost


@dataclass(frozen=True, kw_only=True)
class ExpRequest(TimedRequest):
    """A request for exponentials.

    Attributes:
        method, clamp, iterations, softmax: as in functions.exponential.exp.
    """

    method: str = text_field(default="one-round")
    clamp: str = text_field(default="none")
    iterations: int = integer_field(-(1 << 31), 1 << 31, default=8)
    softmax: bool = flag_field(default=False)

    @property
    def exp_options(self) -> dict[str, Any]:
        """Arguments of functions.exponential.exp."""
        return {name: getattr(self, name) for name in ("method", "clamp", "iterations", "softmax")}


def parse_request(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> ExpRequest:
    """Parse the request of a job.

    Raises:
        UsageError: a parameter or an input is invalid (the text names it).
    """
    request = ExpRequest.from_parameters(parameters, "exp")
    if [i.name for i in inputs] != ["x"]:
        raise UsageError(
            f'exp expects one input, "x". Received: {[i.name for i in inputs]}.',
            code="wrong-number-of-values",
            operation="exp",
            received=[i.name for i in inputs],
        )
    _declared_exp_cost(request, inputs[0])  # rejects a form that does not exist
    return request


def max_exp_array_words(
    client: str, store: ShareStore, request: ExpRequest, inputs: Sequence[InputSpec]
) -> int:
    """Return an upper bound on the words of any array: all words sent, and the local residues."""
    return max(_declared_exp_cost(request, inputs[0]).total // 64, 8 * inputs[0].extent)


def _declared_exp_cost(request: ExpRequest, x: InputSpec) -> Cost:
    from tfe_bench.protocols.functions.exponential import exp
    from tfe_bench.protocols.session.counting import Private, cost_of

    operand = Private((x.elements,), x.fractional_bits, limbs=x.limbs)
    return cost_of(exp, operand, **request.exp_options)


def compute_exp(context: Context) -> dict[str, Shared]:
    """Compute `repeat` times; reveal the last result to the client."""
    from tfe_bench.protocols.functions.exponential import exp

    party, x = context.party, context.inputs["x"]
    options = context.request.exp_options
    graph = party.function(lambda a: exp(party, a, **options))

    variant = options["method"]
    if variant == "taylor":
        variant += f"-{options['iterations']}"
    if options["softmax"]:
        variant += ", softmax"
    if options["clamp"] != "none":
        variant += f", clamp {options['clamp']}"
    return {"y": measure_program_runs(context, variant, lambda _: graph(x))}


PROGRAM = Program(
    "exp",
    compute_exp,
    parse_request,
    "computes the exponential of private numbers",
    wide=True,
    size=max_exp_array_words,
    is_sealed=True,
)
