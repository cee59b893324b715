"""Settings of the data sets, checked before any data is read."""

import re

import pytest

from conf.compose import compose
from conf.errors import SettingsError
from conf.schema import (
    Cinic10Settings,
    ParticipationSettings,
    PartitionedSettings,
    TorchvisionSettings,
)

PARTITIONED = ("mnist", "fmnist", "emnist", "cifar10", "cifar100", "svhn", "cinic10")


@pytest.mark.parametrize("name", PARTITIONED)
def test_data_sets_and_their_default_partition(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a group of its own name, in shards, and looks where FEDQUORUM_DATA says."""
    monkeypatch.setenv("FEDQUORUM_DATA", "/somewhere")
    data = compose("custom", f"data={name}").settings.data
    assert isinstance(data, TorchvisionSettings | Cinic10Settings)
    assert (data.name, data.partition, data.root) == (name, "shards", "/somewhere")


@pytest.mark.parametrize("name", [*PARTITIONED, "npz"])
def test_dirichlet_partition_of_every_data_set(name: str) -> None:
    """Each can be divided by Dir(alpha), by default Dir(0.1) with all of its rows."""
    words = "data.path=x.npz" if name == "npz" else ""
    data = compose("custom", f"data={name} {words} data.partition=dirichlet").settings.data
    assert isinstance(data, PartitionedSettings)
    assert (data.partition, data.alpha, data.samples_per_client) == ("dirichlet", 0.1, None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("data.partition=iid", "data.partition must be one of shards, dirichlet, got 'iid'"),
        ("data.alpha=0", "data.alpha must be a number > 0, got 0.0"),
        ("data.alpha=nan", "data.alpha must be a number > 0, got nan"),
        ("data.alpha=inf", "data.alpha must be a number > 0, got inf"),
        ("data.samples_per_client=0", "data.samples_per_client must be a whole number >= 1, got 0"),
    ],
)
def test_values_out_of_range(words: str, message: str) -> None:
    """A wrong value is one line with the setting, what is allowed and the value."""
    with pytest.raises(SettingsError, match=f"^{re.escape(message)}$"):
        compose("custom", f"data=fmnist {words}")


def test_settings_of_the_other_partition_do_no_harm() -> None:
    """More samples than a shard has are refused only where there are shards."""
    words = "data=fmnist data.shard_size=5 data.samples_per_shard=6"
    compose("custom", f"{words} data.partition=dirichlet")
    with pytest.raises(SettingsError, match=r"^data\.samples_per_shard must be at most"):
        compose("custom", words)


@pytest.mark.parametrize("name", ["synth", "fmnist"])
def test_priority_of_all(name: str) -> None:
    """``data.priority=all`` is a choice of every data set, and num_priority may be anything."""
    words = f"data={name} data.priority=all data.num_clients=3 data.num_priority=9"
    assert compose("custom", words).settings.data.priority == "all"


def test_unknown_priority() -> None:
    """Another word is refused with the words there are."""
    message = (
        "data.priority must be one of heterogeneous, random, all, or a list of client ids, "
        "got 'everyone'"
    )
    with pytest.raises(SettingsError, match=f"^{re.escape(message)}$"):
        compose("custom", "data.priority=everyone")


@pytest.mark.parametrize("name", ["fmnist", "cifar10", "cifar100", "svhn", "cinic10"])
def test_fedau_presets(name: str) -> None:
    """FedAU's experiments: 250 clients, all with priority, classes by Dir(0.1)."""
    data = compose(f"fedau/{name}").settings.data
    assert isinstance(data, PartitionedSettings)
    assert (data.name, data.num_clients, data.priority) == (name, 250, "all")
    assert (data.partition, data.alpha, data.samples_per_client) == ("dirichlet", 0.1, None)


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
    settings = compose("fedau/cifar10", f"strategy={strategy}").settings
    assert isinstance(settings.strategy, ParticipationSettings)
    assert (settings.client.lr, settings.strategy.server_lr) == (lr, server_lr)
