"""The checks of ``doctor``: this machine, the files, every worker and every link.

A check never raises: a failure is its result.  No check prints a key, a share or a value.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import resource
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tfe_bench.cluster import agreement, handshake, probe, tls, wire
from tfe_bench.cluster.client import Client
from tfe_bench.cluster.config import ClusterConfig
from tfe_bench.cluster.expiry import RENEW, WARN_DAYS, list_certificate_expiries
from tfe_bench.cluster.policy import WorkerPolicy, unknown_policy_names
from tfe_bench.errors import PolicyError, TfeBenchError

OK, WARN, FAIL = "ok", "warn", "FAIL"
CONNECT_SECONDS = 4.0
_GIB = 1 << 30


@dataclass(frozen=True)
class HealthCheck:
    """One line of the table.

    Attributes:
        name: the subject of the check.
        status: ok, warn or FAIL.
        found: the observation.
        remedy: the advice; empty if the status is ok.
    """

    name: str
    status: str
    found: str
    remedy: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return the fields for JSON."""
        return asdict(self)


def failed_health_check(name: str, error: BaseException) -> HealthCheck:
    """Return the check of an operation that raised an error."""
    # Only our own errors carry their text: others could quote anything.
    text = str(error) if isinstance(error, TfeBenchError) else type(error).__name__
    finding, _, remedy = text.partition(". ")
    return HealthCheck(name, FAIL, finding, remedy)


# ---- this machine


def check_machine() -> Iterator[HealthCheck]:
    """Check versions, the compiled ops, the processor and memory."""
    yield HealthCheck("Python", OK, platform.python_version())
    for package in ("grpcio", "numpy", "cryptography"):
        yield HealthCheck(package, OK, importlib.metadata.version(package))
    yield HealthCheck("tfe_bench", OK, handshake.package_version())
    tensorflow = handshake.tensorflow_version()
    if tensorflow == "none":
        yield HealthCheck(
            "TensorFlow", WARN, "not installed", "a worker needs it, a client does not"
        )
    else:
        yield HealthCheck("TensorFlow", OK, tensorflow)
        yield _check_compiled_ops()
    yield _check_processor_features()
    yield from _check_machine_memory()


def _check_compiled_ops() -> HealthCheck:
    from tfe_bench.protocols.session import ops

    try:
        built = ops.read_built_tensorflow_version(ops.compiled_ops_library_path())
        finding = f"ABI {ops.abi()}, for TensorFlow {built}"
        return HealthCheck("compiled ops", OK, f"{finding}, {ops.native().isa().decode()}")
    except Exception as error:  # the ops are missing, or TensorFlow itself is broken
        return failed_health_check("compiled ops", error)


def _check_processor_features() -> HealthCheck:
    flags: set[str] = set()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("flags"):
                flags = set(line.split())
                break
    required = ("aes", "avx2", "bmi2")
    missing = [flag for flag in required if flag not in flags]
    extra = [flag for flag in ("vaes", "avx512f") if flag in flags]
    cores = f"{len(os.sched_getaffinity(0))} cores"
    if missing:
        remedy = "use an x86-64 host with AES-NI, AVX2 and BMI2; a client needs none of them"
        return HealthCheck("processor", FAIL, f"{cores}, without {', '.join(missing)}", remedy)
    return HealthCheck("processor", OK, ", ".join([cores, *required, *extra]))


def _check_machine_memory() -> Iterator[HealthCheck]:
    fields: dict[str, int] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            name, _, value = line.partition(":")
            fields[name] = int(value.split()[0]) * 1024
    free, total = fields.get("MemAvailable", 0), fields.get("MemTotal", 0)
    finding = f"{free / _GIB:.1f} GiB available of {total / _GIB:.1f}"
    is_low = free < 2 * _GIB
    yield HealthCheck(
        "memory",
        WARN if is_low else OK,
        finding,
        "a worker needs 1 GiB and several times its inputs" if is_low else "",
    )
    core = resource.getrlimit(resource.RLIMIT_CORE)[0]
    if core != 0:
        yield HealthCheck("core dumps", WARN, "allowed", "ulimit -c 0 (LimitCORE=0 in systemd)")


