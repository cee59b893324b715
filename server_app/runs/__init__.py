"""Build, run and resume one job."""
