"""One client, as a Flower NumPyClient."""

import math
from collections.abc import Callable
from typing import Any

from fedquorum.client.gate import should_train
from fedquorum.errors import DataError, ProtocolError
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
from fedquorum.flower.codec.keys import FINETUNE_EPOCHS
from fedquorum.rules.decisions import SUMMED_FIELDS
from flwr.client import NumPyClient

from client_app.evaluation.evaluator import CachedEvaluator
from client_app.evaluation.passes import BASIC_METRICS, ClientMetrics
from client_app.training.local_sgd import Arrays

Train = Callable[[Arrays, int, int], Arrays]
"""Return a client's model after round t (from 0), given the received arrays, the client and t."""


EMPTY_METRICS = ClientMetrics(0, math.nan, math.nan)
"""The metrics of a split that a task does not request."""


class FederatedClient(NumPyClient):
    """A data owner that decides whether to join, trains and evaluates; its data stays local.

    ``evaluate_and_decide``, ``train`` and ``evaluate_task`` take the tasks of the protocol and
    return its results; ``fit`` and ``evaluate`` do the same through Flower's interface.

    Parameters
    ----------
    client_id : int
        Stable id, from 0.
    evaluator : CachedEvaluator
        Evaluates models on its data.
    train : callable
        Trains on its data.
    """

    def __init__(self, client_id: int, evaluator: CachedEvaluator, train: Train) -> None:
        self.client_id = client_id
        self._evaluator = evaluator
        self._train = train

    def get_properties(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return the client's id, and no other property."""
        return {CLIENT_ID: self.client_id}

    def fit(self, parameters: Arrays, config: dict[str, Any]) -> tuple[Arrays, int, dict[str, Any]]:
        """Evaluate the received model, decide whether to join, and train.

        ``config`` is that of a train request, with one value for each key. A client that does not
        join returns no arrays, 0 examples and the status DECLINED.
        """
        task = build_train_task(config, self.client_id)
        result = self.evaluate_and_decide(parameters, task)
        if result.status is not Status.DONE:
            return [], 0, to_metrics(result)
        return self.train(parameters, task), int(result.num_examples or 0), to_metrics(result)

    def evaluate(
        self, parameters: Arrays, config: dict[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """Evaluate the received model on the training split, the test split, or both.

        ``config`` is that of an evaluate request, with one value for each key. The returned dict
        holds all metrics; the loss and count before it are those of the test split if the request
        includes that.

        Raises
        ------
        ProtocolError
            If the request lets clients train first, which only a node does, for all of its clients.
        """
        task = build_evaluate_task(config, self.client_id)
        if task.finetune_epochs:
            raise ProtocolError(f"'{FINETUNE_EPOCHS}' is for a node, not for one NumPyClient")
        result = self.evaluate_task(parameters, task)
        if task.test:
            rows = 0.0 if math.isnan(result.test_num_examples) else result.test_num_examples
            return result.test_loss, int(rows), to_metrics(result)
        if task.train:
            return result.loss, int(result.num_examples or 0), to_metrics(result)
        return 0.0, 0, to_metrics(result)

    def evaluate_and_decide(self, parameters: Arrays, task: TrainTask) -> TrainResult:
        """Evaluate the received model and decide whether to take part in the round.

        A client that does not join returns DECLINED and nothing else: its metrics stay local.
        Other clients return their number of examples and, unless the task skips the evaluation,
        loss and accuracy.

        Raises
        ------
        DataError
            If it has no training sample.
        """
        self.check_rows()
        num_examples = self._evaluator.count("train", self.client_id)
        if not task.needs_evaluation:
            return TrainResult(self.client_id, Status.DONE, num_examples=num_examples)
        received = self._evaluator.evaluate(parameters, "train", self.client_id)
        if not _should_train(task, received):
            return TrainResult(self.client_id, Status.DECLINED)
        return TrainResult(
            self.client_id,
            Status.DONE,
            num_examples=num_examples,
            loss=received.loss,
            accuracy=None if math.isnan(received.accuracy) else received.accuracy,
        )

    def check_rows(self) -> None:
        """Raise DataError if the client has no row to train on."""
        if self._evaluator.count("train", self.client_id) == 0:
            raise DataError("it has no training sample")

    def train(self, parameters: Arrays, task: TrainTask) -> Arrays:
        """Return the client's model after local training in the task's round."""
        return self._train(parameters, self.client_id, task.server_round - 1)

    def evaluate_task(self, parameters: Arrays, task: EvaluateTask) -> EvaluateResult:
        """Evaluate the received model on the training split, the test split, or both.

        With its test split a client evaluates its validation split. It reports nothing about a
        split without rows.
        """
        client, evaluator = self.client_id, self._evaluator
        train = test = validation = EMPTY_METRICS
        if task.train:
            train = evaluator.evaluate(parameters, "train", client)
        if task.test:
            test = evaluator.evaluate(parameters, "test", client)
        has_validation = task.test and "validation" in evaluator.splits
        if has_validation and evaluator.count("validation", client):
            validation = evaluator.evaluate(parameters, "validation", client)
        has_extra_metric = evaluator.metric not in BASIC_METRICS
        return EvaluateResult(
            client,
            Status.DONE,
            num_examples=evaluator.count("train", client),
            loss=train.loss,
            accuracy=train.accuracy,
            test_num_examples=test.num_examples or math.nan,
            test_loss=test.loss,
            test_accuracy=test.accuracy,
            test_metric=test.metric if has_extra_metric else math.nan,
            test_r2=test.r2,
            test_average_precision=test.average_precision,
            test_calibration=test.calibration,
            validation_num_examples=validation.num_examples or math.nan,
            validation_loss=validation.loss,
            validation_accuracy=validation.accuracy,
            validation_metric=validation.metric if has_extra_metric else math.nan,
            validation_r2=validation.r2,
            validation_average_precision=validation.average_precision,
            validation_calibration=validation.calibration,
        )

    def find_summed_fields(self) -> frozenset[str]:
        """Return which of ``SUMMED_FIELDS`` the client's splits give, and perhaps more."""
        evaluator = self._evaluator
        prefixes = {"train": "", "test": "test_", "validation": "validation_"}
        if not evaluator.count("train", self.client_id):
            return frozenset()  # the weight of every number is 0
        counted = [split for split in evaluator.splits if evaluator.count(split, self.client_id)]
        names = {prefixes[split] + kind for split in counted for kind in (*BASIC_METRICS, "metric")}
        return frozenset(names.intersection(SUMMED_FIELDS))


def _should_train(task: TrainTask, received: ClientMetrics) -> bool:
    """Return whether the client takes part; without a gate, or with priority, it always does."""
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
