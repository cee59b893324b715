"""Share fixtures and options between all tests: real data, skips, samples of cases."""

import importlib
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest
from hypothesis import settings

from tests import faster_hydra  # noqa: F401 - for its effect
from tests import snapshot as snapshots
from tests.cases import LONG

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike
    from playwright.sync_api import Browser

# Several workers test at the same time, and threads of torch that wait for each other while other
# processes have the cores are many times slower than one thread.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The suite starts some hundred processes that import the same modules. Without bytecode files each
# of them compiles them again, and pytest rewrites every assertion in every worker.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Ray's workers have the lowest priority but three: beside other tests they would hardly run at all.
os.environ.setdefault("RAY_worker_niceness", "0")

# A shell makes what it starts in the background ignore Ctrl-C, and children inherit that: the
# tests of Ctrl-C would wait forever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# The time of an example depends on the machine. The suite draws the same examples every time, so
# a commit that passed passes again; --long draws new ones, and --fast a fifth of them.
settings.register_profile("suite", deadline=None, derandomize=True)
settings.register_profile("long", deadline=None, derandomize=False)
settings.register_profile("fast", deadline=None, derandomize=True, max_examples=20)
settings.load_profile("suite")

DATA = "FEDQUORUM_DATA"
DATA_FOLDER = os.environ.get(DATA)
INTEGRATION = Path(__file__).parent / "integration"
IMPORTED = pytest.StashKey[frozenset[str]]()
LONGEST_FILES = (
    *("test_readme", "test_ray", "test_in_process_runs", "test_faults", "test_same_bits"),
    *("test_flower", "test_generated_runs", "test_deployment", "test_deployed_study"),
    *("test_quickstart", "test_newcomers", "test_new_rule"),
)
"""The integration tests that take minutes, the longest first, as a run of the suite said."""

MANY_TESTS = 1000
"""With this number of tests in a session, some need every module."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return two workers more than there are cores: tests of real nodes mostly wait for Flower."""
    cores = os.cpu_count() or 1
    return cores if config.getoption("fast") else cores + 2


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--fast`` and ``--long`` (fewer and more cases), and the update of snapshots."""
    parser.addoption(
        "--fast",
        action="store_true",
        help="no slow tests and no integration tests, and one case of each parametrized one",
    )
    parser.addoption("--long", action="store_true", help="play all generated cases, not a sample")
    parser.addoption(
        snapshots.UPDATE, action="store_true", help="write the texts in tests/snapshots anew"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Pass ``--long`` to ``tests.cases.sample_cases``, which runs during the collection.

    With ``--fast`` nothing waits for the disk, which takes a quarter of the time: the tests that
    cut the power, of the whole suite, prove what is on the disk, and those that list what was
    synchronized replace ``os.fsync`` anyway.
    """
    if config.getoption("long"):
        os.environ[LONG] = "1"
        settings.load_profile("long")
    else:
        os.environ.pop(LONG, None)
    if config.getoption("fast"):
        settings.load_profile("fast")
        os.fsync = _return_at_once


def _return_at_once(fd: "FileDescriptorLike") -> None:
    """Replace ``os.fsync``; a closed file is still an error."""
    os.fstat(fd if isinstance(fd, int) else fd.fileno())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the integration tests with ``--fast`` before they are imported."""
    return True if config.getoption("fast") and collection_path == INTEGRATION else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest files first, so that no worker is left alone with one at the end.

    First the integration tests with slow ones among them, of which many wait for processes, the
    longest first; then other files with slow tests, then those with the most tests.
    """
    if config.getoption("fast"):
        items[:], left_out = _select_fast(items)
        config.hook.pytest_deselected(items=left_out)
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    counts = Counter(item.path for item in items)

    ranks = {INTEGRATION / f"{name}.py": i for i, name in enumerate(LONGEST_FILES)}

    def get_rank(item: pytest.Item) -> tuple[bool, bool, int, int]:
        path = item.path
        is_unit = INTEGRATION not in path.parents
        return path not in slow, is_unit, ranks.get(path, len(ranks)), -counts[path]

    items.sort(key=get_rank)  # which leaves the tests of a file in their order


