"""Verification of receipts files: each chain of lines alone, and the three workers' together.

The signatures show which lines a worker has written, and the chain in which order.  Neither shows
that lines at the end are absent, or that a worker has written its whole chain again.  The two
others' files show that: they hold its signatures, which cover the chain up to them.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tfe_bench.cluster import job_receipts, receipts
from tfe_bench.cluster.receipts import JOB, MOST_LINE, NO_LINE, PEERS, START, Line
from tfe_bench.errors import DataError, SecurityError


class Place(NamedTuple):
    """A line of a file.

    Attributes:
        file: position of the file in the order of verification.
        path: its path.
        line: counted from 1.
    """

    file: int
    path: Path
    line: int

    def __str__(self) -> str:
        """Return the path and the line."""
        return f"{self.path}, line {self.line}"


class Witness(NamedTuple):
    """A party's signature of a line, as another party's file holds it."""

    place: Place
    party: int
    number: int
    signature: str


@dataclass
class Chain:
    """The verified lines of one party.

    Attributes:
        party: the signer.
        start: the last start line, and its place.
        clusters: the place of the first line with each digest of the cluster.
        keys: the place of the first line that each key has signed.
        pinned: the keys that its cluster files pinned for each party.
        places: the place of each line, and its signature, by number.
        jobs: (place, time) of each job that is done.
        witnesses: other parties' signatures that it holds.
        codes: numbers of recorded faults of peers' receipts.
        notes: facts worth reading that are no faults.
        first_at, last_at: times of the first and the last line.
        ends: numbers of jobs by their end.
    """

    party: int
    start: tuple[Place, Line]
    clusters: dict[str, Place] = field(default_factory=dict)
    keys: dict[str, Place] = field(default_factory=dict)
    pinned: tuple[set[str], set[str], set[str]] = field(
        default_factory=lambda: (set(), set(), set())
    )
    places: dict[int, tuple[Place, str]] = field(default_factory=dict)
    jobs: dict[str, tuple[Place, int]] = field(default_factory=dict)
    witnesses: list[Witness] = field(default_factory=list)
    codes: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    first_at: int = 0
    last_at: int = 0
    ends: Counter[str] = field(default_factory=Counter)


def format_receipt_time(at: int) -> str:
    """Format milliseconds since 1970 as a time in UTC."""
    try:
        moment = datetime.datetime.fromtimestamp(at / 1000, datetime.UTC)
    except (OverflowError, ValueError):
        return f"{at} ms"
    return f"{moment:%Y-%m-%d %H:%M:%S}Z"


def _broken_error(place: Place, finding: str) -> SecurityError:
    return SecurityError(
        f"{place}: {finding}",
        code="receipts-not-intact",
        operation=str(place.path),
        received=f"line {place.line}",
    )


def read_receipt_lines(path: Path, file: int = 0) -> Iterator[tuple[Place, Line, bytes]]:
    """Yield the lines of a file in their order; signatures and chain are not checked.

    Raises:
        DataError: the file cannot be read.
        SecurityError: a line is cut or malformed; names it.
    """
    party = -1
    try:
        with path.open("rb") as stream:
            for number, blob in enumerate(iter(lambda: stream.readline(MOST_LINE + 2), b""), 1):
                place = Place(file, path, number)
                if not blob.endswith(b"\n"):
                    raise _broken_error(
                        place,
                        f"the line is cut after {len(blob)} bytes. Its end was removed, or the "
                        "worker was stopped while it wrote the line.",
                    )
                try:
                    line = receipts.parse_line(blob[:-1], max(party, 0))
                except ValueError as error:
                    raise _broken_error(place, f"the line was altered: {error}.") from None
                if number == 1 and line.body["kind"] != START:
                    raise _broken_error(
                        place, "the file does not begin with a start line: lines were removed."
                    )
                if line.body["kind"] == START:
                    if party not in (-1, line.seal.party):
                        raise _broken_error(place, "the line is of another party.")
                    party = line.seal.party
                yield place, line, blob[:-1]
    except OSError as error:
        raise DataError(
            f"The receipts file {path} cannot be read. Received: {error.strerror}.",
            code="file-not-readable",
            received=error.strerror,
        ) from None
    if party == -1:
        raise _broken_error(Place(file, path, 1), "the file is empty: its lines were removed.")


def _order_files(paths: Sequence[Path]) -> list[list[Path]]:
    """Return the files of each party in the order in which its worker has written them."""
    by_party: dict[int, list[tuple[int, int, Path]]] = {}
    for position, path in enumerate(paths):
        _, start, _ = next(read_receipt_lines(path))
        by_party.setdefault(start.seal.party, []).append((start.body["file"], position, path))
    return [[path for _, _, path in sorted(files)] for _, files in sorted(by_party.items())]


def verify_receipt_files(paths: Sequence[Path], config: Any = None) -> list[Chain]:
    """Verify files of one, two or three parties; return each party's chain.

    Args:
        paths: files, of each party one or several that follow each other.
        config: the cluster file whose certificates must fit; None: the files' own keys.

    Raises:
        DataError: a file cannot be read.
        SecurityError: naming the first line that was removed, altered, reordered or backdated.
    """
    chains, file = [], 0
    for files in _order_files(paths):
        chains.append(_verify_chain(files, file))
        file += len(files)
    faults = [*_compare_chains(chains), *(_compare_cluster(chains, config) if config else ())]
    if faults:
        raise min(faults, key=lambda fault: fault[0])[1]
    return chains


def _verify_chain(paths: Sequence[Path], first_file: int) -> Chain:
    chain: Chain | None = None
    previous: tuple[Place, Line, str] | None = None
    own_jobs: dict[str, Line] = {}
    for offset, path in enumerate(paths):
        for place, line, blob in read_receipt_lines(path, first_file + offset):
            if chain is None:
                chain = Chain(line.seal.party, (place, line), first_at=line.seal.at)
            if line.body["kind"] == START:
                _read_start_line(chain, place, line)
            if not line.seal.is_valid(line.body_digest, [chain.start[1].body["key"]]):
                raise _broken_error(
                    place,
                    f"the line was altered, or another key than party {chain.party}'s has signed "
                    "it: its signature does not fit.",
                )
            _check_order(previous, place, line, paths[offset:])
            if line.body["kind"] == JOB:
                _read_job_line(chain, place, line, own_jobs)
            elif line.body["kind"] == PEERS:
                _read_peers_line(chain, place, line, own_jobs)
            chain.places[line.seal.number] = place, line.seal.signature
            chain.last_at = line.seal.at
            previous = place, line, receipts.digest_bytes(blob)
    assert chain is not None
    return chain


def _check_order(
    previous: tuple[Place, Line, str] | None, place: Place, line: Line, rest: Sequence[Path]
) -> None:
    number = line.seal.number
    if previous is None:
        if number <= 1 and (number, line.seal.before) != (1, NO_LINE):
            raise _broken_error(place, "the line is not the first that the worker wrote.")
        return
    before_place, before_line, before_digest = previous
    due = before_line.seal.number + 1
    if number > due:
        for later_place, later, _ in _read_while_intact(rest):
            if later.seal.number == due:
                raise _broken_error(
                    place,
                    f"lines were reordered: this is record {number}, and record {due} is in "
                    f"{later_place}.",
                )
        records = f"record {due}" if number == due + 1 else f"records {due} to {number - 1}"
        raise _broken_error(place, f"{records} before this line were removed.")
    if number < due:
        raise _broken_error(
            place, f"lines were reordered: this is record {number}, after record {due - 1}."
        )
    if line.seal.before != before_digest:
        raise _broken_error(
            before_place,
            f"the line was replaced: record {number} follows another record {number - 1}.",
        )
    if line.seal.at < before_line.seal.at:
        raise _broken_error(
            place,
            f"the line was backdated: {format_receipt_time(line.seal.at)} follows "
            f"{format_receipt_time(before_line.seal.at)}.",
        )


def _read_while_intact(paths: Sequence[Path]) -> Iterator[tuple[Place, Line, bytes]]:
    try:
        for path in paths:
            yield from read_receipt_lines(path)
    except (DataError, SecurityError):
        return


def _read_start_line(chain: Chain, place: Place, line: Line) -> None:
    chain.start, body = (place, line), line.body
    chain.clusters.setdefault(body["cluster"], place)
    if chain.keys and body["key"] not in chain.keys:
        chain.notes.append(f"{place}: party {chain.party} signs with another key from here on")
    chain.keys.setdefault(body["key"], place)
    for known, keys in zip(chain.pinned, body["keys"], strict=True):
        known.update(keys)
    if body["dropped"]:
        chain.notes.append(
            f"{place}: the worker was stopped during a write; it removed a half-written line of "
            f"{body['dropped']} bytes"
        )


def _read_job_line(chain: Chain, place: Place, line: Line, own_jobs: dict[str, Line]) -> None:
    chain.ends[line.body["end"]] += 1
    if line.body["end"] == job_receipts.DONE:
        name = line.body["facts"]["job"]
        chain.jobs[name] = place, line.seal.at
        own_jobs[name] = line


def _read_peers_line(chain: Chain, place: Place, line: Line, own_jobs: dict[str, Line]) -> None:
    own_line = own_jobs.pop(line.body["job"], None)
    for party, code, *row in line.body["receipts"]:
        if code:
            if not chain.codes[code]:
                chain.notes.append(f"{place}: recorded of party {party}: {code}")
            chain.codes[code] += 1
        if not row or code == receipts.WRONG_SIGNATURE:
            continue
        keys = chain.start[1].body["keys"][party]
        if own_line is not None and party != chain.party:
            expected = job_receipts.check_peer_receipt(own_line, party, row, keys)
            if expected != code:
                raise _broken_error(
                    place,
                    f"this line or that of job {line.body['job'][:12]} was altered: party "
                    f"{party}'s receipt of the job is {expected or 'right'}, recorded as "
                    f"{code or 'right'}.",
                )
        seal = receipts.decode_receipt_row(party, row)
        chain.witnesses.append(Witness(place, party, seal.number, seal.signature))


def _compare_chains(chains: Sequence[Chain]) -> Iterator[tuple[Place, SecurityError]]:
    """Yield the faults that several parties' files show."""
    by_party = {chain.party: chain for chain in chains}
    for chain in chains:
        others = [other for other in chains if other is not chain]
        for other in others[:1]:
            if not chain.clusters.keys() & other.clusters.keys():
                place = next(iter(chain.clusters.values()))
                yield (
                    place,
                    _broken_error(
                        place,
                        f"the file is of another cluster than the file of party {other.party}.",
                    ),
                )
                return
        known = set[str]().union(*(other.pinned[chain.party] for other in others))
        for key, place in chain.keys.items() if known else ():
            if key not in known:
                yield (
                    place,
                    _broken_error(
                        place,
                        f"the lines are signed by a foreign key: the other parties' files name "
                        f"another one for party {chain.party}.",
                    ),
                )
        for witness in chain.witnesses:
            signer = by_party.get(witness.party)
            if signer is not None and (fault := _compare_witness(chain, signer, witness)):
                yield fault
    yield from _compare_times(chains)


