"""Measure for how many clients the global model is useful: appeal, and preferred models.

Client k requires a loss below rho_k, such as the loss of its local model. The formulas are from
memory of Cho et al., "Maximizing Global Model Appeal in Federated Learning", TMLR 2024, of which
only the abstract was read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from .equality import nan_equals_nan
from .types import ByClient, FloatArray, IntArray


@nan_equals_nan
@dataclass(frozen=True)
class Requirements:
    """The losses and accuracies that clients have without the federation, by client id.

    Parameters
    ----------
    loss : mapping of int to float
        rho_k, in the unit of the training loss. A client that is missing or has NaN has no
        requirement.
    accuracy : mapping of int to float
        The test accuracy of k's local model, if it is known.
    """

    loss: Mapping[int, float]
    accuracy: Mapping[int, float] = field(default_factory=dict)

    def losses(self, clients: IntArray) -> FloatArray:
        """Return rho of these clients, NaN for a client without one, shape (n,)."""
        return ByClient.of(self.loss).at(clients, np.nan)

    def accuracies(self, clients: IntArray) -> FloatArray:
        """Return the accuracies of these clients' local models, NaN if unknown, shape (n,)."""
        return ByClient.of(self.accuracy).at(clients, np.nan)


def appeal(loss: FloatArray, requirement: FloatArray) -> float:
    """Return GM-appeal, the share of the clients with F_k(w) < rho_k, in [0, 1].

    A tie does not satisfy (our choice). The share leaves out clients without a loss or a
    requirement (NaN); it is NaN if no client is left.

    Parameters
    ----------
    loss : FloatArray
        F_k(w) on the training parts, shape (n,).
    requirement : FloatArray
        rho_k, shape (n,).
    """
    known = ~(np.isnan(loss) | np.isnan(requirement))
    return float((loss[known] < requirement[known]).mean()) if known.any() else np.nan


def preferred_accuracy(
    loss: FloatArray, requirement: FloatArray, accuracy: FloatArray, local_accuracy: FloatArray
) -> float:
    """Return the mean test accuracy of the model that each client prefers, in [0, 1].

    A client prefers w if F_k(w) < rho_k, and its local model otherwise. It decides by training
    losses, since a choice by test numbers would always report the better of two (whether the paper
    does so was not verified). The mean leaves out clients with NaN in any of the four numbers; it
    is NaN if no client is left.

    Parameters
    ----------
    loss, requirement : FloatArray
        As for ``appeal``, shape (n,).
    accuracy, local_accuracy : FloatArray
        Of w and of the local model on the client's test part, shape (n,).
    """
    numbers = np.stack([loss, requirement, accuracy, local_accuracy])
    loss, requirement, accuracy, local_accuracy = numbers[:, ~np.isnan(numbers).any(axis=0)]
    chosen = np.where(loss < requirement, accuracy, local_accuracy)
    return float(chosen.mean()) if len(chosen) else np.nan
