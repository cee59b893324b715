"""One job, alone or in a sweep: what Hydra calls, in this process or in another.

Beside the records of its run, the folder of a sweep's job holds

``output.log``  what the job alone would have printed
``error.txt``   why it failed: one line, and below it the trace of an error that nobody foresaw
``job.lock``    locked by the process that runs the job, with its id and host; free if it was killed
``job.todo``    there while what an earlier sweep left is to be run again

A process of the sweep imports this module before its first job, so the rest of FedQuorum is
imported when it is needed: until then an interruption would end in a trace.
"""

import fcntl
import multiprocessing
import os
import platform
import shlex
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn, TextIO

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

OUTPUT_FILE = "output.log"
ERROR_FILE = "error.txt"
LOCK_FILE = "job.lock"
TODO_FILE = "job.todo"
EXIT_ERROR = 1
EXIT_INTERRUPTED = 130


class SweepUnfinished(SystemExit):
    """The end of a sweep with jobs that are not done; ``code`` is the exit status."""

    def __init__(self, code: int, directory: Path) -> None:
        super().__init__(code)
        self.directory = directory


def run_job(config: DictConfig) -> None:
    """Run what Hydra has composed, into Hydra's output directory.

    Alone, a failure ends the process with one line. In a sweep it is written to the job's folder
    and raised, for Hydra to go on with the next job.
    """
    job = HydraConfig.get()
    words, directory = tuple(job.overrides.task), Path(job.runtime.output_dir)
    if _told_to_stop:
        raise KeyboardInterrupt
    threading.excepthook = _without_disk_errors
    with _interruptible():
        if job.mode == RunMode.MULTIRUN:
            _run_in_sweep(config, words, directory)
        else:
            _run_alone(config, words, directory)


def fail(error: object) -> NoReturn:
    """End the process with one line."""
    print(f"fedquorum: {error}", file=sys.stderr)
    sys.exit(EXIT_ERROR)


def _run_alone(config: DictConfig, words: tuple[str, ...], directory: Path) -> None:
    from conf.errors import FedQuorumError
    from strategies.directory import ClientsMissingError

    try:
        _check(config, words)
        _run(words, directory)
    except (FedQuorumError, ClientsMissingError) as error:
        fail(error)
    except KeyboardInterrupt:
        print("fedquorum: interrupted; the records hold all complete rounds", file=sys.stderr)
        if _can_go_on(words, directory):
            command = shlex.join(["fedquorum", f"resume={directory}"])
            print(f"fedquorum: to go on: {command}", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)


def _run_in_sweep(config: DictConfig, words: tuple[str, ...], directory: Path) -> None:
    from conf.errors import FedQuorumError, RunError
    from strategies.directory import ClientsMissingError

    reason = ""
    with lock(directory / LOCK_FILE), (directory / OUTPUT_FILE).open("w") as output:
        try:
            for name in (ERROR_FILE, TODO_FILE):
                (directory / name).unlink(missing_ok=True)
            _check(config, words)
            with redirect_stdout(output), redirect_stderr(output):
                _run(_going_on(words, directory), directory)
        except KeyboardInterrupt:
            if not _in_worker():
                raise
            reason = "interrupted"
        except (FedQuorumError, ClientsMissingError) as error:
            reason = str(error)
            (directory / ERROR_FILE).write_text(reason + "\n")
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            (directory / ERROR_FILE).write_text(f"{reason}\n\n{traceback.format_exc()}")
    if reason:
        # Not the error itself: not every error survives the way to another process.
        raise RunError(reason)


def _check(config: DictConfig, words: tuple[str, ...]) -> None:
    """Check what Hydra has composed, so that it need not be composed again."""
    from conf.compose import take_over

    take_over(config, str(HydraConfig.get().runtime.choices["experiment"]), words)


def _going_on(words: tuple[str, ...], directory: Path) -> tuple[str, ...]:
    """Return the words with which a job goes on from its checkpoint, or begins anew without."""
    from server_app.checkpoint import quoted_path
    from server_app.records.directory import remove_unfinished

    if _can_go_on(words, directory):
        return (*words, f"resume={quoted_path(directory)}")
    remove_unfinished(directory)
    return words


def _can_go_on(words: tuple[str, ...], directory: Path) -> bool:
    """Say whether the run in a folder left what ``resume`` needs."""
    from conf.compose import compose_words
    from server_app.checkpoint import Checkpoints

    settings = compose_words(words).settings
    # What the clients of a local-only run keep is lost with a run on Flower.
    kept = settings.engine.name == "in-process" or settings.strategy.name != "local_only"
    return kept and Checkpoints(directory).newest().checkpoint is not None


def _run(words: tuple[str, ...], directory: Path) -> None:
    from conf.compose import compose_words

    composed = compose_words(words)
    if composed.settings.engine.name == "flower":
        from server_app.submit import submit

        submit(composed, str(directory))
    else:
        from server_app.command_line import run_in_process

        run_in_process(composed, str(directory))


# --- locks -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Holder:
    """A process that holds a lock."""

    process: int
    host: str


@contextmanager
def lock(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a file, with this process's id in it, and remove it in the end.

    The kernel lets go of it when the process dies, however that comes about; the file then stays.

    Raises
    ------
    BlockingIOError
        If another process holds it, unless told to wait.
    """
    with _locked(path, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB)) as file:
        file.truncate(0)
        file.write(f"{os.getpid()} {platform.node()}")
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _locked(path: Path, operation: int) -> TextIO:
    """Return the file, locked; never one that its last holder has removed meanwhile."""
    while True:
        file = path.open("a+")
        try:
            fcntl.flock(file, operation)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    return file
        except BaseException:
            file.close()
            raise
        file.close()


def holder(path: Path) -> Holder | None:
    """Return who holds the file of ``lock``, None if nobody does."""
    with suppress(FileNotFoundError), path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            process, _, host = file.read().partition(" ")
            return Holder(int(process or 0), host)
    return None


# --- interruption ----------------------------------------------------------------------------


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Put off Ctrl-C and kill, so that what belongs together is written together.

    An exception in the midst of it could also leave a lock of a library held for ever. Signals
    reach the main thread only; in others there is nothing to put off.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: arrived.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for told in arrived[:1]:
            signal.raise_signal(told)


_busy = False
_told_to_stop = False  # in a process of a sweep: no further job begins in it


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let a polite kill end a job as Ctrl-C does; it is also how a sweep ends its processes."""
    global _busy  # noqa: PLW0603 - of the process, like the handlers
    before = signal.signal(signal.SIGTERM, _on_sigterm)
    _busy = True
    try:
        yield
    finally:
        _busy = False
        if not _in_worker():
            signal.signal(signal.SIGTERM, before)


def _on_sigterm(_number: int, _frame: FrameType | None) -> None:
    global _told_to_stop  # noqa: PLW0603
    _told_to_stop = _in_worker()
    if _busy:
        raise KeyboardInterrupt


def _without_disk_errors(told: threading.ExceptHookArgs) -> None:
    """Leave out what TensorBoard's thread cannot write: the run says so itself, in one line."""
    if not isinstance(told.exc_value, OSError):
        threading.__excepthook__(told)


def _in_worker() -> bool:
    return multiprocessing.current_process().name != "MainProcess"
