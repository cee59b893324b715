"""Time the bare arithmetic of a round: no data, no update, no federation.

    python benchmarks/bare_arithmetic.py JOB

prints the seconds of each round, as JSON. This is a lower bound on the time of a round with the
products known to us: those of fully connected models are batched over clients, and convolutional
networks have a manual backward pass with oneDNN's convolutions. ``mode`` selects how the cores
share the work:

``threads``  one permanent thread for each core, with one thread of torch; the clients are divided
             among them
``shared``   one Python thread, and all cores share its products

The faster mode depends on the machine and the workload; ``benchmarks/engines.py`` selects it before
it measures.
"""

import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from client_app.training.batched.aligned import compute_padded_rows, create_aligned
from client_app.training.workers import retain_freed_memory

MODES = ("threads", "shared")
NUM_CLASSES = 10
NUM_CHANNELS = 32
# Stride, padding and dilation; transposed, output padding and groups.
CONVOLUTION_OPTIONS = ((1, 1), (1, 1), (1, 1), False, (0, 0), 1)

aten = torch.ops.aten


@dataclass(frozen=True)
class BareJob:
    """A job: ``steps`` steps of ``batch_size`` samples for each of ``clients`` clients.

    ``shape`` is that of one input, (channels, height, width) or (features,). ``hidden`` is None for
    logistic regression, else the widths of the small CNN. ``steps`` is a mean over clients, so it
    may be fractional.
    """

    shape: Sequence[int]
    clients: int
    batch_size: int
    steps: float
    hidden: Sequence[int] | None
    mode: str
    rounds: int
    device: str = "cpu"


def build_dense_step(job: BareJob, clients: int) -> Callable[[], None]:
    """Build the step of logistic regression for several clients, which is two products.

    Weights and errors are padded to whole cache lines, so that torch multiplies them in one call.
    """
    device, dtype = torch.device(job.device), torch.float32
    features = math.prod(job.shape)
    units = compute_padded_rows(NUM_CLASSES, features, dtype)
    inputs = torch.rand(clients, job.batch_size, features, device=device)
    weights, gradient = (
        create_aligned(clients, (units, features), dtype, device) for _ in range(2)
    )
    logits, errors = (
        create_aligned(clients, (units, job.batch_size), dtype, device) for _ in range(2)
    )
    weights.uniform_()
    errors.uniform_()

    def step() -> None:
        torch.bmm(weights, inputs.transpose(1, 2), out=logits)
        torch.bmm(errors, inputs, out=gradient)

    return step


