"""Optimizers: which there are, by the modules of this package, and how they are read: from Keras,
from a name, from a header."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from tfe_bench.errors import UsageError, did_you_mean, unknown_name
from tfe_bench.models.kinds import discovery
from tfe_bench.models.training import schedules
from tfe_bench.models.training.optimizers.optimizer import Optimizer
from tfe_bench.models.training.schedules import Schedule

# What Keras' optimizers have besides, and what to do instead.
_REFUSED = {
    "gradient_accumulation_steps": "A batch that is as many times larger gives the same gradients",
    "loss_scale_factor": "Fixed point needs none",
}
_EMA = ("ema_momentum", "ema_overwrite_frequency")


KINDS = discovery.find_classes(__name__, __path__, Optimizer, "kind")
NAMES: dict[str, tuple[type[Optimizer], Mapping[str, Any]]] = {
    cls.kind: (cls, {}) for cls in KINDS.values()
}
for _cls in KINDS.values():
    NAMES.update({name: (_cls, options) for name, options in _cls.aliases.items()})


def from_name(name: str) -> Optimizer:
    """The optimizer that a name means, with Keras' defaults.

    Raises:
        UsageError: there is none.
    """
    if name not in NAMES:
        raise UsageError(
            f"Optimizers are {', '.join(NAMES)}. Received: {name!r}.{did_you_mean(name, NAMES)}"
        )
    cls, options = NAMES[name]
    return cls(Schedule("constant", {"rate": cls.usual_rate}), **options)


def from_header(header: Mapping[str, Any]) -> Optimizer:
    """The optimizer of a header, which may come from a stranger.

    Raises:
        UsageError: it is none.
    """
    settings = dict(header)
    name, rates = settings.pop("name", None), dict(settings.pop("schedule", {}))
    cls = KINDS.get(name) if isinstance(name, str) else None
    if cls is None:
        raise unknown_name(f"An optimizer is of an unknown kind. Received: {name!r}.", name, KINDS)
    unknown_settings = sorted(set(settings) - {setting.name for setting in fields(cls)})
    if unknown_settings:
        raise UsageError(
            f"An optimizer {name} has no such settings: {', '.join(unknown_settings)}."
        )
    undecayed = tuple(settings.pop("undecayed", ()))
    return cls(Schedule(rates.pop("kind", None), rates), undecayed=undecayed, **settings)


def read_keras_optimizer(optimizer: Any, variables: Mapping[str, Any] | None = None) -> Optimizer:
    """An Optimizer from a Keras optimizer object, or from a name with Keras' defaults.

    Args:
        variables: Keras' weights by key, of which some may be excluded from decay.

    Raises:
        UsageError: another optimizer, or options that are not supported, all of them named.
    """
    if isinstance(optimizer, Optimizer):
        return optimizer
    if isinstance(optimizer, str):
        return from_name(optimizer.lower())
    import keras

    classes = {
        getattr(keras.optimizers, n): cls for cls in KINDS.values() for n in cls.keras_classes
    }
    cls = classes.get(type(optimizer))
    if cls is None:
        raise UsageError(
            f"Optimizers are {', '.join(c.__name__ for c in classes)} of keras.optimizers, or "
            f"names ({', '.join(NAMES)}). Received: {type(optimizer).__name__}."
        )
    config = {key: schedules.to_json_value(value) for key, value in optimizer.get_config().items()}
    config.pop("name", None)
    schedule = schedules.read_keras_schedule(config.pop("learning_rate"))
    _check_options(cls, type(optimizer).__name__, config)
    settings = {s.name: config[s.name] for s in fields(cls) if s.name in config}
    # Keras takes 0 for none
    for name in ("clipnorm", "global_clipnorm", "clipvalue"):
        settings[name] = settings[name] or None
    settings["weight_decay"] = settings["weight_decay"] or 0.0
    if not settings["use_ema"]:
        settings = {key: value for key, value in settings.items() if key not in _EMA}
    decays = settings["weight_decay"] > 0
    return cls(
        schedule, undecayed=_find_undecayed(optimizer, variables) if decays else (), **settings
    )


def _check_options(cls: type[Optimizer], name: str, config: Mapping[str, Any]) -> None:
    """Refuses options that are not supported, all of them named."""
    known = {setting.name for setting in fields(cls)}
    reasons = {key: reason for key, reason in _REFUSED.items() if config.get(key) is not None}
    for key, (value, reason) in cls.fixed_options.items():
        if config.get(key, value) != value:
            reasons[key] = reason
    for key in sorted(set(config) - known - set(_REFUSED) - set(cls.fixed_options)):
        reasons[key] = "It is unknown here"
    if reasons:
        explanation = " ".join(f"{reason} ({key})." for key, reason in sorted(reasons.items()))
        raise UsageError(
            f"{name} has options that are not supported: {', '.join(sorted(reasons))}. {explanation}"
        )


def _find_undecayed(optimizer: Any, variables: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Keys of the weights that Keras' exclude_from_weight_decay has named."""
    names = ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern")
    if not any(getattr(optimizer, name, None) for name in names):
        return ()
    if variables is None:
        raise UsageError(
            "Weights are excluded from decay in a Keras model. Received: a model without variables."
        )
    return tuple(key for key, v in variables.items() if not optimizer._use_weight_decay(v))
