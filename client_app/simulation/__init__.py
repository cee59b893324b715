"""Simulate availability and latency from settings."""
