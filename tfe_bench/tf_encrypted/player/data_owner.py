"""Batches of an owner, shared one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tfe_bench.tf_encrypted.config import get_config
from tfe_bench.tf_encrypted.protocol.protocol import require_protocol


class DataOwner:
    """Provides batches to a training or an inference.

    Args:
        player: the owner, or its name.
        generator_builder: creates an iterator of batches, or of pairs of samples and labels.
        num_samples: stored for programs that read it.
    """

    def __init__(
        self, player: Any, generator_builder: Callable[[], Any], num_samples: int | None = None
    ) -> None:
        self.player = get_config().get_player(player)
        self.num_samples = num_samples
        self.generator = generator_builder()
        self.first_element = next(self.generator)
        pair = isinstance(self.first_element, (list, tuple))
        self.first_data_x: Any = self.first_element[0] if pair else self.first_element
        self.first_data_y: Any = self.first_element[1] if pair else None

    @property
    def batch_shape(self) -> Any:
        """The shape of a batch of samples."""
        return self.first_data_x.shape

    @property
    def batch_size(self) -> int:
        """Samples in a batch."""
        return int(self.first_data_x.shape[0])

    @property
    def num_classes(self) -> int:
        """The width of the labels."""
        return int(self.first_data_y.shape[1])

    def provide_data(self) -> Iterator[Any]:
        """Yield private batches, the first one included."""
        yield self._make_private(self.first_element)
        for batch in self.generator:
            yield self._make_private(batch)

    def _make_private(self, batch: Any) -> Any:
        if isinstance(batch, (list, tuple)):
            return tuple(self._make_private(part) for part in batch)
        return require_protocol().define_private_input(self.player, lambda: batch)
