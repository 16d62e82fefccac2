"""TF Encrypted, in the user's environment: ABY3, its local server."""

from __future__ import annotations

from tfe_bench.benchmarks.baselines.base import VenvBaseline


class TfEncrypted(VenvBaseline):
    """TF Encrypted with all parties in one process."""

    name, package, option = "tf-encrypted", "tf_encrypted", "--tf-encrypted-env"