class BareCNN:
    """Forward and backward pass of FedAU's network for one client's batch.

    Pooling precedes ReLU, which gives the same numbers with a quarter of the work.
    """

    def __init__(self, job: BareJob) -> None:
        channels, height, width = job.shape
        assert job.hidden is not None
        sizes = [NUM_CHANNELS * (height // 4) * (width // 4), *job.hidden, NUM_CLASSES]
        self.images = self._to_channels_last(torch.rand(job.batch_size, channels, height, width))
        self.labels = torch.randint(NUM_CLASSES, (job.batch_size,))
        self.filters = [
            self._to_channels_last(torch.rand(NUM_CHANNELS, channels, 3, 3) - 0.5),
            self._to_channels_last(torch.rand(NUM_CHANNELS, NUM_CHANNELS, 3, 3) - 0.5),
        ]
        self.filter_biases = [torch.zeros(NUM_CHANNELS), torch.zeros(NUM_CHANNELS)]
        # Shape (in, out); the inputs of the first layer are ordered by height, width, channel.
        self.weights = [torch.rand(before, after) / before for before, after in pairwise(sizes)]
        self.biases = [torch.zeros(after) for after in sizes[1:]]
        # Each step overwrites the products of the previous one.
        self.products = [torch.empty_like(weight) for weight in self.weights]
        self._to(job.device)

    def compute_gradients(self) -> list[torch.Tensor]:
        """Return the gradients of the mean cross entropy: filters, their biases, dense layers."""
        maps, pooled, indices = [self.images], [], []
        for weight, bias in zip(self.filters, self.filter_biases, strict=True):
            before = aten.convolution(maps[-1], weight, bias, *CONVOLUTION_OPTIONS)
            largest, index = aten.max_pool2d_with_indices(before, (2, 2), (2, 2))
            pooled.append(before)
            indices.append(index)
            maps.append(largest.relu_())
        outputs = [maps[-1].permute(0, 2, 3, 1).reshape(len(self.images), -1)]
        for weight, bias in zip(self.weights, self.biases, strict=True):
            outputs.append(torch.addmm(bias, outputs[-1], weight))
            if len(outputs) <= len(self.weights):
                outputs[-1].relu_()
        error = outputs[-1].softmax(dim=1)
        error[torch.arange(len(self.labels), device=error.device), self.labels] -= 1
        error /= len(self.labels)
        dense = []
        for layer in reversed(range(len(self.weights))):
            product = torch.mm(outputs[layer].t(), error, out=self.products[layer])
            dense += [error.sum(dim=0), product]
            error = error @ self.weights[layer].t()
            error = aten.threshold_backward(error, outputs[layer], 0)
        n, channels, height, width = maps[-1].shape
        back = error.reshape(n, height, width, channels).permute(0, 3, 1, 2)
        convolved = []
        for layer in (1, 0):
            back = aten.max_pool2d_with_indices_backward(
                back, pooled[layer], (2, 2), (2, 2), (0, 0), (1, 1), False, indices[layer]
            )
            back, weight, bias = aten.convolution_backward(
                back,
                maps[layer],
                self.filters[layer],
                (NUM_CHANNELS,),
                *CONVOLUTION_OPTIONS,
                (layer > 0, True, True),
            )
            convolved += [bias, weight]
            if layer > 0:
                back = aten.threshold_backward(back, maps[layer], 0)
        return [*reversed(convolved), *reversed(dense)]

    @staticmethod
    def _to_channels_last(tensor: torch.Tensor) -> torch.Tensor:
        # Unlike ``contiguous``, ``to`` also sets the strides of a single channel. They determine
        # the layout of a convolution's output; in the other layout pooling takes ten times as long.
        return tensor.to(memory_format=torch.channels_last)

    def _to(self, device: str) -> None:
        self.images, self.labels = self.images.to(device), self.labels.to(device)
        for name in ("filters", "filter_biases", "weights", "biases", "products"):
            setattr(self, name, [tensor.to(device) for tensor in getattr(self, name)])


def build_round_work(job: BareJob, workers: int) -> list[Callable[[], None]]:
    """Build the work of each worker in one round."""
    if job.hidden is None:
        counts = [len(range(i, job.clients, workers)) for i in range(workers)]
        steps = [build_dense_step(job, count) for count in counts if count]
        return [partial(_run_steps, step, max(1, round(job.steps))) for step in steps]
    total = max(1, round(job.steps * job.clients))
    repeats = [len(range(i, total, workers)) for i in range(workers)]
    return [partial(_run_steps, BareCNN(job).compute_gradients, count) for count in repeats]


def _run_steps(step: Callable[[], object], count: int) -> None:
    for _ in range(count):
        step()


def measure_rounds(job: BareJob) -> list[float]:
    """Return the seconds of each round."""
    retain_freed_memory()
    workers = len(os.sched_getaffinity(0)) if job.mode == "threads" else 1
    if job.mode == "threads":
        torch.set_num_threads(1)
    work = build_round_work(job, workers)
    seconds = []
    with ThreadPoolExecutor(workers, initializer=_set_one_thread if workers > 1 else None) as pool:
        for _ in range(job.rounds):
            start = time.perf_counter()
            if workers == 1:
                work[0]()
            else:
                for future in [pool.submit(part) for part in work]:
                    future.result()
            if job.device == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
    return seconds


def _set_one_thread() -> None:
    """Set one thread of torch for this thread; OpenMP has a separate setting for each thread."""
    torch.set_num_threads(1)


if __name__ == "__main__":
    print(json.dumps(measure_rounds(BareJob(**json.loads(sys.argv[1])))))
