"""What is public about a private table: its columns, its rows, and who may learn what of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tfe_bench.cluster.ledger import MOST
from tfe_bench.cluster.stored import check_clients, check_deployment, check_name
from tfe_bench.errors import UsageError, did_you_mean
from tfe_bench.models.queries.types import BOOL, MAX_COLUMN_FRACTION, MAX_WIDTH, NUMBER, Type

MAX_COLUMNS, MAX_ROWS = 1000, 1 << 30
MAX_LINKS = 16
MAX_GROUP = 1 << 20
MAX_CONTRIBUTIONS = 1 << 20
# Records in a group that is told of, unless a table's owner says how many.
DEFAULT_MIN_GROUP = 10
# Of a column: any letters, digits and signs but those that separate parts of a right, of a link or
# of a name in SQL, as "Customer ID" and "mean radius (mm)".
MAX_NAME = 63
_SEPARATORS = frozenset("\"'`.,:;@=*\\")
# Of a scaled element, as of a feature (models/rows.py).
LARGEST = 1 << 12
# What a client may do with a column, see docs/tables.md.
OPEN, GROUPED, AGGREGATE, QUANTILE, FILTER, MATCH, TRAIN = RIGHTS = (
    "open",
    "group",
    "aggregate",
    "quantile",
    "filter",
    "match",
    "train",
)
ALL = "*"


@dataclass(frozen=True)
class Column:
    """A column of a stored table.

    Attributes:
        type: of its elements, which are kept as distances from the type's `low`.
        nullable: whether a column of bits beside it says which are missing.
        scale: for training: (shift, center), near the deviation and the mean of its elements, so
            that (element - center) / 2^shift is near 1.  None: its owner does not say.

    Raises:
        UsageError: a scale that does not fit the type.
    """

    type: Type
    nullable: bool = False
    scale: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.scale is None:
            return
        parts = tuple(self.scale)
        fits = len(parts) == 2 and all(type(v) is int for v in parts) and self.type.kind == NUMBER
        low, high = self.type.low, self.type.high
        if not fits or self.type.bits > MAX_WIDTH or not 0 <= parts[0] <= MAX_WIDTH:
            raise UsageError("A scale is a shift and a center of a column of numbers.")
        if not low <= parts[1] <= high or high - low > LARGEST << parts[0]:
            raise UsageError(
                f"Scaled elements lie within {LARGEST} of 0, and their center in their range."
            )

    def header(self, name: str) -> dict[str, Any]:
        """As public JSON."""
        fields = {"name": name, "type": self.type.header(), "nullable": self.nullable}
        return fields if self.scale is None else {**fields, "scale": list(self.scale)}

    @classmethod
    def from_header(cls, header: object) -> tuple[str, Column]:
        """Its name and itself, from JSON of anybody.

        Raises:
            UsageError: it is no column.
        """
        known = {"name", "type", "nullable"}
        if not isinstance(header, Mapping) or set(header) - {"scale"} != known:
            raise UsageError("A column has a name, a type, and is nullable or not.")
        name, scale = header["name"], header.get("scale")
        if type(header["nullable"]) is not bool or not isinstance(name, str):
            raise UsageError("A column has a name, a type, and is nullable or not.")
        if "scale" in header and not isinstance(scale, list):
            raise UsageError("A scale is a shift and a center of a column of numbers.")
        scale_pair = None if scale is None else tuple(scale)
        return name, cls(Type.from_header(header["type"]), header["nullable"], scale_pair)


@dataclass(frozen=True)
class Link:
    """That an owner knows in which bins of another table its rows' partners are (bins.py).

    Attributes:
        column: of this table.
        table, deployment: the other one, whose rows are in bins.
        bins: how many there are.
    """

    column: str
    table: str
    deployment: str
    bins: int

    def __post_init__(self) -> None:
        check_column_name(self.column)
        check_name(self.table, "A linked table's name")
        check_deployment(self.deployment)
        if type(self.bins) is not int or not 3 <= self.bins <= MAX_ROWS or self.bins % 3:
            raise UsageError(f"A link is to 3 to {MAX_ROWS} bins, in three parts.")

    def header(self) -> dict[str, Any]:
        """As public JSON."""
        return dict(vars(self))

    @classmethod
    def from_header(cls, header: object) -> Link:
        """From JSON of anybody.

        Raises:
            UsageError: it is no link.
        """
        if not isinstance(header, Mapping) or set(header) != set(cls.__dataclass_fields__):
            raise UsageError("A link has a column, a table, its deployment and bins.")
        return cls(**header)


@dataclass(frozen=True)
class Schema:
    """The public header of a table.

    Attributes:
        rows: how many there are, with padding.
        columns: by name, in their order.
        padded: whether a column of bits says which rows are none.
        unique: columns of which no value that is not NULL is there twice.
        sorted_by: the column by whose values the rows are sorted, "" for none.
        rights: by client ("*": every client that may use the table) and column ("*": every one).
        min_group: a group of fewer units is not told of.
        unit: the column that says whose record a row is; "": every row is a unit of its own.
        open_count: whether the number of rows that it has in common with others may be told.
        hashed_by: the column by whose values rows are in bins, "" for none; and the hash's seed.
        links: what lookups in other tables need no sort for.
        budget: how much privacy queries of other clients may spend of it, in billionths of rho
            (cluster/ledger.py); 0: it has none, and `min_group` is its rule.
        contributions: of a table with a budget, how many rows of one unit count at most.

    Raises:
        UsageError: there is no such table.
    """

    rows: int
    columns: Mapping[str, Column]
    padded: bool = False
    unique: tuple[str, ...] = ()
    sorted_by: str = ""
    rights: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    min_group: int = DEFAULT_MIN_GROUP
    unit: str = ""
    open_count: bool = False
    hashed_by: str = ""
    seed: int = 0
    links: tuple[Link, ...] = ()
    budget: int = 0
    contributions: int = 1

    def __post_init__(self) -> None:
        if type(self.rows) is not int or not 1 <= self.rows <= MAX_ROWS:
            raise UsageError(f"A table has 1 to {MAX_ROWS} rows.")
        if not 1 <= len(self.columns) <= MAX_COLUMNS:
            raise UsageError(f"A table has 1 to {MAX_COLUMNS} columns.")
        for name, column in self.columns.items():
            check_column_name(name)
            if column.type.fraction > MAX_COLUMN_FRACTION:
                raise UsageError(f"A column has at most {MAX_COLUMN_FRACTION} fractional bits.")
        if len({name.lower() for name in self.columns}) != len(self.columns):
            raise UsageError("The names of columns differ, also where case is ignored.")
        if type(self.padded) is not bool:
            raise UsageError("Whether a table is padded is true or false.")
        if type(self.open_count) is not bool:
            raise UsageError("Whether common rows may be counted is true or false.")
        for field_name, names in (("unique", self.unique), ("sorted_by", self.sorted_by.split())):
            for name in names:
                self.column(name, field_name)
        if self.unit:
            self.column(self.unit, "unit")
        self._check_links()
        if type(self.min_group) is not int or not 1 <= self.min_group <= MAX_GROUP:
            raise UsageError(f"min_group is 1 to {MAX_GROUP}.")
        check_clients([client for client in self.rights])
        for rights in self.rights.values():
            for name, words in rights.items():
                if name != ALL:
                    self.column(name, "rights")
                for word in words:
                    if word not in RIGHTS:
                        raise UsageError(
                            f"A right is one of {', '.join(RIGHTS)}. Received: {str(word)[:40]!r}."
                            f"{did_you_mean(str(word), RIGHTS)}"
                        )
        self._check_budget()

    def column(self, name: str, field_name: str = "table") -> Column:
        """A column by its name.

        Raises:
            UsageError: there is none.
        """
        if name not in self.columns:
            shown = str(name)[:80]
            raise UsageError(
                f"{field_name}: there is no column {shown!r}.{did_you_mean(shown, self.columns)} "
                f"Columns: {', '.join(list(self.columns)[:20])}."
            )
        return self.columns[name]

    def _check_links(self) -> None:
        if type(self.seed) is not int or not 0 <= self.seed < 1 << 62:
            raise UsageError("The seed of a table's bins has 62 bits.")
        if self.hashed_by:
            hashed_column = self.column(self.hashed_by, "hashed_by")
            if (
                self.hashed_by not in self.unique
                or hashed_column.nullable
                or hashed_column.type.kind == BOOL
            ):
                raise UsageError(
                    "hashed_by takes a column that is unique and never NULL, and no bool."
                )
            if not self.padded or self.sorted_by or self.rows % 3:
                raise UsageError("Rows in bins are padded, in three parts, and in no other order.")
        if len(self.links) > MAX_LINKS:
            raise UsageError(f"A table has at most {MAX_LINKS} links.")
        for link in self.links:
            if self.column(link.column, "link").type.kind == BOOL:
                raise UsageError("A link takes a column of numbers, not of bools.")

    def _check_budget(self) -> None:
        if type(self.budget) is not int or not 0 <= self.budget <= MOST:
            raise UsageError("A privacy budget is 0 to 10^15 billionths of rho.")
        max_rows = self.contributions
        if type(max_rows) is not int or not 1 <= max_rows <= MAX_CONTRIBUTIONS:
            raise UsageError(
                f"contributions is 1 to {MAX_CONTRIBUTIONS} rows of a unit. Received: "
                f"{str(max_rows)[:40]}."
            )
        if max_rows > 1 and not (self.budget and self.unit):
            raise UsageError("contributions is of the rows of a unit, in a table with a budget.")
        if not self.budget:
            return
        granted = {word for of in self.rights.values() for words in of.values() for word in words}
        if exact := sorted(granted & {OPEN, QUANTILE, TRAIN}):
            raise UsageError(
                "What leaves a table with a privacy budget has noise. Received: the right "
                f"{exact[0]!r}, which would tell values without; group, aggregate, filter and "
                "match do not."
            )
        if self.open_count:
            raise UsageError(
                "What leaves a table with a privacy budget has noise. Received: open_count, which "
                "would tell a number without."
            )
        if self.unit and self.columns[self.unit].nullable:
            raise UsageError(
                "Of a table with a privacy budget every row is some unit's. Received: a unit that "
                f"may be NULL, {self.unit!r}."
            )

    def allows(self, client: str, owner: str, column: str) -> frozenset[str]:
        """What a client may do with a column; its owner may do everything."""
        if client == owner:
            return frozenset(RIGHTS)
        rights: set[str] = set()
        for who in (client, ALL):
            for name in (column, ALL):
                if name in self.rights.get(who, {}):
                    rights.update(self.rights[who][name])
                    break
        return frozenset(RIGHTS) if OPEN in rights else frozenset(rights)

    def header(self) -> dict[str, Any]:
        """As public JSON."""
        return {
            "rows": self.rows,
            "columns": [c.header(name) for name, c in self.columns.items()],
            "padded": self.padded,
            "unique": list(self.unique),
            "sorted_by": self.sorted_by,
            "rights": {
                who: {name: list(words) for name, words in rights.items()}
                for who, rights in self.rights.items()
            },
            "min_group": self.min_group,
            "unit": self.unit,
            "open_count": self.open_count,
            "hashed_by": self.hashed_by,
            "seed": self.seed,
            "links": [link.header() for link in self.links],
            **({name: getattr(self, name) for name in _OF_BUDGET} if self.budget else {}),
        }

    @classmethod
    def from_header(cls, header: object) -> Schema:
        """From JSON of anybody.

        Raises:
            UsageError: it is no header of a table.
        """
        known = set(_FIELDS)
        if not isinstance(header, Mapping) or set(header) - set(_OF_BUDGET) != known:
            raise UsageError(f"A table's header has {', '.join(sorted(known))}.")
        listed = header["columns"]
        if not isinstance(listed, list) or len(listed) > MAX_COLUMNS:
            raise UsageError(f"A table has 1 to {MAX_COLUMNS} columns.")
        columns: dict[str, Column] = {}
        for each in listed:
            name, column = Column.from_header(each)
            if name in columns:
                raise UsageError("The names of columns differ, also where case is ignored.")
            columns[name] = column
        unique, rights = header["unique"], header["rights"]
        if not _is_text_list(unique) or not isinstance(header["sorted_by"], str):
            raise UsageError("unique is a list of columns, sorted_by a column.")
        if not isinstance(header["unit"], str) or not isinstance(rights, Mapping):
            raise UsageError("A unit is a column, and rights are listed by client and column.")
        if not isinstance(header["hashed_by"], str) or not isinstance(header["links"], list):
            raise UsageError("hashed_by is a column, links are listed.")
        if not all(
            isinstance(of, Mapping) and all(_is_text_list(words) for words in of.values())
            for of in rights.values()
        ):
            raise UsageError("Rights are listed by client and column.")
        return cls(
            header["rows"],
            columns,
            header["padded"],
            tuple(unique),
            header["sorted_by"],
            {w: {n: tuple(r) for n, r in of.items()} for w, of in rights.items()},
            header["min_group"],
            header["unit"],
            header["open_count"],
            header["hashed_by"],
            header["seed"],
            tuple(Link.from_header(link) for link in header["links"]),
            header.get("budget", 0),
            header.get("contributions", 1),
        )


_FIELDS = (
    *("rows", "columns", "padded", "unique", "sorted_by", "rights", "min_group", "unit"),
    *("open_count", "hashed_by", "seed", "links"),
)
# (of tables that have one)
_OF_BUDGET = ("budget", "contributions")


def _is_text_list(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def check_column_name(name: object) -> None:
    """Refuses what is no name of a column.

    Raises:
        UsageError: it is none.
    """
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME or not _is_plain_name(name):
        shown = str(name)[:80]
        plain = re.sub(r"\W+", "_", shown).strip("_")[:MAX_NAME] or "c"
        raise UsageError(
            f"A column's name is 1 to {MAX_NAME} characters, a letter or _ first, without "
            f"{' '.join(sorted(_SEPARATORS))} and without blanks at its ends. Received: {shown!r}. Give "
            f'it another name (--rename "{shown}={plain}").'
        )


def _is_plain_name(name: str) -> bool:
    letter = name[0].isalpha() or name[0] == "_"
    return letter and name.isprintable() and name == name.strip() and not _SEPARATORS & set(name)


def parse_rights(
    written: Sequence[str], clients: Sequence[str]
) -> dict[str, dict[str, tuple[str, ...]]]:
    """Rights as people write them: "income:aggregate,filter", for one client "income@bank:open".

    Args:
        clients: who may use the table, whom a right without a client is for.

    Raises:
        UsageError: one is no right.
    """
    rights_by_client: dict[str, dict[str, tuple[str, ...]]] = {}
    if written and not clients:
        raise UsageError(
            f"The right {written[0][:80]!r} is for no client, as no other one may use the table. "
            "Name who may (--for CLIENT, in Python clients=[...])."
        )
    for text in written:
        target, colon, words = text.partition(":")
        column, at, client = target.partition("@")
        if not colon or not column.strip() or (at and not client.strip()):
            raise UsageError(
                'A right is written as "income:aggregate,filter", or "income@bank:open" for one '
                f"client. Received: {text[:80]!r}."
            )
        if at and client.strip() not in clients and ALL not in clients:
            raise UsageError(
                f"The right {text[:80]!r} is for a client that may not use the table."
                f"{did_you_mean(client.strip(), clients)} Clients: {', '.join(clients[:20])}."
            )
        listed = tuple(word.strip() for word in words.split(",") if word.strip())
        for who in [client.strip()] if at else clients:
            rights_by_client.setdefault(who, {})[column.strip()] = listed
    return rights_by_client
