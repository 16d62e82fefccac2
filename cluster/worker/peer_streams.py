"""The streams between workers: one per pair for every job, taken before its turn.

Parties 0 and 1 take a job's streams to higher-numbered parties as soon as they have the job, while
earlier jobs run.  Both sides exchange hellos and derive the job's key.  Party 0 orders the jobs:
when the turn of a job has come, its side of each stream sends GO, and then party 1's to party 2.
A session begins when a worker has the keys of both pairs.

A stream serves one job after the other, each with its own key (`handshake.StreamKeys`), as long as
every job on it ends in order.  A session ends in order when both sides have sent BYE, which is
their last message.  A job that joins another job's batch has no session: both sides send JOINED.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import grpc

from tfe_bench.cluster import agreement, handshake, probe, wire
from tfe_bench.cluster.config import PartyConfig
from tfe_bench.cluster.transport import LINGER_SECONDS, SessionLink
from tfe_bench.cluster.worker.callers import Call, CallerAuthenticator
from tfe_bench.cluster.worker.connections import PeerConnection, PeerConnections
from tfe_bench.cluster.worker.host import MEET_SECONDS, WorkerState
from tfe_bench.cluster.worker.log import foreign_error_location, log
from tfe_bench.cluster.worker.outcomes import UNKNOWN
from tfe_bench.cluster.worker.pending import Job
from tfe_bench.errors import (
    ClusterError,
    JobCancelled,
    PeerLost,
    SecurityError,
    TfeBenchError,
)

# A lower-numbered party's message on a job's stream: its turn has come, or it has joined a batch.
GO, JOINED = b"go", b"joined"


def pair_key_index(a: int, b: int) -> int:
    """Return the index j of the key k_j that parties a and b share (k_j: parties j and j-1)."""
    return {frozenset((0, 2)): 0, frozenset((0, 1)): 1, frozenset((1, 2)): 2}[frozenset((a, b))]


class PeerStreams:
    """The streams to the other two workers.

    Args:
        begin: runs a job whose turn has come.
    """

    def __init__(
        self, host: WorkerState, callers: CallerAuthenticator, begin: Callable[[Job], None]
    ) -> None:
        self._host, self._callers, self._begin = host, callers, begin
        self.connections = PeerConnections(host)

    def _build_hello(
        self, job: Job, keys: handshake.StreamKeys, is_exchange: bool
    ) -> handshake.Hello | handshake.JobHello:
        job_fields = self._host.party, job.client_identity, job.digest, job.name
        if not is_exchange:
            return handshake.JobHello(*job_fields, chain=keys.get_chain_tag())
        facts = self._host.get_facts()
        facts.pop("isa")
        return handshake.Hello(*job_fields, public_key=keys.start_exchange(), **facts)

    def _check_hello(
        self,
        mine: handshake.Hello | handshake.JobHello,
        theirs: handshake.Hello | handshake.JobHello,
        peer: int,
    ) -> None:
        parts = ""
        if (
            isinstance(mine, handshake.Hello)
            and isinstance(theirs, handshake.Hello)
            and mine.cluster != theirs.cluster
        ):
            parts = agreement.describe_cluster_differences(self._host.config, theirs.cluster_parts)
        handshake.check_peer_hello(mine, theirs, peer, parts)

    def _cancel_on_failure(self, job: Job, task: asyncio.Future[Any]) -> None:
        """Cancel a task of the event loop when the job fails."""
        job.on_fail(lambda: self._host.loop.call_soon_threadsafe(task.cancel))

    async def open_streams(self, job: Job) -> None:
        """Open a job's streams to higher-numbered parties; at party 0, then queue the job."""
        if self._host.party == 1:
            # (a job that this worker never has in full ends here with that reason)
            await job.waits.wait_for(lambda: job.is_complete)
            if job.failed is not None:
                return
        peers = range(self._host.party + 1, 3)
        dialling = [asyncio.ensure_future(self._dial_peer(job, peer)) for peer in peers]
        for task in dialling:
            self._cancel_on_failure(job, task)
        try:
            await asyncio.gather(*dialling)
            if self._host.party == 0:
                await job.waits.wait_for(lambda: job.is_complete)
                if job.failed is None:
                    self._host.queue.set_ready(job.slot)
        except asyncio.CancelledError:
            pass  # the job has failed
        except TfeBenchError as error:
            job.fail(error)
        except Exception as error:
            log.error(
                "job %s failed before its turn: %s", job.short_name, foreign_error_location(error)
            )
            job.fail(
                ClusterError(
                    f"Party {self._host.party} failed ({wire.describe_foreign_error(error)}).",
                    code="worker-failed",
                    party=self._host.party,
                )
            )
        finally:
            for task in dialling:
                task.cancel()

    async def serve_stream(self, requests: object, context: Call) -> None:
        """Serve a stream of a lower-numbered party: one job after the other."""
        del requests  # read through the context
        name, keys = UNKNOWN, handshake.StreamKeys()
        try:
            caller = self._callers.authenticate_member(context)
            name = caller.name
            if not isinstance(caller, PartyConfig) or caller.index >= self._host.party:
                raise SecurityError(
                    "This stream is for lower-numbered parties' workers. Received: another caller.",
                    code="unexpected-caller",
                )
            while await self._serve_session(caller.index, context, keys):
                pass
        except TfeBenchError as error:
            self._host.outcomes.log_failure(name, f"a stream of {name} is refused", error)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error)[:500])
        finally:
            keys.erase_chain()

    async def _serve_session(self, peer: int, context: Call, keys: handshake.StreamKeys) -> bool:
        """Serve a job on a stream; return whether it ended in order, so that another may follow.

        Raises:
            TfeBenchError: the peer's hello is malformed, or its job is not here.
        """
        first = await context.read()
        if not isinstance(first, bytes):
            return False
        theirs = handshake.decode_hello(first)
        job = await self._wait_for_job(theirs.job, peer)
        mine = self._build_hello(job, keys, isinstance(theirs, handshake.Hello))
        await context.write(mine.encode())
        try:
            self._check_hello(mine, theirs, peer)
        except TfeBenchError as error:
            job.fail(error)
            return False
        job.set_key(peer, keys.derive_key(mine, theirs))
        signal = await self._wait_for_signal(job, peer, context)
        if signal == JOINED:
            await context.write(JOINED)
            return True
        if signal != GO:
            return False
        if peer == 0:
            self._begin(job)
        link = await job.wait_link()
        if link is None:
            return False
        if await link.pump_blobs(peer, context.read, context.write):
            return True
        # If a call ends while its other side still writes, that side treats it as broken.
        with contextlib.suppress(Exception):
            async with asyncio.timeout(LINGER_SECONDS):
                await context.read()
        return False

    async def _wait_for_signal(self, job: Job, peer: int, context: Call) -> bytes | None:
        """Wait for a lower-numbered party's GO or JOINED; None if the stream ends before."""
        reading = asyncio.ensure_future(context.read())
        self._cancel_on_failure(job, reading)
        signal: object = None
        try:
            signal = await reading
        except asyncio.CancelledError:
            if job.failed is None and not job.is_batched:  # the peer closed the stream
                raise
        except Exception as error:
            log.debug("party %d's stream broke (%s)", peer, type(error).__name__)
        finally:
            if signal != GO and not job.is_batched:
                job.fail(
                    JobCancelled(
                        f"Party {peer} ended the job before its turn.",
                        code="job-ended-by-peer",
                        party=peer,
                    )
                )
        if signal == GO:
            return GO
        return JOINED if signal == JOINED and job.is_batched else None

    async def _wait_for_job(self, name: str, peer: int) -> Job:
        """Return the job of a name, whose inputs may still be arriving."""
        job = await self._host.jobs.wait_for_job(name, MEET_SECONDS)
        if job is None:
            raise ClusterError(
                f"Party {self._host.party} has no job {name[:12]}.",
                code="job-not-found",
                received=name[:12],
                party=self._host.party,
            )
        job.peer_connected = job.peer_connected or peer == 0
        await job.waits.wait_for(lambda: job.is_complete)
        if job.failed is not None:
            raise JobCancelled(
                f"Job {job.short_name} has ended at party {self._host.party}.",
                code="job-ended-by-peer",
                party=self._host.party,
            )
        return job

    async def _dial_peer(self, job: Job, peer: int) -> None:
        """Take or open this party's stream to a higher-numbered one."""
        while not await self._begin_session(job, await self.connections.take_connection(peer)):
            pass

    async def _begin_session(self, job: Job, connection: PeerConnection) -> bool:
        """Start a session over a connection; return False if it has broken since its last job."""
        peer, call, keys = connection.peer, connection.call, connection.keys
        mine = self._build_hello(job, keys, keys.is_exchange_due)
        try:
            if call is None:
                await self._wait_connected(self._host.config.parties[peer], connection.channel)
                metadata = (("tfe-party", str(self._host.party)),)
                call = wire.stub(connection.channel, wire.STREAM)(metadata=metadata)
            try:
                await call.write(mine.encode())
                # The client may take long to send its inputs to the peer.
                first = await call.read()
            except (grpc.RpcError, asyncio.InvalidStateError):
                first = None
            if not isinstance(first, bytes):
                if connection.call is not None and not connection.is_usable:
                    await self.connections.close_connection(connection, call)
                    return False
                details = await call.details() if call.done() else ""
                raise ClusterError(
                    f"Party {peer} refused the session: {(details or 'its stream ended')[:300]}",
                    code="session-refused",
                    party=peer,
                )
            theirs = type(mine).decode(first)
            self._check_hello(mine, theirs, peer)
            job.set_key(peer, keys.derive_key(mine, theirs))
        except BaseException:
            await self.connections.close_connection(connection, call)
            raise
        self._host.start_task(self._pump_dialled(job, connection, call))
        return True

    async def _wait_connected(self, target: PartyConfig, channel: grpc.aio.Channel) -> None:
        """Wait for a connection to a peer.

        Raises:
            ClusterError: nothing listens there, or TLS fails.
        """
        key_pair = (self._host.key, self._host.certificate) if self._host.config.tls else (b"", b"")
        tls_probe = probe.TlsProbe(target, *key_pair)
        ready = asyncio.ensure_future(channel.channel_ready())
        deadline = self._host.loop.time() + MEET_SECONDS
        try:
            while not (await asyncio.wait({ready}, timeout=probe.PAUSE))[0]:
                mismatch = await self._host.loop.run_in_executor(None, tls_probe.check_once)
                if mismatch is None and self._host.loop.time() < deadline:
                    continue
                observation = f"nothing from {target.address} in {MEET_SECONDS:.0f} s"
                if mismatch is not None:
                    observation = (
                        f"a connection to {target.address} but no agreement on TLS: {mismatch}"
                    )
                raise ClusterError(
                    f"Party {target.index} does not answer party {self._host.party}. Received: "
                    f"{observation}. Start its worker, or correct its address or certificate in "
                    "cluster.toml.",
                    code="worker-not-reachable" if mismatch is None else "tls-mismatch",
                    party=target.index,
                )
        finally:
            ready.cancel()

    async def _pump_dialled(
        self, job: Job, connection: PeerConnection, call: grpc.aio.StreamStreamCall
    ) -> None:
        peer = connection.peer
        # Read ahead, to detect a peer that disconnects while the job waits.
        ahead = asyncio.ensure_future(call.read())

        first = True

        async def read_next() -> object:
            nonlocal first
            if first:
                first = False
                return await ahead
            return await call.read()

        has_ended_in_order = False
        try:
            signal = await self._send_signal(job, peer, ahead, call)
            if signal == JOINED:
                await asyncio.wait({ahead}, timeout=LINGER_SECONDS)
                has_ended_in_order = ahead.done() and ahead.result() == JOINED
            elif signal == GO and (link := await job.wait_link()) is not None:
                has_ended_in_order = await link.pump_blobs(peer, read_next, call.write)
        finally:
            ahead.cancel()
            if has_ended_in_order:
                await self.connections.return_connection(connection, call)
            else:
                await self.connections.close_connection(connection, call)

    async def _send_signal(
        self, job: Job, peer: int, ahead: asyncio.Future[Any], call: grpc.aio.StreamStreamCall
    ) -> bytes | None:
        """Wait for a job's turn or batch, and signal it to a peer.

        Returns:
            GO, JOINED, or None if the job or its stream has ended.
        """
        turn = job.waits.watch_condition(
            lambda: job.is_turn or job.is_joined or job.failed is not None or job.over.is_set()
        )
        await asyncio.wait({ahead, turn}, return_when=asyncio.FIRST_COMPLETED)
        if not turn.done():
            turn.cancel()
            if not job.is_batched:
                job.fail(
                    JobCancelled(
                        f"Party {peer} ended the job before its turn.",
                        code="job-ended-by-peer",
                        party=peer,
                    )
                )
            return None
        if job.failed is not None or not (job.is_turn or job.is_joined):
            return None
        signal = JOINED if job.is_joined else GO
        try:
            await call.write(signal)
        except Exception:
            if not job.is_joined:
                job.fail(PeerLost(peer, "its stream broke when the job's turn came"))
            return None
        return signal

    def start_session(self, job: Job) -> SessionLink:
        """Start a job's session with both peers.

        Raises:
            TfeBenchError: the job has failed, or a peer does not connect.
        """
        job.mark_turn()
        with job.changed:
            others = {p for p in range(3) if p != self._host.party}
            job.changed.wait_for(
                lambda: others <= set(job.keys) or job.failed is not None, MEET_SECONDS
            )
            if job.failed is not None:
                raise job.failed
            absent = sorted(others - set(job.keys))
            if absent:
                absent_address = self._host.config.parties[absent[0]].address
                raise ClusterError(
                    f"Party {absent[0]} did not join. Received: no stream from {absent_address} in "
                    f"{MEET_SECONDS:.0f} s. Start its worker, or see its log.",
                    code="worker-not-reachable",
                    party=absent[0],
                )
            keys = [bytes(16)] * 3
            for peer, key in job.keys.items():
                keys[pair_key_index(self._host.party, peer)] = key
            link = SessionLink(self._host.party, b"".join(keys))
            if job.shaping is not None:
                link.shape_traffic(*job.shaping)
            job.start_link(link)
        return link
