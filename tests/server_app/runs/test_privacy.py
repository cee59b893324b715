"""Test differentially private runs: clipping, noise, supported rules, and privacy cost."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedquorum import ComposedStrategy, NativeProtocol, Population
from fedquorum.client.availability import Sine
from fedquorum.client.availability.rates import ParticipationRates
from fedquorum.errors import ParameterError, RunError
from fedquorum.flower.codec import (
    NamedArrays,
    Status,
    TrainResult,
    TrainTask,
    decode_arrays,
    encode_arrays,
    encode_train_reply,
)
from fedquorum.flower.protocol import StandardProtocol
from fedquorum.flower.round import start_round
from fedquorum.records.reader import load_run
from fedquorum.report.seed_groups import group_runs
from fedquorum.report.tables import build_privacy_table
from fedquorum.rules.description import Goal
from fedquorum.rules.types import ClientReports
from fedquorum.server.privacy import GaussianMechanism
from fedquorum.server.state import ServerState
from flwr.app import Message, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideAdaptiveClipping, FedAvg
from rich.console import Console
from safetensors.numpy import load_file

from client_app.data import load_data
from conf import SettingsError, compose_settings
from conf.compose import options
from conf.schema.privacy import PrivacySettings
from server_app.runs.build import build_initial_arrays, build_strategy
from server_app.runs.display import DisplaySpec, RunTotals, build_final_table
from server_app.runs.job import run_in_process
from server_app.runs.privacy import (
    PrivacySpent,
    build_mechanism,
    check_private_model,
    compute_privacy_spent,
)
from tests.builders_flower import (
    ScriptedGrid,
    build_named_strategy,
    evaluate_round,
    make_grid,
    make_scripted_app,
    make_train_result,
    train_round,
)
from tests.integration.conftest import assert_same_rounds

SIZE = 20_000
START: NamedArrays = {
    "w": np.zeros(SIZE, dtype=np.float32),
    "b": np.full(3, 0.5, dtype=np.float32),
}
EVERYONE = Population((0, 1, 2, 3), frozenset({0}))
SHORT = "experiment=custom rounds=3 data.num_clients=6 data.num_priority=2 data.sizes=equal "
SHORT += "data.samples_per_client=60 client.local_epochs=1"
PRIVATE = {
    "average_all": "strategy=average_all",
    "fedau": "strategy=fedau strategy.cutoff=3 availability=bernoulli availability.p=0.6",
    "known_statistics": "strategy=known_statistics availability=bernoulli availability.p=0.6",
}
KINDS = ("dp_fixed_server", "dp_fixed_client", "dp_adaptive_server", "dp_adaptive_client")


def build_settings(kind: str, overrides: str = "") -> PrivacySettings:
    return compose_settings(
        "custom", f"strategy=average_all privacy={kind} {overrides}"
    ).settings.privacy


def make_update(client: int, length: float, **metrics: Any) -> TrainResult:
    """Return a client's result whose update has this L2 norm and a random direction."""
    rng = np.random.default_rng(client)
    direction = rng.normal(size=SIZE)
    weights = START["w"] + length * direction / np.linalg.norm(direction)
    arrays = {"w": weights.astype(np.float32), "b": START["b"].copy()}
    return TrainResult(client, Status.DONE, num_examples=10, arrays=arrays, **metrics)


def play_round(
    strategy: ComposedStrategy,
    fit: Callable[[int], TrainResult],
    *,
    nodes: int = 2,
    change: Callable[[list[Message]], list[Message]] = lambda replies: replies,
    start: NamedArrays = START,
) -> NamedArrays:
    """Play round 1 and return the new model, which a private strategy always has."""
    grid = make_grid(make_scripted_app(4, lambda k, task, arrays: fit(k)), nodes)
    arrays = train_round(strategy, grid, model=encode_arrays(start), change=change)
    assert arrays is not None
    return decode_arrays(arrays)


