"""Named values that a worker stores: their kinds, their public facts, and the values themselves.

A `StoredKind` is the type of a name: a model, a data set, a checkpoint of a training.  The kinds
share a folder and a layout (store.py), but not their names.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfe_bench.cluster.schema import (
    Header,
    Rule,
    declare_field,
    label_rule,
    list_field,
    list_rule,
    mapping_rule,
    parsed_field,
)
from tfe_bench.errors import UsageError

ANY = "*"
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}", re.ASCII)
# Characters of public facts as JSON.  A list of all names has to fit into one message.
MOST_ABOUT = 1 << 20
_CLIENT = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
_DEPLOYMENT = re.compile(r"[0-9a-f]{32}", re.ASCII)
_MOST_CLIENTS = 1000

Ring = np.ndarray[Any, np.dtype[np.int64]]
# Kind of a source: data that a client sent itself, or may know.
INPUT = "input"
# Fractional bits of the labels of data sets; features have those of the cluster.
LABEL_BITS = 20
# Sources of one stored value.
MOST_SOURCES = 1 << 14


@dataclass(frozen=True, order=True)
class Source:
    """An origin of a value: an input of a client, or a part of a stored value.

    Attributes:
        kind: INPUT, or the infix of a StoredKind.
        name, deployment: of the stored value; "" for an input.
        owner: the client that owns the data.
        part: a column of a table; "" otherwise.
        alias: the table's name in a plan; "" outside of plans.
    """

    kind: str
    name: str
    deployment: str
    owner: str
    part: str = ""
    alias: str = ""

    def to_header(self) -> list[str]:
        """Return the fields that JSON stores."""
        return [self.kind, self.name, self.deployment, self.owner, self.part]


Sources = frozenset[Source]


def client_input_source(client: str) -> Sources:
    """Return the source of data that a client sent itself, or may know."""
    return frozenset([Source(INPUT, "", "", client)])


def check_stored_sources(sources: Sources) -> Sources:
    """Reject sources that cannot be stored.

    Raises:
        UsageError: their number is 0, or too large.
    """
    if not 1 <= len(sources) <= MOST_SOURCES:
        raise UsageError(
            f"A stored value derives from 1 to {MOST_SOURCES} sources. Received: {len(sources)}.",
            code="too-large",
            operation="sources",
            received=len(sources),
            expected=f"1 to {MOST_SOURCES}",
        )
    return sources


@dataclass(frozen=True)
class StoredKind:
    """A kind of stored values.

    Attributes:
        noun: in texts.
        infix: in the names of its files.
        remedy: advice for a file that is not usable.
        list_hint: how a client lists the values of this kind.
        access_hint: which clients may use a value.
    """

    noun: str
    infix: str
    remedy: str
    list_hint: str
    access_hint: str


MODEL = StoredKind(
    "model",
    "",
    "Have its owner deploy it again (python -m tfe_bench deploy ... --replace).",
    "See `python -m tfe_bench models`.",
    "Another client's is available after its owner has deployed it with --allow and this "
    "client's name.",
)
DATA = StoredKind(
    "data set",
    ".data",
    "Have its owner provide it again (python -m tfe_bench provide ... --replace).",
    "See `python -m tfe_bench provide --list`.",
    "Another client's is available after its owner has provided it with --for and this client's "
    "name.",
)
TABLE = StoredKind(
    "table",
    ".table",
    "Have its owner put it again (python -m tfe_bench table put ... --replace).",
    "See `python -m tfe_bench table list`.",
    "Another client's is available after its owner has put it with --for and this client's name.",
)
ARRAY = StoredKind(
    "private array",
    ".array",
    "Have its owner keep it again (y.keep(name, replace=True)).",
    "See cluster.arrays().",
    "Another client's is available after its owner has kept it for it (clients=[...]).",
)
# Two of each name: if the workers stop during the write of one, all of them still have the other.
CHECKPOINTS = tuple(
    StoredKind(
        "checkpoint",
        f".checkpoint{i}",
        "Training starts again with --restart.",
        "",
        "Only the client that started a training can continue it.",
    )
    for i in range(2)
)
KINDS = {kind.infix: kind for kind in (MODEL, DATA, TABLE, ARRAY, *CHECKPOINTS)}


@dataclass(frozen=True, eq=False, repr=False)
class StoredTensor:
    """This party's fields of one shared value.

    Attributes:
        parts: int64 words by field: those of "m", "l1", "l2" that its role holds.
        dealer: the dealer of the value.
        fractional_bits: its scale.
        limbs: words per element.
        shape: of a tensor with seeds of two words each in place of l1 and l2; None with the words.
    """

    parts: Mapping[str, Ring]
    dealer: int
    fractional_bits: int
    limbs: int = 1
    shape: tuple[int, ...] | None = None


_TEXT = label_rule(MOST_ABOUT)
_SOURCES = list_rule(
    Rule(lambda row: Source(*list_rule(_TEXT, 5, 5).read(row)), Source.to_header), 0, MOST_SOURCES
)


@dataclass(frozen=True, eq=False, repr=False)
class StoredFacts(Header, subject="The facts of a stored value", is_complete=True):
    """The public facts about a stored name.

    Attributes:
        name: lower-case letters, digits, - and _, at most 63.
        owner: the client that deployed it.
        clients: other clients that may use it; "*" for every client of the cluster.
        deployment: the same word at all three workers, a new one for every deployment.
        about: JSON; for a model its layers.
        sources: the value's origins.  Empty if an older version stored the value without them.
        digests: SHA-256 of each field's words.  Only holders of the field may see it.
    """

    name: str = declare_field(_TEXT)
    owner: str = declare_field(_TEXT)
    clients: tuple[str, ...] = list_field(_TEXT, 0, _MOST_CLIENTS)
    deployment: str = declare_field(_TEXT)
    about: Mapping[str, Any] = declare_field(mapping_rule(Rule(lambda value: value), MOST_ABOUT))
    sources: Sources = parsed_field(
        lambda rows: frozenset(_SOURCES.read(rows)),
        lambda sources: _SOURCES.write(sorted(sources)),
        default=frozenset(),
    )
    digests: Mapping[str, str] = declare_field(mapping_rule(_TEXT, 1 << 4), factory=dict)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], lacks_sources: bool) -> StoredFacts:
        """Read the facts among the metadata of a file.

        Args:
            lacks_sources: whether the version of the file has no sources.  Values that belong to
                the owner by their kind still do; the sources of others are unknown, and such
                values are rejected where sources matter.

        Raises:
            UsageError, KeyError: they are malformed.
        """
        header = {name: metadata[name] for name in cls.field_names() if name in metadata}
        if lacks_sources:
            is_derived = metadata.get("kind", "") not in (MODEL.infix, DATA.infix, TABLE.infix)
            is_derived |= "made_of" in metadata["about"]
            sources = frozenset() if is_derived else client_input_source(metadata["owner"])
            header["sources"] = _SOURCES.write(sources)
        return cls.from_header(header)

    def is_permitted(self, client: str) -> bool:
        """Return whether a client may use the value."""
        return client == self.owner or client in self.clients or ANY in self.clients

    def describe_right(self, client: str) -> str:
        """Return why a client may use the value: as its owner, by name, or as any client."""
        if client == self.owner:
            return "owner"
        return "by name" if client in self.clients else "all clients"


def check_name(name: object, subject: str = "A deployed model's name") -> str:
    """Return a name that may become a file's.

    Raises:
        UsageError: the name is malformed.
    """
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise UsageError(
            f"{subject} is 1 to 63 lower-case letters, digits, - and _, a letter or "
            f"digit first. Received: {json.dumps(str(name)[:80])}.",
            code="invalid-name",
            operation=subject,
            received=str(name)[:80],
        )
    return name


def check_public_facts(about: Mapping[str, Any]) -> None:
    """Reject public facts that are too long to be stored and listed, before any write.

    Raises:
        UsageError: they are longer than MOST_ABOUT.
    """
    if (size := len(json.dumps(about))) > MOST_ABOUT:
        raise UsageError(
            f"The public facts of a stored value have at most {MOST_ABOUT} characters. Received: "
            f"{size}. Use shorter names of columns, or fewer columns.",
            code="too-large",
            operation="about",
            received=size,
            expected=MOST_ABOUT,
        )


def check_client_names(clients: object) -> None:
    """Reject values that are no names of clients.

    Raises:
        UsageError: naming the first one.
    """
    if not isinstance(clients, (list, tuple)) or len(clients) > _MOST_CLIENTS:
        raise UsageError(
            f"clients is a list of at most {_MOST_CLIENTS} names.",
            code="too-large",
            operation="clients",
            expected=_MOST_CLIENTS,
        )
    for name in clients:
        if not isinstance(name, str) or not (name == ANY or _CLIENT.fullmatch(name)):
            raise UsageError(
                'A client is named as in cluster.toml, or "*" for all of them. Received: '
                f"{str(name)[:80]!r}.",
                code="invalid-name",
                operation="clients",
                received=str(name)[:80],
            )


def check_deployment_identifier(word: object) -> str:
    """Return an identifier of a deployment.

    Raises:
        UsageError: it has another form.
    """
    if not isinstance(word, str) or not _DEPLOYMENT.fullmatch(word):
        raise UsageError(
            "A deployment is 32 hexadecimal digits.", code="invalid-name", operation="deployment"
        )
    return word


# Shape of the seed of a mask, in words.
SEED_WORDS = (2,)


def parse_stored_tensor_row(
    row: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]
) -> dict[str, Any]:
    """Parse the description of a value in a file's header.

    Args:
        shapes: of its fields.

    Raises:
        ValueError, KeyError: it is malformed.
    """
    values: dict[str, Any] = {key: row[key] for key in ("dealer", "fractional_bits", "limbs")}
    fits = all(type(v) is int for v in values.values())
    if not fits or values["dealer"] not in (0, 1, 2) or values["limbs"] not in (1, 2):
        raise ValueError("a value of another kind")
    if "shape" in row:
        shape = tuple(row["shape"])
        expected_shapes = {"m": shape, "l1": SEED_WORDS, "l2": SEED_WORDS}
        if (
            values["limbs"] != 1
            or not _is_stored_shape(shape)
            or shapes != {k: expected_shapes[k] for k in shapes}
        ):
            raise ValueError("seeds of another shape")
        values["shape"] = shape
    return values


def lies_within_stored_file(shape: Sequence[int], begin: int, end: int, size: int) -> bool:
    """Return whether words of a shape are at this place within `size` bytes."""
    if not _is_stored_shape((*shape, begin, end)):
        return False
    return end - begin == 8 * math.prod(shape) and end <= size


def _is_stored_shape(sizes: Sequence[int]) -> bool:
    return all(type(n) is int and n >= 0 for n in sizes)


def merge_listings(listings: Sequence[Mapping[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Merge the three workers' rows of stored values by name; Client.stored documents the result.

    Args:
        listings: rows of each worker, by name.
    """

    def list_numbers(entries: Sequence[Mapping[str, Any]], key: str) -> list[int]:
        return [row[key] for row in entries if type(row.get(key)) is int]

    rows = []
    for name in sorted(set().union(*listings)):
        entries = [listing.get(name, {}) for listing in listings]
        first = next(row for row in entries if row)
        merged = {
            "complete": all(row.get("deployment") == first["deployment"] for row in entries),
            "spent": max(list_numbers(entries, "spent"), default=0),
            "ready": min(list_numbers(entries, "ready"), default=0),
        }
        rows.append({**first, **merged})
    return rows
