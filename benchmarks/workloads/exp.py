"""The exp benchmark: the exponential of private numbers, in one of four forms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfe_bench.benchmarks.harness import check_parameters, measure
from tfe_bench.cluster.jobs import Context, InputSpec, Program
from tfe_bench.errors import UsageError
from tfe_bench.protocols.sharing import Shared

_OWN = ("method", "clamp", "iterations", "softmax")


def check(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> None:
    """Refuses unknown parameters and inputs that do not fit.

    Raises:
        UsageError: naming what does not fit.
    """
    from tfe_bench.protocols.exponential import exp_cost

    check_parameters("exp", parameters, _OWN)
    if [i.name for i in inputs] != ["x"]:
        raise UsageError(f'exp wants one input, "x". Received: {[i.name for i in inputs]}.')
    options = _options(parameters)
    # The cost of a form that does not exist is refused in words.
    exp_cost(
        inputs[0].elements,
        options["method"],
        64 * inputs[0].limbs,
        inputs[0].fractional_bits,
        options["clamp"],
        options["iterations"],
        options["softmax"],
    )


def _options(parameters: Mapping[str, Any]) -> dict[str, Any]:
    defaults = {"method": "one-round", "clamp": "none", "iterations": 8, "softmax": False}
    options = {name: parameters.get(name, value) for name, value in defaults.items()}
    for name, value in options.items():
        wanted = type(defaults[name])
        if type(value) is not wanted:
            raise UsageError(f"{name} is of type {wanted.__name__}. Received: {value!r}.")
    return options


def run(context: Context) -> dict[str, Shared]:
    """Computes `repeat` times; the last result is revealed to the client."""
    from tfe_bench.protocols.exponential import exp

    party, x = context.party, context.inputs["x"]
    options = _options(context.parameters)
    graph = party.function(lambda a: exp(party, a, **options))

    def once(progress: Callable[[float], None]) -> Shared:
        y: Shared = graph(x)
        return y

    variant = options["method"]
    if variant == "taylor":
        variant += f"-{options['iterations']}"
    if options["softmax"]:
        variant += ", softmax"
    if options["clamp"] != "none":
        variant += f", clamp {options['clamp']}"
    return {"y": measure(context, variant, once)}


PROGRAM = Program("exp", run, check, "computes the exponential of private numbers", wide=True)
