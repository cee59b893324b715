"""What each client got, before any training: the command ``fedquorum data``."""
