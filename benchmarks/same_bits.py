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
FIRST_COMMIT = "c3fcdca8d593cb34d7f98f93dd9235a019011a75"
"""The commit whose words same_bits.toml translates."""
TABLES = ("clients", "evaluations", "population.parquet")
ROUNDS = "rounds.jsonl"
MANIFEST = "manifest.json"
STUDY = "study.json"
MANIFEST_FIELDS = (
    *("status", "rounds_completed", "summary", "strategy", "seed", "rounds", "privacy", "data"),
    *("error", "resumed"),
)
"""The fields of the manifest that do not name the machine, the code or the time."""
MAX_SHOWN_COLUMNS = 4
"""How many columns of a case are printed."""
SIDES = ("before", "now")

SMALL_RUN = (
    "rounds=5",
    "data=synth",
    "data.num_clients=8",
    "data.num_priority=3",
    "client.local_epochs=1",
    "client.device=cpu",
)
INTERMITTENT = ("availability=bernoulli", "availability.p=0.7")
GATED, COUNTING = "strategy=fedalign", "strategy=fedau"
REQUIRED_OVERRIDES: Mapping[str, tuple[str, ...]] = {
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
RAY_OVERRIDES = (
    "engine=ray",
    "engine.address=local",
    "engine.workers=2",
    "engine.num_supernodes=2",
)
FLOWER_OVERRIDES = ("engine=flower", "engine.num_supernodes=2")
RUN = "run"


@dataclass(frozen=True)
class Case:
    """What both sides do: ``kind`` is a method of ``Side``, ``group`` shares a process."""

    name: str
    arguments: tuple[str, ...]
    kind: str = RUN
    group: str = "here"


@dataclass(frozen=True)
class WordTable:
    """The words of one checkout for those of the first commit: same_bits.toml."""

    table: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the words of a checkout; one without the file has those of the first commit."""
        path = folder / "benchmarks" / "same_bits.toml"
        return cls(tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {})

    def get_section(self, name: str) -> Mapping[str, Any]:
        """Return a section of the file."""
        found: Mapping[str, Any] = self.table.get(name, {})
        return found

    @property
    def paths(self) -> list[str]:
        """The folders of packages."""
        return list(self.table.get("paths", [".", "strategies"]))

    def translate_setting(self, override: str) -> str:
        """Return a word KEY=VALUE of the first commit as this checkout writes it."""
        key, equals, value = override.partition("=")
        value = self.get_section("options").get(override, value)
        return f"{rename_prefix(key, self.get_section('settings'))}{equals}{value}"

    def translate_case(self, case: Case) -> list[str]:
        """Return a case's words as this checkout writes them."""
        words = [self.translate_setting(word) for word in case.arguments]
        if case.kind in {"drop_in", "run_native"}:
            words[0] = self.get_section("options").get(f"drop_in={words[0]}", words[0])
        if case.kind == "command":
            words[:1] = self.get_section("commands").get(words[0], words[0]).split()
        return words

    def restore_option(self, group: str, value: str) -> str:
        """Return the first commit's word for the option of a group."""
        for word, today in self.get_section("options").items():
            if word.startswith(f"{group}=") and today == value:
                return str(word.partition("=")[2])
        return value

    def restore_column(self, name: str) -> str:
        """Return the first commit's name of a column or field."""
        return rename_prefix(
            name, {today: first for first, today in self.get_section("columns").items()}
        )

    def restore_file(self, name: str) -> str:
        """Return the first commit's name of a file."""
        files = self.get_section("files").items()
        return next((first for first, today in files if today == name), name)

    def restore_value(self, column: str, value: Any) -> Any:
        """Return the first commit's text in a column."""
        if isinstance(value, str):
            for word, today in self.get_section("values").items():
                if word.startswith(f"{column}=") and today == value:
                    return word.partition("=")[2]
        return value


def rename_prefix(name: str, table: Mapping[str, str]) -> str:
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
    fedalign, fedau = (
        (*SMALL_RUN, word, *REQUIRED_OVERRIDES.get(word, ())) for word in (GATED, COUNTING)
    )
    cases = []
    for name in names["strategy"]:
        word = f"strategy={name}"
        words = (*SMALL_RUN, word, *REQUIRED_OVERRIDES.get(word, ()), *INTERMITTENT)
        cases.append(Case(f"in_process/{name}", words))
        cases.append(Case(f"ray/{name}", (*words, *RAY_OVERRIDES), group="ray"))
    for name in names["availability"]:
        word = f"availability={name}"
        more = [
            each.format(trace=trace)
            for each in REQUIRED_OVERRIDES.get(word, ("availability.p=0.6",))
        ]
        cases.append(Case(f"availability/{name}", (*fedau, word, *more)))
    cases += [
        Case(f"server_optimizer/{name}", (*fedau, *INTERMITTENT, f"server_optimizer={name}"))
        for name in names["server_optimizer"]
    ]
    late = ("response_time=lognormal", "engine.quorum=0.7")
    private = ("privacy=dp_adaptive_client", "privacy.noise_multiplier=0")
    resume = ("engine.checkpoint_every=1", "engine.stop_after=3", "resume=")
    cases += [
        Case("unseen", (*fedalign, *INTERMITTENT, "data.unseen_fraction=0.25")),
        Case("late", (*fedau, *INTERMITTENT, *late)),
        Case("private", (*fedau, "strategy.cutoff=3", *INTERMITTENT, *private)),
        Case("resume", (*fedalign, *INTERMITTENT, *resume), "resume"),
        Case("flower", (*fedalign, *INTERMITTENT, *FLOWER_OVERRIDES), group="flower"),
    ]
    cases += [Case(f"drop-in/{name}", (name,), "drop_in") for name in names["drop_in"]]
    cases.append(Case("drop-in/recognized", ("FedAU", *SMALL_RUN[1:]), "run_native"))
    study = ("question=fairness", "methods=[qfedavg]", "budget=14runs", "trials=1", "output=study")
    cases.append(Case("study", ("fedquorum-study", *SMALL_RUN, *study), "command", group="study"))
    return cases


def write_trace(path: Path) -> Path:
    """Write who is available when: all but the clients with which a round starts to count."""
    lines = [f"{t},{k},{int((t + k) % 4 > 0)}" for t in range(1, 6) for k in range(8)]
    path.write_text("\n".join(["round,client,available", *lines]) + "\n", encoding="utf-8")
    return path


def select_cases(cases: Sequence[Case], only: Sequence[str]) -> list[Case]:
    """Return the cases of these names or patterns, all by default; stop where one is of none."""
    for pattern in only:
        if not any(fnmatchcase(case.name, pattern) for case in cases):
            sys.exit(f"--only must name cases of --list, got {pattern}")
    patterns = only or ["*"]
    return [c for c in cases if any(fnmatchcase(c.name, pattern) for pattern in patterns)]


# --- running -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ComparedCheckout:
    """One side: its folder, its words, and where its cases go."""

    folder: Path
    word_table: WordTable
    outputs: Path

    def get_output(self, case: Case) -> Path:
        """Return the folder of a case's output."""
        return self.outputs / case.name.replace("/", "-") / "output"

    def run(self, cases: Sequence[Case]) -> None:
        """Run the cases of one group in a process of their own."""
        group = cases[0].group if cases else "describe"
        done = self.call(cases, group)
        ending = {"error": f"exit status {done.returncode}: {_last_line(done.stderr)}"}
        for case in cases:
            path = self.get_output(case).with_name(ENDING)
            if not path.exists():
                path.write_text(json.dumps(ending), encoding="utf-8")

    def describe(self) -> dict[str, list[str]]:
        """Return the names of all that there is a case for each of, as the first commit's."""
        done = self.call((), "describe")
        if done.returncode:
            sys.exit(f"{self.folder} cannot say what it has: {_last_line(done.stderr)}")
        found = json.loads(done.stdout.splitlines()[-1])
        return {
            group: [self.word_table.restore_option(group, name) for name in names]
            for group, names in found.items()
        }

    def call(self, cases: Sequence[Case], group: str) -> subprocess.CompletedProcess[str]:
        """Run same_bits_side.py in this checkout."""
        work = self.outputs / f"of-{group}"
        work.mkdir(parents=True)
        for case in cases:
            self.get_output(case).parent.mkdir()
        given = [
            {
                "kind": case.kind,
                "words": self._build_arguments(case),
                "output": str(self.get_output(case)),
            }
            for case in cases
        ]
        sections = {name: self.word_table.get_section(name) for name in ("symbols", "arguments")}
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
                env={**os.environ, **self._build_environment(ray), **variables},
                capture_output=True,
                text=True,
                check=False,
            )

    def _build_arguments(self, case: Case) -> list[str]:
        words = self.word_table.translate_case(case)
        output = self.word_table.translate_setting(f"output={self.get_output(case)}")
        return [output if word.startswith("output=") else word for word in words]

    def _build_environment(self, ray: str) -> dict[str, str]:
        paths = [str(self.folder / path) for path in self.word_table.paths]
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


