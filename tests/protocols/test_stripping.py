"""A receiver that removes every pad it can generate uncovers nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from tests.protocols.catalogue import VIEWED
from tests.protocols.views import (
    ALPHA,
    SECRETS,
    TELLING,
    Message,
    Run,
    Words,
    failing_checks,
    frozen_checks,
    run_views,
    uniform_p,
)
from tfe_bench.cluster.simulate import simulate
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared


def pads_of(key: bytes, hi: int, lo: int, words: int) -> Words:
    """Return the mask of a counter, by another AES than the product's."""
    blocks = np.empty((-(-words // 2), 2), "<u8")
    blocks[:, 0] = lo + np.arange(len(blocks), dtype=np.uint64)
    blocks[:, 1] = hi
    encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    mask_bytes = encryptor.update(blocks.tobytes()) + encryptor.finalize()
    return np.frombuffer(mask_bytes, "<u8")[:words]


def held_keys(party: int) -> tuple[int, int]:
    """Return the indices of a party's keys."""
    return party, (party + 1) % 3


def strippable_pads(message: Message, pads: dict[Any, Words]) -> list[Any]:
    """Return the one or two pads whose removal leaves constant words: the message was in the clear.

    The shares are frozen, so that a word without its masks repeats.
    """
    words = message.words()
    xor = message.planes
    width = 64 if message.data.dtype != np.uint8 else 8 * message.lanes().shape[1]
    ring = np.uint64(2**width - 1)

    def without(left: Words, pad: Words) -> Iterator[Words]:
        if xor:
            yield left ^ pad
        else:
            yield (left - pad) & ring
            yield (left + pad) & ring

    matches: list[Any] = []
    once = [(pad, rest) for pad, p in pads.items() for rest in without(words, p[: len(words)])]
    for pad, rest in once:
        top = (rest >> np.uint64(width - 4)).astype(np.uint8)
        if (rest[1:] == rest[:-1]).any() or uniform_p(top, 16) < ALPHA / 1000:
            matches.append(pad)
    few = slice(0, 512)
    for a, rest in once:
        for b in (pad for pad in pads if pad > a):
            if any((r[1:] == r[:-1]).any() for r in without(rest[few], pads[b][few])):
                matches.append((a, b))
    return matches


def strip_messages(run: Run, keys: Sequence[bytes], dealer: int) -> dict[str, list[Any]]:
    """Return by "protocol to party" the strippable messages of a frozen call and their pads."""
    by_receiver: dict[str, list[Any]] = {}
    his = np.unique(run.sim.pads["hi"])
    for party, view in enumerate(run.frozen[-1]):
        for message in view.received:
            if message.data.dtype == np.uint8 and message.lanes().shape[1] < TELLING:
                continue
            # the last call has the highest step
            hi = int(max(h for h in his if int(h) >> 40 == message.site))
            pads = {
                (key, role, tensor): pads_of(
                    keys[key], hi, dealer << 42 | role << 40 | tensor << 32, len(message.words())
                )
                for key in held_keys(party)
                for role in (1, 2, 3)
                for tensor in range(8)
            }
            by_receiver.setdefault(f"{message.name} to {party}", []).extend(
                strippable_pads(message, pads)
            )
    return by_receiver


QUICKLY_STRIPPED = ("mul", "truncate_safe", "inject")
STRIPPED = (
    "input_by_0",
    "input_by_1",
    "input_by_2",
    "mul",
    "matmul",
    "rss_mul",
    "truncate_safe",
    "truncate_exact",
    "inject",
    "shuffle",
    "inject_small",
    "inject_truncated",
    "select_exp",
    "lifted_product",
    "all_of",
    "truncated_product",
    "sums",
    "watched",
    "small_relu",
    "argmax",
    "tree",
)


# (test_joint_views.py checks for every site whether its receivers lack the keys of the pads.)
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n not in QUICKLY_STRIPPED)) for n in STRIPPED],
)
def test_no_pads_that_a_receiver_can_make_uncover_a_message(
    name: str, rng: np.random.Generator
) -> None:
    keys = [rng.bytes(16) for _ in range(3)]
    dealer = int(rng.integers(3))
    run = run_views(VIEWED[name], rng, SECRETS[-1:], keys=keys, dealer=dealer, record=True)
    result = strip_messages(run, keys, dealer)
    assert result and not any(result.values()), result


@pytest.mark.parametrize(
    ("name", "receiver"),
    [
        pytest.param(n, to, marks=[pytest.mark.slow] * (n not in QUICKLY_STRIPPED))
        for n, to in (
            ("input_by_2", "input to 1"),
            ("mul", "mul to 1"),
            ("matmul", "matmul to 1"),
            ("shuffle", "shuffle to 1"),
            ("inject", "b2a to 1"),
            ("inject", "inject to 2"),
            ("inject_small", "inject to 2"),
            ("inject_truncated", "inject_truncated to 2"),
            ("lifted_product", "lifted_product to 2"),
            ("all_of", "all_of to 2"),
            ("truncated_product", "truncated_product to 2"),
            ("argmax", "pick to 2"),
            ("argmax", "index to 2"),
        )
    ],
)
def test_stripping_shows_two_parties_with_one_key(
    name: str, receiver: str, rng: np.random.Generator
) -> None:
    """Set k0 = k1: E1 and E2 can generate each other's masks despite other role counters."""
    keys = [rng.bytes(16)] * 2 + [rng.bytes(16)]
    run = run_views(VIEWED[name], rng, SECRETS[-1:], keys=keys, record=True)
    assert strip_messages(run, keys, 0)[receiver]
    assert (
        failing_checks(frozen_checks(run.frozen)) == set()
    )  # the marginal statistics do not show it


def test_masks_are_aes_of_the_documented_counter_block(rng: np.random.Generator) -> None:
    import tensorflow as tf

    keys = [rng.bytes(16) for _ in range(3)]

    def program(party: Party, x: Shared) -> Any:
        def function(x: Shared) -> Any:
            site = party.site("masks")
            roles = [
                role for role in (1, 2, 3) if (party.index, role) not in ((0, 3), (1, 2), (2, 1))
            ]
            return {str(role): site.mask(role, 7, tf.constant([33])) for role in roles}

        return party.function(function)(x)

    sim = simulate(program, np.zeros(1, np.int64), keys=keys, record=True)
    hi = int(sim.pads["hi"][0])
    assert hi >> 40 == 1
    for party in range(3):
        for role, got in sim.outputs[party].items():
            key = {"1": 1, "2": 0, "3": 2}[role]  # dealer 0
            want = pads_of(keys[key], hi, int(role) << 40 | 7 << 32, 33)
            assert np.array_equal(np.asarray(got).view(np.uint64), want)
