"""Differential privacy by Flower's wrappers: what is clipped, how much noise, for which rules."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedquorum import ComposedStrategy, Population
from fedquorum.flower.codec import (
    NamedArrays,
    Status,
    TrainAnswer,
    decode_arrays,
    encode_arrays,
)
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideAdaptiveClipping, FedAvg
from safetensors.numpy import load_file

from client_app.data import load_data
from conf import SettingsError, compose
from conf.compose import options
from conf.schema.privacy import PrivacySettings
from server_app.build import build_strategy, initial_arrays
from server_app.job import run_in_process
from server_app.privacy import PrivateStrategy, with_privacy
from tests.builders_flower import grid_of, named, scripted_app
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
    return compose("custom", f"strategy=average_all privacy={kind} {words}").settings.privacy


def update(client: int, length: float, **metrics: Any) -> TrainAnswer:
    """Return a client whose update has this L2 norm, in a direction of its own."""
    rng = np.random.default_rng(client)
    direction = rng.normal(size=SIZE)
    moved = START["w"] + length * direction / np.linalg.norm(direction)
    arrays = {"w": moved.astype(np.float32), "b": START["b"].copy()}
    return TrainAnswer(client, Status.DONE, num_examples=10, arrays=arrays, **metrics)


def play(
    strategy: PrivateStrategy,
    fit: Callable[[int], TrainAnswer],
    *,
    nodes: int = 2,
    change: Callable[[list[Message]], list[Message]] = lambda replies: replies,
) -> NamedArrays | None:
    """Play round 1 from START and return the new model."""
    grid = grid_of(scripted_app(4, lambda k, task, arrays: fit(k)), nodes)
    messages = strategy.configure_train(1, encode_arrays(START), ConfigRecord(), grid)
    arrays, _ = strategy.aggregate_train(1, change(list(grid.send_and_receive(messages))))
    return None if arrays is None else decode_arrays(arrays)


def private(kind: str, words: str = "", inner: ComposedStrategy | None = None) -> PrivateStrategy:
    driven = with_privacy(
        inner or named("average_all", EVERYONE), settings(kind, words), encode_arrays(START)
    )
    assert isinstance(driven, PrivateStrategy)
    return driven


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
    composed = compose(experiment.partition("=")[2], f"{overrides} {words}")
    run_in_process(composed, str(directory))


@pytest.mark.parametrize("kind", ["dp_fixed_client", "dp_adaptive_client"])
def test_clients_clip(tmp_path: Path, kind: str) -> None:
    """Real clients, three on a node: no step is longer than the norm, as one of each is not."""
    norm = "initial_clipping_norm" if "adaptive" in kind else "clipping_norm"
    words = f"strategy=average_all rounds=1 engine.num_supernodes=2 privacy={kind}"
    words = f"{words} privacy.noise_multiplier=0 privacy.{norm}=0.01"
    composed = compose("custom", f"{SHORT.partition(' ')[2]} {words}")
    run_in_process(composed, str(tmp_path / "run"))
    data = load_data(composed.settings.data, composed.settings.seed)
    start = decode_arrays(initial_arrays(composed.settings, data))
    end = load_file(tmp_path / "run" / "model.safetensors")
    step = math.sqrt(sum(float(((end[name] - a) ** 2).sum()) for name, a in start.items()))
    assert 0.001 < step <= 0.01 * (1 + 1e-5)


def test_the_server_clips_every_client() -> None:
    """Long updates come down to the norm, short ones stay: the step is their mean."""
    strategy = private("dp_fixed_server", "privacy.noise_multiplier=0 privacy.clipping_norm=2")
    lengths = {0: 100.0, 1: 1.0, 2: 3.0, 3: 0.5}
    got = play(strategy, lambda k: update(k, lengths[k]))
    assert got is not None
    clipped = [update(k, min(2.0, lengths[k])).arrays for k in lengths]
    wanted = np.mean([arrays["w"].astype(np.float64) for arrays in clipped if arrays], axis=0)
    np.testing.assert_allclose(got["w"], wanted, rtol=1e-4, atol=1e-7)
    np.testing.assert_array_equal(got["b"], START["b"])


@pytest.mark.parametrize(
    ("inner", "share"),
    [
        (named("average_all", EVERYONE), 1 / 4),
        (named("average_all", EVERYONE, server_lr=0.5), 1 / 8),
        (named("fedau", EVERYONE, cutoff=3), 3 / 4),
        (named("known_statistics", EVERYONE, rates={0: 1.0, 1: 0.5, 2: 0.2, 3: 1.0}), 5 / 4),
    ],
)
def test_noise_is_scaled_to_the_most_that_one_client_counts(
    inner: ComposedStrategy, share: float
) -> None:
    """Standard deviation noise_multiplier * C * c, with c the largest coefficient of the rule."""
    assert inner.rules.largest_share(4) == pytest.approx(share)
    words = "privacy.noise_multiplier=2 privacy.clipping_norm=0.5"
    got = play(private("dp_fixed_server", words, inner), lambda k: update(k, 1e-6))
    assert got is not None
    assert np.std(got["w"]) == pytest.approx(2 * 0.5 * share, rel=0.05)
    assert abs(np.mean(got["w"])) < 0.05 * share


def test_noise_does_not_follow_from_the_seed(tmp_path: Path) -> None:
    """Two runs of one seed differ: who knows the seed cannot take the noise away."""
    models = []
    for name in ("one", "other"):
        run(tmp_path / name, "strategy=average_all privacy=dp_fixed_server rounds=1")
        models.append(load_file(tmp_path / name / "model.safetensors"))
    assert all(not np.array_equal(models[0][name], models[1][name]) for name in models[0])


def norms_of(strategy: PrivateStrategy, rounds: int, **metrics: float) -> list[float]:
    """Return the clipping norm after each of some rounds with updates of norm 1."""
    norms = []
    for _ in range(rounds):
        play(strategy, lambda k: update(k, 1.0, **metrics))
        norm = getattr(strategy.wrapper, "clipping_norm")  # noqa: B009
        norms.append(float(norm))
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


def test_noise_is_of_the_norm_that_was_clipped_to() -> None:
    """The norm moves after the noise of its round was added, not before."""
    words = "privacy.noise_multiplier=1 privacy.clipped_count_stddev=100 "
    words += "privacy.initial_clipping_norm=2 privacy.clip_norm_lr=1e-9"
    slow = play(private("dp_adaptive_server", words), lambda k: update(k, 1e-6))
    fast = play(
        private("dp_adaptive_server", words.replace("1e-9", "0.02")), lambda k: update(k, 1e-6)
    )
    assert slow is not None
    assert fast is not None
    expected = 2 / 4 / math.sqrt(1 - 1 / 200**2)
    assert np.std(slow["w"]) == pytest.approx(expected, rel=0.05)
    assert np.std(fast["w"]) == pytest.approx(expected, rel=0.05)


def test_flower_still_moves_the_norm_the_other_way() -> None:
    """Why there is a wrapper of our own: should Flower change this, ours must go."""
    plain = DifferentialPrivacyServerSideAdaptiveClipping(FedAvg(), 0.0, 4, 0.5)
    plain._geometric_update(1.0)
    assert plain.clipping_norm < 0.5


def test_what_cannot_be_used_stops_nothing() -> None:
    """Errors, NaN, other shapes, updates of zero: rejected as ever, and the others count."""

    def fit(client: int) -> TrainAnswer:
        if client == 1:
            return TrainAnswer(1, Status.FAILED, reason="no memory")
        if client == 2:
            arrays = {"w": np.full(SIZE, np.nan, dtype=np.float32), "b": START["b"]}
            return TrainAnswer(2, Status.DONE, num_examples=10, arrays=arrays)
        if client == 3:
            return TrainAnswer(3, Status.DONE, num_examples=10, arrays=dict(START))
        return update(0, 5.0)

    inner = named("average_all", EVERYONE)
    words = "privacy.noise_multiplier=0 privacy.clipping_norm=1"
    got = play(private("dp_fixed_server", words, inner), fit)
    assert got is not None
    assert np.linalg.norm(got["w"]) == pytest.approx(1 / 4, rel=1e-4)
    decisions = [(d.status, d.reason) for d in inner.outcome.report.decisions]
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

    def fit(client: int) -> TrainAnswer:
        if client == 1:
            raise RuntimeError("broke")
        return update(client, 5.0)

    inner = named("average_all", EVERYONE)
    words = "privacy.noise_multiplier=0 privacy.clipping_norm=1"
    got = play(private("dp_fixed_server", words, inner), fit, nodes=4, change=change)
    assert got is not None
    assert np.linalg.norm(got["w"]) == pytest.approx(np.linalg.norm([0.25, 0.25]), rel=0.05)
    statuses = [d.status for d in inner.outcome.report.decisions]
    assert statuses == ["rejected", "failed", "trained", "trained"]


def test_a_client_that_does_not_say_whether_it_clipped_does_not_count() -> None:
    """Client-side adaptive clipping needs every client's bit."""
    inner = named("average_all", EVERYONE)
    strategy = private("dp_adaptive_client", "privacy.noise_multiplier=0", inner)
    play(strategy, lambda k: update(k, 0.1, **({"norm_bit": 0.0} if k else {})))
    first, *others = inner.outcome.report.decisions
    assert (first.status, first.reason) == (
        "failed",
        "norm_bit is missing: its update may not be clipped",
    )
    assert {d.status for d in others} == {"trained"}


