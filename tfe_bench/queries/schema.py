"""Public header of a private table: its columns, its rows, and the rights to them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tfe_bench.cluster.ledger import MOST
from tfe_bench.cluster.stored import check_client_names, check_deployment_identifier, check_name
from tfe_bench.errors import UsageError, did_you_mean
from tfe_bench.queries.types import BOOL, MAX_COLUMN_FRACTION, MAX_WIDTH, NUMBER, ColumnType

MAX_COLUMNS, MAX_ROWS = 1000, 1 << 30
MAX_LINKS = 16
MAX_GROUP = 1 << 20
MAX_CONTRIBUTIONS = 1 << 20
# Smallest number of records in a released group, unless a table's owner declares one.
DEFAULT_MIN_GROUP = 10
# Name of a column: any letters, digits and signs except those that separate parts of a right, of a
# link or of a name in SQL, as "Customer ID" and "mean radius (mm)".
MAX_NAME = 63
_SEPARATORS = frozenset("\"'`.,:;@=*\\")
# Largest scaled element, as for a feature (models/training/examples.py).
LARGEST = 1 << 12
# Rights of a client to a column, see docs/tables.md.
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
class TableColumn:
    """A column of a stored table.

    Attributes:
        type: type of its elements, which are stored as distances from the type's `low`.
        nullable: whether a further column of bits marks NULLs.
        scale: for training: (shift, center), near the deviation and the mean of its elements, so
            that (element - center) / 2^shift is near 1. None: its owner declares none.

    Raises:
        UsageError: a scale that does not fit the type.
    """

    type: ColumnType
    nullable: bool = False
    scale: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.scale is None:
            return
        parts = tuple(self.scale)
        fits = len(parts) == 2 and all(type(v) is int for v in parts) and self.type.kind == NUMBER
        low, high = self.type.low, self.type.high
        if not fits or self.type.bits > MAX_WIDTH or not 0 <= parts[0] <= MAX_WIDTH:
            raise UsageError(
                "scale must be (shift, center) of a numeric column.", code="invalid-scale"
            )
        if not low <= parts[1] <= high or high - low > LARGEST << parts[0]:
            raise UsageError(
                f"Scaled elements must lie within {LARGEST} of 0, and the center in their range.",
                code="invalid-scale",
            )

    def to_header(self, name: str) -> dict[str, Any]:
        """Return the column as public JSON."""
        fields = {"name": name, "type": self.type.to_header(), "nullable": self.nullable}
        return fields if self.scale is None else {**fields, "scale": list(self.scale)}

    @classmethod
    def from_header(cls, header: object) -> tuple[str, TableColumn]:
        """Parse a column and its name from untrusted JSON.

        Raises:
            UsageError: the column is invalid.
        """
        known = {"name", "type", "nullable"}
        if not isinstance(header, Mapping) or set(header) - {"scale"} != known:
            raise UsageError(
                "Expected a column with name, type and nullable.", code="invalid-header"
            )
        name, scale = header["name"], header.get("scale")
        if type(header["nullable"]) is not bool or not isinstance(name, str):
            raise UsageError(
                "Expected a column with name, type and nullable.", code="invalid-header"
            )
        if "scale" in header and not isinstance(scale, list):
            raise UsageError(
                "scale must be (shift, center) of a numeric column.", code="invalid-scale"
            )
        scale_pair = None if scale is None else tuple(scale)
        return name, cls(ColumnType.from_header(header["type"]), header["nullable"], scale_pair)


@dataclass(frozen=True)
class PreparedJoin:
    """A prepared join: the owner has computed the hash bins of its rows' partners in another table
    (hash_bins.py).

    Attributes:
        column: column of this table.
        table, deployment: the other table, which is placed in hash bins.
        bins: number of its bins.
    """

    column: str
    table: str
    deployment: str
    bins: int

    def __post_init__(self) -> None:
        check_table_column_name(self.column)
        check_name(self.table, "A linked table's name")
        check_deployment_identifier(self.deployment)
        if type(self.bins) is not int or not 3 <= self.bins <= MAX_ROWS or self.bins % 3:
            raise UsageError(
                f"A link is to 3 to {MAX_ROWS} bins, a multiple of 3.", code="invalid-link"
            )

    def to_header(self) -> dict[str, Any]:
        """Return the link as public JSON."""
        return dict(vars(self))

    @classmethod
    def from_header(cls, header: object) -> PreparedJoin:
        """Parse a link from untrusted JSON.

        Raises:
            UsageError: the link is invalid.
        """
        if not isinstance(header, Mapping) or set(header) != set(cls.__dataclass_fields__):
            raise UsageError(
                "Expected a link with column, table, deployment and bins.", code="invalid-link"
            )
        return cls(**header)


@dataclass(frozen=True)
class TableSchema:
    """The public header of a table.

    Attributes:
        rows: number of rows, with padding.
        columns: columns by name, in order.
        padded: whether a column of bits marks padding rows.
        unique: columns in which no value other than NULL repeats.
        sorted_by: the column by which rows are sorted, "" for none.
        rights: rights by client ("*": every client that may use the table) and column ("*": all).
        min_group: smallest number of units in a released group.
        unit: column that identifies the privacy unit of a row; "": every row is its own unit.
        open_count: whether the number of rows in common with other tables may be released.
        hashed_by: the column by which rows are placed in hash bins, "" for none; with its seed.
        links: prepared joins with other tables, which need no sort.
        budget: privacy budget of queries by other clients, in billionths of rho
            (cluster/ledger.py); 0: none, and `min_group` is the rule.
        contributions: for a table with a budget, the largest number of rows of one unit that
            count.

    Raises:
        UsageError: the header is invalid.
    """

    rows: int
    columns: Mapping[str, TableColumn]
    padded: bool = False
    unique: tuple[str, ...] = ()
    sorted_by: str = ""
    rights: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    min_group: int = DEFAULT_MIN_GROUP
    unit: str = ""
    open_count: bool = False
    hashed_by: str = ""
    seed: int = 0
    links: tuple[PreparedJoin, ...] = ()
    budget: int = 0
    contributions: int = 1

    def __post_init__(self) -> None:
        if type(self.rows) is not int or not 1 <= self.rows <= MAX_ROWS:
            raise UsageError(
                f"A table has 1 to {MAX_ROWS} rows.", code="number-out-of-range", operation="rows"
            )
        if not 1 <= len(self.columns) <= MAX_COLUMNS:
            raise UsageError(f"A table has 1 to {MAX_COLUMNS} columns.", code="too-many-columns")
        for name, column in self.columns.items():
            check_table_column_name(name)
            if column.type.fraction > MAX_COLUMN_FRACTION:
                raise UsageError(
                    f"A column has at most {MAX_COLUMN_FRACTION} fractional bits.",
                    code="too-many-bits",
                )
        if len({name.lower() for name in self.columns}) != len(self.columns):
            raise UsageError(
                "Expected column names that differ when case is ignored.", code="duplicate-name"
            )
        if type(self.padded) is not bool:
            raise UsageError("padded is true or false.", code="wrong-type", operation="padded")
        if type(self.open_count) is not bool:
            raise UsageError(
                "open_count is true or false.", code="wrong-type", operation="open_count"
            )
        for field_name, names in (("unique", self.unique), ("sorted_by", self.sorted_by.split())):
            for name in names:
                self.column(name, field_name)
        if self.unit:
            self.column(self.unit, "unit")
        self._check_links()
        if type(self.min_group) is not int or not 1 <= self.min_group <= MAX_GROUP:
            raise UsageError(
                f"min_group is 1 to {MAX_GROUP}.", code="number-out-of-range", operation="min_group"
            )
        check_client_names([client for client in self.rights])
        for rights in self.rights.values():
            for name, words in rights.items():
                if name != ALL:
                    self.column(name, "rights")
                for word in words:
                    if word not in RIGHTS:
                        raise UsageError(
                            f"A right is one of {', '.join(RIGHTS)}. Received: "
                            f"{str(word)[:40]!r}.{did_you_mean(str(word), RIGHTS)}",
                            code="unknown-right",
                            received=str(word)[:40],
                        )
        self._check_budget()

    def column(self, name: str, field_name: str = "table") -> TableColumn:
        """Return a column by its name.

        Raises:
            UsageError: the column does not exist.
        """
        if name not in self.columns:
            shown = str(name)[:80]
            raise UsageError(
                f"{field_name}: there is no column "
                f"{shown!r}.{did_you_mean(shown, self.columns)} Columns: "
                f"{', '.join(list(self.columns)[:20])}.",
                code="column-not-found",
                operation=field_name,
                received=shown,
            )
        return self.columns[name]

    def _check_links(self) -> None:
        if type(self.seed) is not int or not 0 <= self.seed < 1 << 62:
            raise UsageError("The seed of a table's hash bins has 62 bits.", code="invalid-header")
        if self.hashed_by:
            hashed_column = self.column(self.hashed_by, "hashed_by")
            if (
                self.hashed_by not in self.unique
                or hashed_column.nullable
                or hashed_column.type.kind == BOOL
            ):
                raise UsageError(
                    "hashed_by takes a unique column that is neither nullable nor bool.",
                    code="invalid-hash-column",
                )
            if not self.padded or self.sorted_by or self.rows % 3:
                raise UsageError(
                    "Rows in hash bins are padded, a multiple of 3, and not sorted.",
                    code="invalid-hash-column",
                )
        if len(self.links) > MAX_LINKS:
            raise UsageError(f"A table has at most {MAX_LINKS} links.", code="too-many-links")
        for link in self.links:
            if self.column(link.column, "link").type.kind == BOOL:
                raise UsageError(
                    "A link takes a column of another type than bool.", code="invalid-link"
                )

    def _check_budget(self) -> None:
        if type(self.budget) is not int or not 0 <= self.budget <= MOST:
            raise UsageError(
                "A privacy budget is 0 to 10^15 billionths of rho.", code="invalid-budget"
            )
        max_rows = self.contributions
        if type(max_rows) is not int or not 1 <= max_rows <= MAX_CONTRIBUTIONS:
            raise UsageError(
                f"contributions is 1 to {MAX_CONTRIBUTIONS} rows of a unit. Received: "
                f"{str(max_rows)[:40]}.",
                code="number-out-of-range",
                operation="contributions",
                received=str(max_rows)[:40],
            )
        if max_rows > 1 and not (self.budget and self.unit):
            raise UsageError(
                "contributions above 1 requires a budget and a unit.", code="missing-argument"
            )
        if not self.budget:
            return
        granted = {word for of in self.rights.values() for words in of.values() for word in words}
        if exact := sorted(granted & {OPEN, QUANTILE, TRAIN}):
            raise UsageError(
                "A table with a privacy budget releases values with noise only. Received: "
                f"the right {exact[0]!r}, which would release exact values; use group, "
                "aggregate, filter or match.",
                code="exact-right",
                received=exact[0],
            )
        if self.open_count:
            raise UsageError(
                "A table with a privacy budget releases values with noise only. Received: "
                "open_count, which would release an exact number.",
                code="exact-right",
                received="open_count",
            )
        if self.unit and self.columns[self.unit].nullable:
            raise UsageError(
                "In a table with a privacy budget every row belongs to a unit. Received: the "
                f"nullable unit column {self.unit!r}.",
                code="nullable-column",
                operation="unit",
            )

    def allows(self, client: str, owner: str, column: str) -> frozenset[str]:
        """Return a client's rights to a column; the owner has all rights."""
        if client == owner:
            return frozenset(RIGHTS)
        rights: set[str] = set()
        for who in (client, ALL):
            for name in (column, ALL):
                if name in self.rights.get(who, {}):
                    rights.update(self.rights[who][name])
                    break
        return frozenset(RIGHTS) if OPEN in rights else frozenset(rights)

    def to_header(self) -> dict[str, Any]:
        """Return the schema as public JSON."""
        return {
            "rows": self.rows,
            "columns": [c.to_header(name) for name, c in self.columns.items()],
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
            "links": [link.to_header() for link in self.links],
            **({name: getattr(self, name) for name in _OF_BUDGET} if self.budget else {}),
        }

    @classmethod
    def from_header(cls, header: object) -> TableSchema:
        """Parse a schema from untrusted JSON.

        Raises:
            UsageError: the header is invalid.
        """
        known = set(_FIELDS)
        if not isinstance(header, Mapping) or set(header) - set(_OF_BUDGET) != known:
            raise UsageError(
                f"A table's header has {', '.join(sorted(known))}.", code="invalid-header"
            )
        listed = header["columns"]
        if not isinstance(listed, list) or len(listed) > MAX_COLUMNS:
            raise UsageError(f"A table has 1 to {MAX_COLUMNS} columns.", code="too-many-columns")
        columns: dict[str, TableColumn] = {}
        for each in listed:
            name, column = TableColumn.from_header(each)
            if name in columns:
                raise UsageError(
                    "Expected column names that differ when case is ignored.", code="duplicate-name"
                )
            columns[name] = column
        unique, rights = header["unique"], header["rights"]
        if not _is_text_list(unique) or not isinstance(header["sorted_by"], str):
            raise UsageError(
                "unique is a list of columns, sorted_by a column.", code="invalid-header"
            )
        if not isinstance(header["unit"], str) or not isinstance(rights, Mapping):
            raise UsageError(
                "unit is a column, and rights are listed by client and column.",
                code="invalid-header",
            )
        if not isinstance(header["hashed_by"], str) or not isinstance(header["links"], list):
            raise UsageError("hashed_by is a column, and links is a list.", code="invalid-header")
        if not all(
            isinstance(of, Mapping) and all(_is_text_list(words) for words in of.values())
            for of in rights.values()
        ):
            raise UsageError("Rights are listed by client and column.", code="invalid-header")
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
            tuple(PreparedJoin.from_header(link) for link in header["links"]),
            header.get("budget", 0),
            header.get("contributions", 1),
        )


