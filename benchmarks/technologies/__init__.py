"""Other technologies for computing on private data, for comparison with three-party computation."""
