"""One data set, divided among clients: on tiny arrays, and on the real ones."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedquorum.errors import SettingsError

from client_app.data import load_data
from client_app.data.base import Samples
from client_app.data.partitioned import PartitionedData
from client_app.data.sources.base import LabeledArrays
from conf.compose import compose_settings
from conf.schema.data import NpzSettings, PartitionedSettings, TorchvisionSettings
from tests.cases import is_long

TRAIN, TEST = 80, 40  # 10 classes of 8 and of 4
SHAPES = {"gray": (6, 5), "color": (6, 5, 3), "floats": (7,)}
INPUT_SHAPES = {"gray": (1, 6, 5), "color": (3, 6, 5), "floats": (7,)}

each_kind = pytest.mark.parametrize("kind", SHAPES)


def make_samples(kind: str, n: int) -> Samples:
    """Return samples whose very first value is their row."""
    rng = np.random.default_rng(n)
    if kind == "floats":
        x: Samples = rng.normal(scale=100.0, size=(n, *SHAPES[kind])).astype(np.float32)
    else:
        x = rng.integers(256, size=(n, *SHAPES[kind]), dtype=np.uint8)
    x.reshape(n, -1)[:, 0] = np.arange(n)
    return x


def make_arrays(kind: str = "gray") -> LabeledArrays:
    rng = np.random.default_rng(0)
    labels = (rng.permutation(np.arange(n) % 10) for n in (TRAIN, TEST))
    y_train, y_test = labels
    return LabeledArrays(make_samples(kind, TRAIN), y_train, make_samples(kind, TEST), y_test, 10)


def make_partitioned(kind: str = "gray", seed: int = 1, **settings: Any) -> PartitionedData:
    tiny = {"num_clients": 10, "shards_per_client": 2, "shard_size": 4}
    all_settings = PartitionedSettings(name="tiny", **{**tiny, **settings})
    return PartitionedData(make_arrays(kind), all_settings, seed)


def list_rows(x: np.ndarray[Any, Any], kind: str) -> list[int]:
    """Return which rows of the data set a client's inputs are."""
    first = x.reshape(len(x), -1)[:, 0]
    return [int(row) for row in np.rint(first if kind == "floats" else first * 255)]


@each_kind
def test_shapes_and_types(kind: str) -> None:
    """Every client gets float32 inputs, images with channels first, and int64 labels."""
    data = make_partitioned(kind)
    assert (data.input_shape, data.num_classes, data.num_clients) == (INPUT_SHAPES[kind], 10, 10)
    for client in map(data.get_client, range(10)):
        for x, y, n in ((client.x_train, client.y_train, 8), (client.x_test, client.y_test, 4)):
            assert x.shape == (n, *data.input_shape)
            assert x.dtype == np.float32
            assert x.flags.c_contiguous
            assert y.shape == (n,)
            assert y.dtype == np.int64


@each_kind
def test_samples_and_labels_are_those_of_the_arrays(kind: str) -> None:
    """Pixels are divided by 255, floats stay; each sample has its own part's label."""
    data, given = make_partitioned(kind), make_arrays(kind)
    for client in map(data.get_client, range(10)):
        for x, y, all_x, all_y in (
            (client.x_train, client.y_train, given.x_train, given.y_train),
            (client.x_test, client.y_test, given.x_test, given.y_test),
        ):
            chosen = list_rows(x, kind)
            np.testing.assert_array_equal(y, all_y[chosen])
            expected = all_x[chosen].astype(np.float32)
            if kind == "color":
                for channel in range(3):
                    np.testing.assert_array_equal(x[:, channel], expected[..., channel] / 255)
            elif kind == "gray":
                np.testing.assert_array_equal(x[:, 0], expected / 255)
            else:
                np.testing.assert_array_equal(x, expected)


@each_kind
def test_rows_are_dealt_once(kind: str) -> None:
    """20 shards for 20 places: every training and every test row has exactly one owner."""
    clients = list(map(make_partitioned(kind).get_client, range(10)))
    for n, splits in ((TRAIN, [c.x_train for c in clients]), (TEST, [c.x_test for c in clients])):
        assert sorted(list_rows(np.concatenate(splits), kind)) == list(range(n))


def test_test_classes_are_the_training_classes() -> None:
    """A client's test part has its training part's classes, in the same proportions."""
    for client in map(make_partitioned().get_client, range(10)):
        train, test = (
            np.bincount(client.y_train, minlength=10),
            np.bincount(client.y_test, minlength=10),
        )
        np.testing.assert_array_equal(train, 2 * test)
        assert np.count_nonzero(train) <= 2


