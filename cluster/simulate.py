"""Three parties as threads of one process with an in-memory channel.

The test bench, notebooks, quick looks: no secrecy (one process sees everything),
but the same graphs, messages and counters as on three hosts.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from tfe_bench.cluster.seeds import add_ring, mask_values, unmask_values
from tfe_bench.errors import ProtocolError, UsageError
from tfe_bench.protocols.session import ops
from tfe_bench.protocols.session.cost import Cost
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

Array = np.ndarray[Any, Any]

FAULTS = {
    None: 0,
    "drop_mask": 1,
    "reuse_counter": 2,
    "reuse_block": 3,
    "biased_permutation": 4,
}
_RECORD = np.dtype(
    [(name, "<u8") for name in ("hi", "lo", "bytes", "digest")]
    + [(name, "<i4") for name in ("key", "party", "sent", "reserved")]
)


@dataclass(frozen=True)
class Simulation:
    """What three simulated parties returned and sent.

    Attributes:
        outputs: of the program, by party.
        sent: payload bits sent, by party.
        to: payload bits sent, by party and by receiver.
        rounds: longest chain of messages, summed over graph calls, the dealer's material present.
        with_dealing: the same with everything counted.
        pads: the debug log of masks (if recorded), all parties together.
    """

    outputs: tuple[Any, Any, Any]
    sent: tuple[int, int, int]
    to: tuple[tuple[int, ...], ...]
    rounds: int
    with_dealing: int
    pads: Array

    def value(self, pick: Callable[[Any], Shared] = lambda out: out) -> Array:
        """Reconstructs a private output from the three parties' parts."""
        return reconstruct([pick(out) for out in self.outputs])


def share_for_party(
    values: Any,
    party: int,
    seed: bytes,
    fractional_bits: int = 0,
    dealer: int = 0,
    limbs: int = 1,
) -> Shared:
    """One party's share of int64 ring elements; equal seeds give shares that fit together.

    Args:
        limbs: with 2, elements of Z_2^128 with a last axis of 2 words, low word first.
    """
    import tensorflow as tf

    ring = np.asarray(values, np.int64)
    if limbs not in (1, 2) or (limbs == 2 and ring.shape[-1:] != (2,)):
        raise UsageError(
            "limbs is 1, or 2 for words with a last axis of 2. Received: "
            f"limbs={limbs!r}, shape {list(ring.shape)}."
        )
    rng = np.random.default_rng(list(seed))
    info = np.iinfo(np.int64)
    l1, l2 = (
        rng.integers(info.min, info.max, ring.shape, np.int64, endpoint=True) for _ in range(2)
    )
    m = mask_values(ring, l1, l2, limbs)
    role = (party - dealer) % 3
    return Shared(
        None if role == 0 else tf.constant(m, tf.int64),
        None if role == 2 else tf.constant(l1, tf.int64),
        None if role == 1 else tf.constant(l2, tf.int64),
        dealer,
        fractional_bits,
        limbs,
    )


def reconstruct(parts: Sequence[Shared]) -> Array:
    """Ring elements (int64; Python integers for wide ones) of a value from its three parts.

    Raises:
        ProtocolError: two holders of one component differ.
    """
    fields_by_name: dict[str, Array] = {}
    for part in parts:
        for name in ("m", "l1", "l2"):
            tensor = getattr(part, name)
            if tensor is None:
                continue
            array = np.asarray(tensor)
            if name in fields_by_name and not np.array_equal(fields_by_name[name], array):
                raise ProtocolError(f"The two holders of {name} hold different values.")
            fields_by_name[name] = array
    first = parts[0]
    if first.limbs == 1 and first.ring_bits == 64:
        return unmask_values(
            fields_by_name["m"], add_ring(fields_by_name["l1"], fields_by_name["l2"])
        )
    ring = 1 << first.ring_bits

    def to_integers(a: Array) -> Any:
        words = a.astype(np.uint64).astype(object)
        return words if first.limbs == 1 else words[..., 0] + words[..., 1] * (1 << 64)

    value: Array = np.asarray(
        (
            to_integers(fields_by_name["m"])
            - to_integers(fields_by_name["l1"])
            - to_integers(fields_by_name["l2"])
        )
        % ring,
        dtype=object,
    )
    return value


