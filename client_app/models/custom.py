"""Import a custom model by its import path or from a file."""

from collections.abc import Mapping
from typing import Any

import torch
from fedquorum.errors import SettingsError, to_one_line
from fedquorum.flower.validation import find_number_problem
from fedquorum.registry import import_object
from torch import nn
from torch.nn.parameter import is_lazy

CARRIED_DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bool),
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
)
"""The types of tensors that NumPy has and the server averages."""

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
    """Pass ``inputs`` (n, *input_shape) through a model; check its outputs and its tensors.

    Raises
    ------
    SettingsError
        If the model does not take them, its output is not (n, *output_shape), or messages cannot
        carry its ``state_dict``.
    """
    if isinstance(model, torch.jit.ScriptModule):  # which takes no hooks and no functional calls
        raise SettingsError(
            f"model.path must be of a model in Python, got {path!r}, which is TorchScript: give "
            "the module itself, without torch.jit"
        )
    _check_tensors(model, path, lazy=True)  # first, because it names the cause
    model.eval()
    try:
        outputs = model(inputs)
    except Exception as error:
        raise SettingsError(
            f"model.path must be of a model for inputs {_format_shape(tuple(inputs.shape[1:]))} of "
            f"{_format_dtype(inputs.dtype)}, got {path!r}: {to_one_line(error)}"
        ) from None
    model.train()
    shape = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
    if shape != (len(inputs), *output_shape):
        returned = shape if isinstance(shape, str) else _format_shape(shape[1:])
        raise SettingsError(
            f"model.path must be of a model with outputs {_format_shape(output_shape)}, "
            f"got {path!r} with {returned}"
        )
    _check_tensors(model, path)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise SettingsError(
            f"model.path must be of a model that can be trained, got {path!r}, which has no "
            "parameter with requires_grad=True"
        )


def _check_tensors(model: nn.Module, path: str, *, lazy: bool = False) -> None:
    """Check that messages can carry a model's ``state_dict``.

    ``lazy`` allows tensors that get their shape from the first inputs.
    """
    for name, tensor in model.state_dict().items():
        if lazy and is_lazy(tensor):
            continue
        if problem := _find_tensor_problem(tensor):
            raise SettingsError(
                f"model.path must be of a model that messages can carry, got {path!r}: {name} of "
                f"its state_dict {problem}"
            )


def _find_tensor_problem(tensor: Any) -> str | None:  # noqa: PLR0911 - one for each problem
    """Return what is wrong with an entry of a ``state_dict`` and what to do, or None."""
    if not isinstance(tensor, torch.Tensor):
        return f"is {type(tensor).__name__}, no tensor"
    if is_lazy(tensor):
        return "has no shape yet, as the model does not use it: leave it out"
    if tensor.is_nested or tensor.layout != torch.strided:
        return "is sparse or nested: to_dense() makes it dense"
    if tensor.device.type != "cpu":
        return f"is on the device {tensor.device}: build the model on the CPU, with its numbers"
    if tensor.dtype not in CARRIED_DTYPES:
        fix = "torch.view_as_real makes it two" if tensor.is_complex() else "float() makes it one"
        return f"is of type {_format_dtype(tensor.dtype)}, not float32, float64 or float16: {fix}"
    if tensor.is_inference() or 0 in tensor.stride():
        return "cannot be overwritten (it was expanded, or made in inference mode): clone() it"
    if problem := find_number_problem({"it": tensor.numpy()}):
        wrong = problem.removeprefix("array 'it' ")
        return f"{wrong}: register_buffer(.., persistent=False) leaves a mask out"
    return None


def _format_dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _format_shape(shape: tuple[int, ...]) -> str:
    return f"(n, {', '.join(map(str, shape))})" if shape else "(n)"
