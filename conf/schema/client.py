"""Settings of local training."""

from dataclasses import dataclass, field
from typing import Any

from fedquorum.parameters import (
    AUGMENTATION,
    COUNT,
    LR_SCHEDULE,
    NON_NEGATIVE,
    POSITIVE,
    Number,
    OneOf,
)
from fedquorum.rule import parameter

from conf.schema.ranges import CLASS_WEIGHTS


@dataclass
class ClientSettings:
    """Local training: SGD on the mean loss of a batch; see ``LocalTraining``.

    ``loss``: of classes, cross_entropy with an output for each, or binary with one output for
    two. Where the targets are tokens or numbers the data decides, see ``client_app.tasks``.
    ``class_weights``: for each class, in every client's loss; ``balanced`` takes those of
    ``client_app.tasks.balanced_weights`` from the training labels of all clients, which a
    simulation has and a device has not: it is told the list.

    ``local_steps`` batches a round, null for ``local_epochs``. ``mu`` > 0 is FedProx. The
    ``augmentation`` of images is for training only, see ``client_app.augmentation``. ``device``
    auto takes CUDA where there is one; with ``tf32`` its products are faster and have 10 bits.
    ``compile`` trains by ``torch.compile``, which needs a compiler and about a minute once.
    ``batching``: whether a node's clients train together, see ``client_app.trainer.Trainer``.
    Clients that train alone are divided among the cores; each computes its products with
    ``threads`` threads, a number that decides how they are rounded. ``keep_memory``: whether a
    process keeps memory that a step frees, see ``client_app.allocator``; no result depends on it.
    ``deterministic``: on a GPU, take algorithms that repeat themselves to the bit, often slower
    ones, and fail where there is none; a CPU always repeats itself.
    """

    lr: float = parameter(0.1, POSITIVE)
    batch_size: int = parameter(32, COUNT)
    local_epochs: int = parameter(5, COUNT)
    local_steps: int | None = parameter(None, COUNT)
    momentum: float = parameter(0.0, Number(low=0, high=1))
    weight_decay: float = parameter(0.0, NON_NEGATIVE)
    mu: float = parameter(0.0, NON_NEGATIVE)
    lr_schedule: str = parameter("constant", LR_SCHEDULE)
    lr_decay: float = parameter(1.0, Number(low=0, high=1, open_low=True))
    lr_decay_every: int = parameter(1, COUNT)
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