def simulate(
    program: Callable[..., Any],
    *inputs: Any,
    fractional_bits: int = 0,
    limbs: int = 1,
    dealer: int = 0,
    seed: bytes = b"shares",
    keys: Sequence[bytes] | None = None,
    fault: str | None = None,
    record: bool = False,
    timeout: float | None = None,
) -> Simulation:
    """Runs program(party, *shares) on three parties at once.

    Args:
        inputs: arrays of ring elements, shared among the parties from `seed`.
        limbs: words per element of all inputs; with 2, they have a last axis of 2 words.
        keys: three 16-byte PRF keys instead of fresh ones (tests only).
        fault: a fault to seed, see FAULTS (tests only).
        record: keep the debug log of masks.
        timeout: seconds after which parties that still wait are ended.

    Raises:
        TimeoutError: the parties had not ended in time.
        Whatever the program raises at the first party that fails.
    """
    if fault not in FAULTS:
        raise UsageError(f"Unknown fault. Received: {fault!r}. Known: {sorted(map(str, FAULTS))}.")
    native = ops.native()
    material = b"".join(keys) if keys else os.urandom(48)
    handles = [native.session_new(p, material, 1) for p in range(3)]
    building = threading.Lock()
    parties = [Party(p, handles[p], dealer, building, client="") for p in range(3)]
    outputs: list[Any] = [None] * 3
    failures: list[tuple[int, BaseException]] = []
    lock = threading.Lock()

    def run_party(p: int) -> None:
        try:
            shares = [
                share_for_party(x, p, seed + _encode_index(i), fractional_bits, dealer, limbs)
                for i, x in enumerate(inputs)
            ]
            with parties[p].active():
                outputs[p] = _to_numpy(program(parties[p], *shares))
        except BaseException as error:
            with lock:
                failures.append((p, error))
            for handle in handles:
                native.abort(handle, f"party {p} failed".encode())

    try:
        for p in range(3):
            for q in range(3):
                if p != q:
                    native.call_for_error("session_link", handles[p], q, handles[q])
            if fault:
                parties[p].check(native.call_for_error("session_fault", handles[p], FAULTS[fault]))
            native.record(handles[p], int(record))
        threads = [threading.Thread(target=run_party, args=(p,), daemon=True) for p in range(3)]
        for thread in threads:
            thread.start()
        deadline = None if timeout is None else time.monotonic() + timeout
        for thread in threads:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in threads):
            for handle in handles:
                native.abort(handle, b"the simulation timed out")
            for thread in threads:
                thread.join(timeout)
            raise TimeoutError(f"The three parties had not ended after {timeout} s.")
        if failures:
            raise failures[0][1]
        counters = [party.counters()["payload"] for party in parties]
        rounds = [party.rounds() for party in parties]
        pads = [get_mask_log(party) for party in parties] if record else []
    finally:
        for handle in handles:
            native.session_drop(handle)
    return Simulation(
        outputs=(outputs[0], outputs[1], outputs[2]),
        sent=tuple(8 * sum(c) for c in counters),  # type: ignore[arg-type]
        to=tuple(tuple(8 * b for b in c) for c in counters),
        rounds=total_rounds(rounds, "ahead"),
        with_dealing=total_rounds(rounds, "with_dealing"),
        pads=np.concatenate(pads) if pads else np.zeros(0, _RECORD),
    )


def total_rounds(per_party: Sequence[Sequence[Any]], kind: str) -> int:
    """Rounds of a run: steps follow each other, and each lasts as long as at its slowest party."""
    return sum(max(getattr(s, kind) for s in step) for step in zip(*per_party, strict=True))


def _encode_index(i: int) -> bytes:
    """Of an input, in as few bytes as hold it."""
    return i.to_bytes(max(1, (i.bit_length() + 7) // 8), "big")


def measure_call(party: Party, graph: Callable[..., Any], *arguments: Any) -> tuple[int, list[Any]]:
    """Runs one graph call; returns the payload bits this party sent in it, and its rounds."""
    party.reset_counters()
    graph(*arguments)
    return 8 * sum(party.counters()["payload"]), party.rounds()


def assert_costs(calls: Sequence[tuple[int, list[Any]]], cost: Cost, dealer: int = 0) -> None:
    """Checks that one graph call cost what is declared.

    Args:
        calls: what `measured` returned at party 0, 1, 2.

    Raises:
        AssertionError: the channel counted something else.
    """
    sent, rounds = zip(*calls, strict=True)
    counted = (sent, total_rounds(rounds, "ahead"), total_rounds(rounds, "with_dealing"))
    declared = (cost.by_party(dealer), cost.rounds, cost.with_dealing)
    assert counted == declared, f"measured {counted}, declared {declared}"


def get_mask_log(party: Party) -> Array:
    """A party's debug log of masks so far (tests only; `simulate` with record=True)."""
    native = ops.native()
    count = native.records(party.handle, None, 0)
    out = np.zeros(count, _RECORD)
    native.records(party.handle, out.ctypes.data_as(ctypes.c_void_p), count)
    return out


def replay_masks(party: Party, steps: int, hi: int = 0, lo: int = 0, words: Any = ()) -> None:
    """Lets the next calls use the masks of earlier ones, but for one stream (tests only).

    Called by all parties between graph calls.  With it a test asks what one mask moves.

    Args:
        steps: masks are numbered as if so many of the steps so far had not been.
        hi, lo: where the stream begins, as in the log of masks.
        words: added to it bit by bit, uint64; a permutation is reversed if there are any.

    Raises:
        ProtocolError: the session is not simulated.
    """
    native, mask_words = ops.native(), np.ascontiguousarray(words, np.uint64)
    party.check(native.call_for_error("session_replay", party.handle, steps))
    at = mask_words.ctypes.data_as(ctypes.c_void_p)
    party.check(native.call_for_error("session_alter", party.handle, hi, lo, at, mask_words.size))


def _to_numpy(value: Any) -> Any:
    """Tensors as numpy arrays, so that nothing is left to run once the session is gone."""
    import tensorflow as tf

    if isinstance(value, tf.Tensor):
        return value.numpy()
    if isinstance(value, (list, tuple)):
        return type(value)(_to_numpy(v) for v in value)
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{f.name: _to_numpy(getattr(value, f.name)) for f in fields(value)})
    return value
