"""Dense layers, polynomials and the network on encrypted values, against plaintext."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.paths import ROOT
from tests.refusals import raises
from tfe_bench.benchmarks.technologies.homomorphic import (
    costs,
    jobs,
    model,
    network,
    polynomials,
    processes,
    timing,
)
from tfe_bench.benchmarks.technologies.homomorphic import linear as linear_module
from tfe_bench.benchmarks.technologies.homomorphic.linear import Dense, DiagonalProduct, SlotLayout
from tfe_bench.benchmarks.technologies.homomorphic.network import EncryptedNetwork
from tfe_bench.benchmarks.technologies.homomorphic.parameters import Parameters
from tfe_bench.benchmarks.technologies.homomorphic.parties import Client, Server, Setting
from tfe_bench.benchmarks.technologies.homomorphic.polynomials import Approximation
from tfe_bench.errors import (
    ClusterError,
    DataError,
    RangeError,
    SecurityError,
    TfeBenchError,
    UsageError,
)

pytest.importorskip("seal")

LINEAR = Parameters("CKKS", 4096, (39, 28, 42), 28)
Network = tuple[EncryptedNetwork, model.MnistModel, Client, Server]


@pytest.fixture(scope="module")
def linear() -> tuple[Setting, Client]:
    setting = Setting(LINEAR)
    return setting, Client(setting)


# ---- dense layers


def multiply_plain(product: DiagonalProduct, weights: Any, vectors: Any) -> Any:
    """Compute `Product.multiply` and `fold` on plain slots."""
    layout = product.layout
    x = layout.pack_vectors(vectors, product.shift)
    diagonals = product.list_diagonals(weights)
    turned = [np.roll(x, -b * layout.stride) for b in range(product.baby)]
    total = np.zeros(layout.slots)
    for _ in range(product.giant):
        total = np.roll(total, -product.baby * layout.stride)
        total = total + sum(t * next(diagonals) for t in turned)
    for step in product.folds:
        total = total + np.roll(total, -step)
    assert next(diagonals, None) is None
    return layout.unpack_slots(total, len(vectors), product.m)


@pytest.mark.parametrize("batch", [1, 2, 3, 8])
@pytest.mark.parametrize(
    ("m", "n"),
    [
        (1, 1),
        (1, 200),
        (2, 3),
        (3, 2),
        (7, 64),
        (64, 7),
        (17, 100),
        (128, 128),
        (100, 129),
        (5, 256),
    ],
)
def test_diagonals_give_the_product(m: int, n: int, batch: int) -> None:
    seed = 1000 * m + n
    print("seed", seed)
    rng = np.random.default_rng(seed)
    weights, vectors = rng.normal(size=(m, n)), rng.normal(size=(batch, n))
    layout = SlotLayout.fit_layout(2048, max(m, n), batch, 1 << (m - 1).bit_length())
    product = DiagonalProduct(m, n, layout)
    vectors = vectors[: layout.images]
    assert np.allclose(multiply_plain(product, weights, vectors), vectors @ weights.T)
    assert product.baby * product.giant == product.shift
    assert len(product.steps) <= 2 + math.log2(2048)


@pytest.mark.parametrize(("m", "n", "batch"), [(1, 1, 1), (3, 5, 2), (10, 33, 40), (20, 2048, 1)])
def test_a_dense_layer_agrees_with_numpy(
    linear: tuple[Setting, Client], m: int, n: int, batch: int
) -> None:
    seed = 17 * n + m
    print("seed", seed)
    rng = np.random.default_rng(seed)
    setting, client = linear
    weights = rng.normal(0, 1 / np.sqrt(n), (m, n))
    vectors = rng.uniform(-1, 1, (batch, n))
    layer = Dense(setting, weights, batch)
    server = Server(setting, client.evaluation_keys(layer.product.steps))
    back = [client.decrypt(layer.run(server, client.encrypt(v))) for v in layer.pack(vectors)]
    assert np.abs(layer.unpack(back, batch) - vectors @ weights.T).max() < 0.02


def test_unfit_matrices_are_refused(
    linear: tuple[Setting, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    setting, client = linear
    for shape in ((0, 3), (3, 0), (3,), (1, 2, 3)):
        with raises(UsageError, "rank-mismatch"):
            Dense(setting, np.zeros(shape))
    with raises(UsageError, "layout-too-small", operation="slots", received=2048):
        Dense(setting, np.ones((1, 2049)))
    for bad in (math.nan, math.inf):
        with raises(RangeError, "not-finite"):
            Dense(setting, [[1.0, bad]])
    with raises(RangeError, "modulus-overflow", operation="A plaintext"):
        Dense(setting, [[1e12]])
    with monkeypatch.context() as changed:
        changed.setattr(linear_module, "_MOST_BYTES", 2**16 - 1)
        with raises(UsageError, "too-large", operation="matrix"):
            Dense(setting, [[1.0]])
    zeros = Dense(setting, np.zeros((2, 2)))
    server = Server(setting, client.evaluation_keys(zeros.product.steps))
    with raises(UsageError, "product-of-zeros", operation="matrix"):
        zeros.run(server, client.encrypt(zeros.pack(np.ones((1, 2)))[0]))


def test_weights_whose_result_could_overflow_are_refused(linear: tuple[Setting, Client]) -> None:
    setting, client = linear
    layer = Dense(setting, np.full((2, 1000), 60.0))
    server = Server(setting, client.evaluation_keys(layer.product.steps))
    with raises(RangeError, "modulus-overflow"):
        layer.run(server, client.encrypt(layer.pack(np.ones((1, 1000)))[0]))


@pytest.mark.parametrize("numbers", [(2048, 3, 1, 1), (2048, 4096, 1, 1), (2048, 0, 1, 1)])
def test_layouts_that_cannot_be_are_refused(numbers: tuple[int, int, int, int]) -> None:
    with raises(UsageError, "invalid-layout", "layout-too-small"):
        SlotLayout(*numbers)


# ---- polynomials


@pytest.mark.parametrize("name", polynomials.FUNCTIONS)
def test_polynomials_are_as_near_as_they_say(name: str) -> None:
    approximation = Approximation.fit_function(name)
    exact = polynomials.FUNCTIONS[name][0]
    x = np.linspace(approximation.low, approximation.high, 3001)
    assert np.abs(approximation(x) - exact(x)).max() <= approximation.error * (1 + 1e-6)
    setting = Setting(polynomials.PARAMETERS)
    client = Client(setting)
    server = Server(setting, client.evaluation_keys(relinearization=True))
    x = np.linspace(approximation.low, approximation.high, setting.parameters.slots)
    encrypted = client.encrypt(approximation.normalize_values(x))
    decrypted = client.decrypt(
        polynomials.evaluate_polynomial(server, encrypted, approximation.coefficients)
    )
    assert np.abs(decrypted - approximation(x)).max() < 1e-4
    with raises(RangeError, "outside-bound", expected="at most 1"):
        client.encrypt(approximation.normalize_values(x + 0.01))


def test_unknown_functions_are_refused() -> None:
    with raises(UsageError, "unknown-name", received="sigmod") as caught:
        jobs.run_polynomial("sigmod")
    assert 'Did you mean "sigmoid"' in str(caught.value)


# ---- the network


@pytest.fixture(scope="module")
def small() -> Iterator[Network]:
    setting = Setting(network.choose_network_parameters(8192))
    net, trained, client = (
        EncryptedNetwork(setting, 2),
        model.made_up_mnist_model(4),
        Client(setting),
    )
    keys = client.evaluation_keys(net.steps, relinearization=True)
    yield net, trained, client, Server(setting, keys)


def test_the_network_agrees_with_plaintext_and_its_weights_may_be_streamed(small: Network) -> None:
    net, trained, client, server = small
    seed = 8
    print("seed", seed)
    pictures = np.random.default_rng(seed).uniform(0, 1, (2, 28, 28))
    pictures[0, :14] = 0.0
    pictures[1] = 1.0
    inputs = [client.encrypt(v) for v in net.pack_pictures(pictures)]
    bounds, chunks = net.bound_products(trained), list(net.serialize_weights(trained))
    expected = trained.compute_logits(pictures)
    assert np.abs(expected).max() > 1.0
    logits = net.unpack_outputs(
        client.decrypt(net.run_network(server, inputs, iter(chunks), bounds)), 2
    )
    assert np.abs(logits - expected).max() < jobs.NETWORK_ERROR
    assert [sum(layer.plaintexts for layer in net.layers)] == [len(chunks)]
    plaintext_bytes = sum(o.plaintext_bytes for layer in net.layers for o in layer.operations)
    assert sum(map(len, chunks)) == pytest.approx(plaintext_bytes, rel=0.01)
    with raises(UsageError, "too-few-plaintexts"):
        net.run_network(server, inputs, iter(chunks[:-1]), bounds)
    with raises(UsageError, "too-many-plaintexts"):
        net.run_network(server, inputs, iter([*chunks, chunks[0]]), bounds)
    with raises(DataError, "level-mismatch"):
        net.run_network(server, inputs, iter(chunks[::-1]), bounds)
    with raises(DataError, "malformed-encoding", operation="plaintext"):
        net.run_network(server, inputs, iter([b"x" * 99, *chunks[1:]]), bounds)
    with raises(UsageError, "ciphertext-count", expected=2):
        net.run_network(server, inputs[:-1], iter(chunks), bounds)
    other = Client(net.setting)
    with raises(SecurityError, "encryption-key-mismatch", operation="evaluation keys"):
        foreign = [dataclasses.replace(x, key=other.key) for x in inputs]
        net.run_network(server, foreign, iter(chunks), bounds)


@pytest.mark.parametrize(("degree", "images"), [(8192, 1), (8192, 2), (8192, 3), (16384, 1)])
def test_moved_parities_are_the_convolution(degree: int, images: int) -> None:
    seed = 100 * images + degree
    print("seed", seed)
    net, trained = (
        EncryptedNetwork(Setting(network.choose_network_parameters(degree)), images),
        model.made_up_mnist_model(seed),
    )
    pictures = np.random.default_rng(seed).uniform(0.5, 1, (images, 28, 28))
    stride, kernels = net.layout.stride, net._arrange_kernels(trained)
    total = np.zeros(net.layout.slots)
    for slots, spread in zip(net.pack_pictures(pictures), net._spreads, strict=True):
        for down, right in spread.moves:
            step = down * network._ROW + (right - spread.columns[0]) * network._COLUMN
            total += np.roll(slots, -step * stride) * next(kernels)
    for step in net._folds:
        total += np.roll(total, -step)
    assert next(kernels, None) is None
    expected = np.einsum("ntp,tm->npm", model.extract_kernel_taps(pictures), trained.kernels)
    features = net.layout.unpack_slots(total, images, model.FEATURES)
    assert np.allclose(features, expected.reshape(images, -1))


def test_the_network_tells_every_operation_and_key(
    small: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, trained, client, server = small
    counted = {"rotate": 0, "rescale": 0, "multiply_unscaled": 0}
    for name in counted:
        inner = getattr(server, name)

        def count(*arguments: Any, name: str = name, inner: Any = inner) -> Any:
            counted[name] += 1
            return inner(*arguments)

        monkeypatch.setattr(server, name, count)
    inputs = [client.encrypt(v) for v in net.pack_pictures(np.zeros((1, 28, 28)))]
    net.run_network(server, inputs, net.encode_weights(trained), net.bound_products(trained))
    declared: dict[str, int] = {}
    for layer in net.layers:
        for operation in layer.operations:
            assert operation.op in costs.OPERATIONS and 1 <= operation.level <= 6
            assert set(operation.key_ids) <= set(net.key_bytes)
            declared[operation.op] = declared.get(operation.op, 0) + operation.count
    assert counted["rotate"] == declared["rotate"]
    assert counted["rescale"] == declared["rescale"]
    assert counted["multiply_unscaled"] == declared["square"] == declared["relinearize"] == 2
    assert server.keys.size == pytest.approx(sum(net.key_bytes.values()), rel=0.01)


def test_what_the_network_cannot_take_is_refused(small: Network) -> None:
    net, trained, _, _ = small
    for bad, error in (
        (np.zeros((2, 27, 28)), UsageError),
        (np.zeros((3, 28, 28)), UsageError),
        (np.zeros((0, 28, 28)), UsageError),
        (np.full((1, 28, 28), 1.01), RangeError),
        (np.full((1, 28, 28), -0.01), RangeError),
        (np.full((1, 28, 28), math.nan), RangeError),
    ):
        with pytest.raises(error):
            net.pack_pictures(bad)
    large = dataclasses.replace(trained, output=trained.output * 1e7)
    with raises(RangeError, "modulus-overflow"):
        list(net.encode_weights(large))
    with raises(UsageError, "degree-not-supported", received=4096):
        network.choose_network_parameters(4096)
    with raises(UsageError, "too-few-levels", operation="network"):
        EncryptedNetwork(Setting(LINEAR))
    for images in (0, 5):
        with raises(
            UsageError,
            "number-out-of-range",
            operation="The number of pictures in a ciphertext",
        ):
            EncryptedNetwork(net.setting, images)
    with raises(UsageError, "shape-mismatch", operation="kernels"):
        dataclasses.replace(trained, kernels=np.zeros((5, 5)))


def test_no_slot_exceeds_the_networks_bounds(small: Network) -> None:
    net, trained, _, _ = small
    seed = 9
    print("seed", seed)
    pictures = np.random.default_rng(seed).integers(0, 2, (50, 28, 28)).astype(float)
    assert np.abs(trained.compute_logits(pictures)).max() <= net.bound_products(trained)[2]


def test_taps_are_kerass_convolution() -> None:
    keras = pytest.importorskip("keras")
    seed = 10
    print("seed", seed)
    trained = model.made_up_mnist_model(seed)
    pictures = np.random.default_rng(seed).uniform(0, 1, (3, 28, 28))
    kernel = trained.kernels.reshape(5, 5, 1, 5)
    theirs = keras.ops.conv(pictures[..., None], kernel, strides=2, padding="same")
    ours = np.einsum("ntp,tm->npm", model.extract_kernel_taps(pictures), trained.kernels)
    assert np.allclose(np.asarray(theirs).reshape(3, -1, 5), ours, atol=1e-5)


# ---- measurements


def test_jobs_are_measured() -> None:
    for job in (
        jobs.run_homomorphic_product(quick=True),
        jobs.run_homomorphic_dense(3, quick=True),
    ):
        assert job.correct and job.figures["max_abs_error"] < jobs.LINEAR_ERROR
        assert job.figures["rounds"] == 1 and job.figures["key_bytes"] > 10**6
        assert job.seconds is not None and len(job.seconds.all) == 3
        assert job.figures["bytes_up"] == 262257
    exp = jobs.run_polynomial("exp", quick=True)
    assert exp.correct and exp.figures["approximation_error"] < 1e-3
    assert {"softmax", "J5", "J6", "J7"} == set(jobs.NOT_SUPPORTED)
    for batch in (0, -1, 4097):
        with raises(UsageError, "number-out-of-range", operation="The batch"):
            jobs.run_homomorphic_dense(batch)


def test_costs_have_every_operation_and_level() -> None:
    table = costs.cost_table(4096, 2)
    assert set(table) == set(costs.OPERATIONS)
    for name, seconds in table.items():
        assert len(seconds) == 2
        assert [math.isnan(s) for s in seconds] == [name == "rescale", False]
        assert all(s > 0 for s in seconds[name == "rescale" :])
    for levels in (0, 33):
        with raises(UsageError, "number-out-of-range", operation="The levels"):
            costs.cost_table(4096, levels)
    with raises(UsageError, "degree-not-supported", received=5000):
        costs.cost_table(5000, 2)
    with raises(UsageError, "number-out-of-range", operation="A prime's bits"):
        costs.cost_table(4096, 8)


def _make_handler(kind: str) -> Any:
    def handle(item: int) -> int:
        if kind == "typed" and item == 2:
            raise RangeError("too large")
        if kind == "foreign" and item == 2:
            raise ValueError("odd")
        if kind == "dies" and item == 2:
            import os

            os._exit(9)
        return item * item

    return handle


def test_processes_give_every_result_or_say_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)  # programs find this module there
    items = list(range(5))
    assert dict(processes.run_spread(_make_handler, ("",), items, 2)) == {i: i * i for i in items}
    assert list(processes.run_spread(_make_handler, ("",), [])) == []
    failures: tuple[tuple[str, type[TfeBenchError], str, str], ...] = (
        ("typed", RangeError, "value-out-of-range", "too large"),
        ("foreign", ClusterError, "process-failed", "odd"),
        ("dies", ClusterError, "process-ended", "9"),
    )
    for kind, error, code, fact in failures:
        with raises(error, code, names=(fact,)):
            list(processes.run_spread(_make_handler, (kind,), items, 2))


def test_times_are_medians_and_percentiles() -> None:
    calls = []
    seconds = timing.time_ciphertext_operation(lambda: calls.append(1), 5)
    assert len(calls) == 6 and len(seconds.all) == 5
    assert len(timing.time_ciphertext_operation(lambda: calls.append(1), 50, budget=0.0).all) == 3
    assert timing.percentile_95([float(i) for i in range(1, 101)]) == 95.0
    assert timing.percentile_95([3.0]) == 3.0
    assert timing.percentile_95([2.0, 1.0]) == 2.0
