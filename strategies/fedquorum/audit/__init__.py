"""Check whether the decisions of a run follow from its records."""
