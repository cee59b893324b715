"""Settings of who is there: the simulated world."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedquorum.client.availability.periodic import PATTERNS
from fedquorum.parameters import (
    CYCLE_START,
    FRACTION,
    NON_NEGATIVE_COUNT,
    PERIOD,
    POSITIVE,
    PROBABILITY,
)
from fedquorum.rule import parameter
from omegaconf import MISSING

from conf.schema.derived import make_schema, settings_of_rule
from conf.schema.ranges import FilePath

CLASS_RATES = "class_rates"
"""The word for probabilities that follow from one rate for each class."""


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

    ``p``: a number in (0, 1] for all clients, a list with one for each, or correlated with the data
    by the client's distribution kappa_n over L classes: null for
    clip(mean * L * <kappa_n, q>, minimum, 1), q ~ Dir(class_alpha), as in FedAU's experiments, and
    ``class_rates`` for clip(<kappa_n, phi>, minimum, 1), phi_c ~ U(0, 1) for the first half of the
    classes and U(0, 0.5) for the others, as in FedAWE's, which have no minimum.
    """

    p: Any = None
    mean: float = parameter(0.1, PROBABILITY)
    minimum: float = parameter(0.02, FRACTION)
    class_alpha: float = parameter(0.1, POSITIVE)


@dataclass
class BernoulliSettings(RandomAvailabilitySettings):
    """Each client is available with its own probability, in every round anew.

    With ``rest`` it is away for so many rounds after each in which it was available. See
    ``fedquorum.client.availability.Bernoulli`` and ``Resting``.
    """

    name: str = "bernoulli"
    rest: int | None = parameter(None, NON_NEGATIVE_COUNT)


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
    period: int = parameter(100, PERIOD)
    start: str = parameter("stationary", CYCLE_START)


PATTERN_SCHEMAS: Mapping[str, type[Any]] = {
    key: make_schema(
        RandomAvailabilitySettings,
        key,
        f"{pattern.summary} See ``fedquorum.client.availability.{pattern.__name__}``; ``period`` "
        "and ``phase`` in rounds.",
        settings_of_rule(pattern),
    )
    for key, pattern in PATTERNS.items()
}
"""The schema of every pattern that changes with time."""


@dataclass
class TraceSettings(AvailabilitySettings):
    """A CSV file of round, client, available says which clients are available.

    ``fedquorum availability=trace availability.path=FILE``; see
    ``fedquorum.client.availability.trace``.
    """

    name: str = "trace"
    path: str = parameter("", FilePath("a CSV file with the columns round, client, available"))
