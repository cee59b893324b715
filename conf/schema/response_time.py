"""Settings of how long clients take: simulated seconds, and the virtual clock that counts them."""

from dataclasses import dataclass

from fedquorum.client.response_times import Lognormal
from fedquorum.rule import parameter
from omegaconf import MISSING

from conf.schema.derived import make_schema, settings_of_rule
from conf.schema.ranges import FilePath


@dataclass
class ResponseTimeSettings:
    """How long a client takes; see ``fedquorum.client.response_times``. The server is told.

    With any but ``none``, ``engine.quorum``, ``engine.grace`` and ``engine.round_timeout`` are in
    simulated seconds.
    """

    name: str = MISSING


@dataclass
class NoResponseTimeSettings(ResponseTimeSettings):
    """Nothing is simulated: the clock is that of the machine."""

    name: str = "none"


LognormalSettings = make_schema(
    ResponseTimeSettings,
    "lognormal",
    "Lognormal times: some clients are always slow, and each is now and then. See "
    "``fedquorum.client.response_times.Lognormal``; ``median`` in seconds.",
    settings_of_rule(Lognormal),
)


@dataclass
class RecordedTimesSettings(ResponseTimeSettings):
    """A CSV file of client, seconds and maybe round says how long each takes.

    ``fedquorum response_time=trace response_time.path=FILE``; see
    ``fedquorum.client.response_times.read_response_times``.
    """

    name: str = "trace"
    path: str = parameter(
        "", FilePath("a CSV file with the columns client, seconds and maybe round")
    )