def _compare_witness(
    holder: Chain, signer: Chain, witness: Witness
) -> tuple[Place, SecurityError] | None:
    """Return the fault if a party's file lacks a line that another party holds the signature of."""
    numbers = signer.places
    if witness.number < next(iter(numbers)):  # in an earlier file
        return None
    evidence = f"party {holder.party} holds its signature ({witness.place})"
    if witness.number not in numbers:
        place = numbers[next(reversed(numbers))][0]
        text = (
            f"records up to {witness.number} after this line were removed, or their file is not "
            f"given: {evidence}."
        )
        return place, _broken_error(place, text)
    place, signature = numbers[witness.number]
    if signature == witness.signature:
        return None
    text = (
        f"record {witness.number} was altered or backdated after the workers had exchanged it: "
        f"{evidence}, which is another one."
    )
    return place, _broken_error(place, text)


def _compare_times(chains: Sequence[Chain]) -> Iterator[tuple[Place, SecurityError]]:
    if len(chains) < 3:
        return
    for chain in chains:
        others = [other.jobs for other in chains if other is not chain]
        for name, (place, at) in chain.jobs.items():
            times = [jobs[name][1] for jobs in others if name in jobs]
            if len(times) == 2 and all(
                abs(at - each) > job_receipts.MOST_CLOCK_DIFFERENCE for each in times
            ):
                text = (
                    f"the line was backdated: the job ended at {format_receipt_time(at)}, by the "
                    f"two other files at {format_receipt_time(times[0])}."
                )
                yield place, _broken_error(place, text)


