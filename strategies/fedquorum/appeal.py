"""For how many clients the model is worth it: appeal, and the model that each would prefer.

Client k requires a loss below rho_k, such as that of the model it trains alone. The formulas are
from memory of Cho et al., "Maximizing Global Model Appeal in Federated Learning", TMLR 2024, of
which only the abstract was read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from .types import ByClient, FloatArray, IntArray


@dataclass(frozen=True)
class Requirements:
    """What clients have without the federation, by client id.

    Parameters
    ----------
    loss : mapping of int to float
        rho_k, in the unit of the training loss; a client that is left out, or has NaN, has none.
    accuracy : mapping of int to float
        The test accuracy of the model that k trains alone, where that is known.
    """

    loss: Mapping[int, float]
    accuracy: Mapping[int, float] = field(default_factory=dict)

    def losses(self, clients: IntArray) -> FloatArray:
        """Return rho of these clients, NaN where there is none, shape (n,)."""
        return ByClient.of(self.loss).at(clients, np.nan)

    def accuracies(self, clients: IntArray) -> FloatArray:
        """Return the accuracies of these clients' local models, NaN where unknown, shape (n,)."""
        return ByClient.of(self.accuracy).at(clients, np.nan)


def appeal(loss: FloatArray, requirement: FloatArray) -> float:
    """Return GM-appeal, the share of the clients with F_k(w) < rho_k, in [0, 1].

    A tie does not satisfy (our choice). Clients without a loss or a requirement (NaN) are left
    out; NaN if none is left.

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

    A client prefers w where F_k(w) < rho_k, and else its local model. It decides by training
    losses: by the test part the metric would choose the better number of two (whether the paper
    does so was not verified). Clients of which one of the four is NaN are left out; NaN if none is
    left.

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
