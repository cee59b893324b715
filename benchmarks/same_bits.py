"""Whether this commit makes the same models and decisions as an earlier one, to the last bit.

    python -m benchmarks.same_bits --against c3fcdca
    python -m benchmarks.same_bits --list
    python -m benchmarks.same_bits --only 'in_process/*' resume

checks out the earlier commit beside this tree, runs the same cases in both, and compares every
array of every model and every column of the records. It prints a line for each case and, where
something differs, the column, its first round and client, and both values; the exit status is then
1. Bits hold on one kind of machine, so both sides run anew in every call.

The working tree is compared as it is, with changes that are not committed. What has other names in
the two commits, and what may differ, is in same_bits.toml.
"""

import argparse
import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple, Self

import psutil
import pyarrow.parquet as pq
from safetensors.numpy import load_file

from benchmarks.engines import isolate_flower
from benchmarks.same_bits_side import ENDING

HERE = Path(__file__).resolve().parent.parent
FIRST = "c3fcdca8d593cb34d7f98f93dd9235a019011a75"
"""The commit whose words same_bits.toml translates."""
TABLES = ("clients", "evaluations", "population.parquet")
ROUNDS = "rounds.jsonl"
MANIFEST = "manifest.json"
STUDY = "study.json"
OF_MANIFEST = (
    *("status", "rounds_completed", "summary", "strategy", "seed", "rounds", "privacy", "data"),
    *("error", "resumed"),
)
"""The fields of the manifest that do not name the machine, the code or the time."""
SHOWN = 4
"""How many columns of a case are printed."""
SIDES = ("before", "now")

SMALL = (
    "rounds=5",
    "data=synth",
    "data.num_clients=8",
    "data.num_priority=3",
    "client.local_epochs=1",
    "client.device=cpu",
)
ABSENT = ("availability=bernoulli", "availability.p=0.7")
GATED, COUNTING = "strategy=fedalign", "strategy=fedau"
NEEDED: Mapping[str, tuple[str, ...]] = {
    GATED: ("strategy.epsilon=1.0", "strategy.warmup_rounds=1"),
    "strategy=maxfl": ("evaluation.requirement=1.5",),
    "availability=always": (),
    "availability=trace": ("availability.path={trace}",),
    "availability=interleaved": ("availability.mean=0.6", "availability.period=3"),
    "availability=cyclic": ("availability.p=0.6", "availability.period=3"),
    "availability=sine": ("availability.p=0.6", "availability.period=3"),
    "availability=staircase": ("availability.p=0.6", "availability.period=4"),
}
"""What some words need beside them to be possible, or to decide something in 5 rounds."""
ON_RAY = ("engine=ray", "engine.address=local", "engine.workers=2", "engine.num_supernodes=2")
ON_FLOWER = ("engine=flower", "engine.num_supernodes=2")
RUN = "run"


@dataclass(frozen=True)
class Case:
    """What both sides do: ``kind`` is a method of ``Side``, ``group`` shares a process."""

    name: str
    words: tuple[str, ...]
    kind: str = RUN
    group: str = "here"


@dataclass(frozen=True)
class Words:
    """The words of one checkout for those of the first commit: same_bits.toml."""

    table: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the words of a checkout; one without the file has those of the first commit."""
        path = folder / "benchmarks" / "same_bits.toml"
        return cls(tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {})

    def section(self, name: str) -> Mapping[str, Any]:
        """Return a section of the file."""
        found: Mapping[str, Any] = self.table.get(name, {})
        return found

    @property
    def paths(self) -> list[str]:
        """The folders of packages."""
        return list(self.table.get("paths", [".", "strategies"]))

    def translate_setting(self, word: str) -> str:
        """Return a word KEY=VALUE of the first commit as this checkout writes it."""
        key, equals, value = word.partition("=")
        value = self.section("options").get(word, value)
        return f"{rename(key, self.section('settings'))}{equals}{value}"

    def translate_case(self, case: Case) -> list[str]:
        """Return a case's words as this checkout writes them."""
        words = [self.translate_setting(word) for word in case.words]
        if case.kind in {"drop_in", "recognized"}:
            words[0] = self.section("options").get(f"drop_in={words[0]}", words[0])
        if case.kind == "command":
            words[:1] = self.section("commands").get(words[0], words[0]).split()
        return words

    def restore_option(self, group: str, value: str) -> str:
        """Return the first commit's word for the option of a group."""
        for word, today in self.section("options").items():
            if word.startswith(f"{group}=") and today == value:
                return str(word.partition("=")[2])
        return value

    def restore_column(self, name: str) -> str:
        """Return the first commit's name of a column or field."""
        return rename(name, {today: first for first, today in self.section("columns").items()})

    def restore_file(self, name: str) -> str:
        """Return the first commit's name of a file."""
        files = self.section("files").items()
        return next((first for first, today in files if today == name), name)

    def restore_value(self, column: str, value: Any) -> Any:
        """Return the first commit's text in a column."""
        if isinstance(value, str):
            for word, today in self.section("values").items():
                if word.startswith(f"{column}=") and today == value:
                    return word.partition("=")[2]
        return value


