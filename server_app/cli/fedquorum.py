"""Run the command ``fedquorum``, a Hydra application over the settings in ``conf``."""

import sys
from collections.abc import Sequence

import hydra
from fedquorum.errors import FedQuorumError, SettingsError
from hydra._internal.callbacks import Callbacks
from hydra.core import utils
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from conf import Settings
from conf.compose import (
    CONFIG_NAME,
    complete_overrides,
    compose_job,
    compose_overrides,
    parse_override,
    quote,
)
from conf.mistakes import explain, refuse_dotted_groups
from conf.schema.option_source import register_option_source
from server_app.cli.help import format_help
from server_app.cli.hydra_flags import check_hydra_flags, use_our_errors
from server_app.runs.job import (
    EXIT_INTERRUPTED,
    SweepRefused,
    SweepUnfinished,
    exit_with_error,
    run_job,
)
from server_app.runs.next_commands import format_command, format_override
from server_app.runs.resume import merge_resumed_overrides

_COMMON_FLAGS = ("-m", "--multirun", "-h", "--help")
_SWEEP_PREFIXES = ("hydra.", "hydra/", "engine.jobs=")


def main() -> None:
    """Run the command line; exit with 0 only if everything completed."""
    arguments: tuple[str, ...] = ()
    try:
        arguments = merge_resumed_overrides(sys.argv[1:])
        flags = {argument for argument in arguments if argument.startswith("-")}
        sys.argv[1:] = complete_overrides(arguments)
        _check_flags(arguments)
        if flags & {"-h", "--help"}:
            print(format_help([item for item in arguments if not item.startswith("-")]), end="")
            return
        if not flags:
            _run_single_job(arguments)
            return
        if flags <= {"-m", "--multirun"}:
            sys.argv[1:] = prepare_sweep_overrides(arguments)
        _run_hydra()
    except FedQuorumError as error:
        exit_with_error(error)
    except (HydraException, OmegaConfBaseException) as error:
        exit_with_error(explain(error))
    except SweepRefused as end:
        exit_with_error(end.error)
    except KeyboardInterrupt:
        print("fedquorum: interrupted before the first run", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)
    except SweepUnfinished as end:
        same = [item for item in arguments if not item.startswith("hydra.sweep.dir=")]
        command = format_command(*same, format_override("hydra.sweep.dir", end.directory))
        print(f"fedquorum: to continue the sweep: {command}", file=sys.stderr)
        raise


use_our_errors()

_hydra_main = hydra.main(version_base="1.3", config_path="pkg://conf", config_name=CONFIG_NAME)(
    run_job
)


def _run_single_job(overrides: tuple[str, ...]) -> None:
    """Run one job as Hydra does, but compose its settings only once; ``hydra.main`` does so twice.

    Raises
    ------
    SettingsError
        If an override is wrong.
    """
    with compose_job(overrides) as config:
        if config.hydra.mode != RunMode.MULTIRUN:
            _run_composed(config)
            return
    _run_hydra()


def _run_hydra() -> None:
    register_option_source()
    _hydra_main()


def _run_composed(config: DictConfig) -> None:
    callbacks = Callbacks(config)
    context = HydraContext(GlobalHydra.instance().config_loader(), callbacks)
    callbacks.on_run_start(config=config, config_name=CONFIG_NAME)
    try:
        job_return = utils.run_job(run_job, config, "hydra.run.dir", None, context)
    except OmegaConfBaseException as error:
        raise SettingsError(explain(error)) from None
    except OSError as error:
        raise build_run_dir_error(error) from None
    callbacks.on_run_end(config=config, config_name=CONFIG_NAME, job_return=job_return)
    _ = job_return.return_value  # raises the error of a failed job


def _check_flags(arguments: Sequence[str]) -> None:
    """Refuse settings that are written as flags, and unknown flags.

    Raises
    ------
    SettingsError
        The message says what to type instead.
    """
    for flag in (argument for argument in arguments if argument.startswith("-")):
        name, equals, value = flag.lstrip("-").partition("=")
        if name.replace("-", "_").partition(".")[0] in Settings.__dataclass_fields__:
            setting = f"{name.replace('-', '_')}={value if equals else 'VALUE'}"
            raise SettingsError(f"a setting must have no dashes, got {flag} (type {setting})")
    if any(item.startswith("-") and item not in _COMMON_FLAGS for item in arguments):
        check_hydra_flags(arguments)


def build_run_dir_error(error: OSError) -> SettingsError:
    """Return the error of a run whose folder cannot be created."""
    return SettingsError(
        f"hydra.run.dir must be a folder that can be written, got {error.filename} "
        f"({error.strerror})"
    )


def prepare_sweep_overrides(overrides: Sequence[str]) -> list[str]:
    """Convert a sweep's arguments for Hydra, and check those that hold for the whole sweep.

    Raises
    ------
    SettingsError
        If an override of the whole sweep is wrong, or an argument is not an override.
    """
    refuse_dotted_groups(overrides, refuse_parts=True)
    compose_overrides(tuple(item for item in overrides if item.startswith(_SWEEP_PREFIXES)))
    return [_defer_to_jobs(argument) for argument in complete_overrides(overrides)]


def _defer_to_jobs(argument: str) -> str:
    """Rewrite a setting of a sweep so that Hydra composes it for each job, not once before.

    A setting may fit all options of a swept group, as ``availability.p=0.3`` fits
    ``availability=bernoulli,markov``, but not the default that Hydra composes before the launch.
    """
    if argument.startswith(("-", *_SWEEP_PREFIXES)):
        return argument
    override = parse_override(argument)
    key, _, value = argument.partition("=")
    if override.is_sweep_override():
        return argument
    # Hydra's choice takes no null; null twice is one value for ``get_sweep_values``.
    is_null = value.lower() == "null"
    return f"{key}=null,null" if is_null else f"{key}=choice({value or quote('')})"
