"""Private arrays at a client: expressions as data, which workers check and price."""
