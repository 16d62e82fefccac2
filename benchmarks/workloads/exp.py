"""The exp benchmark: the exponential of private numbers, in one of four forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tfe_bench.cluster.jobs import Context, InputSpec, Program
from tfe_bench.cluster.timing import check_parameters, measure_runs
from tfe_bench.errors import UsageError
from tfe_bench.protocols.session.sharing import Shared

if TYPE_CHECKING:
    from tfe_bench.cluster.store import Store
    from tfe_bench.protocols.session.cost import Cost

_OWN = ("method", "clamp", "iterations", "softmax")


def check_request(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> None:
    """Reject unknown parameters and inputs that do not fit.

    Raises:
        UsageError: a parameter or an input is invalid (the text names it).
    """
    check_parameters("exp", parameters, _OWN)
    if [i.name for i in inputs] != ["x"]:
        raise UsageError(
            f'exp expects one input, "x". Received: {[i.name for i in inputs]}.',
            code="wrong-number-of-values",
            operation="exp",
            received=[i.name for i in inputs],
        )
    _declared_cost(parameters, inputs[0])  # rejects a form that does not exist


def max_array_words(
    client: str, store: Store, parameters: Mapping[str, Any], inputs: Sequence[InputSpec]
) -> int:
    """Return an upper bound on the words of any array: all words sent, and the local residues."""
    return max(_declared_cost(parameters, inputs[0]).total // 64, 8 * inputs[0].extent)


def _declared_cost(parameters: Mapping[str, Any], x: InputSpec) -> Cost:
    from tfe_bench.protocols.functions.exponential import exp
    from tfe_bench.protocols.session.counting import Private, cost_of

    operand = Private((x.elements,), x.fractional_bits, limbs=x.limbs)
    return cost_of(exp, operand, **_exp_options(parameters))


def _exp_options(parameters: Mapping[str, Any]) -> dict[str, Any]:
    defaults = {"method": "one-round", "clamp": "none", "iterations": 8, "softmax": False}
    options = {name: parameters.get(name, value) for name, value in defaults.items()}
    for name, value in options.items():
        expected_type = type(defaults[name])
        if type(value) is not expected_type:
            raise UsageError(
                f"{name} is of type {expected_type.__name__}. Received: {value!r}.",
                code="wrong-type",
                operation=name,
                received=value,
            )
    return options


def compute_exp(context: Context) -> dict[str, Shared]:
    """Compute `repeat` times; reveal the last result to the client."""
    from tfe_bench.protocols.functions.exponential import exp

    party, x = context.party, context.inputs["x"]
    options = _exp_options(context.parameters)
    graph = party.function(lambda a: exp(party, a, **options))

    variant = options["method"]
    if variant == "taylor":
        variant += f"-{options['iterations']}"
    if options["softmax"]:
        variant += ", softmax"
    if options["clamp"] != "none":
        variant += f", clamp {options['clamp']}"
    return {"y": measure_runs(context, variant, lambda _: graph(x))}


PROGRAM = Program(
    "exp",
    compute_exp,
    check_request,
    "computes the exponential of private numbers",
    wide=True,
    size=max_array_words,
)
