"""A low-rank adapter of a larger model, trained by clients and sent alone."""
