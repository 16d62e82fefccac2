"""The catalogue of private operations: what each is, on what, and how right it must be.

catalogue.py says what an entry is, checking.py makes inputs and judges results; the entries are
in one module for each family.  The client and the workers share it, and only an entry's `run`
touches TensorFlow, so that a client needs none.
"""

from tfe_bench.benchmarks.operations import comparisons, functions, numbers, products
from tfe_bench.benchmarks.operations.catalogue import OPERATIONS, Operation, find, in_table
from tfe_bench.benchmarks.operations.checking import (
    Private,
    Verdict,
    encode,
    generate,
    judge,
    settle,
)

__all__ = [
    "OPERATIONS",
    "Operation",
    "Private",
    "Verdict",
    "comparisons",
    "encode",
    "find",
    "functions",
    "generate",
    "in_table",
    "judge",
    "numbers",
    "products",
    "settle",
]
