"""Private text generation: the tokens equal those of plaintext, or have its probabilities."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfe_bench as tfe
from tests.models.writers import (
    LENGTH,
    NEW,
    PROMPT,
    WORDS,
    Array,
    L,
    convert_writer,
    decoder_model,
    generate_greedily,
    keras,
    order_of,
    run_parties,
)
from tests.protocols.pads import assert_one_message_each
from tests.refusals import raises
from tfe_bench.cluster.jobs import Context
from tfe_bench.cluster.requests import JobResult
from tfe_bench.errors import UsageError
from tfe_bench.models.convert.calibration import ModelPlan
from tfe_bench.models.inference import decoding, execute, weights
from tfe_bench.models.inference import request as requests
from tfe_bench.models.inference.decoding import TokenDecoding
from tfe_bench.models.inference.execute import Prediction
from tfe_bench.models.inference.private import convert
from tfe_bench.models.inference.programs import generate as program
from tfe_bench.models.layers.base.operations import ProtocolSetting
from tfe_bench.models.zoo import texts
from tfe_bench.protocols.ring import rotation
from tfe_bench.protocols.session.sharing import Shared

# ---- generated texts


@pytest.mark.parametrize("places", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_texts_are_those_of_plaintext_and_cost_what_is_said(
    places: bool, rng: np.random.Generator
) -> None:
    """Generate two texts at once with range checks; masks are used once, traffic is as declared."""
    more = {"positions": "places"} if places else {}
    while True:
        model = decoder_model(rng, places, norm=not places)
        prompts = rng.integers(0, WORDS, (2, PROMPT))
        expected = [generate_greedily(model, p, NEW) for p in prompts]
        if min(apart for _, apart in expected) > 0.05:
            break
    private = convert_writer(model, rng)
    order = order_of(private, 2, PROMPT, NEW, **more)
    fractions: list[int] = []

    def run(make_generator: Callable[..., program.PrivateTextGenerator], rows: Shared) -> Any:
        return list(make_generator(order).generate_tokens(rows, fractions.append))

    sim = run_parties(private, prompts, run, record=not places)
    bits = private.plan.fraction_of("words")
    tokens, flags = (sim.value(itemgetter(i)) for i in range(2))
    assert not flags.any()
    assert (tokens >> bits).tolist() == [text for text, _ in expected]
    assert sorted(fractions) == sorted([*range(1, NEW + 1)] * 3)
    first, step = (execute.model_cost(s) for s in order.build_predictions())
    assert sim.sent == tuple(
        a + (NEW - 1) * b for a, b in zip(first.by_party(0), step.by_party(0), strict=True)
    )
    assert sim.rounds == first.rounds + (NEW - 1) * step.rounds
    if not places:
        assert_one_message_each(sim)


def test_a_prompt_is_its_positions_one_after_the_other_and_steps_may_come_again(
    rng: np.random.Generator,
) -> None:
    """Compare keys and values of 4 positions at once with those of 4 steps, to 4 ulp.

    Then the last two positions are repeated with other tokens: the cache is overwritten, later
    entries
    are not used, and no mask is used twice.
    """
    private = convert_writer(decoder_model(rng, norm=False), rng)
    texts = rng.integers(0, WORDS, (2, PROMPT))
    whole, one = order_of(private, 1, PROMPT, NEW), order_of(private, 1, 1, NEW)

    def run(make_generator: Callable[..., program.PrivateTextGenerator], rows: Shared) -> Any:
        def at(text: int, begin: int, end: int) -> Shared:
            return rows.map(lambda a: a[text : text + 1, begin:end])

        both, single = make_generator(whole), make_generator(one)
        at_once = [both._run_prefill(both._weights, at(text, 0, PROMPT)) for text in range(2)]
        state = single._run_prefill(single._weights, at(1, 0, 1))
        for i in range(1, PROMPT):
            state = single._run_step(single._weights, at(1, i, i + 1), state[1], np.asarray(i))
        first = state
        # text 1 after its beginning is rolled back; text 0 has its own
        state = single._run_prefill(single._weights, at(0, 0, 1))
        stale = [*state[1][:0], *first[1]]
        for i in range(PROMPT):
            state = single._run_step(single._weights, at(0, i, i + 1), stale, np.asarray(i))
            stale = state[1]
        return [at_once[1][:3], first[:3], at_once[0][:3], state[:3]]

    sim = run_parties(private, texts, run, record=True)
    assert_one_message_each(sim)

    def value(of: int, *path: int) -> Array:
        def pick(out: Any) -> Shared:
            for i in (of, *path):
                out = out[i]
            result: Shared = out
            return result

        return sim.value(pick)

    for known, positions in ((0, 1), (2, 3)):
        for i in (0, 2):
            assert np.array_equal(value(known, i), value(positions, i))
        for i in range(2):
            a, b = (value(of, 1, i)[..., :PROMPT, :] for of in (known, positions))
            assert np.abs(a - b).max() <= 4


def model_of_equal_keys(rng: np.random.Generator, attends: bool) -> Any:
    """Build keys that equal values, keys of two queries, or no attention at all."""
    words = keras.Input((LENGTH,), dtype="int32", name="words")
    x = L.Embedding(WORDS, 6)(words)
    if attends:
        x = L.Add()([x, L.Attention()([x, x], use_causal_mask=True)])
        both = [L.Attention()([q, x], use_causal_mask=True) for q in (x, L.Dense(6)(x))]
        x = L.Add()([x, L.Dense(6)(L.Concatenate()(both))])
    model = keras.Model(words, L.Dense(WORDS)(x))
    for variable in model.weights:
        variable.assign(rng.normal(0, 0.6, variable.shape))
    return model


@pytest.mark.parametrize(
    ("attends", "texts"), [(False, 1), pytest.param(True, 4, marks=pytest.mark.slow)]
)
def test_keys_may_be_shared_and_texts_dealt_by_each_party(
    attends: bool, texts: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotation, "is_worthwhile", lambda *_: True)
    while True:
        model = model_of_equal_keys(rng, attends)
        prompts = rng.integers(0, WORDS, (texts, PROMPT))
        expected = [generate_greedily(model, p, NEW) for p in prompts]
        if min(apart for _, apart in expected) > 0.05:
            break
    private = convert_writer(model, rng)
    order = order_of(private, texts, PROMPT, NEW, profile="wan")
    assert all(execute.has_rotating_dealers(s) == (texts > 2) for s in order.build_predictions())

    def run(make_generator: Callable[..., program.PrivateTextGenerator], rows: Shared) -> Any:
        return list(make_generator(order).generate_tokens(rows, lambda _: None))

    sim = run_parties(private, prompts, run)
    result = sim.value(itemgetter(0)) >> private.plan.fraction_of("words")
    assert result.tolist() == [text for text, _ in expected]
    assert not sim.value(itemgetter(1)).any()


@pytest.mark.parametrize(("scale", "offset"), [(1000.0, 0.0), (-2.5, 1.0), (0.01, 2.0)])
def test_logits_of_any_scale_are_as_fine_as_they_should(
    scale: float, offset: float, rng: np.random.Generator
) -> None:
    """Include the recipient's factor of logits in the choice of a token."""
    words = keras.Input((LENGTH,), dtype="int32", name="words")
    logits = L.Rescaling(scale, offset)(L.Dense(WORDS)(L.Embedding(WORDS, 6)(words)))
    private = convert_writer(keras.Model(words, logits), rng)
    name = private.graph.outputs[0]
    ((factor, more),) = private.graph.results or ((1.0, 0.0),)
    largest = np.abs(private.plain(np.arange(8)[None]) - more).max()
    for temperature in (0.0, 0.5, 8.0):
        d = TokenDecoding.from_plan(private.plan, None, temperature)
        numbers = d.build_step(LENGTH).numbers[name]
        bits = int(d.build_step(LENGTH).graph.by_name[name].options["fraction"])
        noise = d.draw_noise(1)
        assert factor * 2.0**-bits <= max(largest, temperature) * 2.0**-11
        assert 4 * largest / factor * 2**bits < 1 << (numbers.bits - 2)
        assert (noise is None) == (temperature == 0)
        if noise is not None:
            scaled_noise = factor * noise * 2.0**-bits / temperature
            assert np.abs(scaled_noise).max() < 38 and 0.1 < scaled_noise.std() < 8
            assert 38 * temperature / factor * 2**bits < 1 << (numbers.bits - 2)


