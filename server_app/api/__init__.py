"""Runs and sweeps from Python; ``fedquorum_app`` is the face of it."""
