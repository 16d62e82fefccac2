"""The kinds of layers, one module each, discovered by models/layers/base/registry.py."""
