"""Private record linkage: permissions, features and labels, and the linked rows."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from tests.refusals import raises
from tfe_bench.cluster.simulate import simulate
from tfe_bench.cluster.stored import LABEL_BITS
from tfe_bench.errors import PolicyError, TfeBenchError, UsageError
from tfe_bench.models.datasets import alignment, record_linkage
from tfe_bench.models.datasets.record_linkage import LinkageRequest
from tfe_bench.models.datasets.request import FEATURE_BITS, read_dataset_table
from tfe_bench.models.datasets.row_alignment import align_rows, price_alignment, reveal_row_count
from tfe_bench.protocols.session import io
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.queries import io as columns_io
from tfe_bench.queries import stored, upload
from tfe_bench.queries.rights import TableAccess
from tfe_bench.queries.schema import LARGEST, TableColumn, TableSchema
from tfe_bench.queries.types import parse_type

_RIGHTS = {"*": ("train",), "k": ("match",)}
_BANK = {"k": "int[0,99]", "x": "int[0,1000]", "y": "bool"}
_TELCO = {"k": "int[0,99]", "z": "int[-5,5]"}


def _make_table(
    name: str, owner: str, types: Mapping[str, str], more: Mapping[str, Any]
) -> TableAccess:
    columns = {
        n: TableColumn(parse_type(t.removesuffix("?")), t[-1] == "?") for n, t in types.items()
    }
    usual = {"unique": ("k",), "open_count": True, "rights": {"analyst": _RIGHTS}}
    return TableAccess(
        name, owner, "0" * 32, TableSchema(20, columns, **{**usual, **more}), "analyst"
    )


def _make_rights(**changed: tuple[str, ...]) -> dict[str, Any]:
    return {"rights": {"analyst": {**_RIGHTS, **changed}}}


# Changes of the bank's table, of the telecom company's, and of the request.
REFUSED: list[tuple[type[TfeBenchError], str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    (PolicyError, "'match'.*'k' of table 'calls'.*'telco'", {}, _make_rights(k=("train",)), {}),
    (PolicyError, "'train'.*'y' of table 'accounts'.*'bank'", _make_rights(y=("filter",)), {}, {}),
    (
        *(PolicyError, "'train'.*'z' of table 'calls'", {}),
        *(_make_rights(z=("aggregate", "match")), {"columns": ["x", "z"]}),
    ),
    (UsageError, "Of table 'calls' nothing is learned", {}, _make_rights(z=()), {}),
    (PolicyError, "how many rows.*'calls'.*'telco'.*--open-count", {}, {"open_count": False}, {}),
    (PolicyError, "Aligning for 'carol'.*'match'", {}, {}, {"clients": ["carol"]}),
    (PolicyError, "Aligning for all.*'match'", {}, {}, {"clients": ["*"]}),
    (UsageError, "unique in each table.*'calls'", {}, {"unique": ()}, {}),
    (UsageError, "one type and range.*0 to 99.*0 to 98", {}, {"types": {"k": "int[0,98]"}}, {}),
    (UsageError, "one type and range", {}, {"types": {"k": "category(a,b)"}}, {}),
    (UsageError, "None of these tables has a column 'k2'", {}, {}, {"columns": ["k2"]}),
    (UsageError, "table 'calls': there is no column 'id'", {}, {}, {"on": ["k=id"]}),
    (UsageError, "one for each of 2 tables", {}, {}, {"on": ["k=k=k"]}),
    (UsageError, "Several tables have a column 'k'", {}, {}, {"label": "k"}),
    (UsageError, "None of these tables has a column 'calls.x'", {}, {}, {"label": "calls.x"}),
    (UsageError, "a key, a feature or the label, once", {}, {}, {"columns": ["x", "y"]}),
    (UsageError, "a key, a feature or the label, once", {}, {}, {"columns": ["z", "z"]}),
    (UsageError, "may be NULL", {}, {"types": {"z": "int[0,9]?"}}, {}),
    (UsageError, "'z' of table 'calls', a text", {}, {"types": {"z": "text"}}, {}),
    (UsageError, "'z' of table 'calls', a date", {}, {"types": {"z": "date"}}, {}),
    (UsageError, "range has 42 bits.*'telco'.*--scale", {}, {"types": {"z": "int"}}, {}),
    (UsageError, "one word only", {"types": {"y": "category(a)"}}, {}, {}),
    (
        *(UsageError, "64 at most.*with 65", {}),
        *({"types": {"z": f"category({','.join(f'w{i}' for i in range(65))})"}}, {}),
    ),
    (UsageError, "not one person's alone.*'z'", {}, {"unit": "z"}, {}),
]


# Codes of refusals by their text above; other texts name a right, its column and owner.
CODES = {
    "Of table 'calls' nothing is learned": ("no-features",),
    "how many rows.*'calls'.*'telco'.*--open-count": ("open-count-required",),
    "unique in each table.*'calls'": ("key-not-unique",),
    "one type and range.*0 to 99.*0 to 98": ("type-mismatch",),
    "one type and range": ("type-mismatch",),
    "None of these tables has a column 'k2'": ("column-not-found",),
    "table 'calls': there is no column 'id'": ("column-not-found",),
    "one for each of 2 tables": ("invalid-key",),
    "Several tables have a column 'k'": ("ambiguous-column",),
    "None of these tables has a column 'calls.x'": ("column-not-found",),
    "a key, a feature or the label, once": ("duplicate-name",),
    "may be NULL": ("nullable-column",),
    "'z' of table 'calls', a text": ("unsupported-type",),
    "'z' of table 'calls', a date": ("unsupported-type",),
    "range has 42 bits.*'telco'.*--scale": ("unknown-scale",),
    "one word only": ("invalid-label",),
    "64 at most.*with 65": ("too-many-words",),
    "not one person's alone.*'z'": ("unit-not-unique",),
}


@pytest.mark.parametrize(("error", "text", "bank", "telco", "asked"), REFUSED)
def test_what_owners_do_not_permit_or_nobody_learns_from_is_refused(
    error: type[TfeBenchError],
    text: str,
    bank: dict[str, Any],
    telco: dict[str, Any],
    asked: dict[str, Any],
) -> None:
    def derived(bank: Mapping[str, Any], telco: Mapping[str, Any], **changes: Any) -> Any:
        tables = []
        for name, owner, types, more in (
            ("accounts", "bank", _BANK, bank),
            ("calls", "telco", _TELCO, telco),
        ):
            fields = {k: v for k, v in more.items() if k != "types"}
            tables.append(_make_table(name, owner, {**types, **more.get("types", {})}, fields))
        clients = changes.pop("clients", ())
        request = {"on": ["k"], "label": "y", "columns": None, **changes}
        order = LinkageRequest.from_header(
            json.loads(json.dumps(alignment.parse_linkage_request(tables, **request).to_header()))
        )
        return record_linkage.derive_linkage(order, tables, clients)

    linkage = derived({}, {})
    assert linkage.about["columns"] == ["x", "z"] and linkage.min_rows == 10
    with raises(error, *CODES.get(text, ("missing-right",))) as caught:
        derived(bank, telco, **asked)
    if text not in CODES:
        assert re.search(text, str(caught.value))


def _draw_edges(kind: str, n: int) -> list[int]:
    """Return elements of a type: its ends, and random ones."""
    parsed_type = parse_type(kind)
    return [
        parsed_type.low,
        parsed_type.high,
        *rng_of(kind).integers(parsed_type.low, parsed_type.high, n - 2, endpoint=True),
    ]


def rng_of(seed: str) -> np.random.Generator:
    return np.random.default_rng(list(seed.encode()))


# Types of features, some with scales: a feature is (element - center) / 2^shift.
KINDS: dict[str, tuple[int, int] | None] = {
    "bool": None,
    "category(a,b,c,d,e)": None,
    "int[0,0]": None,
    "int[7,8]": None,
    "int[0,4000000000]": None,
    "int[-1000,-3]": None,
    "decimal(2)[-9.99,1000]": None,
    "fixed(24)[-3,3]": None,
    "int": (40, -17),
    "int[0,4611686018427387903]": (61, 1 << 61),
    "int[0,4096]": (0, 0),
    "decimal(3)[0,4000000]": (21, 12345),
}


@pytest.mark.parametrize("owners", [2, 3])
def test_common_rows_become_features_and_labels_whatever_their_types(owners: int) -> None:
    """Every type at its ends, keys of two columns, a padded table, rows in other orders."""
    rng = np.random.default_rng(owners)
    n, common = 14, 11
    order = [rng.permutation(n) for _ in range(owners)]
    tables, held = [], []
    for i in range(owners):
        # (a row without match has a unique key)
        who = np.concatenate([np.arange(common), 20 + 10 * i + np.arange(n - common)])[order[i]]
        kinds = {f"c{i}_{j}": kind for j, kind in enumerate(KINDS) if j % owners == i}
        label = {2: {"y": "category(p,q,r)"}, 3: {"y": "decimal(1)[0,100]"}}[owners]
        kinds |= label if i == 1 else {}
        columns = {"k": parse_type("int[0,99]"), "b": parse_type("bool")}
        columns |= {name: parse_type(kind) for name, kind in kinds.items()}
        values = {"k": who, "b": who % 2}
        values |= {name: np.array(_draw_edges(kind, n))[order[i]] for name, kind in kinds.items()}
        scales = {name: KINDS.get(kind) for name, kind in kinds.items()}
        schema = TableSchema(
            n + 3 * i,
            {name: TableColumn(kind, scale=scales.get(name)) for name, kind in columns.items()},
            padded=i > 0,
            unique=("k",),
        )
        tables.append(TableAccess(f"t{i}", "own", "0" * 32, schema, "own"))
        elements = {
            name: columns_io.EncodedColumn(kind, values[name] - kind.offset, None)
            for name, kind in columns.items()
        }
        held.append((stored.encode_table_words(schema, elements, n), values))
    made_of = alignment.parse_linkage_request(tables, ["k", "b"], "y", None)
    linkage = record_linkage.derive_linkage(made_of, tables)

    def program(party: Party, *words: Shared) -> Any:
        def load(number: int, names: Sequence[str]) -> dict[str, Shared]:
            every = stored.stored_row_word_names(tables[number].schema)
            at = {name: every.index(name) for name in names}
            return {k: words[number].map(lambda a, i=i: a[i]) for k, i in at.items()}

        return align_rows(party, made_of, linkage, tables, load, "local")

    done = simulate(program, *(words for words, _ in held))
    assert {out[0] for out in done.outputs} == {common}
    x = done.value(lambda out: out[1]) / 2.0**FEATURE_BITS
    y = done.value(lambda out: out[2]) / 2.0**LABEL_BITS
    # the same in plaintext, for each matched row
    expected = []
    for person in range(common):
        row = []
        for feature in (*linkage.features, linkage.label):
            values = held[feature.table][1]
            element = int(values[feature.column][list(values["k"]).index(person)])
            if feature.schema_column.type.kind == "category":
                row += [float(element == j) for j in range(len(feature.names))]
            else:
                row.append((element - feature.center) / 2.0**feature.shift)
        expected.append(row)
    result = np.concatenate([x, y], 1)
    assert np.abs(result - expected).max() > 0.1  # (in another order than the keys)
    np.testing.assert_allclose(
        sorted(result.tolist()), sorted(expected), rtol=0, atol=2.0**-FEATURE_BITS
    )
    assert np.abs(x).max() <= LARGEST and x.shape == (common, linkage.about["x"][0])
    # the columns are those of the model's table, whose scale applies to values of files
    units = read_dataset_table({**linkage.about, "rows": common})
    assert units is not None and units.scale is not None
    for at, feature in enumerate(f for f in linkage.features for _ in f.names):
        own = feature.schema_column.type
        if own.kind == "number":
            value, element = own.high / own.denominator, own.high
            scaled = value * units.scale.factor[at] + units.scale.offset[at]
            assert abs(scaled - (element - feature.center) / 2.0**feature.shift) < 1e-6
    # the cost equals the price, except for rows without match
    assert price_alignment(made_of, linkage, tables).sent_bytes >= sum(done.sent) // 8


@pytest.mark.parametrize(("common", "least"), [(3, 3), (2, 3), (0, 1), (1, 1)])
def test_too_few_common_rows_are_not_counted(
    common: int, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: dict[int, list[int]] = {}
    reveal = io.reveal

    def recorded(party: Party, x: Shared, *more: Any, **named: Any) -> Any:
        opened.setdefault(party.index, []).append(x.ring_bits)
        return reveal(party, x, *more, **named)

    monkeypatch.setattr(io, "reveal", recorded)

    def program(party: Party, valid: Shared) -> int:
        return reveal_row_count(party, party.function(stored.stored_word_to_bit)(valid), least)

    rows = np.array([1] * common + [0] * (5 - common))
    if common < least:
        with raises(PolicyError, "group-too-small", expected=least):
            simulate(program, rows)
        assert opened == {p: [1] for p in range(3)}  # only that bit
        return
    assert simulate(program, rows).outputs == (common,) * 3
    assert opened == {p: [1, 64] for p in range(3)}


@pytest.mark.parametrize("kind", ["int", "int[0,100]", "decimal(2)[0,99999.99]", "fixed(24)[-9,9]"])
@pytest.mark.parametrize("spread", [0.0, 1e-6, 0.01, 0.3])
def test_a_scale_is_near_deviation_and_mean_and_tells_no_more(kind: str, spread: float) -> None:
    parsed_type, rng = parse_type(kind), rng_of(kind)
    wide = parsed_type.high - parsed_type.low
    middle = parsed_type.low + wide * 0.4
    elements = np.rint(rng.normal(middle, wide * spread, 500)).clip(
        parsed_type.low, parsed_type.high
    )
    held = columns_io.EncodedColumn(
        parsed_type, elements.astype(np.int64) - parsed_type.offset, None
    )
    assert upload.training_scale("c", held, []) is None
    scale = upload.training_scale("c", held, ["c"])
    assert scale is not None and scale == upload.training_scale("c", held, ["*"])
    TableColumn(parsed_type, scale=scale)  # (passes the check of the header)
    shift, center = scale
    scaled = (elements - center) / 2.0**shift
    assert np.abs(scaled).max() <= LARGEST
    assert center == parsed_type.high or (center - parsed_type.low) % max(1, 2**shift // 2) == 0
    if elements.std() >= 1 and wide < LARGEST:
        assert 0.7 <= scaled.std() <= 1.5 and abs(scaled.mean()) <= 0.3
    words = columns_io.EncodedColumn(
        parse_type("category(a,b)"), elements[:0].astype(np.int64), None
    )
    assert upload.training_scale("c", words, ["*"]) is None
    with raises(UsageError, "unsupported-type", operation="c"):
        upload.training_scale("c", words, ["c"])
    for wrong in ((-1, 0), (63, 0), (0, parsed_type.high + 1), (shift,), ("a", 0), (0, center)):
        if wrong != (0, center) or wide > LARGEST:
            with raises(UsageError, "invalid-scale"):
                TableColumn(parsed_type, scale=wrong)  # type: ignore[arg-type]
