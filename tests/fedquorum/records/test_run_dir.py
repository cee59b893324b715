"""Tests of creating, locking, truncating and clearing run directories."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fedquorum.errors import RunError
from fedquorum.records.run_dir import (
    can_start_run,
    create_new_directory,
    create_run_directory,
    holds_run,
    lock_run,
    read_manifest_or_empty,
    refuse_links,
    remove_run_files,
    remove_unfinished,
    truncate_records,
)


def test_runs_of_the_same_second_get_their_own_directories(tmp_path: Path) -> None:
    """Later directories get a number."""
    directories = {create_run_directory(tmp_path, "a/b") for _ in range(3)}
    assert len(directories) == 3
    assert all(d.is_absolute() and d.parent == tmp_path / "a" / "b" for d in directories)


def test_threads_that_want_the_same_directory_get_one_each(tmp_path: Path) -> None:
    """The name says which came first."""
    with ThreadPoolExecutor(16) as pool:
        wanted = [tmp_path / "x" / "now"] * 64
        directories = set(pool.map(create_new_directory, wanted))
    names = {"now", *(f"now-{number}" for number in range(2, 65))}
    assert {path.name for path in directories} == names


def test_only_unfinished_runs_are_removed(tmp_path: Path) -> None:
    """The records go and the settings stay; a completed run is unchanged."""
    for status in ("failed", "completed"):
        run = tmp_path / status
        (run / "clients").mkdir(parents=True)
        (run / "config.yaml").write_text("seed: 1\n")
        (run / "manifest.json").write_text(json.dumps({"status": status}))
    remove_unfinished(tmp_path / "failed")
    assert [path.name for path in (tmp_path / "failed").iterdir()] == ["config.yaml"]
    with pytest.raises(RunError, match=r"must not hold a run, got .*completed"):
        remove_unfinished(tmp_path / "completed")
    assert (tmp_path / "completed" / "clients").is_dir()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a run's directory with a few files, beside a folder with a foreign file."""
    for folder in ("outside", "run/clients", "run/tensorboard", "run/checkpoints"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("outside/file", "run/rounds.jsonl", "run/clients/part-00000.parquet"):
        (tmp_path / name).write_text("12345")
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("rounds.jsonl", "file"),
        ("manifest.json", "file"),
        ("clients/part-00000.parquet", "file"),
        ("clients/part-00001.parquet", "file"),
        ("clients", "."),
        ("evaluations", "."),
        ("checkpoints", "."),
        ("tensorboard", "."),
        ("wandb", "."),
    ],
)
def test_a_run_with_links_does_not_resume(run: Path, name: str, target: str) -> None:
    """The next rounds would write outside the folder."""
    refuse_links(run)
    path = run / name
    if path.is_dir():
        path.rename(run / "aside")
    else:
        path.unlink(missing_ok=True)
    path.symlink_to(run.parent / "outside" / target)
    with pytest.raises(RunError, match=rf"run/{name} must be a file or folder of the run, got"):
        refuse_links(run)


def test_a_run_with_hard_links_outside_does_not_resume(run: Path) -> None:
    """The truncation would affect the outside file, too."""
    (run / "rounds.jsonl").unlink()
    (run / "rounds.jsonl").hardlink_to(run.parent / "outside" / "file")
    with pytest.raises(RunError, match=r"rounds\.jsonl must be a file or folder of the run"):
        refuse_links(run)


def test_records_are_truncated_and_never_extended(run: Path) -> None:
    """TensorBoard's events may be shorter than recorded, as after a power cut."""
    (run / "tensorboard" / "events").write_text("12")
    truncate_records(run, {"rounds.jsonl": 3, "tensorboard/events": 4})
    assert (run / "rounds.jsonl").read_text() == "123"
    assert (run / "tensorboard" / "events").read_text() == "12"


def test_partial_files_are_removed(run: Path) -> None:
    """Partial files of records and tables go; the tables' writer truncates complete files."""
    parts = (".manifest.json.part", "clients/.part-00001.parquet.part")
    for name in (*parts, "checkpoints/.round-000003.safetensors.part"):
        (run / name).write_text("12")
    truncate_records(run, {"rounds.jsonl": 5, "clients": 1})
    assert [path for path in run.rglob("*.part") if path.is_file()] == []
    assert (run / "clients" / "part-00000.parquet").exists()


def test_only_one_process_can_lock_a_run(run: Path) -> None:
    """Two processes would mix their lines."""
    lock = lock_run(run)
    with pytest.raises(RunError, match=f"^another process is at work on the run in {run}$"):
        lock_run(run)
    os.close(lock)
    os.close(lock_run(run))


