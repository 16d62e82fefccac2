"""Private text: a language model goes on with a prompt, and nobody but the client reads either."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tfe_bench.cluster import profiles
from tfe_bench.cluster.requests import AnyInput, JobResult, PrivateInput, Progress
from tfe_bench.errors import RangeError, UsageError
from tfe_bench.models import decoding, execute, plaintext, service
from tfe_bench.models.decoding import Decoding
from tfe_bench.models.graph import Array
from tfe_bench.models.private import PrivateModel
from tfe_bench.models.programs import generate as program
from tfe_bench.models.programs.predict import RANGE
from tfe_bench.models.service import Deployed

if TYPE_CHECKING:
    from tfe_bench.cluster.client import Client


def generate(
    cluster: Client,
    private: str | Deployed | PrivateModel,
    prompt: Any,
    tokens: int = 20,
    *,
    temperature: float = 0.0,
    positions: str | None = None,
    profile: str | None = None,
    progress: Progress | None = None,
    check_range: bool | None = None,
) -> Array:
    """The tokens with which a language model goes on with a private text.

    The prompt, the tokens and the logits stay shared until the end; then this client alone gets the
    tokens.  Public are the model's layers, how many tokens the prompt has and how many are wanted.

    Args:
        cluster: `LocalCluster`, `Cluster` or `Client`.
        private: of `tfe_bench.convert`, whose weights are shared for this once, or the name of a
            model that was deployed.  It takes tokens [n] and gives logits [n, vocabulary], of which
            each row depends on the tokens up to its own (`use_causal_mask=True`).
        prompt: numbers of tokens, [length], or several prompts of one length, [texts, length].
        tokens: how many are wanted; with the prompt no more than the n of the model.
        temperature: 0 for the likeliest token each time; T > 0 draws tokens with the probabilities
            softmax(logits / T), by noise that the worker that deals draws and nobody else knows.
        positions: the name of the model's input that takes the numbers 0, 1, 2, ... of the
            positions, if there is one.
        profile: the network for which the protocols plan; None: the cluster's.
        progress: hears how far it is.
        check_range: whether the workers find out, for this client alone, that a value left the
            range that the model was planned for; None: where the plan admits it.

    Returns:
        int64 numbers of tokens, [tokens] or [texts, tokens].

    Raises:
        UsageError: no language model (its layer is named), a prompt that is none, or more tokens
            than the model has positions.
        RangeError: values left the range that the model was planned for.
        PolicyError: an operator does not let this client ask.
    """
    cluster.check_open()
    planned = cluster.profile.name if profile is None else profile
    model, named = private, {}
    if isinstance(private, (str, Deployed)):
        held = service.find(cluster, private) if isinstance(private, str) else private
        model, named = held.private, {"name": held.name, "deployment": held.deployment}
    service.check_private(model, "generate", "convert(model), or a deployed model's name")
    assert isinstance(model, PrivateModel)
    asked, inputs = order(model, prompt, tokens, positions, planned, check_range, temperature)
    if named:
        asked = {**{k: v for k, v in asked.items() if k != "plan"}, **named}
    else:
        service.check_precision(cluster)
        inputs = {**model.shared_weights(), **inputs}
    found = read(model, cluster.run("generate", asked, inputs, progress))
    return found if np.ndim(prompt) > 1 else found[0]


def order(
    private: PrivateModel,
    prompt: Any,
    tokens: int,
    positions: str | None,
    profile: str = "local",
    check_range: bool | None = None,
    temperature: float = 0.0,
) -> tuple[dict[str, Any], dict[str, AnyInput]]:
    """Parameters of the program "generate", and its input besides the weights.

    Raises:
        UsageError: as `generate`; no error names a token.
    """
    d = Decoding.of(private.plan, positions, temperature)
    given = np.asarray(prompt)
    if given.size == 0 and given.ndim in (1, 2):
        given = given.astype(np.int64)  # (of an empty list numpy makes reals)
    if given.ndim not in (1, 2) or given.dtype.kind not in "iu":
        raise UsageError(
            "A prompt is numbers of tokens, integers [length] or [texts, length]. Received: "
            f"{given.dtype} of shape {list(given.shape)}."
        )
    several = given if given.ndim == 2 else given[None]
    program.check_length(d, several.shape[1], tokens)
    if not 1 <= len(several) <= program.MOST_TEXTS:
        raise UsageError(f"1 to {program.MOST_TEXTS} prompts. Received: {len(several)}.")
    rows = plaintext.one_hot(d.tokens, several, (several.shape[1], d.vocabulary))
    bits = private.plan.fraction_of(d.tokens)
    asked = {**private.parameters(profile, None, check_range), "tokens": tokens}
    if check_range is None and private.samples is None and asked["check_range"]:
        asked["check_range"] = _checkable(d, several.shape[1], tokens, profile)
    if positions is not None:
        asked["positions"] = positions
    if temperature:
        asked["temperature"] = d.temperature
    ring = (rows.astype(np.int64)) << bits
    return asked, {program.PROMPT: PrivateInput(ring, bits)}


def _checkable(d: Decoding, prompt: int, tokens: int, profile: str) -> bool:
    """Whether the steps of a model can be checked, whose ranges may be assumed ones."""
    plan = profiles.get(profile).plan
    try:
        for each in decoding.predictions(d, prompt, tokens, plan, watched=True):
            execute.model_cost(each)
    except UsageError:
        return False
    return True


def read(private: PrivateModel, result: JobResult) -> Array:
    """The tokens of a job, [texts, tokens].

    Raises:
        RangeError: a value left the range that the model was planned for.
    """
    left = result.outputs.get(RANGE)
    if left is not None and np.any(left):
        raise RangeError(
            "Values left the range that the model was planned for, so that tokens of "
            f"{int(np.any(left, 1).sum())} of {len(left)} texts may be wrong. They are withheld: "
            "convert the model with samples like these or a larger margin, or ask with "
            "check_range=False."
        )
    bits = result.fractional_bits[program.TOKENS]
    found: Array = result.outputs[program.TOKENS].astype(np.int64) >> bits
    return found
