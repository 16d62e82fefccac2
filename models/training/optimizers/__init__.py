"""Optimizers: which there are, by the modules of this package, and how they are read: from Keras,
from a name, from a header."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from tfe_bench.errors import UsageError, did_you_mean, unknown
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


KINDS = discovery.classes(__name__, __path__, Optimizer, "kind")
NAMES: dict[str, tuple[type[Optimizer], Mapping[str, Any]]] = {
    cls.kind: (cls, {}) for cls in KINDS.values()
}
for _cls in KINDS.values():
    NAMES.update({name: (_cls, options) for name, options in _cls.aliases.items()})


def of_name(name: str) -> Optimizer:
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


def of(header: Mapping[str, Any]) -> Optimizer:
    """The optimizer of a header, which may come from a stranger.

    Raises:
        UsageError: it is none.
    """
    rest = dict(header)
    name, rates = rest.pop("name", None), dict(rest.pop("schedule", {}))
    cls = KINDS.get(name) if isinstance(name, str) else None
    if cls is None:
        raise unknown(f"An optimizer is of an unknown kind. Received: {name!r}.", name, KINDS)
    strange = sorted(set(rest) - {setting.name for setting in fields(cls)})
    if strange:
        raise UsageError(f"An optimizer {name} has no such settings: {', '.join(strange)}.")
    undecayed = tuple(rest.pop("undecayed", ()))
    return cls(Schedule(rates.pop("kind", None), rates), undecayed=undecayed, **rest)


def of_keras(given: Any, variables: Mapping[str, Any] | None = None) -> Optimizer:
    """An Optimizer from a Keras optimizer object, or from a name with Keras' defaults.

    Args:
        variables: Keras' weights by key, of which some may be excluded from decay.

    Raises:
        UsageError: another optimizer, or options that are not supported, all of them named.
    """
    if isinstance(given, Optimizer):
        return given
    if isinstance(given, str):
        return of_name(given.lower())
    import keras

    classes = {getattr(keras.optimizers, n): cls for cls in KINDS.values() for n in cls.classes}
    cls = classes.get(type(given))
    if cls is None:
        raise UsageError(
            f"Optimizers are {', '.join(c.__name__ for c in classes)} of keras.optimizers, or "
            f"names ({', '.join(NAMES)}). Received: {type(given).__name__}."
        )
    config = {key: schedules.plain(value) for key, value in given.get_config().items()}
    config.pop("name", None)
    schedule = schedules.of_keras(config.pop("learning_rate"))
    _refuse(cls, type(given).__name__, config)
    settings = {s.name: config[s.name] for s in fields(cls) if s.name in config}
    # Keras takes 0 for none
    for name in ("clipnorm", "global_clipnorm", "clipvalue"):
        settings[name] = settings[name] or None
    settings["weight_decay"] = settings["weight_decay"] or 0.0
    if not settings["use_ema"]:
        settings = {key: value for key, value in settings.items() if key not in _EMA}
    decays = settings["weight_decay"] > 0
    return cls(schedule, undecayed=_undecayed(given, variables) if decays else (), **settings)


def _refuse(cls: type[Optimizer], name: str, config: Mapping[str, Any]) -> None:
    """Refuses options that are not supported, all of them named."""
    known = {setting.name for setting in fields(cls)}
    why = {key: reason for key, reason in _REFUSED.items() if config.get(key) is not None}
    for key, (value, reason) in cls.only.items():
        if config.get(key, value) != value:
            why[key] = reason
    for key in sorted(set(config) - known - set(_REFUSED) - set(cls.only)):
        why[key] = "It is unknown here"
    if why:
        told = " ".join(f"{reason} ({key})." for key, reason in sorted(why.items()))
        raise UsageError(
            f"{name} has options that are not supported: {', '.join(sorted(why))}. {told}"
        )


def _undecayed(given: Any, variables: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Keys of the weights that Keras' exclude_from_weight_decay has named."""
    names = ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern")
    if not any(getattr(given, name, None) for name in names):
        return ()
    if variables is None:
        raise UsageError(
            "Weights are excluded from decay in a Keras model. Received: a model without variables."
        )
    return tuple(key for key, v in variables.items() if not given._use_weight_decay(v))
