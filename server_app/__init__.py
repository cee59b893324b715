"""The server's side: the run loop, what a run leaves behind, and the command line."""

import sys
from pathlib import Path

# The next import must find the client_app beside this package. The package comes before its module:
# Flower loads both apps in two threads, and Python locks a module before the package it is in.
sys.path.insert(0, str(Path(__file__).absolute().parent.parent))
from client_app import import_path

sys.path.pop(0)
import_path.use_bundled_packages()
