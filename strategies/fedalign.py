"""FedALIGN as a Flower strategy."""

from strategies.adapter import ComposedStrategy
from strategies.communication import Communication
from strategies.selection import EpsilonGate, Sampling
from strategies.server_optimizer import SGD, OptimizerOf
from strategies.types import Population
from strategies.weighting import DataFraction


class FedALIGN(ComposedStrategy[None]):
    """Prioritized federated learning: FedAvg on the priority clients and their likes.

    A non-priority client takes part where its loss is within eps_t of the priority clients'.
    w_{t+1} = (sum_P p_k w_k + sum_admitted p_k w_k) / (1 + sum_admitted p_k), with
    p_k = D_k / sum_{i in P} D_i. See ``EpsilonGate`` for who is admitted.

    Parameters
    ----------
    population : Population
        All clients and which of them have priority.
    num_rounds : int
        T; the schedule and the warm-up refer to it.
    epsilon : float (default: 0.2)
        The gate's threshold, >= 0, inf allowed, in units of the criterion.
    epsilon_schedule : str (default: "constant")
        ``constant``, ``step`` (closes the gate after ``epsilon_step_fraction`` of the rounds),
        ``linear``, ``cosine``, ``exponential`` (with ``epsilon_rate``) or ``sqrt``.
    epsilon_step_fraction : float (default: 0.5)
        See above, in [0, 1].
    epsilon_rate : float (default: 5.0)
        See above, >= 0.
    warmup_fraction : float (default: 0.1)
        Share of the rounds in which only priority clients are asked, in [0, 1].
    warmup_rounds : int, optional
        The same as a number of rounds, >= 0; wins over the fraction.
    criterion : {"loss", "accuracy"} (default: "loss")
        What is compared.
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
    Ravi and Shomorony, "Prioritized Federated Learning: Leveraging Non-Priority Clients for
    Targeted Model Improvement", TMLR, Algorithm 1.
    """

    def __init__(
        self,
        population: Population,
        *,
        num_rounds: int,
        epsilon: float = 0.2,
        epsilon_schedule: str = "constant",
        epsilon_step_fraction: float = 0.5,
        epsilon_rate: float = 5.0,
        warmup_fraction: float = 0.1,
        warmup_rounds: int | None = None,
        criterion: str = "loss",
        fraction: float = 1.0,
        priority_draws: int | None = None,
        seed: int = 0,
        server_lr: float = 1.0,
        server_optimizer: OptimizerOf = SGD,
        communication: Communication | None = None,
    ) -> None:
        super().__init__(
            population,
            selection=EpsilonGate(
                num_rounds=num_rounds,
                epsilon=epsilon,
                epsilon_schedule=epsilon_schedule,
                epsilon_step_fraction=epsilon_step_fraction,
                epsilon_rate=epsilon_rate,
                warmup_fraction=warmup_fraction,
                warmup_rounds=warmup_rounds,
                criterion=criterion,
                sampling=Sampling(fraction, priority_draws, seed),
            ),
            weighting=DataFraction(),
            server_optimizer=server_optimizer(server_lr),
            communication=communication,
        )