def build_private(
    kind: str,
    overrides: str = "",
    name: str = "average_all",
    mechanism: GaussianMechanism | None = None,
    **inner: Any,
) -> ComposedStrategy:
    """Build a strategy for the clients EVERYONE, with the mechanism of the settings by default."""
    privacy = mechanism or build_mechanism(build_settings(kind, overrides), 4)
    return build_named_strategy(
        name, EVERYONE, communication=NativeProtocol(privacy=privacy), **inner
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", PRIVATE)
def test_a_huge_norm_without_noise_changes_nothing(
    tmp_path: Path, strategy: str, kind: str
) -> None:
    """Every mechanism gives the rounds of a run without privacy, with several clients a node."""
    norm = "initial_clipping_norm" if "adaptive" in kind else "clipping_norm"
    overrides = f"{PRIVATE[strategy]} engine.num_supernodes=2"
    run(tmp_path / "plain", overrides)
    run(
        tmp_path / "private",
        f"{overrides} privacy={kind} privacy.noise_multiplier=0 privacy.{norm}=1e6",
    )
    assert_same_rounds(tmp_path / "private", tmp_path / "plain")
    models = [load_file(tmp_path / name / "model.safetensors") for name in ("plain", "private")]
    for name, array in models[0].items():
        np.testing.assert_allclose(array, models[1][name], atol=1e-5)


def run(directory: Path, overrides: str) -> None:
    experiment, _, base = SHORT.partition(" ")
    composed = compose_settings(experiment.partition("=")[2], f"{base} {overrides}")
    run_in_process(composed, str(directory))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dp_fixed_client", "dp_adaptive_client"])
def test_clients_clip_their_updates(tmp_path: Path, kind: str) -> None:
    """With real clients, three on a node, the step is not longer than the norm."""
    norm = "initial_clipping_norm" if "adaptive" in kind else "clipping_norm"
    overrides = f"strategy=average_all rounds=1 engine.num_supernodes=2 privacy={kind}"
    overrides = f"{overrides} privacy.noise_multiplier=0 privacy.{norm}=0.01"
    composed = compose_settings("custom", f"{SHORT.partition(' ')[2]} {overrides}")
    run_in_process(composed, str(tmp_path / "run"))
    data = load_data(composed.settings.data, composed.settings.seed)
    start = decode_arrays(build_initial_arrays(composed.settings, data))
    end = load_file(tmp_path / "run" / "model.safetensors")
    step = math.sqrt(sum(float(((end[name] - a) ** 2).sum()) for name, a in start.items()))
    assert 0.001 < step <= 0.01 * (1 + 1e-5)


def test_the_server_clips_every_client() -> None:
    """The step is the mean of the updates, of which long ones are scaled down to the norm."""
    strategy = build_private(
        "dp_fixed_server", "privacy.noise_multiplier=0 privacy.clipping_norm=2"
    )
    lengths = {0: 100.0, 1: 1.0, 2: 3.0, 3: 0.5}
    new_model = play_round(strategy, lambda k: make_update(k, lengths[k]))
    clipped = [make_update(k, min(2.0, lengths[k])).arrays for k in lengths]
    expected = np.mean([arrays["w"].astype(np.float64) for arrays in clipped if arrays], axis=0)
    np.testing.assert_allclose(new_model["w"], expected, rtol=1e-4, atol=1e-7)
    np.testing.assert_array_equal(new_model["b"], START["b"])


RATES = {0: 1.0, 1: 0.5, 2: 0.2, 3: 1.0}


@pytest.mark.parametrize(
    ("name", "options", "share"),
    [
        ("average_all", {}, 1 / 4),
        ("average_all", {"server_lr": 0.5}, 1 / 8),
        ("fedau", {"cutoff": 3}, 3 / 4),
        ("known_statistics", {"rates": RATES}, 5 / 4),
    ],
)
def test_noise_is_scaled_to_the_largest_coefficient(
    name: str, options: dict[str, Any], share: float
) -> None:
    """Its standard deviation is noise_multiplier * C * c, with the rule's largest coefficient c."""
    overrides = "privacy.noise_multiplier=2 privacy.clipping_norm=0.5"
    strategy = build_private("dp_fixed_server", overrides, name, **options)
    assert strategy.rules.compute_max_share(4) == pytest.approx(share)
    new_model = play_round(strategy, lambda k: make_update(k, 1e-6))
    assert np.std(new_model["w"]) == pytest.approx(2 * 0.5 * share, rel=0.05)
    assert abs(np.mean(new_model["w"])) < 0.05 * share


def make_unchanged_result(client: int) -> TrainResult:
    return TrainResult(client, Status.DONE, num_examples=10, arrays=dict(START))


def make_unavailable_result(client: int) -> TrainResult:
    return TrainResult(client, Status.UNAVAILABLE)


def make_nan_result(client: int) -> TrainResult:
    arrays = {"w": np.full(SIZE, np.nan, dtype=np.float32), "b": START["b"]}
    return TrainResult(client, Status.DONE, num_examples=10, arrays=arrays)


@pytest.mark.parametrize("fit", [make_unchanged_result, make_unavailable_result, make_nan_result])
@pytest.mark.parametrize("kind", KINDS)
def test_noise_does_not_depend_on_the_replies(kind: str, fit: Callable[[int], TrainResult]) -> None:
    """With zero updates, no available client or no usable update, the noise is the same."""
    norm = "initial_clipping_norm" if "adaptive" in kind else "clipping_norm"
    overrides = f"privacy.noise_multiplier=0.1 privacy.{norm}=0.5"
    mechanism = build_mechanism(build_settings(kind, overrides), 4)
    assert mechanism is not None
    new_model = play_round(
        build_private(kind, mechanism=mechanism), lambda k: replace(fit(k), norm_bit=0.0)
    )
    deviation = mechanism.update_multiplier * 0.5 / 4
    assert np.std(new_model["w"]) == pytest.approx(deviation, rel=0.05)
    assert not np.array_equal(new_model["b"], START["b"])


@pytest.mark.parametrize("fit", [make_unchanged_result, lambda k: make_update(k, 1e-6)])
def test_buffers_have_noise_for_their_own_step(fit: Callable[[int], TrainResult]) -> None:
    """Buffers step by the whole mean, with noise z C / N; trained arrays have server_lr times it.

    If the weights sum to more than 1, the buffers are not divided by the sum, which would reveal
    the number of clients.
    """
    start = {"w": START["w"], "norm.running_mean": np.zeros(SIZE, dtype=np.float32)}

    def make_result(client: int) -> TrainResult:
        arrays = {"w": (fit(client).arrays or {})["w"], "norm.running_mean": start["w"]}
        return replace(fit(client), arrays=arrays)

    cases: tuple[tuple[str, dict[str, Any], float], ...]
    cases = (("average_all", {}, 0.25), ("fedau", {"cutoff": 40}, 10.0))
    for name, inner, largest in cases:
        overrides = "privacy.noise_multiplier=2 privacy.clipping_norm=0.5"
        strategy = build_private("dp_fixed_server", overrides, name, server_lr=0.1, **inner)
        new_model = play_round(strategy, make_result, start=start)
        assert np.std(new_model["norm.running_mean"]) == pytest.approx(largest, rel=0.05)
        assert np.std(new_model["w"]) == pytest.approx(0.1 * largest, rel=0.05)


def test_noise_makes_no_variance_negative() -> None:
    """Negative values become 0, which reveals nothing more."""
    start = {"w": START["w"], "norm.running_var": np.full(SIZE, 0.01, dtype=np.float32)}

    def make_result(client: int) -> TrainResult:
        return TrainResult(client, Status.DONE, num_examples=10, arrays=start)

    overrides = "privacy.noise_multiplier=2 privacy.clipping_norm=0.5"
    new_model = play_round(build_private("dp_fixed_server", overrides), make_result, start=start)[
        "norm.running_var"
    ]
    assert new_model.min() == 0.0
    assert np.mean(new_model == 0.0) == pytest.approx(0.48, abs=0.02)  # noise of deviation 0.25


def test_arrays_in_another_order_are_clipped_by_name() -> None:
    """The reply has two arrays of the same shape in another order."""
    start = {"w": np.zeros(SIZE, np.float32), "v": np.full(SIZE, 3.0, np.float32)}

    def make_result(client: int) -> TrainResult:
        arrays = {"v": start["v"], "w": start["w"] + np.float32(0.1)}
        return TrainResult(client, Status.DONE, num_examples=10, arrays=arrays)

    overrides = "privacy.noise_multiplier=0 privacy.clipping_norm=0.25"
    new_model = play_round(build_private("dp_fixed_server", overrides), make_result, start=start)
    assert list(new_model) == ["w", "v"]
    np.testing.assert_array_equal(new_model["v"], start["v"])
    assert np.linalg.norm(new_model["w"]) == pytest.approx(0.25, rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_norm_below_the_range_of_float32_counts_as_zero(kind: str) -> None:
    """1e-30 squared is 0 in float32; the round completes, and the update has no effect."""
    start = {"w": np.zeros(SIZE, np.float32)}

    def make_result(client: int) -> TrainResult:
        arrays = {"w": np.full(SIZE, 1e-30, np.float32)}
        return TrainResult(client, Status.DONE, num_examples=10, norm_bit=0.0, arrays=arrays)

    strategy = build_private(kind, "privacy.noise_multiplier=0")
    new_model = play_round(strategy, make_result, start=start)
    assert np.all(np.abs(new_model["w"]) <= 2e-30)
    assert strategy.step_result.report.count("trained") == 4


def collect_tasks(strategy: ComposedStrategy) -> list[TrainTask]:
    """Play two rounds with an evaluation between them; return the tasks of the second round."""
    tasks: list[TrainTask] = []

    def fit(client: int, task: TrainTask, arrays: NamedArrays) -> TrainResult:
        tasks.append(task)
        return make_train_result(client, 0.1)

    grid = make_grid(make_scripted_app(4, fit), 2)
    arrays = train_round(strategy, grid)
    assert arrays is not None
    evaluate_round(strategy, grid, 1, arrays)
    train_round(strategy, grid, 2, arrays)
    return tasks[4:]


def collect_configs(kind: str, length: float, loss: float) -> list[tuple[str, dict[str, str]]]:
    """Return the configs of two private rounds with this update norm and this loss."""

    def fit(client: int, task: TrainTask, arrays: NamedArrays) -> TrainResult:
        return make_update(client, length, loss=loss, norm_bit=float(length > 0.1))

    grid = ScriptedGrid(make_scripted_app(4, fit, dict.fromkeys(range(4), loss)), {}, 2)
    strategy = build_private(kind, "privacy.noise_multiplier=0")
    for server_round in (1, 2):
        arrays = train_round(strategy, grid, server_round, encode_arrays(START))
        assert arrays is not None
        evaluate_round(strategy, grid, server_round, arrays)
    # As strings, since NaN does not equal itself.
    return [
        (kind, {key: str(value) for key, value in config.items()}) for kind, config in grid.sent
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_only_an_adaptive_norm_depends_on_the_data(kind: str) -> None:
    """All other fields of the configs do not; docs/privacy.md lists them."""
    one, other = collect_configs(kind, 0.01, 1.0), collect_configs(kind, 50.0, 7.0)
    different = {
        key
        for (_, config), (_, other_config) in zip(one, other, strict=True)
        for key in config.keys() | other_config.keys()
        if config.get(key) != other_config.get(key)
    }
    assert different == ({"clipping_norm"} if kind == "dp_adaptive_client" else set())
    sent = {key for category, config in one for key in config if category == "train"}
    clipping = {"clipping_norm"} if "client" in kind else set()
    assert sent == clipping | {
        "protocol",
        "server-round",
        "client-id",
        "priority",
        "global-loss",
        "global-accuracy",
        "measures-loss",
    }


def test_protocols_and_rules_without_a_bound_are_refused() -> None:
    """The largest coefficient of a client must be known before the run."""
    mechanism = GaussianMechanism()
    with pytest.raises(ParameterError, match="privacy must be None with StandardProtocol"):
        StandardProtocol(privacy=mechanism)
    with pytest.raises(ParameterError, match=r"privacy must be None .*by its client's data"):
        build_named_strategy("fedavg", 4, communication=NativeProtocol(privacy=mechanism))


def test_the_exact_objective_is_not_sent() -> None:
    """F of the priority clients is evaluated and recorded, but no private round broadcasts it."""
    plain = collect_tasks(build_named_strategy("average_all", EVERYONE))
    assert [task.objective.loss for task in plain] == [1.0] * 4
    strategy = build_private("dp_fixed_server")
    private_tasks = collect_tasks(strategy)
    assert len(private_tasks) == 4
    for task in private_tasks:
        assert math.isnan(task.objective.loss)
        assert math.isnan(task.objective.accuracy)
    assert strategy.step_result.report.objective.loss == 1.0


def test_noise_does_not_follow_from_the_seed(tmp_path: Path) -> None:
    """Two runs with the same seed differ, so a client cannot subtract the noise."""
    models = []
    for name in ("one", "other"):
        run(tmp_path / name, "strategy=average_all privacy=dp_fixed_server rounds=1")
        models.append(load_file(tmp_path / name / "model.safetensors"))
    assert all(not np.array_equal(models[0][name], models[1][name]) for name in models[0])


def play_clipping_norms(strategy: ComposedStrategy, rounds: int, **metrics: float) -> list[float]:
    """Return the clipping norm after each of several rounds with updates of norm 1."""
    norms = []
    for _ in range(rounds):
        play_round(strategy, lambda k: make_update(k, 1.0, **metrics))
        norms.append(float(strategy.get_state()["clipping"]))
    return norms


def test_the_adaptive_norm_approaches_the_quantile() -> None:
    """If all updates have norm 1, it rises from 0.5 by exp(lr / 2) a round, then stays near 1."""
    overrides = (
        "privacy.noise_multiplier=0 privacy.initial_clipping_norm=0.5 privacy.clip_norm_lr=0.5"
    )
    norms = play_clipping_norms(build_private("dp_adaptive_server", overrides), 8)
    assert norms[0] == pytest.approx(0.5 * math.exp(0.25))
    assert 0.7 < norms[-1] < 1.4


def test_the_clients_bits_adapt_the_norm() -> None:
    """With client-side clipping, clients send whether they clipped."""
    overrides = "privacy.noise_multiplier=0 privacy.initial_clipping_norm=0.5"
    clipped = play_clipping_norms(build_private("dp_adaptive_client", overrides), 1, norm_bit=1)
    not_clipped = play_clipping_norms(build_private("dp_adaptive_client", overrides), 1, norm_bit=0)
    assert clipped == [pytest.approx(0.5 * math.exp(0.1))]
    assert not_clipped == [pytest.approx(0.5 * math.exp(-0.1))]


@pytest.mark.parametrize("kind", ["dp_adaptive_server", "dp_adaptive_client"])
@pytest.mark.parametrize("extra", [[0] * 300, [7] * 300, [1] * 300])
def test_only_selected_clients_vote_and_only_once(kind: str, extra: list[int]) -> None:
    """A node adds 300 results to its reply, so its client does not vote and the others decide."""

    def change(replies: list[Message]) -> list[Message]:
        results = [make_update(k, 1e-6, norm_bit=0.0) for k in [0, *extra]]
        replies[0].content = encode_train_reply(results)
        return replies

    overrides = "privacy.noise_multiplier=0 privacy.initial_clipping_norm=0.5"
    strategy = build_private(kind, overrides)
    play_round(strategy, lambda k: make_update(k, 1.0, norm_bit=1.0), nodes=4, change=change)
    # Three votes say that the norm is too small, and at most one says that it is not.
    highest, lowest = (0.5 * math.exp(-0.2 * share / 4) for share in (-1.5, -1.0))
    assert lowest * (1 - 1e-9) <= float(strategy.get_state()["clipping"]) <= highest * (1 + 1e-9)


@pytest.mark.parametrize("bit", [None, math.nan, math.inf, 0.5, -1e9])
def test_a_vote_is_yes_or_no(bit: float | None) -> None:
    """With any other vote the client has failed, and the others decide about the norm."""
    overrides = "privacy.noise_multiplier=0 privacy.initial_clipping_norm=0.5"
    strategy = build_private("dp_adaptive_client", overrides)
    votes = {0: bit, 1: 0.0, 2: 0.0, 3: 1.0}
    play_round(strategy, lambda k: make_update(k, 0.1, norm_bit=votes[k]))
    first, *others = strategy.step_result.report.decisions
    assert first.status == "failed"
    assert first.reason == "norm_bit is missing: its update may not be clipped"
    assert {d.status for d in others} == {"trained"}
    assert float(strategy.get_state()["clipping"]) == pytest.approx(0.5 * math.exp(-0.2 * 0.5 / 4))


def test_the_norm_resumes_from_a_checkpoint() -> None:
    """A strategy restored from a state clips to the same norms."""
    overrides = "privacy.noise_multiplier=0 privacy.initial_clipping_norm=0.5"
    strategy, other = (
        build_private("dp_adaptive_server", overrides),
        build_private("dp_adaptive_server", overrides),
    )
    before = play_clipping_norms(strategy, 2)
    other.restore(strategy.get_state(), START)
    assert play_clipping_norms(strategy, 2) == play_clipping_norms(other, 2) != before


@pytest.mark.parametrize("kind", ["dp_fixed_client", "dp_adaptive_client"])
def test_the_server_clips_again_after_the_clients(kind: str) -> None:
    """The bound on one client does not depend on its own clipping."""
    norm = "initial_clipping_norm" if "adaptive" in kind else "clipping_norm"
    strategy = build_private(kind, f"privacy.noise_multiplier=0 privacy.{norm}=0.25")
    new_model = play_round(
        strategy, lambda k: make_update(k, 100.0 if k == 0 else 0.0, norm_bit=0.0)
    )
    assert np.linalg.norm(new_model["w"]) == pytest.approx(0.25 / 4, rel=1e-4)


def test_noise_follows_the_norm_before_its_adaptation() -> None:
    """The norm is adapted after the noise of its round was added, not before."""
    overrides = "privacy.noise_multiplier=1 privacy.clipped_count_stddev=100 "
    overrides += "privacy.initial_clipping_norm=2 privacy.clip_norm_lr=1e-9"
    slow = play_round(
        build_private("dp_adaptive_server", overrides), lambda k: make_update(k, 1e-6)
    )
    fast = play_round(
        build_private("dp_adaptive_server", overrides.replace("1e-9", "0.02")),
        lambda k: make_update(k, 1e-6),
    )
    expected = 2 / 4 / math.sqrt(1 - 1 / 200**2)
    assert np.std(slow["w"]) == pytest.approx(expected, rel=0.05)
    assert np.std(fast["w"]) == pytest.approx(expected, rel=0.05)


def test_flower_still_adapts_the_norm_in_the_wrong_direction() -> None:
    """The mechanism is therefore not Flower's wrapper, which also uses NumPy's global RNG."""
    plain = DifferentialPrivacyServerSideAdaptiveClipping(FedAvg(), 0.0, 4, 0.5)
    plain._geometric_update(1.0)
    assert plain.clipping_norm < 0.5


def test_unusable_updates_are_rejected_and_others_count() -> None:
    """A failed client and a NaN update are not counted; a zero update is."""

    def fit(client: int) -> TrainResult:
        if client == 1:
            return TrainResult(1, Status.FAILED, reason="no memory")
        return {2: make_nan_result, 3: make_unchanged_result}.get(
            client, lambda k: make_update(k, 5.0)
        )(client)

    overrides = "privacy.noise_multiplier=0 privacy.clipping_norm=1"
    strategy = build_private("dp_fixed_server", overrides)
    new_model = play_round(strategy, fit)
    assert np.linalg.norm(new_model["w"]) == pytest.approx(1 / 4, rel=1e-4)
    decisions = [(d.status, d.reason) for d in strategy.step_result.report.decisions]
    assert decisions == [
        ("trained", None),
        ("failed", "no memory"),
        ("rejected", "array 'w' holds NaN or Inf"),
        ("trained", None),
    ]


def test_error_replies_and_unreadable_replies_do_not_stop_a_round() -> None:
    """Two of four nodes send no valid reply, and the other two count."""

    def change(replies: list[Message]) -> list[Message]:
        replies[0].content = RecordDict()
        return replies

    def fit(client: int) -> TrainResult:
        if client == 1:
            raise RuntimeError("broke")
        return make_update(client, 5.0)

    overrides = "privacy.noise_multiplier=0 privacy.clipping_norm=1"
    strategy = build_private("dp_fixed_server", overrides)
    new_model = play_round(strategy, fit, nodes=4, change=change)
    assert np.linalg.norm(new_model["w"]) == pytest.approx(np.linalg.norm([0.25, 0.25]), rel=0.05)
    statuses = [d.status for d in strategy.step_result.report.decisions]
    assert statuses == ["rejected", "failed", "trained", "trained"]


def test_a_weight_above_the_bound_releases_only_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a rule exceeds its declared bound, the noise would be too small for the update."""
    strategy = build_private("dp_fixed_server", "privacy.noise_multiplier=1e-6")
    monkeypatch.setattr(type(strategy.rules.weighting), "compute_max_share", lambda self, n: 0.1)
    new_model = play_round(strategy, lambda k: make_update(k, 1.0))
    assert np.linalg.norm(new_model["w"]) < 1e-3
    reasons = {d.reason for d in strategy.step_result.report.decisions}
    assert reasons == {"an update would count for more than the noise is made for"}


# c for the 20 clients below, with fedau's cutoff of 50 and all clients always available.
SHARES = {
    "average_all": 1 / 20,
    "known_statistics": 1 / 20,
    "fedau": 50 / 20,
    "empirical": 8 / 20,
}
BOUND = {"fedau": " strategy.cutoff=50", "empirical": " strategy.max_weight=8"}


@pytest.mark.parametrize("strategy", sorted(SHARES))
def test_supported_rules_bound_the_coefficient_of_a_client(strategy: str) -> None:
    """The largest coefficient is known; updates are sent separately and added as they arrive."""
    overrides = f"strategy={strategy} privacy=dp_fixed_server{BOUND.get(strategy, '')}"
    composed = compose_settings("custom", overrides)
    bounded = build_strategy(
        composed, Population.from_size(20, {0}), ParticipationRates(np.ones(20))
    )
    assert bounded.rules.compute_max_share(20) == SHARES[strategy]
    assert bounded.communication.partial_aggregation  # as without privacy
    plan = bounded.rules.plan_round(0, bounded.population, ClientReports())
    context = start_round(
        1,
        plan,
        START,
        {1: plan.clients},
        bounded.communication,
        rules=bounded.rules,
        state=ServerState.initial(bounded.rules, bounded.population),
        memory=None,
        population=bounded.population,
    )
    assert context.known_weights is not None
    assert not context.nodes_aggregate


def test_rates_that_change_with_time_have_no_bound() -> None:
    """Their minimum is not computed, so known_statistics cannot be private."""
    overrides = "strategy=known_statistics privacy=dp_fixed_server availability=sine"
    message = (
        r"privacy must be none with strategy=known_statistics \(the weights have no known bound"
    )
    with pytest.raises(SettingsError, match=message):
        build_strategy(
            compose_settings("custom", overrides),
            Population.from_size(20, {0}),
            ParticipationRates(np.ones(20), Sine()),
        )


@pytest.mark.parametrize("strategy", sorted({*options("strategy")} - SHARES.keys()))
def test_all_other_rules_say_why_they_cannot_be_private(strategy: str) -> None:
    """The error has the reason that the rule declares; a custom rule is imported for it."""
    overrides = f"strategy={strategy} privacy=dp_fixed_server"
    if strategy == "custom":
        overrides += " strategy.path=fedquorum.rules.weighting.QFedAvgWeighting"
    message = f"privacy must be none with strategy={strategy} ("

    def build() -> ComposedStrategy:
        return build_strategy(
            compose_settings("custom", overrides), Population.from_size(20, {0}), None
        )

    with pytest.raises(SettingsError, match=re.escape(message)) as refused:
        build()
    reason = str(refused.value).removeprefix(message).removesuffix("), got dp_fixed_server")
    assert len(reason) > 20


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("strategy=fedau", "privacy must be none with strategy=fedau (with cutoff inf an update"),
        ("strategy=average_all engine.startup_clients=2", "engine.startup_clients must be null"),
        ("strategy=average_all privacy.noise_multiplier=-1", "privacy.noise_multiplier must be"),
        (
            "strategy=average_all privacy.clipping_norm=0",
            "privacy.clipping_norm must be a number >",
        ),
    ],
)
def test_settings_that_break_the_bound_are_refused(overrides: str, message: str) -> None:
    """Composing the settings raises the error."""
    with pytest.raises(SettingsError, match=re.escape(message)):
        compose_settings("custom", f"privacy=dp_fixed_server {overrides}")


def test_a_noise_multiplier_too_large_for_the_count_is_refused() -> None:
    """Adaptive clipping spends part of the privacy on a count, whose noise is limited."""
    with pytest.raises(SettingsError, match=r"^privacy\.noise_multiplier must be less than 0\.4 "):
        build_private("dp_adaptive_server", "privacy.noise_multiplier=0.4")


def test_models_with_whole_numbers_are_refused() -> None:
    """Counters, such as those of batch normalization, cannot be clipped."""
    model = {"w": np.zeros(2, dtype=np.float32), "count": np.array(3)}
    with pytest.raises(
        SettingsError, match=r"^privacy must be none \(whole numbers, as in 'count'"
    ):
        check_private_model(build_settings("dp_fixed_server"), model)
    check_private_model(compose_settings("custom", "strategy=average_all").settings.privacy, model)
    with pytest.raises(ParameterError, match="whole numbers"):
        play_round(build_private("dp_fixed_server"), make_unchanged_result, start=model)


# --- privacy cost -------------------------------------------------------------------------------


@pytest.mark.parametrize(("multiplier", "releases"), [(1.0, 1), (1.0, 30), (4.0, 7), (0.3, 2)])
def test_epsilon_is_that_of_the_librarys_accountants(multiplier: float, releases: int) -> None:
    """It equals the privacy loss distribution's epsilon, and is below Rényi's bound."""
    dp_accounting = pytest.importorskip("dp_accounting")
    spent = PrivacySpent("dp_fixed_server", multiplier, 1e-5, releases)
    exact = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-3)
    bound = dp_accounting.rdp.RdpAccountant()
    for accountant in (exact, bound):
        accountant.compose(dp_accounting.GaussianDpEvent(multiplier), releases)
    assert spent.epsilon == pytest.approx(exact.get_epsilon(1e-5), rel=1e-3)
    assert spent.epsilon < bound.get_epsilon(1e-5)


def test_epsilon_is_0_without_releases_and_infinite_without_noise() -> None:
    """The manifest writes an infinite epsilon as a string."""
    assert PrivacySpent("dp_fixed_server", 1.0, 1e-5).epsilon == 0.0
    spent = PrivacySpent("dp_fixed_server", 0.0, 1e-5).add_release()
    assert spent.epsilon == math.inf
    assert spent.to_dict()["epsilon"] == "inf"


@pytest.mark.parametrize(
    ("overrides", "clients", "delta"),
    [("", 20, 1e-5), ("", 10**6, 2.511886e-7), ("privacy.delta=1e-3", 20, 1e-3)],
)
def test_the_default_delta_depends_on_the_clients(
    overrides: str, clients: int, delta: float
) -> None:
    """It is far below one over the number of clients, unless the settings give another delta."""
    spent = compute_privacy_spent(
        build_settings("dp_fixed_server", overrides), clients, {}, rounds=0
    )
    assert spent is not None
    assert spent.delta == pytest.approx(delta)


def test_a_manifest_with_too_few_releases_is_refused() -> None:
    """A run cannot resume if its releases were not counted, because epsilon would be unknown."""
    uncounted: tuple[dict[str, Any], ...] = (
        {},
        {"privacy": {"releases": 2}},
        {"privacy": {}},
        {"privacy": [3]},
    )
    for manifest in (*uncounted, {"privacy": {"releases": "many"}}):
        with pytest.raises(RunError, match="resume must be a run whose manifest counts"):
            compute_privacy_spent(build_settings("dp_fixed_server"), 20, manifest, rounds=3)
    assert compute_privacy_spent(PrivacySettings(), 20, {}, rounds=3) is None
    resumed = compute_privacy_spent(
        build_settings("dp_fixed_server"), 20, {"privacy": {"releases": 5}}, rounds=3
    )
    assert resumed is not None
    assert resumed.releases == 5


def read_manifest(directory: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((directory / "manifest.json").read_text())
    return manifest


def test_a_run_records_its_privacy_cost(tmp_path: Path) -> None:
    """Manifest, final table and report count every round, also those without available clients."""
    overrides = "strategy=average_all privacy=dp_fixed_server privacy.noise_multiplier=2 "
    overrides += "availability=bernoulli availability.p=0.01"
    run(tmp_path / "run", overrides)
    spent = PrivacySpent("dp_fixed_server", 2.0, 1e-5, 3)
    facts = read_manifest(tmp_path / "run")["privacy"]
    assert facts == spent.to_dict()
    assert facts.items() >= {"releases": 3, "delta": 1e-5, "sampling_rate": 1.0}.items()
    loaded = load_run(tmp_path / "run")
    assert {0} == {record.admitted for record in loaded.rounds}
    text = StringIO()
    totals = reduce(RunTotals.add_round, loaded.rounds, RunTotals())
    spec = DisplaySpec("accuracy", Goal.AVERAGE)
    Console(file=text, width=120).print(build_final_table(totals, "title", spec, loaded.privacy))
    (line,) = [line for line in text.getvalue().splitlines() if "epsilon" in line]
    assert line.split("│")[1].strip() == "epsilon for delta 1e-05"
    assert line.split("│")[-2].strip() == f"{spent.epsilon:.4g}"
    table = build_privacy_table(group_runs([loaded]), "custom")
    ((_, seed, *cells),) = table.rows
    epsilon = f"{spent.epsilon:.6g}"
    assert [seed, *cells] == ["1", "dp_fixed_server", "2", "1", "3", "1e-05", epsilon]
    run(tmp_path / "plain", "strategy=average_all")
    assert "privacy" not in read_manifest(tmp_path / "plain")
    assert build_privacy_table(group_runs([load_run(tmp_path / "plain")]), "custom").rows == ()


@pytest.mark.parametrize("kind", ["dp_fixed_server", "dp_adaptive_client"])
def test_repeated_rounds_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A run interrupted while it sends round 3's model repeats this round after the resume."""
    overrides = f"strategy=average_all privacy={kind} engine.checkpoint_every=2"
    if "adaptive" in kind:
        overrides += " privacy.noise_multiplier=0.2"
    with monkeypatch.context() as patch:

        def interrupt_evaluation(self: ComposedStrategy, server_round: int, *others: Any) -> Any:
            if server_round == 3:
                raise KeyboardInterrupt
            return original(self, server_round, *others)

        original = ComposedStrategy.configure_evaluate
        patch.setattr(ComposedStrategy, "configure_evaluate", interrupt_evaluation)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "run", overrides)
    assert read_manifest(tmp_path / "run")["privacy"]["releases"] == 3
    run(tmp_path / "run", f"{overrides} resume={tmp_path / 'run'}")
    manifest = read_manifest(tmp_path / "run")
    assert [entry["round"] for entry in manifest["resumed"]] == [2]
    assert manifest["privacy"]["releases"] == 4
    once = PrivacySpent(kind, manifest["privacy"]["noise_multiplier"], 1e-5, 3)
    assert manifest["privacy"]["epsilon"] > once.epsilon


def test_a_release_is_counted_before_it_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is on the disk, so a run that is killed later has counted it."""
    counted: list[int] = []
    original = ComposedStrategy.configure_evaluate

    def note_releases(self: ComposedStrategy, *args: Any) -> Any:
        counted.append(read_manifest(tmp_path / "run")["privacy"]["releases"])
        return original(self, *args)

    monkeypatch.setattr(ComposedStrategy, "configure_evaluate", note_releases)
    run(tmp_path / "run", "strategy=average_all privacy=dp_fixed_server")
    assert counted == [1, 2, 3]


def test_a_missing_accountant_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install, and comes before the run's folder is created."""
    monkeypatch.setattr("server_app.runs.privacy.find_spec", lambda name: None)
    message = r"privacy must be none where dp-accounting is not installed.*pip install dp-acc"
    with pytest.raises(SettingsError, match=message):
        run(tmp_path / "run", "strategy=average_all privacy=dp_fixed_server")
    assert not (tmp_path / "run").exists()
    run(tmp_path / "run", "strategy=average_all rounds=1")
