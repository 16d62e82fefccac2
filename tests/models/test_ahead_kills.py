"""Workers that are killed at every step of making and of using material: none is used twice."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.cluster.conftest import PATIENCE, Hosts, wait_until
from tests.models.dying_worker import MAKING, STEPS, USING
from tests.models.tiny import draw_pictures, picture_model
from tests.paths import ROOT
from tfe_bench.cluster import spool
from tfe_bench.cluster.launch import Cluster
from tfe_bench.errors import TfeBenchError
from tfe_bench.models.inference import service
from tfe_bench.models.inference.ahead_setting import KEY
from tfe_bench.models.inference.private import PrivateModel


class DyingHosts(Hosts):
    """Workers that die at the step that a test names."""

    def start(self, party: int, *options: str, cluster: Path | None = None) -> None:
        command = ["-m", "tests.models.dying_worker", str(self.folder), "worker"]
        command += ["--party", str(party), "--cluster", str(self.cluster), *options]
        self._runs[party] = self.cluster
        with (self.folder / f"party{party}.log").open("wb") as out:
            self.workers[party] = self.processes.start(*command, out=out, cwd=str(ROOT))

    def die_at(self, party: int, step: str) -> None:
        (self.folder / f"die.{party}").write_text(step)

    def has_died(self, party: int) -> bool:
        return self.workers[party].poll() is not None

    def restart(self, party: int) -> None:
        """Start a worker that has died."""
        (self.folder / f"die.{party}").unlink()
        del self.workers[party], self._runs[party]
        self.ensure()

    def spool_folder(self, party: int) -> Path:
        [folder] = self.folder.glob(f"models{party}")
        return folder / spool.FOLDER

    def used(self, party: int) -> list[str]:
        file = self.folder / f"used.{party}"
        return file.read_text().split() if file.exists() else []

    def check_single_use(self) -> None:
        """Check the logs of all three workers: no entry twice, each burnt everywhere before."""
        for party in range(3):
            used = self.used(party)
            assert len(used) == len(set(used)), (party, used)
            assert not (self.folder / f"wrong.{party}").exists()


@pytest.fixture(scope="module")
def dying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DyingHosts]:
    """Provide three workers as processes."""
    three = DyingHosts(tmp_path_factory.mktemp("dying") / "trial", ("owner",))
    try:
        three.ensure()
        yield three
    finally:
        three.close()


@pytest.fixture(scope="module")
def private(dying: DyingHosts) -> PrivateModel:
    model = picture_model()
    with Cluster(dying.cluster, "owner") as opened:
        service.deploy(opened.client, model, "tiny", ahead=1)
    return model


def predict_once(dying: DyingHosts, private: PrivateModel, rng: np.random.Generator) -> list[int]:
    """Predict; return how many entries each worker has used."""
    images = draw_pictures(rng)
    with Cluster(dying.cluster, "owner") as opened:
        outputs, result = service.predict(opened.client, "tiny", images)
    np.testing.assert_allclose(outputs, private.plain(images), rtol=0, atol=2e-3)
    return [row[KEY]["used"] for row in result.measured]


def wait_ready(dying: DyingHosts) -> None:
    def is_ready() -> bool:
        with Cluster(dying.cluster, "owner") as opened:
            [row] = opened.client.stored()
            return bool(row["ready"] == 1)

    wait_until(is_ready, "an entry is ready", PATIENCE)


@pytest.mark.parametrize(
    ("step", "victim"),
    [
        pytest.param(
            step,
            p,
            marks=[] if p == i % 3 and step in ("unlinked", "message") else [pytest.mark.slow],
        )
        for i, step in enumerate(STEPS)
        for p in ((i % 3,) if step in MAKING else range(3))
    ],
)
def test_a_killed_worker_leads_to_no_second_use(
    step: str, victim: int, dying: DyingHosts, private: PrivateModel, rng: np.random.Generator
) -> None:
    dying.ensure()
    if step in USING:
        predict_once(dying, private, rng)
        wait_ready(dying)
    backup = dying.folder / "backup"
    shutil.rmtree(backup, ignore_errors=True)
    if dying.spool_folder(victim).exists():
        shutil.copytree(dying.spool_folder(victim), backup)
    dying.die_at(victim, step)
    try:
        predict_once(dying, private, rng)
        outcome = "done"
    except TfeBenchError as error:
        outcome = type(error).__name__
    wait_until(lambda: dying.has_died(victim), f"party {victim} dies at {step}", PATIENCE)
    # A prediction is either right, or ends with the worker.
    assert outcome in ("done", "PeerLost", "ClusterError"), outcome
    left = {path.name for path in dying.spool_folder(victim).glob("*")}
    if step in USING[1:]:
        assert not left & {f"{name}{spool.SUFFIX}" for name in dying.used(victim)}
    # The victim's folder as it was before: its files are removed at the start, as their keys ended.
    if backup.exists():
        shutil.copytree(backup, dying.spool_folder(victim), dirs_exist_ok=True)
    dying.restart(victim)
    assert not [*dying.spool_folder(victim).glob("*")]
    for _ in range(2):
        predict_once(dying, private, rng)
        wait_ready(dying)
        time.sleep(0.2)
    assert predict_once(dying, private, rng) == [1, 1, 1]
    dying.check_single_use()
