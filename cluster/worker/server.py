"""One party's server: connects the parts of the worker with the calls that they answer.

Party 0 orders jobs.  As soon as it has a job it opens its streams, and a job that all three
have waits there for its turn; the others run the job that party 0 selects.  A job that a
worker lacks therefore never blocks another one.  Every job is a separate session with fresh keys.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc

from tfe_bench.cluster import agreement, expiry, grpc_tls, wire
from tfe_bench.cluster.addresses import worker_bind_error
from tfe_bench.cluster.config import ClusterConfig
from tfe_bench.cluster.handles import HandleStore
from tfe_bench.cluster.handshake import package_version
from tfe_bench.cluster.policy import MOST_JOBS, WorkerPolicy, unknown_policy_names
from tfe_bench.cluster.spool import MaterialSpool
from tfe_bench.cluster.store import ShareStore
from tfe_bench.cluster.transport import CHANNEL_OPTIONS
from tfe_bench.cluster.worker.callers import CallerAuthenticator
from tfe_bench.cluster.worker.client_rpc import ClientRpc
from tfe_bench.cluster.worker.client_streams import ClientStreams
from tfe_bench.cluster.worker.connection_guard import ConnectionGuard, reserve_socket_descriptors
from tfe_bench.cluster.worker.host import WorkerState
from tfe_bench.cluster.worker.job_runner import JobRunner
from tfe_bench.cluster.worker.log import log
from tfe_bench.cluster.worker.memory import return_freed_memory_blocks
from tfe_bench.cluster.worker.peer_streams import PeerStreams
from tfe_bench.errors import ClusterError

_RPC_THREADS = 192
# Seconds after which the connections of a removed client are closed.
DISCONNECT_SECONDS = 3.0
# A client's jobs, and a few additional queries.
_CALLS_PER_CONNECTION = MOST_JOBS + 24


def _count_host_addresses(host: str) -> int:
    """Return the number of addresses of a host name."""
    try:
        return len({info[4][0] for info in socket.getaddrinfo(host, None)}) or 1
    except OSError:
        return 1  # gRPC will report that it cannot listen there


class Worker:
    """A party's server.

    Args:
        config: the shared cluster file.
        policy: this operator's private rules.
        bind: host to listen on instead of the one in cluster.toml.

    Raises:
        ConfigError: a key, a folder or an address that is not usable.
        SecurityError: cleartext on more than loopback, or a key or folder that others can use.
    """

    def __init__(
        self, config: ClusterConfig, policy: WorkerPolicy, bind: str | None = None
    ) -> None:
        own_party = config.parties[policy.party]
        config.check_bind(bind or own_party.host)
        key = policy.load_key() if config.tls else b""
        store = ShareStore(
            *(policy.models, policy.party, config.ring, config.fractional_bits, policy.max_models),
            handles=HandleStore(
                *(policy.party, policy.max_held, policy.max_held_per_client, policy.held_seconds)
            ),
            spool=MaterialSpool(
                *(policy.models, policy.max_ahead, policy.max_ahead_bytes),
                {"version": package_version(), "cluster": config.digest()},
            ),
        )
        self._host = host = WorkerState(config, policy, store, asyncio.new_event_loop(), key)
        reserve_socket_descriptors(policy.max_connections)
        self._guard = ConnectionGuard(
            host.party,
            own_party.port,
            policy.max_connections,
            policy.max_connections_per_address,
        )
        return_freed_memory_blocks()
        callers = CallerAuthenticator(host, self._guard)
        self._client_rpc = ClientRpc(host, callers)
        self._peer_streams = PeerStreams(host, callers, lambda job: self._job_runner.begin_job(job))
        self._job_runner = JobRunner(host, self._peer_streams.start_session)
        self._client_streams = ClientStreams(host, callers, self._peer_streams.open_streams)
        threading.Thread(target=host.loop.run_forever, name="tfe-channel", daemon=True).start()
        try:
            host.receipts.start_writing(host.get_facts())
            self._server = host.on_loop(self._start_server(bind or own_party.host))
        except BaseException:
            self._guard.close()
            host.receipts.close_book()
            raise
        threading.Thread(target=self._job_runner.run_jobs, name="tfe-jobs", daemon=True).start()

    async def _start_server(self, name: str) -> grpc.aio.Server:
        host = self._host
        # Waits (for a client, a job, an event) run in these threads, not on the loop.
        host.loop.set_default_executor(ThreadPoolExecutor(_RPC_THREADS, "tfe-rpc"))
        # (gRPC counts the connections of each address of the host separately)
        share = max(1, host.policy.max_connections // _count_host_addresses(name))
        server = grpc.aio.server(
            options=[
                *CHANNEL_OPTIONS,
                ("grpc.max_allowed_incoming_connections", share),
                ("grpc.max_concurrent_streams", _CALLS_PER_CONNECTION),
            ]
        )
        handlers = {
            name: grpc.stream_stream_rpc_method_handler(
                function, request_deserializer=wire.pass_bytes, response_serializer=wire.pass_bytes
            )
            for name, function in (
                (wire.STREAM, self._peer_streams.serve_stream),
                (wire.JOB, self._client_streams.serve_job),
                (wire.HELLO, self._client_rpc.hello),
                (wire.STATUS, self._client_rpc.status),
                (wire.CANCEL, self._client_rpc.cancel),
                (wire.MODELS, self._client_rpc.models),
            )
        }
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(wire.SERVICE, handlers),)
        )
        address = (
            f"[{name}]:{host.own_party.port}" if ":" in name else f"{name}:{host.own_party.port}"
        )
        try:
            if host.config.tls:
                credentials = grpc_tls.worker_tls_credentials(
                    host.key,
                    host.certificate,
                    host.config.trusted_by(host.party),
                    self._handshake_begins,
                )
                port = server.add_secure_port(address, credentials)
            else:
                port = server.add_insecure_port(address)
        except RuntimeError as error:
            raise worker_bind_error(host.party, address) from error
        if port == 0:
            raise worker_bind_error(host.party, address)
        await server.start()
        log.info("listening on %s", address)
        for line in unknown_policy_names(host.config, host.policy):
            log.warning(line)
        if not host.config.tls:
            log.warning(
                "TLS IS OFF: every user of this machine can act as any party and any client, and "
                "so read all inputs. Set tls = true in cluster.toml for anything but a trial."
            )
        self._warn_of_certificates()
        return server

    def _handshake_begins(self) -> list[bytes]:
        """Return the certificates to trust, by the current cluster file."""
        self._guard.wake_up()
        return self._host.config.trusted_by(self._host.party)

    def reload(self, config: ClusterConfig, policy: WorkerPolicy) -> None:
        """Apply reloaded files: clients and rules change, running jobs continue.

        Jobs and connections of removed clients end.

        Raises:
            ConfigError: they differ in a setting that requires a restart; nothing has changed.
        """
        host = self._host
        before = host.config
        host.reload_files(config, policy)
        for line in agreement.describe_client_changes(before, config):
            log.info("cluster.toml: %s", line)
        for line in unknown_policy_names(config, policy):
            log.warning(line)
        revoked = agreement.find_revoked_clients(before, config)
        # (not at once: their clients receive the reason before)
        host.loop.call_soon_threadsafe(
            host.loop.call_later,
            DISCONNECT_SECONDS,
            self._guard.close_connections,
            self._guard.list_connections(revoked),
            "no longer a client",
        )

    def _warn_of_certificates(self) -> None:
        """Log once a day which certificates expire soon."""
        host = self._host
        if host.config.tls:
            for line in expiry.certificate_expiry_warnings(host.config):
                log.warning(line)
            host.loop.call_later(86400, self._warn_of_certificates)

    def stop(self) -> None:
        """End running and waiting jobs, notify their clients and the peers, and end the server."""
        host = self._host
        host.queue.close()
        self._job_runner.end_jobs()
        jobs_left = host.jobs.list_jobs()
        for job in jobs_left:
            job.fail(
                ClusterError(
                    f"Party {host.party} is shutting down. Submit the job again.",
                    code="worker-stopped",
                    party=host.party,
                )
            )
        deadline = time.monotonic() + 1.5
        for job in jobs_left:
            job.over.wait(max(0.0, deadline - time.monotonic()))
        # First the kept streams: a server waits for the calls that it serves.
        with contextlib.suppress(Exception):
            host.on_loop(self._peer_streams.connections.close(), 1)
        with contextlib.suppress(Exception):
            host.on_loop(self._server.stop(0.5), 2)
        host.store.close()
        host.receipts.close_book()
        self._guard.close()
