"""Compare models and decisions of this commit with those of an earlier one, to the last bit.

    python -m benchmarks.same_bits --against c3fcdca
    python -m benchmarks.same_bits --list
    python -m benchmarks.same_bits --only 'in_process/*' resume

checks out the earlier commit, runs the same cases in both trees, and compares every array of every
model and every column of the records. It prints a line for each case. For each difference it prints
the column, the first round and client, and both values; the exit status is then 1. Bits are equal
only on one kind of machine, so both sides run again in every call.

The working tree includes uncommitted changes. same_bits.toml has the names that differ between the
two commits, and the permitted differences.
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
"""The commit whose names same_bits.toml translates."""
TABLES = ("clients", "evaluations", "population.parquet")
ROUNDS = "rounds.jsonl"
MANIFEST = "manifest.json"
STUDY = "study.json"
MANIFEST_FIELDS = (
    *("status", "rounds_completed", "summary", "strategy", "seed", "rounds", "privacy", "data"),
    *("error", "resumed"),
)
"""The compared fields of the manifest; the others describe machine, code or time."""
MAX_SHOWN_COLUMNS = 4
"""The maximum number of columns printed for a case."""
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
"""More overrides that some options need to run, or to have an effect within 5 rounds."""
RAY_OVERRIDES = (
    "engine=ray",
    "engine.address=local",
    "engine.workers=2",
    "engine.num_supernodes=2",
)
FLOWER_OVERRIDES = ("engine=flower", "engine.num_supernodes=2")
RUN, RESUME, COMMAND = "run", "resume", "run_command"
DROP_IN, NATIVE = "run_drop_in", "run_native"


@dataclass(frozen=True)
class Case:
    """A case: ``kind`` is a method of ``Side``; the cases of a ``group`` share a process."""

    name: str
    arguments: tuple[str, ...]
    kind: str = RUN
    group: str = "here"


@dataclass(frozen=True)
class NameTable:
    """The names of one checkout for those of the first commit, from same_bits.toml."""

    table: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the names of a checkout; without the file they are those of the first commit."""
        path = folder / "benchmarks" / "same_bits.toml"
        return cls(tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {})

    def get_section(self, name: str) -> Mapping[str, Any]:
        """Return a section of the file."""
        section: Mapping[str, Any] = self.table.get(name, {})
        return section

    @property
    def paths(self) -> list[str]:
        """The folders of packages."""
        return list(self.table.get("paths", [".", "strategies"]))

    def translate_setting(self, override: str) -> str:
        """Translate an override KEY=VALUE of the first commit."""
        key, equals, value = override.partition("=")
        value = self.get_section("options").get(override, value)
        return f"{rename_prefix(key, self.get_section('settings'))}{equals}{value}"

    def translate_case(self, case: Case) -> list[str]:
        """Translate the arguments of a case."""
        arguments = [self.translate_setting(argument) for argument in case.arguments]
        if case.kind in {DROP_IN, NATIVE}:
            name = arguments[0]
            arguments[0] = self.get_section("options").get(f"drop_in={name}", name)
        if case.kind == COMMAND:
            command = arguments[0]
            arguments[:1] = self.get_section("commands").get(command, command).split()
        return arguments

    def restore_option(self, group: str, value: str) -> str:
        """Return the first commit's name of a group's option."""
        for first, today in self.get_section("options").items():
            if first.startswith(f"{group}=") and today == value:
                return str(first.partition("=")[2])
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
        """Return the first commit's value of a text, or a list of texts, in a column."""
        if isinstance(value, list):
            return [self.restore_value(column, element) for element in value]
        if isinstance(value, str):
            for first, today in self.get_section("values").items():
                if first.startswith(f"{column}=") and today == value:
                    return first.partition("=")[2]
        return value


