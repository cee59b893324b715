"""What the strategies share that sample clients and know no priority."""

from typing import TypedDict

from strategies.adapter import ComposedStrategy, Memory
from strategies.communication import Communication
from strategies.selection import Everyone, Sampling
from strategies.server_optimizer import SGD, OptimizerOf
from strategies.types import Population, StateT
from strategies.weighting import Weighting


class Options(TypedDict, total=False):
    """What all these strategies take.

    Parameters
    ----------
    fraction : float (default: 1.0)
        C, the share of the clients that is asked in a round; see ``Sampling``.
    seed : int (default: 0)
        Of the sampling.
    server_lr : float (default: 1.0)
        eta > 0, the server optimizer's learning rate.
    server_optimizer : callable (default: ``SGD``)
        Returns the server optimizer of eta, such as ``Momentum`` or ``partial(Adam, beta1=0.8)``.
    communication : Communication, optional
        Timeouts and what is evaluated.
    """

    fraction: float
    seed: int
    server_lr: float
    server_optimizer: OptimizerOf
    communication: Communication | None


class SampledStrategy(ComposedStrategy[StateT]):
    """All clients or a sample of them, and a server step by sum_n c_n Delta_n.

    Parameters
    ----------
    population : Population
        All clients; priority only says whose data the reported objective is of.
    weighting : Weighting
        The rule for c_n.
    options : Options
        See there.
    memory : Memory, optional
        Whether a memory of all updates corrects the step.

    Raises
    ------
    TypeError
        For an option that there is not.
    """

    def __init__(
        self,
        population: Population,
        weighting: Weighting[StateT],
        options: Options,
        *,
        memory: Memory | None = None,
    ) -> None:
        if unknown := sorted(set(options) - set(Options.__annotations__)):
            raise TypeError(f"{type(self).__name__} has no parameters {', '.join(unknown)}")
        sampling = Sampling(options.get("fraction", 1.0), seed=options.get("seed", 0))
        super().__init__(
            population,
            selection=Everyone(sampling, measures=False, asks_losses=weighting.needs_losses),
            weighting=weighting,
            server_optimizer=options.get("server_optimizer", SGD)(options.get("server_lr", 1.0)),
            memory=memory,
            communication=options.get("communication"),
        )
