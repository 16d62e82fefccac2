"""Secure three-party computation as TensorFlow graphs, and what it costs."""

from importlib import import_module as _import_module
from pathlib import Path as _Path
from typing import TYPE_CHECKING

_HERE = _Path(__file__).resolve().parent
if not (_HERE / "protocols").is_dir():  # a checkout without symbolic links
    __path__.append(str(_HERE.parent))

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tfe_bench.cluster.client import Client, JobResult, PrivateInput
    from tfe_bench.cluster.jobs import Context, InputSpec, Program
    from tfe_bench.cluster.launch import Cluster, LocalCluster
    from tfe_bench.cluster.simulate import Simulation, simulate
    from tfe_bench.protocols.fixedpoint import FixedPoint
    from tfe_bench.protocols.party import Party
    from tfe_bench.protocols.sharing import Shared

# Loaded at first use: a client needs no TensorFlow, and importing it takes seconds.
_WHERE = {
    "Client": "cluster.client",
    "Cluster": "cluster.launch",
    "Context": "cluster.jobs",
    "FixedPoint": "protocols.fixedpoint",
    "InputSpec": "cluster.jobs",
    "JobResult": "cluster.client",
    "LocalCluster": "cluster.launch",
    "Party": "protocols.party",
    "PrivateInput": "cluster.client",
    "Program": "cluster.jobs",
    "Shared": "protocols.sharing",
    "Simulation": "cluster.simulate",
    "simulate": "cluster.simulate",
}

__all__ = [
    "Client",
    "Cluster",
    "Context",
    "FixedPoint",
    "InputSpec",
    "JobResult",
    "LocalCluster",
    "Party",
    "PrivateInput",
    "Program",
    "Shared",
    "Simulation",
    "__version__",
    "simulate",
]


def __getattr__(name: str) -> object:
    where = _WHERE.get(name)
    if where is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_import_module(f"{__name__}.{where}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
