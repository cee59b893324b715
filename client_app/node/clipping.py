"""Clip updates on the clients for differential privacy."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from fedquorum.flower.codec import NamedArrays, TrainTask
from fedquorum.rules.robustness import clip_update
from numpy.typing import NDArray

NO_NORM_REASON = "the server sent no clipping_norm, to which the client is to clip its update"


def clip_row(
    received: NamedArrays, stacked: Sequence[NDArray[Any]], index: int, task: TrainTask
) -> float | None:
    """Clip one client's update in place; return its ``norm_bit``.

    Parameters
    ----------
    received : mapping
        x, from which the client trained.
    stacked : sequence of array
        Each array of the model, stacked over clients, (m, *shape).
    index : int
        The client's index in the stack.
    task : TrainTask
        Its ``clipping_norm`` is the largest Euclidean norm of x_k - x.

    Returns
    -------
    float or None
        1.0 if the update was longer, 0.0 if not; None if it is not finite and stays as it is.
    """
    assert task.clipping_norm is not None, "a task without a norm has failed before"
    model = {name: array[index] for name, array in zip(received, stacked, strict=True)}
    if not all(np.isfinite(array).all() for array in model.values()):
        return None
    clipped, length = clip_update(received, model, task.clipping_norm)
    if length > task.clipping_norm:
        for name, array in zip(received, stacked, strict=True):
            array[index] = clipped[name]
    return float(length > task.clipping_norm)


def clip_stacked_models(
    received: NamedArrays, models: Sequence[torch.Tensor], tasks: Sequence[TrainTask]
) -> tuple[list[torch.Tensor], list[float | None]]:
    """Return the models of m clients with clipped updates, and the ``norm_bit`` of each.

    The result is that of a client that clips and of a server that clips again: in float64, since a
    model that is rounded to float32 may be farther from x than the norm.

    Parameters
    ----------
    received : mapping
        x.
    models : sequence of tensor
        Each array of the model, stacked over the clients, (m, *shape).
    tasks : sequence of TrainTask
        The task of each client, with its ``clipping_norm``.
    """
    sent = [tensor.cpu().numpy().copy() for tensor in models]
    bits = [clip_row(received, sent, i, task) for i, task in enumerate(tasks)]
    clipped = [array.astype(np.float64) for array in sent]
    for i, task in enumerate(tasks):
        clip_row(received, clipped, i, task)
    return [torch.from_numpy(array) for array in clipped], bits
