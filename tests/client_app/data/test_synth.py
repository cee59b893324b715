"""SYNTH(alpha, beta) and its two noises."""

import math
from collections import Counter
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch

from client_app.data.base import ClientData, Inputs, Labels
from client_app.data.synth import SynthData
from conf.schema.data import SynthSettings

SIGMAS = 5  # of every statistical bound: a true value lies outside with probability 6e-7
FIELDS = ("x_train", "y_train", "x_test", "y_test")


def make_synth(seed: int = 1, **settings: Any) -> SynthData:
    return SynthData(SynthSettings(**settings), seed)


def make_equal_sizes(samples: int, **settings: Any) -> SynthData:
    return make_synth(sizes="equal", samples_per_client=samples, **settings)


def is_same_data(a: ClientData, b: ClientData) -> bool:
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in FIELDS)


def map_labels_by_row(x: Inputs, y: Labels) -> dict[bytes, int]:
    """Return the label of every row, found by the row's bytes."""
    return {row.tobytes(): int(label) for row, label in zip(x, y, strict=True)}


def get_pool(data: SynthData, split: str) -> dict[bytes, int]:
    """Return the rows of all priority clients' ``train`` or ``test`` parts."""
    rows: dict[bytes, int] = {}
    for k in data.priority:
        client = data.get_client(k)
        rows |= map_labels_by_row(getattr(client, f"x_{split}"), getattr(client, f"y_{split}"))
    return rows


def assert_counts(counts: Sequence[int], probabilities: Sequence[float]) -> None:
    """Each count within SIGMAS standard deviations of its binomial law."""
    n = sum(counts)
    for count, p in zip(counts, probabilities, strict=True):
        assert abs(count - n * p) <= SIGMAS * math.sqrt(n * p * (1 - p))


# --- the same data everywhere ----------------------------------------------------------------


@pytest.mark.parametrize("noise", ["additive", "flip"])
@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (4, 2, 0, 3, 1), (3, 3), (4,)])
def test_data_depends_on_seed_and_client_only(noise: str, order: tuple[int, ...]) -> None:
    """A client's data does not depend on the clients loaded before."""
    settings = {"num_clients": 5, "num_priority": 2, "noise": noise}
    first, second = make_equal_sizes(40, **settings), make_equal_sizes(40, **settings)
    expected = [first.get_client(k) for k in range(5)]
    for k in order:
        assert is_same_data(second.get_client(k), expected[k])


@pytest.mark.parametrize("client", [0, 4])
def test_other_seed_other_data(client: int) -> None:
    """Another seed gives a priority client and another client other inputs."""
    settings = {"num_clients": 5, "num_priority": 2}
    one, two = make_equal_sizes(40, seed=1, **settings), make_equal_sizes(40, seed=2, **settings)
    assert not np.array_equal(one.get_client(client).x_train, two.get_client(client).x_train)


@pytest.mark.parametrize("noise", ["additive", "flip"])
def test_alpha_changes_nothing(noise: str) -> None:
    """u_k shifts all logits of a row equally, so rows and labels are those of alpha 0."""
    settings = {"num_clients": 5, "num_priority": 3, "noise": noise}
    none, wide = (
        make_equal_sizes(200, alpha=0.0, **settings),
        make_equal_sizes(200, alpha=25.0, **settings),
    )
    assert all(is_same_data(none.get_client(k), wide.get_client(k)) for k in range(5))


def test_every_client_differs() -> None:
    """No two priority clients share a row."""
    data = make_equal_sizes(20, num_clients=4, num_priority=4)
    assert len(get_pool(data, "train") | get_pool(data, "test")) == 4 * 20


def test_types_and_shapes() -> None:
    """Inputs are float32 (n, 60), labels int64 (n,) from 0 to 9, for both kinds of clients."""
    for noise in ("additive", "flip"):
        data = make_equal_sizes(30, num_clients=3, num_priority=1, noise=noise)
        for client in map(data.get_client, range(3)):
            for x, y in ((client.x_train, client.y_train), (client.x_test, client.y_test)):
                assert x.dtype == np.float32
                assert y.dtype == np.int64
                assert x.shape == (len(y), 60)
                assert set(y.tolist()) <= set(range(10))


