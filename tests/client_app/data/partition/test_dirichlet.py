"""Class distributions by Dirichlet's law."""

import re
import warnings

import numpy as np
import pytest
from fedquorum.errors import SettingsError
from numpy.typing import NDArray

from client_app.data.partition import ClientSplit, partition_by_dirichlet

Labels = NDArray[np.int64]

SIGMAS = 5  # of every statistical bound: a true value lies outside with probability 6e-7


def make_random_labels(seed: int, train: int = 1000, test: int = 437) -> tuple[Labels, Labels]:
    """Return labels of 5 classes whose counts are no multiples of anything in particular."""
    rng = np.random.default_rng(seed)
    law = [0.1, 0.15, 0.2, 0.25, 0.3]
    return rng.choice(5, train, p=law), rng.choice(5, test, p=law)


def make_balanced_labels(classes: int, each: int) -> Labels:
    """Return shuffled labels, equally many of each class."""
    return np.random.default_rng(0).permutation(np.repeat(np.arange(classes), each))


def partition_dirichlet(
    train: Labels,
    test: Labels,
    clients: int = 10,
    *,
    alpha: float = 0.1,
    samples: int | None = None,
    seed: int = 1,
) -> list[ClientSplit]:
    return partition_by_dirichlet(
        train, test, num_clients=clients, alpha=alpha, samples_per_client=samples, seed=seed
    )


def count_classes(labels: Labels, rows: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return how many rows of each class each client has, (clients, classes)."""
    return np.stack(
        [np.bincount(labels[client_rows], minlength=labels.max() + 1) for client_rows in rows]
    )


@pytest.mark.parametrize("alpha", [0.1, 1.0, 1000.0])
@pytest.mark.parametrize(
    ("clients", "samples", "size"), [(10, None, 100), (7, None, 142), (1, None, 1000), (10, 60, 60)]
)
def test_equal_sizes(alpha: float, clients: int, samples: int | None, size: int) -> None:
    """Every client has samples_per_client training rows, by default all rows / clients."""
    shares = partition_dirichlet(*make_random_labels(1), clients, alpha=alpha, samples=samples)
    assert [len(client_rows.train) for client_rows in shares] == [size] * clients


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("samples", [None, 60])
def test_no_row_is_given_twice(seed: int, samples: int | None) -> None:
    """Neither a training row nor a test row has two owners."""
    train, test = make_random_labels(seed)
    shares = partition_dirichlet(train, test, samples=samples, seed=seed)
    for rows, total in (
        (np.concatenate([client_rows.train for client_rows in shares]), len(train)),
        (np.concatenate([client_rows.test for client_rows in shares]), len(test)),
    ):
        assert rows.dtype == np.int64
        assert len(np.unique(rows)) == len(rows)
        assert (rows.min() >= 0, rows.max() < total) == (True, True)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_all_rows_are_dealt(seed: int) -> None:
    """Where the clients take all training rows, they take all test rows too."""
    shares = partition_dirichlet(*make_random_labels(seed), seed=seed)
    assert sum(len(client_rows.train) for client_rows in shares) == 1000
    assert sum(len(client_rows.test) for client_rows in shares) == 437


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("samples", [None, 60])
@pytest.mark.parametrize("alpha", [0.1, 1.0])
def test_test_part_has_the_proportions_of_the_training_part(
    seed: int, samples: int | None, alpha: float
) -> None:
    """Of each class a client's share of the test rows is that of the training rows, to a row."""
    train, test = make_random_labels(seed)
    shares = partition_dirichlet(train, test, alpha=alpha, samples=samples, seed=seed)
    dealt = count_classes(train, [client_rows.train for client_rows in shares])
    given = count_classes(test, [client_rows.test for client_rows in shares])
    exact = dealt * np.bincount(test) / np.bincount(train)
    assert np.abs(given - exact).max() < 1
    assert np.abs(given.sum(axis=0) - exact.sum(axis=0)).max() < 1
    assert not given[dealt == 0].any()


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.1, 0.5, 10.0])
def test_class_distributions_follow_the_law(alpha: float) -> None:
    """Two rows of a client have the same class with probability (alpha + 1) / (L alpha + 1).

    This is E sum_c kappa_c^2 for kappa ~ Dir(alpha) over L classes; few of the rows are dealt, so
    that no class is used up.
    """
    train, test, n = make_balanced_labels(10, 2000), make_balanced_labels(10, 1000), 20
    shares = partition_dirichlet(train, test, 200, alpha=alpha, samples=n)
    dealt = count_classes(train, [client_rows.train for client_rows in shares])
    same = (dealt * (dealt - 1)).sum(axis=1) / (n * (n - 1))
    expected = (alpha + 1) / (10 * alpha + 1)
    assert abs(same.mean() - expected) < SIGMAS * same.std() / np.sqrt(200)
    # No class is preferred: each has the mean 1 / L with the variance of the clients' shares.
    deviation = (dealt / n).std(axis=0) / np.sqrt(200)
    assert (np.abs((dealt / n).mean(axis=0) - 0.1) < SIGMAS * deviation).all()


