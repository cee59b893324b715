"""Run jobs and sweeps in the process of a notebook or a script.

The commands and these functions run the same code. At the end, these functions also restore the
state that the commands leave changed: Hydra's state, hooks, and PyTorch's switches.
"""

import io
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from fedquorum.errors import RunError, SettingsError
from fedquorum.records.directory import new_run_directory
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from conf.compose import CONFIG_NAME, composed_job, hydra_in_progress
from conf.mistakes import explain
from conf.words import words_of
from server_app.command_line import cannot_write, words_of_a_sweep
from server_app.interruption import interruptible
from server_app.job import (
    EXIT_INTERRUPTED,
    SweepRefused,
    SweepUnfinished,
    run_job,
    run_words,
    without_disk_errors,
)
from server_app.resuming import resumed_words

OUTPUTS = Path("outputs")
RUN_FOLDER, SWEEP_FOLDER = "hydra.run.dir", "hydra.sweep.dir"


def run_here(
    given: Sequence[str],
    settings: Mapping[str, Any],
    *,
    output: Path | str | None = None,
    verbose: bool = True,
) -> Path:
    """Run one job and return its folder; see ``fedquorum_app.run``.

    Parameters
    ----------
    given : sequence of str
        The experiment's name, if one is given, and Hydra overrides.
    settings : mapping
        Further settings by dotted key.
    output : Path or str, optional
        The run's folder.
    verbose : bool
        Whether to print what the command prints.

    Raises
    ------
    FedQuorumError, KeyboardInterrupt
        As in ``server_app.job.run_words``.
    """
    placed = {} if output is None else {RUN_FOLDER: output}
    words = resumed_words((*_words(given), *words_of({**settings, **placed})))
    for word in words:
        if _is_hydras(word) and _key(word) != RUN_FOLDER:
            raise SettingsError(
                f"of Hydra's settings a run in Python has {RUN_FOLDER} alone, got {word}"
            )
    with _left_as_it_was(verbose=verbose):
        directory = _run_folder(words)
        run_words(tuple(word for word in words if not _is_hydras(word)), directory)
    return directory


def sweep_here(
    given: Sequence[str],
    settings: Mapping[str, Any],
    *,
    output: Path | str | None = None,
    verbose: bool = True,
) -> tuple[Path, bool]:
    """Run the jobs of a sweep; return its folder, and whether all of them completed.

    Parameters are those of ``run_here``, where a list stands for several values.

    Raises
    ------
    FedQuorumError
        If the sweep cannot start.
    KeyboardInterrupt
        If it was interrupted.
    """
    words = [*_words(given), *words_of(settings, axes=True)]
    if any(_key(word) == "resume" for word in words):
        raise RunError(
            "resume is of run(), not of sweep(): to continue a sweep, call it again with its output"
        )
    with _left_as_it_was(verbose=verbose):
        arguments = [*words_of_a_sweep(words), "hydra.mode=MULTIRUN"]
        places = [word for word in words if _key(word) == SWEEP_FOLDER]
        if output is not None or not places:
            folder = Path(output) if output is not None else new_run_directory(OUTPUTS, "sweeps")
            arguments += words_of({SWEEP_FOLDER: folder.absolute()})
        try:
            with hydra_in_progress() as hydra:
                hydra.multirun(CONFIG_NAME, run_job, arguments, with_log_configuration=False)
        except SweepRefused as end:
            raise end.error from None
        except SweepUnfinished as end:
            if end.code == EXIT_INTERRUPTED:
                raise KeyboardInterrupt from None
            return end.directory, False
    return folder, True


def _words(given: Sequence[str]) -> tuple[str, ...]:
    """Return the words of positional arguments, of which the first may name an experiment."""
    first, *rest = (*given, "")
    experiment = [f"experiment={first}"] if first and "=" not in first else [first]
    return tuple(word for word in (*experiment, *rest) if word)


def _key(word: str) -> str:
    return word.lstrip("+~").partition("=")[0]


def _is_hydras(word: str) -> bool:
    return _key(word).startswith(("hydra.", "hydra/"))


def _run_folder(words: tuple[str, ...]) -> Path:
    """Check the settings and return the run's folder, absolute: by default a new one.

    Raises
    ------
    SettingsError
        If a setting is wrong, or the folder cannot be made.
    """
    with composed_job(words) as config:
        if not any(_key(word) == RUN_FOLDER for word in words):
            return new_run_directory(OUTPUTS, str(config.hydra.runtime.choices.experiment))
        directory = Path(_resolved(config)).absolute()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(error) from None
    return directory


def _resolved(config: DictConfig) -> str:
    HydraConfig.instance().set_config(config)  # interpolations may ask for it
    try:
        return str(config.hydra.run.dir)
    except OmegaConfBaseException as error:
        raise SettingsError(explain(error)) from None


@contextmanager
def _left_as_it_was(*, verbose: bool) -> Iterator[None]:
    """Put back what a command may leave changed, since its process ends with it."""
    hook, hydra, torch = threading.excepthook, HydraConfig.instance().cfg, _torch_switches()
    threading.excepthook = without_disk_errors
    with ExitStack() as stack:
        if not verbose:
            stack.enter_context(redirect_stdout(io.StringIO()))
        try:
            with interruptible():
                yield
        finally:
            threading.excepthook = hook
            HydraConfig.instance().cfg = hydra
            if "torch" in sys.modules:
                sys.modules["torch"].use_deterministic_algorithms(torch[0], warn_only=torch[1])


def _torch_switches() -> tuple[bool, bool]:
    """Return whether PyTorch's algorithms are to be deterministic, and to warn only.

    PyTorch takes a second to import: too long where the settings have a mistake.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return False, False
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