def rename(name: str, table: Mapping[str, str]) -> str:
    """Return a name with dots, of which the table renames the longest beginning that it has."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        beginning = ".".join(parts[:end])
        if beginning in table:
            return ".".join([table[beginning], *parts[end:]])
    return name


# --- cases -------------------------------------------------------------------------------------


def make_cases(names: Mapping[str, Sequence[str]], trace: Path) -> list[Case]:
    """Return all cases.

    Parameters
    ----------
    names : mapping
        By group the names that there is a case for each of, see ``Side.describe``.
    trace : Path
        A trace of availability.
    """
    fedalign, fedau = ((*SMALL, word, *NEEDED.get(word, ())) for word in (GATED, COUNTING))
    cases = []
    for name in names["strategy"]:
        word = f"strategy={name}"
        words = (*SMALL, word, *NEEDED.get(word, ()), *ABSENT)
        cases.append(Case(f"in_process/{name}", words))
        cases.append(Case(f"ray/{name}", (*words, *ON_RAY), group="ray"))
    for name in names["availability"]:
        word = f"availability={name}"
        more = [each.format(trace=trace) for each in NEEDED.get(word, ("availability.p=0.6",))]
        cases.append(Case(f"availability/{name}", (*fedau, word, *more)))
    cases += [
        Case(f"server_optimizer/{name}", (*fedau, *ABSENT, f"server_optimizer={name}"))
        for name in names["server_optimizer"]
    ]
    late = ("response_time=lognormal", "engine.quorum=0.7")
    private = ("privacy=dp_adaptive_client", "privacy.noise_multiplier=0")
    resume = ("engine.checkpoint_every=1", "engine.stop_after=3", "resume=")
    cases += [
        Case("unseen", (*fedalign, *ABSENT, "data.unseen_fraction=0.25")),
        Case("late", (*fedau, *ABSENT, *late)),
        Case("private", (*fedau, "strategy.cutoff=3", *ABSENT, *private)),
        Case("resume", (*fedalign, *ABSENT, *resume), "resume"),
        Case("flower", (*fedalign, *ABSENT, *ON_FLOWER), group="flower"),
    ]
    cases += [Case(f"drop-in/{name}", (name,), "drop_in") for name in names["drop_in"]]
    cases.append(Case("drop-in/recognized", ("FedAU", *SMALL[1:]), "recognized"))
    study = ("question=fairness", "methods=[qfedavg]", "budget=14runs", "trials=1", "output=study")
    cases.append(Case("study", ("fedquorum-study", *SMALL, *study), "command", group="study"))
    return cases


def write_trace(path: Path) -> Path:
    """Write who is available when: all but the clients with which a round starts to count."""
    lines = [f"{t},{k},{int((t + k) % 4 > 0)}" for t in range(1, 6) for k in range(8)]
    path.write_text("\n".join(["round,client,available", *lines]) + "\n", encoding="utf-8")
    return path


def choose(cases: Sequence[Case], only: Sequence[str]) -> list[Case]:
    """Return the cases of these names or patterns, all by default; stop where one is of none."""
    for pattern in only:
        if not any(fnmatchcase(case.name, pattern) for case in cases):
            sys.exit(f"--only must name cases of --list, got {pattern}")
    patterns = only or ["*"]
    return [c for c in cases if any(fnmatchcase(c.name, pattern) for pattern in patterns)]


# --- running -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Checkout:
    """One side: its folder, its words, and where its cases go."""

    folder: Path
    words: Words
    outputs: Path

    def output(self, case: Case) -> Path:
        """Return the folder of a case's output."""
        return self.outputs / case.name.replace("/", "-") / "output"

    def run(self, cases: Sequence[Case]) -> None:
        """Run the cases of one group in a process of their own."""
        group = cases[0].group if cases else "describe"
        done = self.call(cases, group)
        ending = {"error": f"exit status {done.returncode}: {_last_line(done.stderr)}"}
        for case in cases:
            path = self.output(case).with_name(ENDING)
            if not path.exists():
                path.write_text(json.dumps(ending), encoding="utf-8")

    def describe(self) -> dict[str, list[str]]:
        """Return the names of all that there is a case for each of, as the first commit's."""
        done = self.call((), "describe")
        if done.returncode:
            sys.exit(f"{self.folder} cannot say what it has: {_last_line(done.stderr)}")
        found = json.loads(done.stdout.splitlines()[-1])
        return {
            group: [self.words.restore_option(group, name) for name in names]
            for group, names in found.items()
        }

    def call(self, cases: Sequence[Case], group: str) -> subprocess.CompletedProcess[str]:
        """Run same_bits_side.py in this checkout."""
        work = self.outputs / f"of-{group}"
        work.mkdir(parents=True)
        for case in cases:
            self.output(case).parent.mkdir()
        given = [
            {
                "kind": case.kind,
                "words": self._words_of(case),
                "output": str(self.output(case)),
            }
            for case in cases
        ]
        sections = {name: self.words.section(name) for name in ("symbols", "arguments")}
        job = {
            "folder": str(self.folder),
            "words": sections,
            "cases": given,
            "ray": group == "ray",
        }
        file = work / "job.json"
        file.write_text(json.dumps(job), encoding="utf-8")
        side = Path(__file__).with_name("same_bits_side.py")
        flower = isolate_flower(work / "flwr") if group == "flower" else nullcontext({})
        with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as ray, flower as variables:
            return subprocess.run(
                [sys.executable, "-P", str(side), str(file)],
                cwd=work,
                env={**os.environ, **self._variables(ray), **variables},
                capture_output=True,
                text=True,
                check=False,
            )

    def _words_of(self, case: Case) -> list[str]:
        words = self.words.translate_case(case)
        output = self.words.translate_setting(f"output={self.output(case)}")
        return [output if word.startswith("output=") else word for word in words]

    def _variables(self, ray: str) -> dict[str, str]:
        paths = [str(self.folder / path) for path in self.words.paths]
        return {
            "PYTHONPATH": os.pathsep.join(paths),
            "OMP_NUM_THREADS": "1",
            "RAY_TMPDIR": ray,  # its sockets need a short path
            "RAY_USAGE_STATS_ENABLED": "0",
            "FLWR_TELEMETRY_ENABLED": "0",
        }


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it printed nothing"


