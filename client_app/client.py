"""One client, as a Flower NumPyClient."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from flwr.client import NumPyClient
from numpy.typing import NDArray
from torch import nn

from client_app.augmentation import check_augmentation
from client_app.data import ClientData
from client_app.decisions import joins
from client_app.metrics import metric
from client_app.tasks import Task
from client_app.training import (
    CROSS_ENTROPY,
    LocalTraining,
    Measure,
    evaluate,
    predictions,
    train,
)
from strategies.codec import Status
from strategies.streams import stream

Arrays = list[NDArray[Any]]


class FederatedClient(NumPyClient):
    """An owner of data: decides, trains and measures, and keeps its data to itself.

    Parameters
    ----------
    client_id : int
        Stable id, from 0.
    data : ClientData
        Its own training and test part.
    model : torch.nn.Module
        Workspace for the received model; may be shared between clients of a process.
    how : LocalTraining
        Hyperparameters of local training.
    seed : int
        The run's seed; what training draws follows from (seed, purpose, round, client id).
    device : torch.device
        Where to compute; the data stays there between rounds.
    task : Task
        The loss.
    metric : str
        What is measured of the test part, beside loss and accuracy if it is another.

    Raises
    ------
    SettingsError
        If the augmentation is not for inputs like these.
    """

    def __init__(
        self,
        client_id: int,
        data: ClientData,
        model: nn.Module,
        how: LocalTraining,
        *,
        seed: int,
        device: torch.device,
        task: Task = CROSS_ENTROPY,
        metric: str = "accuracy",
    ) -> None:
        check_augmentation(how.augmentation, data.x_train)
        self.client_id = client_id
        self._x_train = torch.from_numpy(data.x_train).to(device)
        self._y_train = torch.from_numpy(data.y_train).to(device)
        self._x_test = torch.from_numpy(data.x_test).to(device)
        self._y_test = torch.from_numpy(data.y_test).to(device)
        self._model = model
        self._how = how
        self._seed = seed
        self._task = task
        self._metric = metric

    def get_properties(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return the client's id, and nothing else about it."""
        return {"client-id": self.client_id}

    def fit(self, parameters: Arrays, config: dict[str, Any]) -> tuple[Arrays, int, dict[str, Any]]:
        """Measure the received model, decide whether to join, and train.

        ``config``: server-round (from 1), priority, global-loss, global-accuracy, and where the
        strategy has a gate epsilon and criterion. A client that does not join returns no
        arrays, 0 examples and the status SILENT: what it measured stays here. With measure
        false, and no gate that needs it, nothing is measured and the metrics are empty.
        """
        self._load(parameters)
        metrics: dict[str, Any] = {}
        if "epsilon" in config or config.get("measure", True):
            received = evaluate(self._model, self._x_train, self._y_train, self._task)
            if not _joins(config, received):
                return [], 0, {"status": int(Status.SILENT)}
            metrics = _metrics(received)
        t = int(config["server-round"]) - 1
        draws = partial(stream, self._seed, round_number=t + 1, client=self.client_id)
        train(self._model, self._x_train, self._y_train, self._how, draws, t=t, task=self._task)
        return (
            [tensor.detach().cpu().numpy().copy() for tensor in self._model.state_dict().values()],
            len(self._y_train),
            metrics,
        )

    def evaluate(
        self, parameters: Arrays, config: dict[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """Measure the received model on the training part, the test part, or both.

        ``config``: measure-train, measure-test. The metrics carry all that was measured; the
        loss and count in front are of the test part where it was measured.
        """
        self._load(parameters)
        metrics: dict[str, Any] = {"num-examples": len(self._y_train)}
        loss, count = 0.0, 0
        if config.get("measure-train", True):
            measure = evaluate(self._model, self._x_train, self._y_train, self._task)
            metrics |= _metrics(measure)
            loss, count = measure.loss, measure.num_examples
        if config.get("measure-test", True):
            measure = evaluate(self._model, self._x_test, self._y_test, self._task)
            metrics |= {"test-num-examples": measure.num_examples, **_metrics(measure, "test-")}
            if self._metric not in {"accuracy", "loss"}:
                metrics["test-metric"] = metric(
                    self._metric,
                    *predictions(self._model, self._x_test, self._y_test, self._task),
                )
            loss, count = measure.loss, measure.num_examples
        return loss, count, metrics

    def _load(self, parameters: Sequence[NDArray[Any]]) -> None:
        names = self._model.state_dict()
        self._model.load_state_dict(
            {name: torch.from_numpy(a) for name, a in zip(names, parameters, strict=True)}
        )


def _metrics(measure: Measure, prefix: str = "") -> dict[str, float]:
    """Return loss and accuracy by their wire names, without an accuracy that is not defined."""
    loss = {f"{prefix}loss": measure.loss}
    if math.isnan(measure.accuracy):
        return loss
    return loss | {f"{prefix}accuracy": measure.accuracy}


def _joins(config: dict[str, Any], received: Measure) -> bool:
    """Say whether the client takes part: without a gate, or with priority, it always does."""
    if "epsilon" not in config or config.get("priority", True):
        return True
    return joins(
        config["criterion"],
        config["epsilon"],
        global_loss=config["global-loss"],
        global_accuracy=config["global-accuracy"],
        loss=received.loss,
        accuracy=received.accuracy,
    )