@pytest.mark.slow
def test_small_alpha_is_concentrated() -> None:
    """Also where all rows are dealt: the most frequent class of a client falls with alpha."""
    train, test = make_balanced_labels(10, 300), make_balanced_labels(10, 150)
    largest = [
        np.mean(
            count_classes(
                train,
                [
                    client_rows.train
                    for client_rows in partition_dirichlet(train, test, 30, alpha=alpha)
                ],
            ).max(axis=1)
        )
        for alpha in (0.1, 1.0, 1000.0)
    ]
    assert largest == sorted(largest, reverse=True)
    # The mean largest share of Dir(0.1) is 0.665; used-up classes take some of it.
    assert 0.55 < largest[0] / 100 < 0.75
    assert 0.10 < largest[2] / 100 < 0.20


def test_depends_on_the_seed_alone() -> None:
    """The same seed deals the same rows in the same order, another seed others."""
    labels = make_random_labels(1)
    first, again, other = (partition_dirichlet(*labels, seed=seed) for seed in (1, 1, 2))
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a.train, b.train)
        np.testing.assert_array_equal(a.test, b.test)
    pairs = list(zip(first, other, strict=True))
    assert any(set(a.train.tolist()) != set(b.train.tolist()) for a, b in pairs)
    assert any(set(a.test.tolist()) != set(b.test.tolist()) for a, b in pairs)


def test_the_global_generator_is_not_used() -> None:
    """NumPy's global generator is neither read nor moved."""
    sampled, dealt = [], []
    for _ in range(2):
        np.random.seed(5)  # noqa: NPY002
        dealt.append(
            np.concatenate(
                [client_rows.train for client_rows in partition_dirichlet(*make_random_labels(1))]
            )
        )
        sampled.append(np.random.random())  # noqa: NPY002
        np.random.seed(6)  # noqa: NPY002
        dealt.append(
            np.concatenate(
                [client_rows.train for client_rows in partition_dirichlet(*make_random_labels(1))]
            )
        )
    np.random.seed(5)  # noqa: NPY002
    assert sampled == [np.random.random()] * 2  # noqa: NPY002
    for rows in dealt[1:]:
        np.testing.assert_array_equal(rows, dealt[0])


def test_rows_within_a_class_are_shuffled() -> None:
    """Rows that are neighbors in the data are not dealt together."""
    train = np.zeros(100, dtype=np.int64)
    client_rows = partition_dirichlet(train, train, 2)[0]
    for rows in (client_rows.train, client_rows.test):
        assert sorted(rows.tolist()) not in (list(range(50)), list(range(50, 100)))


def test_classes_may_have_gaps() -> None:
    """Labels need not be 0, 1, ..; classes that only the test set has are dealt to nobody."""
    train, test = make_balanced_labels(3, 100) * 7 + 5, np.repeat([2, 5, 12, 19, 30], 40)
    shares = partition_dirichlet(train, test, 5, alpha=1.0)
    assert {c for client_rows in shares for c in train[client_rows.train].tolist()} == {5, 12, 19}
    assert {c for client_rows in shares for c in test[client_rows.test].tolist()} == {5, 12, 19}
    assert sum(len(client_rows.test) for client_rows in shares) == 120


def test_no_warning_reaches_the_user() -> None:
    """The libraries' warnings, of rows that are left over and of 0 / 0, do not come through."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        partition_dirichlet(*make_random_labels(1), samples=60)
        with pytest.raises(SettingsError):
            partition_dirichlet(*make_random_labels(1), alpha=1e-3)
    assert caught == []


@pytest.mark.parametrize(("clients", "samples"), [(10, 101), (1001, 1), (1001, None)])
def test_too_few_rows(clients: int, samples: int | None) -> None:
    """More rows than there are, or more clients than rows, raise with both numbers."""
    message = (
        "data.num_clients * data.samples_per_client must be at most the number of training rows, "
        f"1000, got {clients} * {samples or 1}"
    )
    with pytest.raises(SettingsError, match=f"^{re.escape(message)}$"):
        partition_dirichlet(*make_random_labels(1), clients, samples=samples)


def test_too_small_an_alpha() -> None:
    """Where a client's only classes are used up, the error names alpha and the way out."""
    message = (
        "data.alpha must be large enough for every client to have a class that is not used up (or "
        "data.samples_per_client smaller than 100), got 0.001"
    )
    with pytest.raises(SettingsError, match=f"^{re.escape(message)}$"):
        partition_dirichlet(*make_random_labels(1), alpha=1e-3)


@pytest.mark.parametrize(("samples", "test"), [(2, 100), (100, 4)])
def test_empty_test_part(samples: int, test: int) -> None:
    """A client whose few rows have no fair share of the test rows raises with both settings."""
    pattern = (
        r"^data\.samples_per_client must be large enough, and data\.num_clients small enough, for "
        rf"every client to have test rows, got {samples} and 10: client \d has no fair share of "
        rf"the {test} test rows$"
    )
    with pytest.raises(SettingsError, match=pattern):
        partition_dirichlet(*make_random_labels(1, test=test), samples=samples)
