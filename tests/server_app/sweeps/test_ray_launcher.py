"""Test the resources of a sweep's jobs on Ray; tests/integration runs the tasks."""

import re
from pathlib import Path
from typing import cast

import pytest
from fedquorum.errors import RunError, SettingsError
from hydra.core.singleton import Singleton
from hydra.types import HydraContext
from omegaconf import OmegaConf

from server_app.engines.ray.cluster import Machine
from server_app.provenance import collect_code_facts
from server_app.sweeps.ray_launcher import HydraSweep, JobResources, run_sweep_job

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
def test_a_job_has_one_gpu_by_default(
    gpus: int | None, machines: list[Machine], expected: Machine
) -> None:
    """It has none if no machine has one, or if the settings give another number."""
    assert JobResources(2, gpus).resolve(machines) == expected


@pytest.mark.parametrize(
    ("cores", "gpus", "message"),
    [
        (0, None, "hydra.launcher.cores must be a whole number >= 1, got 0"),
        (1.5, None, "hydra.launcher.cores must be a whole number >= 1, got 1.5"),
        (True, None, "hydra.launcher.cores must be a whole number >= 1, got True"),
        (1, -1, "hydra.launcher.gpus must be null or a whole number >= 0, got -1"),
        (1, "all", "hydra.launcher.gpus must be null or a whole number >= 0, got all"),
    ],
)
def test_invalid_resources_are_refused(cores: int, gpus: int | None, message: str) -> None:
    """The error is one line with the setting."""
    with pytest.raises(SettingsError, match=f"^{re.escape(message)}$"):
        JobResources(cores, gpus)


@pytest.mark.parametrize(("cores", "gpus"), [(9, 0), (1, 2), (4, 1)])
def test_resources_that_no_machine_has_are_refused(cores: int, gpus: int) -> None:
    """Ray would wait forever."""
    message = (
        rf"must be what one machine .*, got {cores} and {gpus}: its machines have 8 and 0, 2 and 1$"
    )
    with pytest.raises(SettingsError, match=message):
        JobResources(cores, gpus).resolve([Machine(8), Machine(2, 1)])


def make_sweep(code: dict[str, str | None], directory: Path) -> HydraSweep:
    config = OmegaConf.create()
    context = cast("HydraContext", None)  # the job fails before it is used
    return HydraSweep(context, lambda _: None, config, Singleton.get_state(), code, str(directory))


def test_a_process_with_other_code_or_without_the_folder_runs_no_job(tmp_path: Path) -> None:
    """Relative paths need the sweep's working directory."""
    other = {**collect_code_facts(), "torch": "1.0"}
    with pytest.raises(RunError, match=r"^all workers must have the code .* torch is \S+ on"):
        run_sweep_job(make_sweep(other, tmp_path), [], 0)
    with pytest.raises(RunError, match=r"^all machines must have the sweep's working directory: "):
        run_sweep_job(make_sweep(collect_code_facts(), tmp_path / "missing"), [], 0)
