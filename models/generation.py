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
from tfe_bench.models.service import DeployedModel

if TYPE_CHECKING:
    from tfe_bench.cluster.client import Client


def generate(
    cluster: Client,
    private: str | DeployedModel | PrivateModel,
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
    profile_name = cluster.profile.name if profile is None else profile
    model, deployment = private, {}
    if isinstance(private, (str, DeployedModel)):
        deployed = service.find(cluster, private) if isinstance(private, str) else private
        model, deployment = (
            deployed.private,
            {"name": deployed.name, "deployment": deployed.deployment},
        )
    service.check_private(model, "generate", "convert(model), or a deployed model's name")
    assert isinstance(model, PrivateModel)
    parameters, inputs = build_request(
        model, prompt, tokens, positions, profile_name, check_range, temperature
    )
    if deployment:
        parameters = {**{k: v for k, v in parameters.items() if k != "plan"}, **deployment}
    else:
        service.check_precision(cluster)
        inputs = {**model.shared_weights(), **inputs}
    generated = read_tokens(model, cluster.run("generate", parameters, inputs, progress))
    return generated if np.ndim(prompt) > 1 else generated[0]


def build_request(
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
    d = Decoding.from_plan(private.plan, positions, temperature)
    prompt_array = np.asarray(prompt)
    if prompt_array.size == 0 and prompt_array.ndim in (1, 2):
        prompt_array = prompt_array.astype(np.int64)  # (of an empty list numpy makes reals)
    if prompt_array.ndim not in (1, 2) or prompt_array.dtype.kind not in "iu":
        raise UsageError(
            "A prompt is numbers of tokens, integers [length] or [texts, length]. Received: "
            f"{prompt_array.dtype} of shape {list(prompt_array.shape)}."
        )
    prompts = prompt_array if prompt_array.ndim == 2 else prompt_array[None]
    program.check_length(d, prompts.shape[1], tokens)
    if not 1 <= len(prompts) <= program.MAX_TEXTS:
        raise UsageError(f"1 to {program.MAX_TEXTS} prompts. Received: {len(prompts)}.")
    rows = plaintext.one_hot(d.token_input, prompts, (prompts.shape[1], d.vocabulary))
    bits = private.plan.fraction_of(d.token_input)
    parameters = {**private.parameters(profile, None, check_range), "tokens": tokens}
    if check_range is None and private.samples is None and parameters["check_range"]:
        parameters["check_range"] = _can_check_ranges(d, prompts.shape[1], tokens, profile)
    if positions is not None:
        parameters["positions"] = positions
    if temperature:
        parameters["temperature"] = d.temperature
    ring = (rows.astype(np.int64)) << bits
    return parameters, {program.PROMPT: PrivateInput(ring, bits)}


def _can_check_ranges(d: Decoding, prompt: int, tokens: int, profile: str) -> bool:
    """Whether the steps of a model can be checked, whose ranges may be assumed ones."""
    plan = profiles.get_profile(profile).plan
    try:
        for prediction in decoding.build_predictions(d, prompt, tokens, plan, watched=True):
            execute.model_cost(prediction)
    except UsageError:
        return False
    return True


def read_tokens(private: PrivateModel, result: JobResult) -> Array:
    """The tokens of a job, [texts, tokens].

    Raises:
        RangeError: a value left the range that the model was planned for.
    """
    flags = result.outputs.get(RANGE)
    if flags is not None and np.any(flags):
        raise RangeError(
            "Values left the range that the model was planned for, so that tokens of "
            f"{int(np.any(flags, 1).sum())} of {len(flags)} texts may be wrong. They are withheld: "
            "convert the model with samples like these or a larger margin, or ask with "
            "check_range=False."
        )
    bits = result.fractional_bits[program.TOKENS]
    tokens: Array = result.outputs[program.TOKENS].astype(np.int64) >> bits
    return tokens
