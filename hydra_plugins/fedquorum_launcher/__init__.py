"""Run the jobs of ``fedquorum -m hydra/launcher=ray``; Hydra looks for plugins here.

Hydra imports this module at every start, so Ray is imported only for jobs.
"""

import atexit
from collections.abc import Sequence
from contextlib import ExitStack

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class RayLauncher(Launcher):
    """Runs jobs as tasks of a Ray cluster; see ``server_app.sweeps.ray_launcher``.

    Parameters
    ----------
    address : str or None
        The HOST:PORT of the cluster; None takes the environment variable RAY_ADDRESS. Without the
        variable, and with ``local``, Ray is started on this machine.
    cores, gpus : int
        The resources of each job; ``gpus`` may be None, see ``JobResources``.
    """

    ends_jobs = True
    """A KeyboardInterrupt ends the jobs too."""

    def __init__(self, address: str | None, cores: int, gpus: int | None) -> None:
        self._address = address
        self._cores = cores
        self._gpus = gpus
        # Left only at exit: a process that leaves and rejoins Ray repeatedly may crash.
        self._cluster = ExitStack()
        atexit.register(self._cluster.close)

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Store the arguments that Hydra passes to a launcher."""
        self._context, self._function, self._config = hydra_context, task_function, config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run jobs and wait for their end; the sweep reads the results from their folders."""
        del initial_job_idx
        from server_app.engines.ray.cluster import join_cluster
        from server_app.sweeps.ray_launcher import JobResources, launch

        resources = JobResources(self._cores, self._gpus)
        setting = "hydra.launcher.address"
        self._cluster.enter_context(join_cluster(self._address, setting=setting, cores=self._cores))
        launch(resources, self._context, self._function, self._config, job_overrides)
        return []
