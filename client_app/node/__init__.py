"""Run the clients of a node."""
