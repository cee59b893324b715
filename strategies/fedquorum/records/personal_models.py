"""Choose the epochs of the clients' personal models, and summarize these models.

After the last round a client may train a personal model on its rows: from the last model
(``finetuned``) or from the first one (``alone``). It evaluates that model and discards it. One
number of epochs holds for all clients of a run.
"""

import math
from collections.abc import Mapping, Sequence

from ..rules.decisions import PERSONAL_METRICS, ClientEvaluation, PersonalEvaluation
from ..rules.metrics import get_metric
from .round_record import summarize_evaluations


def select_epochs(by_epochs: Mapping[int, Sequence[ClientEvaluation]], metric: str) -> int:
    """Return the number of epochs with the best mean of ``metric`` on validation splits.

    The mean is weighted by training data. Of equals, the fewest epochs count, and also if no
    client reports the metric.

    Parameters
    ----------
    by_epochs : mapping of int to sequence of ClientEvaluation
        The clients' evaluations of their personal models, by the epochs that these trained.
    metric : str
        The setting ``evaluation.metric``.
    """
    sign = 1.0 if get_metric(metric).higher_is_better else -1.0

    def compute_score(epochs: int) -> float:
        groups = summarize_evaluations(by_epochs[epochs], metric, True, "validation") or {}
        score = sign * (groups.get("all") or {}).get(metric, math.nan)
        return -math.inf if math.isnan(score) else score

    return max(sorted(by_epochs), key=compute_score)


def build_personal_evaluations(
    model: str, epochs: int, evaluations: Sequence[ClientEvaluation]
) -> dict[int, PersonalEvaluation]:
    """Return the evaluations of the personal models, by client."""
    return {
        e.client: PersonalEvaluation(
            model, epochs, **{name: getattr(e, name) for name in PERSONAL_METRICS}
        )
        for e in evaluations
    }
