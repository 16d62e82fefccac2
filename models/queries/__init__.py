"""Private tables: what they are, queries on them, and who may learn what."""
