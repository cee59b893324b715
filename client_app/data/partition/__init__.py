"""Divide one data set among clients, with a module for each partition.

A partition takes the classes of all training and test rows, (n,) and (m,), or the numbers n and m
if it ignores classes; the number N of clients; and the run's seed. ``alpha`` > 0 is a Dirichlet
concentration, and ``samples_per_client`` the number of training rows of a client, None for as many
as there are for all. A partition returns the ``Shares`` of the clients by id, which have no row in
common. It raises ``SettingsError`` if there are fewer rows than the clients need.
"""

from client_app.data.partition.base import Division, Rows, Shares
from client_app.data.partition.dirichlet import dirichlet_shares
from client_app.data.partition.natural import natural_shares
from client_app.data.partition.proportional import proportional_shares
from client_app.data.partition.shards import single_class_shards
from client_app.data.partition.size import iid_shares, quantity_shares

__all__ = [
    "Division",
    "Rows",
    "Shares",
    "dirichlet_shares",
    "iid_shares",
    "natural_shares",
    "proportional_shares",
    "quantity_shares",
    "single_class_shards",
]
