"""Factors and a shift for each channel: what is left of normalizations, rescalings and PReLUs."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfe_bench.models.kinds.checks import need, only
from tfe_bench.models.kinds.layer import Array, Node, Options, Shape
from tfe_bench.models.layers.linear import Maps, Trained
from tfe_bench.protocols.ring.products import Two, elementwise
from tfe_bench.protocols.session import local


class Affine(Trained):
    """x * kernel + bias."""

    op = "affine"

    def product_shape(self, x: Shape, options: Options, kernel: Shape) -> Shape:
        """A factor for each channel, or for each place but along axes of 1."""
        only(options)
        places = len(kernel) == len(x) and all(k in (1, n) for k, n in zip(kernel, x, strict=True))
        need(places or kernel == (x[-1],), f"a factor [{x[-1]}]", list(kernel))
        return x

    def multiplied(self, x: Array, kernel: Array, options: Options) -> Array:
        return np.asarray(x * kernel)

    def bilinear(self, options: Options) -> Two:
        return elementwise

    def maps(self, node: Node, x: Shape) -> Maps:
        own = tuple(int(n) for n in node.layer.weights["kernel"].shape)
        whole = (1,) * (len(x) - len(own)) + own
        axes = [i for i, n in enumerate(whole) if n == 1]

        def kernel(a: list[Any], b: list[Any]) -> Any:
            return local.reshape(local.reduce_sum(elementwise(a, b), axes), own)

        return Maps(elementwise, kernel, elementwise)
