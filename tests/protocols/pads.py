"""The log of pads, parsed."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfe_bench.cluster.simulate import Simulation

Array = np.ndarray[Any, Any]


def fields_of(pads: Array) -> dict[str, Array]:
    """Return the numbers in a counter."""
    hi, lo = pads["hi"].astype(object), pads["lo"].astype(object)
    return {
        "site": hi >> 40,
        "step": hi & (2**40 - 1),
        "iteration": lo >> 44,
        "dealer": lo >> 42 & 3,
        "role": lo >> 40 & 3,
        "tensor": lo >> 32 & 255,
        "block": lo & (2**32 - 1),
    }


def assert_one_message_each(sim: Simulation) -> Array:
    """Check that each mask of a recorded simulation hides one message; return the sent pads."""
    sent: Array = sim.pads[sim.pads["sent"] == 1]
    names = set(zip(sent["key"], sent["hi"], sent["lo"], strict=True))
    words = set(zip(sent["key"], sent["hi"], sent["lo"], sent["digest"], strict=True))
    assert len(names) == len(words) == len(sent)
    return sent