def test_a_client_may_change_its_data() -> None:
    """What a client does to its arrays stays there: the next time they are as before."""
    data = make_partitioned("floats")
    client = data.get_client(3)
    before = client.x_train.copy()
    client.x_train[:] = 0
    client.y_train[:] = 0
    np.testing.assert_array_equal(data.get_client(3).x_train, before)
    assert data.get_client(3).y_train.any()


def test_data_depends_on_the_seed() -> None:
    """The same seed gives the same clients, another seed others."""
    first, again, other = (make_partitioned(seed=seed).get_client(3) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.x_train, again.x_train)
    np.testing.assert_array_equal(first.x_test, again.x_test)
    assert not np.array_equal(first.x_train, other.x_train)


@pytest.mark.parametrize("seed", range(1, 9))
def test_heterogeneous_priority_is_disjoint(seed: int) -> None:
    """The two priority clients of the default share no class."""
    data = make_partitioned(seed=seed)
    one, two = (set(data.get_client(k).y_train.tolist()) for k in data.priority)
    assert not one & two


def test_named_and_random_priority() -> None:
    """A list is taken as it is, random draws the asked number by the seed."""
    assert make_partitioned(priority=[7, 2]).priority == (2, 7)
    sampled = {
        make_partitioned(seed=s, priority="random", num_priority=3).priority for s in range(6)
    }
    assert all(len(set(chosen)) == 3 and set(chosen) <= set(range(10)) for chosen in sampled)
    assert len(sampled) > 1


def test_priority_of_all() -> None:
    """Every client has priority, however many num_priority says."""
    assert make_partitioned(priority="all").priority == tuple(range(10))
    assert make_partitioned(priority="all", num_priority=3).priority == tuple(range(10))


