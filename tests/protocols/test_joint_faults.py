"""The check of joint_views.py catches faults, and its limits are known.

A new protocol needs a fault in FAULTS: an error that does not change its result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.protocols.gated import FUNCTIONS
from tests.protocols.joint_views import Row, check_row, explain_regions
from tests.protocols.seeded import Fault, Patch, drop_mask, merge_masks
from tests.protocols.test_joint_views import ROWS
from tfe_bench.cluster import seeds
from tfe_bench.protocols.ring import arithmetic, convert, truncation
from tfe_bench.protocols.session import io, ops
from tfe_bench.protocols.session.party import K1, K2, K3, Party, Site
from tfe_bench.protocols.session.sharing import Shared


def change_message(site: str, at: int, role: str, change: Callable[[Site, Any], Any]) -> Fault:
    """Change a message of a role before it is sent."""

    def seed(patch: Patch) -> None:
        send = Site.send

        def wrong(self: Site, data: Any, to: int, slot: int = 0, run_ahead: bool = False) -> None:
            here = self.party.site_names[self.number] == site and getattr(self, role)
            send(self, change(self, data) if here and slot == at else data, to, slot, run_ahead)

        patch.setattr(Site, "send", wrong)

    return seed


def without_the_third_permutation(patch: Patch) -> None:
    import tensorflow as tf

    permutation = Site.permutation

    def wrong(self: Site, key: int, tensor: int, shape: Any) -> Any:
        p = permutation(self, key, tensor, shape)
        return p if tensor != 2 else tf.zeros_like(p) + tf.range(tf.shape(p)[1])

    patch.setattr(Site, "permutation", wrong)


def zero_masks(site: str) -> Fault:
    """Replace masks that are generated and added by zeros."""

    def seed(patch: Patch) -> None:
        import tensorflow as tf

        mask = Site.mask

        def wrong(self: Site, *named: Any) -> Any:
            generated = mask(self, *named)
            return (
                tf.zeros_like(generated)
                if self.party.site_names[self.number] == site
                else generated
            )

        patch.setattr(Site, "mask", wrong)

    return seed


def under_the_mask_of_the_level_before(s: Site, data: Any) -> Any:
    import tensorflow as tf

    shape = tf.shape(data, out_type=tf.int64)
    first, second = (s.mask(K1, tensor, shape) for tensor in (1, 3))
    return tf.bitwise.bitwise_xor(data, tf.bitwise.bitwise_xor(first, second))


def wrap_under_the_mask_of_the_shifted_word(s: Site, data: Any) -> Any:
    """Send D's second field under its first mask, in T3 with 16 bits dropped."""
    import tensorflow as tf

    n = tf.size(data) // 10
    words, wraps = data[: 8 * n], data[8 * n :]
    masks = (s.mask(K1, tensor, tf.reshape(tf.cast(n, tf.int64), [1])) for tensor in (0, 1))
    first, second = (tf.cast(tf.bitwise.bitwise_and(m, 2**16 - 1), tf.uint16) for m in masks)
    field = tf.bitcast(tf.reshape(wraps, [-1, 2]), tf.uint16) + second - first
    return tf.concat([words, tf.reshape(tf.bitcast(field, tf.uint8), [-1])], 0)


def leaves_under_a_dealt_mask(patch: Patch) -> None:
    """Send a share of an injection's evaluator E1 under the pad of the share dealt to E2."""
    inject_shares = convert.inject_shares

    def wrong(*arguments: Any, **options: Any) -> Any:
        return inject_shares(*arguments, **{**options, "output_mask": 1})

    patch.setattr(convert, "inject_shares", wrong)


def one_site_for_all(site: str) -> Fault:
    """Refresh stored shares under the same masks each time."""

    def seed(patch: Patch) -> None:
        named = Site._named

        def wrong(self: Site, key: int, tensor: int) -> dict[str, Any]:
            same = [n for n, name in self.party.site_names.items() if name == site]
            fields = named(self, key, tensor)
            return {**fields, "site": min(same)} if self.number in same else fields

        patch.setattr(Site, "_named", wrong)

    return seed


