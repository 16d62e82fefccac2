"""Losses: which there are, by the modules of this package, and how they are found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfe_bench.errors import UsageError, did_you_mean
from tfe_bench.models.kinds import discovery
from tfe_bench.models.training.losses.loss import MEAN, Loss

# Options of Keras' losses that have one value here, and what it is.
_UNUSED: Mapping[str, Any] = {"axis": -1, "ignore_class": None}

LOSSES = discovery.classes(__name__, __path__, Loss, "name")


def folded() -> set[str]:
    """Kinds of layers that losses take in when a model ends in them."""
    return {cls.folded for cls in LOSSES.values()} - {""}


def named(name: Any) -> Loss:
    """The loss of a name, as Keras has it without options.

    Raises:
        UsageError: there is none.
    """
    for cls in LOSSES.values():
        if name in (cls.name, cls.keras, *cls.aliases):
            return cls()
    raise UsageError(
        f"Losses are {', '.join(LOSSES)}. Received: {name!r}.{did_you_mean(str(name), LOSSES)}"
    )


def of(header: Any) -> Loss:
    """The loss of a header, which may come from a stranger.

    Raises:
        UsageError: it is none.
    """
    rest = dict(header)
    cls = type(named(rest.pop("name", None)))
    try:
        return cls(**rest)
    except TypeError:
        raise UsageError(f"{cls.name} has no such options: {sorted(map(str, rest))}.") from None


def of_keras(given: Any) -> tuple[Loss, bool]:
    """The loss, and whether it is computed from logits, of a Keras loss or of its name.

    Raises:
        UsageError: another loss, or options that are not supported, all of them named.
    """
    if isinstance(given, Loss):
        return given, True
    if given is None or isinstance(given, str):
        return named(given), False
    import keras

    for cls in LOSSES.values():
        if given is getattr(keras.losses, cls.name):
            return cls(), False
        if type(given) is getattr(keras.losses, cls.keras):
            return _read(cls, given)
    raise UsageError(
        f"Losses are {', '.join(cls.keras for cls in LOSSES.values())}, or their names. Received: "
        f"{getattr(given, '__name__', type(given).__name__)}."
    )


def _read(cls: type[Loss], given: Any) -> tuple[Loss, bool]:
    # (get_config of some leaves out what the loss is called with)
    config = {**given.get_config(), **given._fn_kwargs}
    for other in ("name", "dtype", "fn"):
        config.pop(other, None)
    logits = bool(config.pop("from_logits", False))
    known = set(cls.options())
    used = [k for k, v in config.items() if k not in known and _UNUSED.get(k, v is None) != v]
    if used:
        raise UsageError(
            f"{cls.keras} has options that are not supported: {', '.join(used)}. Leave them out."
        )
    options = {k: v for k, v in config.items() if k in known}
    if options["reduction"] == "mean":  # (Keras' other name for it)
        options["reduction"] = MEAN
    return cls(**options), logits
