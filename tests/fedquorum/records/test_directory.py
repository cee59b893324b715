"""The directories of runs."""

import json
from pathlib import Path

import pytest
from fedquorum.errors import RunError
from fedquorum.records.directory import new_run_directory, remove_unfinished


def test_runs_of_the_same_second_get_their_own_directories(tmp_path: Path) -> None:
    """The second one gets a number."""
    made = {new_run_directory(tmp_path, "a/b") for _ in range(3)}
    assert len(made) == 3
    assert all(d.is_absolute() and d.parent == tmp_path / "a" / "b" for d in made)


def test_only_what_did_not_complete_is_removed(tmp_path: Path) -> None:
    """The records go, the settings stay; a completed run is left as it is."""
    for status in ("failed", "completed"):
        run = tmp_path / status
        (run / "clients").mkdir(parents=True)
        (run / "config.yaml").write_text("seed: 1\n")
        (run / "manifest.json").write_text(json.dumps({"status": status}))
    remove_unfinished(tmp_path / "failed")
    assert [path.name for path in (tmp_path / "failed").iterdir()] == ["config.yaml"]
    with pytest.raises(RunError, match=r"must not hold a run already, got .*completed"):
        remove_unfinished(tmp_path / "completed")
    assert (tmp_path / "completed" / "clients").is_dir()
