"""Options of one training, declared once for `fit`, for its job and for the command `train`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self


@dataclass(frozen=True)
class CommandOption:
    """The command's option of a field.

    Attributes:
        usage: the option as in its usage; without a value, it is a flag.
        about: the help text.
        bounds: accepted integers of the command; None for a name or a flag. Jobs have bounds of
            their own (training_job.py).
    """

    usage: str
    about: str
    bounds: tuple[int, int | None] | None = None

    @property
    def argument_name(self) -> str:
        """Name of the option's value among the parsed arguments."""
        return self.usage.partition(" ")[0].removeprefix("--").replace("-", "_")


def _declare_option(default: Any, *option: Any) -> Any:
    return field(default=default, metadata={"option": CommandOption(*option)} if option else {})


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The options of a training that do not depend on its model and its rows.

    The names and defaults are those of `Trainable.fit`, which explains them.
    """

    epochs: int = _declare_option(
        *(1, "--epochs E"),
        "number of epochs (default: 5; for a table as many as give 600 steps)",
        (1, 100_000),
    )
    initial_epoch: int = 0
    steps: int | None = _declare_option(
        *(None, "--steps N"),
        "stop after this number of steps, to measure their cost (default: all)",
        (1, None),
    )
    shuffle: bool = True
    holdout: int = _declare_option(
        *(0, "--holdout N"),
        "number of owners' rows to test on instead of training (default: 0)",
        (0, 10**8),
    )
    seed: int = _declare_option(
        *(1, "--seed SEED"),
        "seed of weights and of the order of rows (default: 1)",
        (0, 1 << 31),
    )
    checkpoint: str | None = _declare_option(
        *(None, "--checkpoint NAME"),
        "store each worker's shares under this name, and resume from there",
    )
    checkpoint_every: int = _declare_option(
        *(100, "--every N"), "number of steps between checkpoints (default: 100)", (1, 10**9)
    )
    restart: bool = _declare_option(False, "--restart", "delete the checkpoint first")
    reveal_loss: bool = _declare_option(
        False, "--reveal-loss", "reveal the mean loss of each epoch"
    )
    guard_every: int = _declare_option(
        *(0, "--guard N"),
        "check every N steps whether weights diverge, which reveals one bit to the workers "
        "each time (default: 0, no check)",
        (0, 10**9),
    )
    check_range: bool | None = None
    prefetch: bool = True
    profile: str = "local"
    trace: bool = False

    @classmethod
    def select_options(cls, values: Mapping[str, Any]) -> Self:
        """Return the options among the arguments of `fit`, or of the command."""
        typed = {name: option.argument_name for name, option in cls.command_options().items()}
        keys = {f.name: f.name if f.name in values else typed.get(f.name, "") for f in fields(cls)}
        return cls(**{name: values[key] for name, key in keys.items() if key in values})

    @classmethod
    def command_options(cls) -> dict[str, CommandOption]:
        """Return the command's options by field."""
        return {f.name: f.metadata["option"] for f in fields(cls) if f.metadata}
