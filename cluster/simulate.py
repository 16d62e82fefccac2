"""Three parties as threads of one process with an in-memory channel.

For tests, notebooks and short trials: without secrecy (one process sees all shares),
but with the same graphs, messages and counters as on three hosts.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from tfe_bench.cluster.seeds import add_ring_words, mask_values, unmask_values
from tfe_bench.errors import ProtocolError, UsageError
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.session import ops
from tfe_bench.protocols.session.cost import Cost
from tfe_bench.protocols.session.openings import Opening, OpeningLog
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
    """Outputs and costs of three simulated parties.

    Attributes:
        outputs: of the program, by party.
        sent: payload bits sent, by party.
        to: payload bits sent, by party and by receiver.
        rounds: online rounds: the longest chain of messages, summed over graph calls, if the
            dealer's correlated randomness has arrived before.
        with_dealing: total rounds: the same with the dealer's messages counted (offline + online).
        pads: the debug log of masks (if recorded), all parties together.
        openings: what became public to the parties; equal at all three.
    """

    outputs: tuple[Any, Any, Any]
    sent: tuple[int, int, int]
    to: tuple[tuple[int, ...], ...]
    rounds: int
    with_dealing: int
    pads: Array
    openings: tuple[Opening, ...]

    def value(self, pick: Callable[[Any], Shared] = lambda out: out) -> Array:
        """Reconstruct a private output from the three parties' shares."""
        return reconstruct([pick(out) for out in self.outputs])


