"""One client, as a Flower NumPyClient."""

import math
from collections.abc import Callable
from typing import Any

from fedquorum.client.gate import should_train
from fedquorum.errors import DataError
from fedquorum.flower.codec import (
    CLIENT_ID,
    EvaluateResult,
    EvaluateTask,
    Status,
    TrainResult,
    TrainTask,
    build_evaluate_task,
    build_train_task,
    to_metrics,
)
from flwr.client import NumPyClient

from client_app.arrays import Arrays
from client_app.cached_evaluation import CachedEvaluator
from client_app.evaluation import BASIC_METRICS, ClientMetrics

Train = Callable[[Arrays, int, int], Arrays]
"""Returns a client's model after round t (from 0), of the received arrays, the client and t."""


EMPTY_METRICS = ClientMetrics(0, math.nan, math.nan)
"""Of a part that a task does not ask for."""


class FederatedClient(NumPyClient):
    """An owner of data: decides, trains and measures, and keeps its data to itself.

    ``evaluate_and_decide``, ``train`` and ``evaluate_task`` take the tasks of the protocol and return its answers;
    ``fit`` and ``evaluate`` are the same by Flower's interface.

    Parameters
    ----------
    client_id : int
        Stable id, from 0.
    measurements : Measurements
        What models measure on its data.
    train : callable
        Trains on its data.
    """

    def __init__(self, client_id: int, measurements: CachedEvaluator, train: Train) -> None:
        self.client_id = client_id
        self._measurements = measurements
        self._train = train

    def get_properties(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return the client's id, and nothing else about it."""
        return {CLIENT_ID: self.client_id}

    def fit(self, parameters: Arrays, config: dict[str, Any]) -> tuple[Arrays, int, dict[str, Any]]:
        """Measure the received model, decide whether to join, and train.

        ``config`` is a train request's, with one value for each key. A client that does not join
        returns no arrays, 0 examples and the status DECLINED.
        """
        task = build_train_task(config, self.client_id)
        result = self.evaluate_and_decide(parameters, task)
        if result.status is not Status.DONE:
            return [], 0, to_metrics(result)
        return self.train(parameters, task), int(result.num_examples or 0), to_metrics(result)

    def evaluate(
        self, parameters: Arrays, config: dict[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """Measure the received model on the training part, the test part, or both.

        ``config`` is an evaluate request's, with one value for each key. The metrics carry all
        that was measured; the loss and count in front are of the test part where it was measured.
        """
        task = build_evaluate_task(config, self.client_id)
        result = self.evaluate_task(parameters, task)
        if task.test:
            rows = 0.0 if math.isnan(result.test_num_examples) else result.test_num_examples
            return result.test_loss, int(rows), to_metrics(result)
        if task.train:
            return result.loss, int(result.num_examples or 0), to_metrics(result)
        return 0.0, 0, to_metrics(result)

    def evaluate_and_decide(self, parameters: Arrays, task: TrainTask) -> TrainResult:
        """Measure the received model and decide whether to take part in the round.

        A client that does not join answers DECLINED and nothing else: what it measured
        stays here. Others say their number of examples and, unless the task asks for no
        measurement, loss and accuracy.

        Raises
        ------
        DataError
            If it has no training sample.
        """
        num_examples = self._measurements.count("train", self.client_id)
        if num_examples == 0:
            raise DataError("it has no training sample")
        if not task.needs_evaluation:
            return TrainResult(self.client_id, Status.DONE, num_examples=num_examples)
        received = self._measurements.evaluate(parameters, "train", self.client_id)
        if not _should_train(task, received):
            return TrainResult(self.client_id, Status.DECLINED)
        return TrainResult(
            self.client_id,
            Status.DONE,
            num_examples=num_examples,
            loss=received.loss,
            accuracy=None if math.isnan(received.accuracy) else received.accuracy,
        )

    def train(self, parameters: Arrays, task: TrainTask) -> Arrays:
        """Return the client's model after the task's round of local training."""
        return self._train(parameters, self.client_id, task.server_round - 1)

    def evaluate_task(self, parameters: Arrays, task: EvaluateTask) -> EvaluateResult:
        """Measure the received model on the training part, the test part, or both.

        Beside its test part a client measures its validation part. Where it has no row of a part,
        it says nothing of this part.
        """
        client, measurements = self.client_id, self._measurements
        train = test = validation = EMPTY_METRICS
        if task.train:
            train = measurements.evaluate(parameters, "train", client)
        if task.test:
            test = measurements.evaluate(parameters, "test", client)
        has_validation = task.test and "validation" in measurements.splits
        if has_validation and measurements.count("validation", client):
            validation = measurements.evaluate(parameters, "validation", client)
        has_extra_metric = measurements.metric not in BASIC_METRICS
        return EvaluateResult(
            client,
            Status.DONE,
            num_examples=measurements.count("train", client),
            loss=train.loss,
            accuracy=train.accuracy,
            test_num_examples=test.num_examples or math.nan,
            test_loss=test.loss,
            test_accuracy=test.accuracy,
            test_metric=test.metric if has_extra_metric else math.nan,
            validation_num_examples=validation.num_examples or math.nan,
            validation_loss=validation.loss,
            validation_accuracy=validation.accuracy,
            validation_metric=validation.metric if has_extra_metric else math.nan,
        )


def _should_train(task: TrainTask, received: ClientMetrics) -> bool:
    """Return whether the client takes part: without a gate, or with priority, it always does."""
    if task.epsilon is None or task.priority:
        return True
    return should_train(
        task.criterion,
        task.epsilon,
        global_loss=task.objective.loss,
        global_accuracy=task.objective.accuracy,
        loss=received.loss,
        accuracy=received.accuracy,
    )