# --- sizes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples", "test_fraction", "train", "test"),
    [
        (500, 0.2, 400, 100),
        (10, 0.25, 8, 2),
        (2, 0.01, 1, 1),
        (2, 0.9, 1, 1),
        (100, 0.9, 10, 90),
        (100, 0.575, 42, 58),
    ],
)
def test_equal_sizes(samples: int, test_fraction: float, train: int, test: int) -> None:
    """Every client draws samples_per_client rows, and neither part is ever empty."""
    data = make_equal_sizes(
        samples,
        test_fraction=test_fraction,
        num_clients=3,
        num_priority=2,
        irrelevant_fraction=0.0,
    )
    for client in map(data.get_client, range(3)):
        assert (len(client.y_train), len(client.y_test)) == (train, test)


def test_lognormal_sizes() -> None:
    """Sizes are 50 + floor(L), ln L ~ N(4, 2^2): the share in each of four ranges fits."""
    data = make_synth(num_clients=401, num_priority=1, irrelevant_fraction=0.0, sizes="lognormal")
    clients = [data.get_client(k) for k in range(1, 401)]
    extra = np.array([len(client.y_train) + len(client.y_test) - 50 for client in clients])
    assert extra.min() >= 0
    cuts = [8, 55, 404]  # about e^2, e^4, e^6: one standard deviation apart
    law = NormalDist(4, 2)
    below = [0.0, *(law.cdf(math.log(cut)) for cut in cuts), 1.0]
    counts = np.bincount(np.searchsorted(cuts, extra, side="right"), minlength=4)
    assert_counts(counts.tolist(), np.diff(below).tolist())
    assert all(
        len(client.y_test) == round(0.2 * (len(client.y_test) + len(client.y_train)))
        for client in clients
    )


# --- priority clients ------------------------------------------------------------------------


def test_coordinate_variance() -> None:
    """Coordinate j of a priority client varies with j^-1.2 (relative sd sqrt(2/n))."""
    data = make_equal_sizes(10_000, num_clients=1, num_priority=1, test_fraction=0.01)
    x = data.get_client(0).x_train.astype(np.float64)
    ratio = x.var(axis=0, ddof=1) / np.array([1 / j**1.2 for j in range(1, 61)])
    assert np.abs(ratio - 1).max() <= SIGMAS * math.sqrt(2 / len(x))


def test_coordinates_are_independent() -> None:
    """No two coordinates of a priority client correlate (sd 1/sqrt(n))."""
    data = make_equal_sizes(10_000, num_clients=1, num_priority=1, test_fraction=0.01)
    x = data.get_client(0).x_train
    correlation = np.corrcoef(x, rowvar=False) - np.eye(60)
    assert np.abs(correlation).max() <= SIGMAS / math.sqrt(len(x))


@pytest.mark.parametrize("beta", [0.0, 9.0])
def test_centers_spread_with_beta(beta: float) -> None:
    """A client's mean input, averaged over coordinates, is N(0, beta + 1/60) over clients."""
    count = 200
    data = make_equal_sizes(60, num_clients=count, num_priority=count, beta=beta)
    means = np.array([data.get_client(k).x_train.mean() for k in range(count)])
    # The noise of 48 rows adds sum_j j^-1.2 / (60^2 * 48) < 3e-5 to the variance.
    variance = beta + 1 / 60
    assert abs(means.mean()) <= SIGMAS * math.sqrt(variance / count)
    assert abs(means.var(ddof=1) / variance - 1) <= SIGMAS * math.sqrt(2 / count) + 2e-3


def test_alpha_cannot_be_seen() -> None:
    """u_k shifts all logits of a client equally, so by the formula alpha changes no label."""
    for seed in (1, 2, 3):
        settings = {"num_clients": 3, "num_priority": 2, "seed": seed}
        zero, one = (
            make_equal_sizes(200, alpha=0.0, **settings),
            make_equal_sizes(200, alpha=4.0, **settings),
        )
        for k in range(3):
            assert is_same_data(zero.get_client(k), one.get_client(k))


