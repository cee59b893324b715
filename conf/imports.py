"""Objects of the user's own, by their import path."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from conf.errors import SettingsError, one_line


def make_imported(group: str, kind: str, path: str, arguments: Mapping[str, Any]) -> Any:
    """Return what the class or function at ``path`` makes of ``arguments``.

    Parameters
    ----------
    group : str
        The settings group, whose ``path`` and ``args`` these are; for the messages.
    kind : str
        What is wanted there, such as ``a torch.nn.Module``; for the messages.
    path : str
        ``package.module.Class``, importable in every process that needs it: installed, or in a
        folder of PYTHONPATH.
    arguments : mapping
        Its arguments by name.

    Raises
    ------
    SettingsError
        If there is no such class or it does not take these arguments.
    """
    wanted = f"{group}.path must be the import path of {kind}, such as package.module.Class"
    module, _, name = path.rpartition(".")
    try:
        make = getattr(import_module(module), name)
    except Exception as error:  # a module may raise anything when it is imported
        raise SettingsError(f"{wanted}, got {path!r}: {one_line(error)}") from None
    if not callable(make):
        raise SettingsError(f"{wanted}, got {path!r}, which is {type(make).__name__}")
    try:
        return make(**arguments)
    except Exception as error:
        raise SettingsError(
            f"{group}.args must be arguments of {path}, got {dict(arguments)}: {one_line(error)}"
        ) from None


def not_a(group: str, kind: str, path: str, made: object) -> SettingsError:
    """Return the error for a ``path`` that makes something else than ``kind``."""
    return SettingsError(
        f"{group}.path must be the import path of {kind}, such as package.module.Class, got "
        f"{path!r}, which makes {type(made).__name__}"
    )
