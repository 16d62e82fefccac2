"""Three workers in one process with their clients: each worker checks independently."""

from __future__ import annotations

import json
import operator
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tfe_bench
from tests.queries.asked import StoredTable
from tfe_bench.arrays import array, loading
from tfe_bench.arrays.programs import array_remove, compute
from tfe_bench.cluster import profiles, stored_shares
from tfe_bench.cluster.handles import HandleStore
from tfe_bench.cluster.jobs import Context, Program
from tfe_bench.cluster.policy import WorkerPolicy
from tfe_bench.cluster.requests import JobResult, PrivateInput, private_input_spec
from tfe_bench.cluster.simulate import Simulation, simulate
from tfe_bench.cluster.store import ShareStore
from tfe_bench.cluster.stored import (
    KINDS,
    TABLE,
    StoredFacts,
    StoredTensor,
    check_client_names,
    client_input_source,
)
from tfe_bench.cluster.stored_shares import StorageRequest
from tfe_bench.models.datasets.programs import align, provide, withdraw
from tfe_bench.protocols.session import graph
from tfe_bench.protocols.session.party import Party
from tfe_bench.queries import stored
from tfe_bench.queries.programs import query, table_put, table_remove

# Type checkers assume operations on the values of parties.
tfb: Any = tfe_bench
PROGRAMS: Mapping[str, Program[Any]] = {
    each.PROGRAM.name: each.PROGRAM
    for each in (align, array_remove, compute, provide, query, table_put, table_remove, withdraw)
}


class Workers:
    """Stores of three workers.

    Attributes:
        now: time of their clocks.
        last: the run of the last job.
    """

    def __init__(self, folder: Path, **limits: Any) -> None:
        self.now = 0.0
        self.policy = WorkerPolicy(party=0, **limits)
        bounds = {"max_bytes": self.policy.max_held, "per_client": self.policy.max_held_per_client}
        self.stores = [
            ShareStore(
                *(folder / str(p), p, 64, 16, 9),
                handles=HandleStore(p, seconds=60.0, clock=lambda: self.now, **bounds),
            )
            for p in range(3)
        ]
        self.last: Simulation | None = None
        self.jobs: list[dict[str, Any]] = []

    def close(self) -> None:
        for store in self.stores:
            store.close()

    def count_held(self, client: str) -> list[tuple[int, int]]:
        """Return the number of each worker's handles for a client, and their bytes."""
        return [store.handles.count_handles(client) for store in self.stores]

    def put_table(
        self, name: str, table: StoredTable, clients: tuple[str, ...] = ("*",), run: bool = False
    ) -> None:
        """Store a table: by the program, or directly in the format of its header."""
        about = table.schema.to_header()
        if run:
            order, words = (
                StorageRequest(name, clients, True, about).to_parameters(),
                PrivateInput(table.words),
            )
            Client(self, table.owner).run("table_put", order, {"words": words})
            return
        sources = client_input_source(table.owner)
        facts = StoredFacts(name, table.owner, clients, uuid.uuid4().hex, about, sources=sources)
        for party, store in enumerate(self.stores):
            tensors = {}
            for word, values in zip(
                stored.stored_row_word_names(table.schema), table.words, strict=True
            ):
                mask = np.full_like(values, 5)
                fields = {"m": values + 2 * mask, "l1": mask, "l2": mask}
                del fields["m" if party == 0 else "l2" if party == 1 else "l1"]
                tensors[word] = StoredTensor(fields, 0, 0)
            stored_shares.evict_cached_shares(store.for_kind(TABLE), name)
            store.for_kind(TABLE).prepare_file(facts, tensors).commit()


class Client:
    """A client with the interface that arrays use."""

    def __init__(self, workers: Workers, identity: str) -> None:
        self.workers, self.identity = workers, identity
        self.config = SimpleNamespace(fractional_bits=16)
        self.profile = profiles.get_profile("local")

    def check_open(self) -> None:
        pass

    def check_members(self, clients: Sequence[str]) -> None:
        check_client_names(list(clients))

    def private(self, values: Any, **more: Any) -> array.PrivateArray:
        return array.make_private_array(self, values, **more)  # type: ignore[arg-type]

    def load(self, name: str) -> Any:
        return loading.load_stored_array(self, name)  # type: ignore[arg-type]

    def compute(self, *arrays: array.PrivateArray) -> list[array.PrivateArray]:
        return array.compute_arrays(arrays)

    def reveal(self, *arrays: array.PrivateArray, check: bool = True) -> list[Any]:
        return array.reveal_arrays(arrays, check)

    def stored(self, infix: str) -> list[dict[str, Any]]:
        rows = [
            store.for_kind(KINDS[infix]).list_visible(self.identity)
            for store in self.workers.stores
        ]
        return [{**row, "complete": all(row in other for other in rows)} for row in rows[0]]

    def run(
        self,
        name: str,
        parameters: Mapping[str, Any],
        inputs: Mapping[str, PrivateInput],
        progress: object = None,
    ) -> JobResult:
        sent = json.loads(json.dumps(parameters, allow_nan=False))
        self.workers.jobs.append(sent)
        program, specs = (
            PROGRAMS[name],
            [private_input_spec(key, value) for key, value in inputs.items()],
        )
        requests = []
        for store in self.workers.stores:
            request = program.admit(sent, specs)
            if program.permit is not None:
                program.permit(self.identity, store, request, specs)
            self.workers.policy.permit_size(program.sized(self.identity, store, request, specs))
            requests.append(request)
        scales: dict[str, int] = {}

        def carried_out(party: Party, *arguments: Any) -> Any:
            party.client = self.identity
            held = {
                spec.name: _set_scale(value, spec.fractional_bits)
                for spec, value in zip(specs, arguments, strict=True)
            }
            store = self.workers.stores[party.index]
            context = Context(
                *(party, sent, held, lambda f, t: None, {}, self.identity, store),
                request=requests[party.index],
            )
            out = program.run(context)
            scales.update({key: value.fractional_bits for key, value in out.items()})
            return out

        simulation = simulate(carried_out, *(value.ring for value in inputs.values()))
        self.workers.last = simulation
        outputs = {key: simulation.value(operator.itemgetter(key)) for key in scales}
        return JobResult(outputs=outputs, fractional_bits=scales)


def _set_scale(value: Any, bits: int) -> Any:
    return replace(value, fractional_bits=bits)


def traced_from_now(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return a list that receives each party function traced after this call."""
    traced: list[object] = []
    before = graph.PrivateFunction._trace

    def trace(self: graph.PrivateFunction, *arguments: Any) -> graph.Graph:
        traced.append(self)
        return before(self, *arguments)

    monkeypatch.setattr(graph.PrivateFunction, "_trace", trace)
    return traced
