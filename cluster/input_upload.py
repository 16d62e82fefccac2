"""Upload of a job's inputs: shared at the client and sent to each worker on its stream."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tfe_bench.cluster import seeds, wire
from tfe_bench.cluster.requests import AnyInput, LateInput, LazyInput, PrivateInput
from tfe_bench.errors import UsageError

_DEALER = 0


# Cached bytes of masked inputs that one evaluator has received and the other has not: a larger
# amount is recomputed.
MOST_KEPT = 256 << 20


class InputUpload:
    """The inputs of one job, each shared when the first evaluator's stream reaches it.

    Args:
        inputs: by name.

    Attributes:
        size: bytes sent to each evaluator.
        is_small: the inputs are sent together with the submission.
    """

    def __init__(self, inputs: Mapping[str, AnyInput]) -> None:
        self._specs: list[dict[str, Any]] = []
        self._values = list(inputs.values())
        self._masked: dict[int, seeds.Ring] = {}
        self._seeds = [seeds.fresh() for _ in self._values]
        self._making = threading.Lock()
        for name, value in inputs.items():
            self._specs.append(
                {
                    "name": name,
                    "shape": list(value.shape),
                    "fractional_bits": value.fractional_bits,
                    "limbs": value.limbs,
                    **({"late": True} if isinstance(value, LateInput) else {}),
                }
            )
        self._receivers: list[set[int]] = [set() for _ in self._values]
        self.size = sum(8 * v.limbs * math.prod(v.shape) for v in self._values)
        has_late = any(isinstance(value, LateInput) for value in self._values)
        self.is_small = self.size < wire.BUNDLE_BYTES and not has_late

    def worker_messages(
        self, party: int, header: Mapping[str, Any], mark_alive: Callable[[int], None]
    ) -> Iterator[bytes]:
        """Yield one worker's messages: the submission, and the fields of the inputs for its role.

        Args:
            header: of the submission, without the inputs.
            mark_alive: called with the party whenever it has accepted a message.

        Raises:
            UsageError: the submission is too long, or an input differs from its declaration.
        """
        role = (party - _DEALER) % 3
        held_masks = {0: ("l1", "l2"), 1: ("l1",), 2: ("l2",)}[role]
        rows = []
        for fields, (seed1, seed2) in zip(self._specs, self._seeds, strict=True):
            by_name = {"l1": seed1.hex(), "l2": seed2.hex()}
            rows.append({**fields, "seeds": {k: by_name[k] for k in held_masks}})
        submission = wire.event("submit", inputs=rows, **header)
        if len(submission) > wire.MOST_MESSAGE_BYTES:
            raise UsageError(
                f"A job's submission has at most {wire.MOST_MESSAGE_BYTES} bytes. Received: "
                f"{len(submission)}, with {len(rows)} inputs. Use fewer of them, or shorter "
                "parameters.",
                code="message-too-long",
                received=len(submission),
                expected=wire.MOST_MESSAGE_BYTES,
            )
        yield submission
        if role == 0:
            return
        for i in range(len(self._values)):
            m = self._masked_words(i)
            for chunk in wire.chunk_stream_data(m.data.cast("B")):
                mark_alive(party)  # a worker that receives a chunk over a slow line is alive
                yield chunk
            with self._making:
                self._receivers[i].add(party)
                if len(self._receivers[i]) == 2:  # both evaluators have it: memory is scarce
                    self._masked.pop(i, None)
            del m

    def _masked_words(self, i: int) -> seeds.Ring:
        """Return the masked words of an input: the same each time, as its seeds are."""
        with self._making:  # the first evaluator's stream that needs the input creates it
            if i not in self._masked:
                self._evict_masked()
                value = self._make_input(self._values[i])
                _, _, self._masked[i] = seeds.share_values_by_seeds(
                    value.ring, value.limbs, self._seeds[i]
                )
            return self._masked[i]

    def _evict_masked(self) -> None:
        """Evict large inputs that one evaluator has received, except late ones (made once)."""
        remakable = [k for k in self._masked if not isinstance(self._values[k], LateInput)]
        cached_bytes = sum(self._masked[k].nbytes for k in remakable)
        for k in remakable:
            if cached_bytes > MOST_KEPT and self._receivers[k]:
                cached_bytes -= self._masked.pop(k).nbytes

    @staticmethod
    def _make_input(source: AnyInput) -> PrivateInput:
        if isinstance(source, PrivateInput):
            return source
        value = source.make()
        if (value.shape, value.fractional_bits) != (source.shape, source.fractional_bits):
            raise UsageError(
                "An input's shape and scale equal those of its declaration. Received: "
                f"{list(value.shape)} with {value.fractional_bits} fractional bits, declared: "
                f"{list(source.shape)} with {source.fractional_bits}.",
                code="shape-mismatch",
                received=list(value.shape),
                expected=list(source.shape),
            )
        return value


def check_job_inputs(inputs: object) -> None:
    """Reject inputs that cannot be sent to a worker.

    Raises:
        UsageError: naming the first one.
    """
    for name, value in _named_items("Inputs are a dict of PrivateInput", inputs):
        if not isinstance(name, str) or not isinstance(value, PrivateInput | LazyInput):
            raise UsageError(
                "Inputs are PrivateInput by name: PrivateInput(array) for integers, "
                "PrivateInput(FixedPoint(16).encode(array), 16) for reals. Received: "
                f"{describe_type(value)} under {str(name)[:80]!r}.",
                code="wrong-type",
                operation=str(name)[:80],
                received=describe_type(value),
                expected="PrivateInput",
            )


def check_job_parameters(parameters: object) -> None:
    """Reject parameters that JSON cannot represent.

    Raises:
        UsageError: naming the first one.
    """
    for name, value in _named_items("Parameters are a dict", parameters):
        try:
            json.dumps({name: value}, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            raise UsageError(
                "Parameters are JSON values: texts, finite numbers, true or false, None, and "
                f"lists and dicts of these. Received: {describe_type(value)} under "
                f"{str(name)[:80]!r}.",
                code="wrong-type",
                operation=str(name)[:80],
                received=describe_type(value),
                expected="JSON values",
            ) from None


def _named_items(expected: str, values: object) -> Iterable[tuple[object, object]]:
    if not isinstance(values, Mapping):
        raise UsageError(
            f"{expected}. Received: {describe_type(values)}.",
            code="wrong-type",
            operation=expected.partition(" ")[0].lower(),
            received=describe_type(values),
            expected="a dict",
        )
    return values.items()


def describe_type(value: object) -> str:
    """Return the type of a value, without its contents."""
    dtype = getattr(value, "dtype", None)
    return type(value).__name__ + (f" of {dtype}" if dtype is not None else "")
