"""Write the records of the app's runs with the library's ``RunRecords``."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedquorum.composition import Rules
from fedquorum.records.checkpoint import Checkpoint
from fedquorum.records.identity import RunIdentity
from fedquorum.records.provenance import commit, versions
from fedquorum.records.writer import RunRecords

from conf import Composed, Settings
from server_app.provenance import CODE, PACKAGES, SOURCE
from server_app.trackers import observers_of

OF_RESUMING = (
    "resume=",
    "engine.on_numerics_change=",
    "engine.trust_code=",
    "engine.stop_after_round=",
)
"""Words that are meant for one interruption, and not for the next one."""


def run_records(
    directory: Path,
    composed: Composed,
    rules: Rules,
    *,
    engine: str,
    arithmetic: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
    resumed: Checkpoint | None = None,
) -> RunRecords:
    """Return the records of a run, to be used as a context manager.

    Parameters
    ----------
    directory : Path
        Where to write; see ``RunRecords``.
    composed : Composed
        The run's settings.
    rules : Rules
        The strategy's rules, for the bound on their regret.
    engine : str
        ``in-process``, ``ray`` or ``flower``, for the manifest.
    arithmetic : mapping, optional
        What the manifest says of the clients' arithmetic, see ``server_app.arithmetic``.
    data : mapping, optional
        What the manifest says of the data, see ``client_app.data.account``.
    resumed : Checkpoint, optional
        Go on with the run in ``directory`` from there.

    Raises
    ------
    RunError
        As ``RunRecords``.
    SettingsError
        If the tracker is not installed.
    """
    return RunRecords(
        directory,
        _identity(composed, engine, arithmetic or {}, data or {}),
        replace(composed, settings=uninterrupted_settings(composed.settings)).to_yaml(),
        observers=observers_of(composed),
        regret_bound=rules.regret_bound,
        resumed=resumed,
    )


def uninterrupted_settings(settings: Settings) -> Settings:
    """Return the settings of a run that nobody interrupted."""
    engine = replace(
        settings.engine, on_numerics_change="same", trust_code=False, stop_after_round=None
    )
    return replace(settings, resume=None, engine=engine)


def _identity(
    composed: Composed, engine: str, arithmetic: Mapping[str, Any], data: Mapping[str, Any]
) -> RunIdentity:
    settings = composed.settings
    return RunIdentity(
        experiment=composed.experiment,
        overrides=tuple(word for word in composed.overrides if not word.startswith(OF_RESUMING)),
        strategy=settings.strategy.name,
        seed=settings.seed,
        engine=engine,
        device=settings.client.device,
        rounds=settings.rounds,
        source=str(SOURCE),
        commit=commit(SOURCE, CODE),
        packages=versions(PACKAGES),
        arithmetic=arithmetic,
        data=data,
    )
