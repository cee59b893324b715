"""Tests of checkpoints: their files, their checks, and unchanged settings."""

import json
import os
import subprocess
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fedquorum.errors import RunError
from fedquorum.records.checkpoint import Checkpoint, CheckpointStore, check_unchanged, save_arrays
from safetensors import safe_open
from safetensors.numpy import save_file


def make_checkpoint(server_round: int, value: float = 1.0) -> Checkpoint:
    return Checkpoint(
        server_round=server_round,
        model={"z": np.full(2, value), "a": np.array(3, dtype=np.int64)},
        strategy={"weighting.omega": np.ones(4)},
        summary={"responses": np.zeros((0, 3))},
        nodes={"1": np.frombuffer(b"abc", dtype=np.uint8)},
        records={},
        settings={"client.lr": 0.1},
    )


# --- the files -------------------------------------------------------------------------------


def test_a_checkpoint_is_restored_exactly(tmp_path: Path) -> None:
    """Arrays retain dtypes and shapes, and the model its order; sha256sum accepts the checksum."""
    files = CheckpointStore(tmp_path)
    files.save(make_checkpoint(3))
    found = files.find_newest()
    assert found.problems == ()
    assert found.checkpoint is not None
    assert (found.checkpoint.server_round, list(found.checkpoint.model)) == (3, ["z", "a"])
    for field in ("model", "strategy", "summary", "nodes"):
        written, read = getattr(make_checkpoint(3), field), getattr(found.checkpoint, field)
        assert written.keys() == read.keys()
        for name, array in written.items():
            np.testing.assert_array_equal(read[name], array, strict=True)
    assert found.checkpoint.settings == {"client.lr": 0.1}
    command = ["sha256sum", "--check", "round-000003.sha256"]
    subprocess.run(command, cwd=tmp_path / "checkpoints", check=True)


def test_the_last_two_checkpoints_are_kept(tmp_path: Path) -> None:
    """Older checkpoints are removed with their checksums."""
    files = CheckpointStore(tmp_path)
    for server_round in (0, 9, 10, 11):
        files.save(make_checkpoint(server_round))
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == [f"round-0000{n}.{end}" for n in (10, 11) for end in ("safetensors", "sha256")]


DAMAGE: dict[str, Callable[[Path], object]] = {
    "one bit": lambda path: _flip(path, 100),
    "the last bit": lambda path: _flip(path, -1),
    "torn": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: os.truncate(path, 0),
    "no checksum": lambda path: path.with_suffix(".sha256").unlink(),
    "empty checksum": lambda path: os.truncate(path.with_suffix(".sha256"), 0),
    "binary checksum": lambda path: path.with_suffix(".sha256").write_bytes(b"\xff\xfe"),
}


def _flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", sorted(DAMAGE))
def test_a_damaged_checkpoint_falls_back_to_the_previous_one(tmp_path: Path, damage: str) -> None:
    """The search reports the problem of the damaged checkpoint."""
    files = CheckpointStore(tmp_path)
    files.save(make_checkpoint(10))
    files.save(make_checkpoint(20))
    DAMAGE[damage](tmp_path / "checkpoints" / "round-000020.safetensors")
    found = files.find_newest()
    assert found.checkpoint is not None
    assert found.checkpoint.server_round == 10
    (problem,) = found.problems
    assert problem.startswith("round-000020.safetensors ")


def test_only_damaged_checkpoints_are_an_error(tmp_path: Path) -> None:
    """The error names each damaged checkpoint."""
    files = CheckpointStore(tmp_path)
    for server_round in (10, 20):
        files.save(make_checkpoint(server_round))
        DAMAGE["one bit"](tmp_path / "checkpoints" / f"round-0000{server_round}.safetensors")
    with pytest.raises(RunError, match=r"can be used: round-000020.* damaged.*round-000010"):
        files.find_newest()


def test_a_checkpoint_whose_records_are_gone_is_not_used(tmp_path: Path) -> None:
    """Records shorter than it says would leave a gap."""
    files = CheckpointStore(tmp_path)
    (tmp_path / "rounds.jsonl").write_text("12345")
    files.save(make_checkpoint(10))
    later = make_checkpoint(20)
    files.save(Checkpoint(**{**vars(later), "records": {"rounds.jsonl": 6}}))
    found = files.find_newest()
    assert found.checkpoint is not None
    assert found.checkpoint.server_round == 10
    assert "6 bytes of rounds.jsonl" in found.problems[0]


