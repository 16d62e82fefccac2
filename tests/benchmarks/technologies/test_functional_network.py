"""The encrypted first layer, its keys' leakage, the group modulo a prime, and the energy sheet."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.refusals import raises
from tfe_bench.benchmarks.technologies.functional import (
    convolution,
    energy,
    leakage,
    lenet,
    modular,
    published,
    scheme,
)
from tfe_bench.benchmarks.technologies.functional.compared import check_modulus_security
from tfe_bench.benchmarks.technologies.functional.curve import Rows, Table
from tfe_bench.errors import PolicyError, RangeError, SecurityError, UsageError


def convolve_directly(image: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Compute the convolution by its definition."""
    padded = np.pad(image.reshape(28, 28), 2)
    out = np.zeros((28, 28, 6), np.int64)
    for i in range(28):
        for j in range(28):
            out[i, j] = np.einsum("ab,abf->f", padded[i : i + 5, j : j + 5], weights)
    return out


@pytest.fixture
def layer(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return pictures, weights, and a gradient of the outputs."""
    images = rng.integers(0, 256, (2, 784))
    return images, rng.integers(-127, 128, (5, 5, 6)), rng.integers(-127, 128, (2, 28, 28, 6))


def test_rows_are_the_convolution_and_its_gradient(
    layer: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    images, weights, delta = layer
    result = lenet.lenet_layer_in_clear(images, weights)
    for image, row, d, sums in zip(
        images, result, delta, lenet.gradient_in_clear(images, delta), strict=True
    ):
        assert (row.reshape(28, 28, 6) == convolve_directly(image, weights)).all()
        # the gradient of <delta, outputs> by the weights, which is linear in them
        for probe in (np.eye(150, dtype=np.int64)[k].reshape(5, 5, 6) for k in (0, 7, 149)):
            assert (d * convolve_directly(image, probe)).sum() == (
                sums.reshape(5, 5, 6) * probe
            ).sum()


def test_a_server_decrypts_the_layer_and_its_gradient(
    layer: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    images, weights, delta = layer
    authority = scheme.setup("selective", 784)
    sent = scheme.Encryptor(authority.public, 8, 2).encrypt(images, 2)
    server, phases = lenet.LeNetServer(authority, Table(18), 2), lenet.LeNetPhases()
    assert (
        server.evaluate_layer(sent, weights, phases) == lenet.lenet_layer_in_clear(images, weights)
    ).all()
    assert (
        server.evaluate_gradient(sent, delta, phases) == lenet.gradient_in_clear(images, delta)
    ).all()
    assert phases.training > 0 and phases.encrypt == 0


def test_keys_of_one_filter_show_the_whole_picture(
    layer: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    images, weights, _ = layer
    one = Rows.from_dense(convolution.forward_function_key_rows(weights).to_dense()[::6].copy())
    result = leakage.Leakage(leakage.compute_leakage_rank(one), 784)
    assert result.rank == 784 and "inputs themselves" in str(result)
    shown = leakage.reconstruct_messages(one, images @ one.to_dense().T)
    assert leakage.recovered_value_fraction(shown, images) == 1
    with raises(PolicyError, "keys-reveal-inputs", received=784, expected="below 784") as caught:
        leakage.check_leakage(result, False)
    assert "--allow-leakage" in str(caught.value)
    leakage.check_leakage(result, True)


def test_few_keys_show_a_part(rng: np.random.Generator) -> None:
    rows = Rows.from_dense(rng.integers(-127, 128, (128, 784)))
    result = leakage.Leakage(leakage.compute_leakage_rank(rows), 784)
    assert result.rank == 128 and result.part == 128 / 784
    leakage.check_leakage(result, False)
    messages = rng.integers(0, 256, (2, 784))
    shown = leakage.reconstruct_messages(rows, messages @ rows.to_dense().T)
    assert leakage.recovered_value_fraction(shown, messages) < 0.1
    assert np.allclose(shown @ rows.to_dense().T, messages @ rows.to_dense().T)
    twice = Rows.from_dense(np.concatenate([rows.to_dense(), 2 * rows.to_dense()]))
    assert leakage.compute_leakage_rank(twice) == 128
    assert leakage.compute_leakage_rank(Rows.from_dense(np.zeros((3, 4), np.int64))) == 0


@pytest.mark.parametrize("bits", [0, 1])
def test_rounding_keeps_to_its_bits(bits: int, rng: np.random.Generator) -> None:
    values = rng.normal(size=(5, 5, 6)) * bits
    whole, unit = convolution.quantize_values(values)
    assert np.abs(whole).max() == 127 * bits
    assert np.abs(whole * unit - values).max() <= unit / 2


@pytest.mark.parametrize("bits", sorted(modular.SIZES))
def test_groups_modulo_a_prime_are_those_of_the_standards(bits: int) -> None:
    gmpy2 = pytest.importorskip("gmpy2")
    p = modular.find_prime(bits)
    assert p.bit_length() == bits
    assert gmpy2.is_prime(p) and gmpy2.is_prime((p - 1) // 2)
    assert gmpy2.legendre(4, p) == 1


def test_the_scheme_modulo_a_prime(rng: np.random.Generator) -> None:
    pytest.importorskip("gmpy2")
    group = modular.Group(1024)
    keys = group.setup_keys(5)
    x, y = rng.integers(-255, 256, 5), rng.integers(-127, 128, (4, 5))
    x[0], y[0], y[1], y[1, 0] = 255, 0, 0, -127
    points = group.evaluate_keys(group.encrypt_message(keys, x), group.derive_keys(keys, y), y)
    table, most = modular.Table(group, 9), 5 * 255 * 127
    due = y @ x
    assert (table.find_logarithms(points, most) == due).all()
    largest = int(np.abs(due).max())
    assert (table.find_logarithms(points, largest) == due).all()
    with raises(RangeError, "logarithm-not-found", expected=f"{1 - largest} to {largest - 1}"):
        table.find_logarithms(points, largest - 1)


def test_groups_below_128_bits_of_security_are_refused() -> None:
    for bits in (1024, 2048):
        with raises(SecurityError, "insecure-parameters") as caught:
            check_modulus_security(bits, False)
        assert "--insecure-for-comparison" in str(caught.value)
        check_modulus_security(bits, True)
    check_modulus_security(3072, False)
    with raises(UsageError, "size-not-supported", received=512):
        check_modulus_security(512, True)


def test_the_published_sheet_of_energy_comes_out() -> None:
    result, due = (
        energy.compute_energy_sheet(energy.EnergyInputs()),
        published.read_quantities("energy"),
    )
    for ours, theirs in {
        "nodes_replaced": "node_replacement",
        "nodes_compute_watts": "cpu_nodes_compute_W",
        "nodes_network_watts": "cpu_nodes_network_W",
        "nodes_watts": "cpu_nodes_total_W",
        "accelerated_watts": "gpu_node_total_W",
        "saved_watts": "savings_total_W",
        "nodes_kwh_year": "cpu_total_kWh_year",
        "accelerated_kwh_year": "gpu_total_kWh_year",
        "saved_kwh_year": "savings_total_kWh_year",
        "saved_dollars_year": "annual_savings_usd",
        "saved_dollars_three_years": "savings_3y_usd",
    }.items():
        assert getattr(result, ours) == pytest.approx(float(due[theirs]), rel=1e-3), ours
    assert f"{result.efficiency:.1f}" == due["power_efficiency_x"]
    assert f"{result.saved_tons_co2_year:.0f}" == due["tons_co2"]


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(energy.EnergyInputs)])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_an_input_of_the_sheet_that_is_none_is_refused(field: str, value: float) -> None:
    with raises(UsageError, "number-out-of-range", operation=f"--{field.replace('_', '-')}"):
        energy.EnergyInputs(**{field: value})
