"""One party's long-running process: a gRPC server, peers' streams, one job at a time.

Party 0 orders jobs.  As soon as it has one it opens its streams, and a job that all three
have waits there for its turn; the others run what party 0 says is next.  A job that a
worker lacks so never holds up another.  Every job is a session of its own with fresh keys.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import hashlib
import logging
import math
import queue
import socket
import threading
import time
import traceback
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import grpc

from tfe_bench.cluster import (
    batching,
    expiry,
    handshake,
    jobs,
    probe,
    submission,
    tls,
    untrusted,
    wire,
)
from tfe_bench.cluster.config import ClientConfig, ClusterConfig, PartyConfig
from tfe_bench.cluster.doorkeeper import Doorkeeper, reserve_descriptors
from tfe_bench.cluster.jobs import Context, InputSpec
from tfe_bench.cluster.late import Inputs
from tfe_bench.cluster.memory import MemoryMeter, return_large_blocks
from tfe_bench.cluster.pending import Job
from tfe_bench.cluster.policy import MOST_JOBS, WorkerPolicy
from tfe_bench.cluster.queueing import JobQueue, Place
from tfe_bench.cluster.seeds import SEED_BYTES
from tfe_bench.cluster.store import KINDS, Store
from tfe_bench.cluster.transport import CHANNEL_OPTIONS, LINGER_SECONDS, SessionLink, hang_up
from tfe_bench.errors import (
    ClusterError,
    ConfigError,
    JobCancelled,
    PeerLost,
    PolicyError,
    ProtocolError,
    SecurityError,
    TfeBenchError,
    UsageError,
    VersionMismatch,
)

# A party that does not open its streams in this time is absent.
MEET_SECONDS = 12.0
# What party 0 says on a job's stream when its turn has come.
GO = b"go"
_RPC_THREADS = 192
# A client's jobs, and a few questions beside them.
_CALLS_PER_CONNECTION = MOST_JOBS + 24
_DEALER = 0
_CLIENT_LEFT = "The client cancelled the job or its connection ended."

T = TypeVar("T")

log = logging.getLogger("tfe_bench.worker")


def pair_key(a: int, b: int) -> int:
    """Index j of the key k_j that parties a and b share (k_j: parties j and j-1)."""
    return {frozenset((0, 2)): 0, frozenset((0, 1)): 1, frozenset((1, 2)): 2}[frozenset((a, b))]


def _addresses(host: str) -> int:
    """How many addresses a host's name stands for."""
    try:
        return len({found[4][0] for found in socket.getaddrinfo(host, None)}) or 1
    except OSError:
        return 1  # gRPC will say that it cannot listen there


def _leave(job: Job, _: Any) -> None:
    job.fail(JobCancelled(_CLIENT_LEFT))


def _line(error: BaseException) -> str:
    """An error of ours on one line of the log, whatever a peer has put into it."""
    return " ".join(str(error).split())[:600]


def _where(error: BaseException) -> str:
    """A foreign error's kind and place for the log: its own text could quote a value."""
    frames = traceback.extract_tb(error.__traceback__)
    places = ", ".join(f"{f.filename}:{f.lineno} in {f.name}" for f in frames[-8:])
    return f"{type(error).__name__} at {places}"


