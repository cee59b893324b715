"""Settings of local training."""

from dataclasses import dataclass, field
from typing import Any

from conf.schema.ranges import CLASS_WEIGHTS, setting
from strategies.parameters import (
    AUGMENTATION,
    COUNT,
    LR_SCHEDULE,
    NON_NEGATIVE,
    POSITIVE,
    Number,
    OneOf,
)


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
    """

    lr: float = setting(0.1, POSITIVE)
    batch_size: int = setting(32, COUNT)
    local_epochs: int = setting(5, COUNT)
    local_steps: int | None = setting(None, COUNT)
    momentum: float = setting(0.0, Number(low=0, high=1))
    weight_decay: float = setting(0.0, NON_NEGATIVE)
    mu: float = setting(0.0, NON_NEGATIVE)
    lr_schedule: str = setting("constant", LR_SCHEDULE)
    lr_decay: float = setting(1.0, Number(low=0, high=1, open_low=True))
    lr_decay_every: int = setting(1, COUNT)
    strong_convexity: float = setting(1.0, POSITIVE)
    smoothness: float = setting(1.0, POSITIVE)
    augmentation: str = setting("none", AUGMENTATION)
    batching: str = setting("auto", OneOf(("auto", "batched", "sequential")))
    tf32: bool = False
    compile: bool = False
    loss: str = setting("cross_entropy", OneOf(("cross_entropy", "binary")))
    class_weights: Any = field(default=None, metadata={"allowed": CLASS_WEIGHTS})
    device: str = setting("auto", OneOf(("auto", "cpu", "cuda")))
