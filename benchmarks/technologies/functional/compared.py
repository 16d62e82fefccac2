"""Savings of a shared table of baby steps and of the curve: the same outputs by other means."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, Final

import numpy as np

from tfe_bench.benchmarks.records import Seconds
from tfe_bench.benchmarks.technologies.functional import curve, modular, scheme
from tfe_bench.benchmarks.technologies.functional.curve import Table
from tfe_bench.benchmarks.technologies.functional.measuring import (
    draw_sweep_inputs,
    median_or_zero,
    time_call,
)
from tfe_bench.benchmarks.technologies.functional.published import published_gpu_speed_up
from tfe_bench.benchmarks.technologies.functional.sweep import SweepCell
from tfe_bench.benchmarks.technologies.measurement import Measurement
from tfe_bench.errors import SecurityError

# A longer walk is modeled by its number of steps.
_MOST_WALKED: Final = 1 << 18
_LEAST_SECURITY: Final = 128


def compare_logarithms(cell: SweepCell, table: Table, repeat: int = 3) -> Measurement:
    """Compare three ways to the logarithms: one table for all, a table for each, and walking."""
    messages, weights = draw_sweep_inputs(replace(cell, batch=1), 1)
    authority = scheme.setup(cell.scheme, cell.length)
    encryptor = scheme.Encryptor(authority.public, cell.input_bits)
    sent, keys = encryptor.encrypt(messages), authority.derive(weights)
    points = scheme.evaluate_function_keys(curve.decode_curve_elements(sent.elements[0]), keys)
    due = (messages @ weights.T)[0]
    one = [
        time_call(lambda: table.find_logarithms(points, cell.bound, cell.threads))
        for _ in range(repeat)
    ]
    # For a single output, equal numbers of baby and giant steps are best.
    own_log2 = max(curve.LEAST_LOG2, (cell.result_bits - 1) // 2)
    table_seconds: list[float] = []
    table_results = np.zeros(len(due), np.int64)
    for i in range(len(due)):
        alone = points[i : i + 1]
        seconds, logarithms = time_call(
            lambda p=alone: Table(own_log2).find_logarithms(p, cell.bound)  # type: ignore[misc]
        )
        table_seconds.append(seconds)
        table_results[i] = logarithms[0]
    walked = np.argsort(np.abs(due))[:1]
    walkable = min(int(np.abs(due[walked]).max()), _MOST_WALKED)
    step = _seconds_of_a_step(walkable)
    walk = float(np.abs(due).mean()) * step
    shared = median_or_zero([seconds for seconds, _ in one]) / len(due)
    figures: dict[str, Any] = {
        "one_table_seconds": shared,
        "table_per_output_seconds": median_or_zero(table_seconds),
        "walk_seconds": walk,
        "speed_up_over_table_per_output": median_or_zero(table_seconds) / shared,
        "speed_up_over_walk": walk / shared,
        "published_speed_up": published_gpu_speed_up(),
        "walk_step_seconds": step,
        "table_bytes": table.nbytes,
    }
    right = (one[0][1] == due).all() and (table_results == due).all()
    return Measurement(
        technology="functional",
        job="logarithms",
        parameters={**asdict(cell), "table_per_output_bits": own_log2},
        seconds=Seconds.from_times([seconds for seconds, _ in one]),
        figures=figures,
        modeled=("walk_seconds", "speed_up_over_walk"),
        correct=bool(right),
    )


def _seconds_of_a_step(steps: int) -> float:
    """Measure the seconds of one step of a walk to a known logarithm, which must be found."""
    steps = max(steps, 1 << 12)
    authority = scheme.setup("selective", 1)
    encryptor = scheme.Encryptor(authority.public, 20)
    keys = authority.derive(np.array([[1]]))
    sent = encryptor.encrypt(np.array([[steps]]))
    point = scheme.evaluate_function_keys(curve.decode_curve_elements(sent.elements[0]), keys)[0]
    seconds, logarithm = time_call(lambda: curve.walk_logarithm(point, steps))
    assert logarithm == steps
    return seconds / steps


def check_modulus_security(bits: int, insecure: bool) -> None:
    """Reject a group of less than 128 bits of security, unless `insecure` is set.

    Raises:
        UsageError: no group has this size.
        SecurityError: the group has less than 128 bits of security.
    """
    if bits not in modular.SIZES:
        modular.find_prime(bits)  # raises an error that lists the sizes
    security = modular.SIZES[bits]
    if security < _LEAST_SECURITY and not insecure:
        raise SecurityError(
            f"Expected a group of at least {_LEAST_SECURITY} bits of security. Received: a prime "
            f"of {bits} bits, about {security} bits of security. To time it nevertheless: "
            "--insecure-for-comparison.",
            code="insecure-parameters",
            received=security,
            expected=_LEAST_SECURITY,
        )


def compare_modulus(bits: int, length: int, outputs: int, log2: int) -> Measurement:
    """Compare the same inner products of 8 bits modulo a prime and on the curve.

    Args:
        bits: size of the prime.
        length: values in a message.
        outputs: keys.
        log2: base-2 logarithm of the number of the tables' steps.
    """
    rng = np.random.default_rng(1)
    messages = rng.integers(0, 256, (1, length))
    weights = rng.integers(-127, 128, (outputs, length))
    bound = length * 255 * 127
    due = messages @ weights.T
    group = modular.Group(bits)
    setup, keys = time_call(lambda: group.setup_keys(length))
    encrypt, sent = time_call(lambda: group.encrypt_message(keys, messages[0]))
    derive, derived = time_call(lambda: group.derive_keys(keys, weights))
    evaluate, points = time_call(lambda: group.evaluate_keys(sent, derived, weights))
    build, table = time_call(lambda: modular.Table(group, log2))
    search, logarithms = time_call(lambda: table.find_logarithms(points, bound))
    authority = scheme.setup("selective", length)
    encryptor = scheme.Encryptor(authority.public, 8)
    own_keys = authority.derive(weights)
    own_encrypt, own_sent = time_call(lambda: encryptor.encrypt(messages))
    own_table = Table(log2)
    runs = [
        time_call(
            lambda: own_table.find_logarithms(
                scheme.evaluate_function_keys(
                    curve.decode_curve_elements(own_sent.elements[0]), own_keys
                ),
                bound,
            )
        )
        for _ in range(3)
    ]
    curve_seconds, results = median_or_zero([seconds for seconds, _ in runs]), runs[0][1]
    figures: dict[str, Any] = {
        "setup_seconds": setup,
        "encrypt_seconds": encrypt,
        "derive_seconds": derive / outputs,
        "evaluate_seconds": evaluate / outputs,
        "logarithm_seconds": search / outputs,
        "decrypt_seconds": (evaluate + search) / outputs,
        "table_seconds": build,
        "table_bytes": table.nbytes,
        "bytes_up": (length + 1) * group.element_bytes,
        "curve_encrypt_seconds": own_encrypt,
        "curve_decrypt_seconds": curve_seconds / outputs,
        "encrypt_ratio": encrypt / own_encrypt,
        "decrypt_ratio": (evaluate + search) / curve_seconds,
    }
    return Measurement(
        technology="functional",
        job=f"modulo {bits} bits",
        parameters={
            **{"length": length, "outputs": outputs, "table_bits": log2, "threads": 1},
            **{"group": f"squares modulo a prime of {bits} bits", "input_bits": 8},
            "security_bits": modular.SIZES[bits],
        },
        seconds=Seconds.from_times([evaluate + search]),
        figures=figures,
        correct=bool((logarithms == due[0]).all() and (results == due[0]).all()),
    )
