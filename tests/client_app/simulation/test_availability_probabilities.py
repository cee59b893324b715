"""Test processes and participation probabilities built from settings."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest
from fedquorum.client.availability.periodic import InterleavedSine, PeriodicProcess, Sine, Staircase
from fedquorum.client.availability.probabilities import (
    sample_class_contribution,
    sample_class_rates,
)
from fedquorum.client.availability.processes import (
    Bernoulli,
    Cooldown,
    Cyclic,
    Markov,
    StochasticProcess,
    Trace,
)
from fedquorum.errors import DataError

from client_app.data import ClientData, FederatedData, load_data
from client_app.data.base import Labels, PooledSplit, Split, Target, Targets
from client_app.data.coding.base import Coding
from client_app.data.scaling import AgreedScales
from client_app.data.summary import DataSummary
from client_app.simulation.availability import build_processes, compute_participation_rates
from conf import Settings, SettingsError, compose_settings
from conf.schema.availability import AvailabilitySettings, RandomAvailabilitySettings

CYCLIC = "availability=cyclic availability.p=0.3"


def make_settings(overrides: str) -> Settings:
    return compose_settings(
        "custom", f"data.num_clients=4 data.num_priority=2 {overrides}"
    ).settings


def compute_rates(settings: Settings, data: FederatedData) -> list[float]:
    """Return the share of rounds in which each client is available."""
    rates = compute_participation_rates(settings, data)
    assert rates is not None
    of_clients: list[float] = rates.mean_rates.tolist()
    return of_clients


def make_data(settings: Settings) -> FederatedData:
    return load_data(settings.data, settings.seed)


# --- from the settings -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ("availability=bernoulli availability.p=0.3", Bernoulli(0.3)),
        ("availability=markov availability.p=0.3", Markov(0.3, 0.05)),
        ("availability=markov availability.p=1 availability.max_transition=0.5", Markov(1.0, 0.5)),
        (CYCLIC, Cyclic(0.3, 100, "stationary")),
        ("availability=bernoulli availability.p=0.3 availability.rest=0", Bernoulli(0.3)),
        (
            "availability=bernoulli availability.p=0.2 availability.rest=3",
            Cooldown(Bernoulli(0.2), 3),
        ),
        (
            "availability=staircase availability.p=0.3 availability.period=8 availability.low=0.5",
            PeriodicProcess(0.3, Staircase(period=8, low=0.5)),
        ),
        (
            "availability=sine availability.p=0.3 availability.gamma=0.2 availability.phase=4",
            PeriodicProcess(0.3, Sine(gamma=0.2, phase=4)),
        ),
        (
            "availability=interleaved availability.p=0.3 availability.cut=0.2",
            PeriodicProcess(0.3, InterleavedSine(cut=0.2)),
        ),
        (
            f"{CYCLIC} availability.period=7 availability.start=inactive",
            Cyclic(0.3, 7, "inactive"),
        ),
    ],
)
def test_one_probability_for_all(overrides: str, expected: StochasticProcess) -> None:
    """A number is every client's p, and further settings are the process's parameters."""
    settings = make_settings(overrides)
    process = build_processes(settings, make_data(settings))
    assert process is not None
    assert [process(k) for k in range(4)] == [expected] * 4
    assert compute_rates(settings, make_data(settings)) == [expected.rate] * 4


def test_a_probability_for_each() -> None:
    """A list has the clients' p by client id."""
    settings = make_settings("availability=markov 'availability.p=[0.1, 1, 0.5, 0.02]'")
    process = build_processes(settings, make_data(settings))
    assert process is not None
    assert [process(k) for k in (3, 1)] == [Markov(0.02), Markov(1.0)]
    assert compute_rates(settings, make_data(settings)) == [0.1, 1.0, 0.5, 0.02]


