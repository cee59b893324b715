"""Metrics of records."""
