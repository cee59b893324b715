"""The arithmetic of a round alone: no data, no update, no federation.

    python benchmarks/bare_arithmetic.py JOB

prints the seconds of each round, as JSON. This is what a round cannot be faster than with the
products known to us: those of fully connected models are batched over clients; convolutional
networks have gradients in closed form by oneDNN's convolutions. ``way`` says how the cores share:

``threads``  lasting threads, as many as cores, each with one thread of torch: the clients are
             divided among them
``shared``   one Python thread, whose products all cores share

Which way is faster depends on the machine and the workload; ``benchmarks/engines.py`` finds out
before it measures, and keeps to it.
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

from client_app.batched.aligned import compute_padded_rows, create_aligned
from client_app.workers import retain_freed_memory

MODES = ("threads", "shared")
NUM_CLASSES = 10
NUM_CHANNELS = 32
CONVOLUTION_OPTIONS = (
    (1, 1),
    (1, 1),
    (1, 1),
    False,
    (0, 0),
    1,
)  # stride, padding, dilation of a convolution

aten = torch.ops.aten


@dataclass(frozen=True)
class BareJob:
    """What is computed: ``steps`` steps of ``batch_size`` samples for each of ``clients`` clients.

    ``shape`` of one input, (channels, height, width) or (features,); ``hidden`` None for logistic
    regression, else the widths of the small CNN. ``steps`` need not be whole: clients with fewer
    samples than others have fewer steps.
    """

    shape: Sequence[int]
    clients: int
    batch_size: int
    steps: float
    hidden: Sequence[int] | None
    way: str
    rounds: int
    device: str = "cpu"


def build_dense_step(job: BareJob, clients: int) -> Callable[[], None]:
    """Return the two products of one step of logistic regression for so many clients.

    Weights and errors fill whole cache lines: torch multiplies such matrices in one call.
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
    """Forward and backward pass of one client's batch, for the network of FedAU's experiments.

    Maxima are taken before ReLU, which gives the same numbers with a quarter of the work.
    """

    def __init__(self, job: BareJob) -> None:
        channels, height, width = job.shape
        assert job.hidden is not None  # noqa: S101
        sizes = [NUM_CHANNELS * (height // 4) * (width // 4), *job.hidden, NUM_CLASSES]
        self.images = self._to_channels_last(torch.rand(job.batch_size, channels, height, width))
        self.labels = torch.randint(NUM_CLASSES, (job.batch_size,))
        self.filters = [
            self._to_channels_last(torch.rand(NUM_CHANNELS, channels, 3, 3) - 0.5),
            self._to_channels_last(torch.rand(NUM_CHANNELS, NUM_CHANNELS, 3, 3) - 0.5),
        ]
        self.filter_biases = [torch.zeros(NUM_CHANNELS), torch.zeros(NUM_CHANNELS)]
        # As (in, out), the first one with its inputs in the order height, width, channel.
        self.weights = [torch.rand(before, after) / before for before, after in pairwise(sizes)]
        self.biases = [torch.zeros(after) for after in sizes[1:]]
        # Products are written where those of the step before were.
        self.products = [torch.empty_like(weight) for weight in self.weights]
        self._to(job.device)

    def compute_gradients(self) -> list[torch.Tensor]:
        """Return the gradients of the mean cross entropy: filters, their biases, dense layers."""
        maps, pooled, places = [self.images], [], []
        for weight, bias in zip(self.filters, self.filter_biases, strict=True):
            before = aten.convolution(maps[-1], weight, bias, *CONVOLUTION_OPTIONS)
            largest, index = aten.max_pool2d_with_indices(before, (2, 2), (2, 2))
            pooled.append(before)
            places.append(index)
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
                back, pooled[layer], (2, 2), (2, 2), (0, 0), (1, 1), False, places[layer]
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
        # Unlike ``contiguous``, ``to`` sets the strides of a single channel too, by which the
        # layout of a convolution's output is chosen; pooling takes ten times as long in the other.
        return tensor.to(memory_format=torch.channels_last)

    def _to(self, device: str) -> None:
        self.images, self.labels = self.images.to(device), self.labels.to(device)
        for name in ("filters", "filter_biases", "weights", "biases", "products"):
            setattr(self, name, [tensor.to(device) for tensor in getattr(self, name)])


def build_round_work(job: BareJob, workers: int) -> list[Callable[[], None]]:
    """Return the work of each worker in one round."""
    if job.hidden is None:
        shares = [len(range(i, job.clients, workers)) for i in range(workers)]
        steps = [build_dense_step(job, share) for share in shares if share]
        return [partial(_repeat, step, max(1, round(job.steps))) for step in steps]
    total = max(1, round(job.steps * job.clients))
    repeats = [len(range(i, total, workers)) for i in range(workers)]
    return [partial(_repeat, BareCNN(job).compute_gradients, times) for times in repeats]


def _repeat(step: Callable[[], object], times: int) -> None:
    for _ in range(times):
        step()


def measure_rounds(job: BareJob) -> list[float]:
    """Return the seconds of each round."""
    retain_freed_memory()
    workers = len(os.sched_getaffinity(0)) if job.way == "threads" else 1
    if job.way == "threads":
        torch.set_num_threads(1)
    work = build_round_work(job, workers)
    measured = []
    with ThreadPoolExecutor(workers, initializer=_set_one_thread if workers > 1 else None) as pool:
        for _ in range(job.rounds):
            start = time.perf_counter()
            if workers == 1:
                work[0]()
            else:
                for done in [pool.submit(part) for part in work]:
                    done.result()
            if job.device == "cuda":
                torch.cuda.synchronize()
            measured.append(time.perf_counter() - start)
    return measured


def _set_one_thread() -> None:
    """OpenMP keeps the number of threads for each thread that calls it."""
    torch.set_num_threads(1)


if __name__ == "__main__":
    print(json.dumps(measure_rounds(BareJob(**json.loads(sys.argv[1])))))