@dataclass(frozen=True)
class OwnLabelsOnly:
    """Data that reveals the labels of only one client."""

    data: FederatedData
    visible: int

    def get_targets(self, client: int) -> tuple[Targets, Targets]:
        raise AssertionError("test labels are not needed")

    @property
    def num_clients(self) -> int:
        return self.data.num_clients

    @property
    def summary(self) -> DataSummary:
        return self.data.summary

    @property
    def coding(self) -> Coding:
        return self.data.coding

    @property
    def client_names(self) -> tuple[str, ...] | None:
        return self.data.client_names

    @property
    def class_names(self) -> tuple[str, ...] | None:
        return self.data.class_names

    @cached_property
    def priority(self) -> tuple[int, ...]:
        raise AssertionError("who has priority is not the client's to know")

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.data.input_shape

    @property
    def num_classes(self) -> int:
        return self.data.num_classes

    @property
    def num_tokens(self) -> int | None:
        return self.data.num_tokens

    @property
    def scales(self) -> AgreedScales:
        return self.data.scales

    @property
    def target(self) -> Target:
        return self.data.target

    def get_labels(self, client: int) -> Labels:
        assert client == self.visible
        return self.data.get_labels(client)

    def get_client(self, client: int) -> ClientData:
        raise AssertionError("inputs are not needed")

    def get_pooled_split(self, split: Split, clients: Sequence[int]) -> PooledSplit:
        raise AssertionError("inputs are not needed")


def test_correlated_by_default() -> None:
    """Without p the formula gives it, from the client's labels and the seed."""
    words = "availability=bernoulli seed=5 availability.mean=0.3 availability.minimum=0.05"
    settings = make_settings(f"{words} availability.class_alpha=0.2")
    data = make_data(settings)
    q = sample_class_contribution(5, 10, 0.2)
    expected = []
    for client in range(4):
        labels = data.get_client(client).y_train
        dot = sum(q[c] * (labels == c).sum() / len(labels) for c in range(10))
        expected.append(min(max(0.3 * 10 * dot, 0.05), 1.0))
        process = build_processes(settings, OwnLabelsOnly(data, client))
        assert process is not None
        law = process(client)
        assert isinstance(law, Bernoulli)
        assert law.p == pytest.approx(expected[client], rel=1e-12)
    assert compute_rates(settings, data) == pytest.approx(expected, rel=1e-12)
    assert len(set(expected)) > 1


@pytest.mark.parametrize(("words", "minimum"), [("availability.minimum=0", 0.0), ("", 0.02)])
def test_class_rates(words: str, minimum: float) -> None:
    """FedAWE's: <nu_k, phi>, the second half of the classes half as often; the same for a seed."""
    settings = make_settings(f"availability=sine availability.p=class_rates seed=5 {words}")
    data = make_data(settings)
    phi = sample_class_rates(5, 10)
    expected = []
    for client in range(4):
        labels = data.get_client(client).y_train
        share = [float((labels == c).mean()) for c in range(10)]
        expected.append(max(sum(s * r for s, r in zip(share, phi, strict=True)), minimum))
    rates = compute_participation_rates(settings, data)
    assert rates is not None
    assert rates.p.tolist() == pytest.approx(expected, rel=1e-12)
    assert rates.mean_rates.tolist() == pytest.approx([0.7 * p for p in expected], rel=1e-12)
    process = build_processes(settings, OwnLabelsOnly(data, 2))
    assert process is not None
    assert process(2) == PeriodicProcess(rates.p.tolist()[2], Sine())


def test_cyclic_rates_are_the_realized_ones() -> None:
    """2 of 100 rounds is a rate of 0.02, also for p = 0.025."""
    settings = make_settings("availability=cyclic availability.p=0.025")
    assert compute_rates(settings, make_data(settings)) == [0.02] * 4


def test_always() -> None:
    """By default there is no process, and all probabilities are 1."""
    settings = make_settings("")
    assert settings.availability.name == "always"
    assert build_processes(settings, make_data(settings)) is None
    assert compute_rates(settings, make_data(settings)) == [1.0] * 4