def test_a_table_of_positions_is_private_and_costs_nothing(rng: np.random.Generator) -> None:
    private = convert_writer(decoder_model(rng, norm=False), rng)
    (table,) = (x for x in private.graph.layers if x.op == "offset")
    assert table.weights["bias"].shape == (LENGTH, 6)
    assert TokenDecoding.from_plan(private.plan).positional_weights == {f"{table.name}/bias": 0}
    nodes = Prediction(private.plan, ProtocolSetting()).placed_layers()
    tallies = execute.layer_cost_reports(Prediction(private.plan, ProtocolSetting()))
    (cost,) = (t.cost for n, t in zip(nodes, tallies, strict=True) if n.layer.op == "offset")
    assert cost.total == cost.rounds == 0
    header = private.plan.to_header()
    for row in ([16, 17, 20], [12, 12, 20]):
        spoilt = {**header, "numbers": {**header["numbers"], table.name: row}}
        with raises(UsageError, "invalid-plan"):
            execute.check_executable_plan(ModelPlan.from_header(spoilt))


def test_a_model_in_steps_has_the_cost_of_its_rows(rng: np.random.Generator) -> None:
    """Compute only the last position in a prompt's last layer; a step has a separate cost."""
    private = convert_writer(decoder_model(rng), rng)
    d = TokenDecoding.from_plan(private.plan)
    assert d.round_up_length(3) == LENGTH
    first = d.build_prefill(PROMPT)
    keys, values = d.cached_values
    assert first.graph.shapes[keys] == (2, PROMPT, 3) == first.graph.shapes[values]
    assert first.graph.shapes[first.graph.outputs[0]] == (1, WORDS)
    step = d.build_step(LENGTH)
    assert list(step.graph.shapes)[:1] == ["words"]
    assert {s[-2] for n, s in step.graph.shapes.items() if n.endswith("@remembered")} == {LENGTH}
    for steps in (first, step):
        with raises(UsageError, "unsupported-layer"):
            execute.check_executable_plan(steps)
    costs = [execute.model_cost(s) for s in order_of(private, 1, PROMPT, 2).build_predictions()]
    again = [execute.model_cost(s) for s in order_of(private, 1, PROMPT, NEW).build_predictions()]
    assert costs == again


