"""rho_k of a run: the loss that each client wants the model to be below."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedquorum.appeal import Requirements
from fedquorum.errors import SettingsError
from fedquorum.records.requirements import local_requirements, recorded_requirements
from fedquorum.records.settings import flat_settings

from conf.schema.rules import requirement_of
from conf.schema.settings import Settings


def run_requirements(settings: Settings, num_clients: int) -> Requirements | None:
    """Return rho_k as the settings say it, None where they say nothing.

    A run that goes on has those of its records: what they were read from may have changed.

    Raises
    ------
    RunError
        If the run that they name is none of ``local_only`` with the same clients.
    SettingsError
        If a list is not for as many clients as the data has, or a mapping names others.
    """
    place, given = requirement_of(settings)
    if given is None:
        return None
    if settings.resume is not None:
        recorded = recorded_requirements(Path(settings.resume).expanduser().absolute())
        if recorded is not None:
            return recorded
    if isinstance(given, str):
        return local_requirements(Path(given).expanduser(), flat_settings(asdict(settings)))
    return Requirements(_by_client(place, given, num_clients))


def _by_client(place: str, given: Any, num_clients: int) -> dict[int, float]:
    if isinstance(given, Mapping):
        unknown = sorted(set(given) - set(range(num_clients)), key=str)
        if unknown:
            raise SettingsError(
                f"{place} must name client ids from 0 to {num_clients - 1}, got {unknown[0]}"
            )
        return {client: float(loss) for client, loss in given.items()}
    if not isinstance(given, Sequence):
        return dict.fromkeys(range(num_clients), float(given))
    if len(given) != num_clients:
        raise SettingsError(
            f"{place} must have one number for each of the {num_clients} clients in the data, got "
            f"{len(given)}"
        )
    return dict(enumerate(map(float, given)))
