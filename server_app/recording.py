"""Write the records of the app's runs with the library's ``RunWriter``."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedquorum.composition import RuleSet
from fedquorum.records.checkpoint import Checkpoint
from fedquorum.records.identity import RunInfo
from fedquorum.records.provenance import find_commit, get_versions
from fedquorum.records.writer import RunWriter

from conf import ComposedConfig, Settings
from server_app.provenance import CODE_PATHS, PACKAGES, SOURCE_ROOT
from server_app.trackers import build_callbacks

RESUME_PREFIXES = (
    "resume=",
    "engine.on_numerics_change=",
    "engine.trust_code=",
    "engine.stop_after_round=",
)
"""Words that are meant for one interruption, and not for the next one."""


def create_run_writer(
    directory: Path,
    composed: ComposedConfig,
    rules: RuleSet,
    *,
    engine: str,
    arithmetic: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
    resumed: Checkpoint | None = None,
) -> RunWriter:
    """Return the records of a run, to be used as a context manager.

    Parameters
    ----------
    directory : Path
        Where to write; see ``RunWriter``.
    composed : Composed
        The run's settings.
    rules : Rules
        The strategy's rules, for the bound on their regret.
    engine : str
        ``in-process``, ``ray`` or ``flower``, for the manifest.
    arithmetic : mapping, optional
        What the manifest says of the clients' arithmetic, see ``server_app.numerics``.
    data : mapping, optional
        What the manifest says of the data, see ``client_app.data.summary``.
    resumed : Checkpoint, optional
        Go on with the run in ``directory`` from there.

    Raises
    ------
    RunError
        As ``RunWriter``.
    SettingsError
        If the tracker is not installed.
    """
    return RunWriter(
        directory,
        _build_run_info(composed, engine, arithmetic or {}, data or {}),
        replace(composed, settings=drop_resume_settings(composed.settings)).to_yaml(),
        observers=build_callbacks(composed),
        regret_bound=rules.compute_regret_bound,
        resumed=resumed,
    )


def drop_resume_settings(settings: Settings) -> Settings:
    """Return the settings of a run that nobody interrupted."""
    engine = replace(
        settings.engine, on_numerics_change="same", trust_code=False, stop_after_round=None
    )
    return replace(settings, resume=None, engine=engine)


def _build_run_info(
    composed: ComposedConfig, engine: str, arithmetic: Mapping[str, Any], data: Mapping[str, Any]
) -> RunInfo:
    settings = composed.settings
    return RunInfo(
        experiment=composed.experiment,
        overrides=tuple(
            word for word in composed.overrides if not word.startswith(RESUME_PREFIXES)
        ),
        strategy=settings.strategy.name,
        seed=settings.seed,
        engine=engine,
        device=settings.client.device,
        rounds=settings.rounds,
        source=str(SOURCE_ROOT),
        commit=find_commit(SOURCE_ROOT, CODE_PATHS),
        packages=get_versions(PACKAGES),
        arithmetic=arithmetic,
        data=data,
    )
