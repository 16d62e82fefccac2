"""Data of several owners on three hosts: permissions of trainings, and a killed worker."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cluster.conftest import Hosts
from tests.models.conftest import share_parameters
from tests.models.tiny import BATCH, assert_close, draw_data, plain_twin, private_model
from tests.refusals import Matching, raises
from tfe_bench.arrays import array
from tfe_bench.cluster.launch import Cluster
from tfe_bench.cluster.policy import WorkerPolicy
from tfe_bench.cluster.requests import PrivateInput
from tfe_bench.cluster.store import ShareStore
from tfe_bench.errors import ClusterError, PolicyError, RangeError, TfeBenchError, UsageError
from tfe_bench.models.datasets import owners, sources
from tfe_bench.models.datasets.readers import Rows
from tfe_bench.models.inference import service
from tfe_bench.models.inference.private import PrivateModel, convert
from tfe_bench.models.training.plaintext import PlaintextTwin
from tfe_bench.models.training.trainable import trainable
from tfe_bench.private_tables import tables
from tfe_bench.queries.programs import query
from tfe_bench.queries.request import parse_query

keras: Any = pytest.importorskip("keras")

_CLIENTS = ("alice", "bob", "bank")
_PROGRAMS = (
    *("train", "provide", "withdraw", "predict", "table_put", "table_remove", "query", "align"),
)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Provide workers of three operators, with two data owners and a bank that trains."""
    hosts = Hosts(tmp_path_factory.mktemp("owners") / "trial", _CLIENTS)
    names = ", ".join(f'"{name}"' for name in _PROGRAMS)
    rules = "".join(
        f'[[reveal]]\nprogram = "{name}"\nto = ["alice", "bob", "bank"]\n' for name in _PROGRAMS
    )
    try:
        for party in range(3):
            (hosts.folder / f"worker{party}.toml").write_text(
                f'party = {party}\nkey = "party{party}.key"\nmodels = "models{party}"\n'
                f"allow_programs = [{names}]\n{rules}"
            )
        hosts.ensure()
        yield hosts
    finally:
        hosts.close()


@pytest.fixture(scope="module")
def clients(three: Hosts) -> Iterator[dict[str, Any]]:
    """Return the cluster of each client."""
    opened = {name: Cluster(three.cluster, name) for name in _CLIENTS}
    yield opened
    for cluster in opened.values():
        cluster.close()


def _make_rows(x: Any, y: Any, *columns: str) -> Rows:
    return Rows(x, y, "binary", 2, columns, "test")