def test_tokens_are_drawn_with_the_probabilities_of_a_temperature(
    rng: np.random.Generator,
) -> None:
    """Count successors of a token, for a model whose tokens depend on the previous one."""
    model, temperature = model_of_equal_keys(rng, attends=False), 1.5
    private = convert_writer(model, rng)
    order = order_of(private, 64, 1, LENGTH - 1, temperature=temperature)
    plain = order_of(private, 64, 1, LENGTH - 1)
    prompts = np.full((64, 1), int(rng.integers(WORDS)))

    def run(make_generator: Callable[..., program.PrivateTextGenerator], rows: Shared) -> Any:
        return list(make_generator(order).generate_tokens(rows, lambda _: None))

    sim = run_parties(private, prompts, run)
    tokens = sim.value(itemgetter(0)) >> private.plan.fraction_of("words")
    assert not sim.value(itemgetter(1)).any()
    first, step = (execute.model_cost(s) for s in order.build_predictions())
    assert sim.rounds == first.rounds + (LENGTH - 2) * step.rounds
    assert first.rounds == execute.model_cost(plain.build_predictions()[0]).rounds
    texts = np.concatenate([prompts, tokens], 1)
    excess = freedom = 0.0
    for word in range(WORDS):
        behind = texts[:, 1:][texts[:, :-1] == word]
        logits = np.asarray(model(np.full((1, LENGTH), word)))[0, 0].astype(np.float64)
        share = np.exp((logits - logits.max()) / temperature)
        expected = len(behind) * share / share.sum()
        if len(behind) > 30:
            counts = np.bincount(behind, minlength=WORDS)
            excess += float(((counts - expected) ** 2 / expected).sum())
            freedom += WORDS - 1
    # chi-square; with few expected counts it is wider than its formula
    assert freedom and abs(excess - freedom) < 8 * np.sqrt(2 * freedom)


@pytest.mark.slow
def test_gpt2_costs_what_its_page_says() -> None:
    """Compare docs/transformers.md: MB that all three send, and rounds."""
    samples = texts.generate_texts("gpt2", 72)
    private = convert(
        texts.build_language_model("gpt2", 72),
        samples=samples,
        fractional_bits=12,
        activations="series",
    )
    both = decoding.build_decoding_predictions(
        TokenDecoding.from_plan(private.plan), 64, 8, "local", 1, True
    )
    for s, megabytes in zip(both, (372.3, 11.1), strict=True):
        cost = execute.model_cost(s)
        assert cost.total == pytest.approx(8e6 * megabytes, rel=0.01) and cost.rounds == 566


# ---- as a user runs it