@contextmanager
def check_out(commit: str, folder: Path) -> Iterator[Path]:
    """Check a commit out into a new folder, and remove it in the end."""
    git = ["git", "-C", str(HERE)]
    subprocess.run([*git, "worktree", "add", "-q", "--detach", str(folder), commit], check=True)
    try:
        yield folder
    finally:
        subprocess.run([*git, "worktree", "remove", "--force", str(folder)], check=True)


# --- comparing ---------------------------------------------------------------------------------


class Place(NamedTuple):
    """Where a value is; the run is a folder below the case's."""

    run: str
    column: str
    row: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        run = [f"run {self.run}"] if self.run != "." else []
        return ", ".join([*run, *(f"{name} {number}" for name, number in self.row)])


Facts = dict[Place, Any]
"""All values that a case left behind, in the first commit's words."""


def read_facts(output: Path, words: Words) -> Facts:
    """Return all that the runs in a folder and below it left behind."""
    names = words.section("files")
    rounds, study = names.get(ROUNDS, ROUNDS), names.get(STUDY, STUDY)
    facts: Facts = {}
    for path in sorted(output.rglob(rounds)):
        facts |= _read_run(path.parent, str(path.parent.relative_to(output)), words)
    for path in sorted(output.rglob(study)):
        facts |= _read_fields(json.loads(path.read_text(encoding="utf-8")), ".", "study", words)
    return facts


