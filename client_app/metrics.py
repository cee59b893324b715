"""What is measured of a client's test part beside its loss and accuracy.

All by torchmetrics, in [0, 1], of the logits (m, c) of m predictions and their labels (m,); NaN
where it is not defined, which a mean over clients leaves out: where there is no prediction, or
where the model diverged.
"""

import math

import torch
from fedquorum.errors import SettingsError

BINARY = 2
TOP = 5


def metric(name: str, logits: torch.Tensor, y: torch.Tensor) -> float:
    """Return the metric of ``evaluation.metric``.

    ``auroc``  see ``auroc``
    ``f1``     mean of 2 P R / (P + R) over the classes that are predicted or there, with P and R
               the class's precision and recall
    ``top5``   share of the labels that are among the five highest logits
    """
    # Takes seconds to import: not for those who do not ask for it.
    from torchmetrics.functional.classification import multiclass_accuracy, multiclass_f1_score

    classes = logits.shape[1]
    if len(y) == 0 or not bool(logits.isfinite().all()):
        return math.nan
    if name == "auroc":
        return auroc(logits, y)
    if name == "f1":
        return float(multiclass_f1_score(logits, y, classes, average="macro"))
    return float(multiclass_accuracy(logits, y, classes, average="micro", top_k=TOP))


def auroc(logits: torch.Tensor, y: torch.Tensor) -> float:
    """Return the area under the ROC curve of the softmax outputs.

    With two classes that of class 1, with more the mean over the classes that ``y`` has of each
    one against the rest. NaN where ``y`` has only one class: then it is not defined.
    """
    from torchmetrics.functional.classification import binary_auroc

    present = y.unique()
    if len(present) < BINARY:
        return math.nan
    scores = logits.softmax(dim=1)
    classes = present if scores.shape[1] > BINARY else present[-1:]
    areas = [binary_auroc(scores[:, c], (y == c).long()) for c in classes.tolist()]
    return float(torch.stack(areas).double().mean())


def check_metric(name: str, num_classes: int, *, numbers: bool) -> None:
    """Compare the metric with what is predicted.

    Raises
    ------
    SettingsError
        If it is not defined for that, or always 1.
    """
    if numbers and name != "loss":
        raise SettingsError(f"evaluation.metric must be loss where targets are numbers, got {name}")
    if name == "top5" and num_classes <= TOP:
        raise SettingsError(
            f"evaluation.metric must be another than top5 where there are {num_classes} classes, "
            "got top5"
        )