def rename_prefix(name: str, table: Mapping[str, str]) -> str:
    """Rename the longest prefix of a dotted name that the table has."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        prefix = ".".join(parts[:end])
        if prefix in table:
            return ".".join([table[prefix], *parts[end:]])
    return name


# --- cases -------------------------------------------------------------------------------------


def make_cases(names: Mapping[str, Sequence[str]], trace: Path) -> list[Case]:
    """Return all cases.

    Parameters
    ----------
    names : mapping
        The names that have a case, by group (``Side.describe``).
    trace : Path
        An availability trace.
    """
    fedalign, fedau = (
        (*SMALL_RUN, option, *REQUIRED_OVERRIDES.get(option, ())) for option in (GATED, COUNTING)
    )
    cases = []
    for name in names["strategy"]:
        option = f"strategy={name}"
        overrides = (*SMALL_RUN, option, *REQUIRED_OVERRIDES.get(option, ()), *INTERMITTENT)
        cases.append(Case(f"in_process/{name}", overrides))
        cases.append(Case(f"ray/{name}", (*overrides, *RAY_OVERRIDES), group="ray"))
    for name in names["availability"]:
        option = f"availability={name}"
        required = [
            override.format(trace=trace)
            for override in REQUIRED_OVERRIDES.get(option, ("availability.p=0.6",))
        ]
        cases.append(Case(f"availability/{name}", (*fedau, option, *required)))
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
        Case("resume", (*fedalign, *INTERMITTENT, *resume), RESUME),
        Case("flower", (*fedalign, *INTERMITTENT, *FLOWER_OVERRIDES), group="flower"),
    ]
    cases += [Case(f"drop-in/{name}", (name,), DROP_IN) for name in names["drop_in"]]
    cases.append(Case("drop-in/recognized", ("FedAU", *SMALL_RUN[1:]), NATIVE))
    study = ("question=fairness", "methods=[qfedavg]", "budget=14runs", "trials=1", "output=study")
    cases.append(Case("study", ("fedquorum-study", *SMALL_RUN, *study), COMMAND, group="study"))
    return cases


def write_trace(path: Path) -> Path:
    """Write an availability trace: in round t client k is absent if t + k is a multiple of 4."""
    lines = [f"{t},{k},{int((t + k) % 4 > 0)}" for t in range(1, 6) for k in range(8)]
    path.write_text("\n".join(["round,client,available", *lines]) + "\n", encoding="utf-8")
    return path


def select_cases(cases: Sequence[Case], only: Sequence[str]) -> list[Case]:
    """Return the cases of these names or patterns, all by default; exit if one matches no case."""
    for pattern in only:
        if not any(fnmatchcase(case.name, pattern) for case in cases):
            sys.exit(f"--only must name cases of --list, got {pattern}")
    patterns = only or ["*"]
    return [c for c in cases if any(fnmatchcase(c.name, pattern) for pattern in patterns)]


# --- running -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ComparedCheckout:
    """One side: the folder, the names, and the folder of the cases' output."""

    folder: Path
    name_table: NameTable
    outputs: Path

    def get_output(self, case: Case) -> Path:
        """Return the folder of a case's output."""
        return self.outputs / case.name.replace("/", "-") / "output"

    def run(self, cases: Sequence[Case]) -> None:
        """Run the cases of one group in a separate process."""
        group = cases[0].group if cases else "describe"
        done = self.run_side(cases, group)
        ending = {"error": f"exit status {done.returncode}: {_get_last_line(done.stderr)}"}
        for case in cases:
            path = self.get_output(case).with_name(ENDING)
            if not path.exists():
                path.write_text(json.dumps(ending), encoding="utf-8")

    def describe(self) -> dict[str, list[str]]:
        """Return all names that have a case, by group, as the first commit has them."""
        done = self.run_side((), "describe")
        if done.returncode:
            sys.exit(f"{self.folder} cannot describe its cases: {_get_last_line(done.stderr)}")
        described = json.loads(done.stdout.splitlines()[-1])
        return {
            group: [self.name_table.restore_option(group, name) for name in names]
            for group, names in described.items()
        }

    def run_side(self, cases: Sequence[Case], group: str) -> subprocess.CompletedProcess[str]:
        """Run same_bits_side.py in this checkout."""
        work = self.outputs / f"of-{group}"
        work.mkdir(parents=True)
        for case in cases:
            self.get_output(case).parent.mkdir()
        given = [
            {
                "kind": case.kind,
                "arguments": self._build_arguments(case),
                "output": str(self.get_output(case)),
            }
            for case in cases
        ]
        sections = {name: self.name_table.get_section(name) for name in ("symbols", "arguments")}
        job = {
            "folder": str(self.folder),
            "sections": sections,
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
        arguments = self.name_table.translate_case(case)
        output = self.name_table.translate_setting(f"output={self.get_output(case)}")
        return [output if item.startswith("output=") else item for item in arguments]

    def _build_environment(self, ray: str) -> dict[str, str]:
        paths = [str(self.folder / path) for path in self.name_table.paths]
        return {
            "PYTHONPATH": os.pathsep.join(paths),
            "OMP_NUM_THREADS": "1",
            "RAY_TMPDIR": ray,  # its sockets need a short path
            "RAY_USAGE_STATS_ENABLED": "0",
            "FLWR_TELEMETRY_ENABLED": "0",
        }


def _get_last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it printed nothing"


@contextmanager
def check_out(commit: str, folder: Path) -> Iterator[Path]:
    """Check a commit out into a new folder, and remove the folder at the end."""
    git = ["git", "-C", str(HERE)]
    subprocess.run([*git, "worktree", "add", "-q", "--detach", str(folder), commit], check=True)
    try:
        yield folder
    finally:
        subprocess.run([*git, "worktree", "remove", "--force", str(folder)], check=True)


# --- comparing ---------------------------------------------------------------------------------


class ValueLocation(NamedTuple):
    """The location of a value; ``run`` is a folder below the case's output."""

    run: str
    column: str
    row: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        run = [f"run {self.run}"] if self.run != "." else []
        return ", ".join([*run, *(f"{name} {number}" for name, number in self.row)])


CaseFacts = dict[ValueLocation, Any]
"""All values of a case, in the first commit's names."""


def read_facts(output: Path, name_table: NameTable) -> CaseFacts:
    """Read all values of the runs in a folder and below it."""
    names = name_table.get_section("files")
    rounds, study = names.get(ROUNDS, ROUNDS), names.get(STUDY, STUDY)
    facts: CaseFacts = {}
    for path in sorted(output.rglob(rounds)):
        facts |= _read_run(path.parent, str(path.parent.relative_to(output)), name_table)
    for path in sorted(output.rglob(study)):
        facts |= _read_fields(
            json.loads(path.read_text(encoding="utf-8")), ".", "study", name_table
        )
    return facts


def _read_run(folder: Path, run: str, name_table: NameTable) -> CaseFacts:
    names, facts = name_table.get_section("files"), CaseFacts()
    for path in sorted(folder.glob("*.safetensors")):
        name = name_table.restore_file(path.name)
        for key, array in load_file(path).items():
            digest = hashlib.sha256(array.tobytes()).hexdigest()[:16]
            facts[ValueLocation(run, f"{name}:{key}")] = (
                f"{array.dtype} {array.shape} sha256 {digest}"
            )
    for line in (folder / names.get(ROUNDS, ROUNDS)).read_text(encoding="utf-8").splitlines():
        facts |= _read_row(json.loads(line), run, "rounds", name_table)
    for table in TABLES:
        path = folder / names.get(table, table)
        if path.exists():
            facts |= _read_table(path, run, table.partition(".")[0], name_table)
    manifest = json.loads((folder / names.get(MANIFEST, MANIFEST)).read_text(encoding="utf-8"))
    fields = _read_fields(manifest, run, "manifest", name_table)
    compared = {f"manifest.{name}" for name in MANIFEST_FIELDS}
    return facts | {
        location: value
        for location, value in fields.items()
        if ".".join(location.column.split(".")[:2]) in compared
    }


def _read_table(path: Path, run: str, table: str, name_table: NameTable) -> CaseFacts:
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    facts: CaseFacts = {}
    for file in files:
        content = pq.ParquetFile(file).read()
        for item in content.schema:
            column = name_table.restore_column(f"{table}.{item.name}")
            facts[ValueLocation(run, f"{column} (type)")] = str(item.type)
        for row in content.to_pylist():
            facts |= _read_row(row, run, table, name_table)
    return facts


def _read_row(row: Mapping[str, Any], run: str, table: str, name_table: NameTable) -> CaseFacts:
    """Return the fields of a row, identified by its round and client."""
    fields = _read_fields(row, run, table, name_table)
    ids = (
        (name, fields.get(ValueLocation(run, f"{table}.{name}"))) for name in ("round", "client")
    )
    key = tuple((name, number) for name, number in ids if isinstance(number, int))
    return {ValueLocation(run, location.column, key): v for location, v in fields.items()}


def _read_fields(node: Any, run: str, name: str, name_table: NameTable) -> CaseFacts:
    """Flatten nested fields to dotted names."""
    if isinstance(node, dict) and node:
        items: Iterable[tuple[Any, Any]] = node.items()
    elif isinstance(node, list) and any(isinstance(item, (dict, list)) for item in node):
        items = enumerate(node)
    else:
        column = name_table.restore_column(name)
        return {ValueLocation(run, column): name_table.restore_value(column, node)}
    facts: CaseFacts = {}
    for key, value in items:
        facts |= _read_fields(value, run, f"{name}.{key}", name_table)
    return facts


ABSENT_VALUE = "absent"


@dataclass(frozen=True)
class ColumnDifference:
    """A column that differs, and the location of the first difference."""

    column: str
    location: str
    before: str
    now: str
    count: int = 1

    def __str__(self) -> str:
        location = f" ({self.location})" if self.location else ""
        more = f", and {self.count - 1} more" if self.count > 1 else ""
        return f"{self.column}{location}: {self.before} before, {self.now} now{more}"


def compare_facts(
    before: CaseFacts, now: CaseFacts, name_table: NameTable
) -> list[ColumnDifference]:
    """Return the columns that differ, except those that ``name_table`` allows."""
    left_out, tolerated = name_table.get_section("left_out"), name_table.get_section("tolerated")
    locations: dict[str, list[ValueLocation]] = {}
    for location in {**before, **now}:
        name = location.column.removesuffix(" (type)")
        if not any(_is_match(name, pattern) for pattern in left_out):
            bounds = [t["relative"] for key, t in tolerated.items() if _is_match(name, key)]
            if not _is_same(before, now, location, max(bounds, default=0.0)):
                locations.setdefault(location.column, []).append(location)
    return [
        ColumnDifference(
            column,
            str(first),
            repr(before[first]) if first in before else ABSENT_VALUE,
            repr(now[first]) if first in now else ABSENT_VALUE,
            1 + len(others),
        )
        for column, (first, *others) in locations.items()
    ]


def _is_match(name: str, pattern: str) -> bool:
    """Return whether a pattern matches a column or a prefix of its dotted name."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")


def _is_same(before: CaseFacts, now: CaseFacts, location: ValueLocation, relative: float) -> bool:
    if location not in before or location not in now:
        return False
    one, other = before[location], now[location]
    if relative and isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=relative)
    # repr distinguishes -0.0 from 0.0 and is the same for each NaN.
    return type(one) is type(other) and repr(one) == repr(other)


@dataclass(frozen=True)
class CaseComparison:
    """The differences of a case, and the number of compared values."""

    case: Case
    differences: Sequence[ColumnDifference]
    values: int = 0

    @property
    def both_ran(self) -> bool:
        """Whether both sides completed."""
        return all(one.column != ENDING_COLUMN for one in self.differences)


ENDING_COLUMN = "ending"


def compare_case(
    case: Case, sides: Sequence[ComparedCheckout], name_table: NameTable
) -> CaseComparison:
    """Compare the values of a case on both sides."""
    endings = [
        json.loads(side.get_output(case).with_name(ENDING).read_text(encoding="utf-8"))["error"]
        for side in sides
    ]
    if any(endings):
        before, now = (f"failed: {error}" if error else "completed" for error in endings)
        return CaseComparison(case, [ColumnDifference(ENDING_COLUMN, "", before, now)])
    facts = [read_facts(side.get_output(case), side.name_table) for side in sides]
    if not all(facts):
        counts = [f"{len(values)} values" for values in facts]
        return CaseComparison(case, [ColumnDifference(ENDING_COLUMN, "", *counts)])
    return CaseComparison(case, compare_facts(facts[0], facts[1], name_table), len(facts[0]))


# --- the command -------------------------------------------------------------------------------


def print_comparisons(comparisons: Iterable[CaseComparison], name_table: NameTable) -> int:
    """Print a line for each case; return the exit status."""
    counts = dict.fromkeys(("same", "excepted", "differs"), 0)
    for comparison in comparisons:
        name, differences = comparison.case.name, comparison.differences
        reason = name_table.get_section("excepted").get(name)
        excepted = bool(differences and reason and comparison.both_ran)
        status = "excepted" if excepted else "differs" if differences else "same"
        counts[status] += 1
        print(f"{status:9}{name}: {reason if excepted else f'{comparison.values} values'}")
        if status == "differs":
            for difference in differences[:MAX_SHOWN_COLUMNS]:
                print(f"         {difference}")
            if len(differences) > MAX_SHOWN_COLUMNS:
                print(f"         and {len(differences) - MAX_SHOWN_COLUMNS} more columns")
        sys.stdout.flush()
    print(", ".join(f"{number} {status}" for status, number in counts.items() if number))
    return 1 if counts["differs"] else 0


def run_cases(
    cases: Sequence[Case], sides: Sequence[ComparedCheckout], jobs: int, name_table: NameTable
) -> Iterator[CaseComparison]:
    """Run the groups of cases in ``jobs`` processes at a time; yield the comparisons."""
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(case.group, []).append(case)
    pool = ThreadPoolExecutor(jobs)
    try:
        started: dict[str, list[Future[None]]] = {
            group: [pool.submit(side.run, members) for side in sides]
            for group, members in groups.items()
        }
        for group, futures in started.items():
            for future in futures:
                future.result()
            for case in groups[group]:
                yield compare_case(case, sides, name_table)
    except BaseException:  # also an interruption: stop the processes that still run
        for child in psutil.Process().children():
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Compare this tree with a commit; return the exit status."""
    options = _parse_options(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the checkout is removed
    started = monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="same-bits-") as temporary,
        check_out(options.against, Path(temporary, "checkout")) as folder,
    ):
        work = Path(temporary)
        now = NameTable.read(HERE)
        sides = [
            ComparedCheckout(folder, NameTable.read(folder), work / SIDES[0]),
            ComparedCheckout(HERE, now, work / SIDES[1]),
        ]
        cases = make_cases(sides[0].describe(), write_trace(work / "trace.csv"))
        selected = select_cases(cases, options.only)
        if options.list:
            print("\n".join(case.name for case in selected))
            return 0
        status = print_comparisons(run_cases(selected, sides, options.jobs, now), now)
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
    parser.add_argument("--jobs", type=int, default=2, help="number of processes at a time")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
