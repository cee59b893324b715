"""The experiment book: docs/results.md, written from the results of runs."""
