"""Federated data sets: every client's own training and test part."""

from client_app.data.base import ClientData, FederatedData
from client_app.data.load import load_data

__all__ = ["ClientData", "FederatedData", "load_data"]
