"""Settings of who is there: the simulated world."""

from dataclasses import dataclass
from typing import Any

from omegaconf import MISSING

from conf.schema.ranges import FilePath, setting
from strategies.parameters import CYCLE_PERIOD, CYCLE_START, POSITIVE, PROBABILITY


@dataclass
class AvailabilitySettings:
    """When clients are there, which the server does not know; see ``client_app.availability``."""

    name: str = MISSING


@dataclass
class AlwaysSettings(AvailabilitySettings):
    """Every client is there in every round."""

    name: str = "always"


@dataclass
class RandomAvailabilitySettings(AvailabilitySettings):
    """What every random process has: how often each client is there.

    ``p``: a number in (0, 1] for all clients, a list with one for each, or null for
    clip(mean * L * <kappa_n, q>, minimum, 1), which is correlated with the data: kappa_n the
    client's distribution over L classes, q ~ Dir(class_alpha).
    """

    p: Any = None
    mean: float = setting(0.1, PROBABILITY)
    minimum: float = setting(0.02, PROBABILITY)
    class_alpha: float = setting(0.1, POSITIVE)


@dataclass
class BernoulliSettings(RandomAvailabilitySettings):
    """See ``client_app.availability.Bernoulli``."""

    name: str = "bernoulli"


@dataclass
class MarkovSettings(RandomAvailabilitySettings):
    """See ``client_app.availability.Markov``."""

    name: str = "markov"
    max_transition: float = setting(0.05, PROBABILITY)


@dataclass
class CyclicSettings(RandomAvailabilitySettings):
    """See ``client_app.availability.Cyclic``; ``period`` in rounds."""

    name: str = "cyclic"
    period: int = setting(100, CYCLE_PERIOD)
    start: str = setting("stationary", CYCLE_START)


@dataclass
class TraceSettings(AvailabilitySettings):
    """See ``client_app.availability.trace``."""

    name: str = "trace"
    path: str = setting("", FilePath("a CSV file of round, client, available"))
