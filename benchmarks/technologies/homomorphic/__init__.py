"""Homomorphic encryption: a server computes on ciphertexts (BFV, BGV, CKKS in SEAL)."""
