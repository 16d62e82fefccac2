"""Clusters as users of models have them: the jobs of models as methods.

The classes of the cluster layer know jobs and programs; these add what is built on top of them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tfe_bench.cluster import client, launch
from tfe_bench.cluster.requests import Progress
from tfe_bench.errors import UsageError

if TYPE_CHECKING:
    from tfe_bench.models.arrays.array import PrivateArray
    from tfe_bench.models.history import History
    from tfe_bench.models.private import PrivateModel
    from tfe_bench.models.service import DeployedModel
    from tfe_bench.models.stored_shares import StoredEntry
    from tfe_bench.models.trainable import Trainable


class _LoadMethod:
    """`load`: of the class, a client from files; of a client, what the workers keep."""

    def __get__(self, instance: client.Client | None, owner: type[Any]) -> Any:
        if instance is None:
            load_files: Any = client.Client.__dict__["load"]
            return load_files.__get__(None, owner)
        from tfe_bench.models.arrays import loading

        return functools.partial(loading.load_stored, instance)


class _ModelJobs(client.Client):
    """What a cluster does with models; each method is a function of service.py or trainable.py."""

    def predict(
        self,
        private: str | PrivateModel,
        images: Any,
        batch: int | None = None,
        profile: str | None = None,
        progress: Progress | None = None,
        check_range: bool | None = None,
    ) -> Any:
        """A model's outputs for private images, known to this client alone.

        Args:
            private: of `tfe_bench.convert`, or the name of a model that was deployed.
            images, batch, profile, progress, check_range: as for `service.predict`.

        Returns:
            float64 outputs, a list of them if the model has several.

        Raises:
            UsageError, RangeError, PolicyError: as `service.predict`.
        """
        from tfe_bench.models import service

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

    def generate(
        self, private: str | PrivateModel, prompt: Any, tokens: int = 20, **options: Any
    ) -> Any:
        """The tokens with which a private language model goes on; see `tfe_bench.generate`."""
        from tfe_bench.models import generation

        return generation.generate(self, private, prompt, tokens, **options)

    def fit(self, private: Trainable, x: Any = None, y: Any = None, **options: Any) -> History:
        """Trains a `tfe_bench.trainable` model on private rows; see Trainable.fit."""
        return _require_trainable(self, private, "fit").fit(self, x, y, **options)

    def evaluate(self, private: Trainable, x: Any, y: Any, **options: Any) -> float:
        """How right a `tfe_bench.trainable` model is on private rows; see Trainable.evaluate."""
        return _require_trainable(self, private, "evaluate").evaluate(self, x, y, **options)

    def deploy(
        self,
        private: PrivateModel,
        name: str,
        clients: Sequence[str] = (),
        replace: bool = False,
        preprocessing: str | None = None,
    ) -> None:
        """Has the workers keep a model: for this client and others, until it is removed.

        Args and errors: as for `service.deploy`.
        """
        from tfe_bench.models import service

        service.deploy(self, private, name, clients, replace, preprocessing)

    def undeploy(self, name: str) -> None:
        """Has the workers remove a model of this client's; see `service.undeploy`."""
        from tfe_bench.models import service

        service.undeploy(self, name)

    def private(
        self,
        array: Any,
        kind: str | None = None,
        fractional_bits: int | None = None,
        bound: Any = None,
    ) -> PrivateArray:
        """An array of this client's, to compute on privately; see arrays.array.private."""
        from tfe_bench.models.arrays import array as arrays

        return arrays.make_private(self, array, kind, fractional_bits, bound)

    load: Any = _LoadMethod()

    def arrays(self) -> dict[str, StoredEntry]:
        """The private arrays that the workers keep under names and this client may use."""
        from tfe_bench.models.arrays import loading

        return loading.list_arrays(self)

    def forget(self, name: str) -> None:
        """Has the workers remove a private array that this client had them keep."""
        from tfe_bench.models.arrays import loading

        loading.remove_array(self, name)

    def reveal(self, *arrays: PrivateArray, check: bool = True) -> list[Any]:
        """The elements of several private arrays, by one job; as PrivateArray.reveal."""
        from tfe_bench.models.arrays import array

        return array.reveal_arrays(arrays, check)

    def compute(self, *arrays: PrivateArray) -> list[PrivateArray]:
        """Several private arrays, computed by one job; as PrivateArray.compute."""
        from tfe_bench.models.arrays import array

        return array.compute_arrays(arrays)

    def models(self) -> list[DeployedModel]:
        """The deployed models that this client may use."""
        from tfe_bench.models import service

        return service.list_deployed(self)


def _require_trainable(cluster: client.Client, private: object, operation: str) -> Trainable:
    from tfe_bench.models.trainable import Trainable

    cluster.check_open()
    if not isinstance(private, Trainable):
        raise UsageError(f"{operation} takes trainable(model). Received: {type(private).__name__}.")
    return private


class Client(_ModelJobs):
    """A client of three workers, for whom they also keep, evaluate and train models."""

    def close(self) -> None:
        """Lets go of arrays that the workers hold for it, and closes the connections."""
        if not self._closed and "_freed_handles" in self.__dict__:
            from tfe_bench.models.arrays import array_jobs

            array_jobs.release_all(self)
        super().close()


class LocalCluster(_ModelJobs, launch.LocalCluster):
    __doc__ = launch.LocalCluster.__doc__


class Cluster(_ModelJobs, launch.Cluster):
    __doc__ = launch.Cluster.__doc__
