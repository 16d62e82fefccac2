"""The catalogue of private operations: what each is, on what, and how right it must be.

catalogue.py says what an entry is, checking.py makes inputs and judges results; the entries are
in one module for each family.  The client and the workers share it, and only an entry's `run`
touches TensorFlow, so that a client needs none.
"""

from tfe_bench.benchmarks.operations import comparisons, functions, numbers, products
from tfe_bench.benchmarks.operations.catalogue import (
    OPERATIONS,
    Operation,
    find_operation,
    listed_operations,
)
from tfe_bench.benchmarks.operations.checking import (
    EncodedInputs,
    Verdict,
    encode_inputs,
    generate_inputs,
    judge_result,
    settle_options,
)

__all__ = [
    "OPERATIONS",
    "EncodedInputs",
    "Operation",
    "Verdict",
    "comparisons",
    "encode_inputs",
    "find_operation",
    "functions",
    "generate_inputs",
    "judge_result",
    "listed_operations",
    "numbers",
    "products",
    "settle_options",
]
