"""Identify the arithmetic of training, which together with the settings determines a run's bits.

A learning rate beyond stability amplifies a difference in the last bit to one in the first digit
within a few rounds, so a run must end with the arithmetic that it started with.
"""

from dataclasses import dataclass

import torch
from torch import nn

from client_app.losses import Task
from client_app.rng import has_random_layers
from client_app.training.batched.gradients import build_dense_gradients
from client_app.training.closed_form_cnn import build_closed_form_cnn

NUMERICS_VERSION = 5
"""Incremented with every change after which the same settings give other bits.

1  products over the rows of several clients, whose rounding depended on the clients, and sums in
   the order of the replies; manifests of that version do not record it
2  a client's arithmetic depends on the settings and its own rows, and sums are exact on a grid
3  models in closed form train with units padded to whole cache lines
4  m5 trains in closed form, and is evaluated with its channels last in memory
5  sums are exact in bins that depend on their terms, no longer on one grid
"""

BATCHED_CLOSED_FORM = "batched, closed form"
BATCHED_AUTOGRAD = "batched, autograd"
SEQUENTIAL_CLOSED_FORM = "sequential, closed form"
SEQUENTIAL_AUTOGRAD = "sequential, autograd"


@dataclass(frozen=True)
class NumericsInfo:
    """The arithmetic of one run, as far as the server knows it.

    Parameters
    ----------
    mode : str or None
        The training mode, see ``Trainer.mode``. None if only the clients' devices know it.
    device : str or None
        ``cpu`` or ``cuda``; None if only the clients' devices know it.
    threads : int
        ``client.threads_per_op``, which determines how products are rounded.
    version : int
        ``NUMERICS_VERSION`` of the code that trains.
    compiled : bool
        Whether models use ``torch.compile``, whose kernels may depend on earlier shapes.
    instructions : str or None
        The processor's vector instructions for which PyTorch selects kernels, such as ``AVX2``.
        None on a GPU, and if only the clients' devices know it.
    """

    mode: str | None
    device: str | None
    threads: int
    version: int = NUMERICS_VERSION
    compiled: bool = False
    instructions: str | None = None

    @property
    def same_bits(self) -> bool | None:
        """Whether the run has the same bits for any number of nodes and workers, and resumed.

        None if the device is not known.
        """
        if self.device is None:
            return None
        return self.device == "cpu" and self.mode != BATCHED_AUTOGRAD and not self.compiled


def find_training_mode(
    model: nn.Module, task: Task, batching: str, device: str | None
) -> str | None:
    """Return the training mode of a model; see ``Trainer.mode``.

    Parameters
    ----------
    model : torch.nn.Module
        The model, as built by a node.
    task : Task
    batching : str
        ``client.batching``.
    device : str or None
        ``cpu`` or ``cuda``, None if it is not known.

    Returns
    -------
    str or None
        None if it depends on an unknown device, or can only be determined by a test on a GPU.
    """
    if build_dense_gradients(model, task) is not None:
        return BATCHED_CLOSED_FORM
    if batching != "sequential" and can_batch(model):
        if batching == "batched":
            return BATCHED_AUTOGRAD
        if device != "cpu":
            return None
    if device is None:
        return None
    return (
        SEQUENTIAL_CLOSED_FORM
        if build_closed_form_cnn(model, task) is not None and device == "cpu"
        else SEQUENTIAL_AUTOGRAD
    )


def can_batch(model: nn.Module) -> bool:
    """Return whether the layers allow several clients' models to be one batched model.

    Recurrent layers have no batching rule: vmap would run them one by one, with a warning.
    """
    if any(isinstance(layer, nn.RNNBase) for layer in model.modules()):
        return False
    tensors: list[torch.Tensor] = list(model.state_dict(keep_vars=True).values())
    return not has_random_layers(model) and len({id(tensor) for tensor in tensors}) == len(tensors)
