"""Programs for tests: an empty one, large output, a wait, a failure, a product, batches, reveal."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tfe_bench.cluster.jobs import Context, Program
from tfe_bench.errors import UsageError

if TYPE_CHECKING:
    from tfe_bench.protocols.session.sharing import Shared


def _run_plain(context: Context) -> Mapping[str, Shared]:
    """Run by parameters: `fail`, `wait` (seconds), `words` (of output), `square` and `relu` (calls
    of their graph), `late_fail` and `late_error` (an error after them, with a text), `fail_at` (one
    party), `reveal` (opens the input, undeclared); else return the inputs.
    """
    parameters: Mapping[str, Any] = context.parameters
    if parameters.get("fail"):
        raise UsageError("As ordered.")
    for _ in range(int(parameters.get("wait", 0) * 20)):
        context.party.exchange(b"-")  # fails when the job has ended
        context.progress(0.5, "waiting")
        time.sleep(0.05)
    outputs: dict[str, Shared] = {name: context.inputs[name] for name in list(context.inputs)}
    if words := parameters.get("words"):
        import tensorflow as tf

        [x] = outputs.values()
        outputs = {"x": x.map(lambda part: tf.repeat(part, words))}
    if count := int(parameters.get("square", 0)):
        from tfe_bench.protocols.ring import arithmetic

        party, [x] = context.party, outputs.values()
        with party.kept_graphs("square"):
            square = party.function(lambda x: arithmetic.mul(party, x, x))
        for _ in range(count):
            x = square(x)
        outputs = {"x": x}
    if count := int(parameters.get("relu", 0)):
        from tfe_bench.protocols.nn import relu

        party, [x] = context.party, outputs.values()
        with party.kept_graphs("relu"):
            rectify = party.function(lambda x: relu.relu(party, x))
        for _ in range(count):
            x = rectify(x)
        outputs = {"x": x}
    if parameters.get("reveal"):
        from tfe_bench.protocols.session import io

        party, [x] = context.party, outputs.values()
        with party.kept_graphs("reveal"):
            party.function(lambda x: io.reveal(party, x))(x)
    if text := parameters.get("late_fail"):
        raise UsageError(f"As ordered: {text}.")
    if text := parameters.get("late_error"):
        raise ArithmeticError(text)
    if parameters.get("fail_at") == context.party.index:
        raise UsageError("As ordered at one worker.")
    if "fail_at" in parameters:
        context.party.exchange(b"-")
    return outputs


def _run_opening(context: Context) -> Mapping[str, Shared]:
    """Reveal the input, or look up its first elements in it after a shuffle."""
    from tfe_bench.protocols.order import lookup
    from tfe_bench.protocols.session import io

    party, x = context.party, context.inputs["x"]
    if context.parameters["how"] == "reveal":
        party.function(lambda x: io.reveal(party, x))(x)
        return {}
    return {"y": lookup.lookup_shuffled(party, x.map(lambda a: a[:, None]), x.map(lambda a: a[:3]))}


PROGRAM: Program[Any] = Program("plain", _run_plain, late=True)
BATCHED: Program[Any] = Program(
    "batched", _run_plain, together=lambda request, inputs: inputs[0].shape[0]
)
OPENING: Program[Any] = Program("opening", _run_opening)
