"""Evaluate a model on the clients of a node."""
