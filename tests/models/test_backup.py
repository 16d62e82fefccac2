"""Backups of stored shares: the statements of docs/backup.md about taking and restoring them."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cluster.conftest import Hosts
from tests.models.tiny import FEATURES, model_of
from tests.refusals import raises
from tfe_bench.cluster.launch import Cluster
from tfe_bench.errors import PolicyError, TfeBenchError, UsageError
from tfe_bench.models.inference import service
from tfe_bench.models.inference.private import convert
from tfe_bench.private_tables import tables

pytestmark = pytest.mark.slow
_ROWS = np.linspace(-1, 1, 2 * FEATURES).reshape(2, FEATURES)


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Hosts]:
    hosts = Hosts(tmp_path / "trial", ("owner", "bank"))
    try:
        hosts.ensure()
        yield hosts
    finally:
        hosts.close()


def _store_folder(hosts: Hosts, party: int) -> Path:
    return hosts.folder / f"models{party}"


def _copy_store(source: Path, to: Path) -> Path:
    """Copy as `rsync -a --exclude '.*.tmp'` does; repeat if a file vanishes in the meantime."""
    while True:
        shutil.rmtree(to, ignore_errors=True)
        try:
            return Path(shutil.copytree(source, to, ignore=shutil.ignore_patterns(".*.tmp")))
        except shutil.Error:
            continue


def _put_back(hosts: Hosts, party: int, backup: Path) -> None:
    shutil.rmtree(_store_folder(hosts, party))
    shutil.copytree(backup, _store_folder(hosts, party))


def test_copies_are_whole_belong_together_and_are_refused_where_they_do_not(
    three: Hosts, tmp_path: Path
) -> None:
    models = [model_of(seed=3), model_of(seed=4)]
    first, second = (convert(model, _ROWS) for model in models)
    due = {i + 1: np.asarray(model(_ROWS, training=False)) for i, model in enumerate(models)}

    def check(client: Any, name: str, version: int) -> None:
        outputs, _ = service.predict(client, name, _ROWS)
        np.testing.assert_allclose(outputs, due[version], atol=1e-3)

    def left(client: Any) -> str:
        text = tables(client).sql("select sum(v) s from t", rho="0.1").explain()
        return text.partition("Left before: ")[2].partition(" of")[0]

    with Cluster(three.cluster, "owner") as owner, Cluster(three.cluster, "bank") as bank:
        service.deploy(owner.client, first, "a")
        service.deploy(owner.client, first, "b")
        rows = {"v": [3] * 40}
        tables(owner.client).put(
            "t", rows, types={"v": "int[0,9]"}, clients=["bank"], rights=["v:aggregate"], budget="1"
        )
        tables(bank.client).sql("select sum(v) s from t", rho="0.3").run()

        # copies of running workers, during deployments and predictions
        stop, failed = threading.Event(), []

        def work() -> None:
            try:
                while not stop.is_set():
                    service.deploy(owner.client, first, "c", replace=True)
                    check(owner.client, "c", 1)
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        copies = [_copy_store(_store_folder(three, p), tmp_path / f"backup{p}") for p in range(3)]
        stop.set()
        thread.join(60)
        assert not failed
        for copy in copies:
            assert copy.stat().st_mode & 0o777 == 0o700
            assert all(f.stat().st_mode & 0o077 == 0 for f in copy.iterdir())

        service.deploy(owner.client, second, "a", replace=True)
        service.deploy(owner.client, first, "c", replace=True)
        tables(bank.client).sql("select sum(v) s from t", rho="0.3").run()
        assert left(bank.client) == "0.4"

    # one worker's old folder: replaced items are refused, others are served
    three.stop(1)
    newest = _copy_store(_store_folder(three, 1), tmp_path / "newest1")
    _put_back(three, 1, copies[1])
    three.ensure()
    with Cluster(three.cluster, "owner") as owner, Cluster(three.cluster, "bank") as bank:
        with raises(UsageError, "deployment-mismatch", operation="a"):
            service.predict(owner.client, "a", _ROWS)
        check(owner.client, "b", 1)
        # the largest spent amount that one worker has recorded counts
        assert left(bank.client) == "0.4"

    # all three old folders with the newest ledgers
    for party in range(3):
        three.stop(party)
    ledgers = [path for p in (0, 2) for path in _store_folder(three, p).glob("*.ledger.json")]
    kept = {path: path.read_bytes() for path in ledgers}
    for party in range(3):
        _put_back(three, party, copies[party])
    three.ensure()
    with Cluster(three.cluster, "owner") as owner, Cluster(three.cluster, "bank") as bank:
        check(owner.client, "a", 1)
        check(owner.client, "b", 1)
        assert left(bank.client) == "0.7"  # the old ledgers lack a query
        for party in range(3):
            three.stop(party)
        for path, content in kept.items():
            path.write_bytes(content)
        three.ensure()
        assert left(bank.client) == "0.4"
        with raises(PolicyError, "budget-exhausted", operation="t", expected="0.4"):
            tables(bank.client).sql("select sum(v) s from t", rho="0.5").run()

    # another party's files are useless
    three.stop(1)
    _put_back(three, 1, copies[0])
    three.ensure()
    codes = ("file-of-another-party", "deployment-mismatch")
    with Cluster(three.cluster, "owner") as owner, raises(TfeBenchError, *codes):
        service.predict(owner.client, "b", _ROWS)
    log = three.log(1)
    assert "Traceback" not in log
    three.stop(1)
    _put_back(three, 1, newest)
    # a folder that others can write to is refused
    _store_folder(three, 1).chmod(0o777)
    three.start(1)
    assert three.workers.pop(1).wait(60) == 30
    assert "open to other users" in three.log(1)
    os.chmod(_store_folder(three, 1), 0o700)
