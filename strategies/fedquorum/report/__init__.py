"""Figures and tables from run records."""
