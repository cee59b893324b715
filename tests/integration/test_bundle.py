"""The bundle alone: the main job, the report and the audit in an empty directory."""

import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fedquorum.audit.cli import format_summary_line

from tests.builders_runs import run_here
from tests.integration.conftest import ROOT, Shell, assert_same_bits, start_local_superlink
from tests.reference.fedalign import find_mismatches

pytestmark = [pytest.mark.slow, pytest.mark.flower]

ROUNDS = 6
OVERRIDES = (f"rounds={ROUNDS}", "strategy.warmup_fraction=0.25")

WITHOUT_THIS_CHECKOUT = f"""
import sys

sys.path[:] = [place for place in sys.path if not place.startswith({str(ROOT)!r})]
"""
READ = """
from pathlib import Path

from server_app.cli.commands import main
from fedquorum.report.watch_server import WatchServer

with WatchServer(Path(sys.argv[1]), 0) as server:
    print(server.policy)
    server.watch.draw()
    print(server.watch.content)
sys.exit(main(["audit", sys.argv[1]]) or main(["report", sys.argv[1], "--output", "report"]))
"""


@pytest.fixture(scope="module")
def bundle_shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Return a shell in a folder with the bundle's files, whose processes lack this checkout.

    Python imports ``sitecustomize`` when it starts, after the paths of editable installs are there.
    """
    folder = tmp_path_factory.mktemp("bundle")
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(WITHOUT_THIS_CHECKOUT)
    with start_local_superlink(folder / "home") as variables:
        shell = Shell(folder, {**variables, "PYTHONPATH": str(folder / "site")})
        assert shell("flwr", "build", "--app", str(ROOT)).status == 0
        (bundle,) = folder.glob("*.fab")
        zipfile.ZipFile(bundle).extractall(folder / "app")
        shell.cwd = folder / "app"
        yield shell


@pytest.fixture(scope="module")
def run(bundle_shell: Shell) -> Path:
    """Return what the main job left behind."""
    run = bundle_shell.cwd.parent / "run"
    config = f'overrides="{" ".join(OVERRIDES)}" output-dir="{run}"'
    done = bundle_shell("flwr", "run", ".", "--stream", "--run-config", config)
    assert done.status == 0, done.stderr
    assert f"Results in {run}" in done.stdout, done.stdout + done.stderr
    return run


def python(shell: Shell, program: str, *words: str) -> str:
    """Run a program with the modules of the folder; return what it prints."""
    done = shell(Path(sys.executable).name, "-c", f"import sys\n{program}", *words)
    assert done.status == 0, done.stdout + done.stderr
    return done.stdout


def test_this_checkout_is_missing_there(bundle_shell: Shell) -> None:
    """So that the other tests show what they say."""
    program = "import server_app, fedquorum; print(server_app.__file__, fedquorum.__file__)"
    files = python(bundle_shell, program).split()
    assert files == [
        str(bundle_shell.cwd / "server_app" / "__init__.py"),
        str(bundle_shell.cwd / "strategies" / "fedquorum" / "__init__.py"),
    ]
    elsewhere = Shell(bundle_shell.cwd.parent / "site", bundle_shell.env)
    done = elsewhere(Path(sys.executable).name, "-c", "import fedquorum")
    assert "No module named 'fedquorum'" in done.stderr


def test_the_main_job_gives_the_same_bits(run: Path, tmp_path: Path) -> None:
    """On Flower's default of 2 nodes, all rounds and the model of the run in process, from here.

    Other numbers of nodes, and other presets, are in test_same_bits.py.
    """
    manifest = json.loads((run / "manifest.json").read_text())
    assert (manifest["status"], manifest["engine"]) == ("completed", "flower")
    assert_same_bits(run, run_here(tmp_path / "in-process", *OVERRIDES), ROUNDS)
    assert find_mismatches(run).problems == []


def test_the_report_and_the_audit_run(bundle_shell: Shell, run: Path) -> None:
    """The pages have their templates, styles and scripts."""
    printed = python(bundle_shell, READ, str(run))
    assert format_summary_line(0) in printed
    assert "script-src" in printed
    assert "Clients now" in printed
    (page,) = (bundle_shell.cwd / "report").glob("*.html")
    text = page.read_text()
    assert "<h1>FedQuorum report</h1>" in text
    assert "<style>\n" in text
