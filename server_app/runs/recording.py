"""Write the records of the app's runs with the library's ``RunWriter``."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedquorum import ComposedStrategy
from fedquorum.records.callback import FinishedRound, RunCallback
from fedquorum.records.checkpoint import Checkpoint
from fedquorum.records.client_names import ClientNames
from fedquorum.records.hosts import Host
from fedquorum.records.provenance import RunInfo, find_commit, get_versions
from fedquorum.records.reader import read_client_names
from fedquorum.records.writer import RunWriter
from fedquorum.rules.composition import RuleSet
from fedquorum.rules.state_arrays import StateArrays

from conf import ComposedConfig, Settings
from conf.schema.settings import get_evaluation_metric
from server_app.provenance import CODE_PATHS, PACKAGES, SOURCE_ROOT
from server_app.runs.trackers import build_observers

RESUME_PREFIXES = (
    "resume=",
    "engine.on_numerics_change=",
    "engine.trust_code=",
    "engine.stop_after_round=",
)
"""Prefixes of the overrides that hold for one resumption only, and are not recorded."""


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
    """Create the writer of a run's records, a context manager.

    Parameters
    ----------
    directory : Path
        The run's directory; see ``RunWriter``.
    composed : ComposedConfig
        The run's settings.
    rules : RuleSet
        The strategy's rules, for the bound on their regret.
    engine : str
        ``in-process``, ``ray`` or ``flower``, for the manifest.
    arithmetic : mapping, optional
        The manifest's entry for the clients' arithmetic; see ``server_app.runs.numerics``.
    data : mapping, optional
        The manifest's entry for the data; see ``client_app.data.summary``.
    resumed : Checkpoint, optional
        The checkpoint from which the run in ``directory`` resumes.

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
        observers=build_observers(composed),
        regret_bound=rules.compute_regret_bound,
        personal_models=tuple(composed.settings.evaluation.personal_epochs),
        has_average_precision=get_evaluation_metric(composed.settings) == "auroc",
        resumed=resumed,
    )


class NameRecorder(RunCallback):
    """Records the names that devices report for clients during the run, and who hosts a client.

    Parameters
    ----------
    directory : Path
        The run's directory; a name that an earlier leg recorded stays.
    strategy : ComposedStrategy
    save : callable
        Writes the table of clients with ``names`` and ``hosts``.
    has_names : bool
        Whether the records have names.
    """

    def __init__(
        self,
        directory: Path,
        strategy: ComposedStrategy,
        save: Callable[..., None],
        *,
        has_names: bool,
    ) -> None:
        self._has_names = has_names
        self._hosts: Mapping[int, Host] = {}
        self._directory = directory
        self._strategy = strategy
        self._save = save

    def start_rounds(self, server_round: int, get_model: Callable[[], StateArrays]) -> None:
        """Read the names that the records have."""
        self._recorded = read_client_names(self._directory)

    def end_round(self, finished: FinishedRound) -> None:
        """Write the table of clients again if there are further names, or other nodes."""
        reported = self._strategy.client_names.names if self._has_names else {}
        known, hosts = (
            ClientNames({**self._recorded.names, **reported}),
            self._strategy.client_hosts,
        )
        if known != self._recorded or hosts != self._hosts:
            self._save(names=known, hosts=hosts)
            self._recorded, self._hosts = known, hosts


def drop_resume_settings(settings: Settings) -> Settings:
    """Reset the settings that hold for one resumption only."""
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
            item for item in composed.overrides if not item.startswith(RESUME_PREFIXES)
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
