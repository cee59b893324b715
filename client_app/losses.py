"""Define a model's task: its loss, and the correct outputs, for each sample.

Pure functions of tensors, which work under ``torch.func.grad`` and ``torch.func.vmap``: batched
training and evaluation compute the terms of many clients at once, and leave out padded samples
by multiplying their terms by 0.

Shapes: n samples; c classes; sequences of length l.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from fedquorum.errors import SettingsError
from torch.nn import functional

from client_app.data.base import IGNORE_INDEX, FederatedData, to_device
from client_app.metrics import check_metric_for_target
from conf.schema.rules import get_rule_settings
from conf.schema.settings import Settings, get_evaluation_metric

NUM_BINARY_CLASSES = 2


@dataclass(frozen=True)
class LossTerms:
    """The terms of each sample in the sums of a mean loss and an accuracy.

    The mean loss is sum(loss) / sum(weight), the accuracy sum(correct) / sum(count).

    Attributes
    ----------
    loss : tensor (n,)
        The sample's loss, summed over its predictions, times its weight.
    weight : tensor (n,)
        The denominator of the mean, in the dtype of ``loss``: 1, the weight of the class, or the
        number of targets of a sequence.
    correct, count : tensor of int64 (n,)
        Number of correct predictions, and of predictions; 0 if predictions are neither correct nor
        wrong.
    """

    loss: torch.Tensor
    weight: torch.Tensor
    correct: torch.Tensor
    count: torch.Tensor


class Task(ABC):
    """The loss of a model's outputs."""

    @abstractmethod
    def compute_terms(self, outputs: torch.Tensor, y: torch.Tensor) -> LossTerms:
        """Return the terms of each sample."""

    def compute_mean_loss(self, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the mean loss (), which training minimizes.

        A batch whose weights are all 0, such as sequences without a target, has loss 0 and no
        gradient.
        """
        terms = self.compute_terms(outputs, y)
        weight = terms.weight.sum()
        return terms.loss.sum() / torch.where(weight == 0, torch.ones_like(weight), weight)

    @abstractmethod
    def select_predictions(
        self, outputs: torch.Tensor, y: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the outputs (m, c) of all m predictions and their labels (m,), for metrics."""


@dataclass(frozen=True, eq=False)
class CrossEntropy(Task):
    """One of c classes: outputs are logits (n, c), labels int64 (n,).

    -w_y log softmax(outputs)_y, weighted with w_y.

    Parameters
    ----------
    class_weights : tensor (c,), optional
        w >= 0, by default 1 for every class.
    """

    class_weights: torch.Tensor | None = None

    def compute_terms(self, outputs: torch.Tensor, y: torch.Tensor) -> LossTerms:
        """Return the terms of each sample."""
        weight = _get_sample_weights(self.class_weights, outputs, y)
        loss = functional.cross_entropy(outputs, y, reduction="none")
        correct = (outputs.argmax(dim=1) == y).long()
        return LossTerms(loss * weight, weight, correct, torch.ones_like(correct))

    def compute_mean_loss(self, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the mean loss (); without class weights it is one operation of torch."""
        if self.class_weights is None:
            return functional.cross_entropy(outputs, y)
        return super().compute_mean_loss(outputs, y)

    def select_predictions(
        self, outputs: torch.Tensor, y: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits and labels unchanged."""
        return outputs, y


@dataclass(frozen=True, eq=False)
class BinaryCrossEntropy(Task):
    """Yes or no: outputs are one logit (n, 1) of class 1, labels int64 (n,) in {0, 1}.

    -w_y log sigmoid(z) for y = 1 and -w_y log(1 - sigmoid(z)) for y = 0. Class 1 is predicted
    where z > 0.

    Parameters
    ----------
    class_weights : tensor (2,), optional
        w >= 0.
    """

    class_weights: torch.Tensor | None = None

    def compute_terms(self, outputs: torch.Tensor, y: torch.Tensor) -> LossTerms:
        """Return the terms of each sample."""
        logits = outputs.squeeze(1)
        weight = _get_sample_weights(self.class_weights, outputs, y)
        loss = functional.binary_cross_entropy_with_logits(
            logits, y.to(logits.dtype), reduction="none"
        )
        correct = ((logits > 0) == (y == 1)).long()
        return LossTerms(loss * weight, weight, correct, torch.ones_like(correct))

    def select_predictions(
        self, outputs: torch.Tensor, y: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logits 0 and z of the two classes, whose softmax is the sigmoid of z."""
        return torch.cat([torch.zeros_like(outputs), outputs], dim=1), y


@dataclass(frozen=True)
class SequenceCrossEntropy(Task):
    """A class at each position: outputs are logits (n, l, c), labels int64 (n, l).

    The next token is such a class. Positions whose label is ``IGNORE_INDEX`` do not count. All
    others have the same weight, whichever sequence they are in.
    """

    def compute_terms(self, outputs: torch.Tensor, y: torch.Tensor) -> LossTerms:
        """Return the terms of each sequence, summed over its targets."""
        loss = functional.cross_entropy(
            outputs.flatten(0, 1), y.flatten(), reduction="none", ignore_index=IGNORE_INDEX
        ).reshape(y.shape)
        count = (y != IGNORE_INDEX).sum(dim=1)
        correct = (outputs.argmax(dim=2) == y).sum(dim=1)
        return LossTerms(loss.sum(dim=1), count.to(loss.dtype), correct, count)

    def select_predictions(
        self, outputs: torch.Tensor, y: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logits and labels of all targets."""
        return outputs[y != IGNORE_INDEX], y[y != IGNORE_INDEX]


@dataclass(frozen=True)
class SquaredError(Task):
    """A number: outputs (n, 1), floating labels (n,); predictions are neither correct nor wrong.

    Parameters
    ----------
    deviation : float
        The standard deviation of the numbers before they were scaled. The loss is of scaled
        numbers; metrics are in the unit of the target.
    """

    deviation: float = 1.0

    def compute_terms(self, outputs: torch.Tensor, y: torch.Tensor) -> LossTerms:
        """Return the terms of each sample."""
        loss = (outputs.squeeze(1) - y) ** 2
        none = torch.zeros_like(loss, dtype=torch.int64)
        return LossTerms(loss, torch.ones_like(loss), none, none)

    def select_predictions(
        self, outputs: torch.Tensor, y: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return predictions (n, 1) and the numbers predicted, in the target's unit.

        Their mean is 0: the metrics of numbers are of differences.
        """
        return outputs.double() * self.deviation, y.double() * self.deviation


def compute_balanced_weights(counts: torch.Tensor) -> torch.Tensor:
    """Return class weights N / (c N_j), inversely proportional to the classes' frequencies.

    Parameters
    ----------
    counts : tensor (c,)
        N_j, the samples of each class; N is their sum. A class without samples has weight 0.
    """
    weights = counts.sum() / (len(counts) * counts.clamp(min=1))
    return torch.where(counts > 0, weights, torch.zeros_like(weights))


def count_outputs(settings: Settings, data: FederatedData) -> int:
    """Return the number of the model's outputs for one prediction."""
    binary = data.target == "class" and settings.client.loss == "binary"
    return 1 if binary or data.target == "number" else data.num_classes


def build_task(settings: Settings, data: FederatedData) -> Task:
    """Return the task of the settings and of the data's targets.

    Raises
    ------
    SettingsError
        If the settings do not fit the targets, see ``check_task``.
    """
    check_task(settings, data)
    if data.target == "number":
        scale = data.scales.target
        return SquaredError(1.0 if scale is None else float(scale.deviation[0]))
    if data.target == "sequence":
        return SequenceCrossEntropy()
    weights = _build_class_weights(settings.client.class_weights, data)
    if settings.client.loss == "binary":
        return BinaryCrossEntropy(weights)
    return CrossEntropy(weights)


def check_task(settings: Settings, data: FederatedData) -> None:
    """Check that loss, class weights, metric and criterion fit the target.

    Raises
    ------
    SettingsError
        For the first one that does not fit.
    """
    client, target = settings.client, data.target
    check_metric_for_target(
        get_evaluation_metric(settings), data.num_classes, regression=target == "number"
    )
    if target == "number":
        _check_criterion(settings)
    if client.loss == "binary" and (target != "class" or data.num_classes != NUM_BINARY_CLASSES):
        raise SettingsError(
            "client.loss=binary needs a target with two classes, got "
            + (f"{data.num_classes} classes" if target == "class" else f"a {target}")
            + "; leave out client.loss for cross_entropy"
        )
    if client.class_weights is None:
        return
    if target != "class":
        raise SettingsError(
            f"client.class_weights must be null where the target is a {target}, got "
            f"{client.class_weights}"
        )
    if client.class_weights != "balanced" and len(client.class_weights) != data.num_classes:
        raise SettingsError(
            f"client.class_weights must be null, balanced or {data.num_classes} numbers, one for "
            f"each class, got {client.class_weights}"
        )


def _check_criterion(settings: Settings) -> None:
    """Refuse a gate by accuracy for numeric targets, in a named strategy or in a component."""
    for section, rule in get_rule_settings(settings).items():
        if getattr(rule, "criterion", "loss") != "loss":
            raise SettingsError(
                f"{section}.criterion must be loss where targets are numbers, got accuracy"
            )


def _build_class_weights(
    weights: str | list[float] | None, data: FederatedData
) -> torch.Tensor | None:
    if weights is None:
        return None
    if not isinstance(weights, str):
        return torch.tensor(weights, dtype=torch.float64)
    counts = sum(
        np.bincount(data.get_labels(k), minlength=data.num_classes) for k in range(data.num_clients)
    )
    return compute_balanced_weights(torch.from_numpy(np.asarray(counts)))


def _get_sample_weights(
    class_weights: torch.Tensor | None, outputs: torch.Tensor, y: torch.Tensor
) -> torch.Tensor:
    if class_weights is None:
        return torch.ones_like(outputs[:, 0])
    return to_device(class_weights.to(outputs.dtype), outputs.device)[y]
