"""Homomorphic encryption: one server computes on what it cannot read (BFV, BGV, CKKS in SEAL)."""
