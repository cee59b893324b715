"""The models, by name."""

from client_app.models.build import build_model
from client_app.models.cnn import CNN
from client_app.models.logistic_regression import LogisticRegression
from client_app.models.m5 import M5
from client_app.models.mlp import MLP
from client_app.models.small_cnn import SmallCNN

__all__ = ["CNN", "M5", "MLP", "LogisticRegression", "SmallCNN", "build_model"]
