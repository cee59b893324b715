"""One client, as a Flower NumPyClient."""

import math
from collections.abc import Callable
from typing import Any

from flwr.client import NumPyClient

from client_app.decisions import joins
from client_app.evaluation import PLAIN, Measure
from client_app.measurements import Arrays, Measurements
from conf.errors import DataError
from strategies.codec import Status

Train = Callable[[Arrays, int, int], Arrays]
"""Returns a client's model after round t (from 0), of the received arrays, the client and t."""


class FederatedClient(NumPyClient):
    """An owner of data: decides, trains and measures, and keeps its data to itself.

    Parameters
    ----------
    client_id : int
        Stable id, from 0.
    measurements : Measurements
        What models measure on its data.
    train : callable
        Trains on its data.
    """

    def __init__(self, client_id: int, measurements: Measurements, train: Train) -> None:
        self.client_id = client_id
        self._measurements = measurements
        self._train = train

    def get_properties(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return the client's id, and nothing else about it."""
        return {"client-id": self.client_id}

    def fit(self, parameters: Arrays, config: dict[str, Any]) -> tuple[Arrays, int, dict[str, Any]]:
        """Measure the received model, decide whether to join, and train.

        ``config`` and metrics: see ``join``. A client that does not join returns no arrays, 0
        examples and the status SILENT.
        """
        metrics = self.join(parameters, config)
        if "status" in metrics:
            return [], 0, metrics
        num_examples = metrics.pop("num-examples")
        arrays = self._train(parameters, self.client_id, int(config["server-round"]) - 1)
        return arrays, num_examples, metrics

    def join(self, parameters: Arrays, config: dict[str, Any]) -> dict[str, Any]:
        """Measure the received model and decide whether to take part in the round.

        ``config``: server-round (from 1), priority, global-loss, global-accuracy, and where the
        strategy has a gate epsilon and criterion. A client that does not join says the status
        SILENT and nothing else: what it measured stays here. Others say num-examples, loss and
        accuracy; with measure false, and no gate that needs it, nothing is measured and they
        say num-examples alone.

        Raises
        ------
        DataError
            If it has no training sample.
        """
        metrics = {"num-examples": self._measurements.count("train", self.client_id)}
        if metrics["num-examples"] == 0:
            raise DataError("it has no training sample")
        if not measures(config):
            return metrics
        received = self._measurements.measure(parameters, "train", self.client_id)
        if not _joins(config, received):
            return {"status": int(Status.SILENT)}
        return metrics | _metrics(received)

    def evaluate(
        self, parameters: Arrays, config: dict[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """Measure the received model on the training part, the test part, or both.

        ``config``: measure-train, measure-test. The metrics carry all that was measured; the
        loss and count in front are of the test part where it was measured.
        """
        own = self._measurements
        metrics: dict[str, Any] = {"num-examples": own.count("train", self.client_id)}
        loss, count = 0.0, 0
        if config.get("measure-train", True):
            measure = own.measure(parameters, "train", self.client_id)
            metrics |= _metrics(measure)
            loss, count = measure.loss, measure.num_examples
        if config.get("measure-test", True):
            measure = own.measure(parameters, "test", self.client_id)
            metrics |= {"test-num-examples": measure.num_examples, **_metrics(measure, "test-")}
            if own.metric not in PLAIN:
                metrics["test-metric"] = measure.metric
            loss, count = measure.loss, measure.num_examples
        return loss, count, metrics


def measures(config: dict[str, Any]) -> bool:
    """Say whether a client measures the model that it is to train."""
    return "epsilon" in config or bool(config.get("measure", True))


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
