"""Build the latency model of a run's clients from the settings."""

from collections.abc import Sequence
from functools import cache

import numpy as np
from fedquorum.client.latency import (
    LatencyModel,
    LognormalLatency,
    ScaledLatency,
    read_response_times,
)
from fedquorum.errors import DataError, SettingsError
from fedquorum.rules.rule import get_parameters

from client_app.data.base import FederatedData
from conf.schema.response_time import LognormalSettings, RecordedTimesSettings, ResponseTimeSettings


def build_latency_model(settings: ResponseTimeSettings, data: FederatedData) -> LatencyModel | None:
    """Return the latency model of the clients; None for ``none``.

    Raises
    ------
    DataError
        If the file cannot be read, or lacks a client.
    SettingsError
        If there are factors by class, but not one for each class of the data.
    """
    if isinstance(settings, LognormalSettings):
        times = LognormalLatency(
            **{item.name: getattr(settings, item.name) for item in get_parameters(LognormalLatency)}
        )
        factors = getattr(settings, "by_class", None)
        return times if factors is None else _scale_by_class(times, factors, data)
    if isinstance(settings, RecordedTimesSettings):
        try:
            return read_response_times(settings.path, data.num_clients)
        except DataError as error:
            raise DataError(f"response_time.path: {error}") from None
    return None


def _scale_by_class(
    times: LatencyModel, factors: Sequence[float], data: FederatedData
) -> LatencyModel:
    if data.target != "class":
        raise SettingsError(
            "response_time.by_class must be null for data without one class for each row, got "
            f"{list(factors)}"
        )
    if len(factors) != data.num_classes:
        raise SettingsError(
            f"response_time.by_class must have one factor for each of the {data.num_classes} "
            f"classes in the data, got {len(factors)}"
        )

    @cache
    def get_factor(client: int) -> float:
        return float(factors[find_main_class(data, client)])

    return ScaledLatency(times, get_factor)


def find_main_class(data: FederatedData, client: int) -> int:
    """Return the class that most training rows of a client have, the smallest one of several."""
    return int(np.bincount(data.get_labels(client), minlength=data.num_classes).argmax())
