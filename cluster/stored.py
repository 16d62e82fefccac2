"""What a worker may keep under a name: kinds, their public facts, and the values themselves.

A `Kind` is what a name stands for: a model, a data set, a checkpoint of a training.  The kinds
share a folder and a layout (store.py), not their names.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError

ANY = "*"
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}", re.ASCII)
# Characters of public facts as JSON.  A list of all that there is has to fit into one message.
MOST_ABOUT = 1 << 20
_CLIENT = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
_DEPLOYMENT = re.compile(r"[0-9a-f]{32}", re.ASCII)
_MOST_CLIENTS = 1000

Ring = np.ndarray[Any, np.dtype[np.int64]]
# Of a source: what a client sent itself, or was told.
INPUT = "input"
# Of one stored value.
MOST_SOURCES = 1 << 14


@dataclass(frozen=True, order=True)
class Source:
    """What a value derives from: an input of a client, or a part of something stored.

    Attributes:
        kind: INPUT, or the infix of a Kind.
        name, deployment: of what is stored; "" of an input.
        owner: the client whose data it is.
        part: a column of a table; "" of everything else.
        alias: by which a plan knows the table; "" outside of plans.
    """

    kind: str
    name: str
    deployment: str
    owner: str
    part: str = ""
    alias: str = ""

    def to_header(self) -> list[str]:
        """As JSON keeps it."""
        return [self.kind, self.name, self.deployment, self.owner, self.part]


Sources = frozenset[Source]


def input_source(client: str) -> Sources:
    """The source of what a client sent itself, or may know."""
    return frozenset([Source(INPUT, "", "", client)])


def check_sources(sources: Sources) -> Sources:
    """Refuses sources that cannot be kept.

    Raises:
        UsageError: there are none, or too many.
    """
    if not 1 <= len(sources) <= MOST_SOURCES:
        raise UsageError(
            f"A stored value derives from 1 to {MOST_SOURCES} sources. Received: {len(sources)}."
        )
    return sources


@dataclass(frozen=True)
class StoredKind:
    """What is kept under a name.

    Attributes:
        noun: in texts.
        infix: in its files' names.
        again: what to do about a file that cannot be used.
        listed: how a client sees what there is.
        others: who may use it.
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
    "Another client's is there once its owner has deployed it with --allow and this client's name.",
)
DATA = StoredKind(
    "data set",
    ".data",
    "Have its owner provide it again (python -m tfe_bench provide ... --replace).",
    "See `python -m tfe_bench provide --list`.",
    "Another client's is there once its owner has provided it with --for and this client's name.",
)
TABLE = StoredKind(
    "table",
    ".table",
    "Have its owner put it again (python -m tfe_bench table put ... --replace).",
    "See `python -m tfe_bench table list`.",
    "Another client's is there once its owner has put it with --for and this client's name.",
)
ARRAY = StoredKind(
    "private array",
    ".array",
    "Have its owner keep it again (y.keep(name, replace=True)).",
    "See cluster.arrays().",
    "Another client's is there once its owner has kept it for it (clients=[...]).",
)
# Two of each name: should the workers stop while they write one, they still share the other.
CHECKPOINTS = tuple(
    StoredKind(
        "checkpoint",
        f".checkpoint{i}",
        "Training starts anew with --restart.",
        "",
        "Only the client that ordered a training goes on with it.",
    )
    for i in range(2)
)
KINDS = {kind.infix: kind for kind in (MODEL, DATA, TABLE, ARRAY, *CHECKPOINTS)}