def share_for_party(
    values: Any,
    party: int,
    seed: bytes,
    fractional_bits: int = 0,
    dealer: int = 0,
    limbs: int = 1,
) -> Shared:
    """Return one party's share of int64 ring elements; equal seeds result in matching shares.

    Args:
        limbs: with 2, elements of Z_2^128 with a last axis of 2 words, low word first.
    """
    ring = np.asarray(values, np.int64)
    if limbs not in (1, 2) or (limbs == 2 and ring.shape[-1:] != (2,)):
        raise UsageError(
            "limbs is 1, or 2 for words with a last axis of 2. Received: "
            f"limbs={limbs!r}, shape {list(ring.shape)}.",
            code="shape-mismatch",
            operation="limbs",
            received=limbs,
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
    """Reconstruct ring elements (int64; Python integers for wide ones) from the three shares.

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
                raise ProtocolError(
                    f"The two holders of {name} hold different values.",
                    code="inconsistent-shares",
                    operation=name,
                )
            fields_by_name[name] = array
    first = parts[0]
    if first.limbs == 1 and first.ring_bits == 64:
        return unmask_values(
            fields_by_name["m"], add_ring_words(fields_by_name["l1"], fields_by_name["l2"])
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
    permitted: Collection[str] | None = None,
) -> Simulation:
    """Run program(party, *shares) on three parties at once.

    Args:
        inputs: arrays of ring elements, shared among the parties from `seed`.
        fractional_bits: scale of all inputs.
        limbs: words per element of all inputs; with 2, they have a last axis of 2 words.
        dealer: the dealer of all inputs.
        keys: three 16-byte PRF keys instead of fresh ones (tests only).
        fault: a fault to inject, see FAULTS (tests only).
        record: keep the debug log of masks.
        timeout: seconds after which waiting parties are ended.
        permitted: kinds of values that the program may open (openings.OpeningLog); None: all.

    Raises:
        TimeoutError: the parties did not end in time.
        Any error of the program, at the first party that fails.
    """
    if fault not in FAULTS:
        raise UsageError(
            f"Unknown fault. Received: {fault!r}. Known: {sorted(map(str, FAULTS))}.",
            code="unknown-name",
            operation="fault",
            received=fault,
        )
    native = ops.native()
    material = b"".join(keys) if keys else os.urandom(48)
    handles = [native.session_new(p, material, 1) for p in range(3)]
    building = threading.Lock()
    parties = [Party(p, handles[p], dealer, building, client="") for p in range(3)]
    for party in parties:
        party.openings = OpeningLog(permitted)
    outputs: list[Any] = [None] * 3
    failures: list[tuple[int, BaseException]] = []
    lock = threading.Lock()

    def run_simulated_party(p: int) -> None:
        try:
            shares = [
                share_for_party(x, p, seed + _encode_input_index(i), fractional_bits, dealer, limbs)
                for i, x in enumerate(inputs)
            ]
            with parties[p].active():
                outputs[p] = _convert_tensors_to_numpy(program(parties[p], *shares))
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
        threads = [
            threading.Thread(target=run_simulated_party, args=(p,), daemon=True) for p in range(3)
        ]
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
        openings = [party.openings.list_openings() for party in parties]
        assert openings[0] == openings[1] == openings[2]
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
        openings=openings[0],
    )


def total_rounds(per_party: Sequence[Sequence[Any]], kind: str) -> int:
    """Sum the rounds of a run: steps run in sequence, each as long as at its slowest party."""
    return sum(max(getattr(s, kind) for s in step) for step in zip(*per_party, strict=True))


def _encode_input_index(i: int) -> bytes:
    """Encode an input's index in the fewest bytes."""
    return i.to_bytes(max(1, (i.bit_length() + 7) // 8), "big")


def measure_graph_call(
    party: Party, graph: Callable[..., Any], *arguments: Any
) -> tuple[int, list[Any]]:
    """Run one graph call; return the payload bits that this party sent, and its rounds."""
    party.reset_counters()
    graph(*arguments)
    return 8 * sum(party.counters()["payload"]), party.rounds()


def assert_costs(calls: Sequence[tuple[int, list[Any]]], cost: Cost, dealer: int = 0) -> None:
    """Check that one graph call has its declared cost.

    Args:
        calls: results of `measure_graph_call` at party 0, 1, 2.

    Raises:
        AssertionError: the channel counted another cost.
    """
    sent, rounds = zip(*calls, strict=True)
    counted = (sent, total_rounds(rounds, "ahead"), total_rounds(rounds, "with_dealing"))
    declared = (cost.by_party(dealer), cost.rounds, cost.with_dealing)
    assert counted == declared, f"measured {counted}, declared {declared}"


def get_mask_log(party: Party) -> Array:
    """Return a party's debug log of masks so far (tests only; `simulate` with record=True)."""
    native = ops.native()
    count = native.records(party.handle, None, 0)
    out = np.zeros(count, _RECORD)
    native.records(party.handle, out.ctypes.data_as(ctypes.c_void_p), count)
    return out


def replay_masks(party: Party, steps: int, hi: int = 0, lo: int = 0, words: Any = ()) -> None:
    """Replay earlier masks in the next calls, except for one altered stream (tests only).

    All parties call it between graph calls.  A test uses it to find which messages depend on a
    mask.

    Args:
        steps: masks are numbered as if this number of the previous steps had not occurred.
        hi, lo: the start of the stream, as in the log of masks.
        words: added to it bit by bit, uint64; with any words, a permutation is reversed.

    Raises:
        ProtocolError: the session is not simulated.
    """
    native, mask_words = ops.native(), np.ascontiguousarray(words, np.uint64)
    party.check(native.call_for_error("session_replay", party.handle, steps))
    at = mask_words.ctypes.data_as(ctypes.c_void_p)
    party.check(native.call_for_error("session_alter", party.handle, hi, lo, at, mask_words.size))


def _convert_tensors_to_numpy(value: Any) -> Any:
    """Convert tensors to NumPy arrays, so that no operation is pending when the session ends."""
    if isinstance(value, tf.Tensor):
        return value.numpy()
    if isinstance(value, (list, tuple)):
        return type(value)(_convert_tensors_to_numpy(v) for v in value)
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(
            **{f.name: _convert_tensors_to_numpy(getattr(value, f.name)) for f in fields(value)}
        )
    return value
