"""Define the settings of simulated availability."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedquorum.client.availability.periodic import PATTERNS
from fedquorum.rules.parameters import (
    CYCLE_START,
    FRACTION,
    NON_NEGATIVE_INT,
    PERIOD,
    POSITIVE,
    PROBABILITY,
)
from fedquorum.rules.rule import parameter
from omegaconf import MISSING

from conf.schema.from_rules import derive_settings, make_schema
from conf.schema.ranges import FilePath

CLASS_RATES = "class_rates"
"""The value of ``p`` for probabilities that follow from one rate for each class."""


@dataclass
class AvailabilitySettings:
    """The simulated availability of clients, unknown to the server.

    See ``fedquorum.client.availability``.
    """

    name: str = MISSING


@dataclass
class AlwaysSettings(AvailabilitySettings):
    """Every client is available in every round."""

    name: str = "always"


@dataclass
class RandomAvailabilitySettings(AvailabilitySettings):
    """The settings of all random processes: how often each client is available.

    ``p`` is a number in (0, 1] for all clients, a list with one number for each, or follows from
    the client's distribution kappa_n over L classes. null: clip(mean * L * <kappa_n, q>, minimum,
    1) with q ~ Dir(class_alpha), as in FedAU's experiments. ``class_rates``: clip(<kappa_n, phi>,
    minimum, 1), with phi_c ~ U(0, 1) for the first half of the classes and U(0, 0.5) for the
    others, as in FedAWE's experiments, which have no minimum.
    """

    p: Any = None
    mean: float = parameter(0.1, PROBABILITY)
    minimum: float = parameter(0.02, FRACTION)
    class_alpha: float = parameter(0.1, POSITIVE)


@dataclass
class BernoulliSettings(RandomAvailabilitySettings):
    """Each client is available with a fixed probability, independently in every round.

    With ``rest``, a client rests for that many rounds after each round in which it was available.
    See ``fedquorum.client.availability.Bernoulli`` and ``Cooldown``.
    """

    name: str = "bernoulli"
    rest: int | None = parameter(None, NON_NEGATIVE_INT)


@dataclass
class MarkovSettings(RandomAvailabilitySettings):
    """Each client follows a Markov chain, so that it tends to keep its state.

    See ``fedquorum.client.availability.Markov``.
    """

    name: str = "markov"
    max_transition: float = parameter(0.05, PROBABILITY)


@dataclass
class CyclicSettings(RandomAvailabilitySettings):
    """Each client is available for a part of every period, and unavailable for the rest.

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
        derive_settings(pattern),
    )
    for key, pattern in PATTERNS.items()
}
"""The schema of every pattern that changes with time."""


@dataclass
class TraceSettings(AvailabilitySettings):
    """A CSV file with the columns round, client, available decides which clients are available.

    ``fedquorum availability=trace availability.path=FILE``; see
    ``fedquorum.client.availability.trace``.
    """

    name: str = "trace"
    path: str = parameter("", FilePath("a CSV file with the columns round, client, available"))
