"""Other systems at the same work on this machine.

A peer lives in an environment of its own, which the user points to; ours knows only how to run a
script there.  What cannot be run is `Missing` with its reason, never a guess.
"""

from tfe_bench.benchmarks.peers.base import SIZES, WORKLOADS, Measured, Missing, Peer, Request
from tfe_bench.benchmarks.peers.mp_spdz import MpSpdz
from tfe_bench.benchmarks.peers.spu import Spu
from tfe_bench.benchmarks.peers.tf_encrypted import TfEncrypted

__all__ = [
    "SIZES",
    "WORKLOADS",
    "Measured",
    "Missing",
    "MpSpdz",
    "Peer",
    "Request",
    "Spu",
    "TfEncrypted",
]
