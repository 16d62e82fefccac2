"""Homomorphic encryption: parameters, parties and operations at the edges, and refusals."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.refusals import raises
from tfe_bench.benchmarks.technologies.homomorphic import operations, published
from tfe_bench.benchmarks.technologies.homomorphic.parameters import (
    DEGREES,
    SCHEMES,
    Parameters,
    choose_scheme_parameters,
    estimate_security,
)
from tfe_bench.benchmarks.technologies.homomorphic.parties import (
    Client,
    Encrypted,
    Server,
    Setting,
)
from tfe_bench.benchmarks.technologies.libraries import import_library
from tfe_bench.errors import (
    ConfigError,
    DataError,
    RangeError,
    SecurityError,
    TfeBenchError,
    UsageError,
)

seal = pytest.importorskip("seal")

SMALL = Parameters("CKKS", 4096, (35, 25, 40), 25)
SLOTS = SMALL.slots
ERROR = 1e-2
STEPS = (1, -1, SLOTS // 2, SLOTS - 1, -(SLOTS - 1), 7)


@pytest.fixture(scope="module")
def setting() -> Setting:
    return Setting(SMALL)


@pytest.fixture(scope="module")
def client(setting: Setting) -> Client:
    return Client(setting)


@pytest.fixture(scope="module")
def server(setting: Setting, client: Client) -> Server:
    return Server(setting, client.evaluation_keys(STEPS, relinearization=True))


def draw_values(seed: int = 5) -> Any:
    print("seed", seed)
    drawn = np.random.default_rng(seed).uniform(-1, 1, SLOTS)
    drawn[[0, 1, SLOTS // 2, -1]] = 1.0, -1.0, 0.0, 1.0
    return drawn


# ---- parameters


def test_security_is_the_standards_and_the_librarys() -> None:
    levels = {128: seal.sec_level_type.tc128, 192: seal.sec_level_type.tc192}
    levels[256] = seal.sec_level_type.tc256
    for degree in (1024, 2048, 4096, 8192, 16384, 32768):
        for bits, level in levels.items():
            most = seal.CoeffModulus.MaxBitCount(degree, level)
            assert estimate_security(degree, most) == bits
            assert estimate_security(degree, most + 1) < bits


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("degree", DEGREES)
def test_the_usual_parameters_are_secure(scheme: str, degree: int) -> None:
    assert choose_scheme_parameters(scheme, degree).security_bits >= 128


@pytest.mark.parametrize(
    ("changed", "error", "code", "fields"),
    [
        ({"degree": 4095}, UsageError, "degree-not-supported", {}),
        ({"degree": 0}, UsageError, "degree-not-supported", {}),
        ({"degree": 65536}, UsageError, "degree-not-supported", {}),
        ({"scheme": "CKSS"}, UsageError, "unknown-name", {"operation": "scheme"}),
        ({"prime_bits": (50,)}, UsageError, "number-out-of-range", {"operation": "primes"}),
        ({"prime_bits": ()}, UsageError, "number-out-of-range", {"operation": "primes"}),
        (
            {"prime_bits": (19, 40)},
            UsageError,
            "number-out-of-range",
            {"operation": "A prime's bits"},
        ),
        (
            {"prime_bits": (40, 61)},
            UsageError,
            "number-out-of-range",
            {"operation": "A prime's bits"},
        ),
        (
            {"prime_bits": (35, 35, 40)},
            SecurityError,
            "insecure-parameters",
            {"expected": "at most 109"},
        ),
        ({"degree": 2048}, SecurityError, "insecure-parameters", {"expected": "at most 54"}),
        (
            {"precision_bits": 9},
            UsageError,
            "number-out-of-range",
            {"operation": "The scale's bits"},
        ),
        ({"precision_bits": 59}, UsageError, "no-room-in-modulus", {"received": 59}),
    ],
)
def test_unfit_parameters_are_refused(
    changed: Any, error: type[TfeBenchError], code: str, fields: dict[str, Any]
) -> None:
    with raises(error, code, **fields):
        dataclasses.replace(SMALL, **changed)


def test_insecure_parameters_are_taken_when_asked_for_and_say_so() -> None:
    chosen = choose_scheme_parameters("CKKS", 2048, (30, 30, 30), insecure=True)
    assert chosen.security_bits == 0 and chosen.as_json()["security_bits"] == 0
    assert Setting(chosen).count_levels(Client(Setting(chosen)).encrypt(np.zeros(1024)).handle) == 2


def test_primes_that_do_not_exist_are_refused() -> None:
    with raises(UsageError, "primes-not-available"):
        Setting(Parameters("CKKS", 16384, (20,) * 20, 15))


def test_a_missing_library_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "seal", None)
    with raises(ConfigError, "library-not-installed", operation="seal"):
        Setting(SMALL)
    with raises(ConfigError, "library-not-installed", operation="seal"):
        import_library("seal", "This")


# ---- CKKS between a client and a server


def test_what_is_encrypted_is_decrypted(client: Client) -> None:
    x = draw_values()
    assert np.abs(client.decrypt(client.encrypt(x)) - x).max() < ERROR


@pytest.mark.parametrize("step", [0, *STEPS])
def test_rotations_at_their_edges(client: Client, server: Server, step: int) -> None:
    x = draw_values()
    decrypted = client.decrypt(server.rotate(client.encrypt(x), step))
    assert np.abs(decrypted - np.roll(x, -step)).max() < ERROR


@pytest.mark.parametrize("step", [2, SLOTS // 2 - 1, 3 - SLOTS])
def test_a_rotation_without_its_key_is_refused(client: Client, server: Server, step: int) -> None:
    with raises(UsageError, "evaluation-key-missing", operation="rotate", received=step):
        server.rotate(client.encrypt(draw_values()), step)


@pytest.mark.parametrize("step", [0, SLOTS, -SLOTS, 10**6])
def test_rotation_keys_that_cannot_be_are_refused(client: Client, step: int) -> None:
    with raises(UsageError, "number-out-of-range", operation="rotation", received=step):
        client.evaluation_keys((step,))


def test_sums_and_products(client: Client, server: Server) -> None:
    x, y = draw_values(6), draw_values(7)
    ex, ey = client.encrypt(x), client.encrypt(y)
    assert np.abs(client.decrypt(server.add(ex, ey)) - x - y).max() < ERROR
    assert np.abs(client.decrypt(server.multiply(ex, ey)) - x * y).max() < ERROR
    assert np.abs(client.decrypt(server.multiply(ex, ex)) - x * x).max() < ERROR


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused(client: Client, setting: Setting, bad: float) -> None:
    x = draw_values()
    x[3] = bad
    with raises(RangeError, "not-finite"):
        client.encrypt(x)
    with raises(RangeError, "not-finite"):
        setting.encode_values(x, setting.scale, 1)
    with raises(RangeError, "not-finite"):
        setting.encode_values(bad, setting.scale, 1)


def test_values_beyond_their_bound_or_the_scale_are_refused(
    client: Client, setting: Setting
) -> None:
    x = draw_values()
    with raises(RangeError, "outside-bound", expected="at most 1") as caught:
        client.encrypt(x * 1.001)
    assert "Received: 1.001" in str(caught.value)
    # 60 bits of modulus, 25 of scale: 2^32 fits after sign and guard, 2^34 does not
    assert client.encrypt(x * 2.0**32, 2.0**32).bound == 2.0**32
    with raises(RangeError, "modulus-overflow", operation="An input") as caught:
        client.encrypt(x, 2.0**34)
    assert "the modulus of level 2" in str(caught.value)
    with raises(RangeError, "modulus-overflow", operation="A plaintext") as caught:
        setting.encode_values(2.0**10, setting.scale, 1)
    assert "the modulus of level 1" in str(caught.value)


def test_the_wrong_number_of_values_is_refused(client: Client) -> None:
    for count in (SLOTS - 1, SLOTS + 1, 0):
        with raises(UsageError, "shape-mismatch", expected=SLOTS):
            client.encrypt(np.zeros(count))
    with raises(UsageError, "not-a-number"):
        client.encrypt(["a"])  # type: ignore[arg-type]


def test_results_that_could_overflow_are_refused(client: Client, server: Server) -> None:
    large = client.encrypt(draw_values(), 2.0**10)
    with raises(RangeError, "modulus-overflow", operation="A product"):
        server.multiply(large, large)
    low = server.lower_level(client.encrypt(draw_values(), 50.0), 1)
    with raises(RangeError, "modulus-overflow", operation="A sum"):
        total = low
        for _ in range(8):
            total = server.add(total, total)


def test_a_circuit_that_is_too_deep_is_refused(client: Client, server: Server) -> None:
    x = server.multiply(client.encrypt(draw_values(), 1.0), client.encrypt(draw_values(), 1.0))
    with raises(UsageError, "levels-exhausted"):
        server.rescale(x)
    low = server.lower_level(client.encrypt(draw_values() / 4096, 2.0**-12), 1)
    with raises(RangeError, "modulus-overflow", operation="A product") as caught:
        server.multiply(low, low)
    assert "the modulus of level 1" in str(caught.value)


def test_an_exhausted_scale_is_refused(client: Client, server: Server) -> None:
    with raises(UsageError, "scale-exhausted"):
        server.rescale(client.encrypt(draw_values()))


def test_sums_of_two_scales_are_refused(client: Client, server: Server) -> None:
    product = server.multiply_unscaled(client.encrypt(draw_values()), client.encrypt(draw_values()))
    with raises(UsageError, "scale-mismatch"):
        server.add(product, client.encrypt(draw_values()))


def test_a_foreign_key_is_refused_though_the_scheme_would_not_see_it(
    setting: Setting, client: Client, server: Server
) -> None:
    x, other = draw_values(), Client(setting)
    encrypted = client.encrypt(x)
    with raises(SecurityError, "encryption-key-mismatch", operation="decrypt"):
        other.decrypt(encrypted)
    with raises(SecurityError, "encryption-key-mismatch", operation="evaluation keys"):
        server.rotate(other.encrypt(x), 1)
    # the purpose of the fingerprint: without it the result is noise, without an error
    forged = Encrypted(encrypted.handle, encrypted.bound, other.key)
    assert np.abs(other.decrypt(forged) - x).max() > 1e3


def test_nothing_secret_is_shown(client: Client, setting: Setting) -> None:
    shown = repr(client) + repr(client.encrypt(draw_values()))
    assert shown.count(client.key) == 2 and len(shown) < 100
    assert Client(setting).key != client.key


@pytest.mark.parametrize(
    "broken", [b"", b"x" * 100, lambda good: good[:-1], lambda good: b"!" + good]
)
def test_bytes_that_are_no_plaintext_are_refused(
    setting: Setting, broken: bytes | Callable[[bytes], bytes]
) -> None:
    good = setting.encode_values(draw_values(), setting.scale, 2).to_bytes()
    assert setting.count_levels(setting.load_plaintext(good)) == 2
    with raises(DataError, "malformed-encoding"):
        setting.load_plaintext(broken if isinstance(broken, bytes) else broken(good))


# ---- the table of operations


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_operation_is_right_and_stands_beside_the_published_one(scheme: str) -> None:
    seed = 11
    print("seed", seed)
    parameters = choose_scheme_parameters(scheme, 4096)
    measurements = {m.job: m for m in operations.measure_scheme_operations(parameters, 2, seed)}
    has = set(operations.OPERATIONS) - {"rotate_columns" if scheme == "CKKS" else "rescale"}
    assert set(measurements) == has | {operations.BY_N, operations.DEPTH}
    assert all(m.correct for m in measurements.values())
    for name in has:
        theirs = published.read_published_operations()[scheme, name, 4096]
        figures = measurements[name].figures
        assert figures["published_seconds"] == theirs.seconds
        assert ("max_abs_error" in figures) == (scheme == "CKKS")
    if scheme != "CKKS":
        budget = {n: m.figures.get("noise_budget_bits", 0) for n, m in measurements.items()}
        assert budget["encrypt"] >= budget["add_ct_ct"] > budget["multiply_ct_ct"] > 0
    assert measurements[operations.DEPTH].figures["depth"] == 1


def test_keys_that_memory_does_not_hold_are_refused() -> None:
    with raises(UsageError, "out-of-memory", operation="rotation keys"):
        operations.measure_scheme_operations(Parameters("CKKS", 32768, (22,) * 40, 20), 1, 0)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("degree", DEGREES[1:])
def test_every_operation_is_right_at_every_degree(scheme: str, degree: int) -> None:
    measurements = operations.measure_scheme_operations(
        choose_scheme_parameters(scheme, degree), 2, 12
    )
    assert all(m.correct for m in measurements)


def test_a_wrong_result_is_seen() -> None:
    bench = operations._Bench(choose_scheme_parameters("BFV", 4096), 1, 3)
    wrong = bench.measure_row(
        "add_ct_ct", lambda: bench.evaluator.sub(bench.cx, bench.cy), bench.x + bench.y
    )
    right = bench.measure_row(
        "add_ct_ct", lambda: bench.evaluator.add(bench.cx, bench.cy), bench.x + bench.y
    )
    assert (wrong.correct, right.correct) == (False, True)


def test_rotation_keys_are_as_large_as_told() -> None:
    bench = operations._Bench(choose_scheme_parameters("CKKS", 4096), 1, 3)
    for _ in bench._measure_keys():
        pass
    assert bench.measure_sizes()["rotation_keys_bytes"] == pytest.approx(
        len(bench.galois.to_string()), rel=0.01
    )


def test_the_published_table_is_whole_and_names_its_defect() -> None:
    table = published.read_published_operations()
    assert len(table) == 126
    suspect = {key for key, cell in table.items() if cell.suspect}
    assert suspect == {("BFV", "rotate_columns", 8192), ("BFV", "rotate_columns", 16384)}
    assert table["CKKS", "rescale", 16384].seconds == pytest.approx(0.079439)
