"""Import custom rules, by import path or by file.

``package.module.Class`` is imported as Python imports it, also from the working directory.
``folder/my_rule.py:Class`` is loaded from that file, relative to the working directory.
"""

import sys
from collections.abc import Callable, Mapping
from hashlib import sha256
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from .errors import ParameterError, suggest_name, to_one_line
from .rule import Rule, RunContext

RuleImporter = Callable[[Any, Mapping[str, Any], RunContext], Any]
"""Returns a rule of a kind from its options and the run's context, as ``import_rule`` does."""


def refuse_import(_kind: Any, options: Mapping[str, Any], _facts: RunContext) -> NoReturn:
    """Refuse to import a rule that records name: whoever wrote the records could run code here.

    Raises
    ------
    ParameterError
        Always.
    """
    raise ParameterError(
        "path",
        "absent from records that are only read",
        options.get("path"),
        "it names code; --trust, or trust=True in Python, imports it",
    )


def import_rule(kind: Any, options: Mapping[str, Any], context: RunContext) -> Any:
    """Return an instance of the class at ``options["path"]``, made from ``options["args"]``.

    Parameters
    ----------
    kind : type
        The required base class: ``Selection``, ``Weighting`` or ``ServerOptimizer``.
    options : mapping
        ``path`` and ``args``, the parameters by name.
    context : RunContext

    Raises
    ------
    ParameterError
        If there is no such class, it is not of this kind, or it does not take these arguments.
    """
    path, arguments = str(options["path"]), dict(options.get("args") or {})
    allowed = f"the import path of a fedquorum {kind.__name__}, such as package.module.Class or "
    allowed += "folder/file.py:Class"
    try:
        make = import_object(path)
    except Exception as error:  # a module may raise anything when it is imported
        raise ParameterError("path", allowed, path, to_one_line(error)) from None
    if not callable(make):
        raise ParameterError("path", allowed, path, f"it is a {type(make).__name__}")
    try:
        made = (
            make.from_options(arguments, context)
            if isinstance(make, type) and issubclass(make, Rule)
            else make(**arguments)
        )
    except Exception as error:
        raise ParameterError(
            "args", f"arguments of {path}", arguments, to_one_line(error)
        ) from None
    if not isinstance(made, kind):
        raise ParameterError("path", allowed, path, f"it makes {type(made).__name__}")
    return made


def import_object(path: str) -> Any:
    """Return the object at an import path, ``package.module.name`` or ``file.py:name``."""
    file_name, colon, name = path.rpartition(":")
    if colon:
        return _get_member(_load_module(Path(file_name).expanduser().resolve()), name)
    module, _, name = path.rpartition(".")
    if (working_directory := str(Path.cwd())) not in sys.path:
        sys.path.append(working_directory)
    return _get_member(import_module(module), name)


def _get_member(module: ModuleType, name: str) -> Any:
    if not hasattr(module, name):
        hint = suggest_name(name, vars(module))
        raise AttributeError(f"there is no {name} in it" + (f"; {hint}" if hint else ""))
    return getattr(module, name)


def _load_module(file: Path) -> Any:
    """Return the module in a file, loaded once: a second copy would define other classes."""
    name = f"fedquorum_custom_{sha256(str(file).encode()).hexdigest()[:16]}"
    if name not in sys.modules:
        spec = spec_from_file_location(name, file)
        if spec is None or spec.loader is None or not file.is_file():
            raise FileNotFoundError(f"there is no Python file {file}")
        module = module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]
