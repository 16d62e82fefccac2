"""Private text generation: a language model continues a prompt; only the client reads both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tfe_bench.cluster import profiles
from tfe_bench.cluster.requests import AnyInput, JobResult, PrivateInput, Progress
from tfe_bench.errors import RangeError, UsageError
from tfe_bench.models.convert import plaintext
from tfe_bench.models.convert.graph import Array
from tfe_bench.models.inference import decoding, execute, service
from tfe_bench.models.inference import request as requests
from tfe_bench.models.inference.decoding import TokenDecoding
from tfe_bench.models.inference.private import PrivateModel
from tfe_bench.models.inference.request import RANGE
from tfe_bench.models.inference.service import DeployedModel

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
    """Return the tokens with which a language model continues a private text.

    The prompt, the tokens and the logits stay shared until the end; then this client alone receives
    the tokens.  Public are the model's layers, the number of prompt tokens and the number of new
    tokens.

    Args:
        cluster: `LocalCluster`, `Cluster` or `Client`.
        private: the result of `tfe_bench.convert`, whose weights are shared for this job alone, or
            the name of a deployed model. It maps tokens [n] to logits [n, vocabulary]; each row of
            logits depends on tokens up to its own position (`use_causal_mask=True`).
        prompt: token numbers [length], or several prompts of one length, [texts, length].
        tokens: number of new tokens; with the prompt at most the model's n.
        temperature: 0 for the likeliest token each time; T > 0 draws tokens with the probabilities
            softmax(logits / T), by noise that the dealer draws and no other party knows.
        positions: name of the model's input of position numbers 0, 1, 2, ..., if there is one.
        profile: the network profile for which the protocols plan; None: the cluster's.
        progress: callback for the progress.
        check_range: whether the workers detect, for this client alone, that a value left its
            planned range; None: if the plan allows it.

    Returns:
        int64 token numbers, [tokens] or [texts, tokens].

    Raises:
        UsageError: the model is not a language model (the text names the layer), the prompt is
            invalid, or prompt and tokens exceed the model's positions.
        RangeError: values left their planned range.
        PolicyError: an operator does not permit this client.
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
    service.check_private_model(model, "generate", "convert(model), or a deployed model's name")
    assert isinstance(model, PrivateModel)
    parameters, inputs = build_generation_request(
        model, prompt, tokens, positions, profile_name, check_range, temperature
    )
    if deployment:
        parameters = {**{k: v for k, v in parameters.items() if k != "plan"}, **deployment}
    else:
        service.check_cluster_precision(cluster)
        inputs = {**model.shared_weights(), **inputs}
    generated = read_generated_tokens(model, cluster.run("generate", parameters, inputs, progress))
    return generated if np.ndim(prompt) > 1 else generated[0]


def build_generation_request(
    private: PrivateModel,
    prompt: Any,
    tokens: int,
    positions: str | None,
    profile: str = "local",
    check_range: bool | None = None,
    temperature: float = 0.0,
) -> tuple[dict[str, Any], dict[str, AnyInput]]:
    """Return parameters of the program "generate", and its input besides the weights.

    Raises:
        UsageError: as `generate`; no error contains a token.
    """
    d = TokenDecoding.from_plan(private.plan, positions, temperature)
    prompt_array = np.asarray(prompt)
    if prompt_array.size == 0 and prompt_array.ndim in (1, 2):
        prompt_array = prompt_array.astype(np.int64)  # NumPy converts an empty list to reals
    if prompt_array.ndim not in (1, 2) or prompt_array.dtype.kind not in "iu":
        raise UsageError(
            "Expected token numbers, integers [length] or [texts, length], as prompt. Received: "
            f"{prompt_array.dtype} of shape {list(prompt_array.shape)}.",
            code="wrong-type",
            operation="prompt",
            received=prompt_array.dtype,
        )
    prompts = prompt_array if prompt_array.ndim == 2 else prompt_array[None]
    requests.check_length(d, prompts.shape[1], tokens)
    if not 1 <= len(prompts) <= requests.MAX_TEXTS:
        raise UsageError(
            f"Expected 1 to {requests.MAX_TEXTS} prompts. Received: {len(prompts)}.",
            code="number-out-of-range",
            operation="prompt",
            received=len(prompts),
            expected=requests.MAX_TEXTS,
        )
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
    return parameters, {requests.PROMPT: PrivateInput(ring, bits)}


def _can_check_ranges(d: TokenDecoding, prompt: int, tokens: int, profile: str) -> bool:
    """Return whether ranges of a model's steps can be checked; its ranges may be assumed ones."""
    plan = profiles.get_profile(profile).plan
    try:
        for prediction in decoding.build_decoding_predictions(
            d, prompt, tokens, plan, watched=True
        ):
            execute.model_cost(prediction)
    except UsageError:
        return False
    return True


def read_generated_tokens(private: PrivateModel, result: JobResult) -> Array:
    """Return the tokens of a job, [texts, tokens].

    Raises:
        RangeError: a value left its planned range.
    """
    flags = result.outputs.get(RANGE)
    if flags is not None and np.any(flags):
        raise RangeError(
            f"Values left their planned range, so that tokens of {int(np.any(flags, 1).sum())} "
            f"of {len(flags)} texts may be wrong. They are withheld. Convert the model with "
            "samples like these or a larger margin, or pass check_range=False.",
            code="left-planned-range",
            operation="generate",
        )
    bits = result.fractional_bits[requests.TOKENS]
    tokens: Array = result.outputs[requests.TOKENS].astype(np.int64) >> bits
    return tokens
