"""Private arrays at a client's hands: expressions that are data, which workers check and price."""
