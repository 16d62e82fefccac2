"""The optimizers: a module for each, found by being here (models/training/registry.py)."""