@pytest.mark.parametrize("partition", ["shards", "dirichlet"])
def test_labels_are_the_training_labels(partition: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client's labels come in the order of its training part, and no input is made for them."""
    data = make_partitioned(partition=partition, alpha=1.0)
    expected = [data.get_client(k).y_train for k in range(10)]
    monkeypatch.setattr(data, "get_client", None)
    for k in range(10):
        np.testing.assert_array_equal(data.get_labels(k), expected[k], strict=True)
    data.get_labels(3)[:] = -1
    np.testing.assert_array_equal(data.get_labels(3), expected[3])


@each_kind
def test_dirichlet_partition(kind: str) -> None:
    """All clients get equally many rows of their own; the settings of shards are not used."""
    unused: dict[str, Any] = {"shard_size": 99, "samples_per_shard": 1}
    data = make_partitioned(kind, partition="dirichlet", alpha=1.0, **unused)
    given = make_arrays(kind)
    clients = list(map(data.get_client, range(10)))
    for client in clients:
        assert client.x_train.shape == (8, *data.input_shape)
        np.testing.assert_array_equal(
            client.y_train, given.y_train[list_rows(client.x_train, kind)]
        )
        np.testing.assert_array_equal(client.y_test, given.y_test[list_rows(client.x_test, kind)])
        assert set(client.y_test.tolist()) <= set(client.y_train.tolist())
    for n, splits in ((TRAIN, [c.x_train for c in clients]), (TEST, [c.x_test for c in clients])):
        assert sorted(list_rows(np.concatenate(splits), kind)) == list(range(n))
    other = make_partitioned(kind, seed=2, partition="dirichlet", alpha=1.0)
    assert any(
        not np.array_equal(other.get_labels(k), client.y_train) for k, client in enumerate(clients)
    )


def test_settings_of_the_dirichlet_partition() -> None:
    """alpha and samples_per_client are those of the settings."""
    settings: dict[str, Any] = {"partition": "dirichlet", "num_clients": 4}
    small, large = (make_partitioned(**settings, alpha=alpha, seed=3) for alpha in (0.1, 1000.0))
    classes = [[len(set(d.get_labels(k).tolist())) for k in range(4)] for d in (small, large)]
    assert max(classes[0]) < min(classes[1])
    split = make_partitioned(**settings, alpha=1.0, samples_per_client=15)
    assert [len(split.get_labels(k)) for k in range(4)] == [15] * 4


def test_clients_are_the_same_in_any_order() -> None:
    """What a client has does not depend on who was asked before."""
    one, two = (make_partitioned(partition="dirichlet", alpha=1.0) for _ in range(2))
    forth = [one.get_client(k).x_train for k in range(10)]
    back = [two.get_client(k).x_train for k in reversed(range(10))]
    for a, b in zip(forth, reversed(back), strict=True):
        np.testing.assert_array_equal(a, b)


def test_fewer_samples_per_shard() -> None:
    """``samples_per_shard`` shortens training parts; test parts and priority do not change."""
    whole, split = make_partitioned(), make_partitioned(samples_per_shard=1)
    assert split.priority == whole.priority
    for k in range(10):
        full, client = whole.get_client(k), split.get_client(k)
        assert len(client.y_train) == 2
        assert set(list_rows(client.x_train, "gray")) <= set(list_rows(full.x_train, "gray"))
        assert set(client.y_train.tolist()) == set(full.y_train.tolist())
        np.testing.assert_array_equal(client.x_test, full.x_test)
        np.testing.assert_array_equal(client.y_test, full.y_test)


@pytest.mark.parametrize("experiment", ["fedalign/fmnist", "fedalign/emnist"])
def test_more_samples_than_a_shard_has(experiment: str) -> None:
    """samples_per_shard above shard_size is refused before any work, naming both."""
    size = {"fedalign/fmnist": 500, "fedalign/emnist": 77}[experiment]
    settings = compose_settings(experiment, f"data.samples_per_shard={size}").settings.data
    assert isinstance(settings, PartitionedSettings)
    assert settings.samples_per_shard == size
    message = (
        rf"^data\.samples_per_shard must be at most data\.shard_size \({size}\), got {size + 1}$"
    )
    with pytest.raises(SettingsError, match=message):
        compose_settings(experiment, f"data.samples_per_shard={size + 1}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("experiment", "classes", "train", "test", "rows"),
    [("fedalign/emnist", 47, 2400, 400, 1848), ("fedalign/cifar10", 10, 5000, 1000, 832)],
)
def test_presets_fit_the_data(
    experiment: str, classes: int, train: int, test: int, rows: int
) -> None:
    """As many images of each class as are published are enough for the preset's shards."""
    y_train, y_test = (np.repeat(np.arange(classes), n) for n in (train, test))
    x_train, x_test = (np.zeros((len(y), 1, 1), dtype=np.uint8) for y in (y_train, y_test))
    published = LabeledArrays(x_train, y_train, x_test, y_test, classes)
    settings = compose_settings(experiment).settings.data
    assert isinstance(settings, TorchvisionSettings)
    data = PartitionedData(published, settings, 1)
    assert {len(data.get_client(k).y_train) for k in range(60)} == {rows}


SVHN_TRAIN = (4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659)
SVHN_TEST = (1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "train", "test", "seed"),
    [
        (*preset, seed)
        for preset in (
            ("svhn", SVHN_TRAIN, SVHN_TEST),
            ("cifar100", (500,) * 100, (100,) * 100),
        )
        for seed in ((1, 2) if is_long() else (1,))
    ],
)
def test_fedau_presets_fit_the_data(
    name: str, train: tuple[int, ...], test: tuple[int, ...], seed: int
) -> None:
    """250 clients of different sizes share all published rows, and nearly all test rows."""
    y_train, y_test = (np.repeat(np.arange(len(n)), n) for n in (train, test))
    x_train, x_test = (np.zeros((len(y), 1, 1, 3), dtype=np.uint8) for y in (y_train, y_test))
    published = LabeledArrays(x_train, y_train, x_test, y_test, len(train))
    settings = compose_settings(f"fedau/{name}").settings.data
    assert isinstance(settings, PartitionedSettings)
    data = PartitionedData(published, settings, seed)
    sizes = [len(data.get_labels(k)) for k in range(250)]
    assert sum(sizes) == len(y_train)
    assert min(sizes) > 0
    assert len(set(sizes)) > 1
    given = sum(len(data.get_client(k).y_test) for k in range(250))
    assert given > 0.99 * len(y_test)


@pytest.mark.slow
def test_real_fashion_mnist(real_data: Path) -> None:
    """60 clients get 1,000 training rows of at most 2 classes: 60,000 rows, each once."""
    data = load_data(TorchvisionSettings(name="fmnist", root=str(real_data), download=False), 1)
    assert isinstance(data, PartitionedData)
    train, test = (
        np.concatenate([getattr(share, split) for share in data._partition])
        for split in ("train", "test")
    )
    assert sorted(train.tolist()) == list(range(60_000))
    assert sorted(test.tolist()) == list(range(10_000))
    for client in map(data.get_client, range(60)):
        counts = np.bincount(client.y_train, minlength=10)
        assert sorted(counts[counts > 0].tolist()) in ([1000], [500, 500])
        # 1,000 test rows of a class in 12 shards: 83 or 84 each.
        assert np.abs(np.bincount(client.y_test, minlength=10) - counts / 6).max() < 2
        assert client.x_train.shape == (1000, 1, 28, 28)
    one, two = (set(data.get_client(k).y_train.tolist()) for k in data.priority)
    assert not one & two


