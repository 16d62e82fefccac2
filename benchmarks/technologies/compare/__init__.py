"""The same jobs by every technology: one table of the costs of private computation."""