def test_rows_of_two_owners_are_trained_on_by_whom_they_permit(
    three: Hosts, clients: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    x, y = draw_data()
    alice, bob, bank = (clients[name].client for name in _CLIENTS)
    owners.provide(alice, "rows-a", _make_rows(x[:80], y[:80], *"abcde"), ["bank"])
    owners.provide(bob, "rows-b", _make_rows(x[80:], y[80:], *"abcde"), ["bank"])
    assert set(owners.list_datasets(bank)) == {"rows-a", "rows-b"}
    assert set(owners.list_datasets(alice)) == {"rows-a"}
    assert owners.list_datasets(bank)["rows-a"].clients is None
    private = private_model()
    history = private.fit(clients["bank"], rows_of=["rows-a", "rows-b"], batch_size=BATCH)
    twin = plain_twin(private, x, y, 6)
    assert_close(history.model, twin)
    # some are stored for evaluation
    private = private_model()
    history = private.fit(
        clients["bank"], rows_of=["rows-a", "rows-b"], batch_size=BATCH, holdout=40
    )
    assert history.steps == 5
    assert 0.5 < history.history["val_accuracy"][0] <= 1.0

    # bob may not use, replace or withdraw alice's rows
    with raises(UsageError, "dataset-not-found", operation="rows-a"):
        private.fit(clients["bob"], rows_of=["rows-a"], batch_size=BATCH)
    source, _ = sources.resolve_datasets(bank, ["rows-a"])
    header = {
        "recipe": private.recipe(BATCH).to_header(),
        "epochs": 1,
        "rows": 80,
        "seed": 1,
        "source": source.to_header(),
    }
    inputs = private._state_inputs(private.recipe(BATCH))
    with raises(UsageError, "name-not-found", operation="rows-a"):
        bob.run("train", header, inputs)
    with raises(PolicyError, "name-of-another-client"):
        owners.provide(bob, "rows-a", _make_rows(x, y, *"abcde"), replace=True)
    for name in ("rows-a", "none"):  # another owner's name gives the same error as an unknown one
        with raises(UsageError, "not-stored", operation=name):
            owners.withdraw(bob, name)
    with raises(UsageError, "name-in-use"):
        owners.provide(alice, "rows-a", _make_rows(x, y, *"abcde"))
    # replaced after the bank has looked it up
    owners.provide(alice, "rows-a", _make_rows(x[:90], y[:90], *"abcde"), ["bank"], replace=True)
    with raises(UsageError, "deployment-changed"):
        bank.run("train", header, inputs)
    for file in three.folder.glob("models?/*.data.safetensors"):
        assert file.stat().st_mode & 0o777 == 0o600
    owners.withdraw(alice, "rows-a")
    owners.withdraw(bob, "rows-b")
    assert owners.list_datasets(bank) == {} and not list(three.folder.glob("models?/*.safetensors"))
    with raises(UsageError, "not-stored", operation="rows-b"):
        owners.withdraw(bob, "rows-b")
    assert "Traceback" not in capfd.readouterr().err


def test_tables_of_two_owners_are_asked_about_as_far_as_their_rights_go(
    three: Hosts, clients: dict[str, Any]
) -> None:
    alice, bob, bank = (tables(clients[name]) for name in _CLIENTS)
    left = {"k": list(range(12)), "v": [3] * 12, "secret": [271828 + i for i in range(12)]}
    bounds = {"k": "int[0,99]", "v": "int[0,9]", "secret": "int[0,999999]"}
    rights = ["k:match", "v:aggregate", "secret:filter"]
    right = {"k": [50 - i for i in range(45)], "g": ["x", None, "x"] * 15}
    own: dict[str, Any] = {"clients": ["bank", "alice"], "rights": ["*:open"], "hashed_by": "k"}
    kinds = {"k": "int[0,99]", "g": "category(x,y)"}
    bob.put("right", right, types=kinds, unique=["k"], pad_to=50, **own)
    about: dict[str, Any] = {"types": bounds, "clients": ["bank"], "rights": rights}
    alice.put("left", left, unique=["k"], links=["k=right.k"], **about)
    assert set(bank.listed()) == set(alice.listed()) == {"left", "right"} != set(bob.listed())
    text = 'select sum(v) s, count(*) n from "left" l join "right" r on l.k = r.k'
    linked = bank.sql(text)
    assert "no sort" in linked.explain()
    assert linked.run().rows == [(None, None)]  # 6 rows in common, 10 are required
    # the requested number of pairs, and one more
    pairs = """select a.k, b.k j from (select * from "right" where k > 45) a
        join "right" b on a.g = b.g"""
    due = {(k, 50 - i) for k in (47, 48, 50) for i in range(45) if i % 3 != 1}
    result_rows = bank.sql(pairs, max_rows=90).run().rows
    assert set(result_rows) == due and len(result_rows) == 90
    with raises(RangeError, "row-bound-exceeded", expected=89):
        bank.sql(pairs, max_rows=89).run()
    whole = bank.sql('select sum(v) s, count(*) n from "left" where secret > 271828').run()
    assert whole.rows == [(33, 11)]
    shown = bank.sql('select g, count(*) from "right" group by g').run().rows
    assert sorted(shown, key=str) == [("x", 30), (None, 15)]
    # a patched compiler is refused by each worker
    with raises(PolicyError, "missing-right", operation="secret"):
        bank.sql('select secret from "left"')
    plan = whole_plan = bank.sql('select sum(v) s from "left"').plan
    scan = {"op": "scan", "in": [], "table": "left", "columns": ["secret"]}
    plan = {"tables": plan["tables"], "steps": [scan], "output": 0}
    for party in range(3):
        with raises(PolicyError, "missing-right", operation="secret"):
            _asked_alone(three, clients["bank"], party, plan)
    with raises(UsageError, "name-not-found", operation="left"):
        clients["bob"].run("query", {"plan": whole_plan}, {})
    alice.put("left", left, replace=True, **about)
    with raises(UsageError, "deployment-changed", operation="left"):
        clients["bank"].run("query", {"plan": whole_plan}, {})
    # with a budget, noisy results leave until it is spent
    alice.put("left", left, replace=True, budget="0.5", **about)
    noisy = bank.sql('select sum(v) s, count(*) n from "left"', rho="0.3")
    assert "Left before: 0.5 of 0.5" in noisy.explain()
    [(s, n)] = noisy.run().rows
    assert abs(s - 36) < 400 and abs(n - 12) < 50  # 16 deviations
    assert alice.listed()["left"].spent == 3 * 10**8
    assert "Left before: 0.2 of 0.5" in bank.sql('select sum(v) s from "left"', rho="0.3").explain()
    with raises(PolicyError, "budget-exhausted", received="0.3", expected="0.2"):
        noisy.run()
    for party in range(3):
        with raises(PolicyError, "budget-exhausted", expected="0.2"):
            _asked_alone(three, clients["bank"], party, noisy.plan)
    with raises(UsageError, "not-stored", operation="left"):
        bob.remove("left")
    alice.remove("left")
    bob.remove("right")
    assert bank.listed() == {}
    for party in range(3):
        assert "Traceback" not in three.log(party) and "271828" not in three.log(party)


def _asked_alone(three: Hosts, client: Any, party: int, plan: dict[str, Any]) -> None:
    """Return the answer of one worker alone to a plan."""
    policy = WorkerPolicy.load(three.folder / f"worker{party}.toml")
    config = client.config
    store = ShareStore(None, party, config.ring, config.fractional_bits, 100)
    # the worker locks the folder; this only reads
    store._folder = policy.models
    query.permit_query(client.identity, store, parse_query({"plan": plan}, ()), ())


def test_a_head_is_trained_on_features_that_a_model_makes_and_nobody_sees(
    clients: dict[str, Any], rng: np.random.Generator
) -> None:
    """Pass images of two owners through the bank's backbone; its head is used with it."""
    layers = keras.layers
    keras.utils.set_random_seed(4)
    y = rng.integers(0, 2, 96)
    x = rng.normal(0, 1, (96, 6, 6, 1)).clip(-3, 3) * 0.5 + (2 * y[:, None, None, None] - 1)
    backbone = keras.Sequential(
        [
            layers.Input((6, 6, 1)),
            layers.Conv2D(6, 3, activation="relu", name="last"),
            layers.GlobalAveragePooling2D(name="avg_pool"),
            layers.Dense(10, activation="softmax"),
        ]
    )
    private = convert(backbone, samples=x[:8], margin=4)
    with raises(UsageError, "unknown-layer", operation="avg_pol"):
        private.until("avg_pol")
    assert private.until("last").plain(x).min() == 0  # its activation is included
    features = private.until("avg_pool")
    with raises(UsageError, "not-converted"):
        PrivateModel(features.plan, features.bounds, True).until("avg_pool")
    bank = clients["bank"].client
    for name, some in (("first", slice(0, 48)), ("second", slice(48, 96))):
        owners.provide(
            bank, name, Rows(x[some], y[some], "binary", 2, (), "test"), through=features
        )
    assert owners.list_datasets(bank)["first"].about["x"] == [6]
    head = keras.Sequential([layers.Input((6,)), layers.Dense(1, activation="sigmoid")])
    model = trainable(head)
    model.compile(keras.optimizers.SGD(0.5, momentum=0.9), "binary_crossentropy")
    history = model.fit(clients["bank"], rows_of=["first", "second"], batch_size=BATCH, epochs=4)
    pooled = keras.Model(backbone.inputs[0], backbone.get_layer("avg_pool").output)
    observed = np.asarray(pooled(x))
    assert_close(history.model, plain_twin(model, observed, y, 12))
    whole = keras.Sequential([pooled, history.model])
    predictions, _ = service.predict(bank, convert(whole, samples=x[:8], margin=4), x)
    assert np.abs(predictions - np.asarray(whole(x))).max() < 1e-3
    assert ((predictions[:, 0] > 0.5) == y).mean() > 0.8
    # rows that leave the model's range are not stored
    wild = Rows(x[:48] * 40, y[:48], "binary", 2, (), "test")
    for rows, error, code in (
        (wild, RangeError, "value-out-of-range"),
        (Rows(None, y, "binary", 2, (), "test"), UsageError, "missing-features"),
        (Rows(x[..., 0], y, "binary", 2, (), "test"), UsageError, "shape-mismatch"),
    ):
        with raises(error, code):
            owners.provide(bank, "third", rows, through=features)
    for name in ("first", "second"):
        owners.withdraw(bank, name)


def test_columns_of_two_owners_and_the_labels_of_one_are_trained_on(
    clients: dict[str, Any],
) -> None:
    x, y = draw_data()
    alice, bob = (clients[name].client for name in ("alice", "bob"))
    owners.provide(alice, "left", _make_rows(x[:, :2], None, "a", "b"), ["bank"])
    owners.provide(bob, "right", _make_rows(x[:, 2:], None, "c", "d", "e"), ["bank"])
    owners.provide(bob, "answers", _make_rows(None, y), ["bank"])
    private = private_model()
    options: dict[str, Any] = {"columns_of": ["left", "right"], "batch_size": BATCH}
    history = private.fit(clients["bank"], labels_of="answers", **options)
    assert_close(history.model, plain_twin(private, x, y, 6))
    # errors name both owners
    owners.provide(bob, "right", _make_rows(x[:-1, 2:], None, *"cde"), ["bank"], replace=True)
    with raises(UsageError, "row-count-mismatch", received=199, expected=200):
        private.fit(clients["bank"], labels_of="answers", **options)
    with raises(UsageError, "missing-label", operation="left"):
        private.fit(clients["bank"], labels_of="left", columns_of=["left"], batch_size=BATCH)
    with raises(UsageError, "shape-mismatch"):
        private.fit(clients["bank"], labels_of="answers", columns_of=["left"], batch_size=BATCH)
    with raises(UsageError, "missing-label", operation="left"):
        private.fit(clients["bank"], rows_of=["left"], batch_size=BATCH)
    owners.provide(alice, "odd", _make_rows(x[:, :4], y, *"abcd"), ["bank"])
    owners.provide(bob, "even", _make_rows(x, y, *"abcde"), ["bank"])
    with raises(UsageError, "dataset-mismatch", operation="features"):
        private.fit(clients["bank"], rows_of=["odd", "even"], batch_size=BATCH)
    for client, names in ((alice, ("left", "odd")), (bob, ("right", "answers", "even"))):
        for name in names:
            owners.withdraw(client, name)


def test_what_tables_of_several_owners_have_in_common_is_trained_on(
    three: Hosts, clients: dict[str, Any]
) -> None:
    """Owners have different customers in different orders; compare with the joined table."""
    rng = np.random.default_rng(11)
    x, y = draw_data()
    owned = [rng.permutation(100)[:80] for _ in range(3)]
    dbs = [tables(clients[name]) for name in _CLIENTS]
    alice, bob, bank = dbs
    kinds = {"who": "int[0,99]", "plan": "category(a,b)", "y": "bool"}
    kinds |= dict.fromkeys("abcde", "fixed(16)[-8,8]")
    shares: list[dict[str, Any]] = [{"a": x[:, 0], "b": x[:, 1]}, {"c": x[:, 2], "d": x[:, 3]}]
    shares[1]["plan"] = np.where(x[:100, 4] > 0, "a", "b")
    shares.append({"e": x[:, 4], "y": y})

    def put(i: int, name: str, **more: Any) -> None:
        columns = {k: v[owned[i]].tolist() for k, v in shares[i].items()}
        columns["who"] = owned[i].tolist()
        bounds = {k: v for k, v in kinds.items() if k in columns}
        rights = ["*:train", "who:match"]
        usual: dict[str, Any] = {"clients": ["bank", "alice"], "rights": rights, "open_count": True}
        usual |= {"unique": ["who"], "scale": "*", "pad_to": 90 if i else None, **more}
        dbs[i].put(name, columns, types=bounds, **usual)

    put(0, "alices")
    put(1, "bobs")
    put(2, "banks", clients=[], rights=[], open_count=False, scale=())
    for names, features in ((["alices", "banks"], 3), (["banks", "bobs", "alices"], 7)):
        linkage = bank.align(names, ["who"], "joined", "y", replace=True)
        assert "The workers learn this request and the number of matched rows" in linkage.explain()
        about = linkage.run().about
        parts = [{"alices": 0, "bobs": 1, "banks": 2}[name] for name in names]
        common = sorted(set.intersection(*(set(owned[i].tolist()) for i in parts)))
        assert (about["rows"], about["x"]) == (len(common), [features])
        held = {k: v for i in parts for k, v in shares[i].items()}
        held |= {f"plan={w}": held["plan"] == w for w in "ab" if "plan" in held}
        factor, offset = about["units"]["scale"]
        joined = np.stack([held[name][common] for name in about["columns"]], 1) * factor + offset
        private = trainable(
            keras.Sequential([keras.Input((features,)), keras.layers.Dense(1, "sigmoid")])
        )
        private.compile(keras.optimizers.SGD(0.5, momentum=0.9), "binary_crossentropy")
        source: dict[str, Any] = {"columns_of": ["joined"], "labels_of": "joined"}
        # with one batch, the order of rows does not matter
        every: dict[str, Any] = {"batch_size": len(common), "epochs": 8}
        history = private.fit(clients["bank"], **source, **every)
        recipe = private.recipe(len(common))
        twin = PlaintextTwin(private.initial_model(), recipe)
        for _ in range(8):
            twin.train_step(joined, recipe.encode_labels(y[common]))
        twin.finish_training()
        assert_close(history.model, twin)
        ours, theirs = (m.predict(joined, verbose=0)[:, 0] for m in (history.model, twin.model))
        sure = np.abs(theirs - 0.5) > 1e-2  # as accurate as plaintext, except on the boundary
        assert sure.mean() > 0.8 and np.array_equal(ours[sure] > 0.5, theirs[sure] > 0.5)
        assert ((ours > 0.5) == y[common]).mean() > 0.6
    few: dict[str, Any] = {"holdout": 20, "batch_size": 16}
    # permitted clients train on them too, and other columns cannot be added
    put(2, "banks", clients=["alice"], scale=(), replace=True)
    bank.align(["alices", "banks"], ["who"], "joined", "y", clients=["alice"], replace=True).run()
    private = trainable(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, "sigmoid")]))
    private.compile("sgd", "binary_crossentropy")
    assert private.fit(clients["alice"], rows_of=["joined"], **few).history["val_accuracy"]
    owners.provide(clients["bank"].client, "others", _make_rows(x[: len(common)], None, *"abcde"))
    with raises(UsageError, "unknown-row-order", operation="joined"):
        private.fit(clients["bank"], columns_of=["joined", "others"], labels_of="joined", **few)
    owners.withdraw(clients["bank"].client, "others")
    for file in three.folder.glob("models?/joined.data.safetensors"):
        assert file.stat().st_mode & 0o777 == 0o600
    put(2, "banks", clients=[], rights=[], open_count=False, scale=(), replace=True)
    with raises(UsageError, "source-changed", operation=Matching("'joined', .*'banks'")):
        private.fit(clients["alice"], rows_of=["joined"], **few)
    linkage = bank.align(["banks", "bobs", "alices"], ["who"], "joined", "y", replace=True)
    linkage.run()

    # each worker refuses clients without permission on its own
    order = linkage._keeping
    with raises(UsageError, "name-not-found", operation="banks"):
        clients["alice"].run("align", {**order, "name": "other"}, {})
    with raises(PolicyError, "client-not-permitted", operation="banks", received="alice"):
        clients["bank"].run("align", {**order, "name": "other", "clients": ["alice"]}, {})
    with raises(UsageError, "name-in-use", operation="joined"):
        bank.align(["alices", "banks"], ["who"], "joined", "y").run()
    with raises(PolicyError, "name-of-another-client"):
        put(2, "banks", rights=["*:open"], replace=True)
        alice.align(["alices", "banks"], ["who"], "joined", "y", replace=True).run()
    # withdrawn data cannot be used, neither alone nor with another's rows
    source = {"rows_of": ["joined"], "batch_size": 16}
    bob.remove("bobs")
    with raises(UsageError, "source-changed", operation=Matching("'joined'")):
        private.fit(clients["bank"], **source)
    put(0, "alices", min_group=90, replace=True)
    with raises(PolicyError, "group-too-small"):
        bank.align(["alices", "banks"], ["who"], "fewer", "y").run()
    assert set(owners.list_datasets(clients["bank"].client)) == {"joined"}
    assert not owners.list_datasets(clients["alice"].client)
    owners.withdraw(clients["bank"].client, "joined")
    alice.remove("alices")
    bank.remove("banks")
    assert not list(three.folder.glob("models?/*.safetensors"))


