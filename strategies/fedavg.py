"""FedAvg: FedALIGN's two baselines, from the same parts."""

from strategies.adapter import Communication, ComposedStrategy
from strategies.selection import Everyone, PriorityOnly
from strategies.server_optimizer import SGD
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
    server_lr : float (default: 1.0)
        Factor on the combined update, > 0.
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
        server_lr: float = 1.0,
        communication: Communication | None = None,
    ) -> None:
        super().__init__(
            population,
            selection=PriorityOnly() if priority_only else Everyone(),
            weighting=DataFraction(),
            server_optimizer=SGD(server_lr),
            communication=communication,
        )
