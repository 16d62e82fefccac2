"""Ends of jobs of the program "plain" (programs.py), as a client sees them."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from tests.refusals import raises
from tfe_bench.cluster.client import Client, new_job
from tfe_bench.cluster.requests import PrivateInput
from tfe_bench.errors import JobCancelled, UsageError

INPUTS = {"x": PrivateInput(np.arange(3))}
WAITING = {"wait": 60}


def end_plainly(client: Client) -> None:
    np.testing.assert_array_equal(client.run("plain", {}, INPUTS).outputs["x"], np.arange(3))


def end_in_failure(client: Client) -> None:
    with pytest.raises(UsageError, match="As ordered"):
        client.run("plain", {"fail": True}, INPUTS)


def end_refused(client: Client) -> None:
    with raises(UsageError, "unknown-program"):
        client.run("unknown", {}, INPUTS)


def end_by_leaving(
    client: Client, program: str = "plain", wait: Any = WAITING, inputs: Any = INPUTS
) -> None:
    """Raise in the progress callback of a long job, as Ctrl-C does."""

    def leave(fraction: float, text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        client.run(program, wait, inputs, leave)


def end_cancelled(client: Client) -> None:
    job = new_job()
    running = threading.Event()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            client.run("plain", WAITING, INPUTS, lambda *_: running.set(), job)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert running.wait(60), errors
    client.cancel(job)
    thread.join(60)
    assert isinstance(errors[0], JobCancelled), errors
