"""What a job of a sweep gets of a cluster; the tasks themselves are in tests/integration."""

import re
from pathlib import Path
from typing import cast

import pytest
from fedquorum.errors import RunError, SettingsError
from hydra.core.singleton import Singleton
from hydra.types import HydraContext
from omegaconf import OmegaConf

from server_app.provenance import collect_code_facts
from server_app.ray_engine.cluster import Machine
from server_app.ray_engine.launcher import HydraSweep, JobResources, run_sweep_job

SMALL, LARGE = Machine(2), Machine(8, 1)


@pytest.mark.parametrize(
    ("gpus", "machines", "expected"),
    [
        (None, [SMALL], Machine(2, 0)),
        (None, [SMALL, LARGE], Machine(2, 1)),
        (0, [SMALL, LARGE], Machine(2, 0)),
        (1, [LARGE], Machine(2, 1)),
    ],
)
def test_one_gpu_a_job(gpus: int | None, machines: list[Machine], expected: Machine) -> None:
    """Where there is one, unless the user says otherwise."""
    assert JobResources(2, gpus).resolve(machines) == expected


@pytest.mark.parametrize(
    ("cores", "gpus", "told"),
    [
        (0, None, "hydra.launcher.cores must be a whole number >= 1, got 0"),
        (1.5, None, "hydra.launcher.cores must be a whole number >= 1, got 1.5"),
        (True, None, "hydra.launcher.cores must be a whole number >= 1, got True"),
        (1, -1, "hydra.launcher.gpus must be null or a whole number >= 0, got -1"),
        (1, "all", "hydra.launcher.gpus must be null or a whole number >= 0, got all"),
    ],
)
def test_resources_that_cannot_be(cores: int, gpus: int | None, told: str) -> None:
    """One line that names the setting."""
    with pytest.raises(SettingsError, match=f"^{re.escape(told)}$"):
        JobResources(cores, gpus)


@pytest.mark.parametrize(("cores", "gpus"), [(9, 0), (1, 2), (4, 1)])
def test_more_than_any_machine_has(cores: int, gpus: int) -> None:
    """Ray would wait for ever."""
    told = (
        rf"must be what one machine .*, got {cores} and {gpus}: its machines have 8 and 0, 2 and 1$"
    )
    with pytest.raises(SettingsError, match=told):
        JobResources(cores, gpus).resolve([Machine(8), Machine(2, 1)])


def sweep_of(code: dict[str, str | None], directory: Path) -> HydraSweep:
    config = OmegaConf.create()
    context = cast("HydraContext", None)  # it gets no further
    return HydraSweep(context, lambda _: None, config, Singleton.get_state(), code, str(directory))


def test_a_process_that_cannot_run_jobs(tmp_path: Path) -> None:
    """With other code, or without the folder that relative paths begin at."""
    other = {**collect_code_facts(), "torch": "1.0"}
    with pytest.raises(RunError, match=r"^all workers must have the code .* torch is \S+ on"):
        run_sweep_job(sweep_of(other, tmp_path), [], 0)
    with pytest.raises(RunError, match=r"^all machines must have the sweep's working directory: "):
        run_sweep_job(sweep_of(collect_code_facts(), tmp_path / "missing"), [], 0)
