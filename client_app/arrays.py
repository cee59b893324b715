"""A model as a list of arrays, in the order of its ``state_dict``."""

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

Arrays = list[NDArray[Any]]


def put(arrays: Sequence[NDArray[Any]], model: nn.Module) -> None:
    """Give ``model`` these arrays, in the order of its ``state_dict``."""
    names = model.state_dict()
    model.load_state_dict(
        {name: torch.from_numpy(a) for name, a in zip(names, arrays, strict=True)}
    )
