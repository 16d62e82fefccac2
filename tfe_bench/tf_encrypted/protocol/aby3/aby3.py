"""ABY3 by tf-encrypted's names, on private arrays of three workers."""

from __future__ import annotations

from typing import Any

from tfe_bench.tf_encrypted.protocol.aby3.shape_operations import ShapeOperations


class ABY3(ShapeOperations):
    """Replicated secret sharing among three parties, under the name of tf-encrypted's protocol.

    Its methods are functions of the module while it is the current protocol.
    """

    def blinded_shuffle(self, tensor: Any) -> Any:
        """Refuse: expressions have no separate shuffle."""
        self._refuse_operation("blinded_shuffle", "sort shuffles within; a public order: gather.")

    def from_bone(self, bone: Any) -> Any:
        """Refuse: there are no graphs that require a decomposition of tensors."""
        self._refuse_operation("from_bone", "tfe.function takes tensors as they are.")

    def pairwise_keys(self) -> Any:
        """Refuse: the workers agree on keys among themselves."""
        self._refuse_operation("pairwise_keys", "The workers hold their keys and never show them.")

    def _ot(self, *_: Any) -> Any:
        self._refuse_operation("_ot", "Transfers are within the workers' own protocols.")
