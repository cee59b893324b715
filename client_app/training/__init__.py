"""Train clients, one after the other or batched."""
