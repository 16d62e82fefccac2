"""tf-encrypted's names on private arrays: its programs run after a change of their import.

`import tfe_bench.tf_encrypted as tfe` starts nothing; three workers start, or are connected to,
with the first private value.  docs/from_tf_encrypted.md lists the differences.
"""

from __future__ import annotations

import importlib
from typing import Any

from tfe_bench import __version__ as __version__
from tfe_bench.errors import UsageError, did_you_mean
from tfe_bench.tf_encrypted import protocol
from tfe_bench.tf_encrypted.config import Config, LocalConfig, RemoteConfig, get_config
from tfe_bench.tf_encrypted.config import set_config as _set_config
from tfe_bench.tf_encrypted.player import DataOwner
from tfe_bench.tf_encrypted.protocol import ABY3, Pond, SecureNN, function
from tfe_bench.tf_encrypted.protocol.protocol import get_protocol, set_protocol

__all__ = [
    "ABY3",
    "Config",
    "DataOwner",
    "LocalConfig",
    "Pond",
    "RemoteConfig",
    "SecureNN",
    "function",
    "get_config",
    "get_protocol",
    "protocol",
    "set_config",
    "set_protocol",
]

# Loaded at first access: the import of Keras takes seconds.
_LATER = ("convert", "keras", "performance", "player", "tensor", "utils")
_NOT_OFFERED = {
    "queue": "A queue of private tensors is a list of them.",
    "serving": "Deployed models serve: python -m tfe_bench deploy (docs/service.md).",
    "operations": "The kernels are tfe_bench's own.",
    "primitives": "The kernels are tfe_bench's own.",
    "Session": "tf-encrypted 0.8 has no sessions either: tensors are revealed directly.",
}


def set_config(config: Config) -> None:
    """Set the configuration; a new protocol is used from now on."""
    _set_config(config)
    set_protocol(ABY3())


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _NOT_OFFERED:
        raise UsageError(
            f"tfe.{name} is not offered. {_NOT_OFFERED[name]}",
            code="unsupported-operation",
            operation=f"tfe.{name}",
        )
    if name.startswith("_"):
        raise AttributeError(name)
    method = getattr(get_protocol(), name, None)
    if callable(method):
        return method
    names = [n for n in dir(ABY3) if not n.startswith("_")]
    raise AttributeError(f"There is no tfe.{name}.{did_you_mean(name, names)}")


set_protocol(ABY3())
