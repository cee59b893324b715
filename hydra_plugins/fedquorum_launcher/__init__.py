"""What ``fedquorum -m hydra/launcher=ray`` runs jobs by, where Hydra looks for plugins.

Hydra imports this module at every start, so Ray is imported when there are jobs.
"""

import atexit
from collections.abc import Sequence
from contextlib import ExitStack

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class RayLauncher(Launcher):
    """Jobs as tasks of a Ray cluster; see ``server_app.ray_engine.launcher``.

    Parameters
    ----------
    address : str or None
        HOST:PORT of the cluster; None takes the environment variable RAY_ADDRESS, and without it,
        as with ``local``, Ray is started on this machine.
    cores, gpus : int
        What each job gets; ``gpus`` may be None, see ``JobResources``.
    """

    ends_jobs = True
    """A KeyboardInterrupt ends the jobs too."""

    def __init__(self, address: str | None, cores: int, gpus: int | None) -> None:
        self._address = address
        self._cores = cores
        self._gpus = gpus
        # Left at the end: a process in which Ray is left and joined again and again may crash.
        self._cluster = ExitStack()
        atexit.register(self._cluster.close)

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Take what Hydra hands to a launcher."""
        self._context, self._function, self._config = hydra_context, task_function, config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run jobs and wait for their end; the sweep reads from their folders how it was."""
        del initial_job_idx
        from server_app.ray_engine.cluster import join_cluster
        from server_app.ray_engine.launcher import JobResources, launch

        resources = JobResources(self._cores, self._gpus)
        setting = "hydra.launcher.address"
        self._cluster.enter_context(join_cluster(self._address, setting=setting, cores=self._cores))
        launch(resources, self._context, self._function, self._config, job_overrides)
        return []
