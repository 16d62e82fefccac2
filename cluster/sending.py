"""A job's inputs on their way: shared at the client, and sent to each worker on its stream."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tfe_bench.cluster import seeds, wire
from tfe_bench.cluster.requests import LateInput, PrivateInput
from tfe_bench.errors import UsageError

_DEALER = 0


class Sending:
    """The inputs of one job.

    Args:
        inputs: by name; all but late ones are shared at once.
    """

    def __init__(self, inputs: Mapping[str, PrivateInput | LateInput]) -> None:
        self._described: list[dict[str, Any]] = []
        self._masked: list[seeds.Ring | None] = []
        self._seeds: list[tuple[bytes, bytes]] = []
        self._late: dict[int, LateInput] = {}
        self._making = threading.Lock()
        for i, (name, value) in enumerate(inputs.items()):
            if isinstance(value, LateInput):
                self._late[i] = value
                self._seeds.append(seeds.fresh())
                self._masked.append(None)
            else:
                seed1, seed2, m = seeds.share(value.ring, value.limbs)
                self._seeds.append((seed1, seed2))
                self._masked.append(m)
            self._described.append(
                {
                    "name": name,
                    "shape": list(value.shape),
                    "fractional_bits": value.fractional_bits,
                    "limbs": value.limbs,
                    **({"late": True} if i in self._late else {}),
                }
            )
        self._taken: list[list[int]] = [[] for _ in self._masked]

    def messages(
        self, party: int, header: Mapping[str, Any], alive: Callable[[int], None]
    ) -> Iterator[bytes]:
        """What one worker is sent: the submission, and of the inputs what its role holds.

        Args:
            header: of the submission, besides the inputs.
            alive: told of the party whenever it has taken a message.

        Raises:
            UsageError: the submission is too long, or a late input is not as it was said to be.
        """
        role = (party - _DEALER) % 3
        wanted = {0: ("l1", "l2"), 1: ("l1",), 2: ("l2",)}[role]
        rows = []
        for fields, (seed1, seed2) in zip(self._described, self._seeds, strict=True):
            by_name = {"l1": seed1.hex(), "l2": seed2.hex()}
            rows.append({**fields, "seeds": {k: by_name[k] for k in wanted}})
        submission = wire.event("submit", inputs=rows, **header)
        if len(submission) > wire.MOST_MESSAGE_BYTES:
            raise UsageError(
                f"A job's submission has at most {wire.MOST_MESSAGE_BYTES} bytes. Received: "
                f"{len(submission)}, with {len(rows)} inputs. Use fewer of them, or shorter "
                "parameters."
            )
        yield submission
        if role == 0:
            return
        for i in range(len(self._masked)):
            m = self._ready(i)
            for chunk in wire.data(m.data.cast("B")):
                alive(party)  # a worker that takes a chunk on a slow line is no lost one
                yield chunk
            self._taken[i].append(party)
            if len(self._taken[i]) == 2:  # both evaluators have it: large models need the room
                self._masked[i] = m[:0].copy()
            del m

    def _ready(self, i: int) -> seeds.Ring:
        with self._making:  # the first of the two evaluators' streams that gets there makes it
            m = self._masked[i]
            if m is None:
                late = self._late[i]
                value = late.make()
                if (value.shape, value.fractional_bits) != (late.shape, late.fractional_bits):
                    raise UsageError("A late input has another shape than it was said to have.")
                _, _, m = seeds.share(value.ring, value.limbs, self._seeds[i])
                self._masked[i] = m
            return m


def check_inputs(inputs: object) -> None:
    """Refuses inputs that no worker could be sent.

    Raises:
        UsageError: naming the first one.
    """
    for name, value in _items("Inputs are a dict of PrivateInput", inputs):
        if not isinstance(name, str) or not isinstance(value, PrivateInput | LateInput):
            raise UsageError(
                "Inputs are PrivateInput by name: PrivateInput(array) for integers, "
                "PrivateInput(FixedPoint(16).encode(array), 16) for reals. Received: "
                f"{kind_of(value)} under {str(name)[:80]!r}."
            )


def check_parameters(parameters: object) -> None:
    """Refuses parameters that JSON does not hold.

    Raises:
        UsageError: naming the first one.
    """
    for name, value in _items("Parameters are a dict", parameters):
        try:
            json.dumps({name: value}, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            raise UsageError(
                "Parameters are what JSON holds: texts, finite numbers, true or false, None, and "
                f"lists and dicts of these. Received: {kind_of(value)} under {str(name)[:80]!r}."
            ) from None


def _items(wanted: str, given: object) -> Iterable[tuple[object, object]]:
    if not isinstance(given, Mapping):
        raise UsageError(f"{wanted}. Received: {kind_of(given)}.")
    return given.items()


def kind_of(value: object) -> str:
    """What a value is, and nothing of what it holds."""
    dtype = getattr(value, "dtype", None)
    return type(value).__name__ + (f" of {dtype}" if dtype is not None else "")
