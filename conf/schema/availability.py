"""Settings of who is there: the simulated world."""

from dataclasses import dataclass
from typing import Any

from fedquorum.parameters import CYCLE_PERIOD, CYCLE_START, POSITIVE, PROBABILITY
from fedquorum.rule import parameter
from omegaconf import MISSING

from conf.schema.ranges import FilePath


@dataclass
class AvailabilitySettings:
    """When clients are available; see ``fedquorum.client.availability``. The server is not told."""

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
    mean: float = parameter(0.1, PROBABILITY)
    minimum: float = parameter(0.02, PROBABILITY)
    class_alpha: float = parameter(0.1, POSITIVE)


@dataclass
class BernoulliSettings(RandomAvailabilitySettings):
    """Each client is available with its own probability, in every round anew.

    See ``fedquorum.client.availability.Bernoulli``.
    """

    name: str = "bernoulli"


@dataclass
class MarkovSettings(RandomAvailabilitySettings):
    """Each client comes and goes as a Markov chain, so it tends to stay as it is.

    See ``fedquorum.client.availability.Markov``.
    """

    name: str = "markov"
    max_transition: float = parameter(0.05, PROBABILITY)


@dataclass
class CyclicSettings(RandomAvailabilitySettings):
    """Each client is available for a part of every period, and absent for the rest of it.

    See ``fedquorum.client.availability.Cyclic``; ``period`` in rounds.
    """

    name: str = "cyclic"
    period: int = parameter(100, CYCLE_PERIOD)
    start: str = parameter("stationary", CYCLE_START)


@dataclass
class TraceSettings(AvailabilitySettings):
    """A CSV file of round, client, available says which clients are available.

    ``fedquorum availability=trace availability.path=FILE``; see
    ``fedquorum.client.availability.trace``.
    """

    name: str = "trace"
    path: str = parameter("", FilePath("a CSV file of round, client, available"))
