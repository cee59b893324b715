"""Federated data sets: a training and a test split for every client."""

from client_app.data.base import ClientData, FederatedData
from client_app.data.load import load_data

__all__ = ["ClientData", "FederatedData", "load_data"]
