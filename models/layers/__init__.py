"""The kinds of layers: a module for each, found by being here (models/kinds/registry.py)."""
