"""The program "array_remove": the workers remove a private array that its owner stored."""

from tfe_bench.cluster.stored import ARRAY
from tfe_bench.models import stored_shares

PROGRAM = stored_shares.removing_program(
    "array_remove", ARRAY, "An array's name", "removes a kept private array"
)