def test_what_is_no_data_set_is_refused(clients: dict[str, Any]) -> None:
    alice = clients["alice"].client
    about = {
        "rows": 3,
        "x": [2],
        "y": None,
        "target": "binary",
        "classes": 2,
        "columns": ["a", "b"],
    }
    good = share_parameters("bad", about)
    x = {"x": PrivateInput(np.zeros((3, 2), np.int64), 16)}
    for changed, inputs in (
        ({"name": "Bad"}, x),
        ({"about": {}}, x),
        ({"about": {**about, "rows": 4}}, x),
        ({"about": {**about, "x": [-2]}}, x),
        ({"about": {**about, "y": [1]}}, x),
        ({"about": {**about, "columns": "ab"}}, x),
        ({"about": {**about, "columns": ["a"]}}, x),
        ({"about": {**about, "target": "magic"}}, x),
        ({"deployment": "x"}, x),
        ({"more": 1}, x),
        ({}, {}),
        ({}, {"z": x["x"]}),
    ):
        with pytest.raises(UsageError):
            alice.run("provide", {**good, **changed}, inputs)
    assert owners.list_datasets(alice) == {}


def test_misspelt_clients_are_refused_by_all_that_names_clients(clients: dict[str, Any]) -> None:
    bank = clients["bank"]
    private, misspelt = private_model(), ["alcie"]
    kept = convert(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
    rows = _make_rows(np.zeros((4, 1), np.float32), np.array([0, 1, 0, 1]), "a")
    for refused in (
        lambda: tables(bank).put("t", {"a": [1]}, clients=misspelt),
        lambda: tables(bank).align(["a", "b"], ["k"], "n", "y", clients=misspelt),
        lambda: owners.provide(bank.client, "r", rows, misspelt),
        lambda: service.deploy(bank, kept, "m", misspelt),
        lambda: array.make_private_array(bank, np.ones(2)).keep("y", clients=misspelt),
        lambda: private.fit(bank, *draw_data(), batch_size=4, deploy="m", deploy_for=misspelt),
    ):
        with raises(UsageError, "unknown-client", received="alcie"):
            refused()


@pytest.mark.parametrize("victim", [1])
def test_a_killed_worker_costs_no_more_than_the_steps_since_the_checkpoint(
    three: Hosts, clients: dict[str, Any], victim: int
) -> None:
    x, y = draw_data()
    private = private_model()
    begun = private.keras.get_weights()
    options: dict[str, Any] = {
        "epochs": 60,
        "batch_size": BATCH,
        "checkpoint": "bank-model",
        "checkpoint_every": 10,
    }
    reached = threading.Event()

    def progress(fraction: float, text: str) -> None:
        if fraction > 0.2:
            reached.set()

    failures: list[BaseException] = []

    def train() -> None:
        try:
            private.fit(clients["bank"], x, y, progress=progress, **options)
        except TfeBenchError as error:
            failures.append(error)

    running = threading.Thread(target=train)
    running.start()
    assert reached.wait(60)
    three.workers[victim].send_signal(signal.SIGKILL)
    running.join(60)
    assert len(failures) == 1 and isinstance(failures[0], ClusterError), failures
    three.workers.pop(victim).wait()
    three.ensure()
    files = list(Path(three.folder).glob("models?/bank-model.checkpoint?.safetensors"))
    assert len(files) >= 5
    private.keras.set_weights(begun)
    deadline = time.monotonic() + 30
    while True:  # the other workers may not have noticed yet
        try:
            history = private.fit(clients["bank"], x, y, **options)
            break
        except ClusterError:
            assert time.monotonic() < deadline
            time.sleep(0.5)
    assert history.first_step >= 60 and history.first_step % 10 == 0
    assert history.steps == 360
    assert_close(history.model, plain_twin(private, x, y, 360))
    # another client cannot continue it
    with raises(PolicyError, "not-owner", operation="bank-model"):  # each name appears once
        private.fit(clients["alice"], x, y, **options)
    with raises(PolicyError, "not-owner", operation="bank-model"):
        private.fit(clients["alice"], x, y, restart=True, **options)
    for party in range(3):
        assert "Traceback" not in three.log(party)
