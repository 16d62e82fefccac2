"""Embedding and ReversibleEmbedding: rows of a private table at private row numbers."""

from __future__ import annotations

from typing import ClassVar

from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.identity import InferenceOnlyLayer


class Embedding(InferenceOnlyLayer):
    """A table row for each number; the client of a prediction shares a one-hot row for each number.

    Rounds and bits: those of a product with the table, one element for each output element.
    """

    op = "embedding"
    keras_layers: ClassVar[tuple[str, ...]] = ("Embedding",)
    handles_masks = True

    def convert_inference(self, r: L.Reader, call: L.LayerCall) -> str:
        rows = r.add_lookup(call.name, call.inputs[0], call.layer.embeddings)
        if call.layer.mask_zero:
            name = r.make_unique(f"{call.name}/mask")
            r.mask = r.add_token_test(name, call.inputs[0], call.shapes[0], 0, inverted=True)
        return rows


class ReversibleEmbedding(Embedding):
    """An embedding; with reverse=True the product with the same table, transposed."""

    op = "reversible_embedding"
    keras_layers: ClassVar[tuple[str, ...]] = ("ReversibleEmbedding",)
    call_arguments: ClassVar[tuple[str, ...]] = ("inputs", "reverse")

    def convert_inference(self, r: L.Reader, call: L.LayerCall) -> str:
        if not call.arguments.get("reverse"):
            return super().convert_inference(r, call)
        layer = call.layer
        if layer.logit_soft_cap is not None:
            raise L.UnsupportedLayer(f"logit_soft_cap={layer.logit_soft_cap!r}")
        if not layer.tie_weights:
            return r.add_layer(
                call.name, "dense", call.inputs, {"kernel": layer.reverse_embeddings}
            )
        table = {"kernel": layer.embeddings}
        return r.add_layer(call.name, "dense", call.inputs, table, transposed=True)
