"""FedAvg: FedALIGN's two baselines, from the same parts."""

from strategies.adapter import ComposedStrategy
from strategies.communication import Communication
from strategies.selection import Everyone, PriorityOnly, Sampling
from strategies.server_optimizer import SGD, OptimizerOf
from strategies.types import Population
from strategies.weighting import DataFraction


class FedAvg(ComposedStrategy[None]):
    """FedAvg weighted by data, w_{t+1} = sum_k D_k w_k / sum_k D_k, on all or on the priority.

    Parameters
    ----------
    population : Population
        All clients and which of them have priority. The priority objective is reported also
        where everyone takes part.
    priority_only : bool (default: False)
        Whether only the priority clients take part (the papers' baseline "None"; with False
        the baseline "All").
    fraction : float (default: 1.0)
        Share of each group that is asked in a round, in [0, 1]; see ``Sampling``.
    priority_draws : int, optional
        Draw so many priority clients with replacement, by p_k; see ``Sampling``.
    seed : int (default: 0)
        Of the sampling.
    server_lr : float (default: 1.0)
        The server optimizer's learning rate, > 0.
    server_optimizer : callable (default: ``SGD``)
        Returns the server optimizer of it, such as ``Momentum`` or ``partial(Adam, beta1=0.8)``.
    communication : Communication, optional
        Timeouts and what is evaluated.

    Raises
    ------
    ParameterError
        For a value outside its range.

    References
    ----------
    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
    AISTATS 2017, Algorithm 1.
    """

    def __init__(
        self,
        population: Population,
        *,
        priority_only: bool = False,
        fraction: float = 1.0,
        priority_draws: int | None = None,
        seed: int = 0,
        server_lr: float = 1.0,
        server_optimizer: OptimizerOf = SGD,
        communication: Communication | None = None,
    ) -> None:
        sampling = Sampling(fraction, priority_draws, seed)
        super().__init__(
            population,
            selection=PriorityOnly(sampling) if priority_only else Everyone(sampling),
            weighting=DataFraction(),
            server_optimizer=server_optimizer(server_lr),
            communication=communication,
        )
