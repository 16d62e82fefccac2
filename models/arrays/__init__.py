"""Private arrays at a client: expressions as data, which workers check and price."""

from tfe_bench.models.arrays import loops as _loops  # registers foldl

__all__: list[str] = []
assert _loops
