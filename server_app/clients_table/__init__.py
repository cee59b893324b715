"""Show each client's data before any training: the command ``fedquorum data``."""
