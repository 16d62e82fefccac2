"""What users have workers compute, one program a module; pyproject.toml registers them."""
