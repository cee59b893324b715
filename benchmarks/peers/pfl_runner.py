"""Run Apple's pfl-research: FedAvg on its simulated backend, in one process or several.

    python benchmarks/peers/pfl_runner.py JOB
    torchrun --nproc-per-node 2 benchmarks/peers/pfl_runner.py JOB

As in its benchmarks, users' data are tensors in memory, made once. Under torchrun the processes
share the users of a round and sum the updates with gloo.
"""

import json
import time

import torch
from common import STEP_COUNTER, PeerJob, read_job
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import nn
from torch.nn import functional


class LossModule(nn.Module):
    """A module with the loss and the metrics that pfl needs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the mean cross entropy of a batch."""
        self.model.train()
        return functional.cross_entropy(self.model(x), y)

    @torch.no_grad()
    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Weighted]:
        """Return the sum of the losses of a batch."""
        self.model.eval()
        total = functional.cross_entropy(self.model(x), y, reduction="sum")
        return {"loss": Weighted(total.item(), len(y))}


class RoundTimes(TrainingProcessCallback):
    """Record the time after every round."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Record the time; False means that training continues."""
        self.times.append(time.time())
        return False, Metrics()


def train_pfl(job: PeerJob) -> list[float]:
    """Train, and return the time after every round."""
    device = pytorch_ops.get_default_device()
    users = [
        PyTorchTensorDataset([x.to(device), y.to(device)], user_id=str(k))
        for k, (x, y) in enumerate(job.client_data)
    ]
    training = FederatedDataset(
        lambda user: users[user], get_user_sampler("minimize_reuse", list(range(job.clients)))
    )
    module = LossModule(job.make_model())
    central = torch.optim.SGD(module.parameters(), lr=1.0)
    STEP_COUNTER.exclude(central)
    model = PyTorchModel(module, torch.optim.SGD, central)
    never = job.rounds + 1
    callback = RoundTimes()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=job.rounds,
            evaluation_frequency=never,
            train_cohort_size=job.clients_per_round,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=training, val_data=training),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=None if job.local_steps else job.local_epochs,
            local_num_steps=job.local_steps,
            local_learning_rate=job.lr,
            local_batch_size=job.batch_size,
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=job.batch_size),
        callbacks=[callback],
        send_metrics_to_platform=False,
    )
    return callback.times


if __name__ == "__main__":
    round_times = train_pfl(read_job())
    (steps,) = pytorch_ops.distributed.all_reduce([torch.tensor([float(STEP_COUNTER.count)])])
    if pytorch_ops.distributed.global_rank == 0:
        print(json.dumps({"times": round_times, "steps": int(steps)}), flush=True)
