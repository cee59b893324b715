"""Run the sweeps of ``fedquorum -m``; Hydra looks for plugins here.

Hydra imports this module at every start, so the code of the sweep is imported only for a sweep.
"""

from collections.abc import Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf


class GridSweeper(Sweeper):
    """Runs all combinations of the given values; see ``server_app.sweeps.sweep``."""

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Store the arguments that Hydra passes to a sweeper."""
        self._parser = OverridesParser.create(config_loader=hydra_context.config_loader)
        self._config = config
        self._launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        """Run the jobs; end the process unless all completed.

        Raises
        ------
        SweepRefused, SweepUnfinished
            Both end the process, which Hydra allows; it adds a trace to every other error.
        """
        from fedquorum.errors import FedQuorumError

        from server_app.runs.job import SweepRefused

        overrides = self._parser.parse_overrides(arguments)
        try:
            self._sweep([o for o in overrides if o.get_key_element() != "engine.jobs"])
        except FedQuorumError as error:
            raise SweepRefused(error) from None

    def _sweep(self, overrides: Sequence[Override]) -> None:
        from server_app.sweeps.sweep import run_grid

        run_grid(self._config, self._launcher, overrides)


class StudySweeper(GridSweeper):
    """Runs a study; see ``server_app.study``."""

    def __init__(self, **study: Any) -> None:
        self._study = study

    def _sweep(self, overrides: Sequence[Override]) -> None:
        from server_app.study.run import run_study
        from server_app.study.settings import StudySettings

        settings: Any = OmegaConf.to_container(OmegaConf.create(self._study))
        run_study(self._config, self._launcher, overrides, StudySettings(**settings))


class OptunaSweeper(GridSweeper):
    """Runs values that Optuna chooses; see ``server_app.sweeps.optuna``."""

    def __init__(self, **tuning: Any) -> None:
        self._tuning = tuning

    def _sweep(self, overrides: Sequence[Override]) -> None:
        from server_app.sweeps.optuna import Tuning, tune

        tune(self._config, self._launcher, overrides, Tuning(**self._tuning))
