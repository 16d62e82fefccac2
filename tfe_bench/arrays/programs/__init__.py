"""Programs of private arrays, one per module."""
