"""Run the jobs of a sweep."""
