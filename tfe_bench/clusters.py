"""Clusters as model users see them: jobs on models as methods.

The classes of the cluster layer provide jobs and programs.  These subclasses add models.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tfe_bench.cluster import client, launch
from tfe_bench.cluster.requests import Progress
from tfe_bench.errors import UsageError

if TYPE_CHECKING:
    from tfe_bench.arrays.array import PrivateArray
    from tfe_bench.cluster.stored_shares import StoredEntry
    from tfe_bench.models.inference.private import PrivateModel
    from tfe_bench.models.inference.service import DeployedModel
    from tfe_bench.models.training.history import History
    from tfe_bench.models.training.trainable import Trainable


class _LoadMethod:
    """`load`: on the class, a client from files; on a client, a stored private array."""

    def __get__(self, instance: client.Client | None, owner: type[Any]) -> Any:
        if instance is None:
            load_files: Any = client.Client.__dict__["load"]
            return load_files.__get__(None, owner)
        from tfe_bench.arrays import loading

        return functools.partial(loading.load_stored_array, instance)


class _ModelJobs(client.Client):
    """Jobs on models; each method calls a function of service.py, trainable.py or arrays."""

    def predict(
        self,
        private: str | PrivateModel,
        images: Any,
        batch: int | None = None,
        profile: str | None = None,
        progress: Progress | None = None,
        check_range: bool | None = None,
    ) -> Any:
        """Return a model's outputs for private images; this client alone learns them.

        Args:
            private: the result of `tfe_bench.convert`, or the name of a deployed model.
            images, batch, profile, progress, check_range: as for `service.predict`.

        Returns:
            float64 outputs, or a list of them if the model has several outputs.

        Raises:
            UsageError, RangeError, PolicyError: as `service.predict`.
        """
        from tfe_bench.models.inference import service

        outputs, _ = service.predict(
            self,
            private,
            images,
            batch=batch,
            profile=profile,
            progress=progress,
            check_range=check_range,
        )
        return outputs

    def predict_stream(
        self, private: str | PrivateModel, requests: Iterable[Any], in_flight: int = 4, **more: Any
    ) -> Iterator[Any]:
        """Yield a model's outputs for each request, in order, with several requests in flight.

        Args:
            private: the result of `tfe_bench.convert`, or the name of a deployed model.
            requests: private images of each request; read while earlier requests run.
            in_flight: largest number of requests at a time, 1 to 64.
            more: batch, profile and check_range of `predict`.

        Raises:
            UsageError, RangeError, PolicyError: as `predict`, after the outputs of all earlier
                requests.
        """
        from tfe_bench.models.inference import stream

        results = stream.predict_stream(self, private, requests, in_flight=in_flight, **more)
        return (outputs for outputs, _ in results)

    def generate(
        self, private: str | PrivateModel, prompt: Any, tokens: int = 20, **options: Any
    ) -> Any:
        """Return the tokens that a private language model appends; see `tfe_bench.generate`."""
        from tfe_bench.models.inference import generation

        return generation.generate(self, private, prompt, tokens, **options)

    def fit(self, private: Trainable, x: Any = None, y: Any = None, **options: Any) -> History:
        """Train a `tfe_bench.trainable` model on private rows; see Trainable.fit."""
        return _require_trainable(self, private, "fit").fit(self, x, y, **options)

    def evaluate(self, private: Trainable, x: Any, y: Any, **options: Any) -> float:
        """Return a `tfe_bench.trainable` model's score on private rows; see Trainable.evaluate."""
        return _require_trainable(self, private, "evaluate").evaluate(self, x, y, **options)

    def deploy(
        self,
        private: PrivateModel,
        name: str,
        clients: Sequence[str] = (),
        replace: bool = False,
        preprocessing: str | None = None,
        *,
        ahead: int = 0,
        ahead_batch: int = 1,
    ) -> None:
        """Store a model at the workers for this client and others, until it is removed.

        Args and errors: as for `service.deploy`.
        """
        from tfe_bench.models.inference import service

        service.deploy(
            *(self, private, name, clients, replace, preprocessing),
            ahead=ahead,
            ahead_batch=ahead_batch,
        )

    def undeploy(self, name: str) -> None:
        """Remove a model of this client from the workers; see `service.undeploy`."""
        from tfe_bench.models.inference import service

        service.undeploy(self, name)

    def private(
        self,
        array: Any,
        kind: str | None = None,
        fractional_bits: int | None = None,
        bound: Any = None,
    ) -> PrivateArray:
        """Return an array of this client as a private array; see `make_private_array`."""
        from tfe_bench.arrays import array as arrays

        return arrays.make_private_array(self, array, kind, fractional_bits, bound)

    load: Any = _LoadMethod()

    def arrays(self) -> dict[str, StoredEntry]:
        """Return the stored private arrays that this client may use, by name."""
        from tfe_bench.arrays import loading

        return loading.list_arrays(self)

    def forget(self, name: str) -> None:
        """Remove a private array that this client has stored at the workers."""
        from tfe_bench.arrays import loading

        loading.remove_array(self, name)

    def reveal(self, *arrays: PrivateArray, check: bool = True) -> list[Any]:
        """Reveal the elements of several private arrays in one job; see PrivateArray.reveal."""
        from tfe_bench.arrays import array

        return array.reveal_arrays(arrays, check)

    def compute(self, *arrays: PrivateArray) -> list[PrivateArray]:
        """Compute several private arrays in one job; see PrivateArray.compute."""
        from tfe_bench.arrays import array

        return array.compute_arrays(arrays)

    def models(self) -> list[DeployedModel]:
        """Return the deployed models that this client may use."""
        from tfe_bench.models.inference import service

        return service.list_deployed(self)


def _require_trainable(cluster: client.Client, private: object, operation: str) -> Trainable:
    from tfe_bench.models.training.trainable import Trainable

    cluster.check_open()
    if not isinstance(private, Trainable):
        raise UsageError(
            f"Expected a model from trainable(model) in {operation}. Received: "
            f"{type(private).__name__}.",
            code="wrong-type",
            operation=operation,
            received=type(private).__name__,
        )
    return private


class Client(_ModelJobs):
    """A client of three workers, which also store, evaluate and train models for it."""

    def close(self) -> None:
        """Release the arrays that the workers hold for this client, and close the connections."""
        if not self._closed and "_freed_handles" in self.__dict__:
            from tfe_bench.arrays import array_jobs

            array_jobs.release_all_handles(self)
        super().close()


class LocalCluster(_ModelJobs, launch.LocalCluster):
    __doc__ = launch.LocalCluster.__doc__


class Cluster(_ModelJobs, launch.Cluster):
    __doc__ = launch.Cluster.__doc__
