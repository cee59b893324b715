"""SYNTH(alpha, beta): logistic-regression data, different at every client, with noise.

Priority client k (Li et al. 2020, the setup that FedALIGN follows), N(m, s2) with variance s2:
u_k ~ N(0, alpha); entries of W_k (10 x 60) and b_k (10) ~ N(u_k, 1); B_k ~ N(0, beta); entries
of v_k ~ N(B_k, 1); x ~ N(v_k, diag(j^-1.2)), j = 1..60; y = argmax softmax(W_k x + b_k).
``alpha`` is theirs and has no effect: u_k adds u_k (1 + sum_j x_j) to every logit, which changes
neither softmax nor argmax. The clients differ by the entries of W_k, b_k and v_k, of variance 1,
and by ``beta``.

Non-priority client j = 1..M holds samples of the pooled priority data with two kinds of noise. The
papers name them, their factors and two skews (equal in their runs) but do not define them. There
are two reconstructions, in which s_j of the irrelevant rows uses ``irrelevant_skew`` if given:

``additive``
    level s_j = (j / M)^(1 / skew); label y + rint(label_noise * s_j * N(0, 1)) mod 10; and
    irrelevant_fraction * s_j * D extra rows, x ~ N(0, I), label uniform.
``flip``
    s_j = ((j - 1) / (M - 1))^(1 / skew); label replaced by a uniform one with probability
    label_noise / 10 * s_j; a fraction irrelevant_fraction * s_j of the rows replaced by
    irrelevant ones.

Training rows come from the priority clients' training splits and test rows from their test splits,
each with the same noise, so no client trains on another's test data.

A client's number of samples, of both splits, is that of Li et al., 50 + lognormal(4, 2)
(``sizes: lognormal``: a few clients hold most of the data), or the same for all (``sizes: equal``,
``samples_per_client``).
"""

from functools import cached_property

import numpy as np
from fedquorum.rng import make_generator
from fedquorum.rules.rounding import round_half_even

from client_app.data.base import ClientData, ClientwiseData, Inputs, Labels, Target
from client_app.data.coding.arrays import ArrayCoding
from client_app.data.coding.base import Coding
from client_app.data.priority import find_priority_list, sample_priority
from client_app.data.split import split_validation
from conf.schema.data import SynthSettings

NUM_FEATURES = 60
NUM_CLASSES = 10


