"""Everything that knows Flower: the strategy, the codec, replies, the directory of nodes."""