# ---- the files


def check_cluster_files(config: ClusterConfig, path: Path) -> Iterator[HealthCheck]:
    """Check the shared file and the certificates in it."""
    yield HealthCheck("cluster file", OK, f"{path.name}, digest {config.digest()[:16]}")
    if not config.tls:
        yield HealthCheck("TLS", WARN, "off: cleartext on loopback", "for trials only")
    for expiry in list_certificate_expiries(config):
        fingerprint = tls.format_certificate_fingerprint(expiry.fingerprint)
        finding = f"{expiry.description}, SHA-256 {fingerprint}"
        is_unusable = expiry.days < 0 or expiry.is_not_yet_valid
        if is_unusable or expiry.days < WARN_DAYS:
            # An old certificate with a successor only has to be deleted, and a client's
            # certificate locks out that client alone.
            status = (
                FAIL
                if is_unusable and expiry.member.startswith("party") and not expiry.replaced
                else WARN
            )
            remedy = "delete it from cluster.toml" if expiry.replaced else RENEW
            yield HealthCheck(f"certificate of {expiry.member}", status, finding, remedy)
        else:
            yield HealthCheck(f"certificate of {expiry.member}", OK, finding)


def check_worker_files(
    config: ClusterConfig, path: Path
) -> tuple[WorkerPolicy | None, list[HealthCheck]]:
    """Check an operator's own file: the key and the programs."""
    try:
        policy = WorkerPolicy.load(path)
    except TfeBenchError as error:
        return None, [failed_health_check("worker file", error)]
    checks = [HealthCheck("worker file", OK, f"party {policy.party}'s, {path.name}")]
    if config.tls:
        try:
            key, own_party = policy.load_key(), config.parties[policy.party]
            certificate = tls.select_key_certificate(key, own_party.certificates)
            fingerprint = tls.format_certificate_fingerprint(
                tls.compute_certificate_fingerprint(certificate)
            )
            checks.append(HealthCheck("private key", OK, f"0600, belongs to SHA-256 {fingerprint}"))
        except TfeBenchError as error:
            checks.append(failed_health_check("private key", error))
    remedy = "correct worker.toml; or install the package, or add the client to cluster.toml"
    checks += [
        HealthCheck("names", WARN, line, remedy) for line in unknown_policy_names(config, policy)
    ]
    if not policy.allow_programs or not policy.reveal:
        remedy = "add allow_programs and [[reveal]] to worker.toml"
        checks.append(HealthCheck("policy", WARN, "nothing is allowed", remedy))
    return policy, checks


def check_worker_port(config: ClusterConfig, policy: WorkerPolicy) -> HealthCheck:
    """Check whether this party's port is free, or its own worker serves on it."""
    own_party = config.parties[policy.party]
    host = "127.0.0.1" if own_party.host == "localhost" else own_party.host
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.closing(socket.socket(family)) as probe_socket:
        probe_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe_socket.bind((host, own_party.port))
            return HealthCheck(
                "own port", OK, f"{own_party.address} is free: the worker does not run"
            )
        except OSError as error:
            reason = error.strerror or "refused"
    if not config.tls:
        return HealthCheck(
            "own port", OK, f"{own_party.address} is in use, by the worker or something else"
        )
    fingerprint = probe.fetch_worker_fingerprint(own_party)
    if fingerprint in [tls.compute_certificate_fingerprint(pem) for pem in own_party.certificates]:
        return HealthCheck("own port", OK, f"this party's worker serves on {own_party.address}")
    remedy = "stop what uses it, correct host and port, or start the worker with --bind"
    return HealthCheck("own port", FAIL, f"{own_party.address}: {reason}", remedy)


# ---- the workers


