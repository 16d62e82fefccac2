"""The same jobs by every technology: one table of what private computing costs."""
