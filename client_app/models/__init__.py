"""The models, by name."""

from client_app.models.build import build_model, build_model_for, create_example_inputs
from client_app.models.celeba_cnn import CelebaCNN
from client_app.models.cnn import CNN
from client_app.models.distilbert import DistilBERT
from client_app.models.logistic_regression import LogisticRegression
from client_app.models.lstm import LSTM
from client_app.models.m5 import M5
from client_app.models.mlp import MLP
from client_app.models.small_cnn import SmallCNN
from client_app.models.text_cnn import TextCNN

__all__ = [
    "CNN",
    "LSTM",
    "M5",
    "MLP",
    "CelebaCNN",
    "DistilBERT",
    "LogisticRegression",
    "SmallCNN",
    "TextCNN",
    "build_model",
    "build_model_for",
    "create_example_inputs",
]
