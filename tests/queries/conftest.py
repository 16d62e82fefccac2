"""The clusters and settings of tests/models, for this folder's tests."""

from tests.models.conftest import cluster, first_weights, folder, hosts, unchanged_graphs

__all__ = ["cluster", "first_weights", "folder", "hosts", "unchanged_graphs"]
