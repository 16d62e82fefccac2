"""Three workers' receipts without workers: their books, jobs and exchanges."""

from __future__ import annotations

import dataclasses
import time
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from tfe_bench.cluster import tls
from tfe_bench.cluster.config import ClusterConfig, PartyConfig
from tfe_bench.cluster.files import write_secret_file
from tfe_bench.cluster.job_use import JobUse
from tfe_bench.cluster.jobs import InputSpec
from tfe_bench.cluster.policy import WorkerPolicy
from tfe_bench.cluster.worker.pending import Job
from tfe_bench.cluster.worker.receipts import ReceiptBook, ReceiptExchange

BUILD = {"version": "1", "abi": 1, "tensorflow": "2", "isa": "avx"}


class Books:
    """Three books that exchange receipts as workers do.

    Args:
        folder: for keys and receipts.
        limits: of the three policies.
    """

    def __init__(self, folder: Path, **limits: Any) -> None:
        self.folder = folder
        pairs = [tls.make_self_signed_certificate(tls.party_common_name(p)) for p in range(3)]
        self.config = ClusterConfig(
            "trial",
            tuple(PartyConfig(p, f"p{p}", "127.0.0.1", 7700 + p, pairs[p][1]) for p in range(3)),
        )
        self.policies = []
        for party, (key, _) in enumerate(pairs):
            path = folder / f"party{party}.key"
            write_secret_file(path, key)
            receipts = folder / f"receipts{party}"
            self.policies.append(WorkerPolicy(party, path, receipts=receipts, **limits))
        self.books: list[ReceiptBook] = []
        self.start()

    def start(self) -> None:
        """Start the three books."""
        self.books = [ReceiptBook(self.config, policy) for policy in self.policies]
        for book in self.books:
            book.start_writing(BUILD)

    def close(self) -> None:
        """Close the three books, so that all their lines are written."""
        for book in self.books:
            book.close_book()

    def run_job(self, client: str = "analyst", use: JobUse | None = None) -> list[Job]:
        """Run a job at the three workers; return it as each has it."""
        jobs = make_jobs(client, use)
        for book, job in zip(self.books, jobs, strict=True):
            book.sign_result(job, True)
        exchange_receipts(
            [book.start_exchange([job]) for book, job in zip(self.books, jobs, strict=True)]
        )
        return jobs

    def files(self, party: int) -> list[Path]:
        """Return a party's files."""
        return sorted((self.folder / f"receipts{party}").iterdir())

    def lines(self, party: int) -> list[bytes]:
        """Return the lines of a party's only file, with their ends."""
        [file] = self.files(party)
        return file.read_bytes().splitlines(keepends=True)


def make_jobs(client: str = "analyst", use: JobUse | None = None, **more: Any) -> list[Job]:
    """Return one job as the three workers have it."""
    fields = {
        "name": uuid.uuid4().hex,
        "client": client,
        "header": {"program": "sort"},
        "digest": "ab" * 32,
        "inputs": [InputSpec("keys", (4,), 0)],
        "submitted": time.monotonic(),
        "began": time.monotonic(),
        "receipt": None,
        **more,
    }
    return [
        cast(Job, SimpleNamespace(**{**fields, "use": dataclasses.replace(use or JobUse())}))
        for _ in range(3)
    ]


def exchange_receipts(exchanges: list[ReceiptExchange]) -> None:
    """Deliver the messages of three exchanges."""
    for party, exchange in enumerate(exchanges):
        for peer, other in enumerate(exchanges):
            if peer != party:
                exchange.receive_message(peer, other.message)
