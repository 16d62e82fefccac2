"""Private models: nothing is here yet (see CHANGELOG.md)."""
