"""Run the client's side, where the data is."""

from client_app.import_path import use_bundled_packages

use_bundled_packages()
