"""One party's long-running process: a gRPC server, peers' streams, one job at a time.

Party 0 orders jobs: it opens the streams of the next one, and the others run what
it opens.  Every job is a session of its own with fresh keys.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import hashlib
import logging
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import grpc

from tfe_bench.cluster import handshake, jobs, tls, wire
from tfe_bench.cluster.config import ClientConfig, ClusterConfig, PartyConfig
from tfe_bench.cluster.jobs import Context, InputSpec
from tfe_bench.cluster.memory import MemoryMeter, return_large_blocks
from tfe_bench.cluster.policy import WorkerPolicy
from tfe_bench.cluster.seeds import SEED_BYTES
from tfe_bench.cluster.transport import CHANNEL_OPTIONS, SessionLink
from tfe_bench.errors import (
    ClusterError,
    ConfigError,
    JobCancelled,
    PolicyError,
    ProtocolError,
    SecurityError,
    TfeBenchError,
    UsageError,
    VersionMismatch,
)

# A party that does not open its streams in this time is absent.
MEET_SECONDS = 12.0
_DEALER = 0
_MOST_WARM_UP = 16 << 20
_CLIENT_LEFT = "The client cancelled the job or its connection ended."

T = TypeVar("T")

log = logging.getLogger("tfe_bench.worker")


def pair_key(a: int, b: int) -> int:
    """Index j of the key k_j that parties a and b share (k_j: parties j and j-1)."""
    return {frozenset((0, 2)): 0, frozenset((0, 1)): 1, frozenset((1, 2)): 2}[frozenset((a, b))]


class _Job:
    """A submitted job at this worker, from submission to its last event."""

    def __init__(self, name: str, client: str, header: dict[str, Any]) -> None:
        self.name = name
        self.client = client
        self.header = header
        self.inputs = [
            InputSpec(
                str(i["name"]),
                tuple(int(d) for d in i["shape"]),
                int(i["fractional_bits"]),
                _limbs(i["limbs"]),
            )
            for i in header["inputs"]
        ]
        if any(size < 0 for spec in self.inputs for size in spec.shape):
            raise ValueError("a negative dimension")
        self.shaping = _shaping(header.get("shaping"))
        self.warm_up_bytes = _whole(header.get("warm_up_bytes", 0), 0, _MOST_WARM_UP)
        self.seeds: list[dict[str, bytes]] = []
        self.masked: list[bytearray] = []
        self.events: queue.Queue[bytes | None] = queue.Queue()
        self.keys: dict[int, bytes] = {}
        self.met = threading.Condition()
        self.link: SessionLink | None = None
        self.failed: TfeBenchError | None = None
        self.over = threading.Event()
        self._closers: list[Callable[[], object]] = []
        # The client is part of it: the three workers judge by their policies one and the same.
        self.digest = handshake.program_digest(
            header["program"],
            header["parameters"],
            [
                client,
                [[i.name, i.shape, i.fractional_bits, i.limbs] for i in self.inputs],
                [self.shaping, self.warm_up_bytes],
            ],
        )

    def fail(self, error: TfeBenchError) -> None:
        with self.met:
            if self.failed is None:
                self.failed = error
            closers, self._closers = self._closers, []
            self.met.notify_all()
        for closer in closers:
            closer()
        if self.link is not None:
            self.link.fail(error)

    def on_fail(self, closer: Callable[[], object]) -> None:
        """Has this called when the job fails, at once if it has."""
        with self.met:
            if self.failed is None:
                self._closers.append(closer)
                return
        closer()

    def have_key(self, peer: int, key: bytes) -> None:
        with self.met:
            self.keys[peer] = key
            self.met.notify_all()

    def wait_link(self) -> SessionLink | None:
        with self.met:
            self.met.wait_for(
                lambda: self.link is not None or self.failed is not None, MEET_SECONDS + 5
            )
            return self.link if self.failed is None else None


def _limbs(value: object) -> int:
    """1 or 2, as JSON says it: no text, no fraction, no truth value."""
    if type(value) is not int or value not in (1, 2):
        raise ValueError("words per element other than 1 and 2")
    return value


def _whole(value: object, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError("a number out of its range")
    return value


def _shaping(value: object) -> tuple[int, int] | None:
    """(microseconds of delay, bytes per second) that a client asks for."""
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError("no pair of numbers")
    return _whole(value[0], 0, 2_000_000), _whole(value[1], 10_000, 1 << 40)


def _leave(job: _Job, _: Any) -> None:
    job.fail(JobCancelled(_CLIENT_LEFT))


class Worker:
    """A party's server.

    Args:
        config: the shared cluster file.
        policy: this operator's private rules.
        bind: host to listen on instead of the one in cluster.toml.
    """

    def __init__(
        self, config: ClusterConfig, policy: WorkerPolicy, bind: str | None = None
    ) -> None:
        self.config = config
        self.policy = policy
        self.party = policy.party
        self._me = config.parties[self.party]
        self._key = policy.load_key() if config.tls else b""
        self._jobs: dict[str, _Job] = {}
        self._arrived = threading.Condition()
        self._turn = threading.Lock()
        self._queue: queue.Queue[_Job | None] = queue.Queue()
        return_large_blocks()
        self._memory = MemoryMeter()
        self._tasks: set[asyncio.Future[None]] = set()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="tfe-channel", daemon=True).start()
        self._server = self._on_loop(self._start_server(bind or self._me.host))
        if self.party == 0:
            threading.Thread(target=self._coordinate, name="tfe-jobs", daemon=True).start()

    # ---- server

    async def _start_server(self, host: str) -> grpc.aio.Server:
        # What waits (for a client, a job, an event) does so in these threads, not on the loop.
        self._loop.set_default_executor(ThreadPoolExecutor(64, "tfe-rpc"))
        server = grpc.aio.server(options=CHANNEL_OPTIONS)
        handlers = {
            name: grpc.stream_stream_rpc_method_handler(
                function, request_deserializer=wire.identity, response_serializer=wire.identity
            )
            for name, function in (
                (wire.STREAM, self._serve_stream),
                (wire.JOB, self._serve_job),
                (wire.HELLO, self._serve_hello),
            )
        }
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(wire.SERVICE, handlers),)
        )
        address = f"[{host}]:{self._me.port}" if ":" in host else f"{host}:{self._me.port}"
        try:
            if self.config.tls:
                assert self._me.certificate is not None
                credentials = tls.server_credentials(
                    self._key, self._me.certificate, self.config.trusted_by(self.party)
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
        return server

    def stop(self) -> None:
        """Ends running jobs and the server."""
        self._queue.put(None)
        for job in list(self._jobs.values()):
            job.fail(ClusterError(f"Party {self.party} is shutting down."))
        with contextlib.suppress(Exception):
            self._on_loop(self._server.stop(0.5), 2)

    def _on_loop(self, work: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
        """Runs a coroutine on the channel's event loop and waits for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds)

    def _caller(self, context: Any) -> PartyConfig | ClientConfig:
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
            yield wire.event("hello", party=self.party, **self._facts())
        except TfeBenchError as error:
            yield wire.failure(error)

    def _facts(self) -> dict[str, Any]:
        from tfe_bench.protocols import ops

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
    ) -> AsyncIterator[bytes]:
        # A coroutine, because only that is cancelled at once when its client leaves.
        del requests  # read through the context
        job: _Job | None = None
        try:
            caller = self._caller(context)
            if not isinstance(caller, ClientConfig):
                raise SecurityError("Jobs come from clients. Received: a worker's certificate.")
            reader = wire.Reader(self._blobs(context))
            accepted = await self._loop.run_in_executor(None, self._accept, reader, caller.name)
            with self._arrived:
                if accepted.name in self._jobs:
                    raise ProtocolError("A job of this name exists already.")
                job = accepted
                self._jobs[job.name] = job
                self._arrived.notify_all()
            # Also where the client leaves while an event is being sent to it.
            gone: Any = functools.partial(_leave, accepted)
            context.add_done_callback(gone)
            if self.party == 0:
                self._queue.put(job)
            else:
                self._expect(job)
            while blob := await self._loop.run_in_executor(None, self._next_event, job):
                yield blob
        except TfeBenchError as error:
            yield wire.failure(error)
        except Exception as error:
            log.exception("a job failed")
            yield wire.failure(error)
        finally:
            if job is not None:
                job.fail(JobCancelled(_CLIENT_LEFT))
                self._jobs.pop(job.name, None)

    def _blobs(self, context: Any) -> Iterator[bytes]:
        """A client's messages, for a thread that may wait for them."""
        while isinstance(blob := self._on_loop(context.read()), bytes):
            yield blob

    def _next_event(self, job: _Job) -> bytes | None:
        while True:
            try:
                return job.events.get(timeout=1.0)
            except queue.Empty:
                if job.over.is_set() and job.events.empty():
                    return None
                return wire.event("alive")

    def _accept(self, reader: wire.Reader, client: str) -> _Job:
        header = reader.next_event()
        if header is None or header["event"] != "submit":
            raise ProtocolError("A job begins with its submission.")
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
            job = _Job(str(header["job"]), client, header)
            program_name = str(header["program"])
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError("A job's submission is malformed.") from error
        if job.shaping is not None:
            self.policy.permit_shaping()
        self.policy.permit_program(program_name)
        self.policy.permit_reveal(program_name, client)
        jobs.load(program_name).admit(header["parameters"], job.inputs)
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
            size = 0 if self.party == _DEALER else spec.words * 8
            job.masked.append(reader.read(size))
        return job

    # ---- meeting the peers

    def _hello(self, job: _Job, agreement: handshake.KeyAgreement) -> handshake.Hello:
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
        while (job := self._queue.get()) is not None:
            if job.failed is None:
                self._run_job(job)
            job.over.set()

    def _expect(self, job: _Job) -> None:
        """Parties 1 and 2: a job starts when party 0 opens it; it may queue there."""
        job.events.put(wire.event("queued"))

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
            job = await self._arrival(theirs.job)
            agreement = handshake.KeyAgreement()
            mine = self._hello(job, agreement)
            await context.write(mine.encode())
            try:
                handshake.check(mine, theirs, peer)
            except TfeBenchError as error:
                job.fail(error)
                if peer == 0:
                    self._finish_failed(job)
                return
            job.have_key(peer, agreement.derive(mine, theirs))
            if peer == 0:
                threading.Thread(target=self._run_job, args=(job,), daemon=True).start()
            link = await self._loop.run_in_executor(None, job.wait_link)
            if link is not None:
                await link.carry(peer, context.read, context.write)
        except TfeBenchError as error:
            log.warning("a stream was refused: %s", error)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error)[:500])

    async def _arrival(self, name: str) -> _Job:
        """The job of a name, which its client may still be sending."""
        given_up = threading.Event()

        def wait() -> _Job | None:
            with self._arrived:
                self._arrived.wait_for(
                    lambda: name in self._jobs or given_up.is_set(), MEET_SECONDS
                )
                return self._jobs.get(name)

        try:
            job = await self._loop.run_in_executor(None, wait)
        finally:  # a peer that hung up must not keep a thread waiting
            given_up.set()
            with self._arrived:
                self._arrived.notify_all()
        if job is None:
            raise ClusterError(f"Party {self.party} was not given job {name[:8]}.")
        return job

    async def _dial(self, job: _Job, peer: int) -> None:
        """Opens this party's stream to a higher-numbered one."""
        target = self.config.parties[peer]
        options = list(CHANNEL_OPTIONS)
        if self.config.tls:
            assert target.certificate is not None and self._me.certificate is not None
            credentials = tls.channel_credentials(
                self._key, self._me.certificate, target.certificate
            )
            options += tls.target_options(target.certificate)
            channel = grpc.aio.secure_channel(target.address, credentials, options=options)
        else:
            channel = grpc.aio.insecure_channel(target.address, options=options)
        agreement = handshake.KeyAgreement()
        mine = self._hello(job, agreement)
        try:
            try:
                await asyncio.wait_for(channel.channel_ready(), MEET_SECONDS)
            except TimeoutError:
                raise ClusterError(
                    f"Party {peer} does not answer. Received: nothing from {target.address} in "
                    f"{MEET_SECONDS:.0f} s. Start its worker, or correct its address or "
                    "certificate in cluster.toml."
                ) from None
            call = wire.stub(channel, wire.STREAM)(metadata=(("tfe-party", str(self.party)),))
            try:
                await call.write(mine.encode())
                first = await asyncio.wait_for(call.read(), MEET_SECONDS + 3)
            except (grpc.RpcError, TimeoutError):
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
            await channel.close()
            raise
        task = asyncio.ensure_future(self._carry_dialled(job, peer, channel, call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry_dialled(self, job: _Job, peer: int, channel: Any, call: Any) -> None:
        try:
            link = await self._loop.run_in_executor(None, job.wait_link)
            if link is not None:
                await link.carry(peer, call.read, call.write)
                with contextlib.suppress(Exception):
                    await call.done_writing()
        finally:
            await channel.close()

    def _meet(self, job: _Job) -> SessionLink:
        for peer in range(self.party + 1, 3):
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

    def _finish_failed(self, job: _Job) -> None:
        if job.failed is not None:
            job.events.put(wire.failure(job.failed))
        job.events.put(None)
        job.over.set()

    def _run_job(self, job: _Job) -> None:
        with self._turn:
            log.info("job %s (%s) begins", job.name[:8], job.header["program"])
            timer = threading.Timer(
                self.policy.job_seconds,
                lambda: job.fail(
                    PolicyError(
                        f"The job ran longer than party {self.party} allows "
                        f"({self.policy.job_seconds:g} s, limits.job_seconds in worker.toml)."
                    )
                ),
            )
            timer.daemon = True
            timer.start()
            link = None
            try:
                link = self._meet(job)
                self._compute(job, link)
                log.info("job %s is done", job.name[:8])
            except TfeBenchError as error:
                cause = (link.cause if link else None) or error
                job.fail(cause)
                log.warning("job %s failed: %s", job.name[:8], cause)
                job.events.put(wire.failure(job.failed or cause))
            except Exception as error:
                log.exception("job %s failed", job.name[:8])
                job.fail(ClusterError(f"Party {self.party} failed ({type(error).__name__})."))
                job.events.put(wire.failure(error))
            finally:
                timer.cancel()
                if link is not None:
                    link.finish()
                    threading.Timer(5.0, link.drop).start()
                job.events.put(None)
                job.over.set()

    def _compute(self, job: _Job, link: SessionLink) -> None:
        import numpy as np
        import tensorflow as tf

        from tfe_bench.cluster import seeds
        from tfe_bench.protocols.party import Party
        from tfe_bench.protocols.sharing import Shared

        party = Party(self.party, link.handle, _DEALER)
        party._on_abort = link.explain
        if job.warm_up_bytes:
            # Windows open on what is sent, and what is timed later shall find them open.
            for _ in range(2):
                party.exchange(bytes(job.warm_up_bytes))
        idle = self._memory.start()
        role = (self.party - _DEALER) % 3
        inputs: dict[str, Shared] = {}
        for spec, seed, masked in zip(job.inputs, job.seeds, job.masked, strict=True):
            _check_copies(party, spec.name, seed, masked)
            parts: dict[str, Any] = {"m": None, "l1": None, "l2": None}
            for name, value in seed.items():
                words = seeds.expand(value, spec.words)
                parts[name] = tf.constant(words.reshape(spec.word_shape), tf.int64)
            if role != 0:
                words = np.frombuffer(masked, np.int64)
                parts["m"] = tf.constant(words.reshape(spec.word_shape), tf.int64)
            inputs[spec.name] = Shared(
                **parts,
                dealer=_DEALER,
                fractional_bits=spec.fractional_bits,
                limbs=spec.limbs,
            )
        job.masked.clear()
        job.seeds.clear()

        shown = 0.0

        def progress(fraction: float, text: str) -> None:
            nonlocal shown
            # One worker tells, and not more often than a person can read.
            now = time.monotonic()
            if self.party == 0 and now - shown > 0.1:
                shown = now
                job.events.put(wire.event("progress", fraction=fraction, text=text))

        context = Context(party, job.header["parameters"], inputs, progress)
        program = jobs.load(job.header["program"])
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
        job.events.put(wire.event("measured", **measured))
        for name, output in outputs.items():
            self._reveal_to_client(job, name, output)
        job.events.put(wire.event("done"))

    def _reveal_to_client(self, job: _Job, name: str, value: Any) -> None:
        """Sends this party's parts of a result: the client alone puts them together."""
        import numpy as np

        role = (self.party - value.dealer) % 3
        parts = ("l1", "l2") if role == 0 else ("m",)
        if value.limbs not in (1, 2) or value.ring_bits != 64 * value.limbs:
            raise UsageError(
                f"A program returns values over Z_2^64 or Z_2^128. Received: {value!r}."
            )
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
