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
from fedquorum.records.run_dir import create_run_directory
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from conf.compose import CONFIG_NAME, compose_job, start_hydra
from conf.mistakes import explain
from conf.overrides import to_overrides
from server_app.command_line import build_run_dir_error, prepare_sweep_overrides
from server_app.job import (
    EXIT_INTERRUPTED,
    SweepRefused,
    SweepUnfinished,
    run_job,
    run_overrides,
    suppress_disk_errors,
)
from server_app.resume import merge_resumed_overrides
from server_app.signals import raise_on_sigterm

DEFAULT_OUTPUT_ROOT = Path("outputs")
RUN_FOLDER, SWEEP_FOLDER = "hydra.run.dir", "hydra.sweep.dir"


def run_from_python(
    overrides: Sequence[str],
    settings: Mapping[str, Any],
    *,
    output: Path | str | None = None,
    verbose: bool = True,
) -> Path:
    """Run one job and return its folder; see ``fedquorum_app.run``.

    Parameters
    ----------
    overrides : sequence of str
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
        As in ``server_app.job.run_overrides``.
    """
    placed = {} if output is None else {RUN_FOLDER: output}
    words = merge_resumed_overrides(
        (*_expand_experiment(overrides), *to_overrides({**settings, **placed}))
    )
    for word in words:
        if _is_hydra_setting(word) and _get_key(word) != RUN_FOLDER:
            raise SettingsError(
                f"of Hydra's settings a run in Python has {RUN_FOLDER} alone, got {word}"
            )
    with _restore_globals(verbose=verbose):
        directory = _make_run_folder(words)
        run_overrides(tuple(word for word in words if not _is_hydra_setting(word)), directory)
    return directory


def sweep_from_python(
    overrides: Sequence[str],
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
    words = [*_expand_experiment(overrides), *to_overrides(settings, allow_sweeps=True)]
    if any(_get_key(word) == "resume" for word in words):
        raise RunError(
            "resume is of run(), not of sweep(): to continue a sweep, call it again with its output"
        )
    with _restore_globals(verbose=verbose):
        arguments = [*prepare_sweep_overrides(words), "hydra.mode=MULTIRUN"]
        places = [word for word in words if _get_key(word) == SWEEP_FOLDER]
        if output is not None or not places:
            folder = (
                Path(output)
                if output is not None
                else create_run_directory(DEFAULT_OUTPUT_ROOT, "sweeps")
            )
            arguments += to_overrides({SWEEP_FOLDER: folder.absolute()})
        try:
            with start_hydra() as hydra:
                hydra.multirun(CONFIG_NAME, run_job, arguments, with_log_configuration=False)
        except SweepRefused as end:
            raise end.error from None
        except SweepUnfinished as end:
            if end.code == EXIT_INTERRUPTED:
                raise KeyboardInterrupt from None
            return end.directory, False
    return folder, True


def _expand_experiment(overrides: Sequence[str]) -> tuple[str, ...]:
    """Return the words of positional arguments, of which the first may name an experiment."""
    first, *rest = (*overrides, "")
    experiment = [f"experiment={first}"] if first and "=" not in first else [first]
    return tuple(word for word in (*experiment, *rest) if word)


def _get_key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]


def _is_hydra_setting(override: str) -> bool:
    return _get_key(override).startswith(("hydra.", "hydra/"))


def _make_run_folder(overrides: tuple[str, ...]) -> Path:
    """Check the settings and return the run's folder, absolute: by default a new one.

    Raises
    ------
    SettingsError
        If a setting is wrong, or the folder cannot be made.
    """
    with compose_job(overrides) as config:
        if not any(_get_key(word) == RUN_FOLDER for word in overrides):
            return create_run_directory(
                DEFAULT_OUTPUT_ROOT, str(config.hydra.runtime.choices.experiment)
            )
        directory = Path(_resolve_run_folder(config)).absolute()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise build_run_dir_error(error) from None
    return directory


def _resolve_run_folder(config: DictConfig) -> str:
    HydraConfig.instance().set_config(config)  # interpolations may ask for it
    try:
        return str(config.hydra.run.dir)
    except OmegaConfBaseException as error:
        raise SettingsError(explain(error)) from None


@contextmanager
def _restore_globals(*, verbose: bool) -> Iterator[None]:
    """Put back what a command may leave changed, since its process ends with it."""
    hook, hydra, torch = threading.excepthook, HydraConfig.instance().cfg, _get_torch_determinism()
    threading.excepthook = suppress_disk_errors
    with ExitStack() as stack:
        if not verbose:
            stack.enter_context(redirect_stdout(io.StringIO()))
        try:
            with raise_on_sigterm():
                yield
        finally:
            threading.excepthook = hook
            HydraConfig.instance().cfg = hydra
            if "torch" in sys.modules:
                sys.modules["torch"].use_deterministic_algorithms(torch[0], warn_only=torch[1])


def _get_torch_determinism() -> tuple[bool, bool]:
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
