"""Check Hydra's flags, and give its errors in one line."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from fedquorum.errors import SettingsError
from hydra._internal import utils as hydra_utils
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from conf.compose import compose_overrides
from conf.mistakes import explain

SHELLS = ("bash", "fish", "zsh")
COMMANDS = ("run", "multirun", "cfg", "info", "shell_completion")
"""The flags that say what to do, of which Hydra takes one."""

_OWN_PRESETS = "own presets are in DIR/experiment/NAME.yaml: type --config-dir=DIR experiment=NAME"
_REFUSED = {
    "config_path": f"the settings are those of FedQuorum; {_OWN_PRESETS}",
    "config_name": f"the settings are those of FedQuorum; {_OWN_PRESETS}",
    "experimental_rerun": "it loads a pickle, which may run any code; type resume=DIR",
}
_report_with_trace: Callable[[Callable[[], Any]], Any] = hydra_utils.run_and_report


class _Parser(argparse.ArgumentParser):
    """Hydra's parser, with errors of one line.

    It accepts Hydra 1.3's help objects, which are no strings and which Python 3.14 refuses.
    """

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        """Add an argument, with its help converted to a string."""
        if options.get("help") is not None:
            options["help"] = str(options["help"])
        return super().add_argument(*names, **options)

    def error(self, message: str) -> NoReturn:
        """Raise the error of a flag, instead of printing how the command is used."""
        text = " ".join(message.split()).removeprefix("argument ")
        raise SettingsError(f"{text} (fedquorum --hydra-help explains the flags)")


def use_our_errors() -> None:
    """Let Hydra raise our errors for mistakes in flags and settings, instead of ending itself."""
    vars(hydra_utils)["argparse"] = SimpleNamespace(**{**vars(argparse), "ArgumentParser": _Parser})
    vars(hydra_utils)["run_and_report"] = _run_and_explain


def _run_and_explain(function: Callable[[], Any]) -> Any:
    """Call a function of Hydra's; a mistake of the user raises SettingsError.

    Any other error is one of the program, so Hydra prints its trace.
    """
    try:
        return function()
    except (HydraException, OmegaConfBaseException) as error:
        raise SettingsError(explain(error)) from None
    except Exception as error:
        failure = error

    def raise_again() -> NoReturn:
        raise failure

    return _report_with_trace(raise_again)


def check_hydra_flags(arguments: Sequence[str]) -> None:
    """Refuse unknown flags of Hydra, flags without effect, and those with values that fail later.

    Raises
    ------
    SettingsError
        The message names the flag and says what to type.
    """
    given, others = hydra_utils.get_args_parser().parse_known_args(arguments)
    unknown = [item for item in others if item.startswith("-")]
    if unknown:
        raise SettingsError(
            f"a flag must be -m, --help, or one that fedquorum --hydra-help lists, got "
            f"{unknown[0]} (settings are NAME=VALUE, without dashes)"
        )
    for name, reason in _REFUSED.items():
        value = getattr(given, name)
        if value is not None:
            flag = name.replace("_", "-")
            raise SettingsError(f"--{flag} must be left out, got {value}: {reason}")
    if given.config_dir is not None and not Path(given.config_dir).is_dir():
        raise SettingsError(
            f"--config-dir must be a folder, got {Path(given.config_dir).absolute()}: there is no "
            f"such folder; {_OWN_PRESETS}"
        )
    _check_combination(given)


def _check_combination(given: argparse.Namespace) -> None:
    """Refuse flags that do not go together, and settings that a flag shows with a mistake."""
    commands = [name for name in COMMANDS if getattr(given, name)]
    if len(commands) > 1:
        flags = [f"--{name.replace('_', '-')}" for name in commands]
        raise SettingsError(f"one of {', '.join(flags)} must be given alone, got {len(flags)}")
    if given.cfg is None and given.package is not None:
        raise SettingsError(
            f"--package must be with --cfg, got {given.package} alone (type --cfg=job "
            f"--package={given.package})"
        )
    if given.cfg is None and given.resolve and not given.help:
        raise SettingsError("--resolve must be with --cfg (type --cfg=job --resolve)")
    if given.shell_completion:
        _check_completion(given.overrides)
    elif given.config_dir is None and not given.multirun:  # own presets are not among ours
        compose_overrides(given.overrides)


def _check_completion(overrides: Sequence[str]) -> None:
    """Refuse a completion without one of the things to do, or for an unknown shell."""
    action, _, shell = (overrides[0] if overrides else "").partition("=")
    if len(overrides) == 1 and (action == "query" or (action, shell) in _COMPLETIONS):
        return
    raise SettingsError(
        f"--shell-completion must be with install=SHELL or uninstall=SHELL, SHELL one of "
        f"{', '.join(SHELLS)}, got {' '.join(overrides) or 'nothing'}"
    )


_COMPLETIONS = {(action, shell) for action in ("install", "uninstall") for shell in SHELLS}
