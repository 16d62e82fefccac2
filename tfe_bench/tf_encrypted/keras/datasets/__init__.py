"""Data sets in batches, for tf-encrypted's example programs."""

from __future__ import annotations

from tfe_bench.tf_encrypted.keras.datasets.logistic_artificial import LogisticArtificialDataset
from tfe_bench.tf_encrypted.keras.datasets.mnist import HMnistDataset, MnistDataset, VMnistDataset

__all__ = ["HMnistDataset", "LogisticArtificialDataset", "MnistDataset", "VMnistDataset"]
