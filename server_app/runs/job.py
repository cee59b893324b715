"""Run one job, alone or in a sweep. Hydra calls it in this process or in another one.

Beside the records of its run, the folder of a sweep's job holds

``output.log``  the output of the job
``error.txt``   the reason of a failure in one line, and the trace of an unexpected error
``job.lock``    locked by the process that runs the job, with its id and host; free if it was killed
``job.todo``    marks an interrupted job that the next sweep should run

A process of the sweep imports this module before its first job. The module therefore imports the
rest of FedQuorum only on use, since an interruption during imports would end in a trace.
"""

import io
import logging
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from fedquorum.errors import FedQuorumError
from fedquorum.io import lock
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from server_app.runs.signals import is_worker, raise_on_sigterm, should_stop

if TYPE_CHECKING:
    from conf import ComposedConfig, Settings
    from server_app.engines.in_process import SimulationGrid

OUTPUT_FILE = "output.log"
ERROR_FILE = "error.txt"
LOCK_FILE = "job.lock"
TODO_FILE = "job.todo"
EXIT_ERROR = 1
EXIT_INTERRUPTED = 130


class SweepUnfinished(SystemExit):
    """The end of a sweep with incomplete jobs; ``code`` is the exit status."""

    def __init__(self, code: int, directory: Path) -> None:
        super().__init__(code)
        self.directory = directory


def run_job(config: DictConfig) -> None:
    """Run the job that Hydra has composed, into Hydra's output folder.

    For a single job, a failure ends the process with one line. In a sweep, the function writes the
    failure to the job's folder and raises it, and Hydra continues with the next job.
    """
    job = HydraConfig.get()
    overrides, directory = tuple(job.overrides.task), Path(job.runtime.output_dir)
    if should_stop():
        raise KeyboardInterrupt
    threading.excepthook = suppress_disk_errors
    with raise_on_sigterm():
        if job.mode == RunMode.MULTIRUN:
            _run_in_sweep(config, overrides, directory)
        else:
            _run_single_job(config, overrides, directory)


class SweepRefused(SystemExit):
    """The end of a sweep that cannot start, with the reason in ``error``."""

    def __init__(self, error: FedQuorumError) -> None:
        super().__init__(EXIT_ERROR)
        self.error = error


def exit_with_error(error: object) -> NoReturn:
    """End the process with one line."""
    print(f"fedquorum: {error}", file=sys.stderr)
    sys.exit(EXIT_ERROR)


def _run_single_job(config: DictConfig, overrides: tuple[str, ...], directory: Path) -> None:
    try:
        _check_config(config, overrides)
        run_overrides(overrides, directory)
    except FedQuorumError as error:
        exit_with_error(error)
    except KeyboardInterrupt:
        print("fedquorum: interrupted; the records hold all complete rounds", file=sys.stderr)
        if _can_resume(directory):
            from conf.compose import compose_overrides
            from server_app.runs.next_commands import format_command
            from server_app.runs.resume import list_trust_overrides

            trust = list_trust_overrides(compose_overrides(overrides).settings)
            command = format_command(f"resume={directory}", *trust)
            print(f"fedquorum: to continue: {command}", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)


def _run_in_sweep(config: DictConfig, overrides: tuple[str, ...], directory: Path) -> None:
    # Flower's log stores the current standard error on import, which must not be a job's file.
    import flwr.common.logger  # noqa: F401
    from fedquorum.errors import RunError
    from fedquorum.records.run_dir import read_manifest_or_empty

    reason = ""
    with lock(directory / LOCK_FILE), (directory / OUTPUT_FILE).open("w") as output:
        try:
            for name in (ERROR_FILE, TODO_FILE):
                (directory / name).unlink(missing_ok=True)
            _check_config(config, overrides)
            with redirect_stdout(output), redirect_stderr(output):
                run_overrides(build_resume_overrides(overrides, directory), directory)
        except KeyboardInterrupt:
            # A run on Flower fails if it is stopped while a message is in flight.
            if read_manifest_or_empty(directory).get("status") == "failed":
                (directory / TODO_FILE).touch()
            if not is_worker():
                raise
            reason = "interrupted"
        except FedQuorumError as error:
            reason = str(error)
            (directory / ERROR_FILE).write_text(reason + "\n")
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            (directory / ERROR_FILE).write_text(f"{reason}\n\n{traceback.format_exc()}")
    if reason:
        # Not the error itself, because not every error can be pickled for another process.
        raise RunError(reason)


