"""Cost of a plan before anything is sent, counted on symbolic values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tfe_bench.arrays import evaluate
from tfe_bench.arrays.array_spec import ArraySpec
from tfe_bench.arrays.plan import ExpressionPlan
from tfe_bench.cluster.jobs import shape_extent
from tfe_bench.cluster.pricing import PlanPrice, estimate_work_seconds
from tfe_bench.errors import UsageError
from tfe_bench.protocols.session.cost import Cost
from tfe_bench.protocols.session.counting import CostParty
from tfe_bench.protocols.session.message_graph import MessageGraph
from tfe_bench.protocols.session.tensor_ops import Tensor

# Exchanges and local maps of a plan's graphs, for a loop those of one iteration: they take a
# worker's time for counting and tracing, and memory of about this many bytes each (measured with
# 990 softmaxes).
MAX_OPS = 20_000
OP_BYTES = 32 << 10
# Prices by the digest of a plan's graphs: a loop at a client requests the same ones repeatedly.
_MAX_KEPT = 256
_kept_prices: dict[str, ExpressionPrice] = {}


@dataclass(frozen=True)
class ExpressionPrice(PlanPrice):
    """Cost of a plan.

    Attributes:
        steps: bits that the three workers send in each step.
        step_specs: public facts about each step's values.
        output_specs: public facts about the words of each output.
        moved: words that local maps move.
        ops: exchanges and local maps of its graphs.
    """

    steps: tuple[int, ...]
    step_specs: tuple[tuple[ArraySpec, ...], ...]
    output_specs: tuple[ArraySpec, ...]
    moved: int
    ops: int = 0

    @property
    def memory_bytes(self) -> int:
        """Approximate bytes at a worker in addition to its inputs, its graphs included."""
        return super().memory_bytes + self.ops * OP_BYTES

    @property
    def least_seconds(self) -> float:
        """Estimated time without network delay."""
        return estimate_work_seconds(self.cost, self.moved)


class _LimitedCostParty(CostParty):
    """A cost party with a limit on its operations."""

    def __init__(self, graph: MessageGraph | None = None) -> None:
        super().__init__(expected=True, graph=graph)
        self.op_count = 0

    def count_messages(
        self,
        cost: Cost,
        shape: Sequence[int],
        *operands: Any,
        dealer: int | None = None,
        dealer_learns: bool = False,
    ) -> Tensor:
        """Count messages, as CostParty does.

        Raises:
            UsageError: too many operations.
        """
        self._count_op()
        return super().count_messages(
            cost, shape, *operands, dealer=dealer, dealer_learns=dealer_learns
        )

    def add_moved_words(self, count: int) -> None:
        """Add moved words, as CostParty does.

        Raises:
            UsageError: too many operations.
        """
        self._count_op()
        super().add_moved_words(count)

    def _count_op(self) -> None:
        self.op_count += 1
        if self.op_count > MAX_OPS:
            raise UsageError(
                f"An expression takes at most {MAX_OPS} exchanges and local steps. Received: "
                "more. Compute a part separately: y = y.compute().",
                code="expression-too-large",
                expected=MAX_OPS,
            )


def price_expression_plan(plan: ExpressionPlan) -> ExpressionPrice:
    """Count the cost of a checked plan, or return that of one with the same graphs.

    Raises:
        UsageError: operations that do not take their operands.
    """
    price = _kept_prices.get(plan.graph_digest)
    if price is None:
        price = _count_plan(plan)
        if len(_kept_prices) >= _MAX_KEPT:
            _kept_prices.clear()
        _kept_prices[plan.graph_digest] = price
    return price


def count_plan_messages(plan: ExpressionPlan) -> MessageGraph:
    """Count the messages of a checked plan.

    Raises:
        UsageError: operations that do not take their operands.
    """
    messages = MessageGraph()
    _count_plan(plan, messages)
    return messages


def _count_plan(plan: ExpressionPlan, messages: MessageGraph | None = None) -> ExpressionPrice:
    party = _LimitedCostParty(messages)
    base = len(plan.leaves)
    specs_by_step: dict[int, tuple[ArraySpec, ...]] = {}
    totals: dict[int, int] = {}
    before = [0]

    def record_step(number: int, values: list[evaluate.Value]) -> None:
        op = plan.steps[number - base].op
        specs_by_step[number] = tuple(evaluate.infer_array_spec(op, value) for value in values)
        total = party.total_cost.total
        totals[number] = total - before[0]
        before[0] = total

    leaves = [evaluate.symbolic_words(leaf) for leaf in plan.leaves]
    with party.active():
        outputs = evaluate.run_expression_plan(party, plan, leaves, None, observe=record_step)
    numbers = range(base, base + len(plan.steps))
    output_specs = []
    for output, words in zip(plan.outputs, outputs, strict=True):
        spec = evaluate.infer_array_spec("an output", words)
        number = output.ref.number
        if number < base:
            kind = plan.leaves[number].kind
        else:
            kind = specs_by_step[number][output.ref.place or 0].kind
        output_specs.append(ArraySpec(kind, spec.shape, spec.scale))
    sizes = [shape_extent(m.shape) for each in specs_by_step.values() for m in each]
    sizes += [shape_extent(leaf.shape) for leaf in plan.leaves]
    return ExpressionPrice(
        tuple(totals[n] for n in numbers),
        tuple(specs_by_step[n] for n in numbers),
        tuple(output_specs),
        party.moved_words,
        party.op_count,
        cost=party.total_cost,
        largest=max([party.largest, *sizes], default=0),
        openings=party.openings.list_openings(),
    )
