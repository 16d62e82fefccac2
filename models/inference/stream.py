"""Streams of prediction requests: several in flight, results in the order of the requests."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from tfe_bench.errors import JobCancelled, UsageError
from tfe_bench.models.inference import service

if TYPE_CHECKING:
    from tfe_bench.cluster.client import Client
    from tfe_bench.cluster.requests import JobResult
    from tfe_bench.models.inference.private import PrivateModel
    from tfe_bench.models.inference.service import DeployedModel

DEFAULT_IN_FLIGHT, MOST_IN_FLIGHT = 4, 64

_Prediction = tuple[Any, "JobResult"]


def predict_stream(
    cluster: Client,
    model: str | DeployedModel | PrivateModel,
    requests: Iterable[Any],
    *,
    in_flight: int = DEFAULT_IN_FLIGHT,
    **options: Any,
) -> Iterator[_Prediction]:
    """Yield a model's outputs and costs for each request, in order.

    A request is read as soon as fewer than `in_flight` requests have results that the caller has
    not received.  Its inputs, rights checks and handshakes take place while earlier ones run.

    Args:
        model: as for `service.predict`.
        requests: images of each request, as for `service.predict`.
        in_flight: largest number of requests at a time, 1 to 64.  Workers refuse more jobs of a
            client than max_jobs_per_client in worker.toml (8 by default).
        options: batch, profile and check_range of `service.predict`.

    Raises:
        UsageError: in_flight is out of its range.
        TfeBenchError: as `service.predict`, after the results of all earlier requests; no further
            request begins.  Later ones that have begun are cancelled or end without a result.
    """
    if type(in_flight) is not int or not 1 <= in_flight <= MOST_IN_FLIGHT:
        raise UsageError(
            f"in_flight is a whole number from 1 to {MOST_IN_FLIGHT}. Received: "
            f"{str(in_flight)[:40]}.",
            code="number-out-of-range",
            operation="in_flight",
            received=str(in_flight)[:40],
            expected=f"1 to {MOST_IN_FLIGHT}",
        )
    deployed = service.find(cluster, model) if isinstance(model, str) else model
    return _PredictionStream(cluster, deployed, in_flight, options).yield_results(requests)


class _PredictionStream:
    """Requests in flight: a thread reads them, others wait for their results."""

    def __init__(
        self,
        cluster: Client,
        model: DeployedModel | PrivateModel,
        in_flight: int,
        options: dict[str, Any],
    ) -> None:
        self._cluster, self._model, self._options = cluster, model, options
        self._threads = ThreadPoolExecutor(in_flight, "tfe-predict")
        self._room = threading.Semaphore(in_flight)
        self._results: queue.SimpleQueue[Future[_Prediction] | None] = queue.SimpleQueue()
        self._stopped = threading.Event()

    def yield_results(self, requests: Iterable[Any]) -> Iterator[_Prediction]:
        """Yield the results of requests in order; see `predict_stream`."""
        # (a daemon: it may wait for a request that never comes)
        threading.Thread(target=self._send_requests, args=(requests,), daemon=True).start()
        try:
            while (future := self._results.get()) is not None:
                yield future.result()
                self._room.release()
        finally:
            self._stopped.set()
            self._room.release()
            self._threads.shutdown(cancel_futures=True)

    def _send_requests(self, requests: Iterable[Any]) -> None:
        try:
            remaining = iter(requests)
            while self._wait_for_room():
                images = next(remaining)
                if self._stopped.is_set():
                    return
                self._results.put(self._threads.submit(self._predict_request, images))
        except StopIteration:
            self._results.put(None)
        except BaseException as error:  # (the error of the caller's iterable, in its place)
            failed: Future[_Prediction] = Future()
            failed.set_exception(error)
            self._results.put(failed)

    def _wait_for_room(self) -> bool:
        self._room.acquire()
        return not self._stopped.is_set()

    def _predict_request(self, images: Any) -> _Prediction:
        return service.predict(
            self._cluster, self._model, images, progress=self._check_stopped, **self._options
        )

    def _check_stopped(self, fraction: float, text: str) -> None:
        if self._stopped.is_set():
            raise JobCancelled("The stream of requests has ended.", code="job-cancelled")
