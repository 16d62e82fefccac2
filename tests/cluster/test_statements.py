"""A worker that states different things to the two others: both refuse, and act on neither."""

from __future__ import annotations

import ast
import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from tests.cluster.conftest import wait_until
from tests.cluster.test_joined_sessions import JoinedSessions
from tests.paths import ROOT
from tfe_bench.cluster import stored_shares
from tfe_bench.cluster.ledger import PrivacyLossCharge
from tfe_bench.cluster.requests import PrivateInput
from tfe_bench.cluster.spool import IDENTIFIER_BYTES
from tfe_bench.cluster.store import ShareStore
from tfe_bench.cluster.stored import DATA, StoredFacts, StoredTensor
from tfe_bench.cluster.worker import batching
from tfe_bench.errors import ProtocolError, TfeBenchError
from tfe_bench.models.inference.ahead import PredictionMaterial
from tfe_bench.models.training.checkpoint import Checkpoints
from tfe_bench.protocols.session.party import Party
from tfe_bench.queries.programs import query

if TYPE_CHECKING:
    from tests.cluster.conftest import Trio

pytestmark = pytest.mark.usefixtures("as_in_a_worker")
_FOLDERS = ("protocols", "models", "cluster", "benchmarks", "tfe_bench")
_BY_FACTS = ("exchange_facts", "have_same_fact")
# Uses of what `exchange` and `exchange_each` return, besides those methods of Party: comparisons of
# copies, the clocks of a trace, and an offer whose digest was agreed on.
_RAW_USES = {
    "cluster/holders.py find_differing_peer",
    "cluster/worker/batching.py exchange_batch_offer",
    "protocols/session/timeline.py measure_party_clock_gaps",
}


# ---- all facts come through one door


def _list_calls(names: tuple[str, ...], is_used: bool = False) -> Counter[str]:
    """Count the product's calls of methods, by file and function.

    Args:
        is_used: count only calls whose result is used.
    """
    calls: Counter[str] = Counter()
    for folder in _FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            place = path.relative_to(ROOT).as_posix()
            if path.is_symlink() or any(p.is_symlink() for p in path.parents):
                continue
            text = path.read_text(encoding="utf-8")
            if place == "protocols/session/party.py" or not any(f".{n}(" in text for n in names):
                continue
            for function in ast.walk(ast.parse(text)):
                if not isinstance(function, ast.FunctionDef):
                    continue
                unused = {id(s.value) for s in ast.walk(function) if isinstance(s, ast.Expr)}
                for call in ast.walk(function):
                    if (
                        isinstance(call, ast.Call)
                        and isinstance(call.func, ast.Attribute)
                        and call.func.attr in names
                        and not (is_used and id(call) in unused)
                    ):
                        calls[f"{place} {function.name}"] += 1
    return calls


def test_what_peers_state_is_used_only_after_all_three_compared_it() -> None:
    raw = set(_list_calls(("exchange", "exchange_each"), is_used=True))
    assert {use for use in raw if "handshake" not in use} == _RAW_USES
    assert _list_calls(_BY_FACTS) == {place: len(_find_lies(place)) for place, _ in _PLACES}


# ---- each fact


def _offer_batch(party: Party, store: ShareStore) -> None:
    jobs = [SimpleNamespace(name="a" * 32, digest="b")] if party.index == 0 else []
    batching.exchange_batch_offer(party, cast(Any, jobs))


def _vote_on_batch(party: Party, store: ShareStore) -> None:
    batching.agree_on_batch_jobs(party, [True])


def _make_checkpoints(party: Party, store: ShareStore) -> Checkpoints:
    return Checkpoints(party, store, "net", "alice", {}, frozenset())


def _load_checkpoint(party: Party, store: ShareStore) -> None:
    _make_checkpoints(party, store).load_latest()


def _check_checkpoint_owner(party: Party, store: ShareStore) -> None:
    _make_checkpoints(party, store).check_owner()


def _store_shares(party: Party, store: ShareStore) -> None:
    facts = StoredFacts("rows", "alice", (), "", {})
    stored_shares.store_share_values(party, store.for_kind(DATA), facts, {})


