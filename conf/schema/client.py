"""Define the settings of local training."""

from dataclasses import dataclass, field
from typing import Any

from fedquorum.rules.parameters import (
    AUGMENTATION,
    LR_SCHEDULE,
    NON_NEGATIVE,
    NON_NEGATIVE_INT,
    POSITIVE,
    POSITIVE_INT,
    FloatRange,
    Interval,
    OneOf,
    RelativeRange,
)
from fedquorum.rules.rule import parameter

from conf.schema.ranges import CLASS_WEIGHTS


@dataclass
class TheoremLRSettings:
    """The constants of ``client.lr_schedule=theorem``; see ``TheoremLR`` in training/local_sgd.py.

    ``mu``: the strong convexity of the clients' losses. ``L``: their smoothness.
    """

    mu: float = parameter(1.0, POSITIVE)
    L: float = parameter(1.0, POSITIVE)


@dataclass
class ClientSettings:
    """Local training by SGD on the mean loss of a batch; see ``LocalSGDConfig``.

    ``loss`` is for classes: cross_entropy has an output for each class, binary one output for two
    classes. For tokens or numbers as targets, the data decides the loss; see ``client_app.losses``.
    ``class_weights`` has a weight for each class in every client's loss. ``balanced`` computes them
    from the training labels of all clients (``client_app.losses.compute_balanced_weights``). Only a
    simulation has those labels; a device needs the list.

    ``local_steps`` is the number of batches in a round, null for ``local_epochs``. ``proximal_mu``
    is the mu of FedProx. ``augmentation`` changes images in training only, see
    ``client_app.training.augmentation``. ``device`` auto uses CUDA if there is a GPU. With
    ``tf32``, its products are faster and have 10 bits. ``compile`` trains with ``torch.compile``,
    which needs a compiler and once about a minute.

    On a CPU a client's arithmetic depends only on these settings and on its rows, so that a run has
    the same bits with any number of nodes and cores. Two settings affect that:

    ``batching``       auto trains clients in batches if the model has a manual backward pass for
                       many clients, and on a GPU if ``torch.func.vmap`` can run the model.
                       sequential never does. batched uses vmap on a CPU, too: a client's last bits
                       then depend on the other clients of its batch.
    ``threads_per_op`` the number of torch threads in one product, which decides how it is rounded.
                       Further cores train other clients at the same time.

    ``retain_memory`` keeps memory that a step frees in the process, see
    ``client_app.training.workers``. No result depends on it. ``deterministic`` limits a GPU to
    algorithms that repeat their bits. They are often slower, and a model without such algorithms
    fails.
    """

    lr: float = parameter(0.1, POSITIVE, RelativeRange(10.0))
    batch_size: int = parameter(32, POSITIVE_INT)
    local_epochs: int = parameter(5, POSITIVE_INT)
    local_steps: int | None = parameter(None, POSITIVE_INT)
    momentum: float = parameter(0.0, Interval(low=0, high=1))
    weight_decay: float = parameter(0.0, NON_NEGATIVE)
    proximal_mu: float = parameter(0.0, NON_NEGATIVE, FloatRange(0.001, 1.0))
    lr_schedule: str = parameter("constant", LR_SCHEDULE)
    lr_decay: float = parameter(1.0, Interval(low=0, high=1, open_low=True))
    lr_decay_every: int = parameter(1, POSITIVE_INT)
    lr_decay_from: int = parameter(0, NON_NEGATIVE_INT)
    theorem_lr: TheoremLRSettings = field(default_factory=TheoremLRSettings)
    augmentation: str = parameter("none", AUGMENTATION)
    batching: str = parameter("auto", OneOf(("auto", "batched", "sequential")))
    threads_per_op: int = parameter(1, POSITIVE_INT)
    retain_memory: bool = True
    tf32: bool = False
    deterministic: bool = False
    compile: bool = False
    loss: str = parameter("cross_entropy", OneOf(("cross_entropy", "binary")))
    class_weights: Any = field(default=None, metadata={"allowed": CLASS_WEIGHTS})
    device: str = parameter("auto", OneOf(("auto", "cpu", "cuda")))
