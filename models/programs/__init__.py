"""Programs that users submit, one per module; pyproject.toml registers them."""
