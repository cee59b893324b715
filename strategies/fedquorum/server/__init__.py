"""The server's arithmetic and state."""
