"""The streams between workers: one of each pair for every job, opened ahead of its turn.

Party 0 opens them as soon as it has a job, and says on them when the job's turn has come; party 1
then opens its own to party 2.  A session begins when a worker has the keys of both pairs.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import threading
from collections.abc import Callable
from typing import Any

import grpc

from tfe_bench.cluster import agreement, handshake, probe, wire
from tfe_bench.cluster.config import PartyConfig
from tfe_bench.cluster.transport import LINGER_SECONDS, SessionLink
from tfe_bench.cluster.worker.callers import Call, Callers
from tfe_bench.cluster.worker.connections import Connection, Connections
from tfe_bench.cluster.worker.host import MEET_SECONDS, Host
from tfe_bench.cluster.worker.log import log, where
from tfe_bench.cluster.worker.outcomes import UNKNOWN
from tfe_bench.cluster.worker.pending import Job
from tfe_bench.errors import (
    ClusterError,
    JobCancelled,
    PeerLost,
    SecurityError,
    TfeBenchError,
)

# What party 0 says on a job's stream when its turn has come.
GO = b"go"


def pair_key(a: int, b: int) -> int:
    """Index j of the key k_j that parties a and b share (k_j: parties j and j-1)."""
    return {frozenset((0, 2)): 0, frozenset((0, 1)): 1, frozenset((1, 2)): 2}[frozenset((a, b))]


class Meeting:
    """Meets the other two workers.

    Args:
        begin: runs a job whose turn has come.
    """

    def __init__(self, host: Host, callers: Callers, begin: Callable[[Job], None]) -> None:
        self._host, self._callers, self._begin = host, callers, begin
        self.connections = Connections(host)

    def _hello(self, job: Job, agreement: handshake.KeyAgreement) -> handshake.Hello:
        facts = self._host.facts()
        facts.pop("isa")
        return handshake.Hello(
            party=self._host.party,
            program=job.digest,
            job=job.name,
            public_key=agreement.public_key,
            client=job.known_as,
            **facts,
        )

    def _check(self, mine: handshake.Hello, theirs: handshake.Hello, peer: int) -> None:
        parts = agreement.differences(self._host.config, theirs.cluster_parts)
        handshake.check(mine, theirs, peer, parts)

    def _cancelled_with(self, job: Job, task: asyncio.Future[Any]) -> None:
        """Has a task of the event loop cancelled when the job fails."""
        job.on_fail(lambda: self._host.loop.call_soon_threadsafe(task.cancel))

    async def gather(self, job: Job) -> None:
        """Party 0: opens a job's streams ahead of its turn, and lets it wait once both stand."""
        dialling = [asyncio.ensure_future(self._dial(job, peer)) for peer in (1, 2)]
        for task in dialling:
            self._cancelled_with(job, task)
        try:
            await asyncio.gather(*dialling)
            await self._host.loop.run_in_executor(None, job.complete.wait)
            if job.failed is None:
                self._host.queue.set_ready(job.place)
        except asyncio.CancelledError:
            pass  # the job has failed
        except TfeBenchError as error:
            job.fail(error)
        except Exception as error:
            log.error("job %s failed before its turn: %s", job.short, where(error))
            job.fail(ClusterError(f"Party {self._host.party} failed ({wire.kind_of(error)})."))
        finally:
            for task in dialling:
                task.cancel()

    async def serve(self, requests: object, context: Call) -> None:
        """A lower-numbered party opens its stream of a job."""
        del requests  # read through the context
        name = UNKNOWN
        try:
            caller = self._callers.member(context)
            name = caller.name
            if not isinstance(caller, PartyConfig) or caller.index >= self._host.party:
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
                self._check(mine, theirs, peer)
            except TfeBenchError as error:
                job.fail(error)
                return
            job.have_key(peer, agreement.derive(mine, theirs))
            if peer == 0:
                if not await self._hear_go(job, context):
                    return
                threading.Thread(target=self._begin, args=(job,), daemon=True).start()
            link = await self._host.loop.run_in_executor(None, job.wait_link)
            if link is not None:
                await link.carry(peer, context.read, context.write)
                # A call that is ended while its other side still writes counts as broken there.
                with contextlib.suppress(Exception):
                    await asyncio.wait_for(context.read(), LINGER_SECONDS)
        except TfeBenchError as error:
            self._host.outcomes.note(name, f"a stream of {name} is refused", error)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error)[:500])

    async def _hear_go(self, job: Job, context: Call) -> bool:
        """Waits until party 0 says that it is the job's turn; False if it ends before."""
        reading = asyncio.ensure_future(context.read())
        self._cancelled_with(job, reading)
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
            job = self._host.jobs.wait(name, seconds, given_up)
            if job is not None:
                job.summoned = job.summoned or peer == 0
                while not job.complete.wait(0.5) and not given_up.is_set():
                    pass
            return job

        try:
            job = await self._host.loop.run_in_executor(None, wait)
        finally:  # a peer that hung up must not keep a thread waiting
            given_up.set()
            self._host.jobs.wake()
        if job is None:
            raise ClusterError(f"Party {self._host.party} was not given job {name[:12]}.")
        if job.failed is not None:
            raise JobCancelled(f"Job {job.short} has ended at party {self._host.party}.")
        return job

    async def _dial(self, job: Job, peer: int) -> None:
        """Opens this party's stream to a higher-numbered one."""
        while not await self._open(job, await self.connections.take(peer)):
            pass

    async def _open(self, job: Job, connection: Connection) -> bool:
        """Opens a stream over a connection; False if it had broken since its last job."""
        peer, channel = connection.peer, connection.channel
        agreement = handshake.KeyAgreement()
        mine = self._hello(job, agreement)
        call: Any = None
        try:
            if connection.fresh:
                await self._reach(self._host.config.parties[peer], channel)
            call = wire.stub(channel, wire.STREAM)(metadata=(("tfe-party", str(self._host.party)),))
            try:
                await call.write(mine.encode())
                # The peer's client may take its time to send the inputs there.
                first = await call.read()
            except grpc.RpcError:
                first = None
            if not isinstance(first, bytes):
                if not connection.fresh and not connection.usable:
                    await self.connections.leave(connection, call)
                    return False
                details = await call.details() if call.done() else ""
                raise ClusterError(
                    f"Party {peer} refused the session: {(details or 'its stream ended')[:300]}"
                )
            theirs = handshake.Hello.decode(first)
            self._check(mine, theirs, peer)
            job.have_key(peer, agreement.derive(mine, theirs))
        except BaseException:
            await self.connections.leave(connection, call)
            raise
        self._host.keep(self._carry_dialled(job, connection, call))
        return True

    async def _reach(self, target: PartyConfig, channel: grpc.aio.Channel) -> None:
        """Waits for a connection to a peer.

        Raises:
            ClusterError: nobody is there, or somebody with whom there is no TLS.
        """
        own = (self._host.key, self._host.certificate) if self._host.config.tls else (b"", b"")
        watch = probe.Watch(target, *own)
        ready = asyncio.ensure_future(channel.channel_ready())
        deadline = self._host.loop.time() + MEET_SECONDS
        try:
            while not (await asyncio.wait({ready}, timeout=probe.PAUSE))[0]:
                refused = await self._host.loop.run_in_executor(None, watch.look)
                if refused is None and self._host.loop.time() < deadline:
                    continue
                what = f"nothing from {target.address} in {MEET_SECONDS:.0f} s"
                if refused is not None:
                    what = f"a connection to {target.address} but no agreement on TLS: {refused}"
                raise ClusterError(
                    f"Party {target.index} does not answer party {self._host.party}. Received: "
                    f"{what}. Start its worker, or correct its address or certificate in "
                    "cluster.toml."
                )
        finally:
            ready.cancel()

    async def _carry_dialled(
        self, job: Job, connection: Connection, call: grpc.aio.StreamStreamCall
    ) -> None:
        peer = connection.peer
        # Read ahead, so that a peer that leaves while the job waits is noticed.
        ahead = asyncio.ensure_future(call.read())

        first = True

        async def read() -> object:
            nonlocal first
            if first:
                first = False
                return await ahead
            return await call.read()

        linger = 0.0
        try:
            if self._host.party == 0 and not await self._say_go(job, peer, ahead, call):
                return
            link = await self._host.loop.run_in_executor(None, job.wait_link)
            if link is not None:
                await link.carry(peer, read, call.write)
                with contextlib.suppress(Exception):
                    await call.done_writing()
                linger = LINGER_SECONDS
        finally:
            ahead.cancel()
            await self.connections.leave(connection, call, linger)

    async def _say_go(
        self, job: Job, peer: int, ahead: asyncio.Future[Any], call: grpc.aio.StreamStreamCall
    ) -> bool:
        """Party 0: waits for the job's turn, and says so to a peer."""
        job.on_fail(functools.partial(self._host.loop.call_soon_threadsafe, job.turn.set))
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

    def meet(self, job: Job) -> SessionLink:
        """Begins a job's session with both peers.

        Raises:
            TfeBenchError: the job has failed meanwhile, or a peer does not come.
        """
        if self._host.party == 0:  # the streams stand
            self._host.loop.call_soon_threadsafe(job.turn.set)
        for peer in () if self._host.party == 0 else range(self._host.party + 1, 3):
            dialling = asyncio.run_coroutine_threadsafe(self._dial(job, peer), self._host.loop)
            # A job that fails meanwhile must not keep the next one waiting.
            job.on_fail(dialling.cancel)
            try:
                dialling.result()
            except concurrent.futures.CancelledError:
                raise job.failed or ClusterError("The job was cancelled.") from None
        with job.met:
            others = {p for p in range(3) if p != self._host.party}
            job.met.wait_for(
                lambda: others <= set(job.keys) or job.failed is not None, MEET_SECONDS
            )
            if job.failed is not None:
                raise job.failed
            absent = sorted(others - set(job.keys))
            if absent:
                where = self._host.config.parties[absent[0]].address
                raise ClusterError(
                    f"Party {absent[0]} did not join. Received: no stream from {where} in "
                    f"{MEET_SECONDS:.0f} s. Start its worker, or see its log."
                )
            keys = [bytes(16)] * 3
            for peer, key in job.keys.items():
                keys[pair_key(self._host.party, peer)] = key
            job.link = SessionLink(self._host.party, b"".join(keys))
            if job.shaping is not None:
                job.link.shape(*job.shaping)
            job.keys = dict.fromkeys(job.keys, b"")
            job.met.notify_all()
        return job.link