def _read_run(folder: Path, run: str, words: Words) -> Facts:
    names, facts = words.section("files"), Facts()
    for path in sorted(folder.glob("*.safetensors")):
        name = words.restore_file(path.name)
        for key, array in load_file(path).items():
            digest = hashlib.sha256(array.tobytes()).hexdigest()[:16]
            facts[Place(run, f"{name}:{key}")] = f"{array.dtype} {array.shape} sha256 {digest}"
    for line in (folder / names.get(ROUNDS, ROUNDS)).read_text(encoding="utf-8").splitlines():
        facts |= _read_row(json.loads(line), run, "rounds", words)
    for table in TABLES:
        path = folder / names.get(table, table)
        if path.exists():
            facts |= _read_table(path, run, table.partition(".")[0], words)
    manifest = json.loads((folder / names.get(MANIFEST, MANIFEST)).read_text(encoding="utf-8"))
    of_manifest = _read_fields(manifest, run, "manifest", words)
    kept = {f"manifest.{name}" for name in OF_MANIFEST}
    return facts | {
        place: value
        for place, value in of_manifest.items()
        if ".".join(place.column.split(".")[:2]) in kept
    }


def _read_table(path: Path, run: str, table: str, words: Words) -> Facts:
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    facts: Facts = {}
    for file in files:
        content = pq.ParquetFile(file).read()
        for item in content.schema:
            column = words.restore_column(f"{table}.{item.name}")
            facts[Place(run, f"{column} (type)")] = str(item.type)
        for row in content.to_pylist():
            facts |= _read_row(row, run, table, words)
    return facts


def _read_row(row: Mapping[str, Any], run: str, table: str, words: Words) -> Facts:
    """Return the fields of a row, which its round and its client tell from the others."""
    of_row = _read_fields(row, run, table, words)
    found = ((name, of_row.get(Place(run, f"{table}.{name}"))) for name in ("round", "client"))
    key = tuple((name, number) for name, number in found if isinstance(number, int))
    return {Place(run, place.column, key): value for place, value in of_row.items()}


def _read_fields(node: Any, run: str, name: str, words: Words) -> Facts:
    """Return nested fields as one level of names with dots."""
    if isinstance(node, dict) and node:
        items: Iterable[tuple[Any, Any]] = node.items()
    elif isinstance(node, list) and any(isinstance(item, (dict, list)) for item in node):
        items = enumerate(node)
    else:
        column = words.restore_column(name)
        return {Place(run, column): words.restore_value(column, node)}
    facts: Facts = {}
    for key, value in items:
        facts |= _read_fields(value, run, f"{name}.{key}", words)
    return facts


ABSENT_VALUE = "absent"


@dataclass(frozen=True)
class Difference:
    """A column that differs, and the first place where."""

    column: str
    place: str
    before: str
    now: str
    count: int = 1

    def __str__(self) -> str:
        where = f" ({self.place})" if self.place else ""
        more = f", and {self.count - 1} more" if self.count > 1 else ""
        return f"{self.column}{where}: {self.before} before, {self.now} now{more}"


def compare(before: Facts, now: Facts, words: Words) -> list[Difference]:
    """Return the columns that differ, except for what ``words`` allows."""
    left_out, tolerated = words.section("left_out"), words.section("tolerated")
    places: dict[str, list[Place]] = {}
    for place in {**before, **now}:
        name = place.column.removesuffix(" (type)")
        if not any(_matches(name, pattern) for pattern in left_out):
            bounds = [t["relative"] for key, t in tolerated.items() if _matches(name, key)]
            if not _are_same(before, now, place, max(bounds, default=0.0)):
                places.setdefault(place.column, []).append(place)
    return [
        Difference(
            column,
            str(found[0]),
            repr(before[found[0]]) if found[0] in before else ABSENT_VALUE,
            repr(now[found[0]]) if found[0] in now else ABSENT_VALUE,
            len(found),
        )
        for column, found in places.items()
    ]


