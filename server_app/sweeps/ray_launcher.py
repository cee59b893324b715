"""Run the jobs of a sweep as tasks of a Ray cluster, for ``hydra/launcher=ray``."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import torch
from fedquorum.errors import RunError, SettingsError
from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import run_job, setup_globals
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict
from ray.exceptions import RayError, RayTaskError

from server_app.engines.ray.cluster import Machine, list_machines
from server_app.engines.ray.worker_pool import describe_worker_error, get_result
from server_app.provenance import check_same_code, collect_code_facts
from server_app.runs.signals import mark_as_worker

GRACE_SECONDS = 60.0  # time for jobs to write their records after an interruption


@dataclass(frozen=True)
class JobResources:
    """The resources of each job: the settings of ``hydra/launcher=ray``.

    Parameters
    ----------
    cores : int
        Whole cores.
    gpus : int, optional
        Whole GPUs; by default one if the cluster has any.

    Raises
    ------
    SettingsError
        If a number is not allowed.
    """

    cores: int
    gpus: int | None

    def __post_init__(self) -> None:
        if not _is_whole_number(self.cores, 1):
            raise SettingsError(
                f"hydra.launcher.cores must be a whole number >= 1, got {self.cores}"
            )
        if self.gpus is not None and not _is_whole_number(self.gpus, 0):
            raise SettingsError(
                f"hydra.launcher.gpus must be null or a whole number >= 0, got {self.gpus}"
            )

    def resolve(self, cluster: Sequence[Machine]) -> Machine:
        """Return the resources of a job in this cluster.

        Raises
        ------
        SettingsError
            If no machine has as many, because Ray would wait for one.
        """
        gpus = int(any(machine.gpus for machine in cluster)) if self.gpus is None else self.gpus
        if not any(m.cores >= self.cores and m.gpus >= gpus for m in cluster):
            raise SettingsError(
                "hydra.launcher.cores and hydra.launcher.gpus must be what one machine of the "
                f"cluster has, got {self.cores} and {gpus}: its machines have "
                + ", ".join(f"{m.cores} and {m.gpus}" for m in cluster)
            )
        return Machine(self.cores, gpus)


def _is_whole_number(value: object, minimum: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= minimum


@dataclass(frozen=True)
class HydraSweep:
    """The state of Hydra and of this process that a task needs to run one job.

    Parameters
    ----------
    context, function, config : HydraContext, callable, DictConfig
        The arguments that Hydra passes to a launcher.
    state : mapping
        Hydra's global objects.
    code : mapping
        The versions that the task's process must have; see ``collect_code_facts``.
    directory : str
        The working directory, for relative paths.
    """

    context: HydraContext
    function: TaskFunction
    config: DictConfig
    state: Mapping[Any, Any]
    code: Mapping[str, str | None]
    directory: str


def launch(
    resources: JobResources,
    context: HydraContext,
    function: TaskFunction,
    config: DictConfig,
    batch: Sequence[Sequence[str]],
) -> None:
    """Run jobs, as many at a time as the cluster's resources allow, and wait for their end.

    Each job writes its result into its folder. The process must have joined a cluster; see
    ``join_cluster``.

    Raises
    ------
    FedQuorumError
        If a job cannot start, for example because a machine has other code.
    RayError
        If a process died; the other jobs have ended.
    """
    job = resources.resolve(list_machines())
    task = ray.remote(num_cpus=job.cores, num_gpus=job.gpus, max_retries=0)(run_sweep_job)
    state = Singleton.get_state()
    sweep = ray.put(
        HydraSweep(context, function, config, state, collect_code_facts(), str(Path.cwd()))
    )
    tasks = [task.remote(sweep, list(overrides), i) for i, overrides in enumerate(batch)]
    try:
        ray.wait(tasks, num_returns=len(tasks))
    except KeyboardInterrupt:
        for one in tasks:
            with suppress(RayError):
                ray.cancel(one)  # raises KeyboardInterrupt in it
        ray.wait(tasks, num_returns=len(tasks), timeout=GRACE_SECONDS)
        raise
    for one in tasks:
        try:
            get_result(one)
        except RayTaskError as error:
            raise RunError(describe_worker_error(error)) from None


def run_sweep_job(sweep: HydraSweep, overrides: list[str], number: int) -> None:
    """Run one job in a process of Ray.

    Raises
    ------
    RunError
        If this process cannot run jobs of the sweep.
    """
    check_same_code(sweep.code)
    try:
        os.chdir(sweep.directory)
    except OSError as error:
        raise RunError(f"all machines must have the sweep's working directory: {error}") from None
    # Ray sets this variable to the number of the task's cores.
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    mark_as_worker()
    setup_globals()
    Singleton.set_state(dict(sweep.state))
    config = sweep.context.config_loader.load_sweep_config(sweep.config, overrides)
    with open_dict(config):
        config.hydra.job.id = f"{config.hydra.job.name}_{number}"
        config.hydra.job.num = number
    HydraConfig.instance().set_config(config)
    run_job(
        task_function=sweep.function,
        config=config,
        job_dir_key="hydra.sweep.dir",
        job_subdir_key="hydra.sweep.subdir",
        hydra_context=sweep.context,
    )
