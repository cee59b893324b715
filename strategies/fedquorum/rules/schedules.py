"""Change values over the rounds. Rounds count from t = 0 to T - 1, including the warm-up."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from ..errors import ParameterError
from .parameters import SERVER_LR_SCHEDULE
from .rounding import round_up


def count_rounds(fraction: float, num_rounds: int) -> int:
    """Return the number of rounds t with t < fraction * T."""
    return round_up(fraction, num_rounds)


def compute_epsilon_factor(
    schedule: str, t: int, num_rounds: int, step_fraction: float, rate: float
) -> float:
    """Return eps_t / eps_0 in round t, in [0, 1], with u = t / max(T - 1, 1).

    ``constant``: 1. ``step``: 1 while t < step_fraction * T, then 0. ``linear``: 1 - u.
    ``cosine``: (1 + cos(pi u)) / 2. ``exponential``: exp(-rate u). ``sqrt``: 1 / sqrt(t + 1).

    Raises
    ------
    ValueError
        If there is no such schedule.
    """
    u = t / max(num_rounds - 1, 1)
    factors: dict[str, Callable[[], float]] = {
        "constant": lambda: 1.0,
        "step": lambda: 1.0 if t < count_rounds(step_fraction, num_rounds) else 0.0,
        "linear": lambda: 1.0 - u,
        "cosine": lambda: (1.0 + math.cos(math.pi * u)) / 2.0,
        "exponential": lambda: math.exp(-rate * u),
        "sqrt": lambda: 1.0 / math.sqrt(t + 1),
    }
    if schedule not in factors:
        raise ValueError(f"no epsilon schedule named {schedule!r}")
    return factors[schedule]()


@dataclass(frozen=True)
class ClientLRSchedule:
    """The learning rate lr_t of the clients' local steps in round t (from 0).

    ``constant``      lr
    ``step``          lr * decay^floor(t / every)
    ``exponential``   lr * decay^(t / every)
    ``inverse_sqrt``  lr / sqrt(t / every + 1)

    The last three start in round ``first_round``: they use max(t - first_round, 0) for t.

    Parameters
    ----------
    lr : float
        lr_0 > 0.
    schedule : {"constant", "step", "exponential", "inverse_sqrt"}
    decay : float
        In (0, 1].
    every, first_round : int
        Rounds.
    """

    lr: float
    schedule: str = "constant"
    decay: float = 1.0
    every: int = 1
    first_round: int = 0

    @classmethod
    def from_settings(cls, client: Mapping[str, Any]) -> Self | None:
        """Return the schedule in the settings ``client``; None if rounds alone do not determine it.

        With ``theorem`` the rate changes from step to step and depends on the client's data.
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

    def compute_lr(self, t: int) -> float:
        """Return lr_t."""
        t = max(t - self.first_round, 0)
        if self.schedule == "step":
            return self.lr * self.decay ** (t // self.every)
        if self.schedule == "exponential":
            return float(self.lr * self.decay ** (t / self.every))
        if self.schedule == "inverse_sqrt":
            return self.lr / math.sqrt(t / self.every + 1.0)
        return self.lr


@dataclass(frozen=True)
class ServerLRSchedule:
    """The schedule eta_t / eta_0 of the server's learning rate.

    ``constant``: 1. ``inverse_client``: lr_0 / lr_t, so that eta_t lr_t is constant: if the
    clients' rate halves, the server's doubles.

    Parameters
    ----------
    schedule : {"constant", "inverse_client"}
    client_schedule : ClientLRSchedule, optional
        lr_t, which ``inverse_client`` needs.

    Raises
    ------
    ParameterError
        If there is no such schedule, or ``inverse_client`` has no lr_t.

    References
    ----------
    The authors' code of Hahn, Kim and Lee 2024, github.com/vaseline555/AAggFF, which refers to
    Reddi et al. 2021, section E.
    """

    schedule: str = "constant"
    client_schedule: ClientLRSchedule | None = None

    def __post_init__(self) -> None:
        SERVER_LR_SCHEDULE.check(_SETTING_KEY, self.schedule)
        if self.schedule != "constant" and self.client_schedule is None:
            raise ParameterError(
                _SETTING_KEY,
                "constant where no round has one client rate",
                self.schedule,
                "with client.lr_schedule=theorem it changes within the round, and the rate of "
                "another app's clients is not known",
            )

    @classmethod
    def for_client(cls, schedule: str, client: ClientLRSchedule | None) -> Self:
        """Return the schedule for clients with this rate; ``constant`` needs none."""
        return cls(schedule) if schedule == "constant" else cls(schedule, client)

    def compute_factor(self, t: int) -> float:
        """Return eta_t / eta_0 in round t (from 0)."""
        if self.schedule == "constant" or self.client_schedule is None:
            return 1.0
        return self.client_schedule.compute_lr(0) / self.client_schedule.compute_lr(t)


_SETTING_KEY = "server_optimizer.lr_schedule"
