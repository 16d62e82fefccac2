"""Losses: which there are, by the modules of this package, and how they are found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfe_bench.errors import UsageError, did_you_mean
from tfe_bench.models.kinds import discovery
from tfe_bench.models.training.losses.loss import MEAN, Loss

# Options of Keras' losses that have one value here, and what it is.
_UNUSED: Mapping[str, Any] = {"axis": -1, "ignore_class": None}

LOSSES = discovery.find_classes(__name__, __path__, Loss, "name")


def list_folded_activations() -> set[str]:
    """Kinds of layers that losses take in when a model ends in them."""
    return {cls.folded_activation for cls in LOSSES.values()} - {""}


def get_loss(name: Any) -> Loss:
    """The loss of a name, as Keras has it without options.

    Raises:
        UsageError: there is none.
    """
    for cls in LOSSES.values():
        if name in (cls.name, cls.keras_class, *cls.aliases):
            return cls()
    raise UsageError(
        f"Losses are {', '.join(LOSSES)}. Received: {name!r}.{did_you_mean(str(name), LOSSES)}"
    )


def from_header(header: Any) -> Loss:
    """The loss of a header, which may come from a stranger.

    Raises:
        UsageError: it is none.
    """
    options = dict(header)
    cls = type(get_loss(options.pop("name", None)))
    try:
        return cls(**options)
    except TypeError:
        raise UsageError(f"{cls.name} has no such options: {sorted(map(str, options))}.") from None


def read_keras_loss(keras_loss: Any) -> tuple[Loss, bool]:
    """The loss, and whether it is computed from logits, of a Keras loss or of its name.

    Raises:
        UsageError: another loss, or options that are not supported, all of them named.
    """
    if isinstance(keras_loss, Loss):
        return keras_loss, True
    if keras_loss is None or isinstance(keras_loss, str):
        return get_loss(keras_loss), False
    import keras

    for cls in LOSSES.values():
        if keras_loss is getattr(keras.losses, cls.name):
            return cls(), False
        if type(keras_loss) is getattr(keras.losses, cls.keras_class):
            return _read_loss_options(cls, keras_loss)
    raise UsageError(
        f"Losses are {', '.join(cls.keras_class for cls in LOSSES.values())}, or their names. Received: "
        f"{getattr(keras_loss, '__name__', type(keras_loss).__name__)}."
    )


def _read_loss_options(cls: type[Loss], keras_loss: Any) -> tuple[Loss, bool]:
    # (get_config of some leaves out what the loss is called with)
    config = {**keras_loss.get_config(), **keras_loss._fn_kwargs}
    for other in ("name", "dtype", "fn"):
        config.pop(other, None)
    logits = bool(config.pop("from_logits", False))
    known = set(cls.list_options())
    used = [k for k, v in config.items() if k not in known and _UNUSED.get(k, v is None) != v]
    if used:
        raise UsageError(
            f"{cls.keras_class} has options that are not supported: {', '.join(used)}. Leave them out."
        )
    options = {k: v for k, v in config.items() if k in known}
    if options["reduction"] == "mean":  # (Keras' other name for it)
        options["reduction"] = MEAN
    return cls(**options), logits