def _remove_shares(party: Party, store: ShareStore) -> None:
    stored_shares.remove_stored_shares(party, store.for_kind(DATA), "rows", "alice")


def _charge_privacy(party: Party, store: ShareStore) -> None:
    query.charge(
        party,
        store.ledger,
        {"t": PrivacyLossCharge("bank", 100, 1)},
    )


def _make_material(party: Party, store: ShareStore) -> Any:
    material: Any = object.__new__(PredictionMaterial)
    entry = SimpleNamespace(identifier=b"i" * IDENTIFIER_BYTES, material=SimpleNamespace(sent=0))
    place = store.folder / "kept"

    def keep_only(name: str, is_kept: object) -> None:
        place.touch()

    material._party, material._binding = party, b""
    material.used = material.made_bytes = 0
    material.setting = SimpleNamespace(entries=2)
    material._facts = SimpleNamespace(name="net", deployment="d")
    material._spool = SimpleNamespace(
        burn_first=lambda binding: SimpleNamespace(entry=entry, close_file=lambda: None),
        list_ready=lambda binding: [],
        check_entries=lambda: None,
        keep_only=keep_only,
        begin_entry=lambda *arguments: SimpleNamespace(
            finish_entry=lambda: entry, discard_entry=lambda: None
        ),
    )
    material._build_placeholders = lambda: []
    material._get_function = lambda: SimpleNamespace(
        use_material=lambda *arguments: party.agree("The traced graph", b"online"),
        make_material=lambda *arguments: SimpleNamespace(wipe_masks=lambda: None),
    )
    return material


def _predict_ahead(party: Party, store: ShareStore) -> None:
    _make_material(party, store).predict_batch({}, [])


def _fill_ahead(party: Party, store: ShareStore) -> None:
    _make_material(party, store)._fill_one({}, lambda: True, lambda reason: None)


# Each place of a fact, with a call that reaches it, and the number of facts before it.
_AHEAD = "models/inference/ahead.py"
_Place = tuple[str, tuple[Callable[[Party, ShareStore], None], int]]
_PLACES: tuple[_Place, ...] = (
    ("cluster/worker/batching.py exchange_batch_offer", (_offer_batch, 0)),
    ("cluster/worker/batching.py agree_on_batch_jobs", (_vote_on_batch, 0)),
    ("models/training/checkpoint.py load_latest", (_load_checkpoint, 0)),
    ("models/training/checkpoint.py check_owner", (_check_checkpoint_owner, 0)),
    ("cluster/stored_shares.py store_share_values", (_store_shares, 0)),
    ("cluster/stored_shares.py remove_stored_shares", (_remove_shares, 0)),
    ("tfe_bench/queries/programs/query.py charge", (_charge_privacy, 0)),
    (f"{_AHEAD} predict_batch", (_predict_ahead, 0)),
    (f"{_AHEAD} _agree_on_entries", (_fill_ahead, 0)),
    (f"{_AHEAD} _fill_one", (_fill_ahead, 1)),
    (f"{_AHEAD} _fill_one", (_fill_ahead, 2)),
)


def _find_lies(place: str) -> list[Any]:
    return [entry for name, entry in _PLACES if name == place]


@pytest.fixture
def joined() -> Iterator[JoinedSessions]:
    three = JoinedSessions()
    yield three
    three.close()


class _HasLied(Exception):
    """The liar's work is done."""


def _lie_to_one(party: Party, lies_before: int) -> None:
    """Make a party state a fact to one peer and another fact to the other, with fitting digests."""
    honest, peers = lies_before, [p for p in range(3) if p != party.index]
    exchange_facts = party.exchange_facts

    def state_both(subject: str, payload: bytes) -> Any:
        nonlocal honest
        if honest:
            honest -= 1
            return exchange_facts(subject, payload)
        altered = payload[:-1] + bytes([payload[-1] ^ 1])
        statements = {peers[0]: payload, peers[1]: altered}
        received = party.exchange_each(statements)
        digests = {}
        for peer in peers:
            facts = {**received, party.index: statements[peer]}
            digests[peer] = hashlib.sha256(b"".join(facts[p] for p in range(3))).digest()
        party.exchange_each(digests)
        raise _HasLied

    party.exchange_facts = party.have_same_fact = state_both  # type: ignore[method-assign]


