"""The models, by name."""

from client_app.models.build import build_model
from client_app.models.logistic_regression import LogisticRegression

__all__ = ["LogisticRegression", "build_model"]
