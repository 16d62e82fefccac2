"""worker.toml: what one operator lets its worker do.

Private to that operator; the other parties never see it, and its texts that travel to a client
name what was asked, not what the file holds.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfe_bench.cluster import tls
from tfe_bench.cluster.toml_file import Table, load_toml, naming_file
from tfe_bench.errors import ConfigError, PolicyError

ANY = "*"
DEFAULT_MAX_ELEMENTS = 1 << 26
DEFAULT_JOB_SECONDS = 3600.0
# VGG19's first dense layer has 98 * 2^20 weights.
MOST_ELEMENTS_LOCAL = 1 << 27
# Words of a job's largest array for each of max_elements: dealt material, products and pairs are
# larger than what they are made from.
GROWTH = 16
# Five epochs of a convolutional network over an emulated wan.
JOB_SECONDS_LOCAL = 86400.0
DEFAULT_MAX_JOBS = 16
DEFAULT_MAX_JOBS_PER_CLIENT = 8
DEFAULT_MAX_MODELS = 64
DEFAULT_STALL_SECONDS = 60.0
# A local cluster's client may be stopped, or busy with making an input.
STALL_SECONDS_LOCAL = 3600.0
# More than any model of Keras has.
DEFAULT_MAX_INPUTS = 4096
DEFAULT_MAX_BYTES_PER_JOB = 2 << 30
DEFAULT_MAX_BYTES_PER_CLIENT = 4 << 30
DEFAULT_MAX_BYTES = 8 << 30
MAX_BYTES_LOCAL = 1 << 40
DEFAULT_MAX_CONNECTIONS = 512
DEFAULT_MAX_CONNECTIONS_PER_ADDRESS = 32
_MOST_CONNECTIONS = 16384
# Each waiting job takes a thread and holds its inputs in memory.
MOST_JOBS = 40


_ANY_NUMBER = 1 << 62
# What worker.toml may set under [limits]: the default, the least and the most.
_LIMITS: dict[str, tuple[Any, int, int]] = {
    "max_elements": (DEFAULT_MAX_ELEMENTS, 1, _ANY_NUMBER),
    "job_seconds": (DEFAULT_JOB_SECONDS, 0, _ANY_NUMBER),
    "stall_seconds": (DEFAULT_STALL_SECONDS, 0, _ANY_NUMBER),
    "max_jobs": (DEFAULT_MAX_JOBS, 1, MOST_JOBS),
    "max_jobs_per_client": (DEFAULT_MAX_JOBS_PER_CLIENT, 1, MOST_JOBS),
    "max_models": (DEFAULT_MAX_MODELS, 1, _ANY_NUMBER),
    "max_inputs": (DEFAULT_MAX_INPUTS, 1, _ANY_NUMBER),
    "max_bytes_per_job": (DEFAULT_MAX_BYTES_PER_JOB, 1, _ANY_NUMBER),
    "max_bytes_per_client": (DEFAULT_MAX_BYTES_PER_CLIENT, 1, _ANY_NUMBER),
    "max_bytes": (DEFAULT_MAX_BYTES, 1, _ANY_NUMBER),
    "max_connections": (DEFAULT_MAX_CONNECTIONS, 64, _MOST_CONNECTIONS),
    "max_connections_per_address": (DEFAULT_MAX_CONNECTIONS_PER_ADDRESS, 1, _MOST_CONNECTIONS),
}


@dataclass(frozen=True)
class RevealRule:
    """Permission to reveal a program's results.

    Attributes:
        program: a program's name, or "*" for every program.
        to: names of clients in cluster.toml, or "*" for every client in it.
    """

    program: str
    to: tuple[str, ...]


@dataclass(frozen=True)
class WorkerPolicy:
    """What one worker permits; nothing is permitted that is not listed.

    Attributes:
        party: which party this worker is, 0, 1 or 2.
        key: the private key's file; None only without TLS.
        allow_programs: names of programs, or "*" for all that are installed.
        reveal: to whom what may be revealed.
        max_elements: 64-bit words of each input tensor (an element of Z_2^128 counts as two); the
            largest array that a job makes of them may have GROWTH times as many.
        job_seconds: after which a job is cancelled.
        allow_shaping: whether a client may have delay and rate imposed on this worker's messages.
        max_jobs: that run, wait or are being sent, of all clients together.
        max_jobs_per_client: the same of one client.
        models: the folder where deployed models' shares are kept; None keeps none.
        max_models: how many of them.
        stall_seconds: a client that neither sends what is due nor takes what is ready for so long
            has lost its job.
        max_inputs: of one job.
        max_bytes_per_job, max_bytes_per_client, max_bytes: of inputs and of results that were not
            taken, which are kept for one job, for one client's jobs, and for all jobs.
        max_connections: that others may hold open.
        max_connections_per_address: the same of one address, as long as nobody has called over
            them with a certificate of the cluster.

    Raises:
        ConfigError: ``party`` or a limit is out of range.
    """

    party: int
    key: Path | None = None
    allow_programs: tuple[str, ...] = ()
    reveal: tuple[RevealRule, ...] = ()
    max_elements: int = DEFAULT_MAX_ELEMENTS
    job_seconds: float = DEFAULT_JOB_SECONDS
    allow_shaping: bool = False
    max_jobs: int = DEFAULT_MAX_JOBS
    max_jobs_per_client: int = DEFAULT_MAX_JOBS_PER_CLIENT
    models: Path | None = None
    max_models: int = DEFAULT_MAX_MODELS
    stall_seconds: float = DEFAULT_STALL_SECONDS
    max_inputs: int = DEFAULT_MAX_INPUTS
    max_bytes_per_job: int = DEFAULT_MAX_BYTES_PER_JOB
    max_bytes_per_client: int = DEFAULT_MAX_BYTES_PER_CLIENT
    max_bytes: int = DEFAULT_MAX_BYTES
    max_connections: int = DEFAULT_MAX_CONNECTIONS
    max_connections_per_address: int = DEFAULT_MAX_CONNECTIONS_PER_ADDRESS

    def __post_init__(self) -> None:
        if self.party not in (0, 1, 2):
            raise ConfigError(f'"party" is 0, 1 or 2. Received: {self.party}. Say which one it is.')
        for name, (default, least, most) in _LIMITS.items():
            value = getattr(self, name)
            if type(default) is float:
                if not value > 0:
                    raise ConfigError(
                        f'[limits]: "{name}" is above 0. Received: {value}. '
                        f"The default is {default:g}."
                    )
            elif not least <= value <= most:
                span = f"{least} to {most}" if most < _ANY_NUMBER else f"at least {least}"
                raise ConfigError(
                    f'[limits]: "{name}" is {span}. Received: {value}. The default is {default}.'
                )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> WorkerPolicy:
        """Reads worker.toml, and checks the private key that it names.

        Raises:
            ConfigError: the file is missing, malformed, has unknown keys or unfit values, or the
                key is missing or unfit.
            SecurityError: other users of the machine can read the key.
        """
        path = Path(path)
        with naming_file(path):
            known = (
                "party",
                "key",
                "allow_programs",
                "allow_shaping",
                "reveal",
                "limits",
                "models",
            )
            top = Table(load_toml(path), "the file", known)
            rules = top.tables("reveal", ("program", "to"))
            limits = top.table("limits", tuple(_LIMITS))
            key, models = top.text("key", ""), top.text("models", "")
            values: dict[str, Any] = {
                name: limits.number(name, default)
                if type(default) is float
                else limits.integer(name, default)
                for name, (default, _, _) in _LIMITS.items()
            }
            policy = cls(
                party=top.integer("party"),
                key=path.parent / key if key else None,
                allow_programs=top.texts("allow_programs", ()),
                reveal=tuple(RevealRule(rule.text("program"), rule.texts("to")) for rule in rules),
                allow_shaping=top.boolean("allow_shaping", False),
                models=path.parent / models if models else None,
                **values,
            )
            if policy.key is not None:
                policy.load_key()
            return policy

    @classmethod
    def for_local(
        cls, party: int, key_path: str | os.PathLike[str] | None, models: Path | None = None
    ) -> WorkerPolicy:
        """Permits everything: for a throw-away cluster whose three workers one user owns.

        Args:
            party: 0, 1 or 2.
            key_path: the private key's file; None without TLS.
            models: where deployed models are kept; None keeps none.
        """
        return cls(
            party=party,
            key=None if key_path is None else Path(key_path),
            allow_programs=(ANY,),
            reveal=(RevealRule(ANY, (ANY,)),),
            allow_shaping=True,
            max_elements=MOST_ELEMENTS_LOCAL,
            job_seconds=JOB_SECONDS_LOCAL,
            stall_seconds=STALL_SECONDS_LOCAL,
            max_bytes_per_job=MAX_BYTES_LOCAL,
            max_bytes_per_client=MAX_BYTES_LOCAL,
            max_bytes=MAX_BYTES_LOCAL,
            models=models,
        )

    def load_key(self) -> bytes:
        """The private key (PEM).

        Raises:
            ConfigError: no key is named, or the file is missing or unfit.
            SecurityError: other users of the machine can read it.
        """
        if self.key is None:
            raise ConfigError(
                f'worker.toml of party {self.party}: "key" is missing, and TLS needs it. '
                f'Add: key = "party{self.party}.key".'
            )
        return tls.load_private_key(self.key)

    def permit_program(self, name: str) -> None:
        """Permits running a program.

        Raises:
            PolicyError: it is not listed.
        """
        if name not in self.allow_programs and ANY not in self.allow_programs:
            raise PolicyError(
                f"Party {self.party} does not allow this program. Received: program "
                f"{_shown(name)}. Its operator would allow it by adding {_shown(name)} to the "
                "line allow_programs = [...] in worker.toml."
            )

    def permit_reveal(self, program: str, to: str) -> None:
        """Permits revealing a program's results to a client.

        Args:
            program: the program's name.
            to: the client's name in cluster.toml.

        Raises:
            PolicyError: no rule allows it.
        """
        for rule in self.reveal:
            if rule.program in (program, ANY) and (to in rule.to or ANY in rule.to):
                return
        raise PolicyError(
            f"Party {self.party} does not allow this reveal. Received: program {_shown(program)}, "
            f"to client {_shown(to)}. Its operator would allow it by adding to worker.toml: "
            f"[[reveal]] with the lines program = {_shown(program)} and to = [{_shown(to)}]."
        )

    def permit_shaping(self) -> None:
        """Permits that a job's messages are delayed and slowed down.

        Raises:
            PolicyError: this worker does not.
        """
        if not self.allow_shaping:
            raise PolicyError(
                f"Party {self.party} does not let clients emulate a network. Received: a job with "
                'a --profile other than "local". Its operator would allow it by the line '
                "allow_shaping = true in worker.toml."
            )

    def permit_elements(self, count: int) -> None:
        """Permits an input tensor of ``count`` elements.

        Raises:
            PolicyError: the count is above the limit, or negative.
        """
        if not 0 <= count <= self.max_elements:
            raise PolicyError(
                f"Party {self.party} does not allow inputs of this size. Received: {count} "
                f"elements, the limit is {self.max_elements}. Send a smaller input, or its "
                "operator raises max_elements under [limits] in worker.toml."
            )

    def permit_inputs(self, count: int) -> None:
        """Permits a job of ``count`` inputs.

        Raises:
            PolicyError: the count is above the limit.
        """
        if count > self.max_inputs:
            raise PolicyError(
                f"Party {self.party} does not allow so many inputs. Received: {count}, the limit "
                f"is {self.max_inputs}. Its operator raises max_inputs under [limits] in "
                "worker.toml."
            )

    def permit_largest(self, count: int) -> None:
        """Permits a job whose largest array, of whatever it makes, has `count` words.

        Raises:
            PolicyError: that is above GROWTH times max_elements.
        """
        most = GROWTH * self.max_elements
        if count > most:
            raise PolicyError(
                f"Party {self.party} does not allow a job of this size. Received: arrays of up to "
                f"{count} words, the limit is {most}. Order less at once, or its operator raises "
                f"max_elements (a {GROWTH}th of this limit) under [limits] in worker.toml."
            )


def _shown(name: str) -> str:
    """A name that a client sent, fit for a log: on one line, in quotes, not too long."""
    shown = json.dumps(name)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
