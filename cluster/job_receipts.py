"""Receipts of jobs: their facts, their exchange between workers, and a client's check of them.

The three workers and the client state the same facts about a job. So a worker sends its signature
alone, and the others check it against the facts that they know.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfe_bench.cluster import tls
from tfe_bench.cluster.jobs import NOTHING, InputSpec, digest_job
from tfe_bench.cluster.receipts import (
    DIFFERS,
    JOB,
    TIME_DIFFERS,
    UNVERIFIED,
    WRONG_SIGNATURE,
    Line,
    Seal,
    decode_receipt_row,
    digest_bytes,
    encode_canonical,
    is_receipt_row,
)
from tfe_bench.errors import ProtocolError
from tfe_bench.protocols.session.openings import Opening, encode_openings

if TYPE_CHECKING:
    from tfe_bench.cluster.config import ClusterConfig

# End of a job whose results were ready; other ends are codes of errors.
DONE = "done"
# Clocks of workers that differ by more milliseconds are reported.
MOST_CLOCK_DIFFERENCE = 600_000
# Bounds of a line's texts: characters, names of inputs, stored values and columns of one.
_MOST_TEXT, _MOST_NAMES, _MOST_ROWS = 80, 16, 32


def _bound_texts(texts: Sequence[str], most: int) -> list[str]:
    shown = [text[:_MOST_TEXT] for text in texts[:most]]
    return [*shown, f"{len(texts) - most} more"] if len(texts) > most else shown


def _count_rest(count: int) -> list[list[str]]:
    return [[f"{count} more"]] if count > 0 else []


def build_job_facts(
    job: str,
    client: str,
    program: str,
    plan: str,
    cluster: str,
    version: str,
    inputs: Sequence[InputSpec],
    has_results: bool,
    opened: Iterable[Opening],
    stored: Sequence[Sequence[str]] = (),
    charged: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the facts about a job, which are equal at its three workers and its client.

    Args:
        plan: jobs.digest_job of it.
        cluster: the digest of the cluster's parties and settings.
        inputs: those that the client sent, and owns.
        has_results: whether the client receives results; no other member does.
        stored, charged: from JobUse.list_stored and JobUse.charged.
    """
    return {
        "job": job,
        "client": client,
        "program": program,
        "plan": plan,
        "cluster": cluster,
        "version": version,
        "inputs": _bound_texts([spec.name for spec in inputs], _MOST_NAMES),
        **_result_facts(client, has_results, opened),
        "stored": [
            _bound_texts(row, _MOST_ROWS)
            for row in (*stored[:_MOST_ROWS], *_count_rest(len(stored) - _MOST_ROWS))
        ],
        "charged": dict(charged or {}),
    }


def _result_facts(client: str, has_results: bool, opened: Iterable[Opening]) -> dict[str, Any]:
    return {
        "recipients": [client] if has_results else [],
        "opened": [list(row) for row in encode_openings(opened) or ()],
    }


def build_job_body(facts: Mapping[str, Any], began: int, end: str = DONE) -> dict[str, Any]:
    """Return the fields of a job's line.

    Args:
        began: milliseconds since 1970.
        end: DONE, or the code of the error that ended it.
    """
    return {"kind": JOB, "began": began, "end": end, "facts": dict(facts)}


def encode_receipt_row(line: Line, with_digest: bool = False) -> list[Any]:
    """Return the receipt of a job's line: what another one with its facts needs to check it.

    Args:
        with_digest: append the digest of the line's fields, which separates a signature over other
            facts from a wrong one.
    """
    seal = line.seal
    row = [seal.number, seal.before, line.body["began"], seal.at, seal.signature]
    return [*row, line.body_digest] if with_digest else row


def check_peer_receipt(
    own_line: Line, party: int, row: Sequence[Any], public_keys: Sequence[str]
) -> str:
    """Compare another worker's receipt of a job with one's own line; return "" or what is wrong.

    Args:
        row: from `encode_receipt_row`, with the digest.
        public_keys: that cluster.toml pins for the party.
    """
    seal, digest = decode_receipt_row(party, row), str(row[5])
    if public_keys and not seal.is_valid(digest, public_keys):
        return WRONG_SIGNATURE
    if digest_bytes(encode_canonical({**own_line.body, "began": row[2]})) != digest:
        return DIFFERS
    if abs(seal.at - own_line.seal.at) > MOST_CLOCK_DIFFERENCE:
        return TIME_DIFFERS
    return "" if public_keys else UNVERIFIED


