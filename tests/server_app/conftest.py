"""Run sweeps without training: a launcher whose jobs call a function of the test."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from fedquorum.io import lock
from fedquorum.records.run_dir import remove_unfinished
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig, OmegaConf

from conf.compose import compose_overrides
from server_app.runs.job import LOCK_FILE

JobFunction = Callable[[Path, tuple[str, ...]], None]


class ScriptedLauncher(Launcher):
    """Calls ``run_job`` for every job in this process, with the job's lock held."""

    def __init__(self, sweep: Path, run_job: JobFunction) -> None:
        self.run_job = run_job
        self.launched: list[list[int]] = []
        self._sweep = sweep

    def setup(self, **_: Any) -> None:
        """Do nothing, because the launcher needs no setup."""

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run the jobs one after the other."""
        numbers = [int(job[-1].removeprefix("hydra.sweep.subdir=")) for job in job_overrides]
        self.launched.append(numbers)
        for number, overrides in zip(numbers, job_overrides, strict=True):
            directory = self._sweep / str(number)
            directory.mkdir(exist_ok=True)
            with lock(directory / LOCK_FILE):
                for name in ("error.txt", "job.todo"):
                    (directory / name).unlink(missing_ok=True)
                remove_unfinished(directory)
                self.run_job(directory, tuple(overrides[:-1]))
        return []


def write_run(
    directory: Path, overrides: Sequence[str], status: str = "completed", rounds: int = 2
) -> None:
    """Write the records of a run that a sweep reads."""
    directory.mkdir(exist_ok=True)
    (directory / "config.yaml").write_text(compose_overrides(tuple(overrides)).to_yaml())
    (directory / "manifest.json").write_text(json.dumps({"status": status, "error": "it broke"}))
    lines = [
        {"round": r, "global_loss": 1 / r, "test": None, "admitted": 3, "selected": 4}
        for r in range(1, rounds + 1)
    ]
    (directory / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def sweep_config(tmp_path: Path) -> DictConfig:
    """Return the part of Hydra's settings that a sweep reads."""
    return OmegaConf.create(
        {
            "engine": {"jobs": 2},
            "hydra": {"sweep": {"dir": str(tmp_path / "sweep")}, "overrides": {"hydra": []}},
        }
    )


@pytest.fixture
def launcher(tmp_path: Path) -> ScriptedLauncher:
    """Return a launcher whose jobs all complete."""
    return ScriptedLauncher(tmp_path / "sweep", write_run)
