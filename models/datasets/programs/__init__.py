"""Programs of data sets, one per module."""
