"""A model of the user's own, by its import path."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from conf.errors import SettingsError, one_line
from conf.imports import make_imported, not_a


def imported_model(path: str, arguments: Mapping[str, Any]) -> nn.Module:
    """Return what the class or function at ``path`` makes of ``arguments``.

    Parameters
    ----------
    path : str
        ``package.module.Class``, importable in every process of the run, on the server and on the
        clients: installed, or in a folder of PYTHONPATH.
    arguments : mapping
        Its arguments by name.

    Raises
    ------
    SettingsError
        If there is no such class, it does not take these arguments, or makes no model.
    """
    kind = "a torch.nn.Module"
    model = make_imported("model", kind, path, arguments)
    if not isinstance(model, nn.Module):
        raise not_a("model", kind, path, model)
    return model


@torch.no_grad()
def check_outputs(
    model: nn.Module, path: str, inputs: torch.Tensor, output_shape: tuple[int, ...]
) -> None:
    """Pass ``inputs`` (n, *input_shape) through a model and look at what comes out.

    Raises
    ------
    SettingsError
        If the model does not take them, or its output is not (n, *output_shape).
    """
    model.eval()
    try:
        found = model(inputs)
    except Exception as error:
        raise SettingsError(
            f"model.path must be of a model for inputs {_words(tuple(inputs.shape[1:]))}, got "
            f"{path!r}: {one_line(error)}"
        ) from None
    model.train()
    shape = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
    if shape != (len(inputs), *output_shape):
        returned = shape if isinstance(shape, str) else _words(shape[1:])
        raise SettingsError(
            f"model.path must be of a model with outputs {_words(output_shape)}, got {path!r} "
            f"with {returned}"
        )


def _words(shape: tuple[int, ...]) -> str:
    return f"(n, {', '.join(map(str, shape))})" if shape else "(n)"