def _matches(name: str, pattern: str) -> bool:
    """Whether a pattern names a column, or one above it."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")


def _are_same(before: Facts, now: Facts, place: Place, relative: float) -> bool:
    if place not in before or place not in now:
        return False
    one, other = before[place], now[place]
    if relative and isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=relative)
    # The shortest text that reads back as this float64 tells -0.0 from 0.0, and NaN is itself.
    return type(one) is type(other) and repr(one) == repr(other)


@dataclass(frozen=True)
class Comparison:
    """What differs in a case, and how many values were there to compare."""

    case: Case
    differences: Sequence[Difference]
    values: int = 0

    @property
    def both_ran(self) -> bool:
        """Whether both sides ran to the end."""
        return all(found.column != ENDED for found in self.differences)


ENDED = "ending"


def compare_case(case: Case, sides: Sequence[Checkout], words: Words) -> Comparison:
    """Compare what a case left behind on both sides."""
    endings = [
        json.loads(side.output(case).with_name(ENDING).read_text(encoding="utf-8"))["error"]
        for side in sides
    ]
    if any(endings):
        before, now = (f"failed: {error}" if error else "completed" for error in endings)
        return Comparison(case, [Difference(ENDED, "", before, now)])
    facts = [read_facts(side.output(case), side.words) for side in sides]
    if not all(facts):
        counts = [f"{len(found)} values" for found in facts]
        return Comparison(case, [Difference(ENDED, "", *counts)])
    return Comparison(case, compare(facts[0], facts[1], words), len(facts[0]))


# --- the command -------------------------------------------------------------------------------


def report(comparisons: Iterable[Comparison], words: Words) -> int:
    """Print a line for each case; return the exit status."""
    counts = dict.fromkeys(("same", "excepted", "differs"), 0)
    for found in comparisons:
        reason = words.section("excepted").get(found.case.name)
        excepted = bool(found.differences and reason and found.both_ran)
        word = "excepted" if excepted else "differs" if found.differences else "same"
        counts[word] += 1
        print(f"{word:9}{found.case.name}: {reason if excepted else f'{found.values} values'}")
        if word == "differs":
            for difference in found.differences[:SHOWN]:
                print(f"         {difference}")
            if len(found.differences) > SHOWN:
                print(f"         and {len(found.differences) - SHOWN} more columns")
        sys.stdout.flush()
    print(", ".join(f"{number} {word}" for word, number in counts.items() if number))
    return 1 if counts["differs"] else 0


def run_all(
    cases: Sequence[Case], sides: Sequence[Checkout], jobs: int, words: Words
) -> Iterator[Comparison]:
    """Run the groups of cases, ``jobs`` processes at a time; yield the comparison of each case."""
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(case.group, []).append(case)
    pool = ThreadPoolExecutor(jobs)
    try:
        started: dict[str, list[Future[None]]] = {
            group: [pool.submit(side.run, found) for side in sides]
            for group, found in groups.items()
        }
        for group, futures in started.items():
            for future in futures:
                future.result()
            for case in groups[group]:
                yield compare_case(case, sides, words)
    except BaseException:  # an interruption too: nobody waits for what still runs
        for child in psutil.Process().children():
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare this tree with a commit; return the exit status."""
    options = _parse(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the checkout goes then, too
    started = monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="same-bits-") as temporary,
        check_out(options.against, Path(temporary, "checkout")) as folder,
    ):
        work = Path(temporary)
        now = Words.read(HERE)
        sides = [
            Checkout(folder, Words.read(folder), work / SIDES[0]),
            Checkout(HERE, now, work / SIDES[1]),
        ]
        cases = make_cases(sides[0].describe(), write_trace(work / "trace.csv"))
        chosen = choose(cases, options.only)
        if options.list:
            print("\n".join(case.name for case in chosen))
            return 0
        status = report(run_all(chosen, sides, options.jobs, now), now)
    print(f"{monotonic() - started:.0f} s against {options.against}")
    return status


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", default=FIRST, metavar="COMMIT", help="the earlier commit")
    parser.add_argument("--only", nargs="+", default=[], metavar="CASE", help="names or patterns")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--jobs", type=int, default=2, help="how many processes run at a time")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