class ClusterCaller:
    """The origin of queries to the workers: a client, or a party that queries the other two.

    Attributes:
        parties: the workers that it can query.
        client: runs jobs; None for a party.
    """

    def __init__(self, config: ClusterConfig, client: Client | None, policy: WorkerPolicy | None):
        self.client = client
        own_index = None if client or policy is None else policy.party
        self.parties = [p for p in range(3) if p != own_index]
        if client is None and policy is not None:
            key = certificate = b""
            if config.tls:
                key, mine = policy.load_key(), config.parties[policy.party].certificates
                certificate = tls.select_key_certificate(key, mine)
            client = Client(config, key, certificate)  # (it runs no jobs)
        assert client is not None
        self._connection = client

    def get_facts(self, party: int) -> dict[str, Any]:
        """Return a worker's facts; the second of two queries measures the time."""
        self._connection.ask(party, wire.HELLO, CONNECT_SECONDS)
        return self._connection.ask(party, wire.HELLO, CONNECT_SECONDS)

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()


def open_cluster_caller(
    config: ClusterConfig, path: Path, client: str | None, policy: WorkerPolicy | None
) -> tuple[ClusterCaller | None, list[HealthCheck]]:
    """Open a caller's files: a named client's, else the party's, else the only client's."""
    try:
        if client is not None or policy is None:
            return ClusterCaller(config, Client.open(path, client), policy), []
        return ClusterCaller(config, None, policy), []
    except TfeBenchError as error:
        return None, [
            failed_health_check(f"client {client}" if client else "own credentials", error)
        ]


def check_workers(config: ClusterConfig, caller: ClusterCaller | None) -> Iterator[HealthCheck]:
    """Check reachability, certificates, versions, cluster file and clock of every worker."""
    facts: dict[int, dict[str, Any]] = {}
    for party in config.parties:
        if caller is not None and party.index not in caller.parties:
            continue
        name = f"party {party.index}"
        if config.tls:
            fingerprint = probe.fetch_worker_fingerprint(party)
            pinned = [tls.compute_certificate_fingerprint(pem) for pem in party.certificates]
            if fingerprint is not None and fingerprint not in pinned:
                remedy = "another worker, or another certificate: compare with its operator"
                yield HealthCheck(
                    name,
                    FAIL,
                    f"{party.address} shows SHA-256 "
                    f"{tls.format_certificate_fingerprint(fingerprint)}",
                    remedy,
                )
                continue
        if caller is None:
            continue
        try:
            facts[party.index] = answer = caller.get_facts(party.index)
        except TfeBenchError as error:
            yield failed_health_check(name, error)
            continue
        seconds = answer["answered"] - answer["asked"]
        yield HealthCheck(name, OK, f"{party.address} answers in {seconds * 1e3:.1f} ms")
        yield from _compare_worker_settings(name, answer, config, facts)
        yield from _compare_worker_clients(name, answer, config, caller.client)
        offset = float(answer["now"]) - (answer["asked"] + answer["answered"]) / 2
        yield _check_worker_clock(name, offset, seconds / 2)


def _compare_worker_settings(
    name: str, answer: dict[str, Any], config: ClusterConfig, facts: dict[int, dict[str, Any]]
) -> Iterator[HealthCheck]:
    digest = str(answer["cluster"])
    is_same = digest == config.digest()
    parts = agreement.describe_cluster_differences(config, answer.get("cluster_parts"))
    remedy = "" if is_same else f"one file everywhere; this one has {config.digest()[:16]}"
    finding = f"digest {digest[:16]}" + (f", differs in {parts}" if parts else "")
    yield HealthCheck(f"{name}: cluster file", OK if is_same else FAIL, finding, remedy)
    first = next(iter(facts.values()))
    our_versions = {"version": handshake.package_version(), "abi": first["abi"]}
    our_versions["tensorflow"] = handshake.minor_version(str(first["tensorflow"]))
    their_versions = {k: answer[k] for k in ("version", "abi")}
    their_versions["tensorflow"] = handshake.minor_version(str(answer["tensorflow"]))
    finding = f"tfe_bench {answer['version']}, ABI {answer['abi']}"
    finding += f", TensorFlow {answer['tensorflow']}, {answer['isa']}"
    different = [k for k in our_versions if our_versions[k] != their_versions[k]]
    if different:
        expected = ", ".join(f"{k} {our_versions[k]}" for k in different)
        yield HealthCheck(f"{name}: versions", FAIL, finding, f"install one version: {expected}")
    else:
        yield HealthCheck(f"{name}: versions", OK, finding)


