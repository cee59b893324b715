"""Differential privacy of runs: what is clipped, how much noise, for which rules, at what cost."""

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
from fedquorum.flower.asked import get_streaming_weights
from fedquorum.flower.codec import (
    NamedArrays,
    Status,
    TrainResult,
    TrainTask,
    decode_arrays,
    encode_arrays,
    encode_train_reply,
)
from fedquorum.flower.standard_protocol import StandardProtocol
from fedquorum.privacy import GaussianMechanism
from fedquorum.records.reader import load_run
from fedquorum.rule import Goal
from fedquorum.types import ClientReports
from flwr.app import Message, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideAdaptiveClipping, FedAvg
from rich.console import Console
from safetensors.numpy import load_file

from client_app.data import load_data
from conf import SettingsError, compose_settings
from conf.compose import options
from conf.schema.privacy import PrivacySettings
from server_app.build import build_initial_arrays, build_strategy
from server_app.display import DisplaySpec, RunTotals, build_final_table
from server_app.job import run_in_process
from server_app.privacy import (
    PrivacySpent,
    build_mechanism,
    check_private_model,
    compute_privacy_spent,
)
from server_app.report.seed_groups import group_runs
from server_app.report.tables import build_privacy_table
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


def settings(kind: str, words: str = "") -> PrivacySettings:
    return compose_settings(
        "custom", f"strategy=average_all privacy={kind} {words}"
    ).settings.privacy


def update(client: int, length: float, **metrics: Any) -> TrainResult:
    """Return a client whose update has this L2 norm, in a direction of its own."""
    rng = np.random.default_rng(client)
    direction = rng.normal(size=SIZE)
    moved = START["w"] + length * direction / np.linalg.norm(direction)
    arrays = {"w": moved.astype(np.float32), "b": START["b"].copy()}
    return TrainResult(client, Status.DONE, num_examples=10, arrays=arrays, **metrics)


def play(
    strategy: ComposedStrategy,
    fit: Callable[[int], TrainResult],
    *,
    nodes: int = 2,
    change: Callable[[list[Message]], list[Message]] = lambda replies: replies,
    start: NamedArrays = START,
) -> NamedArrays:
    """Play round 1 and return the new model; a private strategy has one after every round."""
    grid = make_grid(make_scripted_app(4, lambda k, task, arrays: fit(k)), nodes)
    arrays = train_round(strategy, grid, model=encode_arrays(start), change=change)
    assert arrays is not None
    return decode_arrays(arrays)