def _select_fast(items: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return what ``--fast`` runs, and what it leaves out; the same in every process."""
    cases = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        slow = any(map(item.get_closest_marker, ("slow", "flower")))
        if not slow:
            cases[item.nodeid.partition("[")[0]].append(item)
    selected = {random.Random(name).choice(of_test) for name, of_test in cases.items()}
    return [i for i in items if i in selected], [i for i in items if i not in selected]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Store the modules imported so far, before any test runs.

    The fast tier imports the compiler of PyTorch here, as its optimizers and torchvision do on
    first use: that takes a second, which would count as the time of any one test.
    """
    session.config.stash[IMPORTED] = frozenset(sys.modules)
    if session.config.getoption("fast") and len(session.items) >= MANY_TESTS:
        importlib.import_module("torch._dynamo")


@pytest.fixture(scope="session")
def imported_by_collecting(pytestconfig: pytest.Config) -> frozenset[str]:
    """Return the modules imported by collecting all tests."""
    return pytestconfig.stash[IMPORTED]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Hide the real data from tests that do not request it."""
    os.environ.pop(DATA, None)
    if DATA_FOLDER is not None and "real_data" in getattr(item, "fixturenames", ()):
        os.environ[DATA] = DATA_FOLDER


@pytest.fixture
def snapshot(request: pytest.FixtureRequest) -> snapshots.Snapshot:
    """Return a function that compares a text with a file in ``tests/snapshots``."""
    update = bool(request.config.getoption(snapshots.UPDATE))
    return lambda name, text: snapshots.compare(snapshots.FOLDER / name, text, update=update)


@pytest.fixture
def blank_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the figures of reports blank: drawing them takes most of a report's time."""
    from fedquorum.report import matplotlib_charts
    from matplotlib.figure import Figure

    monkeypatch.setattr(matplotlib_charts, "draw_figure", lambda *_: Figure((2, 1)))


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Return the folder with the real data sets, or skip; in CI a skip is a failure."""
    if not DATA_FOLDER or not (Path(DATA_FOLDER) / "FashionMNIST" / "raw").is_dir():
        _skip(f"{DATA} must be a folder with FashionMNIST/raw, got {DATA_FOLDER!r}")
    return Path(DATA_FOLDER).absolute()


@pytest.fixture(scope="session")
def real_file(real_data: Path) -> Callable[[str], Path]:
    """Return a function from names to files of the real data; it skips like ``real_data``."""

    def get_path(name: str) -> Path:
        path = real_data / name
        if not path.is_file():
            _skip(f"{DATA} must be a folder with {name}, got {str(real_data)!r}")
        return path

    return get_path


@pytest.fixture(scope="session")
def berka_file(real_file: Callable[[str], Path]) -> Path:
    """Return the prepared table of Berka's loans, or skip like ``real_data``."""
    return real_file("berka_loans.csv")


@pytest.fixture(scope="session")
def cifar10_subset(real_file: Callable[[str], Path]) -> Path:
    """Return the .npz file with 15,000 + 3,000 images of CIFAR-10, or skip like ``real_data``."""
    return real_file("cifar10_15k3k.npz")


@pytest.fixture(scope="session")
def flower_with_quickstarts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the wheel of the Flower that has its quickstarts, or skip likewise."""
    folder = tmp_path_factory.mktemp("flower")
    pinned = Path(__file__).parent.parent / "examples" / "quickstart" / "flower.txt"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    command += ["--requirement", str(pinned), "--dest", str(folder)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        _skip(f"pip must reach a package index, for {pinned.name}: {process.stderr[-200:]}")
    return folder


@pytest.fixture(scope="session")
def chromium() -> str:
    """Return the path of a Chromium, or skip like ``real_data``."""
    named = os.environ.get("FEDQUORUM_CHROMIUM")
    found = shutil.which(named or "chromium")
    if found is None:
        _skip(
            "FEDQUORUM_CHROMIUM must be the path of a Chromium where there is no command chromium, "
            f"got {named!r}"
        )
    return found


@pytest.fixture(scope="module")
def browser(chromium: str) -> "Iterator[Browser]":
    """Start a browser once for all tests of a file."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="session")
def systemd_analyze() -> str:
    """Return the path of systemd-analyze, or skip like ``real_data``."""
    return _find_command("systemd-analyze")


@pytest.fixture(scope="session")
def nginx() -> str:
    """Return the path of nginx, or skip like ``real_data``."""
    return _find_command("nginx")


@pytest.fixture(scope="session")
def ssh_keygen() -> str:
    """Return the path of ssh-keygen, or skip like ``real_data``."""
    return _find_command("ssh-keygen")


@pytest.fixture(scope="session")
def sandboxes() -> None:
    """Skip where containers cannot run in sandboxes, as inside of other containers."""
    from tests.integration.pods import list_missing

    if missing := list_missing():
        pytest.skip(f"this machine must have {', '.join(missing)}, for sandboxes with a network")


def _find_command(name: str) -> str:
    found = shutil.which(name, path=f"{os.environ['PATH']}{os.pathsep}/usr/sbin{os.pathsep}/sbin")
    if found is None:
        _skip(f"this machine must have the command {name}")
    return found


def _skip(message: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)