class ValueLocation(NamedTuple):
    """Where a value is; the run is a folder below the case's."""

    run: str
    column: str
    row: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        run = [f"run {self.run}"] if self.run != "." else []
        return ", ".join([*run, *(f"{name} {number}" for name, number in self.row)])


CaseFacts = dict[ValueLocation, Any]
"""All values that a case left behind, in the first commit's words."""


def read_facts(output: Path, word_table: WordTable) -> CaseFacts:
    """Return all that the runs in a folder and below it left behind."""
    names = word_table.get_section("files")
    rounds, study = names.get(ROUNDS, ROUNDS), names.get(STUDY, STUDY)
    facts: CaseFacts = {}
    for path in sorted(output.rglob(rounds)):
        facts |= _read_run(path.parent, str(path.parent.relative_to(output)), word_table)
    for path in sorted(output.rglob(study)):
        facts |= _read_fields(
            json.loads(path.read_text(encoding="utf-8")), ".", "study", word_table
        )
    return facts


def _read_run(folder: Path, run: str, word_table: WordTable) -> CaseFacts:
    names, facts = word_table.get_section("files"), CaseFacts()
    for path in sorted(folder.glob("*.safetensors")):
        name = word_table.restore_file(path.name)
        for key, array in load_file(path).items():
            digest = hashlib.sha256(array.tobytes()).hexdigest()[:16]
            facts[ValueLocation(run, f"{name}:{key}")] = (
                f"{array.dtype} {array.shape} sha256 {digest}"
            )
    for line in (folder / names.get(ROUNDS, ROUNDS)).read_text(encoding="utf-8").splitlines():
        facts |= _read_row(json.loads(line), run, "rounds", word_table)
    for table in TABLES:
        path = folder / names.get(table, table)
        if path.exists():
            facts |= _read_table(path, run, table.partition(".")[0], word_table)
    manifest = json.loads((folder / names.get(MANIFEST, MANIFEST)).read_text(encoding="utf-8"))
    of_manifest = _read_fields(manifest, run, "manifest", word_table)
    kept = {f"manifest.{name}" for name in MANIFEST_FIELDS}
    return facts | {
        place: value
        for place, value in of_manifest.items()
        if ".".join(place.column.split(".")[:2]) in kept
    }


