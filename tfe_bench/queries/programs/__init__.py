"""Programs of private tables, one per module."""