class Worker:
    """A party's server.

    Args:
        config: the shared cluster file.
        policy: this operator's private rules.
        bind: host to listen on instead of the one in cluster.toml.

    Raises:
        ConfigError: a key, a folder or an address that cannot be used.
        SecurityError: cleartext on more than loopback, or a key or folder that others can use.
    """

    def __init__(
        self, config: ClusterConfig, policy: WorkerPolicy, bind: str | None = None
    ) -> None:
        self.config = config
        self.policy = policy
        self.party = policy.party
        self._me = config.parties[self.party]
        config.check_bind(bind or self._me.host)
        self._key = policy.load_key() if config.tls else b""
        self._store = Store(
            policy.models, self.party, config.ring, config.fractional_bits, policy.max_models
        )
        self._jobs: dict[str, Job] = {}
        self._arrived = threading.Condition()
        self._turn = threading.Lock()
        self._queue = JobQueue(policy)
        reserve_descriptors(policy.max_connections)
        self._door = Doorkeeper(
            self.party,
            self._me.port,
            policy.max_connections,
            policy.max_connections_per_address,
        )
        return_large_blocks()
        self._memory = MemoryMeter()
        self._tasks: set[asyncio.Future[Any]] = set()
        self._started = time.monotonic()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="tfe-channel", daemon=True).start()
        try:
            self._server = self._on_loop(self._start_server(bind or self._me.host))
        except BaseException:
            self._door.close()
            raise
        if self.party == 0:
            threading.Thread(target=self._coordinate, name="tfe-jobs", daemon=True).start()

    # ---- server

    async def _start_server(self, host: str) -> grpc.aio.Server:
        # What waits (for a client, a job, an event) does so in these threads, not on the loop.
        self._loop.set_default_executor(ThreadPoolExecutor(_RPC_THREADS, "tfe-rpc"))
        # (gRPC counts the connections of each address of the host by themselves)
        share = max(1, self.policy.max_connections // _addresses(host))
        server = grpc.aio.server(
            options=[
                *CHANNEL_OPTIONS,
                ("grpc.max_allowed_incoming_connections", share),
                ("grpc.max_concurrent_streams", _CALLS_PER_CONNECTION),
            ]
        )
        handlers = {
            name: grpc.stream_stream_rpc_method_handler(
                function, request_deserializer=wire.identity, response_serializer=wire.identity
            )
            for name, function in (
                (wire.STREAM, self._serve_stream),
                (wire.JOB, self._serve_job),
                (wire.HELLO, self._serve_hello),
                (wire.STATUS, self._serve_status),
                (wire.CANCEL, self._serve_cancel),
                (wire.MODELS, self._serve_models),
            )
        }
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(wire.SERVICE, handlers),)
        )
        address = f"[{host}]:{self._me.port}" if ":" in host else f"{host}:{self._me.port}"
        try:
            if self.config.tls:
                credentials = tls.server_credentials(
                    self._key,
                    self._certificate(),
                    self.config.trusted_by(self.party),
                    self._door.wake,
                )
                port = server.add_secure_port(address, credentials)
            else:
                port = server.add_insecure_port(address)
        except RuntimeError as error:
            raise ConfigError(
                f"Party {self.party} cannot listen on {address}. Received: the address is in use "
                "or not this host's. Stop what uses it, or change the port in cluster.toml."
            ) from error
        if port == 0:
            raise ConfigError(f"Party {self.party} cannot listen on {address}.")
        await server.start()
        log.info("listening on %s", address)
        if not self.config.tls:
            log.warning(
                "TLS IS OFF: every user of this machine can act as any party and any client, and "
                "so read all inputs. Set tls = true in cluster.toml for anything but a trial."
            )
        self._warn_of_certificates()
        return server

    def _warn_of_certificates(self) -> None:
        """Says once a day whose certificate ends soon."""
        if self.config.tls:
            for line in expiry.warnings(self.config):
                log.warning(line)
            self._loop.call_later(86400, self._warn_of_certificates)

    def _certificate(self) -> bytes:
        """This worker's certificate: of the two during a roll-over, the one of its key."""
        return tls.own_certificate(self._key, self._me.certificates)

    def stop(self) -> None:
        """Ends running and waiting jobs, tells their clients and the peers, ends the server."""
        self._queue.close()
        jobs_left = list(self._jobs.values())
        for job in jobs_left:
            job.fail(ClusterError(f"Party {self.party} is shutting down. Order the job again."))
        deadline = time.monotonic() + 1.5
        for job in jobs_left:
            job.over.wait(max(0.0, deadline - time.monotonic()))
        with contextlib.suppress(Exception):
            self._on_loop(self._server.stop(0.5), 2)
        self._store.close()
        self._door.close()

    def _on_loop(self, work: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
        """Runs a coroutine on the channel's event loop and waits for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds)

    def _caller(self, context: Any) -> PartyConfig | ClientConfig:
        caller = self._identified(context)
        self._door.greet(context.peer(), caller.name)
        return caller

    def _identified(self, context: Any) -> PartyConfig | ClientConfig:
        if self.config.tls:
            return self.config.identify(tls.peer_identity(context))
        claimed = dict(context.invocation_metadata() or ()).get("tfe-party", "")
        if claimed in ("0", "1", "2"):
            return self.config.parties[int(claimed)]
        return ClientConfig("local")

    # ---- what a client may ask

    async def _serve_hello(
        self, requests: Any, context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> AsyncIterator[bytes]:
        del requests
        try:
            self._caller(context)
            yield wire.event("hello", party=self.party, now=time.time(), **self._facts())
        except TfeBenchError as error:
            yield wire.failure(error)

    def _client(self, context: Any) -> ClientConfig:
        caller = self._caller(context)
        if not isinstance(caller, ClientConfig):
            raise SecurityError("Jobs come from clients. Received: a worker's certificate.")
        return caller

    async def _serve_status(
        self, requests: Any, context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> AsyncIterator[bytes]:
        """The asking client's own jobs; of the others' only how many there are."""
        del requests
        try:
            client = self._client(context).name
            now = time.monotonic()
            own = [
                {
                    "job": job.name,
                    "program": job.header["program"],
                    "client": client,
                    "state": self._state(job),
                    "before": self._queue.before(job.place),
                    "age": now - job.submitted,
                    "running": None if job.began is None else now - job.began,
                }
                for job in list(self._jobs.values())
                if job.client == client and (not job.over.is_set() or job.failed is None)
            ]
            others_run, others_wait = self._queue.others(client)
            yield wire.event(
                "status",
                party=self.party,
                uptime=now - self._started,
                jobs=own,
                others_running=others_run,
                others_waiting=others_wait,
            )
        except TfeBenchError as error:
            yield wire.failure(error)

    @staticmethod
    def _state(job: Job) -> str:
        if job.over.is_set():
            return "delivering"
        if job.began is not None:
            return "running"
        return "waiting" if job.complete.is_set() else "arriving"

    async def _serve_cancel(
        self, requests: Any, context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> AsyncIterator[bytes]:
        """Ends a job of the asking client; somebody else's is as unknown as none."""
        del requests
        try:
            client = self._client(context).name
            name = str((await self._question(context)).get("job"))
            job = self._jobs.get(name)
            found = job is not None and job.client == client and not job.over.is_set()
            if job is not None and found:
                log.info("job %s: %s cancels it", job.short, client)
                why = JobCancelled("The job was cancelled by its client's order.")
                await self._loop.run_in_executor(None, job.fail, why)
            yield wire.event("cancelled", party=self.party, found=found)
        except TfeBenchError as error:
            yield wire.failure(error)

    async def _serve_models(
        self, requests: Any, context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> AsyncIterator[bytes]:
        """The models or data sets that the asking client may use; others are as unknown as none."""
        del requests
        try:
            client = self._client(context).name
            kind = KINDS.get(str((await self._question(context)).get("of", "")))
            if kind is None:
                raise ProtocolError("Nothing of this kind is kept.")
            rows = await self._loop.run_in_executor(None, self._store.of(kind).visible, client)
            yield wire.event("models", party=self.party, models=rows)
        except TfeBenchError as error:
            yield wire.failure(error)
        except Exception as error:
            log.error("listing the models failed: %s", _where(error))
            yield wire.failure(error)

    def _facts(self) -> dict[str, Any]:
        from tfe_bench.protocols.session import ops

        return {
            "version": handshake.version(),
            "abi": ops.abi(),
            "tensorflow": handshake.tensorflow_version(),
            "ring": self.config.ring,
            "fractional_bits": self.config.fractional_bits,
            "cluster": self.config.digest(),
            "isa": ops.native().isa().decode(),
        }

    async def _serve_job(
        self, requests: Any, context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> None:
        # A coroutine, because only that is cancelled at once when its client leaves.
        del requests  # read through the context
        job: Job | None = None
        place: Place | None = None
        summons: asyncio.TimerHandle | None = None
        try:
            client = self._client(context).name
            # Before anything is read: a client that stalls takes a place of its own.
            place = self._queue.enter(client)
            first = await self._first(context, wire.MOST_MESSAGE_BYTES)
            accepted = await self._loop.run_in_executor(None, self._accept, first, client, place)
            if self.party != _DEALER:  # which is sent seeds alone
                self._queue.hold(place, accepted.input_bytes)
            with self._arrived:
                if accepted.name in self._jobs:
                    raise ProtocolError("A job of this name exists already.")
                job = accepted
                self._jobs[job.name] = job
                self._arrived.notify_all()
            # Also where the client leaves while an event is being sent to it.
            gone: Any = functools.partial(_leave, accepted)
            context.add_done_callback(gone)
            self._loop.run_in_executor(None, self._receive, job, self._blobs(context, job))
            if self.party == 0:
                place.move = functools.partial(self._tell_place, job)
                self._keep(self._gather(job))
            else:
                summons = self._loop.call_later(MEET_SECONDS + 3, self._check_summoned, job)
            while blob := await self._loop.run_in_executor(None, self._next_event, job):
                if not await self._give(job, context, blob):
                    return
        except TfeBenchError as error:
            await self._refuse(context, error)
        except Exception as error:
            log.error("a submission failed: %s", _where(error))
            await self._refuse(context, error)
        finally:
            if summons is not None:
                summons.cancel()
            if job is not None:
                job.fail(JobCancelled(_CLIENT_LEFT))
                self._jobs.pop(job.name, None)
            if place is not None:
                self._queue.leave(place)

    async def _give(self, job: Job, context: Any, blob: bytes) -> bool:
        """Sends a job's client a message; False if it does not take it before long."""
        seconds = self.policy.stall_seconds
        if job.ended is not None:  # what is left may not take for ever either
            left = job.ended + self.policy.job_seconds - time.monotonic()
            seconds = min(seconds, max(0.0, left))
        try:
            await asyncio.wait_for(context.write(blob), seconds)
            return True
        except TimeoutError:
            error = self._stalled("did not take what was ready for it")
            log.warning("job %s: %s", job.short, _line(error))
            job.fail(error)
            # Nothing else gets through a stream that its client does not read, not even its end.
            self._door.hang_up(context.peer(), "what was ready was not taken, stall_seconds")
            return False

    async def _refuse(self, context: Any, error: Exception) -> None:
        """Tells a client why it has no job."""
        with contextlib.suppress(Exception):
            await asyncio.wait_for(context.write(wire.failure(error)), self.policy.stall_seconds)

    def _stalled(self, what: str) -> PolicyError:
        return PolicyError(
            f"The job's client {what} within the time that party {self.party} allows "
            f"({self.policy.stall_seconds:g} s for each message of {wire.CHUNK_BYTES} bytes, "
            f"limits.stall_seconds in worker.toml; {self.policy.job_seconds:g} s for all, "
            "limits.job_seconds)."
        )

    async def _first(self, context: Any, most: int = untrusted.MOST_QUESTION) -> bytes:
        """A client's first message, of so many bytes at most."""
        try:
            blob = await asyncio.wait_for(context.read(), MEET_SECONDS)
        except TimeoutError:
            blob = None
        if not isinstance(blob, bytes):
            raise ProtocolError("A job begins with its submission.")
        if len(blob) > most:
            raise PolicyError(
                f"Party {self.party} takes no first message of more than {most} bytes here. "
                f"Received: {len(blob)}."
            )
        return blob

    async def _question(self, context: Any) -> dict[str, Any]:
        """What a client asks in one small message."""
        first = await self._first(context)
        return wire.Reader(iter([first])).next_event() or {}

    def _keep(self, work: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]:
        """Runs a coroutine on the loop by itself."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _tell_place(self, job: Job, before: int) -> None:
        if before:
            log.info("job %s waits: %d before it", job.short, before)
            job.events.put(wire.event("queued", before=before))

    def _check_summoned(self, job: Job) -> None:
        if job.summoned or job.over.is_set():
            return
        job.fail(
            ClusterError(
                f"Party 0 was not given job {job.short}, or cannot reach party {self.party}. "
                "Received: no stream from it. A client submits a job to all three workers."
            )
        )

    def _blobs(self, context: Any, job: Job) -> Iterator[bytes]:
        """A client's messages, for a thread that may wait for them.

        Raises:
            PolicyError: the client does not send what is due.
        """
        while True:
            seconds = self.policy.stall_seconds
            if not job.complete.is_set():  # (what comes late comes while it waits or runs)
                left = job.submitted + self.policy.job_seconds - time.monotonic()
                seconds = min(seconds, max(0.0, left))
            try:
                blob = self._on_loop(asyncio.wait_for(context.read(), seconds))
            except TimeoutError:
                raise self._stalled("did not send what was due") from None
            if not isinstance(blob, bytes):
                return
            yield blob

    def _next_event(self, job: Job) -> bytes | None:
        while True:
            try:
                return job.events.get(timeout=1.0)
            except queue.Empty:
                if job.over.is_set() and job.events.empty():
                    return None
                return wire.event("alive")

    def _accept(self, first: bytes, client: str, place: Place) -> Job:
        header = submission.parse(first)
        for name, own in self._facts().items():
            given = header.get(name)
            if name == "isa" or name == "abi":
                continue
            if name == "tensorflow":
                continue  # a client runs none
            if given != own:
                raise VersionMismatch(
                    f"The client and party {self.party} differ in {name}. Received: "
                    f"{str(given)[:24]} (client) and {str(own)[:24]} (party {self.party}). "
                    "Use one version and one cluster.toml everywhere."
                )
        try:
            job = Job(header["job"], client, header, place)
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError("A job's submission is malformed.") from error
        self.policy.permit_inputs(len(job.inputs))
        if job.shaping is not None:
            self.policy.permit_shaping()
        self.policy.permit_program(header["program"])
        self.policy.permit_reveal(header["program"], client)
        program = jobs.load(header["program"])
        program.admit(header["parameters"], job.inputs)
        for other in program.needs(header["parameters"]):
            self.policy.permit_program(other)
            self.policy.permit_reveal(other, client)
        if program.permit is not None:
            program.permit(client, self._store, header["parameters"], job.inputs)
        largest = program.largest(client, self._store, header["parameters"], job.inputs)
        self.policy.permit_largest(largest)
        held = {0: {"l1", "l2"}, 1: {"l1"}, 2: {"l2"}}[(self.party - _DEALER) % 3]
        for spec, given in zip(job.inputs, header["inputs"], strict=True):
            # In words: the limit is about memory.
            self.policy.permit_elements(spec.words)
            try:
                job.seeds.append({k: bytes.fromhex(v) for k, v in given["seeds"].items()})
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise ProtocolError("A job's submission is malformed.") from error
            if {k: len(v) for k, v in job.seeds[-1].items()} != dict.fromkeys(held, SEED_BYTES):
                raise ProtocolError("A job's submission has other seeds than are due.")
        return job

    def _receive(self, job: Job, blobs: Iterator[bytes]) -> None:
        """Reads a job's inputs; it can be opened to the peers from its header on."""
        try:
            reader = wire.Reader(blobs)

            def read(spec: InputSpec) -> bytearray:
                return reader.read(0 if self.party == _DEALER else spec.words * 8)

            for spec in job.inputs:
                if not spec.late:
                    job.masked.append(read(spec))
            job.complete.set()
            if self.party != 0:  # party 0 tells how many are before it
                job.events.put(wire.event("queued"))
            for spec in job.inputs:
                if spec.late:
                    job.arrivals.put(spec.name, read(spec))
        except TfeBenchError as error:
            job.fail(error)
        except BaseException:  # the stream was cancelled below it
            job.fail(JobCancelled(_CLIENT_LEFT))

    # ---- meeting the peers

    def _hello(self, job: Job, agreement: handshake.KeyAgreement) -> handshake.Hello:
        facts = self._facts()
        facts.pop("isa")
        return handshake.Hello(
            party=self.party,
            program=job.digest,
            job=job.name,
            public_key=agreement.public_key,
            **facts,
        )

    def _coordinate(self) -> None:
        """Party 0: runs what is ready, in order."""
        while (place := self._queue.next()) is not None:
            job = next((j for j in list(self._jobs.values()) if j.place is place), None)
            if job is None:  # its client has just left
                self._queue.finish(place)
            else:
                self._run_job(job)

    async def _gather(self, job: Job) -> None:
        """Party 0: opens a job's streams ahead of its turn, and lets it wait once both stand."""
        dialling = [asyncio.ensure_future(self._dial(job, peer)) for peer in (1, 2)]
        for task in dialling:
            job.on_fail(functools.partial(self._loop.call_soon_threadsafe, task.cancel))
        try:
            await asyncio.gather(*dialling)
            await self._loop.run_in_executor(None, job.complete.wait)
            if job.failed is None:
                self._queue.set_ready(job.place)
        except asyncio.CancelledError:
            pass  # the job has failed
        except TfeBenchError as error:
            log.warning("job %s is refused: %s", job.short, _line(error))
            job.fail(error)
        except Exception as error:
            log.error("job %s failed before its turn: %s", job.short, _where(error))
            job.fail(ClusterError(f"Party {self.party} failed ({wire.kind_of(error)})."))
        finally:
            for task in dialling:
                task.cancel()

    async def _serve_stream(
        self, requests: Any, context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> None:
        """A lower-numbered party opens its stream of a job."""
        del requests  # read through the context
        try:
            caller = self._caller(context)
            if not isinstance(caller, PartyConfig) or caller.index >= self.party:
                raise SecurityError("This stream is for lower-numbered parties' workers.")
            peer = caller.index
            first = await context.read()
            if not isinstance(first, bytes):
                return
            theirs = handshake.Hello.decode(first)
            # Party 0 opens a job as soon as it has it; party 1 only one that all three have.
            job = await self._arrival(theirs.job, peer)
            agreement = handshake.KeyAgreement()
            mine = self._hello(job, agreement)
            await context.write(mine.encode())
            try:
                handshake.check(mine, theirs, peer)
            except TfeBenchError as error:
                job.fail(error)
                return
            job.have_key(peer, agreement.derive(mine, theirs))
            if peer == 0:
                if not await self._hear_go(job, context):
                    return
                threading.Thread(target=self._run_job, args=(job,), daemon=True).start()
            link = await self._loop.run_in_executor(None, job.wait_link)
            if link is not None:
                await link.carry(peer, context.read, context.write)
        except TfeBenchError as error:
            log.warning("a stream was refused: %s", _line(error))
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error)[:500])

    async def _hear_go(self, job: Job, context: Any) -> bool:
        """Waits until party 0 says that it is the job's turn; False if it ends before."""
        reading = asyncio.ensure_future(context.read())
        job.on_fail(functools.partial(self._loop.call_soon_threadsafe, reading.cancel))
        went = False
        try:
            went = bool(await reading == GO)
        except asyncio.CancelledError:
            if job.failed is None and not job.rides:  # party 0 hung up
                raise
        except Exception as error:
            log.debug("party 0's stream broke (%s)", type(error).__name__)
        finally:
            if not went and not job.rides:
                job.fail(JobCancelled("Party 0 ended the job before its turn."))
        return went

    async def _arrival(self, name: str, peer: int) -> Job:
        """The job of a name, which its client may still be sending."""
        given_up = threading.Event()
        # That party 1 opens one which this worker no longer has means that its client has left.
        seconds = MEET_SECONDS if peer == 0 else 0.0

        def wait() -> Job | None:
            with self._arrived:
                self._arrived.wait_for(lambda: name in self._jobs or given_up.is_set(), seconds)
                job = self._jobs.get(name)
            if job is not None:
                job.summoned = job.summoned or peer == 0
                while not job.complete.wait(0.5) and not given_up.is_set():
                    pass
            return job

        try:
            job = await self._loop.run_in_executor(None, wait)
        finally:  # a peer that hung up must not keep a thread waiting
            given_up.set()
            with self._arrived:
                self._arrived.notify_all()
        if job is None:
            raise ClusterError(f"Party {self.party} was not given job {name[:12]}.")
        if job.failed is not None:
            raise JobCancelled(f"Job {job.short} has ended at party {self.party}.")
        return job

    async def _dial(self, job: Job, peer: int) -> None:
        """Opens this party's stream to a higher-numbered one."""
        target = self.config.parties[peer]
        options = list(CHANNEL_OPTIONS)
        if self.config.tls:
            credentials = tls.channel_credentials(
                self._key, self._certificate(), target.certificates
            )
            options += tls.target_options(target.certificates[0])
            channel = grpc.aio.secure_channel(target.address, credentials, options=options)
        else:
            channel = grpc.aio.insecure_channel(target.address, options=options)
        agreement = handshake.KeyAgreement()
        mine = self._hello(job, agreement)
        call: Any = None
        try:
            await self._reach(target, channel)
            call = wire.stub(channel, wire.STREAM)(metadata=(("tfe-party", str(self.party)),))
            try:
                await call.write(mine.encode())
                # The peer's client may take its time to send the inputs there.
                first = await call.read()
            except grpc.RpcError:
                first = None
            if not isinstance(first, bytes):
                details = await call.details() if call.done() else ""
                raise ClusterError(
                    f"Party {peer} refused the session: {(details or 'its stream ended')[:300]}"
                )
            theirs = handshake.Hello.decode(first)
            handshake.check(mine, theirs, peer)
            job.have_key(peer, agreement.derive(mine, theirs))
        except BaseException:
            await hang_up(channel, call)
            raise
        self._keep(self._carry_dialled(job, peer, channel, call))

    async def _reach(self, target: PartyConfig, channel: Any) -> None:
        """Waits for a connection to a peer.

        Raises:
            ClusterError: nobody is there, or somebody with whom there is no TLS.
        """
        own = (self._key, self._certificate()) if self.config.tls else (b"", b"")
        watch = probe.Watch(target, *own)
        ready = asyncio.ensure_future(channel.channel_ready())
        deadline = self._loop.time() + MEET_SECONDS
        try:
            while not (await asyncio.wait({ready}, timeout=probe.PAUSE))[0]:
                refused = await self._loop.run_in_executor(None, watch.look)
                if refused is None and self._loop.time() < deadline:
                    continue
                what = f"nothing from {target.address} in {MEET_SECONDS:.0f} s"
                if refused is not None:
                    what = f"a connection to {target.address} but no agreement on TLS: {refused}"
                raise ClusterError(
                    f"Party {target.index} does not answer party {self.party}. Received: {what}. "
                    "Start its worker, or correct its address or certificate in cluster.toml."
                )
        finally:
            ready.cancel()

    async def _carry_dialled(self, job: Job, peer: int, channel: Any, call: Any) -> None:
        # Read ahead, so that a peer that leaves while the job waits is noticed.
        ahead = asyncio.ensure_future(call.read())

        first = True

        async def read() -> Any:
            nonlocal first
            if first:
                first = False
                return await ahead
            return await call.read()

        linger = 0.0
        try:
            if self.party == 0 and not await self._say_go(job, peer, ahead, call):
                return
            link = await self._loop.run_in_executor(None, job.wait_link)
            if link is not None:
                await link.carry(peer, read, call.write)
                with contextlib.suppress(Exception):
                    await call.done_writing()
                linger = LINGER_SECONDS
        finally:
            ahead.cancel()
            await hang_up(channel, call, linger)

    async def _say_go(self, job: Job, peer: int, ahead: asyncio.Future[Any], call: Any) -> bool:
        """Party 0: waits for the job's turn, and says so to a peer."""
        job.on_fail(functools.partial(self._loop.call_soon_threadsafe, job.turn.set))
        turn = asyncio.ensure_future(job.turn.wait())
        await asyncio.wait({ahead, turn}, return_when=asyncio.FIRST_COMPLETED)
        if not turn.done():
            turn.cancel()
            if not job.rides:
                job.fail(JobCancelled(f"Party {peer} ended the job before its turn."))
        if job.failed is not None or job.rides:  # (who rides needs no session of its own)
            return False
        try:
            await call.write(GO)
        except Exception:
            job.fail(PeerLost(peer, "its stream broke when the job's turn came"))
            return False
        return True

    def _meet(self, job: Job) -> SessionLink:
        if self.party == 0:  # the streams stand
            self._loop.call_soon_threadsafe(job.turn.set)
        for peer in () if self.party == 0 else range(self.party + 1, 3):
            dialling = asyncio.run_coroutine_threadsafe(self._dial(job, peer), self._loop)
            # A job that fails meanwhile must not keep the next one waiting.
            job.on_fail(dialling.cancel)
            try:
                dialling.result()
            except concurrent.futures.CancelledError:
                raise job.failed or ClusterError("The job was cancelled.") from None
        with job.met:
            others = {p for p in range(3) if p != self.party}
            job.met.wait_for(
                lambda: others <= set(job.keys) or job.failed is not None, MEET_SECONDS
            )
            if job.failed is not None:
                raise job.failed
            absent = sorted(others - set(job.keys))
            if absent:
                where = self.config.parties[absent[0]].address
                raise ClusterError(
                    f"Party {absent[0]} did not join. Received: no stream from {where} in "
                    f"{MEET_SECONDS:.0f} s. Start its worker, or see its log."
                )
            keys = [bytes(16)] * 3
            for peer, key in job.keys.items():
                keys[pair_key(self.party, peer)] = key
            job.link = SessionLink(self.party, b"".join(keys))
            if job.shaping is not None:
                job.link.shape(*job.shaping)
            job.keys = dict.fromkeys(job.keys, b"")
            job.met.notify_all()
        return job.link

    # ---- running

    def _run_job(self, job: Job) -> None:
        try:
            with self._turn:
                job.begin()
                job.place.running = True
                self._run_begun(job)
        except TfeBenchError:
            pass  # it failed before its turn
        finally:
            self._queue.finish(job.place)

    def _run_begun(self, job: Job) -> None:
        log.info("job %s (%s, of %s) begins", job.short, job.header["program"], job.client)
        link: SessionLink | None = None

        def expire() -> None:
            error = PolicyError(
                f"The job ran longer than party {self.party} allows "
                f"({self.policy.job_seconds:g} s, limits.job_seconds in worker.toml)."
            )
            for each in (job, *job.riders):
                each.fail(error)
            if link is not None:
                link.fail(error)

        timer = threading.Timer(self.policy.job_seconds, expire)
        timer.daemon = True
        timer.start()
        failure: BaseException | None = None
        try:
            link = self._meet(job)
            self._compute(job, link)
            log.info("job %s is done", job.short)
        except TfeBenchError as error:
            cause = (link.cause if link else None) or error
            for each in (job, *job.riders):
                each.fail(cause)
            failure = job.failed or cause
            log.warning("job %s failed: %s", job.short, _line(failure))
        except Exception as error:
            log.error("job %s failed: %s", job.short, _where(error))
            for each in (job, *job.riders):
                each.fail(ClusterError(f"Party {self.party} failed ({wire.kind_of(error)})."))
            failure = error
        finally:
            timer.cancel()
            if link is not None:
                link.finish()
                # Its streams' last words may still be on their way.
                self._loop.call_soon_threadsafe(self._loop.call_later, 5.0, link.drop)
            for rider in job.riders:
                self._dismiss(rider, rider.failed)
            job.finish(failure or job.failed)

    def _compute(self, job: Job, link: SessionLink) -> None:
        from tfe_bench.protocols.api.party import Party

        party = Party(self.party, link.handle, _DEALER)
        party._on_abort = link.explain
        if job.warm_up_bytes:
            # Windows open on what is sent, and what is timed later shall find them open.
            for _ in range(2):
                party.exchange(bytes(job.warm_up_bytes))
        idle = self._memory.start()
        program = jobs.load(job.header["program"])
        job.riders = self._board(job, party, program)
        brought = self._taken(party, program, job)
        aboard = [each for each, inputs in brought if inputs is not None]
        own = [inputs for _, inputs in brought if inputs is not None]
        del brought
        if not aboard:
            raise job.failed or ClusterError("No job of the batch is left.")
        counts: list[int] = []
        inputs: MutableMapping[str, Any] = own[0]
        if job.riders:
            inputs, counts = batching.merged(own)
        own.clear()

        shown = 0.0

        def progress(fraction: float, text: str) -> None:
            nonlocal shown
            # One worker tells, and not more often than a person can read.
            now = time.monotonic()
            if self.party == 0 and now - shown > 0.1:
                shown = now
                for each in aboard:
                    each.events.put(wire.event("progress", fraction=fraction, text=text))

        context = Context(
            party,
            job.header["parameters"],
            inputs,
            progress,
            client=aboard[0].client,
            store=self._store,
        )
        with party.active():
            outputs = program.run(context)
        # Nobody closes before everybody has finished.
        party.exchange(b"done")
        measured = {
            "build_seconds": party.build_seconds,
            **context.measurements,
            "idle_memory": idle,
            "peak_memory": self._memory.peak(),
        }
        if counts:
            measured["batched"] = {"requests": len(counts), "samples": sum(counts)}
        parts = batching.parted(outputs, counts) if counts else [outputs]
        for each, part in zip(aboard, parts, strict=True):
            if each.failed is not None:  # its client has left
                continue
            try:
                # The inputs are used up.
                self._queue.hold(each.place, self._result_bytes(part))
            except TfeBenchError as error:
                each.fail(error)
                continue
            each.events.put(wire.event("measured", **measured))
            for name, output in part.items():
                self._reveal_to_client(each, name, output)
            each.events.put(wire.event("done"))

    def _taken(
        self, party: Any, program: jobs.Program, job: Job
    ) -> list[tuple[Job, Inputs | None]]:
        """The inputs of a job and of those that go with it; None of one that is refused now."""
        if not job.riders:
            return [(job, self._inputs(party, job))]
        found: list[tuple[Job, Inputs | None]] = []
        refused: list[TfeBenchError | None] = []
        for each in (job, *job.riders):
            inputs = Inputs()
            error: TfeBenchError | None = None
            try:
                inputs = self._inputs(party, each)
                if program.permit is not None:  # the store may have changed since it came
                    specs = each.inputs
                    program.permit(each.client, self._store, each.header["parameters"], specs)
            except TfeBenchError as its:
                error = its
            found.append((each, inputs))
            refused.append(error)
        fine = batching.agreed(party, [error is None for error in refused])
        for i, (each, _) in enumerate(found):
            if not fine[i]:
                # what is wrong with one client's shares is no matter of the others
                each.fail(refused[i] or ProtocolError("Another worker refused this job's inputs."))
                found[i] = (each, None)
        return found

    def _board(self, job: Job, party: Any, program: jobs.Program) -> list[Job]:
        """The waiting jobs that all three workers take along with this one."""
        if batching.samples(program, job) == 0:
            return []
        waiting: list[Job] = []
        if self.party == 0:
            by_place = {id(each.place): each for each in list(self._jobs.values())}
            ready = [by_place.get(id(place)) for place in self._queue.waiting()]
            waiting = batching.chosen(program, job, [each for each in ready if each is not None])
        offered = batching.offered(party, waiting)
        if not offered:
            return []
        boarded = [self._boarded(program, job, *row) for row in offered]
        fits = batching.agreed(party, [each is not None for each in boarded])
        riders = []
        for each, fine in zip(boarded, fits, strict=True):
            if each is None:
                continue
            if fine:
                riders.append(each)
                log.info("job %s (of %s) goes with job %s", each.short, each.client, job.short)
            else:
                each.stay()
                self._queue.put_back(each.place)
        return riders

    def _boarded(self, program: jobs.Program, lead: Job, name: str, digest: str) -> Job | None:
        """A job of a name, taken from the queue; None if it cannot go along."""
        job = self._jobs.get(name)
        if job is None or job.digest != digest or job is lead or job.began is not None:
            return None
        if not job.complete.is_set() or not batching.alike(lead, job):
            return None
        if batching.samples(program, job) == 0:
            return None
        try:
            job.board()
        except TfeBenchError:
            return None
        job.place.running = True
        return job

    def _dismiss(self, rider: Job, error: BaseException | None) -> None:
        """Ends a job that went with another."""
        rider.finish(error)
        self._queue.finish(rider.place)

    def _inputs(self, party: Any, job: Job) -> Inputs:
        """A job's inputs as private tensors.

        Raises:
            ProtocolError: its client gave shares that do not fit each other; only once all of them
                were looked at, so that the workers stay in step.
        """
        import numpy as np
        import tensorflow as tf

        from tfe_bench.cluster import seeds
        from tfe_bench.protocols.session.sharing import Shared

        role = (self.party - _DEALER) % 3
        wrong: list[ProtocolError] = []

        def shared(spec: InputSpec, seed: dict[str, bytes], masked: bytearray) -> Shared:
            try:
                _check_copies(party, spec.name, seed, masked)
            except ProtocolError as error:
                if spec.late:
                    raise
                wrong.append(error)
            parts: dict[str, Any] = {"m": None, "l1": None, "l2": None}
            for name, value in seed.items():
                words = seeds.expand(value, spec.words)
                parts[name] = tf.constant(words.reshape(spec.word_shape), tf.int64)
                del words
            if role != 0:
                words = np.frombuffer(masked, np.int64)
                parts["m"] = tf.constant(words.reshape(spec.word_shape), tf.int64)
                del words, masked
            return Shared(
                **parts,
                dealer=_DEALER,
                fractional_bits=spec.fractional_bits,
                limbs=spec.limbs,
            )

        def arrived(spec: InputSpec, seed: dict[str, bytes]) -> Shared:
            return shared(spec, seed, job.arrivals.take(spec.name))

        inputs = Inputs()
        for i, (spec, seed) in enumerate(zip(job.inputs, job.seeds, strict=True)):
            if spec.late:
                inputs.expect(spec.name, functools.partial(arrived, spec, seed))
                continue
            # Every buffer goes as soon as it is a tensor: inputs may be large models.
            masked, job.masked[i] = job.masked[i], bytearray()
            inputs[spec.name] = shared(spec, seed, masked)
            del masked
        job.masked.clear()
        job.seeds.clear()
        if wrong:
            raise wrong[0]
        return inputs

    def _result_bytes(self, outputs: Mapping[str, Any]) -> int:
        """What this party keeps of results until their client has taken them."""
        return sum(
            8 * math.prod(getattr(value, part).shape)
            for value in outputs.values()
            for part in _result_parts(self.party, value)
            if (self.party - value.dealer) % 3 != 2  # whose part is compared, not sent
        )

    def _reveal_to_client(self, job: Job, name: str, value: Any) -> None:
        """Sends this party's parts of a result: the client alone puts them together."""
        import numpy as np

        parts = _result_parts(self.party, value)
        role = (self.party - value.dealer) % 3
        arrays = [np.asarray(getattr(value, part), np.int64, order="C") for part in parts]
        shape = list(arrays[0].shape if value.limbs == 1 else arrays[0].shape[:-1])
        digest = ""
        if role == 2:  # the copy of m is compared, not sent twice
            digest = hashlib.sha256(arrays[0].tobytes()).hexdigest()
            arrays = []
        job.events.put(
            wire.event(
                "result",
                name=name,
                shape=shape,
                fractional_bits=value.fractional_bits,
                limbs=value.limbs,
                parts=list(parts) if arrays else [],
                digest=digest,
            )
        )
        for array in arrays:
            for chunk in wire.data(array.reshape(-1).data.cast("B")):
                job.events.put(chunk)


def _result_parts(party: int, value: Any) -> tuple[str, ...]:
    """Which parts of a result a party has, as far as a client needs them.

    Raises:
        UsageError: it is nothing that can be revealed: bits, or a value of a small ring.
    """
    from tfe_bench.protocols.session.sharing import Shared

    shared = isinstance(value, Shared)
    if not shared or value.limbs not in (1, 2) or value.ring_bits != 64 * value.limbs:
        shown = repr(value) if shared else type(value).__name__
        raise UsageError(f"A program returns values over Z_2^64 or Z_2^128. Received: {shown}.")
    return ("l1", "l2") if (party - value.dealer) % 3 == 0 else ("m",)


def _check_copies(party: Any, name: str, seed: dict[str, bytes], masked: bytearray) -> None:
    """The two holders of each part of a client's input hold the same (clients may be malicious).

    Only the two holders compare: the dealer could search a small input by a digest of m.

    Raises:
        ProtocolError: they differ.
    """
    role = (party.index - party.dealer) % 3
    d, e1, e2 = ((party.dealer + i) % 3 for i in range(3))
    m = hashlib.sha256(masked).digest()
    with_peer = {
        0: {e1: seed.get("l1", b""), e2: seed.get("l2", b"")},
        1: {d: seed.get("l1", b""), e2: m},
        2: {d: seed.get("l2", b""), e1: m},
    }[role]
    mine = {peer: hashlib.sha256(value).digest() for peer, value in with_peer.items()}
    theirs = party.exchange_each(mine)
    for peer, digest in mine.items():
        if theirs[peer] != digest:
            raise ProtocolError(
                f"The client gave parties {party.index} and {peer} shares of {name!r} that do not "
                "fit each other. The job is refused: such shares could turn outputs into masks."
            )
