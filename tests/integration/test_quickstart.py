"""Flower's stock quickstarts with one line changed, on real Flower."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import chdir
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedquorum.audit.check import audit_run
from flwr.app import Context, RecordDict, UserConfig
from flwr.serverapp.strategy import Result

from server_app.engines.in_process import InProcessGrid
from tests.builders_runs import read_rows
from tests.cases import is_long
from tests.integration.conftest import ROOT, Outcome, Shell, start_local_superlink

QUICKSTART = ROOT / "examples" / "quickstart"
README = (QUICKSTART / "README.md").read_text()
BLOCKS = dict(re.findall(r"<!-- (\w+) -->\n```\w+\n(.*?)```", README, re.DOTALL))
LINES = BLOCKS["strategies"].splitlines()
COMMANDS = BLOCKS["commands"].splitlines()
FORMS = ("numpy", "sklearn", "pytorch")
IMPORT = "from flwr.serverapp.strategy import FedAvg", "from fedquorum import FedAU"
SMALL = ("--federation-config", "num-supernodes=4")

Make = Callable[..., Path]


@pytest.fixture
def make(flower_with_quickstarts: Path, tmp_path: Path) -> Make:
    """Return what makes an app in a folder, by the script."""

    def made(form: str, *options: str) -> Path:
        done = subprocess.run(
            [sys.executable, str(QUICKSTART / "make.py"), form, *options],
            cwd=tmp_path,
            env={**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(flower_with_quickstarts)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return tmp_path / f"quickstart-{form}"

    return made


def changes(diff: str) -> list[tuple[str, str, str]]:
    """Return (file, sign, line) of every line that a diff takes away or adds."""
    found, file = [], ""
    for line in (QUICKSTART / f"{diff}.diff").read_text().splitlines():
        if line.startswith("+++ "):
            file = line.rpartition("/")[2]
        elif line[0] in "+-" and not line.startswith("--- "):
            found.append((file, line[0], line[1:]))
    return found


@pytest.mark.parametrize("form", FORMS)
def test_one_line_is_changed_and_its_import(form: str) -> None:
    """The strategy's name, whatever its arguments are; nothing of the clients."""
    first, second, third, fourth = changes(form)
    assert first == ("server_app.py", "-", IMPORT[0])
    assert second == ("server_app.py", "+", IMPORT[1])
    assert third[:2] == ("server_app.py", "-")
    assert third[2].startswith("    strategy = FedAvg(")
    assert fourth == ("server_app.py", "+", third[2].replace("FedAvg", "FedAU"))


@pytest.mark.parametrize("form", FORMS[1:])
def test_other_data_are_all_that_the_other_diffs_change(form: str) -> None:
    """They change the file that loads them, and add nothing of FedQuorum's package."""
    lines = changes(f"{form}-data")
    assert {file for file, _, _ in lines} == {"task.py"}
    assert not [line for _, _, line in lines if "fedquorum" in line]


def test_the_readme_has_what_is_in_the_diff() -> None:
    """And the first of its strategies is the diff's."""
    assert BLOCKS["diff"] == "".join(f"{sign}{line}\n" for _, sign, line in changes("numpy"))
    assert changes("numpy")[-1][2].strip() == LINES[0]


