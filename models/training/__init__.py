"""Private training: a recipe that is public, a state that is shared, and one step of the two."""
