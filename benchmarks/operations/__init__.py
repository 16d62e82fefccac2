"""The catalogue of private operations: their inputs, references and tolerances.

catalogue.py defines an entry, checking.py makes inputs and judges results; each family of
entries has a module.  The client and the workers share it, and only an entry's `run`
uses TensorFlow, so that a client needs none.
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