def test_the_query_is_that_of_the_documentation() -> None:
    """The lines by which nodes say who they are stand on two pages."""
    assert BLOCKS["query"] in (ROOT / "docs" / "drop-in.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS if is_long() else FORMS[1:2])
def test_the_rest_is_flowers(form: str, make: Make, tmp_path: Path) -> None:
    """Byte by byte what ``flwr new`` makes, but for the lines of the diffs."""

    def lines(app: Path) -> dict[str, list[str]]:
        files = [path for path in app.rglob("*") if path.is_file()]
        return {path.name: path.read_text().splitlines() for path in files}

    stock = make(form, "--stock").rename(tmp_path / "stock")
    data = [] if form == "numpy" else ["--local-data"]
    before, after = lines(stock), lines(make(form, *data))
    assert before.keys() == after.keys()
    changed = [*changes(form), *chain.from_iterable(changes(f"{form}-data") for _ in data)]
    for name in before:
        of_file = [(sign, line) for file, sign, line in changed if file == name]
        rest = [
            sorted(set(given) - {line for sign, line in of_file if sign == which})
            for given, which in ((before[name], "-"), (after[name], "+"))
        ]
        assert rest[0] == rest[1], name


def name_in(line: str) -> str:
    """Return the strategy's name in ``strategy = Name(...)``."""
    return line.partition("(")[0].rpartition(" ")[2]


def with_strategy(app: Path, line: str) -> None:
    """Put another strategy into a stock app, as its user would."""
    (folder,) = (path.parent for path in app.glob("*/server_app.py"))
    server, client = folder / "server_app.py", folder / "client_app.py"
    code = server.read_text().replace(IMPORT[0], f"from fedquorum import {name_in(line)}")
    server.write_text(re.sub(r"strategy = FedAvg\(.*\)", line, code))
    if 'client_ids="query"' in line:
        client.write_text(f"{client.read_text()}\n\n{BLOCKS['query']}")


def words_of_the_readme(app: Path) -> list[str]:
    """Return the README's ``flwr run``, of an app that is not the working directory."""
    words = COMMANDS[-1].partition("flwr ")[2].split()
    assert words[:2] == ["run", "."]
    return ["flwr", "run", str(app), *words[2:]]


@pytest.mark.slow
@pytest.mark.flower
@pytest.mark.parametrize("line", [LINES[0], LINES[2]], ids=name_in)
def test_the_numpy_quickstart_runs(line: str, make: Make, flower: Shell) -> None:
    """``flwr run`` on Ray with the README's command."""
    app = make("numpy", "--stock")
    with_strategy(app, line)
    done = flower(*words_of_the_readme(app), *SMALL)
    assert_ran(done, name_in(line), clients=4)


@pytest.mark.slow
@pytest.mark.flower
def test_the_numpy_quickstart_counts_late_updates(
    make: Make, flower: Shell, tmp_path: Path
) -> None:
    """With two keywords, and a third for the records, which the audit replays."""
    app = make("numpy", "--stock")
    words = f'quorum=2, late_replies="count", records="{tmp_path / "run"}"'
    with_strategy(app, f"strategy = FedAU({words})")
    done = flower(*words_of_the_readme(app), *SMALL)
    assert "Saving final model to disk" in done.stdout, done.stdout[-4000:] + done.stderr[-2000:]
    rows = read_rows(tmp_path / "run")
    assert {row["start_round"] for row in rows if row["status"] == "trained"} >= {1}
    assert not audit_run(tmp_path / "run").mismatches


def assert_ran(done: Outcome, name: str, clients: int) -> None:
    said = done.stdout[-4000:] + done.stderr[-2000:]
    assert f"Starting {name} strategy" in done.stdout, said
    assert f"configure_train: Sampled {clients} nodes" in done.stdout, said
    assert "Saving final model to disk" in done.stdout, said
    assert done.stdout.count("Aggregated MetricRecord") == 6, said  # 3 rounds, twice


@pytest.fixture
def clean_imports() -> Iterator[None]:
    """Forget an app's modules and the path to them at the end."""
    before, path = set(sys.modules), [*sys.path]
    yield
    sys.path[:] = path
    for name in [name for name in set(sys.modules) - before if name.startswith("quickstart_")]:
        del sys.modules[name]


@pytest.mark.slow
@pytest.mark.usefixtures("clean_imports")
def test_the_pytorch_quickstart_runs(
    make: Make, tmp_path: Path, cifar10_subset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ServerApp and its ClientApp in one process, in one round with few images."""
    with np.load(cifar10_subset) as data:
        few = {key: data[key][:600] for key in ("x_train", "y_train")}
    np.savez(tmp_path / cifar10_subset.name, **few)
    monkeypatch.setenv("FEDQUORUM_DATA", str(tmp_path))
    results: list[Result] = []
    app = make("pytorch", "--local-data")
    sys.path.insert(0, str(app))
    server, client = (import_module(f"quickstart_pytorch.{n}_app") for n in ("server", "client"))

    class Kept(server.FedAU):  # type: ignore[misc, name-defined]
        def start(self, *args: Any, **kwargs: Any) -> Result:
            results.append(super().start(*args, **kwargs))
            return results[0]

    monkeypatch.setattr(server, "FedAU", Kept)
    settings: UserConfig = {"fraction-train": 0.5, "local-epochs": 1, "lr": 0.01}
    settings["num-server-rounds"] = 1
    with chdir(tmp_path):
        grid = InProcessGrid(client.app, settings, num_nodes=10)
        server.app(grid, Context(0, 0, {}, RecordDict(), settings))
    assert (tmp_path / "final_model.pt").is_file()
    [result] = results
    assert list(result.train_metrics_clientapp[1]) == ["train_loss"]
    assert set(result.evaluate_metrics_clientapp[1]) == {"eval_loss", "eval_acc"}


# --- from nothing, with a package index -----------------------------------------------------


@pytest.fixture(scope="module")
def bare(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Shell, float]]:
    """Return a shell of a new environment with what the README installs, and how long it took."""
    folder = tmp_path_factory.mktemp("bare")
    begin = time.monotonic()
    environment = {**os.environ, "FEDQUORUM": str(clone)}
    script = "\n".join(["set -e", *COMMANDS[:2]])
    subprocess.run(["bash", "-c", script], cwd=folder, env=environment, check=True)
    seconds = time.monotonic() - begin
    with start_local_superlink(tmp_path_factory.mktemp("bare-home")) as variables:
        path = f"{folder / 'venv' / 'bin'}:{os.environ['PATH']}"
        yield Shell(folder, {**variables, "PATH": path}), seconds


@pytest.mark.slow
@pytest.mark.flower
@pytest.mark.skipif(not is_long(), reason="installs from a package index; see --long")
@pytest.mark.parametrize("form", ["numpy", "sklearn"])
def test_from_nothing_to_the_first_result(
    form: str,
    bare: tuple[Shell, float],
    make: Make,
    capsys: pytest.CaptureFixture[str],
    real_file: Callable[[str], Path],
) -> None:
    """A bare environment, the library and a stock quickstart, in the README's commands."""
    real_file("mnist_by_writer.npz")  # which --local-data reads
    shell, installed = bare
    environment = shell.cwd / "venv" / "bin"
    if form == "sklearn":
        subprocess.run([environment / "pip", "install", "-q", "scikit-learn"], check=True)
    app = make(form, *(["--local-data"] if form == "sklearn" else []))
    begin = time.monotonic()
    done = shell(str(environment / "flwr"), *words_of_the_readme(app)[1:], timeout=600)
    assert_ran(done, "FedAU", clients=10)
    with capsys.disabled():
        print(f"\n{form}: {installed:.0f} s to install, {time.monotonic() - begin:.0f} s to run")


@pytest.mark.slow
@pytest.mark.flower
@pytest.mark.skipif(not is_long(), reason="minutes; see --long")
@pytest.mark.usefixtures("cifar10_subset")
@pytest.mark.parametrize("line", LINES, ids=name_in)
def test_the_pytorch_quickstart_runs_with_each_strategy(
    line: str, make: Make, flower: Shell
) -> None:
    """``flwr run`` on Ray: better than guessing one class in ten."""
    app = make("pytorch", "--stock", "--local-data")
    with_strategy(app, line)
    done = flower(*words_of_the_readme(app), *SMALL, timeout=600)
    assert_ran(done, name_in(line), clients=4)
    accuracies = re.findall(r"'eval_acc': ([\d.]+)", done.stdout)
    assert float(accuracies[-1]) > 0.12, done.stdout[-4000:]