def test_a_reply_of_nobody_does_not_count() -> None:
    """A reply without a client id is for a strategy without privacy."""

    def change(replies: list[Message]) -> list[Message]:
        for reply in replies:
            del reply.content.metric_records["metrics"]["client-id"]
        return replies

    inner = named("average_all", EVERYONE)
    strategy = private("dp_fixed_server", "", inner)
    assert play(strategy, lambda k: update(k, 1.0), nodes=4, change=change) is None
    assert inner.outcome.report.admitted == 0


def test_a_round_without_updates_leaves_the_model() -> None:
    """Nothing is released, so nothing is added."""
    silent = lambda k: TrainAnswer(k, Status.UNAVAILABLE)  # noqa: E731
    inner = named("average_all", EVERYONE)
    assert play(private("dp_fixed_server", "", inner), silent) is None
    assert inner.outcome.report.count("unavailable") == 4


# c of the 20 clients below, with fedau's cutoff of 50 and everybody always there.
SHARES = {"average_all": 1 / 20, "known_statistics": 1 / 20, "fedau": 50 / 20}


@pytest.mark.parametrize("strategy", sorted(SHARES))
def test_rules_that_bound_what_one_client_counts(strategy: str) -> None:
    """The most that one update can count is known, and updates come one by one."""
    words = f"strategy={strategy} privacy=dp_fixed_server"
    if strategy == "fedau":
        words += " strategy.cutoff=50"
    composed = compose("custom", words).settings
    built = build_strategy(composed, Population.of(20, {0}), [1.0] * 20)
    assert built.rules.largest_share(20) == SHARES[strategy]
    assert not built.communication.partial_aggregation


