"""Private arrays at a client: expressions as data, which workers check and price."""

from tfe_bench.arrays import loops as _loops

__all__: list[str] = []
assert _loops