def _read_table(path: Path, run: str, table: str, word_table: WordTable) -> CaseFacts:
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    facts: CaseFacts = {}
    for file in files:
        content = pq.ParquetFile(file).read()
        for item in content.schema:
            column = word_table.restore_column(f"{table}.{item.name}")
            facts[ValueLocation(run, f"{column} (type)")] = str(item.type)
        for row in content.to_pylist():
            facts |= _read_row(row, run, table, word_table)
    return facts


def _read_row(row: Mapping[str, Any], run: str, table: str, word_table: WordTable) -> CaseFacts:
    """Return the fields of a row, which its round and its client tell from the others."""
    of_row = _read_fields(row, run, table, word_table)
    found = (
        (name, of_row.get(ValueLocation(run, f"{table}.{name}"))) for name in ("round", "client")
    )
    key = tuple((name, number) for name, number in found if isinstance(number, int))
    return {ValueLocation(run, place.column, key): value for place, value in of_row.items()}


def _read_fields(node: Any, run: str, name: str, word_table: WordTable) -> CaseFacts:
    """Return nested fields as one level of names with dots."""
    if isinstance(node, dict) and node:
        items: Iterable[tuple[Any, Any]] = node.items()
    elif isinstance(node, list) and any(isinstance(item, (dict, list)) for item in node):
        items = enumerate(node)
    else:
        column = word_table.restore_column(name)
        return {ValueLocation(run, column): word_table.restore_value(column, node)}
    facts: CaseFacts = {}
    for key, value in items:
        facts |= _read_fields(value, run, f"{name}.{key}", word_table)
    return facts


ABSENT_VALUE = "absent"


@dataclass(frozen=True)
class ColumnDifference:
    """A column that differs, and the first place where."""

    column: str
    location: str
    before: str
    now: str
    count: int = 1

    def __str__(self) -> str:
        where = f" ({self.location})" if self.location else ""
        more = f", and {self.count - 1} more" if self.count > 1 else ""
        return f"{self.column}{where}: {self.before} before, {self.now} now{more}"


def compare_facts(
    before: CaseFacts, now: CaseFacts, word_table: WordTable
) -> list[ColumnDifference]:
    """Return the columns that differ, except for what ``word_table`` allows."""
    left_out, tolerated = word_table.get_section("left_out"), word_table.get_section("tolerated")
    places: dict[str, list[ValueLocation]] = {}
    for place in {**before, **now}:
        name = place.column.removesuffix(" (type)")
        if not any(_is_match(name, pattern) for pattern in left_out):
            bounds = [t["relative"] for key, t in tolerated.items() if _is_match(name, key)]
            if not _is_same(before, now, place, max(bounds, default=0.0)):
                places.setdefault(place.column, []).append(place)
    return [
        ColumnDifference(
            column,
            str(found[0]),
            repr(before[found[0]]) if found[0] in before else ABSENT_VALUE,
            repr(now[found[0]]) if found[0] in now else ABSENT_VALUE,
            len(found),
        )
        for column, found in places.items()
    ]


