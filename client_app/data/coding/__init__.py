"""Describe how rows become a model's inputs, in training and long after it."""