@pytest.mark.slow
def test_a_cluster_goes_on_with_texts(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Use a model that the client sends, and one that the workers store."""
    while True:
        model = decoder_model(rng)
        prompts = rng.integers(0, WORDS, (2, PROMPT))
        expected = [generate_greedily(model, p, 4) for p in prompts]
        if min(apart for _, apart in expected) > 0.05:
            break
    private, texts = convert_writer(model, rng), [text for text, _ in expected]
    progress_reports: list[tuple[float, str]] = []
    with tfe.LocalCluster(models=tmp_path / "models") as cluster:
        result = tfe.generate(
            cluster, private, prompts[0], 4, progress=lambda *told: progress_reports.append(told)
        )
        assert result.tolist() == texts[0] and result.dtype == np.int64
        assert any("of 4" in word for _, word in progress_reports)
        cluster.deploy(private, "writer")
        assert cluster.generate("writer", prompts, 4).tolist() == texts
        jobs: list[JobResult] = []
        run = cluster.run

        def recorded(*operands: Any) -> JobResult:
            jobs.append(run(*operands))
            return jobs[-1]

        with monkeypatch.context() as watched:
            watched.setattr(cluster, "run", recorded)
            for prompt in prompts:
                cluster.generate("writer", prompt, 4)
        one, other = ([m["payload"] for m in job.measured] for job in jobs)
        assert one == other
        with raises(UsageError, "model-not-found", operation="reader"):
            tfe.generate(cluster, "reader", prompts[0])
        with raises(UsageError, "too-large", operation="tokens", names=("8 positions",)):
            tfe.generate(cluster, "writer", prompts[0])
        with raises(UsageError, "wrong-type", operation="generate", received="Functional"):
            tfe.generate(cluster, model, prompts[0], 4)


def test_a_text_goes_on_from_its_own_prompt_whatever_a_worker_did_before(
    rng: np.random.Generator,
) -> None:
    """Run two jobs of one model and one length one after the other in the same workers.

    They share their graphs; keys and values of one job do not leak into the other.
    """
    model = model_of_equal_keys(rng, attends=True)
    while True:
        prompts = rng.integers(0, WORDS, (2, PROMPT))
        prompts[1, -1] = prompts[0, -1]  # the last token alone does not distinguish them
        expected = [generate_greedily(model, p, NEW) for p in prompts]
        if expected[0][0] != expected[1][0] and min(apart for _, apart in expected) > 0.05:
            break
        model = model_of_equal_keys(rng, attends=True)
    private = convert_writer(model, rng)
    parameters = {"plan": private.plan.to_header(), "tokens": NEW, "warm_up": 0}
    bits = private.plan.fraction_of("words")

    def run(make_generator: Callable[..., program.PrivateTextGenerator], rows: Shared) -> Any:
        at, results = make_generator(order_of(private, 1, PROMPT, NEW)), []
        arrays = [at._weights[part.first_key] for part in weights.weight_parts(private.plan)]
        for client in range(2):
            inputs: dict[str, Any] = {weights.weight_input_name(i): w for i, w in enumerate(arrays)}
            inputs[requests.PROMPT] = rows.map(lambda a, i=client: a[i : i + 1])
            context = Context(
                *(at._party, parameters, inputs, lambda *_: None),
                client=f"client{client}",
                request=requests.GenerateRequest(plan=private.plan, tokens=NEW, warm_up=0),
            )
            results.append(program.run_generation(context)[requests.TOKENS])
        return results

    sim = run_parties(private, prompts, run)
    results = [(sim.value(itemgetter(i)) >> bits)[0].tolist() for i in range(2)]
    assert results == [text for text, _ in expected]


@pytest.mark.parametrize("bits", [8, 12, 16, 20])
@pytest.mark.parametrize("watched", [False, True])
def test_logits_read_all_bits_that_are_opened(
    bits: int, watched: bool, rng: np.random.Generator
) -> None:
    """Check this for rows of any fractional bits: logits have others."""
    model = decoder_model(rng)
    private = convert(model, rng.integers(0, WORDS, (16, LENGTH)), fractional_bits=bits)
    d = TokenDecoding.from_plan(private.plan)
    nodes = Prediction(
        d.build_prefill(PROMPT, watched), ProtocolSetting("local", 0), 1, watched
    ).placed_layers()
    (last,) = (node for node in nodes if node.layer.op == "greedy")
    opened = last.numbers.scale - int(last.layer.options["fraction"]) + last.numbers.bits
    used_bits = {node.output: node.used_bits for node in nodes}
    assert all(used_bits[name] >= opened for name in last.layer.inputs)
    assert not watched or 0 < last.numbers.reach < 64
