"""Tests of the folders of runs and sweeps that start at the same time."""

import re
from pathlib import Path

import pytest

from conf.compose import compose_job
from server_app.runs.new_folders import NewFolders, replace_folder


def start(kind: str, *overrides: str) -> tuple[str, list[str]]:
    """Return the folder of a run or a sweep that starts, and Hydra's overrides."""
    with compose_job(overrides) as config:
        if kind == "run":
            NewFolders().on_run_start(config)
        else:
            replace_folder(config, kind)
        return str(config.hydra[kind].dir), list(config.hydra.overrides.hydra)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["run", "sweep"])
def test_each_gets_a_folder(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the user wrote the pattern; the jobs of a sweep follow."""
    monkeypatch.chdir(tmp_path)
    pattern = f"hydra.{kind}.dir='a b/${{now:%Y}}'"  # the same for a year
    folders = [start(kind, pattern) for _ in range(3)]
    first = folders[0][0]
    assert re.fullmatch(r"a b/\d{4}", first)
    assert [folder for folder, _ in folders] == [first, f"{first}-2", f"{first}-3"]
    assert sorted(path.name for path in Path("a b").iterdir()) == [
        Path(folder).name for folder, _ in folders
    ]
    assert folders[2][1][-1] == f"hydra.{kind}.dir='{first}-3'"


def test_the_default_has_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is below the experiment's name, and exists."""
    monkeypatch.chdir(tmp_path)
    folder, _ = start("run", "experiment=fedalign/fmnist")
    assert re.fullmatch(r"outputs/fedalign/fmnist/[\d-]{10}_[\d-]{8}", folder)
    assert Path(folder).is_dir()


def test_a_folder_that_the_user_names_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run resumes there, or a sweep continues."""
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()
    assert start("run", "hydra.run.dir=mine")[0] == "mine"
    assert start("sweep", "hydra.sweep.dir=mine")[0] == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_folder_that_cannot_be_created_is_left_to_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails there with its own line."""
    monkeypatch.chdir(tmp_path)
    Path("outputs").touch()
    assert start("run")[0].startswith("outputs/")
