"""Run jobs and sweeps in the process of a notebook or a script.

The commands and these functions run the same code. These functions also restore the global state
that the commands leave changed: Hydra's state, hooks, and PyTorch's switches.
"""

import io
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass
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
from server_app.cli.fedquorum import build_run_dir_error, prepare_sweep_overrides
from server_app.runs.job import (
    EXIT_INTERRUPTED,
    SweepRefused,
    SweepUnfinished,
    run_job,
    run_overrides,
    suppress_disk_errors,
)
from server_app.runs.resume import merge_resumed_overrides
from server_app.runs.signals import raise_on_sigterm

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
        Hydra overrides, the first of which may be the name of an experiment.
    settings : mapping
        Further settings by dotted key.
    output : Path or str, optional
        The run's folder.
    verbose : bool
        Whether to print the output of the command.

    Raises
    ------
    FedQuorumError, KeyboardInterrupt
        As in ``server_app.runs.job.run_overrides``.
    """
    folder = {} if output is None else {RUN_FOLDER: output}
    merged = merge_resumed_overrides(
        (*_expand_experiment(overrides), *to_overrides({**settings, **folder}))
    )
    for override in merged:
        if _is_hydra_setting(override) and _get_key(override) != RUN_FOLDER:
            raise SettingsError(
                f"of Hydra's settings a run in Python has {RUN_FOLDER} alone, got {override}"
            )
    with _restore_globals(verbose=verbose):
        directory = _create_run_folder(merged)
        run_overrides(tuple(item for item in merged if not _is_hydra_setting(item)), directory)
    return directory


def sweep_from_python(
    overrides: Sequence[str],
    settings: Mapping[str, Any],
    *,
    output: Path | str | None = None,
    verbose: bool = True,
) -> tuple[Path, bool]:
    """Run the jobs of a sweep; return its folder, and whether all of them completed.

    The parameters are those of ``run_from_python``; a list in ``settings`` stands for several
    values.

    Raises
    ------
    FedQuorumError
        If the sweep cannot start.
    KeyboardInterrupt
        If it was interrupted.
    """
    all_overrides = [*_expand_experiment(overrides), *to_overrides(settings, allow_sweeps=True)]
    if any(_get_key(override) == "resume" for override in all_overrides):
        raise RunError(
            "resume is of run(), not of sweep(): to continue a sweep, call it again with its output"
        )
    with _restore_globals(verbose=verbose):
        arguments = [*prepare_sweep_overrides(all_overrides), "hydra.mode=MULTIRUN"]
        has_folder = any(_get_key(override) == SWEEP_FOLDER for override in all_overrides)
        if output is not None or not has_folder:
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
    """Return positional arguments as overrides; the first one may be an experiment's name."""
    first, *rest = (*overrides, "")
    experiment = [f"experiment={first}"] if first and "=" not in first else [first]
    return tuple(override for override in (*experiment, *rest) if override)


def _get_key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]


def _is_hydra_setting(override: str) -> bool:
    return _get_key(override).startswith(("hydra.", "hydra/"))


def _create_run_folder(overrides: tuple[str, ...]) -> Path:
    """Check the settings, and create the run's folder; return its absolute path.

    Raises
    ------
    SettingsError
        If a setting is wrong, or the folder cannot be created.
    """
    with compose_job(overrides) as config:
        if not any(_get_key(override) == RUN_FOLDER for override in overrides):
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
    HydraConfig.instance().set_config(config)  # interpolations may need it
    try:
        return str(config.hydra.run.dir)
    except OmegaConfBaseException as error:
        raise SettingsError(explain(error)) from None


@contextmanager
def _restore_globals(*, verbose: bool) -> Iterator[None]:
    """Restore the global state that a command may change, because this process continues."""
    hook, hydra, switches = threading.excepthook, HydraConfig.instance().cfg, _get_torch_switches()
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
                switches.apply()


@dataclass(frozen=True)
class _TorchSwitches:
    """PyTorch's switches that a run sets; the values by default are PyTorch's."""

    deterministic: bool = False
    warn_only: bool = False
    precision: str = "highest"
    cudnn_tf32: bool = True

    def apply(self) -> None:
        """Set the switches."""
        torch = sys.modules["torch"]
        torch.use_deterministic_algorithms(self.deterministic, warn_only=self.warn_only)
        torch.set_float32_matmul_precision(self.precision)
        torch.backends.cudnn.allow_tf32 = self.cudnn_tf32


def _get_torch_switches() -> _TorchSwitches:
    """Return the present switches.

    PyTorch takes a second to import, so this function does not import it.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return _TorchSwitches()
    return _TorchSwitches(
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.allow_tf32,
    )
