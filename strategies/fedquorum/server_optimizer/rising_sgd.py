"""The plain server step at a rate that rises as the clients' falls."""

from dataclasses import dataclass

from ..parameters import COUNT, POSITIVE, Number
from ..rule import parameter, supplied
from .base import Parameters, ServerOptimizer


@dataclass(frozen=True)
class Steps:
    """How many steps were made."""

    count: int = 0


@dataclass(frozen=True)
class RisingSGD(ServerOptimizer[Steps]):
    """x_{s+1} = x_s + learning_rate / decay^floor(s / decay_every) * sum_k c_k Delta_k.

    s counts the server's steps from 0. Where every round has an update it is the round, and with
    ``decay`` and ``decay_every`` as the clients' ``lr_decay`` and ``lr_decay_every`` the product of
    both rates stays as it was. ``decay`` 1 is ``SGD``. The state is s.

    Parameters
    ----------
    learning_rate : float
        eta > 0, that of the first step.
    decay : float
        In (0, 1]: what the rate is divided by.
    decay_every : int
        After how many steps it is divided again.

    Raises
    ------
    ParameterError
        For a value outside its range.

    References
    ----------
    The published code of Hahn, Kim and Lee, "Pursuing Overall Welfare in Federated Learning through
    Sequential Decision Making", ICML 2024, which the paper does not mention.
    """

    key = "rising_sgd"
    summary = "SGD whose rate rises as the clients' falls, as in AAggFF's published code."
    follows_update = True

    learning_rate: float = supplied(POSITIVE, default=1.0)
    decay: float = parameter(1.0, Number(low=0, high=1, open_low=True))
    decay_every: int = parameter(1, COUNT)

    @property
    def largest_rate(self) -> float | None:
        """No bound, unless the rate stays."""
        return self.learning_rate if self.decay == 1.0 else None

    def init(self, parameters: Parameters) -> Steps:
        """Return the state before the first step."""
        return Steps()

    def step(
        self, state: Steps, parameters: Parameters, update: Parameters
    ) -> tuple[Steps, Parameters]:
        """Return s + 1 and x_{s+1}."""
        rate = self.learning_rate / self.decay ** (state.count // self.decay_every)
        return Steps(state.count + 1), {
            name: value + rate * update[name] for name, value in parameters.items()
        }