def _read_files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("liar", range(3))
@pytest.mark.parametrize(("place", "entry"), _PLACES, ids=[f"{n}-{e[1]}" for n, e in _PLACES])
def test_a_worker_that_states_two_things_is_refused_by_both_others(
    joined: JoinedSessions, tmp_path: Path, place: str, entry: Any, liar: int
) -> None:
    work, lies_before = entry
    words = StoredTensor({"m": np.zeros(3, np.int64)}, 0, 16)
    stores = [ShareStore(tmp_path / str(p), p, 64, 16, 9) for p in range(3)]
    for store in stores:
        facts = StoredFacts("rows", "alice", (), "d1", {})
        store.for_kind(DATA).prepare_file(facts, {"x": words}).commit()
    _lie_to_one(joined.parties[liar], lies_before)
    before = _read_files(tmp_path)
    errors = joined.run_each(lambda party: work(party, stores[party.index]))
    assert isinstance(errors.pop(liar), _HasLied)
    codes = [error.code for error in errors]
    if place.endswith("predict_batch"):  # one of them goes on, to a graph that no peer traced
        assert codes == ["parties-disagree", "statements-differ"]
    else:
        assert codes == ["statements-differ"] * 2
        for error in errors:
            assert isinstance(error, ProtocolError) and "different statements about" in str(error)
            assert error.party is None  # neither of two honest workers is named as the cause
    after = _read_files(tmp_path)
    if lies_before:  # (the first fact was true)
        after = {path: blob for path, blob in after.items() if path.name != "kept"}
    assert after == before


def test_facts_on_which_all_agree_take_one_round_or_two(joined: JoinedSessions) -> None:
    def state(party: Party) -> list[Any]:
        steps, results = [], []
        for work in (
            lambda: party.have_same_fact("it", b"same"),
            lambda: party.have_same_fact("it", bytes([party.index])),
            lambda: party.exchange_facts("it", bytes([party.index])),
        ):
            before = party._step
            results.append(work())
            steps.append(party._step - before)
        return [*results, steps]

    same, other, facts, steps = joined.run(state)[0]
    assert (same, other, facts) == (True, False, (b"\0", b"\1", b"\2"))
    assert steps == [1, 2, 2]


def test_an_offer_that_does_not_fit_its_digest_is_refused(joined: JoinedSessions) -> None:
    jobs: Any = [SimpleNamespace(name="a" * 32, digest="b")]
    exchange = joined.parties[0].exchange

    def alter_offer(payload: bytes) -> Any:
        return exchange(payload.replace(b"aaa", b"aab"))

    joined.parties[0].exchange = alter_offer  # type: ignore[method-assign]
    errors = joined.run_each(
        lambda party: batching.exchange_batch_offer(party, [] if party.index else jobs)
    )
    assert [error.code for error in errors[1:]] == ["malformed-message"] * 2


# ---- in workers


def _count_refusals(caplog: pytest.LogCaptureFixture) -> int:
    return sum("different statements" in record.getMessage() for record in caplog.records)


def test_party_0_that_offers_different_jobs_ends_the_job_at_both_others(
    trio: Trio, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    exchange_facts = Party.exchange_facts

    def lie(self: Party, subject: str, payload: bytes) -> Any:
        if self.index == 0:
            _lie_to_one(self, 0)
            return self.exchange_facts(subject, payload)
        return exchange_facts(self, subject, payload)

    monkeypatch.setattr(Party, "exchange_facts", lie)
    client = trio.client("analyst")
    inputs = {"x": PrivateInput(np.arange(3))}
    with caplog.at_level(logging.WARNING, "tfe_bench.worker"):
        with pytest.raises(TfeBenchError) as caught:
            client.run("batched", {}, inputs)
        wait_until(lambda: _count_refusals(caplog) >= 2, "both others have refused", 20)
    assert "different statements about the jobs of this batch" in str(caught.value)
    monkeypatch.undo()
    result = client.run("batched", {}, inputs)
    np.testing.assert_array_equal(result.outputs["x"], np.arange(3))
