"""Clusters that store shares: with three clients for the service, with one for training."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import Hosts
from tfe_bench import LocalCluster

CLIENTS = ("owner", "hospital", "guest")


def share_parameters(name: str, about: dict[str, Any]) -> dict[str, Any]:
    """Return parameters of stored shares under a name, without permitted clients."""
    return {"name": name, "clients": [], "replace": False, "about": about}


@pytest.fixture(autouse=True)
def first_weights(seed: int) -> None:
    """Seed Keras' random weights of a test's model, so that the printed seed replays them."""
    import keras

    keras.utils.set_random_seed(seed)


@pytest.fixture(autouse=True)
def unchanged_graphs(as_in_a_worker: None) -> None:
    """Apply to all tests of this folder."""


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Provide workers on three hosts; party 2's operator permits no deployment by the guest."""
    three = Hosts(tmp_path_factory.mktemp("service") / "trial", CLIENTS)
    try:
        (three.folder / "worker2.toml").write_text(
            'party = 2\nkey = "party2.key"\nmodels = "kept"\n'
            'allow_programs = ["deploy", "undeploy", "serve"]\n'
            '[[reveal]]\nprogram = "serve"\nto = ["hospital", "owner", "guest"]\n'
            '[[reveal]]\nprogram = "deploy"\nto = ["owner", "hospital"]\n'
            '[[reveal]]\nprogram = "undeploy"\nto = ["*"]\n'
        )
        three.ensure()
        yield three
    finally:
        three.close()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which the workers store their shares."""
    return tmp_path_factory.mktemp("kept") / "models"


@pytest.fixture(scope="session")
def cluster(folder: Path) -> Iterator[LocalCluster]:
    """Provide three workers that store checkpoints."""
    with LocalCluster(models=folder) as local:
        yield local