def _is_match(name: str, pattern: str) -> bool:
    """Whether a pattern names a column, or one above it."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")


def _is_same(before: CaseFacts, now: CaseFacts, location: ValueLocation, relative: float) -> bool:
    if location not in before or location not in now:
        return False
    one, other = before[location], now[location]
    if relative and isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=relative)
    # The shortest text that reads back as this float64 tells -0.0 from 0.0, and NaN is itself.
    return type(one) is type(other) and repr(one) == repr(other)


@dataclass(frozen=True)
class CaseComparison:
    """What differs in a case, and how many values were there to compare."""

    case: Case
    differences: Sequence[ColumnDifference]
    values: int = 0

    @property
    def both_ran(self) -> bool:
        """Whether both sides ran to the end."""
        return all(found.column != ENDING_COLUMN for found in self.differences)


ENDING_COLUMN = "ending"


def compare_case(
    case: Case, sides: Sequence[ComparedCheckout], word_table: WordTable
) -> CaseComparison:
    """Compare what a case left behind on both sides."""
    endings = [
        json.loads(side.get_output(case).with_name(ENDING).read_text(encoding="utf-8"))["error"]
        for side in sides
    ]
    if any(endings):
        before, now = (f"failed: {error}" if error else "completed" for error in endings)
        return CaseComparison(case, [ColumnDifference(ENDING_COLUMN, "", before, now)])
    facts = [read_facts(side.get_output(case), side.word_table) for side in sides]
    if not all(facts):
        counts = [f"{len(found)} values" for found in facts]
        return CaseComparison(case, [ColumnDifference(ENDING_COLUMN, "", *counts)])
    return CaseComparison(case, compare_facts(facts[0], facts[1], word_table), len(facts[0]))


# --- the command -------------------------------------------------------------------------------


def print_comparisons(comparisons: Iterable[CaseComparison], word_table: WordTable) -> int:
    """Print a line for each case; return the exit status."""
    counts = dict.fromkeys(("same", "excepted", "differs"), 0)
    for found in comparisons:
        reason = word_table.get_section("excepted").get(found.case.name)
        excepted = bool(found.differences and reason and found.both_ran)
        word = "excepted" if excepted else "differs" if found.differences else "same"
        counts[word] += 1
        print(f"{word:9}{found.case.name}: {reason if excepted else f'{found.values} values'}")
        if word == "differs":
            for difference in found.differences[:MAX_SHOWN_COLUMNS]:
                print(f"         {difference}")
            if len(found.differences) > MAX_SHOWN_COLUMNS:
                print(f"         and {len(found.differences) - MAX_SHOWN_COLUMNS} more columns")
        sys.stdout.flush()
    print(", ".join(f"{number} {word}" for word, number in counts.items() if number))
    return 1 if counts["differs"] else 0


def run_cases(
    cases: Sequence[Case], sides: Sequence[ComparedCheckout], jobs: int, word_table: WordTable
) -> Iterator[CaseComparison]:
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
                yield compare_case(case, sides, word_table)
    except BaseException:  # an interruption too: nobody waits for what still runs
        for child in psutil.Process().children():
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Compare this tree with a commit; return the exit status."""
    options = _parse_options(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the checkout goes then, too
    started = monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="same-bits-") as temporary,
        check_out(options.against, Path(temporary, "checkout")) as folder,
    ):
        work = Path(temporary)
        now = WordTable.read(HERE)
        sides = [
            ComparedCheckout(folder, WordTable.read(folder), work / SIDES[0]),
            ComparedCheckout(HERE, now, work / SIDES[1]),
        ]
        cases = make_cases(sides[0].describe(), write_trace(work / "trace.csv"))
        chosen = select_cases(cases, options.only)
        if options.list:
            print("\n".join(case.name for case in chosen))
            return 0
        status = print_comparisons(run_cases(chosen, sides, options.jobs, now), now)
    print(f"{monotonic() - started:.0f} s against {options.against}")
    return status


def _parse_options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--against", default=FIRST_COMMIT, metavar="COMMIT", help="the earlier commit"
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="CASE", help="names or patterns")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--jobs", type=int, default=2, help="how many processes run at a time")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