@pytest.mark.parametrize("strategy", sorted({*options("strategy")} - SHARES.keys()))
def test_all_other_rules_say_why_they_cannot_be_private(strategy: str) -> None:
    """Refused with the reason that the rules declare, custom ones when they are imported."""
    words = f"strategy={strategy} privacy=dp_fixed_server"
    if strategy == "custom":
        words += " strategy.path=fedquorum.weighting.LossPower"
    message = f"privacy must be none with strategy={strategy} ("

    def built() -> ComposedStrategy:
        return build_strategy(compose("custom", words).settings, Population.of(20, {0}), None)

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
        compose("custom", f"privacy=dp_fixed_server {words}")


def test_noise_that_the_count_cannot_have() -> None:
    """Adaptive clipping spends some of the privacy on a count, whose noise is limited."""
    with pytest.raises(SettingsError, match=r"privacy\.noise_multiplier must be less than 0\.4"):
        private("dp_adaptive_server", "privacy.noise_multiplier=0.4")


def test_models_with_whole_numbers_are_refused() -> None:
    """Counters, as of batch normalisation, cannot be clipped."""
    model = encode_arrays({"w": np.zeros(2, dtype=np.float32), "count": np.array(3)})
    with pytest.raises(SettingsError, match=r"privacy must be none for a model with whole numbers"):
        with_privacy(named("average_all", EVERYONE), settings("dp_fixed_server"), model)
