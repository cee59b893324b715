"""Run the client's side, where the data is."""

from client_app.import_path import use_packages_beside_this_one

use_packages_beside_this_one()
