"""Commands of the other technologies."""
