"""What a kind of layer is, and what kinds are written in; the kinds are in models/layers."""
