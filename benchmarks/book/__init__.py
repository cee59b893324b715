"""The experiment book: docs/results.md, written from what runs measured."""