def _compare_cluster(chains: Sequence[Chain], config: Any) -> Iterator[tuple[Place, SecurityError]]:
    """Yield the faults of chains whose present cluster and key are not those of a cluster file."""
    pinned_keys = receipts.list_pinned_keys(config)
    for chain in chains:
        place, line = chain.start
        if line.body["cluster"] != config.digest():
            text = "the file is of another cluster, or of another time of it, than cluster.toml."
            yield place, _broken_error(place, text)
        elif pinned_keys[chain.party] and line.body["key"] not in pinned_keys[chain.party]:
            text = (
                f"the lines are signed by a foreign key: cluster.toml pins another certificate "
                f"for party {chain.party}."
            )
            yield place, _broken_error(place, text)


def select_receipts(
    paths: Sequence[Path],
    client: str | None = None,
    table: str | None = None,
    day: str | None = None,
) -> Iterator[Line]:
    """Yield the lines of jobs, unverified.

    Args:
        client: the submitting client.
        table: a stored value that the job used or was charged for.
        day: YYYY-MM-DD in UTC, on which the job ended.

    Raises:
        DataError, SecurityError: as `read_receipt_lines`.
    """
    for path in paths:
        for _, line, _ in read_receipt_lines(path):
            facts: Mapping[str, Any] = line.body.get("facts", {})
            if (
                line.body["kind"] == JOB
                and client in (None, facts["client"])
                and (table is None or table in list_used_names(facts))
                and (day is None or format_receipt_time(line.seal.at).startswith(day))
            ):
                yield line


def list_used_names(facts: Mapping[str, Any]) -> list[str]:
    """Return the names of stored values that a job used or was charged for."""
    stored = (row[1] for row in facts.get("stored", ()) if len(row) > 1)
    return sorted({*stored, *facts.get("charged", {})})
