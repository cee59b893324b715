"""The server's side: the run loop, what a run leaves behind, and the command line."""
