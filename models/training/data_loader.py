"""Loader of training rows at a worker: the client's rows as they arrive, or data owners' rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tfe_bench.cluster import stored_shares
from tfe_bench.cluster.jobs import Context
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.models.datasets import sources
from tfe_bench.models.training.training_job import TrainingJob
from tfe_bench.protocols.session.sharing import Shared


class DataLoader:
    """Batches of rows by step, and the test rows.

    Args:
        context: the job's context; the loader removes its inputs.

    Attributes:
        test_rows: features and labels for evaluation, None for none.

    Raises:
        UsageError, PolicyError, ConfigError, SecurityError: the client may not use the owners'
            data, or the data does not fit.
    """

    def __init__(self, context: Context, job: TrainingJob) -> None:
        self._context, self._job = context, job
        self._x: Shared | None = None
        self._y: Shared | None = None
        self._chunks: list[tuple[Shared, Shared]] = []
        self.test_rows: tuple[Shared, Shared] | None = None
        if job.source is not None:
            self._load_datasets(job.source)
        elif job.rows and not job.chunk:
            self._x, self._y = context.inputs.pop("x"), context.inputs.pop("y")
        if job.test:
            self.test_rows = (context.inputs.pop("test_x"), context.inputs.pop("test_y"))

    def _load_datasets(self, source: sources.DatasetRef) -> None:
        context, job = self._context, self._job
        context.progress(0.0, "loading the owners' rows")
        store = stored_shares.require_share_store(context)
        # Checked again: the data may have been replaced since the job was submitted.
        job.check_schema(sources.check_permitted_datasets(source, store, context.client))
        x, y = sources.load_datasets(source, context.party, store, context.client)
        job.check_scales(x.fractional_bits, y.fractional_bits)
        learned, held_out = job.split_holdout()
        if job.holdout:
            self.test_rows = (take_training_rows(x, held_out), take_training_rows(y, held_out))
            x, y = take_training_rows(x, learned), take_training_rows(y, learned)
        self._x, self._y = x, y

    def load_batch(self, step: int) -> tuple[Shared, Shared, Any]:
        """Return rows and the indices of a step's batch; wait for rows that are in transit."""
        job = self._job
        rows = job.batch_rows(step)
        if self._x is None:
            ranges = job.chunk_ranges
            is_first_epoch = step < job.steps_per_epoch
            last_chunk = int(rows[0]) // job.chunk if is_first_epoch else len(ranges) - 1
            while len(self._chunks) <= last_chunk:  # waits until the chunk has arrived
                chunk_number = len(self._chunks)
                inputs = self._context.inputs
                self._chunks.append(
                    (inputs.pop(f"x{chunk_number}"), inputs.pop(f"y{chunk_number}"))
                )
            if is_first_epoch:
                return *self._chunks[last_chunk], rows - ranges[last_chunk].start
            x = [chunk[0] for chunk in self._chunks]
            y = [chunk[1] for chunk in self._chunks]
            self._chunks.clear()
            self._x, self._y = _concat_training_chunks(x), _concat_training_chunks(y)
        assert self._x is not None and self._y is not None
        return self._x, self._y, rows


def _concat_training_chunks(chunks: list[Shared]) -> Shared:
    """Concatenate chunks of rows; each field is released early, so that memory hardly doubles."""
    first = replace(chunks[0], m=None, l1=None, l2=None)
    parts = {name: [getattr(c, name) for c in chunks] for name in ("m", "l1", "l2")}
    chunks.clear()
    fields: dict[str, Any] = {}
    for name in list(parts):
        field_parts = parts.pop(name)
        fields[name] = None if field_parts[0] is None else tf.concat(field_parts, 0)
        del field_parts
    return replace(first, **fields)


def take_training_rows(x: Shared, rows: Any) -> Shared:
    """Select rows of a shared value."""
    return x.map(lambda a: tf.gather(a, rows))
