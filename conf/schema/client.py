"""Settings of local training."""

from dataclasses import dataclass, field
from typing import Any

from fedquorum.parameters import (
    AUGMENTATION,
    COUNT,
    LR_SCHEDULE,
    NON_NEGATIVE,
    NON_NEGATIVE_COUNT,
    POSITIVE,
    Number,
    OneOf,
)
from fedquorum.rule import parameter
from fedquorum.search import Around, Between

from conf.schema.ranges import CLASS_WEIGHTS


@dataclass
class ClientSettings:
    """Local training: SGD on the mean loss of a batch; see ``LocalTraining``.

    ``loss``: of classes, cross_entropy with an output for each, or binary with one output for
    two. If the targets are tokens or numbers, the data decides, see ``client_app.tasks``.
    ``class_weights``: for each class, in every client's loss. ``balanced`` computes them from the
    training labels of all clients (``client_app.tasks.balanced_weights``). Only a simulation has
    those labels; a device needs the list.

    ``local_steps`` is the number of batches in a round, null for ``local_epochs``. ``mu`` > 0 is
    FedProx. ``augmentation`` changes images in training only, see ``client_app.augmentation``.
    ``device`` auto uses CUDA if there is a GPU; with ``tf32`` its products are faster and have
    10 bits. ``compile`` trains with ``torch.compile``, which needs a compiler and about a minute
    once.

    On a CPU a client's arithmetic depends on these settings and its own rows only, so that a run
    has the same bits with any number of nodes and cores. Two settings bear on that:

    ``batching``   auto trains clients together if their gradients have a closed form for many
                   clients at once, and on a GPU if ``torch.func.vmap`` can run the model.
                   sequential never does. batched uses vmap on a CPU too: a client's last bits
                   then depend on the clients beside it.
    ``threads``    the number of torch threads in one product, which decides how it is rounded.
                   Cores beyond it train other clients at the same time.

    ``keep_memory`` keeps memory that a step frees in the process, see ``client_app.allocator``. No
    result depends on it. ``deterministic`` allows a GPU only algorithms that repeat themselves to
    the bit; they are often slower, and a model for which there is none fails.
    """

    lr: float = parameter(0.1, POSITIVE, Around(10.0))
    batch_size: int = parameter(32, COUNT)
    local_epochs: int = parameter(5, COUNT)
    local_steps: int | None = parameter(None, COUNT)
    momentum: float = parameter(0.0, Number(low=0, high=1))
    weight_decay: float = parameter(0.0, NON_NEGATIVE)
    mu: float = parameter(0.0, NON_NEGATIVE, Between(0.001, 1.0))
    lr_schedule: str = parameter("constant", LR_SCHEDULE)
    lr_decay: float = parameter(1.0, Number(low=0, high=1, open_low=True))
    lr_decay_every: int = parameter(1, COUNT)
    lr_decay_from: int = parameter(0, NON_NEGATIVE_COUNT)
    strong_convexity: float = parameter(1.0, POSITIVE)
    smoothness: float = parameter(1.0, POSITIVE)
    augmentation: str = parameter("none", AUGMENTATION)
    batching: str = parameter("auto", OneOf(("auto", "batched", "sequential")))
    threads: int = parameter(1, COUNT)
    keep_memory: bool = True
    tf32: bool = False
    deterministic: bool = False
    compile: bool = False
    loss: str = parameter("cross_entropy", OneOf(("cross_entropy", "binary")))
    class_weights: Any = field(default=None, metadata={"allowed": CLASS_WEIGHTS})
    device: str = parameter("auto", OneOf(("auto", "cpu", "cuda")))