def _check_config(config: DictConfig, overrides: tuple[str, ...]) -> None:
    """Check the settings that Hydra has composed, and cache them for later use."""
    from conf.compose import adopt_config

    adopt_config(config, str(HydraConfig.get().runtime.choices["experiment"]), overrides)


def build_resume_overrides(overrides: tuple[str, ...], directory: Path) -> tuple[str, ...]:
    """Return the overrides that resume a job from its checkpoint, or restart it without one."""
    from fedquorum.records.run_dir import remove_unfinished

    from conf.compose import quote

    if _can_resume(directory):
        return (*overrides, f"resume={quote(str(directory))}")
    remove_unfinished(directory)
    return overrides


def _can_resume(directory: Path) -> bool:
    """Say whether ``resume`` can continue the run in a folder."""
    from fedquorum.records.checkpoint import CheckpointStore
    from fedquorum.records.safe_files import MANIFEST_FILE

    has_run = (directory / MANIFEST_FILE).exists()
    return has_run and CheckpointStore(directory).find_newest().checkpoint is not None


def run_overrides(overrides: tuple[str, ...], directory: Path) -> None:
    """Run the job of these overrides on its engine, with its records in a folder.

    Raises
    ------
    FedQuorumError
        If the job cannot start, or did not complete.
    KeyboardInterrupt
        If the job was interrupted; the records hold its complete rounds.
    """
    from conf.compose import compose_overrides

    composed = compose_overrides(overrides)
    if composed.settings.engine.name == "flower":
        from server_app.engines.flower import submit_job

        submit_job(composed, str(directory))
    elif composed.settings.engine.name == "ray":
        run_on_ray(composed, str(directory))
    else:
        run_in_process(composed, str(directory))


def run_in_process(composed: "ComposedConfig", output_dir: str) -> None:
    """Run the rounds and the ClientApp in this process."""
    from client_app.app import app as client_app
    from client_app.training.failure_log import FAILURE_LOG
    from server_app.engines.in_process import InProcessGrid

    FAILURE_LOG.clear()  # this process may have run another job
    nodes = _count_nodes(composed.settings)
    _run_rounds(InProcessGrid(client_app, composed.run_config, nodes), composed, output_dir)


def _count_nodes(settings: "Settings") -> int:
    """Return the number of nodes in this process: one, or enough for masks."""
    if settings.engine.num_supernodes is None and settings.secure_aggregation.name != "none":
        from client_app.data import load_data
        from conf.schema.secure_sums import choose_num_nodes

        num_clients = load_data(settings.data, settings.seed).num_clients
        return choose_num_nodes(settings, num_clients) or 1
    return settings.engine.num_supernodes or 1


def run_on_ray(composed: "ComposedConfig", output_dir: str) -> None:
    """Run the rounds in this process, and the ClientApp in workers of Ray.

    Paths are made absolute, since workers use other folders and perhaps other machines.
    """
    from client_app.app import app as client_app
    from server_app.engines.flower import make_paths_absolute
    from server_app.engines.ray.engine import start_ray_grid

    composed = make_paths_absolute(composed)
    with start_ray_grid(client_app, composed.run_config, composed.settings) as grid:
        _run_rounds(grid, composed, output_dir)


def _run_rounds(grid: "SimulationGrid", composed: "ComposedConfig", output_dir: str) -> None:
    from conf.schema.late import check_late_clock
    from server_app.runs.loop import run_rounds

    check_late_clock(composed.settings, grid.engine)
    with _filter_flower_logs():
        run_rounds(grid, composed, output_dir, engine=grid.engine)


@contextmanager
def _filter_flower_logs() -> Iterator[None]:
    """Limit Flower's log to warnings, and write them to the current standard error."""
    from flwr.common.logger import console_handler

    log = logging.getLogger("flwr")
    level, colored = log.level, console_handler.colored
    log.setLevel(logging.WARNING)
    console_handler.colored = sys.stderr.isatty()
    stream = console_handler.stream
    # Not setStream, which flushes the former stream: where others redirect it, it may be closed.
    console_handler.stream = _CurrentStderr()
    try:
        yield
    finally:
        log.setLevel(level)
        console_handler.colored = colored
        console_handler.stream = stream


class _CurrentStderr(io.TextIOBase):
    """The current standard error: above the live lines, or in the log of a sweep's job."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def suppress_disk_errors(failure: threading.ExceptHookArgs) -> None:
    """Suppress write errors of TensorBoard's thread, which the run reports in one line."""
    if not isinstance(failure.exc_value, OSError):
        threading.__excepthook__(failure)