def one_turn_for_all(site: str) -> Fault:
    """Give all iterations of a loop the masks of its first one."""

    def seed(patch: Patch) -> None:
        import tensorflow as tf

        named = Site._named

        def wrong(self: Site, key: int, tensor: int) -> dict[str, Any]:
            fields = named(self, key, tensor)
            here = self._trace.is_looping and self.party.site_names[self.number] == site
            if not here:
                return fields
            assert self.ctx is not None
            return {**fields, "call": tf.concat([self.ctx[:2], [1]], 0)}

        patch.setattr(Site, "_named", wrong)

    return seed


def keys_of_the_party_s_own_dealer(patch: Patch) -> None:
    """Mask with the key that both evaluators of another dealer hold."""

    def wrong(self: Site) -> int:
        if self.dealer != self.party.dealer:
            return K3
        return K1 if self.is_e1 else K2

    patch.setattr(Site, "own_key", property(wrong))


def with_site(fault: Callable[..., Fault], site: str, *about: Any) -> tuple[str, Fault]:
    """Return a fault of a row with the site's name."""
    return site, fault(site, *about)


T3_16 = Row(lambda p, x, y: truncation.truncate(p, x, 16), ("truncate_safe",))
# A row, or the name of one of ROWS, and the fault.
FAULTS: dict[str, tuple[Row | str, Fault]] = {
    "mask_bits without E1's mask": ("msb", drop_mask("mask_bits", "is_e1")),
    "reveal_bits sends D the shares as they are": with_site(zero_masks, "reveal_bits"),
    "shuffle without p2": ("shuffle", without_the_third_permutation),
    "columns of a shuffle share a mask": with_site(merge_masks, "shuffle", {6: 3}),
    "E2 goes back without its mask": ("rearranged", drop_mask("undo", "is_e2")),
    "columns that go back share a mask": ("rearranged", merge_masks("undo", {6: 3})),
    "E2 goes back to the last rows without its mask": (
        "rearranged, the end of it",
        drop_mask("undo", "is_e2"),
    ),
    "columns of the last rows share a mask": (
        "rearranged, the end of it",
        merge_masks("undo", {6: 3}),
    ),
    "an order moves twice under one mask": ("rearranged", one_site_for_all("shuffle")),
    "D shares a bit's mask as it is": ("bits", drop_mask("split_bits", "is_dealer")),
    "a group's products share the mask of its row": ("dense", merge_masks("dense_sums", {1: 0})),
    "totals leave without E2's mask": ("dense", drop_mask("dense_totals", "is_e2")),
    "bits leave without E1's mask": ("bits", drop_mask("exchange_bits", "is_e1")),
    "levels of a comparison share a mask": (
        "msb",
        change_message("msb", 2, "is_e1", under_the_mask_of_the_level_before),
    ),
    "an injection leaves under a dealt mask": ("inject", leaves_under_a_dealt_mask),
    "b2a exchanges under the dealt mask": with_site(merge_masks, "b2a", {1: 0}),
    "a sum of bits exchanges under a dealt mask": with_site(merge_masks, "weighed", {1: 0}),
    "mul exchanges under the dealt mask": with_site(merge_masks, "mul", {1: 0}),
    "rss_mul without a sharing of zero": with_site(zero_masks, "rss_mul"),
    "the wrap of a truncation shares a mask": (
        T3_16,
        change_message("truncate_safe", 0, "is_dealer", wrap_under_the_mask_of_the_shifted_word),
    ),
    "the wrap of a wide truncation shares a mask": with_site(
        merge_masks, "wide_truncate_safe", {1: 0}
    ),
    "a selected exponential exchanges under a residue's mask": with_site(
        merge_masks, "select_exp", {1: 0}
    ),
    "E2 sends an exponential's share as it is": with_site(drop_mask, "exp_one_round", "is_e2"),
    "powers of two are summed under the mask of one": with_site(merge_masks, "exp2", {2: 1}),
    "what is picked leaves under a dealt mask": ("row_maximum", merge_masks("pick_small", {2: 1})),
    "E2 says its share of a row's sum": with_site(drop_mask, "exp2", "is_e2"),
    "products of bits of an exponent share a mask": (
        "exp_pade",
        merge_masks("pade_factors", {7: 6}),
    ),
    "a pool's gradient exchanges under a dealt mask": with_site(merge_masks, "unpool", {5: 0}),
    "a stage of a normalization exchanges twice under one mask": (
        "log",
        merge_masks("normalize", {3: 4}),
    ),
    "an update exchanges twice under one mask": (
        "adaptive",
        merge_masks("adaptive_select", {4: 3}),
    ),
    "a rotated dealer with the wrong keys": ("renamed", keys_of_the_party_s_own_dealer),
    "who dealt before hands over without its mask": ("handed", drop_mask("refresh", "is_e2")),
    "who deals next hands over without its mask": ("handed", drop_mask("refresh", "is_e1")),
    "E2 refreshes without its mask": with_site(drop_mask, "refresh", "is_e2"),
    "kept shares refreshed under one mask": with_site(one_site_for_all, "refresh"),
    "the dealer of product_sum says the masks' product": (
        "sums",
        drop_mask("product_sum", "is_dealer"),
    ),
    "a flag of ranges without its mask": ("watched", drop_mask("watch_flag", "is_e1")),
    "truncated_sum exchanges under the dealt mask": ("sums", merge_masks("truncated_sum", {1: 0})),
    "an extended ring's wraps share a mask": with_site(merge_masks, "extend_small", {1: 0}),
    "wraps of what is not lifted share a mask": ("watched", merge_masks("extend_small", {1: 0})),
    "some bits are lifted under a dealt mask": ("extend_some", merge_masks("extend_small", {2: 0})),
    "a series is exchanged under the mask of what is dealt": with_site(
        merge_masks, "harmonics", {1: 0}
    ),
    "a polynomial exchanges under the dealt masks": with_site(merge_masks, "polyval", {1: 0}),
    "a sum with the dealer's noise leaves under the dealt mask": (
        "noisy",
        merge_masks("truncated_sum", {1: 0}),
    ),
    "turns of a loop share a sum's masks": ("recurrent", one_turn_for_all("truncated_sum")),
    "an input without its mask": with_site(drop_mask, "input", "is_e1"),
    **{
        f"{name}: {what}": (name, fault)
        for name, function in FUNCTIONS.items()
        for what, fault in function.faults.items()
    },
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_seeded_fault_is_caught(name: str, monkeypatch: Patch) -> None:
    row, seed = FAULTS[name]
    seed(monkeypatch)
    assert any(check_row(ROWS[row] if isinstance(row, str) else row).unexplained)


# ---- the check itself


def test_an_order_is_found_if_there_is_one() -> None:
    assert explain_regions({"a": {1}, "b": {1, 2}, "c": {1, 2, 3}}) == {1: "a", 2: "b", 3: "c"}
    assert explain_regions({"a": {1, 2}, "b": {1, 2}}) == {}  # their difference is in the clear
    assert explain_regions({"a": {1}, "b": {2, 3}}) == {1: "a"}
    assert explain_regions({"a": {1}}, {"a": set()}) == {}


def toy_row(kind: str) -> Row:
    """Send E2 two messages of three words from E1, with the masks of the named kind."""

    def protocol(party: Party, x: Shared, y: Shared) -> Any:
        import tensorflow as tf

        s = party.site("toy", dealer=x.dealer)
        six = tf.constant([6], tf.int64)
        if s.is_e2:
            if kind == "a key that its receiver holds":
                s.mask(K3, 0, six)
            return [s.recv(tf.constant([3], tf.int64), s.e1, slot) for slot in (0, 1)]
        pad = None if kind == "a key that its receiver holds" else s.mask(K1, 0, six)
        if s.is_dealer:
            return pad
        if pad is None:
            pad = s.mask(K3, 0, six)
        first, second = pad[:3], pad[3:]
        up = tf.constant(32, tf.int64)
        a, b = {
            "a pad for each word": (first, second),
            "one pad after the other": (first * x.m + second, first),
            "one pad for two messages": (first, first),
            "no pad": (first, 0 * first),
            "one word for all": (first[:1], second),
            "a half of a pad": (first, tf.bitwise.bitwise_and(second, 2**32 - 1)),
            "the other half of a pad": (first, tf.bitwise.left_shift(second, up)),
            "a pad and then itself": (first, first - x.l1 - x.m),
            "a key that its receiver holds": (first, second),
        }[kind]
        s.send(x.l1 + a, s.e2, 0)
        s.send(x.l1 * x.m + b, s.e2, 1)
        return None

    return Row(protocol, ("toy",))


@pytest.mark.parametrize(
    ("kind", "bare"),
    [
        ("a pad for each word", 0),
        ("one pad after the other", 0),
        ("one pad for two messages", 6),
        ("no pad", 3),
        ("one word for all", 3),
        ("a half of a pad", 3),
        ("the other half of a pad", 3),
        ("a pad and then itself", 6),
        ("a key that its receiver holds", 6),
    ],
)
def test_the_check_knows_what_hides(kind: str, bare: int) -> None:
    outcome = check_row(toy_row(kind))
    assert outcome.regions == (0, 0, 6)
    assert [len(u) for u in outcome.unexplained] == [0, 0, bare]


def test_a_result_whose_mask_moves_it_is_not_hidden_by_that_mask() -> None:
    """Find a truncation's carry: rounding depends on the masks that hide earlier messages."""
    carry = Row(
        lambda p, x, y: io.reveal(p, truncation.truncate(p, arithmetic.mul(p, x, y), 16)),
        ("reveal",),
        n=8,
        publishes=True,
    )
    assert any(check_row(carry).unexplained)


@pytest.mark.parametrize("call", ["session_replay", "session_alter"])
def test_masks_are_replayed_and_altered_in_simulations_only(call: str) -> None:
    native = ops.native()
    handle = native.session_new(0, bytes(48), 0)
    try:
        arguments = (1,) if call == "session_replay" else (0, 0, None, 0)
        assert "in simulated sessions only" in native.call_for_error(call, handle, *arguments)
    finally:
        native.session_drop(handle)


# ---- a client's sharing: seeds to their holders, m to both evaluators


def hidden_from_an_evaluator(holds: int, limbs: int) -> bool:
    """Return whether a separate word of the seeds that E1 or E2 lacks hides each word of m.

    The words are those of m for two inputs.

    Args:
        holds: 0 for E1, which receives the first seed of each input, 1 for E2.
    """
    stream = seeds._stream
    values = np.random.default_rng(11).integers(-(2**63), 2**63, (2, 2 * limbs))

    def shared(seed: bytes = b"", word: int = 0) -> list[tuple[bytes, bytes, Any]]:
        def alter_stream(of: bytes, count: int) -> Any:
            ((begin, words),) = stream(of, count)
            words = words.copy()
            words[word] ^= -(of == seed)
            yield begin, words

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("os.urandom", np.random.default_rng(12).bytes)
            patch.setattr(seeds, "_stream", alter_stream)
            return [seeds.share_values_by_seeds(value, limbs) for value in values]

    base = shared()
    unknown = {s[1 - holds] for s in base} - {s[holds] for s in base}
    before = np.array([m for *_, m in base])
    changed = {
        (seed, word): {
            tuple(at) for at in np.argwhere(before != [m for *_, m in shared(seed, word)])
        }
        for seed in unknown
        for word in range(2 * limbs)
    }
    return len(explain_regions(changed)) == before.size


@pytest.mark.parametrize("limbs", [1, 2])
@pytest.mark.parametrize("holds", [0, 1])
def test_a_client_s_inputs_are_hidden_from_each_evaluator(holds: int, limbs: int) -> None:
    assert hidden_from_an_evaluator(holds, limbs)


@pytest.mark.parametrize(
    "fresh",
    [
        lambda: (b"one for all the ", b"inputs, the same"),
        lambda: (np.random.default_rng(0).bytes(16),) * 2,
    ],
    ids=["two inputs, the same seeds", "one seed for both holders"],
)
def test_a_seeded_fault_of_a_client_s_sharing_is_caught(fresh: Any, monkeypatch: Patch) -> None:
    monkeypatch.setattr(seeds, "fresh", fresh)
    assert not hidden_from_an_evaluator(0, 1)
