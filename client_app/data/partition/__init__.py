"""Divide one data set among clients, with a module for each partition.

A partition takes the classes of all training and test rows, (n,) and (m,), or the numbers n and m
if it ignores classes; the number N of clients; and the run's seed. ``alpha`` > 0 is a Dirichlet
concentration, and ``samples_per_client`` the number of training rows of a client, None for an equal
part of all. A partition returns the ``ClientSplit`` of the clients by id, which have no row in
common. It raises ``SettingsError`` if there are too few rows for the clients.
"""

from client_app.data.partition.base import ClientSplit, Partition, Rows
from client_app.data.partition.dirichlet import partition_by_dirichlet
from client_app.data.partition.natural import partition_naturally
from client_app.data.partition.proportional import partition_proportionally
from client_app.data.partition.shards import partition_by_shards
from client_app.data.partition.size import partition_by_quantity, partition_iid

__all__ = [
    "ClientSplit",
    "Partition",
    "Rows",
    "partition_by_dirichlet",
    "partition_by_quantity",
    "partition_by_shards",
    "partition_iid",
    "partition_naturally",
    "partition_proportionally",
]
