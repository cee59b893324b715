"""Build the latency model of a run's clients from the settings."""

from fedquorum.client.latency import LatencyModel, LognormalLatency, read_response_times
from fedquorum.errors import DataError
from fedquorum.rules.rule import get_parameters

from conf.schema.response_time import LognormalSettings, RecordedTimesSettings, ResponseTimeSettings


def build_latency_model(settings: ResponseTimeSettings, num_clients: int) -> LatencyModel | None:
    """Return the latency model of the clients; None for ``none``.

    Raises
    ------
    DataError
        If the file cannot be read, or lacks a client.
    """
    if isinstance(settings, LognormalSettings):
        return LognormalLatency(
            **{item.name: getattr(settings, item.name) for item in get_parameters(LognormalLatency)}
        )
    if isinstance(settings, RecordedTimesSettings):
        try:
            return read_response_times(settings.path, num_clients)
        except DataError as error:
            raise DataError(f"response_time.path: {error}") from None
    return None
