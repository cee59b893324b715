"""Every client on its own: what federated learning has to beat."""

from strategies.adapter import ComposedStrategy
from strategies.communication import Communication
from strategies.selection import Alone, Sampling
from strategies.server_optimizer import SGD
from strategies.types import Population
from strategies.weighting import NoWeight


class LocalOnly(ComposedStrategy[None]):
    """Every client trains a model of its own, from the same start and for the same rounds.

    w_k <- ClientUpdate(w_k) in each round, w_k = w_0 before the first; nothing is aggregated and
    no update leaves a client. Losses and test metrics are each client's, of its own model, so
    the records compare client by client with those of a run that learns together. The lowest
    loss a client reaches estimates F_k*, its local optimum.

    Parameters
    ----------
    population : Population
        All clients and which of them have priority.
    fraction : float (default: 1.0)
        Share of each group that trains in a round, in [0, 1]; see ``Sampling``.
    seed : int (default: 0)
        Of the sampling.
    communication : Communication, optional
        Timeouts and what is evaluated.

    References
    ----------
    Ravi and Shomorony, "Prioritized Federated Learning", supplement C.1.
    """

    def __init__(
        self,
        population: Population,
        *,
        fraction: float = 1.0,
        seed: int = 0,
        communication: Communication | None = None,
    ) -> None:
        super().__init__(
            population,
            selection=Alone(Sampling(fraction, seed=seed)),
            weighting=NoWeight(),
            server_optimizer=SGD(),
            communication=communication,
        )
