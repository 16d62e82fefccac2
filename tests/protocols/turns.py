"""Loops with numbered iterations, and simulations with a time limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tfe_bench.cluster.simulate import Simulation, simulate
from tfe_bench.protocols.ring import arithmetic
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

PATIENCE = 10.0  # seconds; the tested simulations take less than one
PARTS = ("m", "l1", "l2")


def in_time(program: Callable[..., Any], *inputs: Any, **options: Any) -> Simulation:
    """Simulate; raise TimeoutError if it does not end."""
    return simulate(program, *inputs, timeout=PATIENCE, **options)


def power_by_loop(
    party: Party, count: int, number: Callable[[Any], Any] = lambda i: i, parallel: int = 10
) -> Callable[[Shared], Shared]:
    """Compute x^(count + 1) by a tf.while_loop over shares; `number` numbers its iterations."""
    import tensorflow as tf

    def function(x: Shared) -> Shared:
        names = [k for k in PARTS if getattr(x, k) is not None]

        def body(i: tf.Tensor, *held: tf.Tensor) -> tuple[tf.Tensor, ...]:
            with party.iteration(number(i)):
                y = arithmetic.mul(party, replace(x, **dict(zip(names, held, strict=True))), x)
            return (i + 1, *(getattr(y, k) for k in names))

        start = (tf.constant(0, tf.int64), *(getattr(x, k) for k in names))
        _, *held = tf.while_loop(lambda i, *_: i < count, body, start, parallel_iterations=parallel)
        return replace(x, **dict(zip(names, held, strict=True)))

    return function
