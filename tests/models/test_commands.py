"""Commands of models: refusals before any worker starts, and one complete run."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.cluster.conftest import Hosts
from tests.commands import check_failure
from tfe_bench.__main__ import main
from tfe_bench.cli import stored_objects
from tfe_bench.cli.resnet50 import choose_slice


def _write_picture(path: Path, shape: tuple[int, ...] = (40, 30, 3)) -> Path:
    import tensorflow as tf

    pixels = np.random.default_rng(3).integers(0, 256, shape, np.uint8)
    path.write_bytes(tf.io.encode_png(pixels).numpy())
    return path


def test_networks_of_the_zoo_are_refused_with_bad_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    (tmp_path / "broken.h5").write_bytes(b"no weights")
    picture = str(_write_picture(tmp_path / "cat.png"))
    for code, word, arguments in (
        (2, "--batch from 1 to 10000", ("resnet50", "--batch", "0")),
        (
            2,
            "[number-out-of-range]",
            ("resnet50", "--batch", "1", "--image", picture, "--image", picture),
        ),
        (2, '"vgg19"', ("infer", "vgg18")),
        (2, "--seed", ("resnet50", "--seed", "-1")),
        (2, "[number-out-of-range]", ("infer", "network-a", "--train", "1")),
        (2, "[unsupported-argument]", ("infer", "network-a", "--weights", "imagenet")),
        (2, "[option-not-applicable]", ("infer", "vgg19", "--data-dir", str(tmp_path))),
        (2, "[option-not-applicable]", ("infer", "vgg16-cifar", "--data-dir", str(tmp_path))),
        (10, "[file-not-found]", ("infer", "network-a", "--data-dir", str(tmp_path))),
        (10, "broken.jpg", ("resnet50", "--image", str(tmp_path / "broken.jpg"))),
        (10, "none.jpg", ("resnet50", "--image", str(tmp_path / "none.jpg"))),
        (10, "broken.h5", ("infer", "network-b", "--weights", str(tmp_path / "broken.h5"))),
        (10, "none.h5", ("infer", "network-b", "--weights", str(tmp_path / "none.h5"))),
        (2, "--repeat", ("infer", "network-b", "--repeat", "0")),
        (2, "profile", ("infer", "network-b", "--profile", "moon")),
        (2, "[number-out-of-range]", ("infer", "bert-tiny", "--tokens", "1")),
        (2, "[option-not-applicable]", ("infer", "vit-b16", "--tokens", "8")),
        (2, "[option-not-applicable]", ("infer", "bert-tiny", "--image", picture)),
        (2, "[unknown-name]", ("infer", "bert-tiny", "--activations", "fast")),
        (2, "[unsupported-argument]", ("infer", "bert-tiny", "--weights", "imagenet")),
        (2, "--tokens", ("generate", "gpt2-tiny", "--tokens", "0")),
        (2, "--new", ("generate", "gpt2-tiny", "--new", "0")),
        (2, "--texts", ("generate", "gpt2-tiny", "--texts", "65")),
        (2, "[too-large]", ("generate", "gpt2-tiny", "--tokens", "120", "--new", "9")),
        (2, "[conflicting-options]", ("generate", "gpt2", "--prompt", "1", "--tokens", "2")),
        (2, "[malformed-option]", ("generate", "gpt2-tiny", "--prompt", "1,2,97")),
        (2, "[malformed-option]", ("generate", "gpt2-tiny", "--prompt", " ")),
        (2, "[malformed-option]", ("generate", "gpt2-tiny", "--prompt", "1,-2")),
        (2, "--seed", ("generate", "gpt2-tiny", "--seed", "-1")),
        (2, "profile", ("generate", "gpt2-tiny", "--profile", "moon")),
        (2, "temperature", ("generate", "gpt2-tiny", "--temperature", "-1")),
        (2, "temperature", ("generate", "gpt2-tiny", "--temperature", "8.5")),
        (2, "temperature", ("generate", "gpt2-tiny", "--temperature", "nan")),
    ):
        check_failure(capsys, code, word, *arguments)


@pytest.mark.parametrize("keeps", [False, True], ids=["no store", "a local store"])
def test_a_misspelt_model_of_texts_is_named_with_and_without_a_local_store(
    keeps: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    if keeps:
        stored_objects.local_workers_folder().mkdir(parents=True)
    check_failure(capsys, 2, 'Did you mean "gpt2"', "generate", "gpt3")


def test_bad_deployments_and_questions_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import keras

    odd = keras.Sequential([keras.Input((8, 4, 2)), keras.layers.ConvLSTM1D(3, 2)])
    odd.save(tmp_path / "odd.keras")
    (tmp_path / "broken.keras").write_bytes(b"no model")
    (tmp_path / "text.npy").write_bytes(b"no numbers")
    where = ("--models", str(tmp_path / "kept"))
    for code, word, arguments in (
        (2, "[invalid-name]", ("deploy", "network-a", "--name", "A/b")),
        (2, "cluster.toml", ("deploy", "network-a", "--name", "a", "--allow", "x y")),
        (2, '"network-a"', ("deploy", "network_a", "--name", "a")),
        (2, "lstm", ("deploy", str(tmp_path / "odd.keras"), "--name", "a")),
        (10, "broken.keras", ("deploy", str(tmp_path / "broken.keras"), "--name", "a")),
        (10, "none.keras", ("deploy", str(tmp_path / "none.keras"), "--name", "a")),
        (
            10,
            "text.npy",
            ("deploy", "network-a", "--name", "a", "--samples", f"{tmp_path}/text.npy"),
        ),
        (
            2,
            "[channel-mismatch]",
            ("deploy", "network-a", "--name", "a", "--preprocessing", "caffe"),
        ),
        (
            2,
            "[option-not-applicable]",
            ("deploy", "bert-tiny", "--name", "a", "--preprocessing", "tf"),
        ),
        (2, "[option-not-applicable]", ("deploy", "network-a", "--name", "a", "--tokens", "8")),
        (2, "[number-out-of-range]", ("deploy", "bert-tiny", "--name", "a", "--tokens", "1")),
        (2, "neither", ("predict", "a")),
        (2, "both", ("predict", "a", "--image", "x", "--input", "y")),
        (2, "[unsupported-file-type]", ("predict", "a", "--image", "x", "--output", "x.txt")),
        (2, "[option-requires-option]", ("predict", "a", "--input", "-")),
        (2, "[option-requires-option]", ("predict", "a", "--input", "x", "--in-flight", "2")),
        (
            2,
            "[conflicting-options]",
            ("predict", "a", "--input", "x", "--stream", "--output", "y.npy"),
        ),
        (2, "--client requires", ("models", "--client", "owner")),
    ):
        check_failure(capsys, code, word, *arguments, *where)
    assert not (tmp_path / "kept").exists()


def test_owners_deploy_and_clients_ask_by_commands(
    hosts: Hosts,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    where = ("--cluster", str(hosts.cluster), "--json", "--client")

    def run(client: str, *arguments: str) -> object:
        code = main([*arguments, *where, client])
        out, err = capsys.readouterr()
        assert code == 0, err
        return json.loads(out)

    deployed = run("owner", "deploy", "network-a", "--name", "digits", "--allow", "hospital")
    assert (
        isinstance(deployed, dict)
        and deployed["parameters"] == 118_282
        and "seeded" in deployed["weights"]
    )
    listing = run("hospital", "models")
    assert isinstance(listing, list)
    [row] = listing
    assert (row["name"], row["owner"], row["clients"]) == ("digits", "owner", None)
    assert row["inputs"] and row["preprocessing"] == "unit" and row["complete"] is True

    picture = _write_picture(tmp_path / "seven.png", (28, 28, 1))
    deployed = run(
        "hospital", "predict", "digits", "--image", str(picture), "--image", str(picture)
    )
    assert isinstance(deployed, dict) and deployed["images"] == ["seven.png"] * 2
    [outputs] = deployed["outputs"]

    from tfe_bench.models import zoo
    from tfe_bench.models.inference import images

    pixels = images.load_picture(picture, (28, 28, 1), "unit")
    expected = np.asarray(zoo.build("network-a").keras(pixels))
    np.testing.assert_allclose(outputs, np.repeat(expected, 2, 0), rtol=0, atol=2e-3)

    np.save(tmp_path / "x.npy", pixels)
    file = tmp_path / "y.npy"
    run("owner", "predict", "digits", "--input", str(tmp_path / "x.npy"), "--output", str(file))
    np.testing.assert_allclose(np.load(file), expected, rtol=0, atol=2e-3)
    assert file.stat().st_mode & 0o777 == 0o600

    there = ("--cluster", str(hosts.cluster), "--client")
    pictures = np.concatenate([pixels * (i / 8) for i in range(9)])
    np.save(tmp_path / "many.npy", pictures)
    sources = (
        ("--input", str(tmp_path / "many.npy"), "--batch", "2"),
        ("--input", str(tmp_path / "many.npy"), "--in-flight", "3"),
        (),
    )
    lines = "".join(f"{json.dumps(picture.tolist())}\n" for picture in pictures)
    expected = np.asarray(zoo.build("network-a").keras(pictures))
    for source in sources:
        monkeypatch.setattr("sys.stdin", io.StringIO(lines))
        assert main(["predict", "digits", "--stream", *source, *there, "hospital"]) == 0
        out, err = capsys.readouterr()
        streamed = [json.loads(line) for line in out.splitlines()]
        np.testing.assert_allclose(streamed, expected, rtol=0, atol=2e-3)
        assert f"9 samples in {5 if '--batch' in source else 9} requests" in err
    check_failure(
        capsys,
        2,
        'Did you mean "digits"',
        "predict",
        "digit",
        "--image",
        str(picture),
        *there,
        "owner",
    )
    check_failure(
        capsys, 2, "stores no model 'digits'", "models", "--remove", "digits", *there, "hospital"
    )
    check_failure(
        capsys, 10, "none.png", "predict", "digits", "--image", "none.png", *there, "owner"
    )
    (tmp_path / "bad.npy").write_bytes(b"x")
    check_failure(
        capsys,
        10,
        "bad.npy",
        "predict",
        "digits",
        "--input",
        f"{tmp_path}/bad.npy",
        *there,
        "owner",
    )
    np.save(tmp_path / "first.npy", pixels.transpose(0, 3, 1, 2))
    check_failure(
        capsys,
        2,
        "channels first",
        "predict",
        "digits",
        "--input",
        f"{tmp_path}/first.npy",
        *there,
        "owner",
    )
    assert main(["predict", "digits", "--image", str(picture), *there, "hospital"]) == 0
    assert "seven.png: " in capsys.readouterr().out
    assert main(["models", *there, "owner"]) == 0
    assert "118,282" in capsys.readouterr().out
    assert run("owner", "models", "--remove", "digits") == {"removed": "digits"}
    assert run("owner", "models") == []


@pytest.mark.slow
def test_local_workers_keep_models_in_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--models", str(tmp_path / "kept"))
    assert main(["deploy", "network-d", "--name", "d", *where]) == 0
    files = sorted(p.relative_to(tmp_path / "kept").parts for p in tmp_path.glob("kept/*/*"))
    assert files == [(f"party{p}", "d.safetensors") for p in range(3)]
    picture = _write_picture(tmp_path / "x.png")
    assert main(["predict", "d", "--image", str(picture), *where]) == 0
    assert "x.png: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("largest", "sizes"),
    [
        (65_536, {1: 1, 32: 32, 39: 39, 40: 32, 64: 32, 192: 32, 10_000: 32}),  # VGG16, CIFAR-10
        (784, {128: 128, 1000: 1000, 10_000: 128}),  # network A
        (802_816, {1: 1, 3: 3, 4: 4, 5: 5, 192: 5}),  # ResNet50
        (3_211_264, {1: 1, 2: 1, 192: 1}),  # VGG19
        (10_000_000, {192: 1}),
    ],
)
def test_a_large_batch_runs_in_slices_of_bounded_size(largest: int, sizes: dict[int, int]) -> None:
    plan: Any = SimpleNamespace(graph=SimpleNamespace(shapes={"a": (largest,), "b": (2,)}))
    assert {batch: choose_slice(plan, batch) for batch in sizes} == sizes
    assert all(s == 1 or s * largest <= 1 << 22 for s in sizes.values())


@pytest.mark.slow
def test_a_batch_of_slices_predicts_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("infer", "vgg16-cifar", "--batch", "40", "--repeat", "1", "--json")
    assert main([*arguments]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["correct"] is True and document["agreement"]["samples"] == 40
    assert document["parameters"]["at_once"] == 32
    assert max(document["peak_memory"]) < 4e9


@pytest.mark.slow
def test_a_prediction_is_measured_and_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "r.jsonl"
    arguments = ("--batch", "2", "--repeat", "2", "--record", str(record))
    assert main(["infer", "network-d", *arguments]) == 0
    assert "agreement" in capsys.readouterr().out
    document = json.loads(record.read_text())
    assert document["workload"] == "network-d" and document["correct"] is True
    assert document["parameters"]["weights"].startswith("seeded")
    assert document["agreement"]["top1"] == 1.0 and document["agreement"]["samples"] == 2


_MNIST = Path(os.environ.get("TFE_BENCH_MNIST", "../shared/data/mnist"))


@pytest.mark.slow
@pytest.mark.skipif(not _MNIST.is_dir(), reason="set TFE_BENCH_MNIST to a folder of MNIST")
@pytest.mark.parametrize("name", ["network-a", "network-d"])
def test_a_trained_network_is_as_accurate_as_in_plaintext(name: str, tmp_path: Path) -> None:
    record = tmp_path / "r.jsonl"
    arguments = ("--data-dir", str(_MNIST), "--train", "1", "--batch", "10000", "--repeat", "1")
    assert main(["infer", name, *arguments, "--record", str(record)]) == 0
    agreement = json.loads(record.read_text())["agreement"]
    print(agreement)
    assert agreement["samples"] == 10_000 and agreement["plain_accuracy"] > 0.93
    assert abs(agreement["accuracy"] - agreement["plain_accuracy"]) <= 0.002


@pytest.mark.slow
def test_texts_are_answered_as_in_keras(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tfe_bench.models import zoo

    arguments = ("infer", "bert-tiny", "--tokens", "16", "--batch", "3", "--repeat", "1", "--json")
    assert main([*arguments]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["parameters"]["tokens"] == 16 and record["parameters"]["activations"] == "series"
    assert record["correct"] and record["agreement"]["top1"] == 1
    assert record["max_error"] < 0.005

    where = ("--models", str(tmp_path / "kept"))
    assert main(["deploy", "bert-tiny", "--name", "texts", "--tokens", "16", *where]) == 0
    built = zoo.build("bert-tiny", tokens=16)
    samples = zoo.samples(built.entry, 5, 2, tokens=16)
    np.savez(tmp_path / "x.npz", **samples)
    file = tmp_path / "y.npy"
    requests = ("predict", "texts", "--input", str(tmp_path / "x.npz"), "--output", str(file))
    assert main([*requests, *where]) == 0
    expected = np.asarray(built.keras(samples, training=False))
    np.testing.assert_allclose(np.load(file), expected, rtol=0, atol=5e-3)
    capsys.readouterr()
    wrong = {**samples, "padding_mask": samples["padding_mask"] * 2}
    np.savez(tmp_path / "z.npz", **wrong)
    requests = ("predict", "texts", "--input", f"{tmp_path}/z.npz", *where)
    check_failure(capsys, 2, "a mask of 0 and 1", *requests)
