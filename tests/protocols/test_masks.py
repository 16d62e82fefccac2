"""Every mask is used once, and every message that should leave does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tfe_bench.cluster.simulate import Simulation, simulate
from tfe_bench.protocols import arithmetic, ops
from tfe_bench.protocols.party import Party
from tfe_bench.protocols.sharing import Shared

PATIENCE = 10.0  # seconds; what is tested takes less than one
PARTS = ("m", "l1", "l2")


def in_time(program: Callable[..., Any], *inputs: Any, **options: Any) -> Simulation:
    """simulate, or a failed test when it does not end."""
    handles: list[int] = []
    outcome: list[Simulation | BaseException] = []

    def noted(party: Party, *arguments: Any) -> Any:
        handles.append(party.handle)
        return program(party, *arguments)

    def run() -> None:
        try:
            outcome.append(simulate(noted, *inputs, **options))
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    if thread.is_alive():
        for handle in handles:
            ops.native().abort(handle, b"the test gave up")
        thread.join(PATIENCE)
        pytest.fail("the parties wait for each other for ever")
    result = outcome[0]
    if isinstance(result, BaseException):
        raise result
    return result


def turns(party: Party, count: int) -> Callable[[Shared], Shared]:
    """x^(count + 1) by a tf.while_loop that carries the shares."""
    import tensorflow as tf

    def function(x: Shared) -> Shared:
        names = [k for k in PARTS if getattr(x, k) is not None]

        def body(i: tf.Tensor, *held: tf.Tensor) -> tuple[tf.Tensor, ...]:
            with party.iteration(i):
                y = arithmetic.mul(party, replace(x, **dict(zip(names, held, strict=True))), x)
            return (i + 1, *(getattr(y, k) for k in names))

        start = (tf.constant(0, tf.int64), *(getattr(x, k) for k in names))
        _, *held = tf.while_loop(lambda i, *_: i < count, body, start)
        return replace(x, **dict(zip(names, held, strict=True)))

    return function


def test_a_numbered_loop_sends_its_messages_in_every_turn() -> None:
    sim = in_time(lambda p, x: p.function(turns(p, 3))(x), np.array([-3, 4, 5]), record=True)
    assert list(sim.value()) == [81, 256, 625]
    assert sim.sent == (576, 576, 576)
