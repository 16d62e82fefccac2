"""Rows get bins by their keys, and requests follow their bins."""

from __future__ import annotations

import numpy as np
import pytest

from tests.queries.asked import StoredTable
from tests.refusals import raises
from tfe_bench.errors import DataError, UsageError
from tfe_bench.queries import hash_bins, upload
from tfe_bench.queries.schema import TableSchema

HASHED = StoredTable({"id": "int[0,9]", "w": "int[0,9]"}, [(1, 2)], hashed_by="id", unique=("id",))
LINK = {"column": "w", "table": "u", "deployment": "0" * 32, "bins": 1026}
INT64 = np.iinfo(np.int64)


@pytest.mark.parametrize("rows", [0, 1, 683, 684, 685, 20_000])
def test_every_row_stands_in_a_bin_that_its_key_asks(rows: int, rng: np.random.Generator) -> None:
    keys = rng.permutation(np.arange(rows) - rows // 2)
    if rows > 2:
        keys[:2] = INT64.min, INT64.max
    count = hash_bins.cuckoo_bin_count(rows)
    assert count % 3 == 0 and count >= max(1026, 1.5 * rows)
    seed, held = hash_bins.place_rows_in_hash_bins(keys, count)
    full = np.flatnonzero(held >= 0)
    assert np.array_equal(np.sort(held[full]), np.arange(rows))
    bins = hash_bins.hash_keys_to_bins(keys, count, seed)
    assert (bins // (count // 3) == np.arange(3)[:, None]).all()
    assert (bins[:, held[full]] == full).any(0).all()
    target = hash_bins.bin_request_targets(bins, count)
    assert np.array_equal(np.sort(target), np.arange(count + 3 * rows))
    # after its bin, and before the next one
    begin = np.append(target[:count], count + 3 * rows)
    behind = target[count:].reshape(3, rows)
    assert (begin[bins] < behind).all() and (behind < begin[bins + 1]).all()


def test_keys_that_come_five_times_find_no_bins() -> None:
    with raises(DataError, "bins-not-placed"):
        hash_bins.place_rows_in_hash_bins(np.zeros(5, np.int64), 1026)


def test_rows_without_a_key_ask_anywhere() -> None:
    bins = hash_bins.draw_random_hash_bins(5000, 9)
    assert bins.shape == (3, 5000) and set(bins.flat) == set(range(9))


@pytest.mark.parametrize(
    "change",
    [
        *({"links": None}, {"links": [{}]}, {"links": [3]}, {"links": [LINK] * 17}),
        *({"links": [{**LINK, "bins": bins}]} for bins in ("3", 4, 1 << 31, -3)),
        *({"links": [{**LINK, key: "../x"}]} for key in ("column", "table", "deployment")),
        *({"seed": seed} for seed in (-1, 1 << 62, "1", True)),
        *({"hashed_by": name} for name in ("w", "x", 3)),
        *({"padded": False}, {"rows": 1025}, {"sorted_by": "w"}),
    ],
)
def test_headers_of_no_bins_or_links_are_refused(change: dict[str, object]) -> None:
    header = HASHED.schema.to_header()
    assert TableSchema.from_header({**header, "links": [LINK]}).to_header() == {
        **header,
        "links": [LINK],
    }
    with pytest.raises(UsageError):
        TableSchema.from_header({**header, **change})


@pytest.mark.parametrize("written", ["w", "w=u", "=u.id", "w=x.id", "w=u.w", "far=u.id", "x=u.id"])
def test_links_to_no_bins_are_refused(written: str) -> None:
    table = StoredTable({"w": "int[0,9]", "far": "int[0,99]"}, [(1, 2)])
    known = {"u": HASHED.client_view("u")}
    assert upload.parse_prepared_join("w=u.id", table.schema, known).to_header() == LINK
    with pytest.raises(UsageError):
        upload.parse_prepared_join(written, table.schema, known)
