"""A client's input for which a party holds seeds instead of masks.

l1 and l2 of an input are the streams of two seeds (cluster/seeds.py). A holder of a seed can
generate the mask whenever a graph needs it, and discard it afterwards. For a large model an
evaluator holds m alone, and the dealer only seeds. The words are those that it would hold
otherwise, so no message changes.

A seed is as secret as its mask. It is an argument of graphs, never a constant of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.session import ops, sizes
from tfe_bench.protocols.session.sharing import Shared, _PrivateValue

# Smaller inputs are held as words: their generation would be most of the work.
MIN_SEEDED_WORDS = 1 << 14


@dataclass(frozen=True, repr=False, eq=False)
class Seeded(_PrivateValue):
    """A private tensor over Z_2^64 as its client shared it.

    Attributes:
        m: the masked words, at both evaluators.
        l1, l2: seeds, uint8 [16], where a Shared has the words.
        shape: shape of the tensor.
        dealer, fractional_bits: as in Shared.
    """

    m: Any
    l1: Any
    l2: Any
    shape: tuple[int, ...]
    dealer: int = 0
    fractional_bits: int = 0

    @classmethod
    def from_seeds(
        cls,
        m: Any,
        seeds: Mapping[str, Any],
        shape: tuple[int, ...],
        dealer: int,
        fractional_bits: int,
    ) -> Seeded:
        """Make a tensor from seeds by name, each 16 bytes."""
        l1, l2 = (
            None if k not in seeds else tf.constant(np.frombuffer(seeds[k], np.uint8))
            for k in ("l1", "l2")
        )
        return cls(m, l1, l2, shape, dealer, fractional_bits)

    @property
    def seeds(self) -> dict[str, Any]:
        """Seeds that are held here, by name."""
        return {k: v for k, v in (("l1", self.l1), ("l2", self.l2)) if v is not None}

    def __repr__(self) -> str:
        return (
            f"Seeded(shape={list(self.shape)}, fractional_bits={self.fractional_bits}, "
            f"dealer={self.dealer})"
        )


def expand_masks(x: Shared | Seeded, after: Sequence[Shared] = ()) -> Shared:
    """Return the value with the words of its masks. Local.

    Args:
        after: in a graph, values that must be computed before. Otherwise TensorFlow would make
            the masks of a whole model at once, and hold them until they are used.
    """
    if not isinstance(x, Seeded):
        return x
    shape = sizes.shape_constant(x.shape)
    here = tf.compat.v1.get_default_graph() if not tf.executing_eagerly() else None
    parts = [t for v in after for t in (v.m, v.l1, v.l2) if t is not None]
    prerequisites = [t for t in parts if here is not None and t.graph is here]

    def expand_seed(seed: Any) -> Any:
        if seed is None:
            return None
        with tf.control_dependencies(prerequisites):
            mask = ops.module().tfe_bench_expand_seed(seed=seed, shape=shape)
        return tf.ensure_shape(mask, x.shape)

    return Shared(x.m, expand_seed(x.l1), expand_seed(x.l2), x.dealer, x.fractional_bits)


def get_seeded_input(inputs: Mapping[str, Shared], name: str) -> Shared | Seeded:
    """Return an input as held: with seeds, if it is a job's and large; else as in `inputs`."""
    get_held = getattr(inputs, "get_held", None)
    return inputs[name] if get_held is None else get_held(name)
