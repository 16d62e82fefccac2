"""The base class of layer kinds and its building blocks; the kinds are in models/layers."""
