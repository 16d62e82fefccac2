"""Predictions with material that was made before their request (`deploy --ahead N`).

A deployed model may have a setting for material: the workers then make the material of its next
predictions while no job waits, in the session of a job that has ended. A prediction of the same
batch size, profile and range check uses one entry: its inputs are re-masked, the dealer's
correlated randomness comes from each worker's spool, and only the other messages are exchanged.

An entry is valid for one deployment of one model, one setting and one pair of versions and
cluster files: `bind_material` digests all of them.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tfe_bench.cluster import profiles, spool, stored_shares
from tfe_bench.cluster.jobs import Context
from tfe_bench.cluster.spool import IDENTIFIER_BYTES, MAX_ENTRIES, SpoolEntry
from tfe_bench.cluster.store import ShareStore
from tfe_bench.cluster.stored import StoredFacts
from tfe_bench.errors import PolicyError
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.models.convert.calibration import ModelPlan
from tfe_bench.models.inference import execute, weights
from tfe_bench.models.inference.ahead_setting import KEY, AheadSetting
from tfe_bench.models.inference.request import plan_key, read_model_plan
from tfe_bench.protocols.ring import refresh
from tfe_bench.protocols.session import ops
from tfe_bench.protocols.session.material import AheadFunction
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

if TYPE_CHECKING:
    from tfe_bench.protocols.session.seeded import Seeded


def build_ahead_function(party: Party, plan: ModelPlan, setting: AheadSetting) -> AheadFunction:
    """Return the prediction of a batch in two phases; its arguments are weights and inputs."""
    profile = profiles.get_profile(setting.profile).plan

    def predict_ahead(
        model_weights: Mapping[str, Shared | Seeded], batch_inputs: Sequence[Shared]
    ) -> list[Shared]:
        # Under masks of this session: the dealer does not know those of a client before.
        inputs = [refresh.refresh(party, x) for x in batch_inputs]
        prediction = execute.tune_prediction(plan, profile, setting.batch, setting.check_range)
        return execute.run_model(party, prediction, model_weights, inputs)

    with party.kept_graphs(("predict", plan_key(plan), profile, setting.check_range)):
        return party.ahead_function(predict_ahead, request=[1])


# Making begins after this time without a waiting job: it would delay requests in sequence.
IDLE_SECONDS = 1.0
# Subject of the facts that workers exchange.
_SUBJECT = "material made ahead of predictions"


class PredictionMaterial:
    """The material of one deployed model during a job.

    Args:
        facts: the deployment, whose facts have a setting.

    Attributes:
        used: number of predictions with material in this job.
        made_bytes: payload that this party sent for it before.
    """

    def __init__(
        self, party: Party, store: ShareStore, facts: StoredFacts, plan: ModelPlan
    ) -> None:
        setting = AheadSetting.from_facts(facts.about)
        assert setting is not None
        self.setting, self._party, self._facts, self._plan = setting, party, facts, plan
        self._spool = store.spool
        self._function: AheadFunction | None = None
        self.used, self.made_bytes = 0, 0
        self._binding = spool.bind_material(
            {
                **store.spool.member_facts,
                "abi": ops.abi(),
                "party": store.party,
                "name": facts.name,
                "owner": facts.owner,
                "deployment": facts.deployment,
                "plan": hashlib.sha256(plan_key(plan).encode()).hexdigest(),
                **setting.to_facts(),
            }
        )

    def _get_function(self) -> AheadFunction:
        if self._function is None:
            self._function = build_ahead_function(self._party, self._plan, self.setting)
        return self._function

    def is_fitting(self, profile: str, check_range: bool, inputs: Sequence[Shared]) -> bool:
        """Return whether an entry serves a batch."""
        return (
            profile == profiles.get_profile(self.setting.profile).plan
            and check_range == self.setting.check_range
            and int(inputs[0].shape[0]) == self.setting.batch
        )

    def predict_batch(
        self, model_weights: Mapping[str, Shared | Seeded], inputs: Sequence[Shared]
    ) -> list[Shared] | None:
        """Predict with an entry; return None if the three workers do not have the same one.

        All three burn their entry on disk before they learn of each other's, and so before its
        first byte is read anywhere.

        Raises:
            SecurityError: the entry's file was changed.
        """
        reader = self._spool.burn_first(self._binding)
        try:
            identifier = bytes(IDENTIFIER_BYTES) if reader is None else reader.entry.identifier
            # (no second round for the same entry: a prediction with material saves rounds)
            if not self._party.have_same_fact(_SUBJECT, identifier) or reader is None:
                return None
            material = reader.entry.material
            assert material is not None
            self.used, self.made_bytes = self.used + 1, self.made_bytes + material.sent
            function = self._get_function()
            outputs: list[Shared] = function.use_material(
                material, reader, model_weights, list(inputs)
            )
            return outputs
        finally:
            if reader is not None:
                reader.close_file()

    # ---- making

    def fill_entries(
        self,
        model_weights: Mapping[str, Shared | Seeded],
        is_idle: Callable[[float], bool],
        report: Callable[[str], None],
    ) -> None:
        """Make entries until the model has enough, a job waits, or a worker has no room.

        Args:
            is_idle: at party 0: whether no job waits for some seconds.
            report: receives the reason why this worker keeps no more.
        """
        seconds = IDLE_SECONDS
        while self._fill_one(model_weights, functools.partial(is_idle, seconds), report):
            seconds = 0.0

    def _fill_one(
        self,
        model_weights: Mapping[str, Shared | Seeded],
        is_idle: Callable[[], bool],
        report: Callable[[str], None],
    ) -> bool:
        """Make one entry; return whether another may follow."""
        identifier, missing = self._agree_on_entries(is_idle, report)
        if missing == 0:
            return False
        writer = material = entry = None
        problem, is_kept = "", False
        try:
            writer = self._spool.begin_entry(identifier, self._facts.name, self._binding)
        except (OSError, PolicyError) as error:
            problem = str(error)
        try:
            if b"\0" in self._party.exchange_facts(_SUBJECT, bytes([writer is not None])):
                return False
            assert writer is not None
            try:
                material = self._get_function().make_material(
                    writer, model_weights, self._build_placeholders()
                )
                entry = writer.finish_entry()
            except (OSError, PolicyError) as error:
                problem = str(error)
            if b"\0" in self._party.exchange_facts(_SUBJECT, bytes([not problem])):
                return False
            assert entry is not None
            entry.material, is_kept = material, True
            return missing > 1
        finally:
            if material is not None and not is_kept:
                material.wipe_masks()
            if writer is not None and not is_kept:
                writer.discard_entry()
            if problem:
                report(problem)

    def _agree_on_entries(
        self, is_idle: Callable[[], bool], report: Callable[[str], None]
    ) -> tuple[bytes, int]:
        """Return a new entry's identifier, and how many are missing; 0 if no more are made.

        Entries that not all three workers have are discarded.
        """
        ready = self._spool.list_ready(self._binding)[:MAX_ENTRIES]
        can_make = is_idle()
        try:
            self._spool.check_entries()
        except PolicyError as error:
            if len(ready) < self.setting.entries:
                report(str(error))
            can_make = False
        offer = b"".join(
            [
                bytes([can_make, len(ready)]),
                os.urandom(IDENTIFIER_BYTES),
                b"".join(ready).ljust(MAX_ENTRIES * IDENTIFIER_BYTES, b"\0"),
            ]
        )
        offers = self._party.exchange_facts(_SUBJECT, offer)
        known = [_parse_offered_entries(other) for other in offers]
        common = set(known[0]) & set(known[1]) & set(known[2])

        def is_common(entry: SpoolEntry) -> bool:
            return entry.binding == self._binding and entry.identifier in common

        self._spool.keep_only(self._facts.name, is_common)
        drawn = b"".join(other[2 : 2 + IDENTIFIER_BYTES] for other in offers)
        identifier = hashlib.sha256(drawn + self._facts.deployment.encode()).digest()
        missing = max(0, self.setting.entries - len(common))
        return identifier[:IDENTIFIER_BYTES], missing if all(o[0] for o in offers) else 0

    def _build_placeholders(self) -> list[Shared]:
        """Return inputs of the right shapes; no material depends on their values."""
        party = self._party
        role = (party.index - party.dealer) % 3
        placeholders = []
        for name in self._plan.graph.inputs:
            shape = (self.setting.batch, *self._plan.graph.shapes[name])
            zeros = tf.zeros(shape, tf.int64)
            m, l1, l2 = (None if role == absent else zeros for absent in (0, 2, 1))
            placeholders.append(Shared(m, l1, l2, party.dealer, self._plan.fraction_of(name)))
        return placeholders


def _parse_offered_entries(offer: bytes) -> list[bytes]:
    """Return the identifiers of a worker's offer."""
    identifiers = np.frombuffer(offer[2 + IDENTIFIER_BYTES :], np.uint8)
    rows = identifiers.reshape(MAX_ENTRIES, IDENTIFIER_BYTES)[: min(offer[1], MAX_ENTRIES)]
    return [row.tobytes() for row in rows]


def read_material(
    party: Party, store: ShareStore, facts: StoredFacts, plan: ModelPlan
) -> PredictionMaterial | None:
    """Return the material of a deployed model; None if it has no setting for it."""
    if facts.about.get(KEY) is None:
        return None
    return PredictionMaterial(party, store, facts, plan)


def make_filler(
    context: Context, name: str
) -> Callable[[Callable[[float], bool], Callable[[str], None]], None]:
    """Return a function that makes the missing entries of a model after a job.

    Its arguments are those of `PredictionMaterial.fill_entries`. It raises the errors of
    `stored_shares.load_cached_shares` and `check_same`.
    """
    party, client = context.party, context.client
    store = stored_shares.require_share_store(context)

    def fill_model_entries(is_idle: Callable[[float], bool], report: Callable[[str], None]) -> None:
        facts, values = stored_shares.load_cached_shares(store, name, client)
        stored_shares.check_same(party, store, facts)
        plan = read_model_plan(facts.about["plan"])
        material = read_material(party, store, facts, plan)
        if material is not None:
            material.fill_entries(
                weights.map_weights_by_key(plan, cast(Any, values)), is_idle, report
            )

    return fill_model_entries
