"""Losses: the registry of the modules of this package, and the readers of names and headers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfe_bench import discovery
from tfe_bench.errors import UsageError, did_you_mean
from tfe_bench.models.training.losses.loss import MEAN, Loss

# Options of Keras' losses with one supported value, and that value.
_UNUSED: Mapping[str, Any] = {"axis": -1, "ignore_class": None}

LOSSES = discovery.find_package_classes(__name__, __path__, Loss, "name")


def list_folded_activations() -> set[str]:
    """List the kinds of layers that losses fold in when a model ends in them."""
    return {cls.folded_activation for cls in LOSSES.values()} - {""}


def get_loss(name: Any) -> Loss:
    """Return the loss of a name, with Keras' defaults.

    Raises:
        UsageError: the name is unknown.
    """
    for cls in LOSSES.values():
        if name in (cls.name, cls.keras_class, *cls.aliases):
            return cls()
    raise UsageError(
        f"Expected a loss of {', '.join(LOSSES)}. Received: {name!r}."
        f"{did_you_mean(str(name), LOSSES)}",
        code="unknown-name",
        operation="loss",
        received=name,
    )


def from_header(header: Any) -> Loss:
    """Read the loss of a header, which may come from an untrusted client.

    Raises:
        UsageError: the header is invalid.
    """
    options = dict(header)
    cls = type(get_loss(options.pop("name", None)))
    return cls.from_parameters(options, cls.name)


def read_keras_loss(keras_loss: Any) -> tuple[Loss, bool]:
    """Read a Keras loss or its name; also returns whether it is computed from logits.

    Raises:
        UsageError: the loss, or some of its options, all named, are not supported.
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
        f"Expected a loss of {', '.join(cls.keras_class for cls in LOSSES.values())}, or its name. "
        f"Received: {getattr(keras_loss, '__name__', type(keras_loss).__name__)}.",
        code="unknown-name",
        operation="loss",
        received=getattr(keras_loss, "__name__", type(keras_loss).__name__),
    )


def _read_loss_options(cls: type[Loss], keras_loss: Any) -> tuple[Loss, bool]:
    # (get_config of some losses omits arguments of the wrapped function)
    config = {**keras_loss.get_config(), **keras_loss._fn_kwargs}
    for other in ("name", "dtype", "fn"):
        config.pop(other, None)
    logits = bool(config.pop("from_logits", False))
    known = set(cls.list_options())
    used = [k for k, v in config.items() if k not in known and _UNUSED.get(k, v is None) != v]
    if used:
        raise UsageError(
            f"{cls.keras_class} has options that are not supported: {', '.join(used)}. Leave them "
            "out.",
            code="unsupported-argument",
            operation=cls.keras_class,
            received=", ".join(used),
        )
    options = {k: v for k, v in config.items() if k in known}
    if options["reduction"] == "mean":  # (Keras' synonym)
        options["reduction"] = MEAN
    return cls(**options), logits
