"""Launch and watch the jobs in the folder of a sweep.

Hydra's launcher runs the jobs, here or on a cluster. Their results are read from their folders.
"""

import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import resource_tracker
from pathlib import Path
from types import FrameType
from typing import NoReturn

from fedquorum.errors import FedQuorumError, RunError, SettingsError, to_one_line
from fedquorum.io import lock
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig
from rich.console import Console

from server_app.runs.new_folders import replace_folder
from server_app.sweeps.display import SweepDisplay
from server_app.sweeps.jobs import Job, SweepFolder

GRACE_SECONDS = 60.0  # time for running jobs to write their records after an interruption


class JobRunner:
    """Runs jobs in a folder and displays their progress; ``lock_folder`` keeps other sweeps out.

    Parameters
    ----------
    config : DictConfig
        Hydra's settings of the sweep.
    launcher : Launcher
    setting : str
        The setting that names the folder, for error messages.

    Raises
    ------
    SettingsError, RunError
        If the folder cannot be created, or the settings ask for job folders that are not numbered.
    """

    def __init__(
        self, config: DictConfig, launcher: Launcher, setting: str = "hydra.sweep.dir"
    ) -> None:
        if any(item.startswith("hydra.sweep.subdir=") for item in config.hydra.overrides.hydra):
            raise SettingsError("hydra.sweep.subdir must not be set: jobs have numbered folders")
        replace_folder(config, "sweep")
        self.directory = Path(str(config.hydra.sweep.dir)).absolute()
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            problem = to_one_line(error)
            raise RunError(
                f"{setting} must be a folder to write to, got {self.directory}: {problem}"
            ) from None
        self.folder = SweepFolder(self.directory)
        self._launcher = launcher
        self._setting = setting
        self.at_a_time = int(config.engine.jobs)
        self.jobs: list[Job] = []
        # The standard output of this process, because jobs redirect theirs.
        self.console = Console(file=sys.stdout, force_jupyter=False)
        self.display = SweepDisplay(self.console)

    @contextmanager
    def lock_folder(self) -> Iterator[None]:
        """Lock the folder against other sweeps.

        Raises
        ------
        RunError
            If another process runs jobs there.
        SettingsError
            On a system without POSIX signals.
        """
        if not hasattr(signal, "pthread_sigmask"):
            raise SettingsError(
                "a sweep (-m) needs POSIX signals, as Linux, macOS and WSL have, got "
                f"{platform.system()}"
            )
        with ExitStack() as stack:
            try:
                stack.enter_context(lock(self.directory / "sweep.lock", wait=False))
            except BlockingIOError:
                raise RunError(
                    f"{self._setting} must not be in use by another sweep, got {self.directory}"
                ) from None
            yield

    def run(self, jobs: Sequence[Job], num_later_jobs: int = 0) -> None:
        """Run the jobs that are not completed, and wait until they end.

        ``num_later_jobs`` is the number of jobs expected in later calls, for the display.

        Raises
        ------
        RunError
            If the launcher fails.
        """
        new = [job for job in dict.fromkeys(jobs) if job not in self.jobs]
        self.jobs += new
        todo = self._plan(new, num_later_jobs)
        while todo:
            error = self._launch(todo)
            self.display.show()
            if error is None:
                return
            # A killed process takes the other processes down. Run each of their jobs once more
            # alone, to find the job that causes it.
            died = [job for job in todo if job.read_state().status == "died"]
            if not died and isinstance(error, FedQuorumError):
                raise error
            if not died:
                raise RunError(f"the launcher failed: {type(error).__name__}: {error}")
            for job in died:
                self._launch([job])
            todo = [job for job in todo if job.read_state().status == "waiting"]

    def _plan(self, jobs: Sequence[Job], num_later_jobs: int) -> list[Job]:
        """Return the jobs to run, ordered so that jobs with the same data follow each other."""
        todo, completed = [], 0
        for job in jobs:
            state = job.read_state()
            if state.holder is not None:
                raise RunError(
                    f"{job} is still running, in process {state.holder.process_id} on "
                    f"{state.holder.host}: wait for its end, or end it"
                )
            if state.status == "completed":
                completed += 1
            elif job.composed is not None:
                todo.append(job)
                if state.status != "waiting":
                    if job.stop_after is None:
                        self.say(f"{job} is taken up again: {state.reason}")
                    job.mark_todo()
        if completed:
            self.say(f"{completed} of {len(jobs)} jobs are completed already")
        refused = [job for job in jobs if job.composed is None]
        self.display.add([*refused, *todo], completed, len(self.jobs) + num_later_jobs)
        first_index = {_get_data_key(job): i for i, job in reversed(list(enumerate(todo)))}
        return sorted(todo, key=lambda job: first_index[_get_data_key(job)])

    def _launch(self, jobs: Sequence[Job]) -> Exception | None:
        batch = [[*job.launch_overrides, f"hydra.sweep.subdir={job.number}"] for job in jobs]
        # Whether the launcher ends its jobs gracefully; joblib's launcher kills its processes.
        ends_jobs = getattr(self._launcher, "ends_jobs", False)
        in_processes = self.at_a_time > 1
        with _forward_interrupts([] if ends_jobs else jobs, in_processes=in_processes):
            try:
                self._launcher.launch(batch, initial_job_idx=0)
            except Exception as error:  # a launcher may raise any error
                return error
        return None

    def say(self, text: str) -> None:
        """Print a line above the live lines."""
        self.console.print(text, soft_wrap=True, markup=False, highlight=False)


def _get_data_key(job: Job) -> str:
    settings = None if job.composed is None else job.composed.settings
    return "" if settings is None else repr((settings.data, settings.seed))


@contextmanager
def _forward_interrupts(jobs: Sequence[Job], *, in_processes: bool) -> Iterator[None]:
    """Forward Ctrl-C and SIGTERM to the jobs first, so that they can write their records.

    A terminal sends Ctrl-C to the worker processes as well. There it would end a process without a
    job, and with it all others, so workers start with SIGINT blocked. This process still receives
    it through the thread of the display, which started before.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread receives signals
        return

    def stop_jobs(_number: int, _frame: FrameType | None) -> NoReturn:
        for number in previous:
            signal.signal(number, signal.default_int_handler)  # a second signal does not wait
        _stop_processes(jobs)
        raise KeyboardInterrupt

    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in previous:
        signal.signal(number, stop_jobs)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    if in_processes:
        from joblib.externals.loky.backend import resource_tracker as loky_resource_tracker

        # Resource trackers that start later would unblock SIGINT.
        resource_tracker.ensure_running()
        loky_resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in previous.items():
            signal.signal(number, handler)


def _stop_processes(jobs: Sequence[Job]) -> None:
    """Send SIGTERM to this machine's other processes that run jobs, and wait for their end."""
    signalled: set[int] = set()
    deadline = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < deadline:
        holders = [job.read_state().holder for job in jobs]
        running = {h.process_id for h in holders if h is not None and h.host == platform.node()}
        running.discard(os.getpid())
        if not running:
            return
        for process in running - signalled:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)
        signalled |= running
        time.sleep(0.1)