@pytest.mark.parametrize("damage", ["a file less", "torn", "fewer rows", "no folder"])
def test_a_checkpoint_whose_rows_are_gone_is_not_used(tmp_path: Path, damage: str) -> None:
    """Files after a missing or damaged one do not count."""
    folder = tmp_path / "clients"
    folder.mkdir()
    for number in range(3):
        pq.write_table(pa.table({"round": [1, 2]}), folder / f"part-{number:05d}.parquet")
    pq.write_table(pa.table({"round": [1] * 9}), folder / "mine.parquet")
    files = CheckpointStore(tmp_path)
    files.save(make_checkpoint(10))
    files.save(Checkpoint(**{**vars(make_checkpoint(20)), "records": {"clients": 5}}))
    assert files.find_newest().problems == ()
    path = folder / "part-00001.parquet"
    match damage:
        case "a file less":
            path.unlink()
        case "torn":
            os.truncate(path, path.stat().st_size // 2)
        case "fewer rows":
            pq.write_table(pa.table({"round": pa.array([], pa.int64())}), path)
        case _:
            folder.rename(tmp_path / "elsewhere")
    found = files.find_newest()
    assert found.checkpoint is not None
    assert found.checkpoint.server_round == 10
    problem = "round-000020.safetensors goes with 5 rows of clients, there are less"
    assert found.problems == (problem,)


def test_a_run_without_checkpoints_restarts_only_before_its_first_round(
    tmp_path: Path,
) -> None:
    """Nothing else stores the changes of its rounds."""
    files, rounds = CheckpointStore(tmp_path), tmp_path / "rounds.jsonl"
    start = Checkpoint(0, {}, {}, {}, {}, {}, {})
    assert files.build_initial() == start
    rounds.write_text("")
    assert files.build_initial() == start
    rounds.write_text("{}")
    message = f"^resume needs a checkpoint, and the run in {tmp_path} wrote none$"
    with pytest.raises(RunError, match=message):
        files.build_initial()


def test_later_checkpoints_are_deleted_on_resume(tmp_path: Path) -> None:
    """A resumed run writes them again; old ones would not match its records."""
    files = CheckpointStore(tmp_path)
    for server_round in (10, 20):
        files.save(make_checkpoint(server_round))
    files.delete_after(20)
    assert len([*(tmp_path / "checkpoints").iterdir()]) == 4
    files.delete_after(10)
    names = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert names == {"round-000010.safetensors", "round-000010.sha256"}


def test_an_unwritable_checkpoint_folder_is_one_line(tmp_path: Path) -> None:
    """A file blocks the folder's name."""
    (tmp_path / "checkpoints").write_text("")
    message = f"^{tmp_path}/checkpoints cannot be made: File exists$"
    with pytest.raises(RunError, match=message):
        CheckpointStore(tmp_path).save(make_checkpoint(0))


# --- the settings ----------------------------------------------------------------------------

BEFORE = {"rounds": 7, "client.lr": 0.1, "engine.jobs": 1, "engine.node_keys": None}


@pytest.mark.parametrize(
    "changes",
    [{}, {"rounds": 9}, {"engine.jobs": 2, "engine.node_keys": "keys.csv", "engine.more": 3}],
)
def test_a_run_may_resume_with_more_rounds_elsewhere(changes: dict[str, object]) -> None:
    """The number of rounds may grow, and settings with a free prefix may change."""
    check_unchanged(BEFORE, BEFORE | changes, changeable_prefixes=("engine.",))


def test_nan_is_no_change() -> None:
    """NaN is unequal to itself, but a client's requirement may be NaN."""
    given = {"strategy.requirement": [0.5, float("nan")]}
    again = {"strategy.requirement": [0.5, float("nan")]}
    check_unchanged(BEFORE | given, BEFORE | again)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounds": 5}, r"^rounds must be at least 7, as in the run so far, got 5$"),
        ({"client.lr": 0.2}, r"^client\.lr must be 0\.1, as in the run so far, got 0\.2$"),
        (
            {"client.proximal_mu": 0.5},
            r"^client\.proximal_mu must be null, as in the run so far, got 0\.5$",
        ),
        ({"client.lr": None}, r"^client\.lr must be 0\.1, as in the run so far, got null$"),
    ],
)
def test_a_run_does_not_resume_with_other_settings(
    changes: dict[str, object], message: str
) -> None:
    """The error names the setting and both values."""
    with pytest.raises(RunError, match=message):
        check_unchanged(BEFORE, BEFORE | changes, changeable_prefixes=("engine.",))


def test_another_strategy_is_named_first() -> None:
    """Its other settings differ too, and none of them is the reason."""
    before = BEFORE | {"strategy.name": "fedau", "strategy.cutoff": 50}
    now = BEFORE | {"client.lr": 0.2, "strategy.name": "fedavg"}
    with pytest.raises(RunError, match=r"^strategy must be fedau, "):
        check_unchanged(before, now)


