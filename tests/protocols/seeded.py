"""Faults that keep results right and break privacy, seeded in a protocol by its site."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from tfe_bench.protocols.ring import convert
from tfe_bench.protocols.session import ops
from tfe_bench.protocols.session.packing import pack_ring_words
from tfe_bench.protocols.session.party import K1, K2, K3, Site

Patch = pytest.MonkeyPatch
Fault = Callable[[Patch], None]


def merge_masks(site: str, tensors: dict[int, int]) -> Fault:
    """Give masks of one site the numbers of others at both holders: the results stay correct."""

    def seed(patch: Patch) -> None:
        named = Site._named

        def wrong(self: Site, key: int, tensor: int) -> dict[str, Any]:
            here = self.party.site_names[self.number] == site
            return named(self, key, tensors.get(tensor, tensor) if here else tensor)

        patch.setattr(Site, "_named", wrong)

    return seed


def drop_mask(site: str, role: str) -> Fault:
    """Send a role's messages without their mask."""

    def seed(patch: Patch) -> None:
        apply_mask, pack_masked = Site.apply_mask, Site.pack_masked

        def wrong(self: Site, x: Any, *arguments: Any, **options: Any) -> Any:
            here = self.party.site_names[self.number] == site and getattr(self, role)
            return x if here else apply_mask(self, x, *arguments, **options)

        def pack(self: Site, x: Any, key: int, tensor: int, op: str, width: int) -> Any:
            here = self.party.site_names[self.number] == site and getattr(self, role)
            return (
                pack_ring_words(x, width) if here else pack_masked(self, x, key, tensor, op, width)
            )

        patch.setattr(Site, "apply_mask", wrong)
        patch.setattr(Site, "pack_masked", pack)

    return seed


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


def second_field_under_the_first_mask(width: int) -> Callable[[Site, Any], Any]:
    """Send the second of D's two packed fields of elements of `width` bits under the first mask."""

    def change(s: Site, data: Any) -> Any:
        import tensorflow as tf

        half = tf.size(data, out_type=tf.int64) // 2
        n = 8 * half // width
        shape = tf.reshape(n, [1])
        first, second = (s.mask(K1, tensor, shape) for tensor in (0, 1))
        field = ops.module().tfe_bench_unpack_words(packed=data[half:], n=n, width=width)
        return tf.concat([data[:half], pack_ring_words(field + second - first, width)], 0)

    return change


def change_constant(module: ModuleType, name: str, value: Any) -> Fault:
    """Give a constant of a protocol's module another value."""

    def seed(patch: Patch) -> None:
        patch.setattr(module, name, value)

    return seed


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
