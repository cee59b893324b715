"""Define the settings of simulated response times, which the virtual clock counts."""

from dataclasses import dataclass
from typing import Any

from fedquorum.client.latency import LognormalLatency
from fedquorum.rules.parameters import POSITIVE, ListOf
from fedquorum.rules.rule import parameter
from omegaconf import MISSING

from conf.schema.from_rules import derive_settings, make_schema
from conf.schema.ranges import FilePath


@dataclass
class ResponseTimeSettings:
    """The clients' simulated response times, which they report to the server.

    See ``fedquorum.client.latency``. With any option but ``none``, ``engine.quorum``,
    ``engine.grace_seconds`` and ``engine.round_timeout`` count simulated seconds.
    """

    name: str = MISSING


@dataclass
class NoResponseTimeSettings(ResponseTimeSettings):
    """No simulated response times: rounds use the machine's clock."""

    name: str = "none"


LognormalSettings = make_schema(
    ResponseTimeSettings,
    "lognormal",
    "Lognormal times: some clients are always slow, and each is now and then. See "
    "``fedquorum.client.latency.LognormalLatency``; ``median`` in seconds. ``by_class``: a factor "
    "for each class. The times of a client are multiplied by the factor of the class that most of "
    "its training rows have, so that slow clients hold other data; null for none.",
    (*derive_settings(LognormalLatency), ("by_class", Any, parameter(None, ListOf(POSITIVE)))),
)


@dataclass
class RecordedTimesSettings(ResponseTimeSettings):
    """Response times from a CSV file with the columns client, seconds and maybe round.

    ``fedquorum response_time=trace response_time.path=FILE``; see
    ``fedquorum.client.latency.read_response_times``.
    """

    name: str = "trace"
    path: str = parameter(
        "", FilePath("a CSV file with the columns client, seconds and maybe round")
    )