_FIELDS = (
    *("rows", "columns", "padded", "unique", "sorted_by", "rights", "min_group", "unit"),
    *("open_count", "hashed_by", "seed", "links"),
)
# (for tables that have a budget)
_OF_BUDGET = ("budget", "contributions")


def _is_text_list(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def check_table_column_name(name: object) -> None:
    """Reject an invalid name of a column.

    Raises:
        UsageError: the name is invalid.
    """
    if (
        not isinstance(name, str)
        or not 1 <= len(name) <= MAX_NAME
        or not _is_plain_column_name(name)
    ):
        shown = str(name)[:80]
        plain = re.sub(r"\W+", "_", shown).strip("_")[:MAX_NAME] or "c"
        raise UsageError(
            f"A column's name has 1 to {MAX_NAME} characters, begins with a letter or _, and "
            f"has neither {' '.join(sorted(_SEPARATORS))} nor blanks at its ends. Received: "
            f'{shown!r}. Give it another name (--rename "{shown}={plain}").',
            code="invalid-name",
            operation="column",
            received=shown,
        )


def _is_plain_column_name(name: str) -> bool:
    letter = name[0].isalpha() or name[0] == "_"
    return letter and name.isprintable() and name == name.strip() and not _SEPARATORS & set(name)


def parse_rights(
    written: Sequence[str], clients: Sequence[str]
) -> dict[str, dict[str, tuple[str, ...]]]:
    """Parse rights such as "income:aggregate,filter", or "income@bank:open" for one client.

    Args:
        clients: clients that may use the table; a right without a client is for all of them.

    Raises:
        UsageError: a right is invalid.
    """
    rights_by_client: dict[str, dict[str, tuple[str, ...]]] = {}
    if written and not clients:
        raise UsageError(
            f"The right {written[0][:80]!r} is for no client, as no other client may use the "
            "table. Name clients (--for CLIENT, in Python clients=[...]).",
            code="right-without-client",
            received=written[0][:80],
        )
    for text in written:
        target, colon, words = text.partition(":")
        column, at, client = target.partition("@")
        if not colon or not column.strip() or (at and not client.strip()):
            raise UsageError(
                'Expected a right such as "income:aggregate,filter", or '
                f'"income@bank:open" for one client. Received: {text[:80]!r}.',
                code="invalid-right",
                received=text[:80],
            )
        if at and client.strip() not in clients and ALL not in clients:
            raise UsageError(
                f"The right {text[:80]!r} is for a client that may not use the "
                f"table.{did_you_mean(client.strip(), clients)} Clients: "
                f"{', '.join(clients[:20])}.",
                code="unknown-client",
                received=text[:80],
            )
        listed = tuple(word.strip() for word in words.split(",") if word.strip())
        for who in [client.strip()] if at else clients:
            rights_by_client.setdefault(who, {})[column.strip()] = listed
    return rights_by_client
