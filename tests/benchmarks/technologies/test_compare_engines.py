"""Every technology of the comparison computes the jobs, at the smallest sizes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfe_bench.__main__ import main
from tfe_bench.benchmarks.technologies.compare import makers, table, tasks
from tfe_bench.benchmarks.technologies.compare.encrypted import Homomorphic, Storage
from tfe_bench.benchmarks.technologies.compare.networks import Networks
from tfe_bench.benchmarks.technologies.compare.plaintext import Plaintext
from tfe_bench.benchmarks.technologies.compare.secret_sharing import SecretSharing
from tfe_bench.benchmarks.technologies.compare.tasks import (
    ComparedTask,
    ComparisonEffort,
    ComparisonInputs,
)
from tfe_bench.benchmarks.technologies.homomorphic import model
from tfe_bench.benchmarks.technologies.measurement import Measurement
from tfe_bench.cluster import launch
from tfe_bench.models.datasets.mnist import Mnist

_MNIST = Path(os.environ.get("TFE_BENCH_MNIST", "../shared/data/mnist"))
EFFORT = ComparisonEffort(repeat=1, values=16, steps=1, images=4)


@pytest.fixture(scope="module")
def inputs() -> ComparisonInputs:
    """Return random pictures."""
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (384, 28, 28)).astype(np.uint8)
    labels = rng.integers(0, 10, 384).astype(np.uint8)
    result = ComparisonInputs()
    result.__dict__["pictures"] = Mnist(images, labels, images, labels, "made up")
    return result


@pytest.fixture(scope="module")
def models(inputs: ComparisonInputs) -> Networks:
    """Return networks with untrained weights for inference."""
    result = Networks(inputs)
    result.__dict__["inference_model"] = model.made_up_mnist_model(1)
    return result


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with launch.LocalCluster() as local:
        yield local


def test_plaintext_and_three_workers_do_every_job(
    inputs: ComparisonInputs, models: Networks, cluster: Any
) -> None:
    plain = Plaintext(EFFORT, inputs, models)
    shares = SecretSharing(cluster, EFFORT, inputs, models)
    every = tasks.list_tasks(EFFORT)
    chosen = [task for task in every if task.label not in ("J2 batch 64", "J3 batch 64")]
    for task in [*chosen, ComparedTask("J3", "batch 2", 2)]:
        ours, theirs = shares.measure_task(task), plain.measure_task(task)
        trained = task.job in ("J5", "J7")
        assert ours.correct is (None if trained else True), task
        assert ours.figures["total_bytes"] > theirs.figures["total_bytes"]
        assert ours.figures["rounds"] > theirs.figures["rounds"] == 2
        assert ours.figures["between_bytes"] > 0 == theirs.figures["between_bytes"]
        assert ours.figures["leakage"] == "nothing" and theirs.figures["leakage"] == "the inputs"
        assert ("extrapolated" in ours.figures) == (task.job == "J5")
        assert ("latency_seconds" in ours.modeled) == (task.job == "J5")
        for m in (ours, theirs):
            assert (
                min(table.technology_cell_seconds(m, name) or 0 for name in ("local", "lan", "wan"))
                > 0
            )
            assert Measurement.from_json(m.to_json()) == m


def test_a_network_agrees_with_itself_in_keras(models: Networks) -> None:
    pictures, _ = models.load_test(5)
    ours = models.inference_model.compute_logits(pictures)
    theirs = models.keras_inference().predict(pictures[..., None], verbose=0)
    np.testing.assert_allclose(theirs, ours, atol=1e-3 * np.abs(ours).max())


def test_homomorphic_encryption_and_a_device_do_the_network(
    inputs: ComparisonInputs, models: Networks, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("seal")
    from tfe_bench.models.datasets import mnist

    monkeypatch.setattr(mnist, "load", lambda _: inputs.pictures)
    encrypted = Homomorphic(EFFORT, inputs, models)
    task = ComparedTask("J3", "batch 1", 1)
    result = encrypted.measure_task(task)
    assert result.correct is True and result.figures["rounds"] == 2
    assert result.figures["security_bits"] >= 128 and result.figures["key_bytes"] > 1e6
    projected = Storage(encrypted).measure_task(task)
    assert projected.seconds is None and "latency_seconds" in projected.modeled
    # the model: the device reads weights and keys once, at 8 GB/s, and computes faster than this
    # machine
    assert projected.figures["device_seconds"] < result.figures["evaluate_seconds"]
    assert projected.figures["device_seconds"] > projected.figures["key_bytes"] / 8e9


@pytest.mark.parametrize("job", ["J4", "J5", "J6", "J7"])
def test_what_a_technology_cannot_do_is_said(
    job: str, inputs: ComparisonInputs, models: Networks
) -> None:
    pytest.importorskip("seal")
    encrypted = Homomorphic(EFFORT, inputs, models)
    for task in tasks.list_tasks(EFFORT, [job]):
        reason = Storage(encrypted).measure_task(task).figures["unsupported"]
        assert "J3" in str(reason)
        if task.label not in ("J4 exp of 16", "J4 sigmoid of 16"):
            assert len(str(encrypted.measure_task(task).figures["unsupported"])) > 40


def test_functional_encryption_says_what_leaks(inputs: ComparisonInputs, models: Networks) -> None:
    engine = makers.all_of(EFFORT, inputs, lambda: None)["functional"]()
    measured = engine.measure_task(ComparedTask("J1", "", 1))
    assert measured.correct is True and measured.figures["leakage"] == "the results"
    assert measured.figures["key_rank"] == 1 and measured.figures["rounds"] == 1
    for job in ("J4", "J5", "J6"):
        for task in tasks.list_tasks(EFFORT, [job]):
            assert "unsupported" in engine.measure_task(task).figures


@pytest.mark.slow
def test_the_quick_table_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    if not _MNIST.is_dir():
        pytest.skip("MNIST is not here")
    assert main(["technologies", "--quick", "--data-dir", str(_MNIST), "--json"]) == 0
    measurements = [Measurement.from_json(line) for line in capsys.readouterr().out.splitlines()]
    assert len(measurements) == 12 * 5
    assert not any(m.correct is False for m in measurements)
    supported = {(m.job, m.technology) for m in measurements if "unsupported" not in m.figures}
    assert {job for job, name in supported if name == "secret-sharing"} == set(tasks.JOBS)
    assert {job for job, name in supported if name == "homomorphic"} == {"J1", "J2", "J3", "J4"}
    assert {job for job, name in supported if name == "functional"} == {"J1", "J2", "J3", "J7"}
    assert {job for job, name in supported if name == "storage"} == {"J3"}
    network = [m for m in measurements if m.job == "J3" and "accuracy" in m.figures]
    assert len(network) >= 4
    for m in network:
        assert m.figures["accuracy"] >= 0.9
    leaky = {m.job for m in measurements if m.figures.get("leakage") == "the inputs"}
    assert leaky == set(tasks.JOBS)  # plaintext leaks
    lenet = [m for m in measurements if m.technology == "functional" and m.job in ("J3", "J7")]
    assert {m.figures["leakage"] for m in lenet} == {"the inputs"}
    assert all(json.loads(m.to_json()) for m in measurements)
