"""Programs of predictions, one per module."""
