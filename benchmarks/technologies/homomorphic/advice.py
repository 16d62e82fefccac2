"""Choice of scheme and degree for a job, from measured costs of its operations."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

from tfe_bench.benchmarks.technologies.homomorphic.operations import DEPTH
from tfe_bench.benchmarks.technologies.measurement import Measurement
from tfe_bench.errors import UsageError, check_known, check_range

_NEEDED: Final = frozenset(
    ("multiply_ct_ct", "relinearize", "multiply_plain", "add_ct_ct", "rotate_rows_1", DEPTH)
)
_MOST: Final = 10**9
_REAL_BITS: Final = 8  # bits that represent a real number
_WORD: Final = re.compile(r"([a-z]+)=([0-9]{1,9})", re.ASCII)


@dataclass(frozen=True)
class CiphertextWork:
    """Number of operations of a job on ciphertexts.

    Args:
        exact: integers without any error; otherwise reals with a small error.
        add, plain, multiply, rotate: numbers of sums, products with plaintexts, products of
            ciphertexts, and rotations by one.
        depth: consecutive products.
    """

    exact: bool = False
    add: int = 0
    plain: int = 0
    multiply: int = 0
    rotate: int = 0
    depth: int = 1

    @classmethod
    def parse_work(cls, text: str) -> CiphertextWork:
        """Parse words such as "exact,plain=128,rotate=16,depth=2", or a name of `USUAL`.

        Raises:
            UsageError: a word is unknown, a number is beyond 10^9, or no operation is given.
        """
        if text in USUAL:
            return USUAL[text]
        numbers, exact = {}, False
        names = [f.name for f in fields(cls) if f.name != "exact"]
        for word in text.split(","):
            if word in ("exact", "approximate"):
                exact = word == "exact"
            elif match := _WORD.fullmatch(word):
                check_known("kind of operation", match[1], names)
                numbers[match[1]] = int(match[2])
            else:
                raise UsageError(
                    f"A job is {', '.join(USUAL)}, or words like "
                    "exact,add=100,plain=128,multiply=10,rotate=16,depth=2. Received: "
                    f"{text[:60]!r}.",
                    code="invalid-work",
                    received=text[:60],
                )
        work = cls(exact, **numbers)
        if not (work.add or work.plain or work.multiply or work.rotate):
            raise UsageError(
                "A job has one operation or more. Received: none.",
                code="empty-work",
            )
        check_range("depth", work.depth, 1 if work.plain or work.multiply else 0, _MOST)
        return work


USUAL: Final[Mapping[str, CiphertextWork]] = {
    "sums": CiphertextWork(exact=True, add=1000, depth=0),
    "inner-product": CiphertextWork(plain=1, rotate=10, add=10),
    "dense": CiphertextWork(plain=32, rotate=15, add=36),
    "exact-dense": CiphertextWork(exact=True, plain=32, rotate=15, add=36),
    "products": CiphertextWork(exact=True, multiply=100, add=100, depth=1),
    "polynomial": CiphertextWork(plain=4, multiply=4, add=8, depth=3),
    "network": CiphertextWork(plain=169, multiply=2, rotate=33, add=180, depth=5),
}


@dataclass(frozen=True)
class SchemeChoice:
    """A scheme at a degree for a job.

    Attributes:
        seconds: time of the job, None if the scheme cannot do it.
        slots: parallel results in that time.
        reason: the reason why the scheme cannot do it, or "".
        bits: bits of integers that do not overflow, None for CKKS.
    """

    scheme: str
    degree: int
    seconds: float | None
    slots: int
    reason: str
    bits: int | None = None


def list_scheme_choices(
    work: CiphertextWork, measured: Iterable[Measurement]
) -> list[SchemeChoice]:
    """List every measured scheme and degree: the fastest first, unsuitable ones last."""
    groups: dict[tuple[str, int], dict[str, Measurement]] = {}
    for measurement in measured:
        parameters = measurement.parameters
        if measurement.technology == "homomorphic" and "scheme" in parameters:
            key = (str(parameters["scheme"]), int(parameters["degree"]))
            groups.setdefault(key, {})[measurement.job] = measurement
    choices = [
        _build_choice(work, *key, rows) for key, rows in groups.items() if set(rows) >= _NEEDED
    ]
    return sorted(choices, key=lambda c: (c.seconds is None, c.seconds or 0, c.scheme, c.degree))


def _build_choice(
    work: CiphertextWork, scheme: str, degree: int, rows: Mapping[str, Measurement]
) -> SchemeChoice:
    slots = degree // 2 if scheme == "CKKS" else degree
    depth = int(rows[DEPTH].figures["depth"])
    if work.exact and scheme == "CKKS":
        return SchemeChoice(scheme, degree, None, slots, "its results have an error")
    bits = None
    if scheme != "CKKS":
        # sums grow with their number; each consecutive product doubles the bits
        modulus = int(rows[DEPTH].parameters["plaintext_modulus_bits"]) - 1
        bits = int((modulus - math.log2(1 + work.add)) / 2 ** min(work.depth, 10))
        if bits < (1 if work.exact else _REAL_BITS):
            reason = f"its integers hold {max(0, bits)}-bit values before such products"
            return SchemeChoice(scheme, degree, None, slots, reason, bits)
    if work.depth > depth:
        reason = f"a depth of {depth} came out right, and {work.depth} is due"
        return SchemeChoice(scheme, degree, None, slots, reason)

    def median(job: str) -> float:
        seconds = rows[job].seconds
        assert seconds is not None
        return seconds.median

    product = median("multiply_ct_ct") + median("relinearize")
    plain = median("multiply_plain")
    if "rescale" in rows:
        product += median("rescale")
        # sums of products are rescaled once
        plain += median("rescale") / max(1, work.plain) * min(work.plain, work.depth)
    seconds = work.add * median("add_ct_ct") + work.plain * plain
    seconds += work.multiply * product + work.rotate * median("rotate_rows_1")
    return SchemeChoice(scheme, degree, seconds, slots, "", bits)


def write_advice(work: CiphertextWork, measured: Sequence[Measurement]) -> list[str]:
    """Write the advice in sentences."""
    from tfe_bench.benchmarks.table import human_seconds

    choices = list_scheme_choices(work, measured)
    able = [c for c in choices if c.seconds is not None]
    if not able:
        lines = ["None of what was measured can do it."]
    else:
        best = able[0]
        wide = min(able, key=lambda c: (c.seconds or 0) / c.slots)
        assert best.seconds is not None and wide.seconds is not None
        lines = [
            f"Take {best.scheme} at N = {best.degree:,}: {human_seconds(best.seconds)} for "
            f"{best.slots:,} results side by side"
            + ("." if best.bits is None else f", of values of up to {best.bits} bits.")
        ]
        if wide != best:
            lines.append(
                f"With many inputs {wide.scheme} at N = {wide.degree:,}: "
                f"{human_seconds(wide.seconds)} for {wide.slots:,}, the least for each."
            )
        others = {c.scheme: c for c in reversed(able) if c.scheme != best.scheme}
        for other in others.values():
            assert other.seconds is not None
            lines.append(
                f"{other.scheme} at N = {other.degree:,} takes {other.seconds / best.seconds:.2g} "
                "times as long."
            )
    lines += [f"Not {c.scheme} at N = {c.degree:,}: {c.reason}." for c in choices if c.reason]
    return lines