def test_priority_labels_are_an_argmax_of_linear_scores() -> None:
    """Some W and b explain each of 2,500 labels: with 610 parameters noise could not be."""
    data = make_equal_sizes(2500, num_clients=1, num_priority=1).get_client(0)
    x = np.concatenate([data.x_train, data.x_test])
    y = torch.from_numpy(np.concatenate([data.y_train, data.y_test]))
    assert len(np.unique(y.numpy())) >= 3
    standard = (x - x.mean(axis=0)) / x.std(axis=0)
    inputs = torch.from_numpy(np.hstack([standard, np.ones((len(x), 1))])).double()
    weight = torch.zeros(61, 10, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(inputs @ weight, y)
        loss.backward()
        return loss

    optimizer.step(closure)
    assert int(((inputs @ weight).argmax(dim=1) != y).sum()) == 0


def test_classifiers_differ_between_clients() -> None:
    """With alpha = beta = 0 each client still has its own W and v, hence its own classes."""
    data = make_equal_sizes(500, alpha=0.0, beta=0.0, num_clients=8, num_priority=8)
    most_common = {
        Counter(data.get_client(k).y_train.tolist()).most_common(1)[0][0] for k in range(8)
    }
    assert len(most_common) >= 3


# --- which clients have priority -------------------------------------------------------------


@pytest.mark.parametrize(
    ("priority", "expected"),
    [("heterogeneous", (0, 1)), ("all", (0, 1, 2, 3, 4, 5)), ([4, 2], (2, 4)), ([5], (5,))],
)
def test_named_priority(priority: Any, expected: tuple[int, ...]) -> None:
    """The first ids, all, or the listed ones in ascending order, have priority."""
    assert (
        make_equal_sizes(10, num_clients=6, num_priority=2, priority=priority).priority == expected
    )


def test_random_priority() -> None:
    """The seed draws num_priority clients, and over 30 seeds every client is drawn once."""
    sampled = [
        make_equal_sizes(10, seed=seed, num_clients=6, num_priority=2, priority="random").priority
        for seed in range(30)
    ]
    assert all(len(set(chosen)) == 2 for chosen in sampled)
    # A client is left out 30 times with probability (2/3)^30 < 1e-5.
    assert {k for chosen in sampled for k in chosen} == set(range(6))


@pytest.mark.parametrize("noise", ["additive", "flip"])
def test_priority_of_all_leaves_no_noisy_client(noise: str) -> None:
    """All clients have data of their own, the same as with priority by a list of all."""
    all_clients = make_equal_sizes(50, num_clients=6, num_priority=2, noise=noise, priority="all")
    listed = make_equal_sizes(50, num_clients=6, noise=noise, priority=[0, 1, 2, 3, 4, 5])
    for k in range(6):
        assert is_same_data(all_clients.get_client(k), listed.get_client(k))
        assert len(all_clients.get_client(k).y_train) == 40


def test_labels_are_the_training_labels() -> None:
    """Of priority clients and of the others, whose noise they include."""
    data = make_equal_sizes(50, num_clients=4, num_priority=2)
    for k in range(4):
        np.testing.assert_array_equal(data.get_labels(k), data.get_client(k).y_train, strict=True)


@pytest.mark.parametrize("priority", ["heterogeneous", "random", [5, 2]])
@pytest.mark.parametrize("noise", ["additive", "flip"])
def test_without_noise_others_hold_rows_of_the_priority_clients(priority: Any, noise: str) -> None:
    """Training rows come, with their labels, from priority training parts, test from test."""
    data = make_equal_sizes(
        50,
        num_clients=6,
        num_priority=2,
        priority=priority,
        noise=noise,
        label_noise=0.0,
        irrelevant_fraction=0.0,
    )
    splits = {split: get_pool(data, split) for split in ("train", "test")}
    assert (len(splits["train"]), len(splits["test"])) == (80, 20)
    others = set(range(6)) - set(data.priority)
    assert len(others) == 4
    for client in map(data.get_client, others):
        train, test = (
            map_labels_by_row(client.x_train, client.y_train),
            map_labels_by_row(client.x_test, client.y_test),
        )
        assert (len(train), len(test)) == (40, 10)  # none drawn twice while the pool has enough
        assert train.items() <= splits["train"].items()
        assert test.items() <= splits["test"].items()


def test_pool_smaller_than_a_client() -> None:
    """A client larger than the pool gets its full size, by drawing rows again."""
    data = make_synth(num_clients=40, num_priority=1, irrelevant_fraction=0.0)
    train = get_pool(data, "train")
    larger = [
        client for client in map(data.get_client, range(1, 40)) if len(client.y_train) > len(train)
    ]
    assert larger
    for client in larger:
        assert {row.tobytes() for row in client.x_train} <= train.keys()


# --- noise -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("noise", "skew", "levels"),
    [
        ("additive", 1.0, [0.25, 0.5, 0.75, 1.0]),
        ("additive", 0.5, [0.0625, 0.25, 0.5625, 1.0]),
        ("additive", 2.0, [0.5, 0.7071067811865476, 0.8660254037844386, 1.0]),
        ("flip", 1.0, [0.0, 0.3333333333333333, 0.6666666666666666, 1.0]),
        ("flip", 0.5, [0.0, 0.1111111111111111, 0.4444444444444444, 1.0]),
        ("additive", 1.5, [0.3968502629920499, 0.6299605249474366, 0.8254818122236567, 1.0]),
    ],
)
@pytest.mark.parametrize("priority", [[0, 1], [1, 4]])
def test_noise_levels(noise: str, skew: float, levels: list[float], priority: list[int]) -> None:
    """s_j of the four non-priority clients, in the order of their ids, as worked out by hand."""
    data = make_equal_sizes(10, num_clients=6, priority=priority, noise=noise, noise_skew=skew)
    others = [k for k in range(6) if k not in priority]
    assert [data.compute_noise_level(k) for k in others] == pytest.approx(levels, rel=1e-12)