@dataclass(frozen=True, eq=False, repr=False)
class StoredTensor:
    """This party's fields of one shared value.

    Attributes:
        parts: int64 words by field: "m", "l1", "l2", those that its role holds.
        dealer: the party that deals for it.
        fractional_bits: its scale.
        limbs: words per element.
        shape: of a tensor of whose l1 and l2 there are seeds, two words each; None where the words
            are there.
    """

    parts: Mapping[str, Ring]
    dealer: int
    fractional_bits: int
    limbs: int = 1
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True, eq=False, repr=False)
class StoredFacts:
    """The public facts about what is kept under a name.

    Attributes:
        name: lower-case letters, digits, - and _, at most 63.
        owner: the client that deployed it.
        clients: who else may use it; "*" for every client of the cluster.
        deployment: the same word at all three workers, another for every deployment.
        about: JSON; for a model its layers.
        sources: what it derives from.  None are known of what an older version kept.
        digests: SHA-256 of all of a field, by field.  Only those who hold the field may see it.
    """

    name: str
    owner: str
    clients: tuple[str, ...]
    deployment: str
    about: Mapping[str, Any]
    digests: Mapping[str, str] = field(default_factory=dict)
    sources: Sources = frozenset()

    @classmethod
    def from_header(cls, header: Mapping[str, Any], lacks_sources: bool) -> StoredFacts:
        """From a file's header.

        Args:
            older: of a version that listed no sources (`_sources`).

        Raises:
            ValueError, TypeError, KeyError, AttributeError: it is malformed.
        """
        return cls(
            str(header["name"]),
            str(header["owner"]),
            tuple(str(c) for c in header["clients"]),
            str(header["deployment"]),
            dict(header["about"]),
            {str(k): str(v) for k, v in header["digests"].items()},
            _parse_sources(header, lacks_sources),
        )

    def is_permitted(self, client: str) -> bool:
        """Whether a client may use it."""
        return client == self.owner or client in self.clients or ANY in self.clients


def _parse_sources(header: Mapping[str, Any], lacks_sources: bool) -> Sources:
    """The sources that a file's header lists.

    Args:
        older: of a version that listed none.  What its kind says to be the owner's own is so
            still; of other things nobody can tell, and they are refused where it matters.

    Raises:
        ValueError, TypeError, KeyError: they are malformed.
    """
    if lacks_sources:
        is_derived = header.get("kind", "") not in (MODEL.infix, DATA.infix, TABLE.infix)
        is_derived |= "made_of" in header["about"]
        return frozenset() if is_derived else input_source(str(header["owner"]))
    rows = header["sources"]
    if not isinstance(rows, list) or len(rows) > MOST_SOURCES:
        raise ValueError("no list of sources")
    for row in rows:
        if len(row) != 5 or not all(isinstance(text, str) for text in row):
            raise ValueError("a source of another kind")
    return frozenset(Source(*row) for row in rows)


def check_name(name: object, subject: str = "A deployed model's name") -> str:
    """A name that may become a file's.

    Raises:
        UsageError: it may not.
    """
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise UsageError(
            f"{subject} is 1 to 63 lower-case letters, digits, - and _, a letter or "
            f"digit first. Received: {json.dumps(str(name)[:80])}."
        )
    return name


def check_about(about: Mapping[str, Any]) -> None:
    """Refuses public facts that are too long to be kept and listed, before anything is written.

    Raises:
        UsageError: they are longer than MOST_ABOUT.
    """
    if (size := len(json.dumps(about))) > MOST_ABOUT:
        raise UsageError(
            f"The public facts of what is kept have at most {MOST_ABOUT} characters. Received: "
            f"{size}. Use shorter names of columns, or fewer columns."
        )


def check_clients(clients: object) -> None:
    """Refuses what are no names of clients.

    Raises:
        UsageError: naming the first one.
    """
    if not isinstance(clients, (list, tuple)) or len(clients) > _MOST_CLIENTS:
        raise UsageError(f"clients is a list of at most {_MOST_CLIENTS} names.")
    for name in clients:
        if not isinstance(name, str) or not (name == ANY or _CLIENT.fullmatch(name)):
            raise UsageError(
                'A client is named as in cluster.toml, or "*" for all of them. Received: '
                f"{str(name)[:80]!r}."
            )


def check_deployment(word: object) -> None:
    """Refuses what is no number of a deployment.

    Raises:
        UsageError: it is none.
    """
    if not isinstance(word, str) or not _DEPLOYMENT.fullmatch(word):
        raise UsageError("A deployment is 32 hexadecimal digits.")


# Of the two masks' seeds, in words.
SEED_WORDS = (2,)


def parse_tensor_row(row: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """What a file's header says of a value besides its words.

    Args:
        shapes: of its fields.

    Raises:
        ValueError, KeyError: it is of another kind.
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
            or not _is_shape(shape)
            or shapes != {k: expected_shapes[k] for k in shapes}
        ):
            raise ValueError("seeds of another shape")
        values["shape"] = shape
    return values


def lies_within(shape: Sequence[int], begin: int, end: int, size: int) -> bool:
    """Whether words of a shape lie there, in so many bytes."""
    if not _is_shape((*shape, begin, end)):
        return False
    return end - begin == 8 * math.prod(shape) and end <= size


def _is_shape(sizes: Sequence[int]) -> bool:
    return all(type(n) is int and n >= 0 for n in sizes)
