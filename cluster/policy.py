"""worker.toml: the permissions and limits of one operator's worker.

The file is private to that operator; the other parties never see it.  Error texts that a client
receives name the request, not the contents of the file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from dataclasses import Field, dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfe_bench.cluster import handles, tls, toml_file
from tfe_bench.cluster.config import ClusterConfig
from tfe_bench.cluster.jobs import DECLARED, NOTHING, OPENS, Size, installed_programs
from tfe_bench.cluster.schema import choice_field, declare_field
from tfe_bench.cluster.toml_file import (
    TomlTable,
    load_toml,
    prefix_config_errors,
    quote_received_value,
    table_field,
    tables_field,
)
from tfe_bench.errors import ConfigError, PolicyError, did_you_mean

if TYPE_CHECKING:
    from tfe_bench.protocols.session.openings import Opening

ANY = "*"
DEFAULT_MAX_ELEMENTS = 1 << 26
# Of a local cluster: VGG19's first dense layer has 98 * 2^20 weights.
MOST_ELEMENTS_LOCAL = 1 << 27
# Words of a job's largest array for each of max_elements: correlated randomness, products and
# pairs are larger than their inputs.
GROWTH = 16
# Of a local cluster: five epochs of a convolutional network over an emulated wan; its client may
# be stopped, or busy with the creation of an input.
JOB_SECONDS_LOCAL, STALL_SECONDS_LOCAL = 86400.0, 3600.0
MAX_BYTES_LOCAL = 1 << 40
_MOST_CONNECTIONS = 16384
# Each waiting job occupies a thread and holds its inputs in memory.
MOST_JOBS = 40
_ANY_NUMBER = 1 << 62


# Settings that a worker reads only when it starts.
_STARTUP_FIELDS = (
    *("party", "key", "models", "max_models", "max_held", "max_held_per_client", "held_seconds"),
    *("max_connections", "max_connections_per_address", "max_ahead", "max_ahead_bytes"),
    *("receipts", "max_receipt_bytes", "max_receipt_files"),
)


def _policy_limit_field(default: float, least: int = 1, largest: int = _ANY_NUMBER) -> Any:
    """Declare a setting of [limits] in worker.toml; seconds are above 0, others are integers."""
    return field(default=default, metadata={"least": least, "most": largest})


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
    """The permissions of one worker; everything that is not listed is refused.

    Attributes:
        party: this worker's party, 0, 1 or 2.
        key: the private key's file; None only without TLS.
        allow_programs: names of programs, or "*" for all that are installed.
        reveal: the clients to which results may be revealed.
        max_elements: 64-bit words of each input tensor (an element of Z_2^128 counts as two); the
            largest array that a job creates from them may have GROWTH times as many.
        job_seconds: the longest time of a job: a longer one is cancelled, or refused if its time
            is known before.
        allow_shaping: whether a client may impose delay and rate on this worker's messages.
        opens: what jobs may open to workers: "declared" (what their programs declare) or "nothing".
        max_jobs: jobs of all clients together that run, wait or arrive.
        max_jobs_per_client: the same of one client.
        models: the folder for the shares of deployed models; None stores none.
        max_models: the number of deployed models.
        stall_seconds: a client that neither sends due inputs nor reads ready results for this time
            loses its job.
        max_inputs: inputs of one job.
        max_bytes_per_job, max_bytes_per_client, max_bytes: bytes of held inputs and undelivered
            results, of one job, of one client's jobs, and of all jobs.
        max_memory_per_job: bytes that a job may allocate here in addition to idle memory, as far
            as its program declares them; never more than the machine has.
        max_sent_per_job: bytes that the three workers send together for a job, if its program
            declares them.
        max_ahead, max_ahead_bytes: predictions of deployed models for which material is kept ahead
            of time, and its bytes on disk; 0 predictions: none.
        max_held, max_held_per_client: bytes of arrays that are held in memory between jobs, of all
            clients together and of one.
        held_seconds: the time without use after which such an array is released.
        receipts: the folder for signed receipts of jobs; None keeps none.
        max_receipt_bytes: bytes of a receipts file, after which another one begins.
        max_receipt_files: the number of kept receipts files; the oldest ones are removed.
        max_connections: connections that others may hold open.
        max_connections_per_address: the same of one address, for connections over which no member
            of the cluster has called with its certificate.

    Raises:
        ConfigError: ``party`` or a limit is out of range.
    """

    party: int
    key: Path | None = None
    allow_programs: tuple[str, ...] = ()
    reveal: tuple[RevealRule, ...] = ()
    allow_shaping: bool = False
    models: Path | None = None
    receipts: Path | None = None
    opens: str = DECLARED
    max_elements: int = _policy_limit_field(DEFAULT_MAX_ELEMENTS)
    job_seconds: float = _policy_limit_field(3600.0)
    stall_seconds: float = _policy_limit_field(60.0)
    max_jobs: int = _policy_limit_field(16, largest=MOST_JOBS)
    max_jobs_per_client: int = _policy_limit_field(8, largest=MOST_JOBS)
    max_models: int = _policy_limit_field(64)
    max_inputs: int = _policy_limit_field(4096)  # more than any Keras model has
    max_bytes_per_job: int = _policy_limit_field(2 << 30)
    max_bytes_per_client: int = _policy_limit_field(4 << 30)
    max_bytes: int = _policy_limit_field(8 << 30)
    max_memory_per_job: int = _policy_limit_field(1 << 40)
    max_sent_per_job: int = _policy_limit_field(1 << 40)
    max_ahead: int = _policy_limit_field(64, least=0)
    max_ahead_bytes: int = _policy_limit_field(8 << 30)
    max_held: int = _policy_limit_field(handles.MOST_BYTES)
    max_held_per_client: int = _policy_limit_field(handles.MOST_BYTES_PER_CLIENT)
    held_seconds: float = _policy_limit_field(handles.SECONDS)
    max_receipt_bytes: int = _policy_limit_field(16 << 20, least=1 << 12)
    max_receipt_files: int = _policy_limit_field(256, least=2)
    max_connections: int = _policy_limit_field(512, 64, _MOST_CONNECTIONS)
    max_connections_per_address: int = _policy_limit_field(32, largest=_MOST_CONNECTIONS)
    # (the file's name, for messages about it)
    source: str = field(default="worker.toml", compare=False)

    def __post_init__(self) -> None:
        if self.party not in (0, 1, 2):
            raise ConfigError(
                f'"party" is 0, 1 or 2. Received: {self.party}. Set the party of this worker.',
                code="number-out-of-range",
                operation="party",
                received=self.party,
                expected="0, 1 or 2",
            )
        for limit_field in _policy_limit_fields():
            value, default = getattr(self, limit_field.name), limit_field.default
            least, largest = limit_field.metadata["least"], limit_field.metadata["most"]
            if type(default) is float:
                fits, span = value > 0, "above 0"
            else:
                fits = least <= value <= largest
                span = f"{least} to {largest}" if largest < _ANY_NUMBER else f"at least {least}"
            if not fits:
                default_text = f"{default:g}" if type(default) is float else default
                raise ConfigError(
                    f'[limits]: "{limit_field.name}" is {span}. Received: {value}. The default '
                    f"is {default_text}.",
                    code="number-out-of-range",
                    operation=limit_field.name,
                    received=value,
                    expected=span,
                )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> WorkerPolicy:
        """Read worker.toml, and check the private key that it names.

        Raises:
            ConfigError: the file is missing or malformed, has unknown keys or invalid values, or
                the key is missing or unusable.
            SecurityError: other users of the machine can read the key.
        """
        path = Path(path)
        with prefix_config_errors(path):
            file = _PolicyFile.from_header(load_toml(path))
            policy = cls(
                party=file.party,
                key=path.parent / file.key if file.key else None,
                allow_programs=file.allow_programs,
                reveal=tuple(RevealRule(**vars(rule)) for rule in file.reveal),
                allow_shaping=file.allow_shaping,
                models=path.parent / file.models if file.models else None,
                receipts=path.parent / file.receipts if file.receipts else None,
                opens=file.opens,
                source=path.name,
                **vars(file.limits),
            )
            if policy.key is not None:
                policy.load_key()
            return policy

    @classmethod
    def for_local(
        cls, party: int, key_path: str | os.PathLike[str] | None, models: Path | None = None
    ) -> WorkerPolicy:
        """Return a policy that permits everything, for a temporary cluster of one user.

        Args:
            party: 0, 1 or 2.
            key_path: the private key's file; None without TLS.
            models: the folder for deployed models; None stores none.
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

    def fixed_differences(self, other: WorkerPolicy) -> list[str]:
        """Return the names of settings that differ and that a running worker cannot change."""
        return [name for name in _STARTUP_FIELDS if getattr(self, name) != getattr(other, name)]

    def load_key(self) -> bytes:
        """Load the private key (PEM).

        Raises:
            ConfigError: no key is named, or the file is missing or unusable.
            SecurityError: other users of the machine can read it.
        """
        if self.key is None:
            raise ConfigError(
                f'{self.source}: "key" is missing, and TLS requires it. '
                f'Add: key = "party{self.party}.key".',
                code="key-missing",
                operation="key",
            )
        return tls.load_private_key(self.key)

    def permit_program(self, name: str) -> None:
        """Permit a program.

        Raises:
            PolicyError: it is not listed.
        """
        if name not in self.allow_programs and ANY not in self.allow_programs:
            raise PolicyError(
                f"Party {self.party} does not allow this program. Received: program "
                f"{_quote_client_name(name)}. Its operator would allow it by adding "
                f"{_quote_client_name(name)} to the line allow_programs = [...] in worker.toml.",
                code="program-not-allowed",
                operation=name,
                party=self.party,
            )

    def permit_reveal(self, program: str, to: str) -> None:
        """Permit the reveal of a program's results to a client.

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
            f"Party {self.party} does not allow this reveal. Received: program "
            f"{_quote_client_name(program)}, to client {_quote_client_name(to)}. Its operator "
            "would allow it by adding to worker.toml: [[reveal]] with the lines program = "
            f"{_quote_client_name(program)} and to = [{_quote_client_name(to)}].",
            code="reveal-not-allowed",
            operation=program,
            received=to,
            party=self.party,
        )

    def permit_shaping(self) -> None:
        """Permit that a job's messages are delayed and slowed down.

        Raises:
            PolicyError: this worker does not permit it.
        """
        if not self.allow_shaping:
            raise PolicyError(
                f"Party {self.party} does not allow clients to emulate a network. Received: a "
                'job with a --profile other than "local". Its operator would allow it by the line '
                "allow_shaping = true in worker.toml.",
                code="shaping-not-allowed",
                party=self.party,
            )

    def permit_openings(
        self, declared: Sequence[Opening] | None, is_sealed: bool
    ) -> Collection[str] | None:
        """Return the kinds of values that a job may open to workers; None: all, () : none.

        Args:
            declared: what the job opens, as its program declares; None: the program does not say.
            is_sealed: whether the job's client demands that it opens nothing.

        Raises:
            PolicyError: it opens values, and the client or this worker demands that it does not.
        """
        if not is_sealed and self.opens != NOTHING:
            return None if declared is None else frozenset(opening.what for opening in declared)
        if declared:
            rule, remedy = "This job is sealed", "Submit it unsealed"
            if not is_sealed:
                rule = f"Party {self.party} runs sealed jobs only"
                remedy = f'Its operator would allow it by opens = "{DECLARED}" in worker.toml'
            raise PolicyError(
                f"{rule}: nothing becomes public to workers. Received: a program that opens "
                f"{'; '.join(map(str, declared))}. {remedy}.",
                code="opening-not-permitted",
                operation=declared[0].what,
                party=self.party,
            )
        return ()

    def permit_elements(self, count: int) -> None:
        """Permit an input tensor of ``count`` elements.

        Raises:
            PolicyError: the count is above the limit, or negative.
        """
        remedy = "Send a smaller input, or its operator raises max_elements"
        fits = 0 <= count <= self.max_elements
        self._check_limit(
            fits, "inputs of this size", f"{count} elements", self.max_elements, remedy
        )

    def permit_inputs(self, count: int) -> None:
        """Permit a job of ``count`` inputs.

        Raises:
            PolicyError: the count is above the limit.
        """
        limit, remedy = self.max_inputs, "Its operator raises max_inputs"
        self._check_limit(count <= limit, "this number of inputs", str(count), limit, remedy)

    def permit_size(self, size: Size) -> None:
        """Permit a job of a size.

        Raises:
            PolicyError: its largest array is above GROWTH times max_elements, the workers'
                traffic for it above max_sent_per_job, or its time above job_seconds.
        """
        limit = GROWTH * self.max_elements
        remedy = (
            f"Order less at once, or its operator raises max_elements (a {GROWTH}th of this limit)"
        )
        received = f"arrays of up to {size.words} words"
        self._check_limit(size.words <= limit, "a job of this size", received, limit, remedy)
        remedy = "Ask for less, or its operator raises max_sent_per_job"
        limit = self.max_sent_per_job
        received = f"{size.sent} bytes between the workers"
        self._check_limit(size.sent <= limit, "a job with this traffic", received, limit, remedy)
        remedy = "Ask for less at once, or its operator raises job_seconds"
        fits, received = (
            size.seconds <= self.job_seconds,
            f"one of about {size.seconds:.0f} seconds",
        )
        self._check_limit(fits, "a job of this duration", received, self.job_seconds, remedy)

    def permit_memory(self, needed: int, available: int, sharing: int) -> None:
        """Permit a job that needs an amount of this worker's memory.

        Args:
            needed: bytes, approximately.
            available: bytes that this machine can provide.
            sharing: workers of the cluster on this machine, which share the memory.

        Raises:
            PolicyError: the job needs more than max_memory_per_job, or than is available.
        """
        limit, remedy = self.max_memory_per_job, "Its operator raises max_memory_per_job"
        received = f"{needed} bytes, about"
        self._check_limit(needed <= limit, "a job of this memory", received, limit, remedy)
        if needed > available // sharing:
            part = f", of which {sharing} workers take a part each" if sharing > 1 else ""
            raise PolicyError(
                f"Party {self.party} has no memory for this job. Received: one that takes about "
                f"{needed / 1e9:.1f} GB at this worker, and {available / 1e9:.1f} GB are "
                f"available on its machine{part}. Use a smaller model or fewer samples, machines "
                "with more memory, or one for each worker.",
                code="memory-not-available",
                received=needed,
                expected=available // sharing,
                party=self.party,
            )

    def _check_limit(
        self, fits: bool, subject: str, received: str, limit: float, remedy: str
    ) -> None:
        if not fits:
            raise PolicyError(
                f"Party {self.party} does not allow {subject}. Received: {received}, the limit is "
                f"{limit:.12g}. {remedy} under [limits] in worker.toml.",
                code="too-large",
                operation=subject,
                received=received,
                expected=f"{limit:.12g}",
                party=self.party,
            )


_LimitsTable: Any = make_dataclass(
    "_LimitsTable",
    [
        (
            limit_field.name,
            limit_field.type,
            declare_field(
                toml_file.NUMBER if type(limit_field.default) is float else toml_file.INTEGER,
                limit_field.default,
            ),
        )
        for limit_field in fields(WorkerPolicy)
        if limit_field.metadata
    ],
    bases=(TomlTable,),
    frozen=True,
)


@dataclass(frozen=True)
class _RevealTable(TomlTable):
    program: str = declare_field(toml_file.TEXT)
    to: tuple[str, ...] = declare_field(toml_file.TEXTS)


@dataclass(frozen=True)
class _PolicyFile(TomlTable):
    party: int = declare_field(toml_file.INTEGER)
    key: str = declare_field(toml_file.TEXT, "")
    allow_programs: tuple[str, ...] = declare_field(toml_file.TEXTS, ())
    allow_shaping: bool = declare_field(toml_file.FLAG, False)
    reveal: tuple[_RevealTable, ...] = tables_field("reveal", _RevealTable)
    limits: Any = table_field("limits", _LimitsTable)
    models: str = declare_field(toml_file.TEXT, "")
    receipts: str = declare_field(toml_file.TEXT, "")
    opens: str = choice_field(OPENS, default=DECLARED)


def unknown_policy_names(config: ClusterConfig, policy: WorkerPolicy) -> list[str]:
    """Describe programs and clients in worker.toml that do not exist, one line each.

    They are no errors: a client may be added to cluster.toml later, and a program be installed.
    """
    programs, clients = installed_programs(), [client.name for client in config.clients]
    lines = []
    for name in policy.allow_programs:
        if name != ANY and name not in programs:
            lines.append(
                f"{policy.source}: allow_programs has {quote_received_value(name)}, which is not "
                f"installed here.{did_you_mean(name, programs)}"
            )
    for number, rule in enumerate(policy.reveal, start=1):
        where = f"{policy.source}: [[reveal]] number {number}"
        if rule.program != ANY and rule.program not in programs:
            lines.append(
                f"{where} is for the program {quote_received_value(rule.program)}, which is not "
                f"installed here.{did_you_mean(rule.program, programs)}"
            )
        for name in rule.to:
            # (without TLS there is one client, "local")
            if name != ANY and name not in (clients if config.tls else ["local"]):
                lines.append(
                    f"{where} is to the client {quote_received_value(name)}, who is not in "
                    f"cluster.toml.{did_you_mean(name, clients)}"
                )
    return lines


def _policy_limit_fields() -> list[Field[Any]]:
    return [policy_field for policy_field in fields(WorkerPolicy) if policy_field.metadata]


def _quote_client_name(name: str) -> str:
    """Quote a name from a client for a log: on one line and not too long."""
    quoted = json.dumps(name)
    return quoted if len(quoted) <= 80 else f"{quoted[:77]}..."