@pytest.mark.slow
def test_real_cifar10_subset(cifar10_subset: Path) -> None:
    """60 clients get two shards of 125 each, in color: 15,000 rows, each once."""
    data = load_data(NpzSettings(path=str(cifar10_subset), partition="shards", shard_size=125), 1)
    assert isinstance(data, PartitionedData)
    assert (data.input_shape, data.num_classes) == ((3, 32, 32), 10)
    train = np.concatenate([share.train for share in data._partition])
    assert sorted(train.tolist()) == list(range(15_000))
    for client in map(data.get_client, range(60)):
        assert client.x_train.shape == (250, 3, 32, 32)
        assert client.x_test.shape == (50, 3, 32, 32)
        assert set(client.y_test.tolist()) == set(client.y_train.tolist())
        assert (client.x_train.min(), client.x_train.max()) == (0.0, 1.0)
        # Neighboring pixels of a photograph are similar, unless axes are mixed up.
        assert np.abs(np.diff(client.x_train, axis=2)).mean() < 0.1
        assert np.abs(np.diff(client.x_train, axis=3)).mean() < 0.1


@pytest.mark.slow
def test_real_fashion_mnist_by_dirichlet(real_data: Path) -> None:
    """FedAU's 250 clients with Dir(0.1): 240 training rows each, and nearly 40 to test on."""
    settings = TorchvisionSettings(
        name="fmnist",
        root=str(real_data),
        download=False,
        num_clients=250,
        priority="all",
        partition="dirichlet",
    )
    data = load_data(settings, 1)
    assert isinstance(data, PartitionedData)
    train = np.concatenate([share.train for share in data._partition])
    test = np.concatenate([share.test for share in data._partition])
    assert sorted(train.tolist()) == list(range(60_000))
    assert sorted(test.tolist()) == list(range(10_000))
    assert data.priority == tuple(range(250))
    largest = []
    for client in map(data.get_client, range(250)):
        counts = np.bincount(client.y_train, minlength=10)
        assert counts.sum() == 240
        assert np.abs(np.bincount(client.y_test, minlength=10) - counts / 6).max() < 1
        largest.append(counts.max() / 240)
    # The mean largest share of Dir(0.1) over 10 classes is 0.665.
    assert 0.6 < np.mean(largest) < 0.7


@pytest.mark.parametrize(
    ("rows", "has_clients", "given", "clients"),
    [
        (3000, False, None, 60),
        (300, False, None, 12),
        (10, False, None, 2),
        (300, False, 3, 3),
        (300, True, None, 5),
    ],
)
def test_the_default_division_fits_any_file(
    tmp_path: Path, rows: int, has_clients: bool, given: int | None, clients: int
) -> None:
    """It is that of the file, or random rows of as many clients as have enough; both are said."""
    y = np.arange(rows) % 2
    own: dict[str, Any] = {"client_train": np.arange(rows) % 5} if has_clients else {}
    np.savez(tmp_path / "data.npz", x_train=np.ones((rows, 2), np.float32), y_train=y, **own)
    data = load_data(NpzSettings(path=str(tmp_path / "data.npz"), num_clients=given), 1)
    assert data.num_clients == clients
    random = f"{clients} clients, equally many random rows each (data.partition=iid)"
    assert data.summary.division == (
        "the data's own clients (data.partition=natural)" if has_clients else random
    )
    sizes = [len(data.get_client(k).y_train) + len(data.get_client(k).y_test) for k in range(2)]
    assert sizes[0] >= min(25, rows // 2 - 1)
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("setting", ["shard_size=10", "shards_per_client=3", "alpha=1"])
def test_a_setting_of_another_division_is_refused(setting: str) -> None:
    """The default division is natural or iid, which would ignore it without a word."""
    with pytest.raises(SettingsError, match=rf"^data\.{setting[:5]}.* must be with data"):
        compose_settings("custom", f"data=npz data.path=x data.{setting}")
    compose_settings("custom", f"data=npz data.path=x data.{setting} data.partition=shards")