def private(
    kind: str,
    words: str = "",
    name: str = "average_all",
    mechanism: GaussianMechanism | None = None,
    **inner: Any,
) -> ComposedStrategy:
    """Return a strategy of the clients EVERYONE, with the mechanism of the settings or another."""
    privacy = mechanism or build_mechanism(settings(kind, words), 4)
    return build_named_strategy(
        name, EVERYONE, communication=NativeProtocol(privacy=privacy), **inner
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", PRIVATE)
def test_without_noise_and_with_a_huge_norm_nothing_changes(
    tmp_path: Path, strategy: str, kind: str
) -> None:
    """Every kind, on several nodes of several clients: the rounds of a run without privacy."""
    norm = "initial_clipping_norm" if "adaptive" in kind else "clipping_norm"
    words = f"{PRIVATE[strategy]} engine.num_supernodes=2"
    run(tmp_path / "plain", words)
    run(
        tmp_path / "private",
        f"{words} privacy={kind} privacy.noise_multiplier=0 privacy.{norm}=1e6",
    )
    assert_same_rounds(tmp_path / "private", tmp_path / "plain")
    models = [load_file(tmp_path / name / "model.safetensors") for name in ("plain", "private")]
    for name, array in models[0].items():
        np.testing.assert_allclose(array, models[1][name], atol=1e-5)


def run(directory: Path, words: str) -> None:
    experiment, _, overrides = SHORT.partition(" ")
    composed = compose_settings(experiment.partition("=")[2], f"{overrides} {words}")
    run_in_process(composed, str(directory))


@pytest.mark.parametrize("kind", ["dp_fixed_client", "dp_adaptive_client"])
def test_clients_clip(tmp_path: Path, kind: str) -> None:
    """Real clients, three on a node: no step is longer than the norm, as one of each is not."""
    norm = "initial_clipping_norm" if "adaptive" in kind else "clipping_norm"
    words = f"strategy=average_all rounds=1 engine.num_supernodes=2 privacy={kind}"
    words = f"{words} privacy.noise_multiplier=0 privacy.{norm}=0.01"
    composed = compose_settings("custom", f"{SHORT.partition(' ')[2]} {words}")
    run_in_process(composed, str(tmp_path / "run"))
    data = load_data(composed.settings.data, composed.settings.seed)
    start = decode_arrays(build_initial_arrays(composed.settings, data))
    end = load_file(tmp_path / "run" / "model.safetensors")
    step = math.sqrt(sum(float(((end[name] - a) ** 2).sum()) for name, a in start.items()))
    assert 0.001 < step <= 0.01 * (1 + 1e-5)


def test_the_server_clips_every_client() -> None:
    """Long updates come down to the norm, short ones stay: the step is their mean."""
    strategy = private("dp_fixed_server", "privacy.noise_multiplier=0 privacy.clipping_norm=2")
    lengths = {0: 100.0, 1: 1.0, 2: 3.0, 3: 0.5}
    got = play(strategy, lambda k: update(k, lengths[k]))
    clipped = [update(k, min(2.0, lengths[k])).arrays for k in lengths]
    wanted = np.mean([arrays["w"].astype(np.float64) for arrays in clipped if arrays], axis=0)
    np.testing.assert_allclose(got["w"], wanted, rtol=1e-4, atol=1e-7)
    np.testing.assert_array_equal(got["b"], START["b"])


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
def test_noise_is_scaled_to_the_most_that_one_client_counts(
    name: str, options: dict[str, Any], share: float
) -> None:
    """Standard deviation noise_multiplier * C * c, with c the largest coefficient of the rule."""
    words = "privacy.noise_multiplier=2 privacy.clipping_norm=0.5"
    strategy = private("dp_fixed_server", words, name, **options)
    assert strategy.rules.compute_max_share(4) == pytest.approx(share)
    got = play(strategy, lambda k: update(k, 1e-6))
    assert np.std(got["w"]) == pytest.approx(2 * 0.5 * share, rel=0.05)
    assert abs(np.mean(got["w"])) < 0.05 * share


def make_unchanged_result(client: int) -> TrainResult:
    return TrainResult(client, Status.DONE, num_examples=10, arrays=dict(START))


def unavailable(client: int) -> TrainResult:
    return TrainResult(client, Status.UNAVAILABLE)


def not_finite(client: int) -> TrainResult:
    arrays = {"w": np.full(SIZE, np.nan, dtype=np.float32), "b": START["b"]}
    return TrainResult(client, Status.DONE, num_examples=10, arrays=arrays)


@pytest.mark.parametrize("fit", [make_unchanged_result, unavailable, not_finite])
@pytest.mark.parametrize("kind", KINDS)
def test_noise_does_not_depend_on_what_comes_back(
    kind: str, fit: Callable[[int], TrainResult]
) -> None:
    """Updates of zero, nobody there, nothing usable: the same noise, and the model moves."""
    norm = "initial_clipping_norm" if "adaptive" in kind else "clipping_norm"
    words = f"privacy.noise_multiplier=0.1 privacy.{norm}=0.5"
    mechanism = build_mechanism(settings(kind, words), 4)
    assert mechanism is not None
    got = play(private(kind, mechanism=mechanism), lambda k: replace(fit(k), norm_bit=0.0))
    deviation = mechanism.update_multiplier * 0.5 / 4
    assert np.std(got["w"]) == pytest.approx(deviation, rel=0.05)
    assert not np.array_equal(got["b"], START["b"])


@pytest.mark.parametrize("fit", [make_unchanged_result, lambda k: update(k, 1e-6)])
def test_running_statistics_have_noise_of_their_step(fit: Callable[[int], TrainResult]) -> None:
    """They move by the whole mean, not by server_lr of it: z C / N, trained arrays server_lr times.

    With weights whose sum is above 1 the statistics are not divided by it, which would tell how
    many clients took part.
    """
    start = {"w": START["w"], "norm.running_mean": np.zeros(SIZE, dtype=np.float32)}

    def answer(client: int) -> TrainResult:
        arrays = {"w": (fit(client).arrays or {})["w"], "norm.running_mean": start["w"]}
        return replace(fit(client), arrays=arrays)

    cases: tuple[tuple[str, dict[str, Any], float], ...]
    cases = (("average_all", {}, 0.25), ("fedau", {"cutoff": 40}, 10.0))
    for name, inner, largest in cases:
        words = "privacy.noise_multiplier=2 privacy.clipping_norm=0.5"
        strategy = private("dp_fixed_server", words, name, server_lr=0.1, **inner)
        got = play(strategy, answer, start=start)
        assert np.std(got["norm.running_mean"]) == pytest.approx(largest, rel=0.05)
        assert np.std(got["w"]) == pytest.approx(0.1 * largest, rel=0.05)


def test_noise_makes_no_variance_negative() -> None:
    """What it would take below 0 becomes 0, which tells nothing more."""
    start = {"w": START["w"], "norm.running_var": np.full(SIZE, 0.01, dtype=np.float32)}

    def answer(client: int) -> TrainResult:
        return TrainResult(client, Status.DONE, num_examples=10, arrays=start)

    words = "privacy.noise_multiplier=2 privacy.clipping_norm=0.5"
    got = play(private("dp_fixed_server", words), answer, start=start)["norm.running_var"]
    assert got.min() == 0.0
    assert np.mean(got == 0.0) == pytest.approx(0.48, abs=0.02)  # noise of deviation 0.25


def test_arrays_in_another_order() -> None:
    """Two arrays of one shape, exchanged in the reply: each is clipped as what it is named."""
    start = {"w": np.zeros(SIZE, np.float32), "v": np.full(SIZE, 3.0, np.float32)}

    def answer(client: int) -> TrainResult:
        arrays = {"v": start["v"], "w": start["w"] + np.float32(0.1)}
        return TrainResult(client, Status.DONE, num_examples=10, arrays=arrays)

    words = "privacy.noise_multiplier=0 privacy.clipping_norm=0.25"
    got = play(private("dp_fixed_server", words), answer, start=start)
    assert list(got) == ["w", "v"]
    np.testing.assert_array_equal(got["v"], start["v"])
    assert np.linalg.norm(got["w"]) == pytest.approx(0.25, rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_an_update_whose_norm_float32_cannot_hold(kind: str) -> None:
    """1e-30 squared is 0 in float32: the round goes on, in which the update counts for nothing."""
    start = {"w": np.zeros(SIZE, np.float32)}

    def answer(client: int) -> TrainResult:
        arrays = {"w": np.full(SIZE, 1e-30, np.float32)}
        return TrainResult(client, Status.DONE, num_examples=10, norm_bit=0.0, arrays=arrays)

    strategy = private(kind, "privacy.noise_multiplier=0")
    got = play(strategy, answer, start=start)
    assert np.all(np.abs(got["w"]) <= 2e-30)
    assert strategy.step_result.report.count("trained") == 4


def collect_tasks(strategy: ComposedStrategy) -> list[TrainTask]:
    """Play two rounds with an evaluation between them; return what each client was told."""
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


def configs_sent(kind: str, length: float, loss: float) -> list[tuple[str, dict[str, str]]]:
    """Return the configs of two private rounds with such updates and such losses."""

    def fit(client: int, task: TrainTask, arrays: NamedArrays) -> TrainResult:
        return update(client, length, loss=loss, norm_bit=float(length > 0.1))

    grid = ScriptedGrid(make_scripted_app(4, fit, dict.fromkeys(range(4), loss)), {}, 2)
    strategy = private(kind, "privacy.noise_multiplier=0")
    for server_round in (1, 2):
        arrays = train_round(strategy, grid, server_round, encode_arrays(START))
        assert arrays is not None
        evaluate_round(strategy, grid, server_round, arrays)
    # As strings, since NaN does not equal itself.
    return [(kind, {key: str(value) for key, value in told.items()}) for kind, told in grid.sent]


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_else_that_is_sent_depends_on_data(kind: str) -> None:
    """Beside the model only a clipping norm that moves does; docs/privacy.md lists all."""
    one, other = configs_sent(kind, 0.01, 1.0), configs_sent(kind, 50.0, 7.0)
    different = {
        key
        for (category, told), (_, told_other) in zip(one, other, strict=True)
        for key in told.keys() | told_other.keys()
        if told.get(key) != told_other.get(key)
    }
    assert different == ({"clipping_norm"} if kind == "dp_adaptive_client" else set())
    sent = {key for category, told in one for key in told if category == "train"}
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


def test_populations_and_protocols_that_are_not_private() -> None:
    """How much one client counts must be known before the run, whoever connects later."""
    mechanism = GaussianMechanism()
    with pytest.raises(ParameterError, match="privacy must be None with StandardProtocol"):
        StandardProtocol(privacy=mechanism)
    with pytest.raises(ParameterError, match=r"privacy must be None .*by its client's data"):
        build_named_strategy("fedavg", 4, communication=NativeProtocol(privacy=mechanism))


def test_the_exact_objective_is_sent_to_nobody() -> None:
    """F of the priority clients is measured, for the records, and no private round tells it."""
    plain = collect_tasks(build_named_strategy("average_all", EVERYONE))
    assert [task.objective.loss for task in plain] == [1.0] * 4
    strategy = private("dp_fixed_server")
    private_tasks = collect_tasks(strategy)
    assert len(private_tasks) == 4
    for task in private_tasks:
        assert math.isnan(task.objective.loss)
        assert math.isnan(task.objective.accuracy)
    assert strategy.step_result.report.objective.loss == 1.0


def test_noise_does_not_follow_from_the_seed(tmp_path: Path) -> None:
    """Two runs of one seed differ: who knows the seed cannot take the noise away."""
    models = []
    for name in ("one", "other"):
        run(tmp_path / name, "strategy=average_all privacy=dp_fixed_server rounds=1")
        models.append(load_file(tmp_path / name / "model.safetensors"))
    assert all(not np.array_equal(models[0][name], models[1][name]) for name in models[0])


def norms_of(strategy: ComposedStrategy, rounds: int, **metrics: float) -> list[float]:
    """Return the clipping norm after each of so many rounds with updates of norm 1."""
    norms = []
    for _ in range(rounds):
        play(strategy, lambda k: update(k, 1.0, **metrics))
        norms.append(float(strategy.get_state()["clipping"]))
    return norms


def test_the_adaptive_norm_moves_to_the_quantile() -> None:
    """All updates have norm 1: from 0.5 it rises by exp(lr / 2) a round, then stays about 1."""
    words = "privacy.noise_multiplier=0 privacy.initial_clipping_norm=0.5 privacy.clip_norm_lr=0.5"
    norms = norms_of(private("dp_adaptive_server", words), 8)
    assert norms[0] == pytest.approx(0.5 * math.exp(0.25))
    assert 0.7 < norms[-1] < 1.4


def test_what_clients_say_moves_the_norm_where_they_clip() -> None:
    """With client-side clipping the norm follows their bits."""
    words = "privacy.noise_multiplier=0 privacy.initial_clipping_norm=0.5"
    clipped = norms_of(private("dp_adaptive_client", words), 1, norm_bit=1)
    not_clipped = norms_of(private("dp_adaptive_client", words), 1, norm_bit=0)
    assert clipped == [pytest.approx(0.5 * math.exp(0.1))]
    assert not_clipped == [pytest.approx(0.5 * math.exp(-0.1))]


@pytest.mark.parametrize("kind", ["dp_adaptive_server", "dp_adaptive_client"])
@pytest.mark.parametrize("extra", [[0] * 300, [7] * 300, [1] * 300])
def test_only_selected_clients_vote_and_only_once(kind: str, extra: list[int]) -> None:
    """One node adds 300 parts to its reply: its client does not vote, and the others decide."""

    def change(replies: list[Message]) -> list[Message]:
        parts = [update(k, 1e-6, norm_bit=0.0) for k in [0, *extra]]
        replies[0].content = encode_train_reply(parts)
        return replies

    words = "privacy.noise_multiplier=0 privacy.initial_clipping_norm=0.5"
    strategy = private(kind, words)
    play(strategy, lambda k: update(k, 1.0, norm_bit=1.0), nodes=4, change=change)
    # Three votes that the norm is too small, and at most one that it is not.
    most, least = (0.5 * math.exp(-0.2 * share / 4) for share in (-1.5, -1.0))
    assert least * (1 - 1e-9) <= float(strategy.get_state()["clipping"]) <= most * (1 + 1e-9)


@pytest.mark.parametrize("bit", [None, math.nan, math.inf, 0.5, -1e9])
def test_a_vote_is_yes_or_no(bit: float | None) -> None:
    """Anything else is none: the client has failed, and the norm follows the others."""
    words = "privacy.noise_multiplier=0 privacy.initial_clipping_norm=0.5"
    strategy = private("dp_adaptive_client", words)
    votes = {0: bit, 1: 0.0, 2: 0.0, 3: 1.0}
    play(strategy, lambda k: update(k, 0.1, norm_bit=votes[k]))
    first, *others = strategy.step_result.report.decisions
    assert first.status == "failed"
    assert first.reason == "norm_bit is missing: its update may not be clipped"
    assert {d.status for d in others} == {"trained"}
    assert float(strategy.get_state()["clipping"]) == pytest.approx(0.5 * math.exp(-0.2 * 0.5 / 4))


def test_the_norm_resumes_from_a_checkpoint() -> None:
    """A strategy restored from a state clips to the same norm."""
    words = "privacy.noise_multiplier=0 privacy.initial_clipping_norm=0.5"
    strategy, other = private("dp_adaptive_server", words), private("dp_adaptive_server", words)
    before = norms_of(strategy, 2)
    other.restore(strategy.get_state(), START)
    assert norms_of(strategy, 2) == norms_of(other, 2) != before


@pytest.mark.parametrize("kind", ["dp_fixed_client", "dp_adaptive_client"])
def test_the_server_clips_what_clients_say_they_clipped(kind: str) -> None:
    """The bound of one client does not rest on its word."""
    norm = "initial_clipping_norm" if "adaptive" in kind else "clipping_norm"
    strategy = private(kind, f"privacy.noise_multiplier=0 privacy.{norm}=0.25")
    got = play(strategy, lambda k: update(k, 100.0 if k == 0 else 0.0, norm_bit=0.0))
    assert np.linalg.norm(got["w"]) == pytest.approx(0.25 / 4, rel=1e-4)


def test_noise_is_of_the_norm_that_was_clipped_to() -> None:
    """The norm moves after the noise of its round was added, not before."""
    words = "privacy.noise_multiplier=1 privacy.clipped_count_stddev=100 "
    words += "privacy.initial_clipping_norm=2 privacy.clip_norm_lr=1e-9"
    slow = play(private("dp_adaptive_server", words), lambda k: update(k, 1e-6))
    fast = play(
        private("dp_adaptive_server", words.replace("1e-9", "0.02")), lambda k: update(k, 1e-6)
    )
    expected = 2 / 4 / math.sqrt(1 - 1 / 200**2)
    assert np.std(slow["w"]) == pytest.approx(expected, rel=0.05)
    assert np.std(fast["w"]) == pytest.approx(expected, rel=0.05)


def test_flower_still_moves_the_norm_the_other_way() -> None:
    """Why the mechanism is not Flower's wrapper; it also draws from NumPy's global generator."""
    plain = DifferentialPrivacyServerSideAdaptiveClipping(FedAvg(), 0.0, 4, 0.5)
    plain._geometric_update(1.0)
    assert plain.clipping_norm < 0.5


def test_what_cannot_be_used_stops_nothing() -> None:
    """Errors, NaN, updates of zero: rejected as ever, and the others count."""

    def fit(client: int) -> TrainResult:
        if client == 1:
            return TrainResult(1, Status.FAILED, reason="no memory")
        return {2: not_finite, 3: make_unchanged_result}.get(client, lambda k: update(k, 5.0))(
            client
        )

    words = "privacy.noise_multiplier=0 privacy.clipping_norm=1"
    strategy = private("dp_fixed_server", words)
    got = play(strategy, fit)
    assert np.linalg.norm(got["w"]) == pytest.approx(1 / 4, rel=1e-4)
    decisions = [(d.status, d.reason) for d in strategy.step_result.report.decisions]
    assert decisions == [
        ("trained", None),
        ("failed", "no memory"),
        ("rejected", "array 'w' holds NaN or Inf"),
        ("trained", None),
    ]


def test_an_error_reply_and_one_that_cannot_be_read() -> None:
    """Two of four nodes send no proper reply: the other two count."""

    def change(replies: list[Message]) -> list[Message]:
        replies[0].content = RecordDict()
        return replies

    def fit(client: int) -> TrainResult:
        if client == 1:
            raise RuntimeError("broke")
        return update(client, 5.0)

    words = "privacy.noise_multiplier=0 privacy.clipping_norm=1"
    strategy = private("dp_fixed_server", words)
    got = play(strategy, fit, nodes=4, change=change)
    assert np.linalg.norm(got["w"]) == pytest.approx(np.linalg.norm([0.25, 0.25]), rel=0.05)
    statuses = [d.status for d in strategy.step_result.report.decisions]
    assert statuses == ["rejected", "failed", "trained", "trained"]


def test_a_weight_above_the_bound_releases_noise_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Should a rule break its word, the noise would be too little for its round."""
    strategy = private("dp_fixed_server", "privacy.noise_multiplier=1e-6")
    monkeypatch.setattr(type(strategy.rules.weighting), "compute_max_share", lambda self, n: 0.1)
    got = play(strategy, lambda k: update(k, 1.0))
    assert np.linalg.norm(got["w"]) < 1e-3
    reasons = {d.reason for d in strategy.step_result.report.decisions}
    assert reasons == {"an update would count for more than the noise is made for"}


# c of the 20 clients below, with fedau's cutoff of 50 and everybody always there.
SHARES = {
    "average_all": 1 / 20,
    "known_statistics": 1 / 20,
    "fedau": 50 / 20,
    "empirical": 8 / 20,
}
BOUND = {"fedau": " strategy.cutoff=50", "empirical": " strategy.max_weight=8"}


@pytest.mark.parametrize("strategy", sorted(SHARES))
def test_rules_that_bound_what_one_client_counts(strategy: str) -> None:
    """The most that one update can count is known, and updates come one by one."""
    words = f"strategy={strategy} privacy=dp_fixed_server{BOUND.get(strategy, '')}"
    composed = compose_settings("custom", words).settings
    built = build_strategy(composed, Population.from_size(20, {0}), ParticipationRates(np.ones(20)))
    assert built.rules.compute_max_share(20) == SHARES[strategy]
    partial = built.communication.partial_aggregation
    assert partial  # as without privacy: but no round is summed at the nodes
    call = built.rules.plan_round(0, built.population, ClientReports())
    weighting = built.rules.weighting.init(built.population)
    assert get_streaming_weights(built.rules, built.communication, weighting, call) is None


def test_rates_that_change_with_time_have_no_bound() -> None:
    """The smallest of them is not looked for, so known_statistics cannot be private."""
    words = "strategy=known_statistics privacy=dp_fixed_server availability=sine"
    message = (
        r"privacy must be none with strategy=known_statistics \(the weights have no known bound"
    )
    with pytest.raises(SettingsError, match=message):
        build_strategy(
            compose_settings("custom", words).settings,
            Population.from_size(20, {0}),
            ParticipationRates(np.ones(20), Sine()),
        )


@pytest.mark.parametrize("strategy", sorted({*options("strategy")} - SHARES.keys()))
def test_all_other_rules_say_why_they_cannot_be_private(strategy: str) -> None:
    """Refused with the reason that the rules declare, custom ones when they are imported."""
    words = f"strategy={strategy} privacy=dp_fixed_server"
    if strategy == "custom":
        words += " strategy.path=fedquorum.weighting.LossPower"
    message = f"privacy must be none with strategy={strategy} ("

    def built() -> ComposedStrategy:
        return build_strategy(
            compose_settings("custom", words).settings, Population.from_size(20, {0}), None
        )

    with pytest.raises(SettingsError, match=re.escape(message)) as refused:
        built()
    reason = str(refused.value).removeprefix(message).removesuffix("), got dp_fixed_server")
    assert len(reason) > 20


@pytest.mark.parametrize(
    ("words", "message"),
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
def test_settings_that_are_not_private(words: str, message: str) -> None:
    """What would break the bound is refused before any work."""
    with pytest.raises(SettingsError, match=re.escape(message)):
        compose_settings("custom", f"privacy=dp_fixed_server {words}")


def test_noise_that_the_count_cannot_have() -> None:
    """Adaptive clipping spends some of the privacy on a count, whose noise is limited."""
    with pytest.raises(SettingsError, match=r"^privacy\.noise_multiplier must be less than 0\.4 "):
        private("dp_adaptive_server", "privacy.noise_multiplier=0.4")


def test_models_with_whole_numbers_are_refused() -> None:
    """Counters, as of batch normalisation, cannot be clipped."""
    model = {"w": np.zeros(2, dtype=np.float32), "count": np.array(3)}
    with pytest.raises(
        SettingsError, match=r"^privacy must be none \(whole numbers, as in 'count'"
    ):
        check_private_model(settings("dp_fixed_server"), model)
    check_private_model(compose_settings("custom", "strategy=average_all").settings.privacy, model)
    with pytest.raises(ParameterError, match="whole numbers"):
        play(private("dp_fixed_server"), make_unchanged_result, start=model)


# --- what it costs ------------------------------------------------------------------------------


@pytest.mark.parametrize(("multiplier", "releases"), [(1.0, 1), (1.0, 30), (4.0, 7), (0.3, 2)])
def test_epsilon_is_that_of_the_librarys_accountants(multiplier: float, releases: int) -> None:
    """Composed by its two accountants: equal to privacy loss distributions, below Rényi's bound."""
    dp_accounting = pytest.importorskip("dp_accounting")
    spent = PrivacySpent("dp_fixed_server", multiplier, 1e-5, releases)
    exact = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-3)
    bound = dp_accounting.rdp.RdpAccountant()
    for accountant in (exact, bound):
        accountant.compose(dp_accounting.GaussianDpEvent(multiplier), releases)
    assert spent.epsilon == pytest.approx(exact.get_epsilon(1e-5), rel=1e-3)
    assert spent.epsilon < bound.get_epsilon(1e-5)


def test_epsilon_of_nothing_and_without_noise() -> None:
    """No release costs nothing, one without noise everything."""
    assert PrivacySpent("dp_fixed_server", 1.0, 1e-5).epsilon == 0.0
    spent = PrivacySpent("dp_fixed_server", 0.0, 1e-5).add_release()
    assert spent.epsilon == math.inf
    assert spent.to_dict()["epsilon"] == "inf"


@pytest.mark.parametrize(
    ("words", "clients", "delta"),
    [("", 20, 1e-5), ("", 10**6, 2.511886e-7), ("privacy.delta=1e-3", 20, 1e-3)],
)
def test_delta(words: str, clients: int, delta: float) -> None:
    """Well below one over the number of clients, unless the settings say another."""
    spent = compute_privacy_spent(settings("dp_fixed_server", words), clients, {}, rounds=0)
    assert spent is not None
    assert spent.delta == pytest.approx(delta)


def test_a_manifest_that_does_not_count_enough() -> None:
    """A run of before, whose releases nobody counted, cannot go on: epsilon would be unknown."""
    uncounted: tuple[dict[str, Any], ...] = (
        {},
        {"privacy": {"releases": 2}},
        {"privacy": {}},
        {"privacy": [3]},
    )
    for manifest in (*uncounted, {"privacy": {"releases": "many"}}):
        with pytest.raises(RunError, match="resume must be a run whose manifest counts"):
            compute_privacy_spent(settings("dp_fixed_server"), 20, manifest, rounds=3)
    assert compute_privacy_spent(PrivacySettings(), 20, {}, rounds=3) is None
    goes_on = compute_privacy_spent(
        settings("dp_fixed_server"), 20, {"privacy": {"releases": 5}}, rounds=3
    )
    assert goes_on is not None
    assert goes_on.releases == 5


def manifest_of(directory: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((directory / "manifest.json").read_text())
    return manifest


def test_a_run_records_what_it_costs(tmp_path: Path) -> None:
    """In the manifest, the final table and the report; of every round, though nobody was there."""
    words = "strategy=average_all privacy=dp_fixed_server privacy.noise_multiplier=2 "
    words += "availability=bernoulli availability.p=0.01"
    run(tmp_path / "run", words)
    spent = PrivacySpent("dp_fixed_server", 2.0, 1e-5, 3)
    facts = manifest_of(tmp_path / "run")["privacy"]
    assert facts == spent.to_dict()
    assert facts.items() >= {"releases": 3, "delta": 1e-5, "sampling_rate": 1.0}.items()
    loaded = load_run(tmp_path / "run")
    assert {0} == {record.admitted for record in loaded.rounds}
    text = StringIO()
    totals = reduce(RunTotals.add_round, loaded.rounds, RunTotals())
    about = DisplaySpec("accuracy", Goal.AVERAGE)
    Console(file=text, width=120).print(build_final_table(totals, "title", about, loaded.privacy))
    (line,) = [line for line in text.getvalue().splitlines() if "epsilon" in line]
    assert line.split("│")[1].strip() == "epsilon for delta 1e-05"
    assert line.split("│")[-2].strip() == f"{spent.epsilon:.4g}"
    table = build_privacy_table(group_runs([loaded]), "custom")
    ((_, seed, *cells),) = table.rows
    epsilon = f"{spent.epsilon:.6g}"
    assert [seed, *cells] == ["1", "dp_fixed_server", "2", "1", "3", "1e-05", epsilon]
    run(tmp_path / "plain", "strategy=average_all")
    assert "privacy" not in manifest_of(tmp_path / "plain")
    assert build_privacy_table(group_runs([load_run(tmp_path / "plain")]), "custom").rows == ()


@pytest.mark.parametrize("kind", ["dp_fixed_server", "dp_adaptive_client"])
def test_rounds_that_are_repeated_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Stopped while the model of round 3 is sent: rounds 1 to 3, and 3 again from a checkpoint."""
    words = f"strategy=average_all privacy={kind} engine.checkpoint_every=2"
    if "adaptive" in kind:
        words += " privacy.noise_multiplier=0.2"
    with monkeypatch.context() as patch:

        def interrupt_evaluation(self: ComposedStrategy, server_round: int, *others: Any) -> Any:
            if server_round == 3:
                raise KeyboardInterrupt
            return original(self, server_round, *others)

        original = ComposedStrategy.configure_evaluate
        patch.setattr(ComposedStrategy, "configure_evaluate", interrupt_evaluation)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "run", words)
    assert manifest_of(tmp_path / "run")["privacy"]["releases"] == 3
    run(tmp_path / "run", f"{words} resume={tmp_path / 'run'}")
    manifest = manifest_of(tmp_path / "run")
    assert [going_on["round"] for going_on in manifest["resumed"]] == [2]
    assert manifest["privacy"]["releases"] == 4
    once = PrivacySpent(kind, manifest["privacy"]["noise_multiplier"], 1e-5, 3)
    assert manifest["privacy"]["epsilon"] > once.epsilon


def test_a_release_counts_before_anybody_is_sent_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the disk: whoever is killed at any moment later has counted it."""
    counted: list[int] = []
    original = ComposedStrategy.configure_evaluate

    def note_releases(self: ComposedStrategy, *args: Any) -> Any:
        counted.append(manifest_of(tmp_path / "run")["privacy"]["releases"])
        return original(self, *args)

    monkeypatch.setattr(ComposedStrategy, "configure_evaluate", note_releases)
    run(tmp_path / "run", "strategy=average_all privacy=dp_fixed_server")
    assert counted == [1, 2, 3]


def test_without_the_accountant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line that says what to install, before there is a run."""
    monkeypatch.setattr("server_app.privacy.find_spec", lambda name: None)
    message = r"privacy must be none where dp-accounting is not installed.*pip install dp-acc"
    with pytest.raises(SettingsError, match=message):
        run(tmp_path / "run", "strategy=average_all privacy=dp_fixed_server")
    assert not (tmp_path / "run").exists()
    run(tmp_path / "run", "strategy=average_all rounds=1")