class SynthData(ClientwiseData):
    """The clients of one SYNTH setup; the module's docstring has the formulas.

    ``heterogeneous`` priority means the first ids: every SYNTH client differs from every other.
    """

    input_shape = (NUM_FEATURES,)
    num_classes = NUM_CLASSES
    target: Target = "class"

    def __init__(self, settings: SynthSettings, seed: int) -> None:
        self._settings = settings
        self._seed = seed
        self.num_clients = settings.num_clients
        if settings.priority == "all":
            self.priority = tuple(range(settings.num_clients))
        elif settings.priority == "random":
            self.priority = sample_priority(settings.num_clients, settings.num_priority, seed)
        elif settings.priority == "heterogeneous":
            self.priority = tuple(range(settings.num_priority))
        else:
            self.priority = find_priority_list(settings.priority, self.num_clients, None)
        self._non_priority = [k for k in range(self.num_clients) if k not in set(self.priority)]

    @property
    def coding(self) -> Coding:
        """The rows are arrays already."""
        return ArrayCoding(self.input_shape, "float32")

    def get_client(self, client: int) -> ClientData:
        """Return the data of one client."""
        priority_data = self._priority_data
        data = (
            priority_data[client]
            if client in priority_data
            else self._generate_noisy_client(client)
        )
        rows = split_validation(
            data.y_train, self._settings.validation_fraction, client=client, seed=self._seed
        )
        return data.with_validation(*rows) if len(rows[1]) else data

    def compute_noise_level(self, client: int) -> float:
        """Return s_j of a non-priority client's labels, in [0, 1]."""
        return self._compute_level(client, self._settings.noise_skew)

    def compute_irrelevant_level(self, client: int) -> float:
        """Return s_j of a non-priority client's irrelevant rows, in [0, 1]."""
        skew = self._settings.irrelevant_skew
        return (
            self.compute_noise_level(client) if skew is None else self._compute_level(client, skew)
        )

    def _compute_level(self, client: int, skew: float) -> float:
        j, m = self._non_priority.index(client) + 1, len(self._non_priority)
        base = j / m if self._settings.noise == "additive" else (j - 1) / max(m - 1, 1)
        return float(base ** (1.0 / skew))

    def _draw_sizes(self, client: int) -> tuple[int, int]:
        """Return the numbers of training and test rows of a client."""
        if self._settings.sizes == "equal":
            total = self._settings.samples_per_client
        else:
            rng = make_generator(self._seed, "synth-size", client=client)
            total = 50 + int(rng.lognormal(4.0, 2.0))
        test = min(max(1, round_half_even(self._settings.test_fraction, total)), total - 1)
        return total - test, test

    @cached_property
    def _priority_data(self) -> dict[int, ClientData]:
        return {k: self._generate_priority_client(k) for k in self.priority}

    def _generate_priority_client(self, client: int) -> ClientData:
        rng = make_generator(self._seed, "synth", client=client)
        u = rng.normal(0.0, np.sqrt(self._settings.alpha))
        w = rng.normal(u, 1.0, (NUM_CLASSES, NUM_FEATURES))
        b = rng.normal(u, 1.0, NUM_CLASSES)
        center = rng.normal(0.0, np.sqrt(self._settings.beta))
        v = rng.normal(center, 1.0, NUM_FEATURES)
        scale = np.arange(1, NUM_FEATURES + 1) ** -0.6  # standard deviation of variance j^-1.2
        train, test = self._draw_sizes(client)
        x = v + scale * rng.standard_normal((train + test, NUM_FEATURES))
        y = np.argmax(x @ w.T + b, axis=1)
        inputs, labels = x.astype(np.float32), y.astype(np.int64)
        return ClientData(inputs[:train], labels[:train], inputs[train:], labels[train:])

    @cached_property
    def _pooled_data(self) -> ClientData:
        clients = list(self._priority_data.values())
        return ClientData(
            np.concatenate([p.x_train for p in clients]),
            np.concatenate([p.y_train for p in clients]),
            np.concatenate([p.x_test for p in clients]),
            np.concatenate([p.y_test for p in clients]),
        )

    def _generate_noisy_client(self, client: int) -> ClientData:
        rng = make_generator(self._seed, "synth", client=client)
        levels = self.compute_noise_level(client), self.compute_irrelevant_level(client)
        train, test = self._draw_sizes(client)
        return ClientData(
            *self._generate_noisy_sample(
                rng, self._pooled_data.x_train, self._pooled_data.y_train, train, levels
            ),
            *self._generate_noisy_sample(
                rng, self._pooled_data.x_test, self._pooled_data.y_test, test, levels
            ),
        )

    def _generate_noisy_sample(
        self, rng: np.random.Generator, x: Inputs, y: Labels, size: int, levels: tuple[float, float]
    ) -> tuple[Inputs, Labels]:
        """Return ``size`` rows of the pool with noisy labels and irrelevant rows."""
        settings, (level, irrelevant_level) = self._settings, levels
        rows = rng.choice(len(y), size, replace=size > len(y))
        x, y = x[rows], y[rows]
        irrelevant = round_half_even(settings.irrelevant_fraction * irrelevant_level, size)
        noise_x = rng.standard_normal((irrelevant, NUM_FEATURES)).astype(np.float32)
        noise_y = rng.integers(NUM_CLASSES, size=irrelevant)
        if settings.noise == "additive":
            shift = np.rint(settings.label_noise * level * rng.standard_normal(size))
            y = (y + shift.astype(np.int64)) % NUM_CLASSES
            return np.concatenate([x, noise_x]), np.concatenate([y, noise_y])
        flipped = rng.random(size) < settings.label_noise / NUM_CLASSES * level
        y = np.where(flipped, rng.integers(NUM_CLASSES, size=size), y)
        replaced = rng.permutation(size)[:irrelevant]
        x[replaced], y[replaced] = noise_x, noise_y
        return x, y
