"""The server's side: the run loop, what a run leaves behind, and the command line."""

import sys
from pathlib import Path

# The next import must find the client_app beside this package.
sys.path.insert(0, str(Path(__file__).absolute().parent.parent))
from client_app.import_path import use_packages_beside_this_one

sys.path.pop(0)
use_packages_beside_this_one()
