"""Rows of WIDTHS (test_widths.py): elementary functions, scans, counts, words, remainders."""

from __future__ import annotations

import math

import numpy as np

import tfe_bench as tfe
from tests.protocols.operands import (
    ONE,
    F,
    close_to,
    dividends,
    erf_edges,
    images,
    largest,
    line,
    points,
    rows,
    ulp,
    values,
)
from tests.protocols.width_row import Row

MOST_INT = 2**63 - 1

NUMBERS: dict[str, Row] = {
    **{
        f"elementary.erf, {f} fractional bits": Row(
            2,
            62,
            erf_edges(f),
            lambda p, b, x: tfe.erf(x, b),
            lambda b, x, f=f: np.vectorize(math.erf)(x * 2.0**-f) * 2.0**f,
            ulp(3),
            (2, F + 3, F + 4, 62) if f == F else (f + 4,),
            f,
            (1, 63),
        )
        for f in (8, F)
    },
    "elementary.atan2": Row(
        2,
        31,
        points,
        lambda p, b, y, x: tfe.atan2(y, x, b),
        lambda b, y, x: np.arctan2(y, x) * ONE,
        ulp(4),
        refused=(1, 32),
    ),
    "scans.cummax": Row(
        2,
        64,
        rows(5),
        lambda p, b, x: tfe.cummax(x, 1, bits=b),
        lambda b, x: np.maximum.accumulate(x, 1),
    ),
    "pooling.max_pool_with_argmax": Row(
        2,
        64,
        rows(4),
        lambda p, b, x: line(tfe.max_pool_with_argmax(images(x), 2, bits=b)[0]),
        largest,
    ),
    "pooling.adaptive_max_pool2d": Row(
        2, 64, rows(4), lambda p, b, x: line(tfe.adaptive_max_pool2d(images(x), 1, b)), largest
    ),
    "indexing.one_hot": Row(
        2,
        64,
        values,
        lambda p, b, x: tfe.one_hot(x, 3, bits=b),
        lambda b, x: (x[:, None] == np.arange(3)).astype(np.int64),
        fraction=0,
    ),
    "indexing.gather": Row(
        2,
        64,
        values,
        lambda p, b, x: tfe.gather(x[:3], x, bits=b),
        lambda b, x: np.where((x >= 0) & (x < 3), x[np.clip(x, 0, 2)], 0),
        fraction=0,
    ),
    "statistics.bincount": Row(
        3,
        64,
        close_to(0, 1, 2),
        lambda p, b, x: tfe.bincount(x, maxlength=2, bits=b),
        lambda b, x: np.array([(x == 0).sum(), (x == 1).sum()]),
        fraction=0,
    ),
    "statistics.histogram_fixed_width": Row(
        3,
        64,
        close_to(-2, 0, 2),
        lambda p, b, x: tfe.histogram_fixed_width(x, [-4 / ONE, 4 / ONE], 4, bits=b),
        lambda b, x: np.histogram(x, [-MOST_INT, -2, 0, 2, MOST_INT])[0],
    ),
    "bitwise.popcount": Row(
        2,
        64,
        values,
        lambda p, b, x: tfe.popcount(x, b),
        lambda b, x: np.array([(int(v) % (1 << b)).bit_count() for v in x]),
        some=(2, 9),
        fraction=0,
    ),
    **{
        f"rounding.{name}, by {what}": Row(
            2,
            most,
            inputs,
            lambda p, b, *xs, g=g: g(xs[0], xs[-1] if len(xs) > 1 else 3, bits=b),
            lambda b, *xs, h=h: h(xs[0], xs[-1] if len(xs) > 1 else 3),
            fraction=0,
            refused=(1, most + 1),
        )
        for name, g, h in (
            ("floordiv", tfe.floordiv, np.floor_divide),
            ("floormod", tfe.floormod, np.mod),
        )
        for what, most, inputs in (("3", 31, values), ("a private one", 60, dividends))
    },
}