def test_trace(tmp_path: Path) -> None:
    """A trace gives each client its rounds, none to one that is not in it; no probabilities."""
    path = tmp_path / "who.csv"
    path.write_text("round,client,available\n1,0,1\n3,0,1\n2,1,0\n")
    settings = make_settings(f"availability=trace 'availability.path={path}'")
    process = build_processes(settings, make_data(settings))
    assert process is not None
    assert process(0) == Trace(frozenset({1, 3}))
    assert process(1) == process(2) == Trace(frozenset())
    assert compute_participation_rates(settings, make_data(settings)) is None


def test_a_missing_trace_is_found_at_once(tmp_path: Path) -> None:
    """A missing trace raises immediately, not at the first client."""
    settings = make_settings(f"availability=trace 'availability.path={tmp_path / 'none.csv'}'")
    with pytest.raises(DataError, match=r"none\.csv: No such file"):
        build_processes(settings, make_data(settings))
    assert compute_participation_rates(settings, make_data(settings)) is None  # a server has none


@pytest.mark.parametrize(
    "schema", [AvailabilitySettings(name="x"), RandomAvailabilitySettings(name="x", p=0.5)]
)
def test_settings_without_a_process(schema: AvailabilitySettings) -> None:
    """A schema that nothing implements is no silent default."""
    settings = make_settings("")
    data = make_data(settings)
    changed = Settings(**{**vars(settings), "availability": schema})
    with pytest.raises(TypeError, match="no availability process for"):
        compute_participation_rates(changed, data)


P = (
    r"availability\.p must be null, class_rates, a number > 0 and <= 1, or a list of one for each "
    "of the 20"
)
MISTAKES = {
    "availability=often": "availability must be one of always, bernoulli, cyclic, .* got 'often'",
    "availability=bernoulli availability.p=0": P + " clients, got 0$",
    "availability=bernoulli availability.p=1.5": P + " clients, got 1.5$",
    "availability=bernoulli availability.p=x": P + " clients, got 'x'$",
    "availability=bernoulli availability.p=true": P + " clients, got True$",
    "availability=bernoulli 'availability.p=[0.5, 0.5]'": P + r" clients, got \[0.5, 0.5\]$",
    "availability=bernoulli 'availability.p={0: 0.5}'": P,
    "data.num_clients=2 data.num_priority=1 availability=markov 'availability.p=[0.5, 0]'": (
        r"availability\.p\[1\] must be a number > 0 and <= 1, got 0$"
    ),
    "availability=bernoulli availability.mean=0": "availability.mean must be a number > 0 and <= 1",
    "availability=markov availability.minimum=2": "availability.minimum must be a number >= 0 and",
    "availability=cyclic availability.class_alpha=0": "availability.class_alpha must be a number >",
    "availability=markov availability.max_transition=0": "availability.max_transition must be a nu",
    "availability=cyclic availability.period=1": "availability.period must be a whole number >= 2",
    "availability=cyclic availability.period=1.5": "availability.period must be a whole number, go",
    "availability=staircase availability.period=7": "availability.period must be an even whole num",
    "availability=staircase availability.low=2": "availability.low must be a number >= 0 and <= 1,",
    "availability=sine availability.gamma=0.6": "availability.gamma must be a number >= 0 and <= 0",
    "availability=sine availability.phase=-1": "availability.phase must be a whole number >= 0, go",
    "availability=interleaved availability.cut=-1": "availability.cut must be a number >= 0 and <=",
    "availability=bernoulli availability.rest=-1": "availability.rest must be a whole number >= 0",
    "availability=markov availability.rest=3": "availability.rest is not a setting; availability h",
    "availability=cyclic availability.start=now": "availability.start must be one of stationary, i",
    "availability=trace": "availability.path must be the path of a CSV file with the columns roun",
    "availability=bernoulli availability.period=9": "availability.period is not a setting; availab",
    "availability.p=0.5": "availability.p is not a setting; availability has name, got 'p'",
}


@pytest.mark.parametrize("overrides", MISTAKES)
def test_mistakes_are_one_line(overrides: str) -> None:
    """The error names the setting, the allowed values and the given one, before any work."""
    with pytest.raises(SettingsError, match=MISTAKES[overrides]) as caught:
        compose_settings("", overrides)
    assert "\n" not in str(caught.value)
