"""The prediction service on three hosts: roles, permissions, restarts and refusals."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cluster.conftest import Hosts
from tests.cluster.stored_files import with_header
from tests.models.conftest import CLIENTS, share_parameters
from tests.models.tiny import draw_pictures, picture_model
from tests.refusals import raises
from tfe_bench.__main__ import main
from tfe_bench.cluster import wire
from tfe_bench.cluster.launch import Cluster
from tfe_bench.cluster.requests import PrivateInput
from tfe_bench.cluster.store import SUFFIX
from tfe_bench.errors import (
    ConfigError,
    DataError,
    PolicyError,
    ProtocolError,
    SecurityError,
    TfeBenchError,
    UsageError,
)
from tfe_bench.models.inference import service
from tfe_bench.models.inference.private import PrivateModel

_WEIGHT = 0.123456  # in each model of these tests


def _make_model(seed: int = 1, scale: float = 1.0) -> PrivateModel:
    return picture_model(seed, scale, _WEIGHT)


def _draw_images(rng: np.random.Generator, batch: int = 2) -> Any:
    return draw_pictures(rng, batch)


@pytest.fixture(scope="module")
def clients(hosts: Hosts) -> Iterator[dict[str, Any]]:
    """Provide the clients of the three roles."""
    opened = {name: Cluster(hosts.cluster, name) for name in CLIENTS}
    yield {name: cluster.client for name, cluster in opened.items()}
    for cluster in opened.values():
        cluster.close()


def _check_predictions(
    client: Any, name: str, private: PrivateModel, rng: np.random.Generator
) -> None:
    images = _draw_images(rng)
    got, result = service.predict(client, name, images)
    np.testing.assert_allclose(got, private.plain(images), rtol=0, atol=2e-3)
    # checked by default
    assert result.outputs["range"].tolist() == [0] * len(images)


def test_owners_deploy_others_predict_and_workers_restart(
    hosts: Hosts, clients: dict[str, Any], rng: np.random.Generator
) -> None:
    private = _make_model()
    service.deploy(clients["owner"], private, "tiny", ["hospital"], preprocessing="unit")
    _check_predictions(clients["hospital"], "tiny", private, rng)
    files = [*hosts.folder.glob(f"models[01]/tiny{SUFFIX}"), hosts.folder / f"kept/tiny{SUFFIX}"]
    assert len(files) == 3
    for file in files:
        assert file.stat().st_mode & 0o777 == 0o600

    # They survive a restart, even of all three workers.
    for party in range(3):
        assert hosts.stop(party) == 0
    hosts.ensure()
    _check_predictions(clients["owner"], "tiny", private, rng)

    listings = {name: service.list_deployed(client) for name, client in clients.items()}
    assert [m.name for m in listings["owner"]] == ["tiny"] == [m.name for m in listings["hospital"]]
    assert listings["guest"] == []
    model = listings["owner"][0]
    assert (model.owner, model.clients, model.complete) == ("owner", ("hospital",), True)
    assert listings["hospital"][0].clients is None and model.preprocessing == "unit"

    # Another model under the name; a request for the old one is refused.
    other = _make_model(5)
    with raises(UsageError, "name-in-use"):
        service.deploy(clients["owner"], other, "tiny")
    service.deploy(clients["owner"], other, "tiny", ["*"], replace=True)
    with raises(UsageError, "deployment-changed"):
        service.predict(clients["hospital"], model, _draw_images(rng))
    for name in CLIENTS:
        _check_predictions(clients[name], "tiny", other, rng)

    for party in range(3):
        log = hosts.log(party)
        assert "0.1234" not in log and "Traceback" not in log
    # Another client's model gives the same error as an unknown one, also for a permitted client.
    for name in ("tiny", "none"):
        with raises(UsageError, "not-stored", operation=name):
            service.undeploy(clients["hospital"], name)
    service.undeploy(clients["owner"], "tiny")
    assert service.list_deployed(clients["owner"]) == []
    assert not any(file.exists() for file in files)


def test_what_is_not_permitted_is_refused_and_the_service_stays_up(
    hosts: Hosts, clients: dict[str, Any], rng: np.random.Generator
) -> None:
    private = _make_model()
    owner, hospital, guest = (clients[name] for name in CLIENTS)
    service.deploy(owner, private, "tiny", ["hospital"], replace=True)
    with raises(PolicyError, "reveal-not-allowed", operation="deploy", received="guest"):
        service.deploy(guest, private, "mine")
    with raises(PolicyError, "name-of-another-client"):
        service.deploy(hospital, private, "tiny", replace=True)
    with raises(UsageError, "model-not-found", operation="tiny"):
        service.predict(guest, "tiny", _draw_images(rng))
    with raises(UsageError, "model-not-found", operation="tinny"):
        service.predict(hospital, "tinny", _draw_images(rng))
    # A client that does not look up the model first is refused by the workers.
    model = service.find(owner, "tiny")
    errors = []
    for name in ("tiny", "none"):
        with raises(UsageError, "name-not-found") as raised:
            service.predict(guest, dataclasses.replace(model, name=name), _draw_images(rng))
        errors.append(str(raised.value)[len("Party 0") :].replace(name, ""))
    assert errors[0] == errors[1]
    with raises(UsageError, "shape-mismatch"):
        service.predict(hospital, "tiny", rng.uniform(0, 1, (2, 1, 6, 6)))
    with raises(TfeBenchError, "not-finite"):
        service.predict(hospital, "tiny", np.full((1, 6, 6, 1), np.nan))
    image = PrivateInput(np.zeros((1, 6, 6, 1), np.int64), 16)
    parameters = {"name": "tiny", "deployment": model.deployment, "profile": "local"}
    bad: list[tuple[dict[str, Any], dict[str, PrivateInput], str]] = [
        ({"name": "../tiny"}, {"x": image}, "invalid-name"),
        ({"name": "none"}, {"x": image}, "name-not-found"),
        ({"profile": "moon"}, {"x": image}, "unknown-name"),
        ({"more": 1}, {"x": image}, "unknown-option"),
        ({"deployment": "0" * 32}, {"x": image}, "deployment-changed"),
        ({}, {}, "unexpected-inputs"),
        ({}, {"x": image}, "unexpected-inputs"),
    ]
    for changed, inputs, code in bad:
        with raises(UsageError, code):
            hospital.run("serve", {**parameters, **changed}, inputs)
    [name] = ["input0"]
    for unfit in (
        PrivateInput(np.zeros((1, 6, 5, 1), np.int64), 16),
        PrivateInput(np.zeros((1, 6, 6, 1), np.int64), 12),
        PrivateInput(np.zeros((0, 6, 6, 1), np.int64), 16),
    ):
        with raises(UsageError, "shape-mismatch", "scale-mismatch", "unexpected-inputs"):
            hospital.run("serve", parameters, {name: unfit})
    _check_predictions(hospital, "tiny", private, rng)
    service.undeploy(owner, "tiny")


def test_bad_deployments_are_refused_before_anything_is_kept(
    hosts: Hosts, clients: dict[str, Any]
) -> None:
    private = _make_model()
    owner = clients["owner"]
    about = {
        "plan": private.plan.to_header(),
        "bounds": private.bounds,
        "preprocessing": None,
    }
    good = share_parameters("bad", about)
    vector = private.shared_weights()
    for changed in (
        {"name": "Bad"},
        {"clients": "hospital"},
        {"clients": ["a b"]},
        {"replace": 1},
        {"deployment": "x"},
        {"about": {"plan": {}, "bounds": private.bounds, "preprocessing": None}},
        {"about": {**about, "bounds": {}}},
        {"about": {**about, "bounds": dict.fromkeys(private.bounds, -1.0)}},
        {"about": {**about, "preprocessing": "magic"}},
        {"about": {**about, "code": "x"}},
        {"else": 1},
    ):
        with pytest.raises((UsageError, DataError)):
            owner.run("deploy", {**good, **changed}, vector)
    with raises(UsageError, "unexpected-inputs"):
        owner.run("deploy", good, {**vector, "weights0": PrivateInput(np.zeros(3, np.int64))})
    assert "bad" not in [m.name for m in service.list_deployed(owner)]


def test_damaged_and_foreign_files_are_told_and_others_still_served(
    hosts: Hosts, clients: dict[str, Any], rng: np.random.Generator
) -> None:
    owner = clients["owner"]
    private, other = _make_model(), _make_model(5)
    service.deploy(owner, private, "tiny", replace=True)
    service.deploy(owner, other, "other", replace=True)
    path, backup = (hosts.folder / f"models1/{n}{SUFFIX}" for n in ("tiny", "other"))
    whole = path.read_bytes()

    path.write_bytes(whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:])
    with raises(ConfigError, "file-damaged", operation="tiny.safetensors", party=1):
        service.predict(owner, "tiny", _draw_images(rng))
    path.write_bytes(backup.read_bytes())
    with pytest.raises((SecurityError, UsageError)):
        service.predict(owner, "tiny", _draw_images(rng))
    path.unlink()
    with raises(UsageError, "deployment-mismatch"):
        service.predict(owner, "tiny", _draw_images(rng))

    # A complete file of this name with shares under other masks.
    model = service.find(owner, "other")
    path.write_bytes(whole)
    path.chmod(0o600)
    spoilt = backup.read_bytes()
    service.deploy(owner, other, "other", replace=True)
    fresh = service.find(owner, "other").deployment
    backup.write_bytes(spoilt.replace(model.deployment.encode(), fresh.encode()))
    backup.chmod(0o600)
    with raises(ProtocolError, "shares-mismatch"):
        service.predict(owner, "other", _draw_images(rng))

    _check_predictions(owner, "tiny", private, rng)
    service.deploy(owner, other, "other", replace=True)
    _check_predictions(owner, "other", other, rng)
    for name in ("tiny", "other"):
        service.undeploy(owner, name)


def test_models_of_an_earlier_version_are_listed_named_and_replaced(
    hosts: Hosts,
    clients: dict[str, Any],
    rng: np.random.Generator,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Check docs/backup.md on upgrades: one such model does not hide others."""
    owner, private = clients["owner"], _make_model()
    for name in ("other", "tiny"):
        service.deploy(owner, private, name, ["hospital"], replace=True)

    def older(_: dict[str, Any], ours: dict[str, Any]) -> None:
        header = ours["about"]["plan"]["graph"]
        header["format"], header["inputs"] = 1, dict(header["inputs"])

    paths = [hosts.folder / folder / f"tiny{SUFFIX}" for folder in ("models0", "models1", "kept")]
    for path in paths:
        path.write_bytes(with_header(path.read_bytes(), older))
    for client in ("owner", "hospital"):
        listing = {each.name: each for each in service.list_deployed(clients[client])}
        assert set(listing) == {"other", "tiny"} and listing["other"].private.graph.weight_count > 0
        names: list[str | service.DeployedModel] = ["tiny", listing["tiny"]]
        for model in names:
            with raises(DataError, "format-mismatch", received=1, names=("'tiny'", "--replace")):
                service.predict(clients[client], model, _draw_images(rng))
        _check_predictions(clients[client], "other", private, rng)
    np.save(tmp_path / "images.npy", _draw_images(rng))
    where = ("--cluster", str(hosts.cluster), "--client", "hospital")
    assert main(["models", *where, "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert (rows["tiny"]["inputs"], rows["tiny"]["parameters"]) == (None, None)
    assert rows["other"]["parameters"] > 0
    assert main(["models", *where]) == 0
    assert "another version" in " ".join(capsys.readouterr().out.split())
    assert main(["predict", "tiny", "--input", str(tmp_path / "images.npy"), *where]) == 10
    assert "'tiny' cannot be read" in capsys.readouterr().err
    service.deploy(owner, private, "tiny", replace=True)
    _check_predictions(owner, "tiny", private, rng)
    for path in paths:
        path.write_bytes(with_header(path.read_bytes(), older))
    for name in ("other", "tiny"):
        service.undeploy(owner, name)
    assert service.list_deployed(owner) == []


def test_waiting_requests_are_one_batch(
    hosts: Hosts,
    clients: dict[str, Any],
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A job that requests batches of 1 runs; the other jobs wait, and then run together.

    A client with wrong shares is refused alone, and a client that disconnects does not affect the
    others.
    """
    import threading
    from concurrent.futures import ThreadPoolExecutor

    private = _make_model()
    owner, hospital, guest = (clients[name] for name in CLIENTS)
    service.deploy(owner, private, "tiny", ["*"], replace=True)
    model = service.find(owner, "tiny")
    begun, queued = threading.Event(), threading.Barrier(5, timeout=60)
    stub = wire.stub

    def lying(channel: Any, method: str) -> Any:
        call = stub(channel, method)
        if channel is not guest._channels[1] or method != wire.JOB:
            return call

        def changed(requests: Iterator[bytes]) -> Iterator[bytes]:
            for bundle in requests:
                for blob in wire.split_bundle(bundle):
                    yield blob[:-1] + bytes([blob[-1] ^ 1]) if blob.startswith(b"D") else blob

        return lambda requests, **options: call(changed(requests), **options)

    monkeypatch.setattr(wire, "stub", lying)

    def slow() -> None:
        def progress(fraction: float, text: str) -> None:
            begun.set()

        # until the others wait, however long that takes
        images = _draw_images(rng, 700)
        got, _ = service.predict(hospital, model, images, batch=1, progress=progress)
        np.testing.assert_allclose(got, private.plain(images), rtol=0, atol=2e-3)

    def waiting(client: Any, count: int, leaves: bool) -> Any:
        begun.wait(60)
        has_reported = False

        def progress(fraction: float, text: str) -> None:
            nonlocal has_reported
            if "waiting" in text and not has_reported:
                has_reported = True
                queued.wait()
            elif leaves and has_reported and "waiting" not in text:
                raise KeyboardInterrupt

        images = np.random.default_rng(count).uniform(0, 1, (count, 6, 6, 1))
        try:
            got, result = service.predict(client, model, images, progress=progress)
        except KeyboardInterrupt:
            return "left"
        except ProtocolError as error:
            return str(error)
        np.testing.assert_allclose(got, private.plain(images), rtol=0, atol=2e-3)
        return [each.get("batched") for each in result.measured]

    asking = [(owner, 3, True), (owner, 2, False), (guest, 4, False), (hospital, 1, False)]
    with ThreadPoolExecutor(6) as pool:
        first = pool.submit(slow)
        others = [pool.submit(waiting, *each) for each in asking]
        queued.wait()
        answers = [other.result() for other in others]
        first.result()
    together = {"requests": 3, "samples": 6}
    assert answers[1] == answers[3] == [together] * 3, answers
    refusals = ("do not fit each other", "refused this job", "have different copies")
    assert any(refusal in answers[2] for refusal in refusals), answers
    assert answers[0] in ("left", [together] * 3)
    # the queue is free again, also of the batched jobs
    _check_predictions(owner, "tiny", private, rng)
    for client in (owner, hospital, guest):
        # a worker may still be closing the job of the client that left
        until = time.monotonic() + 60
        while any(each["jobs"] for each in client.status()):
            assert time.monotonic() < until, client.status()
            time.sleep(0.1)
    service.undeploy(owner, "tiny")


def test_several_clients_at_once_get_their_own(
    hosts: Hosts, clients: dict[str, Any], rng: np.random.Generator
) -> None:
    from concurrent.futures import ThreadPoolExecutor

    private = _make_model()
    service.deploy(clients["owner"], private, "tiny", ["*"], replace=True)
    seeds = rng.integers(0, 2**31, 3)

    def ask(turn: int) -> None:
        _check_predictions(
            clients[CLIENTS[turn]], "tiny", private, np.random.default_rng(seeds[turn])
        )

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(ask, range(3)))
    service.undeploy(clients["owner"], "tiny")