def test_another_option_is_named_before_its_settings() -> None:
    """The settings of an option that was not chosen are null, which nobody typed."""
    before = BEFORE | {"model.name": "logistic_regression"}
    now = BEFORE | {"model.name": "mlp", "model.hidden": 200, "availability.p": 0.5}
    with pytest.raises(RunError, match=r"^model must be logistic_regression, .* got mlp$"):
        check_unchanged(before, now)


# --- untrusted files -----------------------------------------------------------------------------


def change_metadata(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the metadata of a checkpoint, and its checksum accordingly."""
    with safe_open(path, framework="numpy") as file:
        metadata = json.loads(file.metadata()["checkpoint"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    change(metadata)
    save_file(tensors, path, {"checkpoint": json.dumps(metadata)})
    digest = sha256(path.read_bytes()).hexdigest()
    path.with_suffix(".sha256").write_text(f"{digest}  {path.name}\n")


@pytest.mark.parametrize(
    "change",
    [
        lambda metadata: metadata.clear(),
        lambda metadata: metadata.update(records=5),
        lambda metadata: metadata.update(records={"rounds.jsonl": "5"}),
        lambda metadata: metadata.update(records={"../outside": 1}),
        lambda metadata: metadata.update(records={"/etc/passwd": 1}),
        lambda metadata: metadata.update(settings=[1]),
        lambda metadata: metadata.update(model=["none"]),
        lambda metadata: metadata.update(round=10**9),
        lambda metadata: metadata.update(round="\x1b[31m"),
    ],
)
def test_a_forged_checkpoint_is_one_line(
    tmp_path: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    """Its checksum is right, but its content is invalid."""
    run = tmp_path / "run"
    run.mkdir()
    (tmp_path / "outside").write_text("12345")
    files = CheckpointStore(run)
    files.save(make_checkpoint(10))
    change_metadata(run / "checkpoints" / "round-000010.safetensors", change)
    with pytest.raises(RunError, match=r"can be used: round-000010\.safetensors ") as refused:
        files.find_newest()
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("name", ["round-000010.safetensors", "round-000010.sha256"])
def test_a_checkpoint_behind_a_link_is_not_used(tmp_path: Path, name: str) -> None:
    """Neither is one behind a pipe, which would block."""
    files = CheckpointStore(tmp_path)
    files.save(make_checkpoint(10))
    path = tmp_path / "checkpoints" / name
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="links are not followed"):
        files.find_newest()
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(RunError, match="expected a regular file"):
        files.find_newest()


def test_checkpoints_of_another_folder_are_not_used(tmp_path: Path) -> None:
    """They are not removed either."""
    run = tmp_path / "run"
    run.mkdir()
    CheckpointStore(tmp_path).save(make_checkpoint(10))
    (run / "checkpoints").symlink_to(tmp_path / "checkpoints")
    message = f"^{run}/checkpoints must be a folder of the run, got a link$"
    with pytest.raises(RunError, match=message):
        CheckpointStore(run).find_newest()
    with pytest.raises(RunError, match=message):
        CheckpointStore(run).delete_after(0)
    assert CheckpointStore(tmp_path).find_newest().checkpoint is not None


def test_events_of_tensorboard_are_not_needed(tmp_path: Path) -> None:
    """A power cut may lose them."""
    files = CheckpointStore(tmp_path)
    files.save(Checkpoint(**{**vars(make_checkpoint(10)), "records": {"tensorboard/events": 6}}))
    found = files.find_newest()
    assert found.checkpoint is not None
    assert found.problems == ()


def test_an_unfinished_first_checkpoint_is_no_obstacle(tmp_path: Path) -> None:
    """A power cut may lose its checksum; the run then restarts."""
    files = CheckpointStore(tmp_path)
    files.save(make_checkpoint(0))
    (tmp_path / "checkpoints" / "round-000000.sha256").unlink()
    found = files.find_newest()
    assert found.checkpoint is None
    assert found.problems == ("round-000000.safetensors has no checksum",)


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077])
def test_a_file_of_arrays_has_the_permissions_of_other_new_files(
    umask: int, tmp_path: Path
) -> None:
    """A colleague who may read the records can load the model as well."""
    before = os.umask(umask)
    try:
        save_arrays({"w": np.zeros(2)}, tmp_path / "model.safetensors")
        save_arrays({"w": np.ones(2)}, tmp_path / "model.safetensors")
        (tmp_path / "other").touch()
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"model.safetensors": 0o666 & ~umask, "other": 0o666 & ~umask}