# ---- a client's receipt


def expect_job_facts(
    config: ClusterConfig,
    header: Mapping[str, Any],
    client: str,
    certificate: bytes,
    inputs: Sequence[InputSpec],
) -> dict[str, Any]:
    """Return what a client knows of a job when it submits it.

    Args:
        header: the submission.
        certificate: the client's own (PEM).
    """
    fingerprint = tls.compute_certificate_fingerprint(certificate) if config.tls else ""
    parameters = json.loads(json.dumps(header["parameters"]))
    plan = digest_job(
        *(header["program"], parameters, client, fingerprint, inputs),
        *(header["shaping"], header["warm_up_bytes"], header["opens"] == NOTHING),
    )
    return build_job_facts(
        *(header["job"], client, header["program"], plan, header["cluster"], header["version"]),
        *(inputs, False, ()),
    )


def complete_job_facts(
    facts: Mapping[str, Any], has_results: bool, opened: Iterable[Opening]
) -> dict[str, Any]:
    """Return the facts of `expect_job_facts` with what a client knows after the job."""
    return {**facts, **_result_facts(str(facts["client"]), has_results, opened)}


@dataclass(frozen=True)
class JobReceipt:
    """The receipt of a job: its facts, signed by three workers.

    Attributes:
        facts: what the workers state about the job; docs/audit.md describes the fields.
        began: when it began at each worker, milliseconds since 1970.
        seals: each worker's signature, with the place of the line in that worker's file.
        is_verified: whether the signatures fit the certificates in cluster.toml; False without TLS.
    """

    facts: Mapping[str, Any]
    began: tuple[int, int, int]
    seals: tuple[Seal, Seal, Seal]
    is_verified: bool

    def to_json(self) -> str:
        """Return the receipt as JSON: the three workers' lines."""
        lines = (
            Line(seal, build_job_body(self.facts, began)).encode_line().decode()
            for seal, began in zip(self.seals, self.began, strict=True)
        )
        return "\n".join(lines) + "\n"


def check_client_receipts(
    events: Sequence[Mapping[str, Any]],
    facts: Mapping[str, Any],
    pinned_keys: Sequence[Sequence[str]],
) -> JobReceipt:
    """Return the receipt of a job from the three workers' last events.

    Args:
        events: with the fields of `encode_client_fields`.
        facts: as the client knows them: without stored values and charges.
        pinned_keys: of each party; empty without TLS.

    Raises:
        ProtocolError: a receipt is absent, its signature does not fit, or the workers disagree.
    """
    complete_facts = {
        **facts,
        "stored": events[0].get("stored", []),
        "charged": events[0].get("charged", {}),
    }
    seals, began = [], []
    for party, event in enumerate(events):
        row = event.get("receipt")
        if not is_receipt_row(row, has_digest=False):
            raise _client_receipt_error(party, "no receipt")
        assert isinstance(row, list)
        seal = decode_receipt_row(party, row)
        if pinned_keys[party]:
            digest = digest_bytes(encode_canonical(build_job_body(complete_facts, row[2])))
            if not seal.is_valid(digest, pinned_keys[party]):
                raise _client_receipt_error(
                    party, "a signature that does not fit the job and this party's certificate"
                )
        seals.append(seal)
        began.append(row[2])
    return JobReceipt(
        complete_facts,
        (began[0], began[1], began[2]),
        (seals[0], seals[1], seals[2]),
        all(pinned_keys),
    )


def encode_client_fields(line: Line) -> dict[str, Any]:
    """Return the fields of a job's last event from which its client checks the receipt."""
    facts = line.body["facts"]
    unknown = {name: facts[name] for name in ("stored", "charged") if facts[name]}
    return {"receipt": encode_receipt_row(line), **unknown}


def _client_receipt_error(party: int, received: str) -> ProtocolError:
    return ProtocolError(
        f"Expected party {party}'s signed receipt of this job. Received: {received}. No value of "
        "this job was returned. The worker states other facts than this client knows, or signs "
        "with another key: compare its receipts with those of the other workers (audit verify).",
        code="receipt-invalid",
        operation="receipt",
        party=party,
    )
