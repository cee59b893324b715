"""A page and Prometheus metrics that follow a run while it goes on."""
