"""Embedding and ReversibleEmbedding: rows of a private table at private numbers."""

from __future__ import annotations

from typing import ClassVar

from tfe_bench.models.kinds.reading import Call, Reader, Unfit
from tfe_bench.models.layers.identity import Untrained


class Embedding(Untrained):
    """A row of a table for each number; whoever predicts shares a row with one 1 for it.

    Rounds and bits: those of a product with the table, one element for each that it gives.
    """

    op = "embedding"
    keras: ClassVar[tuple[str, ...]] = ("Embedding",)
    masks = True

    def composed(self, r: Reader, call: Call) -> str:
        found = r.looked_up(call.name, call.inputs[0], call.layer.embeddings)
        if call.layer.mask_zero:
            name = r.unique(f"{call.name}/mask")
            r.mask = r.is_token(name, call.inputs[0], call.shapes[0], 0, inverted=True)
        return found


class ReversibleEmbedding(Embedding):
    """That, and with reverse=True the product with the same table, transposed."""

    op = "reversible_embedding"
    keras: ClassVar[tuple[str, ...]] = ("ReversibleEmbedding",)
    arguments: ClassVar[tuple[str, ...]] = ("inputs", "reverse")

    def composed(self, r: Reader, call: Call) -> str:
        if not call.arguments.get("reverse"):
            return super().composed(r, call)
        layer = call.layer
        if layer.logit_soft_cap is not None:
            raise Unfit(f"logit_soft_cap={layer.logit_soft_cap!r}")
        if not layer.tie_weights:
            return r.emit(call.name, "dense", call.inputs, {"kernel": layer.reverse_embeddings})
        table = {"kernel": layer.embeddings}
        return r.emit(call.name, "dense", call.inputs, table, transposed=True)
