"""Start a run's workers on Ray from its settings."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from flwr.clientapp import ClientApp

from client_app.data import load_data
from conf import Settings
from conf.schema.secure_sums import choose_num_nodes
from server_app.engines.ray.cluster import divide_cluster, join_cluster, list_machines
from server_app.engines.ray.grid import RayGrid
from server_app.engines.ray.worker import SharedData, WorkerConfig
from server_app.engines.ray.worker_pool import RayWorkerPool
from server_app.provenance import collect_code_facts


@contextmanager
def start_ray_grid(
    client_app: ClientApp, run_config: Mapping[str, Any], settings: Settings
) -> Iterator[RayGrid]:
    """Join or start Ray, start the workers, and yield a grid to the nodes that they host.

    In the end the workers are stopped, and Ray too if it was started here.

    Parameters
    ----------
    client_app, run_config : ClientApp, mapping
        As in ``HostedNodes``.
    settings : Settings
        The run's settings.

    Raises
    ------
    FedQuorumError
        If the data, the cluster or a worker cannot be used.
    """
    engine, device = settings.engine, settings.client.device
    data = load_data(settings.data, settings.seed)
    num_nodes = choose_num_nodes(settings, data.num_clients)
    with join_cluster(engine.address, cores=engine.workers or 1):
        max_workers = num_nodes or data.num_clients
        resources = divide_cluster(
            list_machines(), engine.workers, max_workers=max_workers, gpus_wanted=device != "cpu"
        )
        config = WorkerConfig(
            client_app=client_app,
            run_config=run_config,
            num_nodes=num_nodes or resources.workers,
            device=device,
            code=collect_code_facts(),
            data=SharedData(settings.data, settings.seed, data) if engine.share_data else None,
        )
        threads = min(resources.cores, _get_allowed_threads())
        pool = RayWorkerPool(
            resources, config, threads=threads, startup_timeout=engine.startup_timeout
        )
        with pool.keep_running():
            yield RayGrid(pool)


def _get_allowed_threads() -> int:
    """Return the number of threads that the environment allows each process."""
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return int(limit) if limit.isdecimal() else (os.cpu_count() or 1)
