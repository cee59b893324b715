"""A power cut after any write: what is synced is a run that resumes, bit-identical.

docs/reliability.md reports ``pytest tests/integration/test_power_cuts.py -s --long``.
"""

import os
import shutil
from pathlib import Path

import pytest
from fedquorum.records import tables
from fedquorum.records.checkpoint import CheckpointStore

from tests.builders_disk import Disk, restore_image
from tests.builders_runs import assert_same_results, make_client_overrides, run_here
from tests.cases import sample_cases
from tests.integration.conftest import interrupt_at_round

WORDS = (
    "strategy=fedvarp",
    "availability=markov",
    "availability.p=0.5",
    "rounds=5",
    "engine.checkpoint_every=1",
    *make_client_overrides(4, 2, samples=20),
)
SAMPLE = 8


def run(directory: Path, *words: str) -> Path:
    """Start or resume the run in this process."""
    return run_here(directory, *WORDS, *words)


def find_claimed_rounds(directory: Path) -> set[int]:
    """Return the rounds that have a checkpoint with its checksum."""
    checksums = (directory / "checkpoints").glob("*.sha256")
    whole = [path for path in checksums if path.read_text().strip()]
    return {int(path.stem.removeprefix("round-")) for path in whole}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an undisturbed run."""
    return run(tmp_path_factory.mktemp("whole") / "run")


@pytest.mark.parametrize("started", ["new", "resumed"])
@pytest.mark.slow
def test_a_run_resumes_after_every_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Path, started: str
) -> None:
    """After any cut, a run resumes from a checkpoint that it claims to have, with the same end."""
    monkeypatch.setattr(
        tables, "MIN_FILE_ROWS", 5
    )  # so that a table has several files and a small one
    disk = Disk(tmp_path / "disk")
    disk.root.mkdir()
    words: tuple[str, ...] = ()
    if started == "resumed":
        with interrupt_at_round(monkeypatch, in_round=4):
            run(disk.root / "run")
        words = (f"resume={disk.root / 'run'}",)
    with monkeypatch.context() as patch:
        disk.watch_changes(patch)
        for path in (disk.root, *disk.root.rglob("*")):  # existing files are on the disk
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
        disk.images.clear()
        disk.cuts = 0
        run(disk.root / "run", *words)
    disk.close()
    images = [image for image in disk.images if any(p == "run/manifest.json" for p, _ in image)]
    resumed = []
    # By their numbers: of tuples, as images are, a sample has every value, here nearly all of them.
    for number in sample_cases(range(len(images)), SAMPLE):
        directory = restore_image(images[number], tmp_path / "cut" / f"{started}{number}") / "run"
        found = CheckpointStore(directory).find_newest()
        newest = None if found.checkpoint is None else found.checkpoint.server_round
        assert newest == max(find_claimed_rounds(directory), default=None)
        resumed.append(newest)
        run(directory, f"resume={directory}")
        assert_same_results(whole, directory)
        shutil.rmtree(directory.parent)
    print(
        f"\n{started}: {disk.cuts} cuts, {len(disk.images)} different states of the disk; resumed "
        f"{len(resumed)} of the {len(images)} with a run in them, after rounds "
        f"{sorted({n for n in resumed if n is not None})}, {resumed.count(None)} from the start"
    )
    # Before the run has started there is no checkpoint.
    for number, image in enumerate(disk.images.keys() - set(images)):
        assert not any(path.endswith(".sha256") for path, _ in image)
        directory = restore_image(image, tmp_path / "cut" / f"none{number}") / "run"
        if directory.is_dir():
            run(directory, f"resume={directory}")
            assert_same_results(whole, directory)
