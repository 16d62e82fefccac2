"""Optimizers: the registry of this package's modules, and readers of Keras objects and headers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from tfe_bench import discovery
from tfe_bench.errors import UsageError, did_you_mean, unknown_name_error
from tfe_bench.models.training import schedules
from tfe_bench.models.training.optimizers.optimizer import Optimizer
from tfe_bench.models.training.schedules import LearningRateSchedule

# Unsupported options of Keras' optimizers, and what to do instead.
_REFUSED = {
    "gradient_accumulation_steps": "A batch that is as many times larger gives the same gradients",
    "loss_scale_factor": "Fixed point needs none",
}
_EMA = ("ema_momentum", "ema_overwrite_frequency")


KINDS = discovery.find_package_classes(__name__, __path__, Optimizer, "kind")
NAMES: dict[str, tuple[type[Optimizer], Mapping[str, Any]]] = {
    cls.kind: (cls, {}) for cls in KINDS.values()
}
for _cls in KINDS.values():
    NAMES.update({name: (_cls, options) for name, options in _cls.aliases.items()})


def optimizer_from_name(name: str) -> Optimizer:
    """Return the optimizer of a name, with Keras' defaults.

    Raises:
        UsageError: the name is unknown.
    """
    if name not in NAMES:
        raise UsageError(
            f"Expected an optimizer of {', '.join(NAMES)}. Received: {name!r}."
            f"{did_you_mean(name, NAMES)}",
            code="unknown-name",
            operation="optimizer",
            received=name,
        )
    cls, options = NAMES[name]
    return cls(LearningRateSchedule("constant", {"rate": cls.usual_rate}), **options)


def from_header(header: Mapping[str, Any]) -> Optimizer:
    """Read the optimizer of a header, which may come from an untrusted client.

    Raises:
        UsageError: the header is invalid.
    """
    settings = dict(header)
    name = settings.pop("name", None)
    cls = KINDS.get(name) if isinstance(name, str) else None
    if cls is None:
        raise unknown_name_error(
            f"Unknown optimizer. Received: {name!r}.", name, KINDS, operation="optimizer"
        )
    return cls.from_parameters(settings, cls.kind)


def read_keras_optimizer(optimizer: Any, variables: Mapping[str, Any] | None = None) -> Optimizer:
    """Read a Keras optimizer object, or a name with Keras' defaults.

    Args:
        variables: Keras' weights by key; some may be excluded from decay.

    Raises:
        UsageError: the optimizer, or some of its options, all named, are not supported.
    """
    if isinstance(optimizer, Optimizer):
        return optimizer
    if isinstance(optimizer, str):
        return optimizer_from_name(optimizer.lower())
    import keras

    classes = {
        getattr(keras.optimizers, n): cls for cls in KINDS.values() for n in cls.keras_classes
    }
    cls = classes.get(type(optimizer))
    if cls is None:
        raise UsageError(
            f"Expected {', '.join(c.__name__ for c in classes)} of keras.optimizers, or a name "
            f"({', '.join(NAMES)}). Received: {type(optimizer).__name__}.",
            code="unknown-name",
            operation="optimizer",
            received=type(optimizer).__name__,
        )
    config = {
        key: schedules.keras_option_to_json(value) for key, value in optimizer.get_config().items()
    }
    config.pop("name", None)
    schedule = schedules.read_keras_schedule(config.pop("learning_rate"))
    _check_optimizer_options(cls, type(optimizer).__name__, config)
    settings = {s.name: config[s.name] for s in fields(cls) if s.name in config}
    # (0 means none in Keras)
    for name in ("clipnorm", "global_clipnorm", "clipvalue"):
        settings[name] = settings[name] or None
    settings["weight_decay"] = settings["weight_decay"] or 0.0
    if not settings["use_ema"]:
        settings = {key: value for key, value in settings.items() if key not in _EMA}
    decays = settings["weight_decay"] > 0
    return cls(
        schedule,
        undecayed=_find_undecayed_weights(optimizer, variables) if decays else (),
        **settings,
    )


def _check_optimizer_options(cls: type[Optimizer], name: str, config: Mapping[str, Any]) -> None:
    """Refuse options that are not supported; the text names all of them."""
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
            f"{name} has options that are not supported: {', '.join(sorted(reasons))}. "
            f"{explanation}",
            code="unsupported-argument",
            operation=name,
            received=", ".join(sorted(reasons)),
        )


def _find_undecayed_weights(optimizer: Any, variables: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Find the keys of the weights that Keras' exclude_from_weight_decay has named."""
    names = ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern")
    if not any(getattr(optimizer, name, None) for name in names):
        return ()
    if variables is None:
        raise UsageError(
            "Excluding weights from decay requires a Keras model. Received: a model without "
            "variables.",
            code="unsupported-argument",
            operation="exclude_from_weight_decay",
        )
    return tuple(key for key, v in variables.items() if not optimizer._use_weight_decay(v))
