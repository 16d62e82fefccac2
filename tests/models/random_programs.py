"""Random programs on a `World`, and whether the documented rules permit them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

from tests.models.random_rights import (
    CLIENTS,
    COLUMNS,
    GIVEN,
    ROWS,
    WORDS,
    LoneParty,
    Program,
    StoredItem,
    World,
)
from tfe_bench.arrays import request as requests
from tfe_bench.arrays.plan import ExpressionPlan
from tfe_bench.arrays.price import price_expression_plan
from tfe_bench.arrays.programs import compute
from tfe_bench.cluster import stored_shares
from tfe_bench.cluster.jobs import Context, InputSpec
from tfe_bench.cluster.stored import ARRAY, DATA, TABLE
from tfe_bench.errors import UsageError
from tfe_bench.models.datasets import record_linkage, sources
from tfe_bench.models.datasets.programs import align, provide
from tfe_bench.models.datasets.request import DatasetRequest, parse_alignment
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.queries.programs import query
from tfe_bench.queries.request import parse_query
from tfe_bench.queries.schema import TableColumn, TableSchema
from tfe_bench.queries.types import parse_type

# Affine steps, and others; each maps a value to a value.
_AFFINE: list[Callable[[list[Any]], list[Any]]] = [
    lambda x: ["negative", [x], {}],
    lambda x: ["add", [x, 3], {}],
    lambda x: ["subtract", [7, x], {}],
    lambda x: ["multiply", [x, -2], {}],
]
_OTHERS: list[Callable[[list[Any]], list[Any]]] = [
    lambda x: ["multiply", [x, 0.5], {}],
    lambda x: ["multiply", [x, 0.0], {}],
    lambda x: ["square", [x], {}],
    lambda x: ["getitem", [x, ["slice", None, 5, None]], {}],
    lambda x: ["greater", [x, 50], {}],
    lambda x: ["expand_dims", [x, 0], {}],
    lambda x: ["reduce_max", [x], {}],
]
_SUMS: list[Callable[[list[Any]], list[Any]]] = [
    lambda x: ["reduce_sum", [x], {}],
    lambda x: ["reduce_mean", [x], {"axis": 0}],
    lambda x: ["reduce_sum", [x, -1], {}],
]


def _draw_clients(world: World, owner: str) -> tuple[str, ...]:
    if world.draw_chance(0.4):
        return ("*",)
    return tuple(c for c in CLIENTS if c != owner and world.draw_chance(0.75))


def _put_table(world: World, client: str) -> Program:
    name, budget = world.draw_one(("t0", "t1", "t2", "t3")), world.draw_chance(0.1)
    rights: dict[tuple[str, str], frozenset[str]] = {}
    generous, opened = world.draw_one((0.2, 0.6, 0.95)), world.draw_one((0.05, 0.3, 0.7))
    for other in CLIENTS:
        for column in COLUMNS:
            inputs = [r for r in GIVEN if world.draw_chance(generous if r != "open" else opened)]
            barred = {"open", "quantile", "train"} if budget else set()
            rights[other, column] = frozenset(inputs) - barred
    unit, least = world.draw_one(("", "", "", "", "k", "b")), world.draw_one((2, 2, 2, 2, 13))
    schema = TableSchema(
        ROWS,
        {column: TableColumn(parse_type("int[0,99]")) for column in COLUMNS},
        unique=("k",),
        rights={c: {n: tuple(rights[c, n]) for n in COLUMNS} for c in CLIENTS},
        unit=unit,
        min_group=least,
        open_count=not budget and world.draw_chance(0.9),
        budget=10**9 if budget else 0,
    )
    plain = not budget and not unit and least <= ROWS
    thing = StoredItem(
        TABLE,
        name,
        client,
        _draw_clients(world, client),
        "",
        rights,
        frozenset([(client, "")]),
        plain=plain,
        unit=unit,
        budget=budget,
        counted=schema.open_count,
    )
    replace = world.draw_chance(0.5)
    order = stored_shares.StorageRequest(
        name, thing.clients, replace, schema.to_header()
    ).to_parameters()

    def act() -> None:
        world.store.for_kind(TABLE).permit_writing(name, client, replace)
        world.store_item(order, thing)

    return "put", world.may_write(TABLE, name, client, replace), (client, order), act


def _remove_item(world: World, client: str) -> Program:
    kind = world.draw_one((TABLE, TABLE, DATA, ARRAY))
    thing = world.draw_item((kind,), client)
    name = "none" if thing is None else thing.name
    now = world.live.get((kind.infix, name))

    def act() -> None:
        stored_shares.remove_stored_shares(
            cast(Any, LoneParty()), world.store.for_kind(kind), name, client
        )
        world.live.pop((kind.infix, name))

    return "remove", now is not None and now.owner == client, (client, kind.infix, name), act


def _provide_rows(world: World, client: str) -> Program:
    name, replace = world.draw_one(("d0", "d1")), world.draw_chance(0.5)
    about = {"rows": ROWS, "x": [2], "y": [1], "target": "number", "classes": 1, "columns": []}
    thing = StoredItem(
        DATA, name, client, _draw_clients(world, client), "", atoms=frozenset([(client, "")])
    )
    order = stored_shares.StorageRequest(name, thing.clients, replace, about).to_parameters()

    def act() -> None:
        request = DatasetRequest.from_parameters(order, "provide")
        assert provide.PROGRAM.permit is not None
        provide.PROGRAM.permit(client, world.store, request, [])
        world.store_item(order, thing)

    return "provide", world.may_write(DATA, name, client, replace), (client, order), act


def _align_tables(world: World, client: str) -> Program:
    tables = [world.draw_item((TABLE,), client) for _ in range(2)]
    if None in tables or tables[0].name == tables[1].name:  # type: ignore[union-attr]
        return _put_table(world, client)
    both = cast(list[StoredItem], tables)
    name, replace = world.draw_one(("d0", "d1")), world.draw_chance(0.7)
    others = tuple(c for c in CLIENTS if c != client and world.draw_chance(0.15))
    features = [["a"] if world.draw_chance(0.8) else ["a", "b"], ["a"]]
    part = {"on": ["k"]}
    parts = [
        {**part, "name": t.name, "deployment": t.word, "columns": f}
        for t, f in zip(both, features, strict=True)
    ]
    about = {"tables": parts, "label": [both[1].name, "b"]}
    features[1] = ["a", "b"]  # with the label
    order = stored_shares.StorageRequest(name, others, replace, about).to_parameters()
    due = all(world.can_access(t, client) and t.unit in ("", "k") for t in both)
    for who in (client, *others):
        for t, listed in zip(both, features, strict=True):
            due = due and t.used_by(who) and (who == t.owner or t.counted)
            due = (
                due
                and t.has_right(who, "k", "match")
                and all(t.has_right(who, c, "train") for c in listed)
            )
    due = due and world.may_write(DATA, name, client, replace)
    atoms = frozenset((t, c) for t, f in zip(both, features, strict=True) for c in ("k", *f))
    thing = StoredItem(DATA, name, client, others, "", atoms=atoms)

    def act() -> None:
        align.permit_alignment(client, world.store, parse_alignment(order, []), [])
        made_of = record_linkage.LinkageRequest.from_header(about)
        held = record_linkage.find_linkage_tables(made_of, world.store, client, others)
        linkage = record_linkage.derive_linkage(made_of, held, others)
        facts = {**order, "about": {"rows": ROWS, **linkage.about}}
        world.store_item(facts, thing, record_linkage.collect_linkage_sources(made_of, held))

    return "align", due, (client, order), act


def _train_model(world: World, client: str) -> Program:
    thing = world.draw_item((DATA,), client)
    if thing is None:
        return _provide_rows(world, client)
    dataset_ref = sources.DatasetRef((thing.name,), thing.name, {thing.name: thing.word})
    due = world.can_access(thing, client) and world.permits_use(
        client, "train", world.loaded_atoms(thing, "")
    )

    def act() -> None:
        sources.check_permitted_datasets(dataset_ref, world.store, client)

    return "train", due, (client, dataset_ref), act


def _draw_leaf(
    world: World, client: str
) -> tuple[list[Any], bool, frozenset[Any], StoredItem | None]:
    """Return a leaf, whether the client may access it, its atoms, and the table of a column."""
    if world.draw_chance(0.15):
        return ["input", "int", [ROWS], 0], True, frozenset([(client, "")]), None
    if world.handles and world.draw_chance(0.3):
        own = [key for key in world.handles if key[0] == client] or list(world.handles)
        who, handle = world.draw_one(own if world.draw_chance(0.95) else world.handles)
        meaning, atoms = world.handles[who, handle]
        leaf = ["handle", meaning.kind, list(meaning.shape), meaning.scale, handle]
        return leaf, who == client, atoms, None
    thing = world.draw_item((TABLE, TABLE, DATA, ARRAY), client)
    if thing is None:
        return ["input", "int", [ROWS], 0], True, frozenset([(client, "")]), None
    part, kind, shape, scale = world.draw_one(COLUMNS), "int", [ROWS], 0
    if thing.kind is DATA:
        part, kind, scale = world.draw_one("xy"), "fixed", 16
        facts = world.store.for_kind(DATA)._read_facts(thing.name)
        width = (facts.about if facts else {"x": [2], "y": [1]})[part]
        shape = [ROWS, *width]
    elif thing.kind is ARRAY:
        part, now = "", world.store.for_kind(ARRAY)._read_facts(thing.name)
        if now is not None:
            kind, shape, scale = (now.about[key] for key in ("kind", "shape", "scale"))
    leaf = ["stored", kind, shape, scale, thing.kind.infix, thing.name, thing.word, part]
    column = thing if thing.kind is TABLE else None
    return leaf, world.can_access(thing, client), world.loaded_atoms(thing, part), column


def _compute_arrays(world: World, client: str) -> Program:
    drawn = [_draw_leaf(world, client) for _ in range(world.draw_one((1, 1, 2, 3)))]
    leaves, due = [leaf for leaf, *_ in drawn], all(fits for _, fits, _, _ in drawn)
    atoms = [own for _, _, own, _ in drawn]
    # the columns of which they are a * x + b
    affine: list[tuple[StoredItem, str] | None] = [
        (t, leaf[7]) if t is not None else None for leaf, _, _, t in drawn
    ]
    steps: list[list[Any]] = []
    for _ in range(world.random.randrange(5)):
        number = len(atoms) - 1 if world.draw_chance(0.6) else world.random.randrange(len(atoms))
        ref = ["ref", number]
        if len(atoms) > 1 and world.draw_chance(0.2):
            other = world.random.randrange(len(atoms))
            step, exact, more = ["add", [ref, ["ref", other]], {}], False, atoms[other]
        else:
            listed = world.draw_one((_AFFINE, _OTHERS, _SUMS, _SUMS))
            step, exact, more = world.draw_one(listed)(ref), listed is _AFFINE, frozenset()
        if not _offers_steps(leaves, [*steps, step]):
            continue
        steps.append(step)
        column, own = affine[number], atoms[number] | more
        summed = step[0] in ("reduce_sum", "reduce_mean")
        is_summable = summed and column is not None and column[0].plain
        if (
            is_summable
            and column is not None
            and column[0].has_right(client, column[1], "aggregate")
        ):
            own = frozenset([(client, "")])
        atoms.append(own)
        affine.append(column if exact else None)
    ends = _unused_values(len(leaves), steps)
    outputs, names, handles = [], iter(world.random.sample(["k0", "k1", "k2"], 3)), {}
    keeping: dict[str, tuple[StoredItem, Mapping[str, Any]]] = {}
    for n in ends:
        then = world.draw_one(("reveal", "handle", "keep"))
        about: dict[str, Any] = {}
        if then == "keep":
            about = {"name": next(names, "k9"), "replace": world.draw_chance(0.6)}
            about["clients"] = list(_draw_clients(world, client))
            due = due and world.may_write(ARRAY, about["name"], client, about["replace"])
            thing = StoredItem(
                ARRAY, about["name"], client, tuple(about["clients"]), "", atoms=atoms[n]
            )
            keeping[about["name"]] = thing, about
        elif then == "handle":
            about = {"handle": uuid.UUID(int=world.random.getrandbits(128)).hex}
            handles[about["handle"]] = atoms[n]
        due = due and world.permits_use(client, "show" if then == "reveal" else "hold", atoms[n])
        outputs.append([["ref", n], then, about])
    parameters = {"plan": {"leaves": leaves, "steps": steps, "outputs": outputs}, "free": []}

    def act() -> None:
        specs = [
            InputSpec(requests.leaf_input_name(i), leaf.shape, leaf.scale)
            for i, leaf in enumerate(
                requests.ComputeRequest.from_parameters(parameters, "compute").plan.leaves
            )
            if leaf.source == "input"
        ]
        request = requests.parse_expression(parameters, specs)
        compute.permit_expression(client, world.store, request, [])
        inputs = {requests.leaf_input_name(i): WORDS for i in range(len(leaves))}
        job = SimpleNamespace(progress=None)
        context = Context(
            *(cast(Any, LoneParty()), parameters, inputs, cast(Any, job), {}, client, world.store),
            request=request,
        )
        compute.run_expression(context)
        for thing, _ in keeping.values():
            world.put_item(thing)
        for handle, own in handles.items():
            meaning = world.store.handles.get_value(client, handle).public_facts[0]
            world.handles[client, handle] = meaning, own

    return "compute", due, (client, parameters), act


def skip_computation(context: Any, result: Any) -> list[Shared]:
    """Replace `recorded` of the program: return results without computing them."""
    return [WORDS] * len(context.request.plan.outputs)


def _unused_values(leaves: int, steps: list[Any]) -> list[int]:
    """Return the numbers of values that no step uses."""
    used = {r[1] for s in steps for r in s[1] if isinstance(r, list) and r[0] == "ref"}
    return [n for n in range(leaves + len(steps)) if n not in used]


def _offers_steps(leaves: list[Any], steps: list[Any]) -> bool:
    """Return whether such steps exist, whatever the rights are."""
    outputs = [[["ref", n], "reveal", {}] for n in _unused_values(len(leaves), steps)]
    try:
        price_expression_plan(
            ExpressionPlan.from_header({"leaves": leaves, "steps": steps, "outputs": outputs})
        )
    except UsageError:
        return False
    return True


@dataclass(frozen=True)
class QueryExpression:
    """An expression of a query: its columns, and if it is a * x + b without rounding."""

    given: list[Any]
    names: frozenset[tuple[str, str]]
    exact: bool = False
    hidden: bool = False


def _draw_expression(world: World, aliases: list[str]) -> QueryExpression:
    alias, column = world.draw_one(aliases), world.draw_one(COLUMNS)
    other = world.draw_one(aliases), world.draw_one(COLUMNS)
    x, y = ["col", f"{alias}.{column}"], ["col", ".".join(other)]
    if world.draw_chance(0.05):
        return QueryExpression(["col", f"{alias}?unit"], frozenset(), hidden=True)
    one, both = frozenset([(alias, column)]), frozenset([(alias, column), other])
    listed = [
        *[QueryExpression(x, one, True)] * 3,
        QueryExpression(["+", ["*", x, ["int", -3]], ["int", 5]], one, True),
        QueryExpression(["/", ["neg", x], ["int", 4]], one, True),
        QueryExpression(["/", x, ["int", 3]], one),
        QueryExpression(["*", x, y], both),
        QueryExpression(["case", ["<", x, ["int", 50]], y, ["null"]], both),
        QueryExpression(["-", x, x], one),
        QueryExpression(["abs", x], one),
    ]
    expression: QueryExpression = world.draw_one(listed)
    return expression


def _run_query(world: World, client: str) -> Program:
    first, second = (world.draw_item((TABLE,), client) for _ in range(2))
    if first is None or second is None:
        return _put_table(world, client)
    named = {"t": first}
    kind = world.draw_one(("", "", "inner", "inner", "left", "semi", "semi", "anti", "anti"))
    own = [t for t in world.live.values() if t.kind is TABLE and t.owner == client]
    second = world.draw_one(own) if own and world.draw_chance(0.3) else second
    if kind and second.name != first.name:
        named["u"] = second
    if any(t.budget and t.owner != client for t in named.values()):
        return _put_table(world, client)  # results with noise have their own tests
    steps: list[dict[str, Any]] = [
        {"op": "scan", "in": [], "table": alias, "columns": list(COLUMNS)} for alias in named
    ]
    last, uses = 0, []  # a use, an alias, a column
    hidden = False
    if world.draw_chance(0.4):
        expression = _draw_expression(world, ["t"])
        where = ["<", expression.given, ["int", 7]]
        hidden |= expression.hidden
        uses += [("condition", *name) for name in expression.names]
        steps.append({"op": "filter", "in": [last], "where": where})
        last = len(steps) - 1
    if "u" in named:
        steps.append({"op": "join", "in": [last, 1], "kind": kind, "on": [["t.k", "u.k"]]})
        last = len(steps) - 1
        for alias, other in (("t", second), ("u", first)):
            guessed = "guessed" if other.owner == client else "matched"
            uses.append(({"left": "condition", "anti": "out"}.get(kind, guessed), alias, "k"))
    aliases = ["t", *(["u"] if "u" in named and kind in ("inner", "left") else [])]
    rows = ["t", *(["u"] if "u" in named and kind != "anti" else [])]
    expression = _draw_expression(world, aliases)
    hidden |= expression.hidden
    key = world.draw_one(aliases), world.draw_one(COLUMNS)
    columns = [["x", expression.given], ["g", ["col", ".".join(key)]]]
    steps.append({"op": "project", "in": [last], "columns": columns})
    function = world.draw_one(
        ("", "", "", "sum", "avg", "count", "min", "max", "quantile_disc:500", "rows")
    )
    grouped = bool(function) and world.draw_chance(0.5)
    if function:
        call = ["m", *((function, "x") if function != "rows" else ("count", None))]
        about = {"keys": ["g"] if grouped else [], "aggregates": [call]}
        steps.append({"op": "group", "in": [len(steps) - 1], **about})
        if function != "rows":
            use = "any_" * (not expression.exact) + function
            uses += [(use, *name) for name in expression.names]
        if grouped:
            uses.append(("group", *key))
    else:
        uses += [("show", *name) for name in (*expression.names, key)]
    plan = {
        "tables": {a: {"name": t.name, "deployment": t.word} for a, t in named.items()},
        "steps": steps,
        "output": len(steps) - 1,
    }
    due = all(world.can_access(t, client) for t in named.values()) and not hidden
    due = due and _may_ask(client, named, uses, rows, function, kind)

    def act() -> None:
        query.permit_query(client, world.store, parse_query({"plan": plan}, []), [])

    return "query", due, (client, plan), act


# Rights that suffice in an aggregate, in addition to open.
_ENOUGH = {
    **{name: ("aggregate",) for name in ("sum", "avg")},
    **{"count": ("aggregate", "filter"), "any_count": ("filter",), "condition": ("filter",)},
    **{"quantile_disc:500": ("quantile",), "group": ("group",)},
    **dict.fromkeys(("matched", "guessed"), ("match", "filter")),
}


def _may_ask(
    client: str,
    named: Mapping[str, StoredItem],
    uses: list[Any],
    rows: list[str],
    function: str,
    kind: str,
) -> bool:
    """Apply the rules of docs/tables.md.

    Args:
        uses: uses of columns.
        rows: the tables whose rows, or number of rows, determine the result.
        function: "" if rows are shown.
        kind: kind of the join.
    """

    def has(alias: str, column: str, *rights: str) -> bool:
        return named[alias].has_right(client, column, *rights)

    if not function:
        return all(named[a].known_to(client) for a in rows) and all(
            has(a, c, *(("match",) if use == "matched" else ())) for use, a, c in uses
        )
    closed = {a for _, a, c in uses if not has(a, c)}
    closed |= {a for a in rows if not named[a].known_to(client)}
    if not closed:
        return True
    if not all(has(a, c, *_ENOUGH.get(use, ())) for use, a, c in uses):
        return False
    for alias in closed:
        if alias not in rows or not any(has(alias, c, *GIVEN) for c in COLUMNS):
            return False
        # repeated units are counted by a column, which a semi join does not keep
        repeats = named[alias].unit == "b"
        if repeats and (function.startswith("quantile") or (alias == "u" and kind == "semi")):
            return False
    return True


PROGRAMS: list[Callable[[World, str], Program]] = [
    *[_compute_arrays] * 8,
    *[_run_query] * 8,
    *[_align_tables] * 4,
    *[_train_model] * 3,
    *[_put_table] * 2,
    _remove_item,
    _provide_rows,
]
