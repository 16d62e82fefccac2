"""Other systems at the same work on this machine.

A baseline lives in an environment of its own, which the user points to; ours knows only how to
run a script there.  What cannot be run is `Missing` with its reason, never a guess.
"""

from tfe_bench.benchmarks.baselines.base import (
    SIZES,
    WORKLOADS,
    Baseline,
    Measured,
    Missing,
    Request,
)
from tfe_bench.benchmarks.baselines.mp_spdz import MpSpdz
from tfe_bench.benchmarks.baselines.spu import Spu
from tfe_bench.benchmarks.baselines.tf_encrypted import TfEncrypted

__all__ = [
    "SIZES",
    "WORKLOADS",
    "Baseline",
    "Measured",
    "Missing",
    "MpSpdz",
    "Request",
    "Spu",
    "TfEncrypted",
]