@pytest.mark.parametrize(("noise", "level"), [("additive", 1.0), ("flip", 0.0)])
def test_noise_level_of_a_single_client(noise: str, level: float) -> None:
    """A lone non-priority client has the level of the formula's only j, without dividing by 0."""
    assert (
        make_equal_sizes(10, num_clients=3, num_priority=2, noise=noise).compute_noise_level(2)
        == level
    )


def test_irrelevant_rows_may_have_a_different_skew() -> None:
    """Irrelevant rows may have another skew than labels; by default it is the same."""
    both = make_equal_sizes(10, num_clients=5, num_priority=1, noise_skew=1.0)
    apart = make_equal_sizes(10, num_clients=5, num_priority=1, noise_skew=1.0, irrelevant_skew=0.5)
    for j in range(1, 5):
        assert both.compute_irrelevant_level(j) == both.compute_noise_level(j) == j / 4
        assert (apart.compute_noise_level(j), apart.compute_irrelevant_level(j)) == (
            j / 4,
            (j / 4) ** 2,
        )
        assert len(apart.get_client(j).y_train) == 8 + round((j / 4) ** 2 * 8)


def test_additive_irrelevant_rows() -> None:
    """s_j D rows that no priority client has are added to both splits."""
    data = make_equal_sizes(
        100, num_clients=5, num_priority=1, noise_skew=1.0, irrelevant_fraction=0.5
    )
    train, test = get_pool(data, "train"), get_pool(data, "test")
    for j, extra_train, extra_test in ((1, 10, 2), (2, 20, 5), (3, 30, 8), (4, 40, 10)):
        client = data.get_client(j)
        assert len(client.y_train) == 80 + extra_train
        assert sum(row.tobytes() not in train for row in client.x_train) == extra_train
        assert len(client.y_test) == 20 + extra_test
        assert sum(row.tobytes() not in test for row in client.x_test) == extra_test


def test_flip_irrelevant_rows() -> None:
    """A fraction s_j of the rows is replaced in both splits; the size does not change."""
    data = make_equal_sizes(100, num_clients=5, num_priority=1, noise="flip", noise_skew=1.0)
    train, test = get_pool(data, "train"), get_pool(data, "test")
    for j, replaced_train, replaced_test in ((1, 0, 0), (2, 27, 7), (3, 53, 13), (4, 80, 20)):
        client = data.get_client(j)
        assert (len(client.y_train), len(client.y_test)) == (80, 20)
        assert sum(row.tobytes() not in train for row in client.x_train) == replaced_train
        assert sum(row.tobytes() not in test for row in client.x_test) == replaced_test


