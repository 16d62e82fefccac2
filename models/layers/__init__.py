"""The kinds of layers, one module each, discovered by models/kinds/registry.py."""
