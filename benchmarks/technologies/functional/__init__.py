"""Functional encryption: a server learns inner products of inputs that it cannot decrypt."""