@pytest.mark.parametrize("noise", ["additive", "flip"])
def test_irrelevant_rows_are_standard_normal_with_uniform_labels(noise: str) -> None:
    """Irrelevant inputs are N(0, I) for any priority data, and labels uniform."""
    data = make_equal_sizes(5000, num_clients=3, num_priority=1, noise=noise)
    client, registered = data.get_client(2), get_pool(data, "train")
    foreign = np.array([row.tobytes() not in registered for row in client.x_train])
    x, y = client.x_train[foreign].astype(np.float64), client.y_train[foreign]
    assert len(y) == 4000
    assert np.abs(x.mean(axis=0)).max() <= SIGMAS / math.sqrt(len(x))
    assert np.abs(x.var(axis=0) - 1).max() <= SIGMAS * math.sqrt(2 / len(x))
    correlation = np.corrcoef(x, rowvar=False) - np.eye(60)
    assert np.abs(correlation).max() <= SIGMAS / math.sqrt(len(x))
    assert_counts(np.bincount(y, minlength=10).tolist(), [0.1] * 10)


def compute_shifts(data: SynthData, client: int) -> list[int]:
    """Return how often a client's labels differ from the pool's by 0, 1, .., 9 modulo 10."""
    client_data, registered = data.get_client(client), get_pool(data, "train")
    moves = Counter(
        (int(label) - registered[row.tobytes()]) % 10
        for row, label in zip(client_data.x_train, client_data.y_train, strict=True)
        if row.tobytes() in registered
    )
    return [moves[move] for move in range(10)]


@pytest.mark.parametrize(("client", "level"), [(1, 0.25), (2, 0.5), (4, 1.0)])
def test_additive_label_noise(client: int, level: float) -> None:
    """A label moves by rint(2.5 s N(0,1)) modulo 10: each of the ten moves as often as that."""
    data = make_equal_sizes(5000, num_clients=5, num_priority=1, noise_skew=1.0, label_noise=2.5)
    law = NormalDist(0, 2.5 * level)
    expected = [
        sum(
            law.cdf(whole + 0.5) - law.cdf(whole - 0.5)
            for whole in range(-30, 31)
            if whole % 10 == move
        )
        for move in range(10)
    ]
    counts = compute_shifts(data, client)
    assert sum(counts) == 4000
    assert_counts(counts, expected)


@pytest.mark.parametrize("factor", [2.5, 9.0])
@pytest.mark.parametrize(("client", "level"), [(1, 0.0), (2, 1 / 3), (4, 1.0)])
def test_flip_label_noise(client: int, level: float, factor: float) -> None:
    """A label is replaced by a uniform one, maybe the same, with probability label_noise s / 10."""
    data = make_equal_sizes(
        5000,
        num_clients=5,
        num_priority=1,
        noise="flip",
        noise_skew=1.0,
        label_noise=factor,
        irrelevant_fraction=0.0,
    )
    moved = factor / 10 * level / 10
    counts = compute_shifts(data, client)
    assert sum(counts) == 4000
    assert_counts(counts, [1 - 9 * moved] + [moved] * 9)


def test_test_part_has_the_same_label_noise() -> None:
    """The share of moved labels of a test part is that of the formula as well."""
    data = make_equal_sizes(
        5000, num_clients=2, num_priority=1, test_fraction=0.5, irrelevant_fraction=0.0
    )
    client, registered = data.get_client(1), get_pool(data, "test")
    moved = sum(
        int(label) != registered[row.tobytes()]
        for row, label in zip(client.x_test, client.y_test, strict=True)
    )
    law = NormalDist(0, 2.5)
    stays = law.cdf(0.5) - law.cdf(-0.5) + 2 * (law.cdf(10.5) - law.cdf(9.5))
    assert_counts([moved, len(client.y_test) - moved], [1 - stays, stays])
