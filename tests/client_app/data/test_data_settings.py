"""Settings of the data sets, checked before any data is read."""

import re
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields
from typing import Any

import pytest
from fedquorum.errors import SettingsError

from client_app.training.local_sgd import LocalSGDConfig
from conf.compose import compose_settings
from conf.schema.data import CsvSettings, PartitionedSettings, TorchvisionSettings

PARTITIONED = ("mnist", "fmnist", "emnist", "cifar10", "cifar100", "svhn")


@pytest.mark.parametrize("name", PARTITIONED)
def test_data_sets_and_their_default_partition(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a config group with its name, in shards, and reads from FEDQUORUM_DATA."""
    monkeypatch.setenv("FEDQUORUM_DATA", "/somewhere")
    data = compose_settings("custom", f"data={name}").settings.data
    assert isinstance(data, TorchvisionSettings)
    assert (data.name, data.partition, data.root) == (name, "shards", "/somewhere")


@pytest.mark.parametrize("name", [*PARTITIONED, "cinic10", "npz"])
def test_dirichlet_partition_of_every_data_set(name: str) -> None:
    """Each can be divided by Dir(alpha), by default Dir(0.1) with all of its rows."""
    overrides = "data.path=x.npz" if name == "npz" else ""
    data = compose_settings(
        "custom", f"data={name} {overrides} data.partition=dirichlet"
    ).settings.data
    assert isinstance(data, PartitionedSettings)
    assert (data.partition, data.alpha, data.samples_per_client) == ("dirichlet", 0.1, None)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("npz data.regression=true data.num_classes=3", "num_classes .* data.regression is true"),
        ("hf data.regression=true data.num_classes=3", "num_classes must be null where data.regr"),
    ],
)
def test_values_without_effect(overrides: str, message: str) -> None:
    """Who sets a value expects an effect."""
    with pytest.raises(SettingsError, match=f"^data.{message}"):
        compose_settings("custom", f"data.path=x data={overrides}")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            "data.partition=even",
            (
                "data.partition must be one of shards, dirichlet, proportional, iid, quantity, "
                "got 'even'"
            ),
        ),
        ("data.alpha=0", "data.alpha must be a number > 0, got 0.0"),
        ("data.alpha=nan", "data.alpha must be a number > 0, got nan"),
        ("data.alpha=inf", "data.alpha must be a number > 0, got inf"),
        ("data.samples_per_client=0", "data.samples_per_client must be a whole number >= 1, got 0"),
    ],
)
def test_values_out_of_range(overrides: str, message: str) -> None:
    """A wrong value is one line with the setting, what is allowed and the value."""
    with pytest.raises(SettingsError, match=f"^{re.escape(message)}$"):
        compose_settings("custom", f"data=fmnist {overrides}")


@pytest.mark.parametrize("partition", ["shards", "dirichlet"])
def test_number_of_clients_of_a_file(partition: str) -> None:
    """Where the data does not tell it, it is 60; null is as good as nothing."""
    overrides = f"data=npz data.path=x.npz data.partition={partition}"
    for word in ("", "data.num_clients=null"):
        composed = compose_settings("custom", f"{overrides} {word}")
        assert composed.settings.data.num_clients == 60
        assert "num_clients: 60" in composed.to_yaml()
    assert (
        compose_settings("custom", f"{overrides} data.num_clients=7").settings.data.num_clients == 7
    )


def test_number_of_clients_is_read_from_the_data() -> None:
    """It is null until then, and may be given; nothing that depends on it is refused yet."""
    overrides = "data=npz data.path=x.npz data.partition=natural"
    assert compose_settings("custom", overrides).settings.data.num_clients is None
    assert (
        compose_settings("custom", f"{overrides} data.num_clients=7").settings.data.num_clients == 7
    )
    later = "data.num_priority=999 'data.priority_weights={999: 0.5}' data.priority=[999]"
    assert compose_settings("custom", f"{overrides} {later}").settings.data.priority == [999]
    compose_settings(
        "custom", f"{overrides} availability=bernoulli 'availability.p=[0.5, 0.5, 0.5]'"
    )


NULL = "data.num_clients must be a whole number >= 1 where the data does not tell it, got null"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("data=fmnist data.num_clients=null", NULL),
        ("data=svhn data.partition=dirichlet data.num_clients=null", NULL),
        ("data=synth data.num_clients=null", NULL),
        (
            "data=fmnist data.partition=natural",
            (
                "data.partition must be one of shards, dirichlet, proportional, iid, quantity, "
                "got 'natural'"
            ),
        ),
        (
            "data=npz data.path=x data.partition=even",
            (
                "data.partition must be one of shards, dirichlet, proportional, iid, quantity, "
                "natural, device, auto, got 'even'"
            ),
        ),
        (
            "data=npz data.path=x data.partition=natural data.num_clients=0",
            "data.num_clients must be a whole number >= 1, got 0",
        ),
        (
            "data=npz data.path=x data.partition=natural data.num_clients=7 data.priority=[7]",
            (
                "data.priority must be a list of at least one client, each once, an id from 0 to 6 "
                "or a name in quotes, got [7]"
            ),
        ),
        (
            "data=npz data.path=x data.partition=natural 'data.priority_weights={1: 2}'",
            "data.priority_weights[1] must be a number > 0 and <= 1, got 2",
        ),
        (
            "data=npz data.path=x data.partition=natural availability=bernoulli availability.p=2",
            (
                "availability.p must be null, class_rates, a number > 0 and <= 1, or a list of one "
                "for each of the clients, got 2"
            ),
        ),
        (
            "data=npz data.path=x data.test_fraction=0",
            "data.test_fraction must be a number >= 0.01 and <= 0.9, got 0.0",
        ),
    ],
)
def test_mistakes_in_the_number_of_clients(overrides: str, message: str) -> None:
    """Errors that need no data are reported in one line before the data is read."""
    with pytest.raises(SettingsError, match=f"^{re.escape(message)}$"):
        compose_settings("custom", overrides)


def test_settings_of_the_other_partition_do_no_harm() -> None:
    """More samples than a shard has are refused only where there are shards."""
    overrides = "data=fmnist data.shard_size=5 data.samples_per_shard=6"
    compose_settings("custom", f"{overrides} data.partition=dirichlet")
    with pytest.raises(SettingsError, match=r"^data\.samples_per_shard must be at most"):
        compose_settings("custom", overrides)


@pytest.mark.parametrize("name", ["synth", "fmnist"])
def test_priority_of_all(name: str) -> None:
    """``data.priority=all`` is a choice of every data set, and num_priority may be anything."""
    overrides = f"data={name} data.priority=all data.num_clients=3 data.num_priority=9"
    assert compose_settings("custom", overrides).settings.data.priority == "all"


def test_an_invalid_priority_is_refused() -> None:
    """Another word is refused with the words there are."""
    message = (
        "data.priority must be one of heterogeneous, random, all, or a list of client ids or names "
        "such as [0, North], got 'everyone'"
    )
    with pytest.raises(SettingsError, match=f"^{re.escape(message)}$"):
        compose_settings("custom", "data.priority=everyone")


@pytest.mark.parametrize(
    ("name", "partition", "normalize"),
    [
        ("fmnist", "dirichlet", False),
        ("fmnist_authors", "proportional", True),
        ("cifar10", "proportional", True),
        ("cifar100", "proportional", True),
        ("svhn", "proportional", True),
        ("cinic10", "proportional", True),
    ],
)
def test_fedau_presets(name: str, partition: str, normalize: bool) -> None:
    """FedAU's experiments: 250 clients, all with priority, classes by Dir(0.1)."""
    data = compose_settings(f"fedau/{name}").settings.data
    assert isinstance(data, PartitionedSettings)
    assert (data.name, data.num_clients) == (name.partition("_")[0], 250)
    assert (data.priority, data.alpha, data.samples_per_client) == ("all", 0.1, None)
    assert (data.partition, data.normalize) == (partition, normalize)


@pytest.mark.parametrize("name", ["cifar100", "cinic10"])
def test_fedau_halves_the_rate_from_round_10000(name: str) -> None:
    """Every 1,000 rounds of the second half of 20,000."""
    settings = compose_settings(f"fedau/{name}").settings
    made = asdict(settings.client)
    training = LocalSGDConfig(
        **{item.name: made[item.name] for item in fields(LocalSGDConfig) if item.name in made}
    )
    rates = [training.compute_learning_rate(t, 0, 5) for t in (0, 9999, 10000, 10999, 11000)]
    assert rates == [0.1, 0.1, 0.05, 0.05, 0.025]
    assert settings.rounds == 20000


@pytest.mark.parametrize(
    ("strategy", "lr", "server_lr"),
    [
        ("fedau", 0.1, 1.0),
        ("average_participating", 0.0562, 1.78),
        ("average_all", 0.1, 10.0),
        ("fedvarp", 0.0562, 1.0),
        ("mifa", 0.0562, 1.0),
        ("known_statistics", 0.0562, 1.0),
    ],
)
def test_rates_of_the_strategies_on_cifar10(strategy: str, lr: float, server_lr: float) -> None:
    """Each strategy has the learning rates that the authors found for it."""
    settings = compose_settings("fedau/cifar10", f"strategy={strategy}").settings
    method: Any = settings.strategy
    assert (settings.client.lr, method.server_lr) == (lr, server_lr)


@dataclass(frozen=True)
class Published:
    """A data set of AAggFF's as its authors' commands have it, or a stand-in for one."""

    cdf: str
    numbers: tuple[float, ...]
    """Rounds, lr, weight decay, lr decay, and every how many rounds."""
    clients: int
    model: Mapping[str, Any]
    metric: str = "accuracy"
    loss: str = "cross_entropy"
    class_weights: str | None = None

    @property
    def strategy(self) -> str:
        """Few clients are all asked; of many there are five a round."""
        return "aaggff_s" if self.clients <= 11 else "aaggff_d"


LOGISTIC = {"name": "logistic_regression"}
M5 = {"name": "m5", "channels": 64, "widening": 4, "padding": 1}
LSTM = {"name": "lstm", "embedding": 200, "hidden": 256, "layers": 2}
AAGGFF = {
    "berka": Published("normal", (100, 1.0, 0.001, 0.99, 10), 7, LOGISTIC, "auroc", "binary"),
    "heart": Published("frechet", (200, 0.01, 0.0, 0.999, 2), 4, LOGISTIC, "auroc", "binary"),
    "mqp": Published(
        "logistic", (100, 0.1, 0.0001, 0.99, 15), 11, {"name": "text"}, "auroc", "binary"
    ),
    "isic": Published(
        "weibull",
        (50, 0.0001, 0.01, 0.95, 5),
        6,
        {"name": "efficientnet", "variant": "b0", "dropout": 0.1, "pretrained": None},
        "top5",
        class_weights="balanced",
    ),
    "celeba": Published(
        "gumbel",
        (3000, 0.1, 0.0001, 0.96, 300),
        9343,
        {"name": "celeba_cnn", "variant": "aaggff"},
        loss="binary",
    ),
    "reddit": Published("frechet", (300, 7.5, 0.000001, 0.95, 20), 817, LSTM),
    "speech": Published("weibull", (500, 0.1, 0.0, 0.999, 10), 2005, M5, "top5"),
    "mnist_writers": Published(
        "gumbel", (3000, 0.1, 0.0001, 0.96, 300), 539, {"name": "small_cnn", "hidden": [128]}
    ),
    "shakespeare": Published("frechet", (300, 7.5, 0.000001, 0.95, 20), 256, LSTM),
    "spoken_digits": Published("weibull", (100, 0.1, 0.0, 0.999, 10), 6, M5),
}


@pytest.mark.parametrize("name", AAGGFF)
def test_aaggff_presets(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One local epoch, batches of 20, xavier, and the authors' rates, losses and networks."""
    published = AAGGFF[name]
    monkeypatch.setenv("FEDQUORUM_DATA", "/aaggff")
    settings = compose_settings(f"aaggff/{name}", "seed=77").settings
    strategy, data = vars(settings.strategy), vars(settings.data)
    client, model = settings.client, asdict(settings.model)
    assert (strategy["name"], strategy["cdf"]) == (published.strategy, published.cdf)
    decay = client.lr_decay, client.lr_decay_every
    assert (settings.rounds, client.lr, client.weight_decay, *decay) == published.numbers
    assert (client.local_epochs, client.batch_size, client.lr_schedule) == (1, 20, "step")
    assert (client.loss, client.class_weights) == (published.loss, published.class_weights)
    assert settings.evaluation.metric == published.metric
    assert model["init"] == "xavier"
    assert model.items() >= published.model.items()
    assert (data["priority"], data["num_clients"], data["test_fraction"]) == ("all", None, 0.2)
    assert str(data.get("path") or data.get("root")).startswith("/aaggff")
    assert round(published.clients * strategy["fraction"]) == min(published.clients, 5) or (
        strategy["fraction"] == 1.0
    )


@pytest.mark.parametrize("name", AAGGFF)
@pytest.mark.parametrize("strategy", ["fedavg", "fedau", "aaggff_s", "aaggff_d"])
def test_aaggff_presets_with_other_strategies(name: str, strategy: str) -> None:
    """The distribution is set for AAggFF alone, so that others compare on the same experiment."""
    sampled = AAGGFF[name].strategy == "aaggff_d"
    refused = pytest.raises(SettingsError, match=r"strategy\.fraction must be 1 for AAggFF-S")
    with refused if sampled and strategy == "aaggff_s" else nullcontext():
        experiment = compose_settings(
            f"aaggff/{name}", f"strategy={strategy} model=logistic_regression"
        )
        assert experiment.settings.strategy.name == strategy
    whole = f"strategy={strategy} strategy.fraction=1"
    found = vars(compose_settings(f"aaggff/{name}", whole).settings.strategy).get("cdf")
    assert found == (AAGGFF[name].cdf if strategy.startswith("aaggff") else None)


def test_heart_has_the_columns_of_the_authors() -> None:
    """Without slope, ca, thal and the grade; a cholesterol of 0 stays, gaps become the mean."""
    data = compose_settings("aaggff/heart").settings.data
    assert isinstance(data, CsvSettings)
    assert (data.client_column, data.target) == ("hospital", "target")
    assert data.columns["numbers"] == [
        *("age", "sex", "trestbps", "chol", "fbs", "thalach", "exang", "oldpeak")
    ]
    assert data.columns["categories"] == {"cp": [1, 2, 3, 4], "restecg": [0, 1, 2, None]}
    assert (data.zero_as_missing, data.imputation) == ([], "mean")
