"""Identify the arithmetic of training, which determines a run's last bits beside its settings.

A learning rate beyond stability makes a difference in the last bit a difference in the first digit
within some rounds, so a run is finished by the arithmetic that began it.
"""

from dataclasses import dataclass

import torch
from torch import nn

from client_app.batched.gradients import build_dense_gradients
from client_app.closed_form_cnn import build_closed_form_cnn
from client_app.losses import Task
from client_app.rng import uses_rng

NUMERICS_VERSION = 5
"""Raised with every change after which the same settings give other bits.

1  products over the rows of several clients, whose rounding depended on which clients they were,
   and sums in the order of the replies; manifests of that time do not say so
2  a client's arithmetic follows from the settings and its own rows, and sums are exact on a grid
3  models in closed form train with units padded to whole cache lines
4  m5 trains in closed form, and is measured with its channels last in memory
5  sums are exact in bins that follow from their terms, no longer on one grid
"""

BATCHED_CLOSED_FORM = "batched, closed form"
BATCHED_AUTOGRAD = "batched, autograd"
SEQUENTIAL_CLOSED_FORM = "alone, closed form"
SEQUENTIAL_AUTOGRAD = "alone, autograd"


@dataclass(frozen=True)
class NumericsInfo:
    """The arithmetic of one run, as far as the server knows it.

    Parameters
    ----------
    way : str or None
        How clients train, see ``Trainer.way``. None where only their devices know.
    device : str or None
        ``cpu`` or ``cuda``, None where only the clients' devices know.
    threads : int
        ``client.threads_per_op``, by which products are rounded.
    version : int
        ``NUMERICS_VERSION`` of the code that trains.
    compiled : bool
        Whether models go through ``torch.compile``, whose kernels may follow the shapes of before.
    instructions : str or None
        The processor's vector instructions for which PyTorch chooses kernels, such as ``AVX2``.
        None on a GPU, and where only the clients' devices know.
    """

    way: str | None
    device: str | None
    threads: int
    version: int = NUMERICS_VERSION
    compiled: bool = False
    instructions: str | None = None

    @property
    def same_bits(self) -> bool | None:
        """Whether the run has the same bits for any number of nodes and workers, and resumed.

        None where the device is not known.
        """
        if self.device is None:
            return None
        return self.device == "cpu" and self.way != BATCHED_AUTOGRAD and not self.compiled


def find_training_mode(
    model: nn.Module, task: Task, batching: str, device: str | None
) -> str | None:
    """Return how clients train a model; see ``Trainer.way``.

    Parameters
    ----------
    model : torch.nn.Module
        The model, as a node has it.
    task : Task
        The loss.
    batching : str
        ``client.batching``.
    device : str or None
        The kind of device, None where it is not known.

    Returns
    -------
    str or None
        None where it is not known: it depends on the device, or a GPU has to try it.
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
    """Return whether several clients' models can be one batched model, as far as the layers tell.

    Recurrent layers have no batching rule: vmap would run them one by one, with a warning.
    """
    if any(isinstance(layer, nn.RNNBase) for layer in model.modules()):
        return False
    tensors: list[torch.Tensor] = list(model.state_dict(keep_vars=True).values())
    return not uses_rng(model) and len({id(tensor) for tensor in tensors}) == len(tensors)
