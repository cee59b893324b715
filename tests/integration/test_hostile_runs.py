"""Tampered run directories: each gives one line, and no file outside is changed.

docs/reliability.md reports ``pytest tests/integration/test_hostile_runs.py -s --long``.
"""

import json
import math
import re
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NoReturn

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fedquorum.errors import FedQuorumError, RunError
from fedquorum.records.reader import load_run
from fedquorum.records.values import NUMBER
from fedquorum.report.watch import RunWatcher

from server_app.cli.commands import main
from server_app.runs.resume import merge_resumed_overrides
from tests.builders_hostile import WAYS, name_way, tamper
from tests.builders_runs import make_client_overrides, run_here
from tests.cases import is_long

DIRECTORIES = 500
SECONDS = 60  # for all that one reader does with one directory
WORDS = (
    "rounds=3",
    "engine.checkpoint_every=1",
    *make_client_overrides(4, 2, samples=20),
    "availability=bernoulli",
    "availability.p=0.8",
)
STRATEGIES: dict[str, tuple[str, ...]] = {
    "gate": ("strategy.epsilon=1",),
    "memory": ("strategy=fedvarp",),
    "mixing": ("strategy=aaggff_d", "response_time=lognormal"),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run of each kind."""
    folder = tmp_path_factory.mktemp("runs")
    for name, words in STRATEGIES.items():
        run_here(folder / name, *WORDS, *words)
    return folder


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Return a folder to which links may lead."""
    folder = tmp_path / "outside"
    (folder / "folder").mkdir(parents=True)
    (folder / "file").write_bytes(b"kept" * 1000)
    (folder / "folder" / "part-00000.parquet").write_bytes(b"kept" * 1000)
    return folder


def assert_unhurt(outside: Path) -> None:
    """Assert that the files outside are unchanged."""
    kept = {path.relative_to(outside).as_posix(): path.read_bytes() for path in files_in(outside)}
    assert kept == dict.fromkeys(("file", "folder/part-00000.parquet"), b"kept" * 1000)


def files_in(folder: Path) -> Iterator[Path]:
    yield from (path for path in folder.rglob("*") if path.is_file())


def outcome(read: Callable[[], object]) -> str:
    """Return "read", or the line with which a reader refuses a directory."""

    def too_long(_number: int, _frame: FrameType | None) -> NoReturn:
        pytest.fail(f"a reader has not ended after {SECONDS} s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(SECONDS)
    try:
        read()
    except FedQuorumError as error:
        result = str(error)
    else:
        result = "read"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert "\n" not in result
    return result


def resume_directory(directory: Path) -> None:
    """Do what ``fedquorum resume=DIR`` does."""
    run_here(directory, *merge_resumed_overrides([f"resume={directory}"]))


def list_seeds() -> list[int]:
    """Return all seeds with ``--long``, and otherwise one for each way to tamper with a run."""
    seeds = range(DIRECTORIES)
    return [*seeds] if is_long() else [*{name_way(seed): seed for seed in reversed(seeds)}.values()]


@pytest.mark.slow
def test_a_directory_of_somebody_else_is_one_line(
    runs: Path, outside: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every reader loads a tampered directory or refuses it in one line."""
    outcomes: dict[str, Counter[str]] = {}
    ways: Counter[str] = Counter()
    seeds = list_seeds()
    size = 50 if is_long() else len(seeds)
    for batch in (seeds[i : i + size] for i in range(0, len(seeds), size)):
        folder = tmp_path / "batch"
        shutil.copytree(runs / "gate", folder / "good")
        for seed in batch:
            directory = folder / str(seed)
            shutil.copytree(runs / sorted(STRATEGIES)[seed % len(STRATEGIES)], directory)
            ways[tamper(directory, outside, seed)] += 1
            readers: dict[str, Callable[[Path], object]] = {"load": load_run, "watch": watch}
            for name, read in readers.items():
                kind = "read" if outcome(partial(read, directory)) == "read" else "one line"
                outcomes.setdefault(name, Counter())[kind] += 1
            outcomes.setdefault("audit", Counter())[run_audit(directory, capsys)] += 1
        left_out = count_excluded_runs(folder, tmp_path / "report", capsys)
        outcomes.setdefault("report", Counter())["one line"] += left_out
        outcomes["report"]["read"] += len(batch) - left_out
        for seed in batch:
            result = outcome(partial(resume_directory, folder / str(seed)))
            kind = "resumes" if result == "read" else "one line"
            outcomes.setdefault("resume", Counter())[kind] += 1
        assert_unhurt(outside)
        shutil.rmtree(folder)
        shutil.rmtree(tmp_path / "report")
    assert ways.keys() == WAYS.keys()
    capsys.readouterr()
    with capsys.disabled():
        print(f"\n{len(seeds)} directories: {dict(sorted(ways.items()))}")
        for name, counts in outcomes.items():
            print(f"  {name}: {dict(counts)}")


@pytest.mark.slow
def test_any_number_can_be_read(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A record may hold every number there is: no reader stumbles over its sums and squares."""
    folder = tmp_path / "runs"
    for kind in ("gate", "mixing"):
        shutil.copytree(runs / kind, folder / kind)
        for seed, number in enumerate(NUMBERS, 10):
            directory = Path(shutil.copytree(runs / kind, folder / f"{kind}{seed}"))
            fill(directory, number, seed)
            assert outcome(partial(load_run, directory)) == "read"
            assert outcome(partial(watch, directory)) == "read"
            assert run_audit(directory, capsys) in ("does not fit", "one line")
    (folder / "gate").rename(folder / "good")
    assert count_excluded_runs(folder, tmp_path / "report", capsys) == 0


NUMBERS = (1e300, -1e300, 1.7e308, 5e-324, math.inf, -math.inf, math.nan)


def fill(directory: Path, number: float, seed: int) -> None:
    """Put a number at every place of a run's records where one may stand."""
    given = NUMBER.to_json(number)
    lines = [json.loads(line) for line in (directory / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        filled = {name: given for name, value in line.items() if isinstance(value, float)}
        groups = {k: one and dict.fromkeys(one, given) for k, one in line["test"].items()}
        line |= {**filled, "test": groups}
    (directory / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    manifest = json.loads((directory / "manifest.json").read_text())
    manifest["seed"], manifest["summary"]["theta"] = seed, given
    (directory / "manifest.json").write_text(json.dumps(manifest))
    for path in (*directory.glob("clients/*"), *directory.glob("evaluations/*")):
        table = pq.read_table(path)
        for place, column in enumerate(table.schema):
            if pa.types.is_floating(column.type):
                values = pa.array([number] * len(table), column.type)
                table = table.set_column(place, column, values)
        pq.write_table(table, path)


def watch(directory: Path) -> None:
    """Do what ``--watch`` does: a record that cannot be read is one line of the page.

    Raises
    ------
    RunError
        With that line.
    """
    watched = RunWatcher(directory)
    watched.draw()
    assert watched.metrics is not None
    assert "the records cannot be drawn" not in watched.content
    problems = re.findall(r'<p class="warning">(.*?)</p>', watched.content, re.DOTALL)
    assert all("\n" not in problem for problem in problems)
    if b"fedquorum_unreadable_records 0.0" not in watched.metrics:
        raise RunError(problems[0])


def run_audit(directory: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the result of ``fedquorum audit``."""
    capsys.readouterr()
    found: list[int] = []
    outcome(lambda: found.append(main(["audit", str(directory)])))
    result = capsys.readouterr()
    if result.err:
        assert found == [1]
        (line,) = result.err.splitlines()
        assert line.startswith("fedquorum audit: ")
        return "one line"
    assert str(directory) in result.out
    return "fits" if found == [0] else "does not fit"


def count_excluded_runs(folder: Path, output: Path, capsys: pytest.CaptureFixture[str]) -> int:
    """Return how many runs a report leaves out; the good one is in it."""
    capsys.readouterr()
    assert main(["report", str(folder), "--output", str(output)]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert all(line.startswith("fedquorum report: ") for line in lines)
    assert str(folder / "good") in (output / "report.html").read_text()
    left_out = [line for line in lines if ": left out: " in line]
    for line in left_out:
        assert str(folder) in line
    with_manifest = sum((path / "manifest.json").exists() for path in folder.iterdir())
    return len(left_out) + (len([*folder.iterdir()]) - with_manifest)
