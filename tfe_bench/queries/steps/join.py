"""The step `join`: each row of the left side with the row of the right side that has its key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tfe_bench.errors import UsageError
from tfe_bench.protocols.tables import bits, hashed_lookup, joins
from tfe_bench.protocols.tables.relation import Column, Relation
from tfe_bench.queries import privacy
from tfe_bench.queries.column_facts import ColumnFact, common_column_type
from tfe_bench.queries.evaluate import constant_truth_column
from tfe_bench.queries.plan_syntax import check_choice, check_column_name, check_part_lists
from tfe_bench.queries.prepared_joins import find_prepared_join
from tfe_bench.queries.relation_facts import Relation as Facts
from tfe_bench.queries.relation_facts import record_presence_column
from tfe_bench.queries.rights import ColumnUse, TableRecords, Tables
from tfe_bench.queries.steps.step import NeededColumns, QueryStep, StepContext, declare_field
from tfe_bench.queries.types import BITS, NUMBER

JOINS = ("inner", "left", "semi", "anti")


def read_key_pairs(value: object) -> list[list[str]]:
    """Return valid pairs of columns that are equal in joined rows.

    Raises:
        UsageError: the pairs are invalid.
    """
    for left, right in (pairs := check_part_lists(value, 2)):
        check_column_name(left)
        check_column_name(right)
    return pairs


@dataclass(frozen=True)
class Join(QueryStep):
    """Look up the rows of the right side, in which the key is unique.

    Attributes:
        on: pairs of a column of the left and of the right side.
        kind: "inner", "left", "semi" or "anti".
    """

    op = "join"
    arity = (2, 2)
    in_place = keeps_names = True

    on: list[list[str]] = declare_field(read_key_pairs)
    kind: str = declare_field(lambda value: check_choice(value, JOINS, "A join"))

    # ---- derive

    def derive_facts(self, inputs: Sequence[Facts], tables: Tables) -> Facts:
        """Derive facts: the keys become control columns."""
        left, right = inputs
        self.check_sides(left, right)
        unique = {name for _, name in self.on} & right.unique
        if not unique:
            known = ", ".join(sorted(right.unique)) or "none"
            raise UsageError(
                "A join takes a unique column of its right side. Received: ON "
                f"{', '.join(name[:40] for _, name in self.on)}; unique are {known}. Swap the "
                "sides, group by the key first, ask the owner to declare it (table put "
                "--unique), or bound the rows of an inner or a left join (--max-rows).",
                code="key-not-unique",
            )
        both = bool({name for name, _ in self.on} & left.unique)
        joined = self.join_facts(left, right, both, tables)
        link = find_prepared_join(self.on, left.home, right.home, right.rows, tables)
        return replace(joined, link=link)

    def check_sides(self, left: Facts, right: Facts) -> None:
        """Reject sides that share a name, or keys of different types.

        Raises:
            UsageError: naming the fault.
        """
        if shared := set(left.columns) & set(right.columns):
            raise UsageError(
                f"Both sides of a join have a column {min(shared)[:80]!r}.", code="duplicate-name"
            )
        if shared := set(left.records) & set(right.records):
            raise UsageError(
                f"Both sides of a join have the alias {min(shared)[:80]!r}.", code="duplicate-alias"
            )
        for one, other in self.on:
            a, b = left.column_fact(one), right.column_fact(other)
            if common_column_type(a, b) != a.type or a.type != b.type:
                raise UsageError(
                    f"A join takes columns of one type and range. Received: {one[:80]!r} is a "
                    f"{a.type} from {a.value_type.low} to {a.value_type.high}, {other[:80]!r} a "
                    f"{b.type} from {b.value_type.low} to {b.value_type.high}. Ask the owners to "
                    "declare the same."
                    if a.value_type.kind == b.value_type.kind == NUMBER
                    else f"A join takes columns of one type. Received: {one[:80]!r} is a {a.type}, "
                    f"{other[:80]!r} another {b.type}.",
                    code="type-mismatch",
                    operation="join",
                )

    def join_facts(self, left: Facts, right: Facts, both: bool, tables: Tables) -> Facts:
        """Return the facts of the joined rows.

        Args:
            both: whether the key is unique on both sides.
        """
        kind = self.kind
        control = left.control | right.control
        for relation, others, index in ((left, right, 0), (right, left, 1)):
            guessed = any(tables[alias].owner == tables[alias].client for alias in others.records)
            for pair in self.on:
                fact = relation.column_fact(pair[index])
                use = ColumnUse.GUESSED if guessed or not others.records else ColumnUse.MATCHED
                if kind == "anti":
                    use = ColumnUse.LEFT_OUT
                elif kind == "left" or not fact.affine:
                    use = ColumnUse.CONDITION
                control |= {(source, use) for source in fact.sources}
        records = dict(left.records)
        columns = dict(left.columns)
        # (columns that decide whether a partner exists)
        matched = frozenset(source for source, _ in control)
        if kind != "anti":
            for alias, alias_records in right.records.items():
                present = alias_records.present or (
                    record_presence_column(alias) if kind == "left" else ""
                )
                unit = alias_records.unit if kind in ("inner", "left") else ""
                records[alias] = TableRecords(alias_records.single and both, present, unit)
                if kind == "left":
                    columns[present] = ColumnFact(BITS, sources=matched)
        if kind in ("inner", "left"):
            for name, fact in right.columns.items():
                columns[name] = replace(fact, nullable=fact.nullable or kind == "left")
        unique = left.unique | (right.unique if both and kind in ("inner", "left") else frozenset())
        valid = left.valid and kind == "left"
        return Facts(left.rows, columns, valid, control, records, unique, home=left.home)

    def check_units(self, tables: Tables, first: Sequence[str], others: Sequence[str]) -> None:
        if self.kind in ("left", "anti"):  # (a missing partner is visible)
            subject = f"A {self.kind} join that looks it up"
            privacy.reject_repeated_units(tables, others, subject)

    # ---- run

    def run_protocol(self, context: StepContext) -> Relation:
        """Look up the rows: by a link of the left table without a sort, else by a sort."""
        names, on = self.find_keys(context)
        party, left, right = context.party, context.inputs[0], self.extend_right_side(context)
        if context.output_facts.link is not None:
            target = context.setting.load_link(*context.output_facts.link)
            joined = hashed_lookup.lookup_hashed(party, left, right, on[0], target, self.kind)
        else:
            unique = any(a in context.input_facts[0].unique for a, _ in self.on)
            joined = joins.lookup_join(
                *(party, left, right, on, self.kind),
                is_unique=unique,
                profile=context.setting.profile,
            )
        if self.kind in ("semi", "anti"):
            return joined
        return self.arrange_columns(context, names, joined)

    def find_keys(self, context: StepContext) -> tuple[list[list[str]], list[tuple[int, int]]]:
        """Return the columns of both sides, and the pairs of positions that are compared."""
        names = [list(each.columns) for each in context.input_facts]
        return names, [(names[0].index(a), names[1].index(b)) for a, b in self.on]

    def extend_right_side(self, context: StepContext) -> Relation:
        """Return the right side of a join; a left join appends a column that is NULL if
        no row matched.
        """
        right = context.inputs[1]
        if self.kind != "left":
            return right
        ones = context.party.function(lambda v: constant_truth_column(v, True))(right.valid)
        return Relation((*right.columns, Column(ones, 1)), right.valid)

    def arrange_columns(
        self, context: StepContext, names: Sequence[Sequence[str]], joined: Relation
    ) -> Relation:
        """Return the columns of a join in order, with the presence bits of records."""
        columns = dict(zip([*names[0], *names[1]], joined.columns, strict=False))
        output_names = context.output_facts.columns
        if self.kind == "left":
            null = joined.columns[-1].null
            assert null is not None
            is_matched = Column(context.party.function(bits.invert)(null), 1)
            columns.update({name: is_matched for name in output_names if name not in columns})
        return Relation(tuple(columns[name] for name in output_names), joined.valid)

    # ---- explain, needs

    def explain_step(self, inputs: Sequence[Facts], output: Facts) -> str:
        return f"{self.key_text}{'' if output.link is None else ' (linked: no sort)'}"

    @property
    def key_text(self) -> str:
        """Kind, inputs and keys, for descriptions."""
        pairs = " and ".join(f"{a} = {b}" for a, b in self.on)
        return f"{self.kind} join {self.input_text} on {pairs}"

    def list_needs(self, needed: NeededColumns) -> list[NeededColumns]:
        left = {name for name, _ in self.on}
        right = {name for _, name in self.on}
        wide = self.kind in ("inner", "left")
        if needed is None:
            return [None, None if wide else right]
        # (a name of the other side is not in this side: `drop_columns` ignores it)
        return [needed | left, (needed | right) if wide else right]
