"""Private training: a public recipe, a shared state, and one step."""
