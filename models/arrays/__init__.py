"""Private arrays at a client's hands: expressions that are data, which workers check and price."""

from tfe_bench.models.arrays import loops as _loops  # offers foldl

__all__: list[str] = []
assert _loops
