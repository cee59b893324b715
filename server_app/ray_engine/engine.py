"""A run on Ray, from its settings to the Grid."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from flwr.clientapp import ClientApp

from client_app.data import load_data
from conf import Settings
from server_app.provenance import code_facts
from server_app.ray_engine.cluster import joined, machines, share_of
from server_app.ray_engine.fleet import Fleet
from server_app.ray_engine.grid import RayGrid
from server_app.ray_engine.worker import HandedData, Hosting


@contextmanager
def ray_grid(
    client_app: ClientApp, run_config: Mapping[str, Any], settings: Settings
) -> Iterator[RayGrid]:
    """Join or start Ray, start the workers, and return a grid to the nodes that they host.

    In the end the workers are stopped, and Ray too if it was started here.

    Parameters
    ----------
    client_app, run_config : ClientApp, mapping
        As of ``HostedNodes``.
    settings : Settings
        The run's settings.

    Raises
    ------
    FedQuorumError
        If the data, the cluster or a worker cannot be used.
    """
    engine, device = settings.engine, settings.client.device
    data = load_data(settings.data, settings.seed)
    with joined(engine.address, cores=engine.workers or 1):
        at_most = engine.num_supernodes or data.num_clients
        share = share_of(machines(), engine.workers, at_most=at_most, gpus_wanted=device != "cpu")
        hosting = Hosting(
            client_app=client_app,
            run_config=run_config,
            num_nodes=engine.num_supernodes or share.workers,
            device=device,
            code=code_facts(),
            data=HandedData(settings.data, settings.seed, data) if engine.share_data else None,
        )
        threads = min(share.cores, _allowed_threads())
        fleet = Fleet(share, hosting, threads=threads, startup_timeout=engine.startup_timeout)
        with fleet.started():
            yield RayGrid(fleet)


def _allowed_threads() -> int:
    """Return how many threads the environment allows a process to have."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdecimal() else (os.cpu_count() or 1)
