"""Values that change over the rounds. Rounds count from t = 0 to T - 1, warm-up included."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from .errors import ParameterError
from .parameters import SERVER_LR_SCHEDULE


def rounds_in(fraction: float, num_rounds: int) -> int:
    """Return how many rounds t satisfy t < fraction * T.

    The product is rounded to 9 digits first: 0.07 * 100 is 7.000000000000001 in binary
    and would otherwise count an eighth round.
    """
    return math.ceil(round(fraction * num_rounds, 9))


def epsilon_factor(
    schedule: str, t: int, num_rounds: int, step_fraction: float, rate: float
) -> float:
    """Return eps_t / eps_0 in round t, in [0, 1], with u = t / max(T - 1, 1).

    ``constant``: 1. ``step``: 1 while t < step_fraction * T, then 0. ``linear``: 1 - u.
    ``cosine``: (1 + cos(pi u)) / 2. ``exponential``: exp(-rate u). ``sqrt``: 1 / sqrt(t + 1).

    Raises
    ------
    ValueError
        For a schedule that does not exist.
    """
    u = t / max(num_rounds - 1, 1)
    factors: dict[str, Callable[[], float]] = {
        "constant": lambda: 1.0,
        "step": lambda: 1.0 if t < rounds_in(step_fraction, num_rounds) else 0.0,
        "linear": lambda: 1.0 - u,
        "cosine": lambda: (1.0 + math.cos(math.pi * u)) / 2.0,
        "exponential": lambda: math.exp(-rate * u),
        "sqrt": lambda: 1.0 / math.sqrt(t + 1),
    }
    if schedule not in factors:
        raise ValueError(f"no epsilon schedule named {schedule!r}")
    return factors[schedule]()


@dataclass(frozen=True)
class ClientRate:
    """lr_t, the learning rate of the clients' local steps in round t (from 0).

    ``constant``      lr
    ``step``          lr * decay^floor(t / every)
    ``exponential``   lr * decay^(t / every)
    ``inverse_sqrt``  lr / sqrt(t / every + 1)

    The last three begin in round ``since``: in its place t is max(t - since, 0).

    Parameters
    ----------
    lr : float
        lr_0 > 0.
    schedule : {"constant", "step", "exponential", "inverse_sqrt"}
        How it falls.
    decay : float
        In (0, 1].
    every, since : int
        Rounds.
    """

    lr: float
    schedule: str = "constant"
    decay: float = 1.0
    every: int = 1
    since: int = 0

    @classmethod
    def of(cls, client: Mapping[str, Any]) -> Self | None:
        """Return the rate that the settings ``client`` say, None where rounds do not decide it.

        With ``theorem`` it changes from one local step to the next, by the client's data.
        """
        schedule = client.get("lr_schedule", "constant")
        if schedule == "theorem" or "lr" not in client:
            return None
        return cls(
            client["lr"],
            schedule,
            client.get("lr_decay", 1.0),
            client.get("lr_decay_every", 1),
            client.get("lr_decay_from", 0),
        )

    def at(self, t: int) -> float:
        """Return lr_t."""
        t = max(t - self.since, 0)
        if self.schedule == "step":
            return self.lr * self.decay ** (t // self.every)
        if self.schedule == "exponential":
            return float(self.lr * self.decay ** (t / self.every))
        if self.schedule == "inverse_sqrt":
            return self.lr / math.sqrt(t / self.every + 1.0)
        return self.lr


@dataclass(frozen=True)
class ServerRate:
    """eta_t over eta_0, how the server's learning rate changes over the rounds.

    ``constant``: 1. ``inverse_client``: lr_0 / lr_t, so that eta_t lr_t stays what it was: when the
    clients' rate is halved, the server's is doubled.

    Parameters
    ----------
    schedule : {"constant", "inverse_client"}
        How it changes.
    client : ClientRate, optional
        lr_t, which ``inverse_client`` needs.

    Raises
    ------
    ParameterError
        For another schedule, and for ``inverse_client`` where lr_t is not known.

    References
    ----------
    The authors' code of Hahn, Kim and Lee 2024, github.com/vaseline555/AAggFF, which refers to
    Reddi et al. 2021, section E.
    """

    schedule: str = "constant"
    client: ClientRate | None = None

    def __post_init__(self) -> None:
        SERVER_LR_SCHEDULE.check(_SETTING, self.schedule)
        if self.schedule != "constant" and self.client is None:
            raise ParameterError(
                _SETTING,
                "constant where no round has one client rate",
                self.schedule,
                "with client.lr_schedule=theorem it changes within the round, and the rate of "
                "another app's clients is not known",
            )

    @classmethod
    def of(cls, schedule: str, client: ClientRate | None) -> Self:
        """Return the schedule of a run whose clients have that rate; constant needs none."""
        return cls(schedule) if schedule == "constant" else cls(schedule, client)

    def factor(self, t: int) -> float:
        """Return eta_t / eta_0 in round t (from 0)."""
        if self.schedule == "constant" or self.client is None:
            return 1.0
        return self.client.at(0) / self.client.at(t)


_SETTING = "server_optimizer.lr_schedule"
