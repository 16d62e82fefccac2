"""Private tables: their schemas, queries on them, and rights to them."""
