"""Functional encryption: a server that learns inner products of what it cannot read."""
