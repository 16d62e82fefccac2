"""The rows of a training at a worker: of its client, as they come, or of data owners."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tfe_bench.cluster.jobs import Context
from tfe_bench.models import kept, sources
from tfe_bench.models.training_job import TrainingJob
from tfe_bench.protocols.session.sharing import Shared


class Feed:
    """Batches by step, and the rows to test on.

    Args:
        context: whose inputs are taken out.

    Attributes:
        test: features and labels to evaluate on, None for none.

    Raises:
        UsageError, PolicyError, ConfigError, SecurityError: owners' data that the client may not
            use, or that does not fit.
    """

    def __init__(self, context: Context, job: TrainingJob) -> None:
        self._context, self._job = context, job
        self._x: Shared | None = None
        self._y: Shared | None = None
        self._chunks: list[tuple[Shared, Shared]] = []
        self.test: tuple[Shared, Shared] | None = None
        if job.source is not None:
            self._load(job.source)
        elif job.rows and not job.chunk:
            self._x, self._y = context.inputs.pop("x"), context.inputs.pop("y")
        if job.test:
            self.test = (context.inputs.pop("test_x"), context.inputs.pop("test_y"))

    def _load(self, source: sources.Source) -> None:
        context, job = self._context, self._job
        context.progress(0.0, "loading the owners' rows")
        store = kept.store_of(context)
        # Again: it may have been replaced since the job was submitted.
        job.check_joined(sources.permitted(source, store, context.client))
        x, y = sources.loaded(source, context.party, store, context.client)
        job.check_scales(x.fractional_bits, y.fractional_bits)
        learned, held_out = job.split()
        if job.holdout:
            self.test = (take(x, held_out), take(y, held_out))
            x, y = take(x, learned), take(y, learned)
        self._x, self._y = x, y

    def batch(self, number: int) -> tuple[Shared, Shared, Any]:
        """Rows, and which of them make the batch of a step; what is on its way is waited for."""
        job = self._job
        rows = job.batch_rows(number)
        if self._x is None:
            ranges = job.chunks
            first = number < job.steps_per_epoch
            last = int(rows[0]) // job.chunk if first else len(ranges) - 1
            while len(self._chunks) <= last:  # what has not arrived is waited for
                name = len(self._chunks)
                inputs = self._context.inputs
                self._chunks.append((inputs.pop(f"x{name}"), inputs.pop(f"y{name}")))
            if first:
                return *self._chunks[last], rows - ranges[last].start
            x = [chunk[0] for chunk in self._chunks]
            y = [chunk[1] for chunk in self._chunks]
            self._chunks.clear()
            self._x, self._y = _joined(x), _joined(y)
        assert self._x is not None and self._y is not None
        return self._x, self._y, rows


def _joined(chunks: list[Shared]) -> Shared:
    """Chunks one below the other; they are taken out, field by field, to be there hardly twice."""
    import tensorflow as tf

    first = replace(chunks[0], m=None, l1=None, l2=None)
    parts = {name: [getattr(c, name) for c in chunks] for name in ("m", "l1", "l2")}
    chunks.clear()
    whole: dict[str, Any] = {}
    for name in list(parts):
        held = parts.pop(name)
        whole[name] = None if held[0] is None else tf.concat(held, 0)
        del held
    return replace(first, **whole)


def take(x: Shared, rows: Any) -> Shared:
    """Some rows."""
    import tensorflow as tf

    return x.map(lambda a: tf.gather(a, rows))
