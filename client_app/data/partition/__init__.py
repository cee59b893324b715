"""How one data set is divided among clients, one module per way."""

from client_app.data.partition.base import Rows, Shares
from client_app.data.partition.dirichlet import dirichlet_shares
from client_app.data.partition.natural import natural_shares
from client_app.data.partition.shards import single_class_shards

__all__ = ["Rows", "Shares", "dirichlet_shares", "natural_shares", "single_class_shards"]
