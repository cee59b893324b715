"""Divide one data set among clients, with a module for each partition."""

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
