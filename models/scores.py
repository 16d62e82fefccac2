"""What a training tells of itself: how right its state is, and whether weights left their range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tfe_bench.protocols.session.sharing import Shared

if TYPE_CHECKING:
    from tfe_bench.models.kinds.operations import Setting
    from tfe_bench.models.training.recipe import Recipe
    from tfe_bench.protocols.session.party import Party

# A weight beyond this is no weight of a model that learns: sums of products are wrong from 2^13.
LARGEST_WEIGHT = 2.0**10
# Of a sum of squared errors.
ERROR_BITS = 20


def score(
    party: Party,
    recipe: Recipe,
    setting: Setting,
    held: Mapping[str, Shared],
    x: Shared,
    y: Shared,
) -> Shared:
    """The number of right answers, or for real targets the sum of squared errors; a scalar.

    Both stay private until whoever ordered the training puts them together.
    """
    import tensorflow as tf

    from tfe_bench.models.training import evaluate
    from tfe_bench.protocols.ring import arithmetic, truncation

    if recipe.loss.name != "mean_squared_error":
        return evaluate.correct(party, recipe, setting, held, x, y)
    z = evaluate.logits(party, recipe, setting, held, x)
    if z.fractional_bits > y.fractional_bits:
        z = truncation.truncate(party, z, z.fractional_bits - y.fractional_bits)
    d = arithmetic.sub(z, y)
    squares = truncation.truncate(
        party, arithmetic.mul(party, d, d), 2 * y.fractional_bits - ERROR_BITS
    )
    return squares.map(tf.reduce_sum)


def weights_left(party: Party, weights: Sequence[Shared], bound: float = LARGEST_WEIGHT) -> Any:
    """Tells all workers one bit, and nothing else: whether |w| >= bound for some weight.

    bit = [number of (w - bound < 0) and (-w - bound < 0) is below 2n], public, an int64 scalar.

    Rounds: 3 + 1 + 1 + 3 + 1 for comparison, opening, conversion, comparison, publication.
    """
    import tensorflow as tf

    from tfe_bench.protocols.ring import compare, convert
    from tfe_bench.protocols.session import io

    def below(w: Shared, sign: int) -> Shared:
        edge = round(bound * 2.0**w.fractional_bits)
        flat = w.map(lambda a: tf.reshape(sign * a, [-1]))
        return replace(flat, m=None if flat.m is None else flat.m - edge, fractional_bits=0)

    from tfe_bench.protocols.ring import shapes

    sides = shapes.concat([below(w, sign) for w in weights for sign in (1, -1)], 0)
    count = int(sides.shape[0])
    inside = convert.b2a(party, convert.open_bits(party, compare.msb(party, sides)))
    missing = inside.map(lambda a: tf.reshape(tf.reduce_sum(a), [1]))
    missing = replace(missing, m=None if missing.m is None else missing.m - count)
    bit = io.reveal_bits(party, compare.msb(party, missing))
    return tf.bitwise.bitwise_and(tf.reshape(bit, [-1])[0], tf.constant(1, tf.int64))
