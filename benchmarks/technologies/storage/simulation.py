"""An event simulation of devices that serve clients.

Each device has one engine that reads and one that computes; a layer consists of chunks.  A device
reads a chunk as soon as it fits into memory, uses the chunks in order, and then drops them.  All
reading streams share a link.  A device runs one inference at a time; others wait in one queue.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from tfe_bench.benchmarks.technologies.job_options import check_job_options, option_field
from tfe_bench.benchmarks.technologies.storage.device import GIGA, StorageDevice
from tfe_bench.benchmarks.technologies.storage.links import SharedLink
from tfe_bench.benchmarks.technologies.storage.model import DeviceModel
from tfe_bench.errors import ConfigError, UsageError

CHUNKS: Final = 200  # per layer; more chunks change latencies by 0.2 % at most
MOST_DEVICES: Final = 1024
MOST_CLIENTS: Final = 100_000
_MOST_CHUNKS: Final = 5_000_000
# How often others, whose keys a device holds, may overtake a waiting inference.
_OVERTAKEN: Final = 8


@dataclass(frozen=True, kw_only=True)
class InferenceLoad:
    """The requests of the clients, and the devices that serve them.

    Attributes:
        devices: number of devices.
        clients: number of clients, each with its own keys.
        requests: number of inferences of all clients together.
        arrivals: rate of the Poisson arrivals of all clients together; None if each client
            requests its next inference after the answer to the last one.
        affinity: whether an inference prefers a free device that holds its client's keys.
        seed: seed of the arrivals.
    """

    devices: int = option_field(
        "number of devices that share the host's lanes", "N", 1, MOST_DEVICES, default=1
    )
    clients: int = option_field(
        "number of clients, each with its own keys", "N", 1, MOST_CLIENTS, default=1
    )
    requests: int = option_field("total number of inferences", "N", 1, 10**6, default=1)
    arrivals: float | None = option_field(
        "rate of random arrivals per second", "R", 1e-6, 1e6, default=None
    )
    affinity: bool = True
    seed: int = option_field("seed of random arrivals", "SEED", 0, default=1)


@dataclass(frozen=True, kw_only=True)
class SimulationOutcome:
    """The result of a simulation; times in seconds, sizes in bytes.

    Attributes:
        latencies: time of each inference from request to answer, in the order of answers.
        seconds: time from the first request to the last answer.
        computing, reading: fractions of all devices' time.
        read_bytes: bytes that all devices read.
        spilled_bytes: bytes that did not fit into memory and were written and read again.
        peak_bytes: largest use of one device's memory.
        key_hits: number of inferences whose device already held the client's keys.
    """

    latencies: tuple[float, ...]
    seconds: float
    computing: float
    reading: float
    read_bytes: float
    spilled_bytes: float
    peak_bytes: float
    key_hits: int

    @property
    def throughput(self) -> float:
        """Inferences per second."""
        return len(self.latencies) / self.seconds

    def latency_quantile(self, part: float) -> float:
        """Return the latency that a fraction of inferences does not exceed (nearest rank)."""
        ranked = sorted(self.latencies)
        return ranked[max(0, math.ceil(part * len(ranked)) - 1)]


@dataclass(frozen=True)
class _Chunk:
    """A part of a layer: bytes to read, and the computing time.

    Attributes:
        size: bytes of weights; they occupy memory until their use.
        keys: bytes of evaluation keys, not read if the device holds them.
        spill: bytes whose reading takes as long as writing and rereading the spilled values.
        seconds: computing time.
    """

    size: float
    keys: float
    spill: float
    seconds: float


@dataclass
class _Running:
    """A device and the progress of its inference.

    Attributes:
        index: number of the device.
        request: number of its inference; None while it is idle.
        kept: clients whose keys it holds, the least recent first.
        cached: whether it already holds the keys of this inference.
        read, used: number of chunks that arrived, and that were used.
        held: bytes of memory in use.
        reading, computing: whether the engines are busy.
    """

    index: int
    request: int | None = None
    kept: OrderedDict[int, None] = field(default_factory=OrderedDict)
    cached: bool = False
    read: int = 0
    used: int = 0
    held: float = 0.0
    reading: bool = False
    computing: bool = False


def check_inference_load(device: StorageDevice, model: DeviceModel, load: InferenceLoad) -> None:
    """Reject a load that the devices cannot serve, before the simulation.

    Raises:
        UsageError: a number is outside its bounds.
        ConfigError: the disk or the memory is too small.
    """
    check_job_options(load)
    chunks = load.requests * len(model.layers) * CHUNKS
    if chunks > _MOST_CHUNKS:
        most = _MOST_CHUNKS // (len(model.layers) * CHUNKS)
        raise UsageError(
            f"--requests is at most {most} for this model. Received: {load.requests}.",
            code="number-out-of-range",
            operation="--requests",
            received=load.requests,
        )
    needed = (model.weight_bytes + load.clients * model.key_bytes) / GIGA
    if needed > device.disk_gigabytes:
        raise ConfigError(
            f"The disk is too small: weights require {model.weight_bytes / GIGA:.4g} GB and keys "
            f"{model.key_bytes / GIGA:.4g} GB for each of {load.clients} clients, {needed:.4g} GB "
            f"in total. Received: disk_gigabytes = {device.disk_gigabytes:g}. Use a larger disk "
            "or fewer clients.",
            code="disk-too-small",
            operation="disk_gigabytes",
        )
    room = (device.memory_gigabytes - device.key_cache_gigabytes) * GIGA
    chunk = max(layer.bytes for layer in model.layers) / CHUNKS
    if room < 4 * chunk:
        raise ConfigError(
            f"The memory is too small: four chunks of a layer require {4 * chunk / GIGA:.3g} GB. "
            f"Received: {room / GIGA:.3g} GB of memory_gigabytes without the key cache.",
            code="memory-too-small",
            operation="memory_gigabytes",
        )


def simulate_inference_load(
    device: StorageDevice, model: DeviceModel, compute: Sequence[float], load: InferenceLoad
) -> SimulationOutcome:
    """Simulate a load on devices.

    Args:
        device: the profile of the devices.
        model: the program.
        compute: seconds of each layer on this device.
        load: the requests of the clients.

    Raises:
        UsageError, ConfigError: as `check_inference_load`.
    """
    check_inference_load(device, model, load)
    return _Simulation(device, model, compute, load).run_requests()


class _Simulation:
    def __init__(
        self,
        device: StorageDevice,
        model: DeviceModel,
        compute: Sequence[float],
        load: InferenceLoad,
    ) -> None:
        self._device, self._model, self._load = device, model, load
        self._room = (device.memory_gigabytes - device.key_cache_gigabytes) * GIGA
        largest = max(layer.bytes for layer in model.layers) / CHUNKS
        # bytes for one layer's values; the rest holds two chunks, one in use and one being read
        self._most_working = self._room - 2 * largest
        working = max(layer.working_bytes for layer in model.layers)
        self._working = min(working, self._most_working)
        over = [max(0.0, each.working_bytes - self._most_working) for each in model.layers]
        self._spilled = sum(over)
        self._chunks = self._cut_program(compute, over)
        self._keeps = 0
        if model.key_bytes > 0:
            self._keeps = int(device.key_cache_gigabytes * GIGA // model.key_bytes)
        self._link = SharedLink(device.link_rate, device.shared_rate)
        self._devices = [_Running(i) for i in range(load.devices)]
        self._queue: deque[int] = deque()
        self._overtaken = [0] * load.requests
        self._client = [i % load.clients for i in range(load.requests)]
        self._asked = [0.0] * load.requests
        self._events: list[tuple[float, int, str, int]] = []
        self._count = 0
        self._latencies: list[float] = []
        self._computing = self._reading = self._peak = 0.0
        self._since: dict[int, float] = {}
        self._hits = 0
        self._now = 0.0

    def _cut_program(self, compute: Sequence[float], over: Sequence[float]) -> list[_Chunk]:
        """Divide the program into chunks.

        Args:
            compute: seconds of each layer.
            over: bytes of each layer's values that spill.
        """
        chunks: list[_Chunk] = []
        write = self._device.write_gigabytes_per_second * GIGA
        for layer, seconds, excess in zip(self._model.layers, compute, over, strict=True):
            # writing counts as reading of the same duration
            spill = excess * (1 + self._device.link_rate / write)
            count = CHUNKS if layer.bytes + spill > 0 else 1
            parts = (layer.weight_bytes, layer.key_bytes, spill, seconds)
            chunks += [_Chunk(*(part / count for part in parts))] * count
        return chunks

    def run_requests(self) -> SimulationOutcome:
        """Simulate until every request has its answer."""
        self._send_first_requests()
        end = 0.0
        while len(self._latencies) < self._load.requests:
            transfer = self._link.next_end()
            due = self._events[0][0] if self._events else math.inf
            assert min(transfer, due) < math.inf, "nothing can happen any more"
            if transfer <= due:
                self._now = transfer
                self._chunk_arrived(self._devices[self._link.end_stream(transfer)])
                continue
            self._now, _, kind, of = heapq.heappop(self._events)
            if kind == "asked":
                self._queue.append(of)
                self._dispatch_requests()
            elif kind == "begin":
                self._read_chunk(self._devices[of])
            elif kind == "computed":
                self._chunk_computed(self._devices[of])
            else:
                end = max(end, self._now)
                self._finish_request(of)
        first = min(self._asked)
        span = (end - first) * self._load.devices
        return SimulationOutcome(
            latencies=tuple(self._latencies),
            seconds=end - first,
            computing=self._computing / span if span else 0.0,
            reading=self._reading / span if span else 0.0,
            read_bytes=self._link.total,
            spilled_bytes=self._spilled * self._load.requests,
            peak_bytes=self._peak,
            key_hits=self._hits,
        )

    # ---- clients

    def _send_first_requests(self) -> None:
        load = self._load
        if load.arrivals is None:
            for request in range(min(load.clients, load.requests)):
                self._add_request(request, 0.0)
            return
        rng, time = random.Random(load.seed), 0.0
        for request in range(load.requests):
            self._client[request] = rng.randrange(load.clients)
            self._add_request(request, time)
            time += rng.expovariate(load.arrivals)

    def _add_request(self, request: int, time: float) -> None:
        self._asked[request] = time
        self._schedule_event(
            time + self._transfer_seconds(self._model.input_bytes), "asked", request
        )

    def _transfer_seconds(self, size: float) -> float:
        rate = self._device.network_gigabytes_per_second * GIGA
        return size / rate if rate else 0.0

    def _finish_request(self, request: int) -> None:
        self._latencies.append(self._now - self._asked[request])
        following = request + self._load.clients
        if self._load.arrivals is None and following < self._load.requests:
            self._add_request(following, self._now)

    def _schedule_event(self, time: float, kind: str, of: int) -> None:
        self._count += 1  # simultaneous events keep the order of their creation
        heapq.heappush(self._events, (time, self._count, kind, of))

    # ---- assignment of requests to devices

    def _dispatch_requests(self) -> None:
        """Assign waiting requests to free devices."""
        while self._queue:
            free = [d for d in self._devices if d.request is None]
            if not free:
                return
            request, device = self._pick_pair(free)
            self._queue.remove(request)
            self._begin_request(device, request)

    def _pick_pair(self, free: list[_Running]) -> tuple[int, _Running]:
        """Select the next request and its device."""
        first = self._queue[0]
        if self._load.affinity and self._keeps:
            for device in free:
                for request in self._queue:
                    if self._client[request] in device.kept:
                        if request != first:
                            if self._overtaken[first] >= _OVERTAKEN:
                                break
                            self._overtaken[first] += 1
                        return request, device
        # the device that holds the fewest keys, so that other clients' keys stay
        return first, min(free, key=lambda d: len(d.kept))

    def _begin_request(self, device: _Running, request: int) -> None:
        client = self._client[request]
        device.request, device.read, device.used = request, 0, 0
        device.cached = client in device.kept
        self._hits += device.cached
        if self._keeps:
            device.kept.pop(client, None)
            device.kept[client] = None
            while len(device.kept) > self._keeps:
                device.kept.popitem(last=False)
        device.held = self._working
        self._schedule_event(self._now + self._device.latency_seconds, "begin", device.index)

    # ---- one device

    def _chunk_bytes(self, device: _Running, chunk: _Chunk) -> float:
        """Return bytes of memory of a chunk, without the key cache."""
        return chunk.size + (0.0 if self._keeps else chunk.keys)

    def _read_chunk(self, device: _Running) -> None:
        """Start reading the next chunk if it fits into memory."""
        while not device.reading and device.read < len(self._chunks):
            chunk = self._chunks[device.read]
            if not self._device.prefetch and (device.computing or device.used < device.read):
                return
            size = self._chunk_bytes(device, chunk)
            if device.held + size > self._room * (1 + 1e-12):
                return
            device.held += size
            self._peak = max(self._peak, device.held)
            read_bytes = chunk.size + chunk.spill + (0.0 if device.cached else chunk.keys)
            if read_bytes > 0:
                device.reading = True
                self._since[device.index] = self._now
                self._link.start_stream(self._now, device.index, read_bytes)
            else:
                device.read += 1
                self._compute_chunk(device)

    def _chunk_arrived(self, device: _Running) -> None:
        device.reading = False
        self._reading += self._now - self._since.pop(device.index)
        device.read += 1
        self._compute_chunk(device)
        self._read_chunk(device)

    def _compute_chunk(self, device: _Running) -> None:
        if device.computing or device.used >= device.read:
            return
        device.computing = True
        seconds = self._chunks[device.used].seconds
        self._computing += seconds
        self._schedule_event(self._now + seconds, "computed", device.index)

    def _chunk_computed(self, device: _Running) -> None:
        device.computing = False
        device.held -= self._chunk_bytes(device, self._chunks[device.used])
        device.used += 1
        if device.used < len(self._chunks):
            self._compute_chunk(device)
            self._read_chunk(device)
            return
        request, device.request = device.request, None
        assert request is not None
        self._schedule_event(
            self._now + self._transfer_seconds(self._model.output_bytes), "answered", request
        )
        self._dispatch_requests()
