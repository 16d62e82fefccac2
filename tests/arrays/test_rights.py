"""Release of data derived from stored items: no expression, handle or name bypasses a right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.arrays.simulated import Client, Workers, tfb
from tests.queries.asked import ANALYST, OWNER, StoredTable
from tests.refusals import raises
from tfe_bench.arrays import loading
from tfe_bench.cluster.stored import ARRAY
from tfe_bench.errors import PolicyError, UsageError
from tfe_bench.models.datasets import owners
from tfe_bench.models.datasets.readers import Rows

INCOME = [100 + 7 * i for i in range(12)]
AGE = [20 + i for i in range(12)]


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    stores = Workers(tmp_path_factory.mktemp("rights"))
    rows = [(i, a, i * 0.25, bool(i % 2), w) for i, a, w in zip(INCOME, AGE, "ab" * 6, strict=True)]
    types = {
        "income": "int[-50,1000]",
        "age": "int[0,120]",
        "rate": "fixed(16)[-1000,1000]",
        "member": "bool",
        "segment": "category(a,b)",
    }
    rights = {
        ANALYST: {
            "income": ("aggregate",),
            "age": ("open",),
            "rate": ("open",),
            "member": ("aggregate",),
        }
    }
    stores.put_table("bank", StoredTable(types, rows, rights=rights, min_group=5))
    yield stores
    stores.close()


def test_owners_and_open_columns_are_revealed(workers: Workers) -> None:
    bank = Client(workers, OWNER).load("bank")
    assert bank.owner == OWNER and bank["income"].kind == "int"
    np.testing.assert_array_equal(bank["income"].reveal(), INCOME)
    table = Client(workers, ANALYST).load("bank")
    np.testing.assert_array_equal(table["age"].reveal(), AGE)
    rate = table["rate"]
    np.testing.assert_allclose((rate * 2.0).reveal(), np.array(INCOME) * 0.5, atol=1e-3)
    np.testing.assert_array_equal((table["age"] > 25).reveal(), np.array(AGE) > 25)
    assert "bank" in (table["age"] + 1).explain() and "column" not in repr(table["age"])


AGGREGATES: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "sum": (lambda t: t["income"].sum(), sum(INCOME)),
    "affine": (lambda t: (1 - 3 * t["income"]).sum(), 12 - 3 * sum(INCOME)),
    "mean": (lambda t: tfb.reduce_mean(t["income"], axis=0), np.mean(INCOME)),
    "count": (lambda t: t["member"].sum(), sum(i % 2 for i in INCOME)),
    "more": (lambda t: tfb.square(t["income"].sum()) + t["age"][0], sum(INCOME) ** 2 + AGE[0]),
}


@pytest.mark.parametrize("name", AGGREGATES)
def test_sums_of_all_rows_take_the_right_aggregate(name: str, workers: Workers) -> None:
    expression, expected = AGGREGATES[name]
    result = expression(Client(workers, ANALYST).load("bank")).reveal()
    np.testing.assert_allclose(result, expected, atol=1e-3)


# Each of these would leak information about fewer rows than all.
LAUNDERED: dict[str, Callable[[Client, Any], Any]] = {
    "rows": lambda c, t: t["income"],
    "zero": lambda c, t: t["income"] * 0,
    "part": lambda c, t: t["income"][:7].sum(),
    "weights": lambda c, t: (t["income"] * np.eye(12, dtype=int)[3]).sum(),
    "own weights": lambda c, t: (t["income"] * c.private(np.eye(12, dtype=int)[3])).sum(),
    "product": lambda c, t: t["income"] @ np.eye(12, dtype=int)[3],
    "comparison": lambda c, t: (t["income"] > 110).sum(),
    "condition": lambda c, t: tfb.where(t["age"] > 30, t["income"], 0).sum(),
    "condition of others": lambda c, t: tfb.where(t["income"] > 110, t["age"], 0),
    "square": lambda c, t: tfb.square(t["income"]).sum(),
    "rounded": lambda c, t: (t["income"] * 2.0**-9).sum(),
    "divided": lambda c, t: (t["income"] / 512).sum(),
    "inverse": lambda c, t: (1 / tfb.cast(t["income"], 16)).sum(),
    "cast": lambda c, t: tfb.cast(tfb.cast(t["income"], 8), 0).sum(),
    "shifted": lambda c, t: (t["income"] >> 5).sum(),
    "maximum": lambda c, t: t["income"].max(),
    "sorted": lambda c, t: tfb.sort(t["income"]),
    "axis": lambda c, t: tfb.reshape(t["income"], [3, 4]).sum(axis=0),
    "kept axis": lambda c, t: tfb.expand_dims(t["income"], 0).sum(axis=0),
    "category": lambda c, t: t["segment"],
    "category sum": lambda c, t: t["segment"].sum(),
    "concat": lambda c, t: tfb.concat([t["income"], t["age"]], 0)[12:],
    "private index": lambda c, t: tfb.gather(t["income"], c.private(np.array([1]))),
    "bits": lambda c, t: tfb.bit_extract(t["income"], 0),
    "self": lambda c, t: t["income"] - t["income"],
    "loop": lambda c, t: tfb.foldl(lambda s, x: s + x, t["income"], t["income"][0]),
    "loop with": lambda c, t: tfb.foldl(lambda s: s + t["income"][0], 2, t["age"]),
    "loop of sums": lambda c, t: tfb.foldl(lambda s, x: x, t["income"], t["income"].sum()),
    "handle": lambda c, t: t["income"].compute() + 1,
    "handle sum": lambda c, t: (t["income"] + 0).compute().sum(),
    "several": lambda c, t: tfb.unstack(tfb.stack([t["age"], t["income"]]))[0],
}


@pytest.mark.parametrize("name", LAUNDERED)
def test_no_expression_launders_a_right(name: str, workers: Workers) -> None:
    client = Client(workers, ANALYST)
    array = LAUNDERED[name](client, client.load("bank"))
    with raises(PolicyError, "missing-right", expected="open") as caught:
        array.reveal()
    assert str(caught.value).count("'bank'") == 2  # (the table and its owner)


def test_no_name_and_no_handle_launders_a_right(workers: Workers) -> None:
    client = Client(workers, ANALYST)
    bank = client.load("bank")
    kept = tfb.where(bank["income"] > 110, bank["age"], 0)
    kept.keep("derived", clients=["guest"])
    (client.load("derived") + 1).keep("derived-again", clients=["*"])
    held = client.load("derived-again").compute().compute()
    for array in (client.load("derived").sum(), client.load("derived-again"), held):
        with raises(PolicyError, "missing-right", expected="open"):
            array.reveal()
    for name in ("derived", "derived-again"):
        with raises(PolicyError, "missing-right", expected="open"):
            Client(workers, "guest").load(name).reveal()
    held.keep("held")
    with raises(PolicyError, "missing-right", expected="open"):
        client.load("held").reveal()


def test_small_tables_and_those_of_units_have_no_sums(workers: Workers) -> None:
    rights = {ANALYST: {"v": ("aggregate",)}}
    workers.put_table("few", StoredTable({"v": "int[0,9]"}, [(1,)] * 4, rights=rights, min_group=5))
    types = {"v": "int[0,9]", "who": "int[0,9]"}
    rows = [(1, i % 3) for i in range(9)]
    workers.put_table("units", StoredTable(types, rows, rights=rights, min_group=5, unit="who"))
    for name in ("few", "units"):
        with raises(PolicyError, "missing-right", expected="open") as caught:
            Client(workers, ANALYST).load(name)["v"].sum().reveal()
        assert repr(name) in str(caught.value)


def test_what_another_client_keeps_is_revealed_to_those_it_names(workers: Workers) -> None:
    own = Client(workers, ANALYST)
    secret = own.private(np.array([1.5, 2.0]))
    secret.keep("mine", clients=["guest"])
    guest = Client(workers, "guest")
    np.testing.assert_allclose(guest.load("mine").reveal(), [1.5, 2.0])
    (guest.load("mine") * 2).keep("theirs", clients=["*"])
    np.testing.assert_allclose((own.load("theirs") + secret).reveal(), [4.5, 6.0], atol=1e-4)
    third = Client(workers, "third")
    with raises(UsageError, "source-changed") as raised:
        third.load("theirs").reveal()
    assert "mine" not in str(
        raised.value
    )  # (without the name of an item that the client may not use)
    # replaced in the meantime: the owner's permission is unknown
    own.private(np.array([0.0])).keep("mine", clients=["guest"], replace=True)
    uses: list[Callable[[Any], Any]] = [lambda x: x.reveal(), lambda x: (x + 1).compute()]
    for use in uses:
        with raises(UsageError, "source-changed") as caught:
            use(guest.load("theirs"))
        assert "'mine'" in str(caught.value)
    with raises(UsageError, "name-in-use", operation="mine"):
        secret.keep("mine")
    with raises(UsageError, "not-stored", operation="mine"):
        loading.remove_array(guest, "mine")  # type: ignore[arg-type]
    loading.remove_array(own, "mine")  # type: ignore[arg-type]
    with raises(UsageError, "array-not-found", received="mine"):
        own.load("mine")
    secret.keep("mine")
    with raises(PolicyError, "name-of-another-client"):
        guest.private(np.array([0.0])).keep("mine", replace=True)


def test_data_for_training_is_not_revealed(workers: Workers, rng: np.random.Generator) -> None:
    x = rng.normal(size=(6, 2)).astype(np.float32)
    rows = Rows(x, np.arange(6) % 2, "binary", 2, ("a", "b"), "rows")
    bob = Client(workers, "bob")
    owners.provide(bob, "bob-rows", rows, clients=[ANALYST])  # type: ignore[arg-type]
    mine = bob.load("bob-rows")
    assert mine.columns == ["x", "y", "a", "b"]
    np.testing.assert_allclose(mine["b"].reveal(), x[:, 1], atol=1e-4)
    theirs = Client(workers, ANALYST).load("bob-rows")
    for expression in (theirs["x"].mean(axis=0), theirs["y"].sum(), theirs["a"]):
        with raises(PolicyError, "training-only", operation="bob-rows"):
            expression.reveal()
    theirs["a"].keep("of-rows")
    with raises(PolicyError, "training-only", operation="bob-rows"):
        Client(workers, ANALYST).load("of-rows").sum().reveal()


DECIMALS = {
    "decimal(2)[-100,100]": [19.99, -0.01, 0.0, 99.99, -99.99, 0.1],
    "decimal(1)": [0.1, -0.2, 1e11, -1e11, 12345678.9, 3.0],
    "decimal(7)": [1e-7, 4e-7, 2e-6, 109951.1627776, -109951.1627776, 0.0],
    "decimal(18)[-0.00001,0.00001]": [1e-5, -1e-5, 1e-18, 0.0, 5e-6, 1e-6],
}


@pytest.mark.parametrize("kind", DECIMALS)
def test_decimals_of_tables_are_fixed_point_in_arrays(kind: str, workers: Workers) -> None:
    values = np.array(DECIMALS[kind])
    rights = {ANALYST: {"v": ("aggregate",)}}
    rows = [(value,) for value in DECIMALS[kind]]
    workers.put_table("prices", StoredTable({"v": kind}, rows, rights=rights, min_group=5))
    prices = Client(workers, OWNER).load("prices")["v"]
    assert (prices.kind, prices.fractional_bits) == ("fixed", 16)
    np.testing.assert_allclose(prices.reveal(), values, rtol=0, atol=2.01 / (1 << 16))
    np.testing.assert_array_equal((prices > 3.5).reveal(), values > 3.5)
    column = Client(workers, ANALYST).load("prices")["v"]
    total = column.sum().reveal()
    assert abs(float(total) - values.sum()) <= 2.01 * len(values) / (1 << 16)
    with raises(PolicyError, "missing-right", expected="open"):
        (column * 0.5).sum().reveal()
    workers.put_table("prices", StoredTable({"v": "decimal(2)[0,999999999999]"}, [(1,)]))
    with raises(UsageError, "value-too-wide", operation="v"):
        Client(workers, OWNER).load("prices")["v"]


def test_tables_with_gaps_or_texts_are_asked_with_sql(workers: Workers) -> None:
    workers.put_table(
        "gaps", StoredTable({"v": "int[0,9]?", "d": "decimal(2)[0,9]"}, [(None, 1), (2, 3)])
    )
    workers.put_table("padded", StoredTable({"v": "int[0,9]"}, [(1,), (2,)], pad=3))
    owner = Client(workers, OWNER)
    for name, gaps in (("gaps", "NULLs"), ("padded", "padding rows")):
        with raises(UsageError, "column-with-gaps", operation="v") as caught:
            owner.load(name)["v"]
        assert gaps in str(caught.value)
    with raises(UsageError, "column-not-found", received="incom") as caught:
        owner.load("bank")["incom"]
    assert 'Did you mean "income"' in str(caught.value)
    with raises(UsageError, "array-not-found", received="bnak") as caught:
        owner.load("bnak")
    assert 'Did you mean "bank"' in str(caught.value)


@pytest.mark.parametrize("change", ["kind", "shape", "deployment", "part", "infix"])
def test_a_plan_that_lies_of_what_is_kept_is_refused(change: str, workers: Workers) -> None:
    client = Client(workers, ANALYST)
    client.load("bank")["age"].reveal()
    parameters = workers.jobs[-1]
    leaf = parameters["plan"]["leaves"][0]
    place, value = {
        "kind": (1, "bits"),
        "shape": (2, [6]),
        "deployment": (6, "f" * 32),
        "part": (7, "income"),
        "infix": (4, ARRAY.infix),
    }[change]
    leaf[place] = value
    with pytest.raises((PolicyError, UsageError)):
        client.run("compute", parameters, {})
