"""Import a custom model by its import path or from a file."""

from collections.abc import Mapping
from typing import Any

import torch
from fedquorum.errors import SettingsError, to_one_line
from fedquorum.registry import import_object
from torch import nn

_PATH_REQUIRED = (
    "model.path must be the import path of a torch.nn.Module, such as package.module.Class or "
    "folder/file.py:Class, got"
)


def import_model(path: str, arguments: Mapping[str, Any]) -> nn.Module:
    """Return the model that the class or function at ``path`` builds from ``arguments``.

    Parameters
    ----------
    path : str
        ``package.module.Class`` or ``folder/file.py:Class``, available to every process of the
        run, on the server and on the clients; see ``fedquorum.registry``.
    arguments : mapping
        Keyword arguments.

    Raises
    ------
    SettingsError
        If there is no such class, it does not take these arguments, or returns no model.
    """
    try:
        make = import_object(path)
    except Exception as error:  # a module may raise anything when it is imported
        raise SettingsError(f"{_PATH_REQUIRED} {path!r}: {to_one_line(error)}") from None
    if not callable(make):
        raise SettingsError(f"{_PATH_REQUIRED} {path!r}, which is {type(make).__name__}")
    try:
        model = make(**arguments)
    except Exception as error:
        raise SettingsError(
            f"model.args must be arguments of {path}, got {dict(arguments)}: {to_one_line(error)}"
        ) from None
    if not isinstance(model, nn.Module):
        raise SettingsError(f"{_PATH_REQUIRED} {path!r}, which makes {type(model).__name__}")
    return model


@torch.no_grad()
def check_model_outputs(
    model: nn.Module, path: str, inputs: torch.Tensor, output_shape: tuple[int, ...]
) -> None:
    """Pass ``inputs`` (n, *input_shape) through a model and check its outputs.

    Raises
    ------
    SettingsError
        If the model does not take them, or its output is not (n, *output_shape).
    """
    model.eval()
    try:
        outputs = model(inputs)
    except Exception as error:
        raise SettingsError(
            f"model.path must be of a model for inputs {_format_shape(tuple(inputs.shape[1:]))}, "
            f"got {path!r}: {to_one_line(error)}"
        ) from None
    model.train()
    shape = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
    if shape != (len(inputs), *output_shape):
        returned = shape if isinstance(shape, str) else _format_shape(shape[1:])
        raise SettingsError(
            f"model.path must be of a model with outputs {_format_shape(output_shape)}, "
            f"got {path!r} with {returned}"
        )


def _format_shape(shape: tuple[int, ...]) -> str:
    return f"(n, {', '.join(map(str, shape))})" if shape else "(n)"
