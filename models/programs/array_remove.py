"""The program "array_remove": the workers forget a private array that its owner had them keep."""

from tfe_bench.cluster.stored import ARRAY
from tfe_bench.models import kept

PROGRAM = kept.removing("array_remove", ARRAY, "An array's name", "removes a kept private array")