def _compare_worker_clients(
    name: str, answer: dict[str, Any], config: ClusterConfig, client: Client | None
) -> Iterator[HealthCheck]:
    """Check that another worker admits the same clients with the same certificates.

    Args:
        client: the querying client, which receives its own entry alone; None for a party, which
            receives all entries.
    """
    our_clients = agreement.digest_clients(config)
    their_clients = answer.get("clients")
    if not isinstance(their_clients, dict):
        return
    compared = (
        our_clients.keys() | their_clients.keys()
        if client is None
        else {client.identity} & our_clients.keys()
    )
    for name_of_client in sorted(map(str, compared)):
        if our_clients.get(name_of_client) == their_clients.get(name_of_client):
            continue
        problem = "has other certificates at this worker"
        if name_of_client not in their_clients:
            problem = "is unknown to this worker"
        elif name_of_client not in our_clients:
            problem = "is not in this cluster.toml"
        remedy = "its jobs are refused until all three have the same; then SIGHUP the worker"
        yield HealthCheck(
            f"{name}: clients", WARN, f"client {name_of_client[:40]} {problem}", remedy
        )


def _check_worker_clock(name: str, offset: float, uncertainty: float) -> HealthCheck:
    finding = f"{offset:+.2f} s from this one's (to {uncertainty:.2f} s)"
    if abs(offset) - uncertainty > 3600:
        # New certificates are valid from one hour before their creation, to allow such offsets.
        remedy = "set the clocks (NTP): certificates look expired or not valid yet"
        return HealthCheck(f"{name}: clock", FAIL, finding, remedy)
    if abs(offset) - uncertainty > 10:
        return HealthCheck(f"{name}: clock", WARN, finding, "set the clocks (NTP)")
    return HealthCheck(f"{name}: clock", OK, finding)


def check_worker_links(caller: ClusterCaller, megabytes: int) -> Iterator[HealthCheck]:
    """Measure round trips and bandwidth of each pair of workers by the program `links`."""
    assert caller.client is not None
    try:
        sizes = {"kilobytes": 1, "ping_turns": 3, "pair_kilobytes": 1000 * megabytes}
        result = caller.client.run("links", sizes, {})
    except PolicyError as error:
        yield HealthCheck("links", WARN, str(error).partition(". ")[0], 'allow the program "links"')
        return
    except TfeBenchError as error:
        yield failed_health_check("links", error)
        return
    for i, (a, b) in enumerate(((0, 1), (0, 2), (1, 2))):
        measurements = result.measured[a]
        trip = min(measurements["trip_seconds"][i])
        # The receipt takes half of a round trip, the first byte the other half.
        seconds = measurements["pair_seconds"][i]
        rate = measurements["pair_bytes"] / max(seconds - trip, 0.05 * seconds)
        finding = f"round trip {trip * 1e3:.2f} ms, {rate / 1e6:.0f} MB/s"
        yield HealthCheck(f"link {a}-{b}", OK, finding)


def check_disk_space() -> HealthCheck:
    """Check the space for temporary files and records."""
    folder = tempfile.gettempdir()
    stats = os.statvfs(folder)
    free = stats.f_bavail * stats.f_frsize
    is_low = free < _GIB // 4
    remedy = "make room: temporary files and records may be refused" if is_low else ""
    return HealthCheck(
        "disk", WARN if is_low else OK, f"{free / _GIB:.1f} GiB free in {folder}", remedy
    )