def test_a_link_is_removed_but_not_its_target(run: Path) -> None:
    """The target stays."""
    (run / "evaluations").symlink_to(run.parent / "outside")
    remove_unfinished(run)
    assert not (run / "evaluations").is_symlink()
    assert (run.parent / "outside" / "file").exists()


OURS = (
    "rounds.jsonl",
    "population.parquet",
    "manifest.json",
    ".manifest.json.part",
    "model.safetensors",
    "mean_model.safetensors",
    ".model.safetensors.part",
    "model_card.json",
    "clients/part-00000.parquet",
    "clients/part-00001.parquet",
    "evaluations/.part-00003.parquet.part",
    "tensorboard/events.out.tfevents.1700000000.host.1.0",
    "checkpoints/round-000004.safetensors",
    "checkpoints/round-000004.sha256",
    "checkpoints/.round-000006.safetensors.part",
)
THEIRS = (
    "config.yaml",
    "notes.txt",
    "rounds.jsonl.bak",
    ".notes.part",
    "clients/part-1.parquet",
    "clients/part-000001.parquet",
    "clients/list.csv",
    "evaluations/mine.parquet",
    "tensorboard/readme.md",
    "checkpoints/best.safetensors",
    "checkpoints/round-000004.safetensors.sha256",
    "plots/clients/part-00000.parquet",
)


def test_only_files_that_a_run_writes_are_removed(tmp_path: Path) -> None:
    """A user's files stay, even beside the run's; empty folders are removed."""
    for name in (*OURS, *THEIRS):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    remove_run_files(tmp_path)
    left = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {tmp_path / name for name in THEIRS}
    for name in THEIRS:
        (tmp_path / name).unlink()
    remove_run_files(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["plots"]


def test_a_model_without_settings_is_foreign(tmp_path: Path) -> None:
    """A run writes its settings first."""
    model = tmp_path / "model.safetensors"
    for settings in (False, True):
        model.write_bytes(b"theirs")
        if settings:
            (tmp_path / "config.yaml").write_text("seed: 1\n")
        remove_run_files(tmp_path)
        assert model.exists() is not settings


def test_a_locked_run_is_not_removed(run: Path) -> None:
    """Its manifest does not matter."""
    lock = lock_run(run)
    with pytest.raises(RunError, match="another process is at work on the run in"):
        remove_unfinished(run)
    assert (run / "rounds.jsonl").exists()
    os.close(lock)
    remove_unfinished(run)
    assert list(run.iterdir()) == []


def test_a_run_may_start_only_in_a_folder_without_runs(run: Path) -> None:
    """It may start neither without a folder nor above other runs."""
    assert can_start_run(run)
    assert not can_start_run(run / "none")
    assert not can_start_run(run / "rounds.jsonl")
    for folder in (run, run / "0", run / "outputs" / "fmnist" / "today"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "manifest.json").write_text("{}")
        assert not can_start_run(run)
        (folder / "manifest.json").unlink()
        assert can_start_run(run)


@pytest.mark.parametrize("text", ["[]", "[" * 100_000, "{", '"completed"'])
def test_an_unreadable_manifest_counts_as_empty(run: Path, text: str) -> None:
    """A manifest behind a link does, too."""
    (run / "manifest.json").write_text(text)
    assert read_manifest_or_empty(run) == {}
    (run / "manifest.json").unlink()
    (run.parent / "outside" / "file").write_text('{"status": "completed"}')
    (run / "manifest.json").symlink_to(run.parent / "outside" / "file")
    assert read_manifest_or_empty(run) == {}


@pytest.mark.parametrize(
    ("facts", "holds"),
    [
        ({"status": "failed"}, False),
        ({"status": "interrupted"}, False),
        ({"status": "running"}, False),
        ({"status": "completed"}, True),
        ({"status": "failed", "rounds_completed": 1}, True),
        ({"status": "failed", "resumed": [{"round": 0}]}, True),
        ({"status": "failed", "privacy": {"epsilon": 1.0}}, True),
        ({"status": "failed", "rounds_completed": None}, True),
        ({}, True),
    ],
)
def test_a_failed_start_leaves_its_folder_free(
    tmp_path: Path, facts: dict[str, object], holds: bool
) -> None:
    """Unless a round ended, or a model was released whose privacy cost counts."""
    assert not holds_run(tmp_path)
    manifest = {"rounds_completed": 0, "resumed": [], **facts}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    assert holds_run(tmp_path) == holds


def test_a_damaged_manifest_is_one_of_a_run(tmp_path: Path) -> None:
    """Nobody knows what it says, so nothing is overwritten."""
    (tmp_path / "manifest.json").write_text("{")
    assert holds_run(tmp_path)
