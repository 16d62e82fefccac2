"""The program "array_remove": the workers remove a private array that its owner stored."""

from tfe_bench.cluster import stored_shares
from tfe_bench.cluster.stored import ARRAY

PROGRAM = stored_shares.removing_program(
    "array_remove", ARRAY, "An array's name", "removes a kept private array"
)
