"""From settings to how long a run's clients take."""

from fedquorum.client.response_times import Lognormal, ResponseTimes, read_response_times
from fedquorum.errors import DataError
from fedquorum.rule import parameters_of

from conf.schema.response_time import (
    LognormalSettings,
    RecordedTimesSettings,
    ResponseTimeSettings,
)


def response_times(settings: ResponseTimeSettings, num_clients: int) -> ResponseTimes | None:
    """Return how long the clients take; None for ``none``.

    Raises
    ------
    DataError
        If the file cannot be read, or lacks a client.
    """
    if isinstance(settings, LognormalSettings):
        return Lognormal(
            **{item.name: getattr(settings, item.name) for item in parameters_of(Lognormal)}
        )
    if isinstance(settings, RecordedTimesSettings):
        try:
            return read_response_times(settings.path, num_clients)
        except DataError as error:
            raise DataError(f"response_time.path: {error}") from None
    return None
