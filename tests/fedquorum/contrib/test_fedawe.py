"""FedAWE: every client continues from its last model, and its update echoes the missed rounds."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedquorum import ComposedStrategy, NativeProtocol, Population, Robustness
from fedquorum.contrib.fedawe import (
    ClientStartModels,
    FedAWEState,
    FedAWEWeighting,
    ModelHistory,
    clip_by_norm,
    compute_mean_start_model,
)
from fedquorum.errors import ParameterError, RunError, StateError
from fedquorum.flower.codec import (
    NamedArrays,
    Status,
    TrainResult,
    TrainTask,
    decode_arrays,
    encode_arrays,
)
from fedquorum.rules.composition import RuleSet, UpdateMemoryConfig
from fedquorum.rules.hooks import Hooks
from fedquorum.rules.participation import FedAUCorrection
from fedquorum.rules.selection import AllClients, EpsilonGate, PriorityOnly
from fedquorum.rules.server_optimizer import SGD, Momentum
from fedquorum.rules.state_arrays import expand_state
from fedquorum.rules.types import RoundPlan
from fedquorum.rules.weighting import AverageParticipating
from fedquorum.server.privacy import GaussianMechanism
from flwr.app import ArrayRecord

from tests.builders import decide_first_round, make_participants, weigh_rounds
from tests.builders_flower import (
    ScriptedGrid,
    build_named_strategy,
    make_grid,
    make_scripted_app,
    train_round,
)
from tests.reference import fedawe

N = 6
START: NamedArrays = {"w": np.array([1.0, -2.0, 0.5])}
TARGETS = np.random.default_rng(7).normal(size=(N, 3))
PRESENT = [
    [k for k in range(N) if present[k]]
    for present in np.random.default_rng(3).random((25, N)) < 0.3
]
"""The present clients by round: sometimes none, and client 3 first in about round 9."""


def step_toward_target(client: int, arrays: NamedArrays, lr: float = 0.1) -> NamedArrays:
    """Return a model after one step on |x - u_k|^2 / 2."""
    return {"w": arrays["w"] - lr * (arrays["w"] - TARGETS[client])}


def make_result(client: int, arrays: NamedArrays) -> TrainResult:
    return TrainResult(client, Status.DONE, num_examples=10, arrays=arrays)


def make_unavailable(client: int) -> TrainResult:
    return TrainResult(client, Status.UNAVAILABLE)


@dataclass
class StrategyRun:
    """Rounds of a strategy: w_t and xbar after each, and the echo of each counted client."""

    strategy: ComposedStrategy
    model: ArrayRecord = field(default_factory=lambda: encode_arrays(START))
    models: list[bytes] = field(default_factory=list)
    means: list[list[float]] = field(default_factory=list)
    echoes: list[dict[int, float]] = field(default_factory=list)
    clients: Mapping[int, TrainResult] = field(default_factory=dict)

    def run_rounds(
        self, present: Sequence[Collection[int]], nodes: int = 2, first: int = 1
    ) -> "StrategyRun":
        """Run these rounds; ``clients`` has results that replace training."""

        def fit(client: int, task: TrainTask, arrays: NamedArrays) -> TrainResult:
            if client not in present[task.server_round - first]:
                return make_unavailable(client)
            return self.clients.get(client) or make_result(
                client, step_toward_target(client, arrays)
            )

        grid = make_grid(make_scripted_app(N, fit), nodes)
        for number in range(first, first + len(present)):
            self.model = train_round(self.strategy, grid, number, self.model) or self.model
            self._record_round()
        return self

    def _record_round(self) -> None:
        self.models.append(self.w.tobytes())
        mean = self.strategy.compute_mean_start_model(self.model)
        assert mean is not None
        self.means.append(decode_arrays(mean)["w"].tolist())
        decisions = self.strategy.step_result.report.decisions
        self.echoes.append(
            {d.client: float(d.participation_correction or 0) for d in decisions if d.weight != 0.0}
        )

    @property
    def w(self) -> Any:
        return decode_arrays(self.model)["w"]


def build_strategy(**options: Any) -> ComposedStrategy:
    return build_named_strategy("fedawe", N, **options)


# --- against the paper's algorithm, and its reductions ---------------------------------------


@pytest.mark.parametrize("nodes", [1, 6])
@pytest.mark.parametrize(
    "options",
    [{}, {"clip": 0.3}, {"echo_cap": 3}, {"server_lr": 0.5}, {"clip": 0.2, "server_lr": 2.0}],
    ids=str,
)
def test_the_rule_matches_models_that_stay_on_the_devices(
    options: Mapping[str, Any], nodes: int
) -> None:
    """Algorithm 1 has x_k and tau_k on the clients: every model, mean and echo is the same."""
    other = fedawe.Federation(START["w"].tolist(), N, **options)
    got = StrategyRun(build_strategy(**options))

    def train(client: int, t: int, x: list[float]) -> list[float]:
        return [float(v) for v in step_toward_target(client, {"w": np.array(x)})["w"]]

    for t, present in enumerate(PRESENT, 1):
        expected = other.run_round(present, train)
        got.run_rounds([present], nodes, first=t)
        np.testing.assert_allclose(got.w, other.w, atol=1e-9)
        np.testing.assert_allclose(got.means[-1], other.mean, atol=1e-9)
        assert got.echoes[-1] == expected
    assert max(max(each.values(), default=0) for each in got.echoes) >= 3


def test_two_clients_with_a_rarely_available_one() -> None:
    """FedAvg ends near the other client, FedAWE's mean over clients in the middle, w_t nearly."""
    found = fedawe.run_two_clients(0.01, 40_000)
    assert found.mean == pytest.approx(50.0, abs=0.05)
    assert found.w == pytest.approx(47.5, abs=0.3)
    assert found.fedavg == pytest.approx(5.97, abs=0.5)


def test_full_participation_is_the_average_of_the_participants() -> None:
    """All clients start from w_t with echo 1: equal to the bit, as is the mean over clients."""
    all_clients = [range(N)] * 5
    got = StrategyRun(build_strategy()).run_rounds(all_clients)

    def fit(client: int, task: TrainTask, arrays: NamedArrays) -> TrainResult:
        return make_result(client, step_toward_target(client, arrays))

    other, model = build_named_strategy("average_participating", N), encode_arrays(START)
    grid = make_grid(make_scripted_app(N, fit), 3)
    for number in range(1, 6):
        model = train_round(other, grid, number, model) or model
        assert decode_arrays(model)["w"].tobytes() == got.models[number - 1]
    np.testing.assert_array_equal(got.means[-1], got.w)
    assert other.compute_mean_start_model(model) is None


def test_any_number_of_nodes_gives_the_same_bits() -> None:
    """Sharing a message with clients that start from other models has no effect."""
    first, *others = (
        StrategyRun(build_strategy()).run_rounds(PRESENT, nodes).models for nodes in (1, 2, 6)
    )
    assert all(models == first for models in others)


def test_the_echoes_of_a_client_sum_to_the_rounds() -> None:
    """Proposition 1: up to the last round in which the client took part."""
    echoes = StrategyRun(build_strategy()).run_rounds(PRESENT).echoes
    for client in range(N):
        last = max(t for t, each in enumerate(echoes) if client in each)
        assert sum(each.get(client, 0.0) for each in echoes) == last + 1


def test_without_training_the_mean_over_clients_stays() -> None:
    """The gossip alone is doubly stochastic, from any models of the clients."""
    got = StrategyRun(build_strategy()).run_rounds(PRESENT[:10])

    def fit(client: int, task: TrainTask, arrays: NamedArrays) -> TrainResult:
        return make_result(client, arrays) if client in (1, 2, 4) else make_unavailable(client)

    grid = make_grid(make_scripted_app(N, fit), 2)
    model = train_round(got.strategy, grid, 11, got.model)
    assert model is not None
    mean = got.strategy.compute_mean_start_model(model)
    assert mean is not None
    np.testing.assert_allclose(decode_arrays(mean)["w"], got.means[-1], atol=1e-9)
    assert decode_arrays(model)["w"].tobytes() != got.models[-1]


def test_a_round_without_participants_changes_nothing() -> None:
    """Models, mean and starts stay, and the echoes increase."""
    got = StrategyRun(build_strategy()).run_rounds([[0, 1], [], [], [0]])
    assert got.models[0] == got.models[1] == got.models[2] != got.models[3]
    assert got.means[0] == got.means[1] == got.means[2]
    assert [each.get(0) for each in got.echoes] == [1.0, None, None, 3.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e20])
def test_an_unusable_reply_counts_as_absence(bad: float) -> None:
    """Its client continues from its previous start, and no stored model holds NaN."""
    got, other = StrategyRun(build_strategy()), StrategyRun(build_strategy())
    got.run_rounds([[0, 1]])
    other.run_rounds([[0, 1]])
    got.clients = {2: make_result(2, {"w": np.array([1.0, bad, 0.0])})}
    got.run_rounds([[0, 2]], first=2)
    other.run_rounds([[0]], first=2)
    got.clients = {}
    for run in (got, other):
        run.run_rounds([[2]], first=3)
    assert got.models == other.models
    assert got.echoes[-1] == {2: 3.0}
    assert all(np.isfinite(array).all() for array in got.strategy.get_state().values())


def test_a_rejected_round_does_not_count() -> None:
    """If the model would not be finite, no state changes."""
    model = {"w": np.ones(3, np.float32)}
    rejected = StrategyRun(build_strategy(server_lr=1e30), encode_arrays(model))
    rejected.clients = {0: make_result(0, {"w": np.full(3, 1e14, np.float32)})}
    rejected.run_rounds([[0]])
    assert rejected.strategy.step_result.report.decisions[0].status == "rejected"
    assert rejected.w.tobytes() == model["w"].tobytes()
    state = rejected.strategy.get_state()
    assert state["weighting.age"].tolist() == [1] * N
    assert [name for name in state if name.startswith("starts.")] == ["starts.0.w"]
    assert state["weighting.t"] == 0


def test_clients_that_join_start_from_the_model_of_their_round() -> None:
    """Before a client registers its x_k is the current model: w_{t0}, with tau = t0 - 1."""
    start_values: dict[tuple[int, int], float] = {}

    def fit(client: int, task: TrainTask, arrays: NamedArrays) -> TrainResult:
        start_values[task.server_round, client] = float(arrays["w"][0])
        return make_result(client, {"w": arrays["w"] + 1.0})

    made = build_strategy(communication=NativeProtocol(startup_clients=3))
    grid, model = ScriptedGrid(make_scripted_app(N, fit), {}, 2, there=[1]), encode_arrays(START)
    for number in (1, 2, 3):
        grid.there = {1} if number < 3 else {1, 2}
        model = train_round(made, grid, number, model) or model
    assert {k: start_values[3, k] for k in range(N)} == dict.fromkeys(range(N), 3.0)
    assert {d.participation_correction for d in made.step_result.report.decisions} == {1.0}
    before, after = Population((1, 4), frozenset({1})), Population((0, 1, 4), frozenset({1}))
    state, _ = weigh_rounds(FedAWEWeighting(), [make_participants([1], 2)], 2)
    state = replace(state, client=before.sorted_clients)
    larger = expand_state(state, FedAWEWeighting().init(after), 2, np.array([1, 2]))
    assert (larger.client.tolist(), larger.age.tolist(), larger.t) == ([0, 1, 4], [1, 2, 1], 1)


# --- stored models ---------------------------------------------------------------------------


def test_models_without_a_starting_client_are_deleted() -> None:
    """After four rounds three models are stored: w_0, w_1 and w_4."""
    got = StrategyRun(build_strategy()).run_rounds([[0, 1], [0], [0], [0, 2]])
    got.strategy.compute_mean_start_model(got.model)
    stored_names = {name for name in got.strategy.get_state() if name.startswith("starts.")}
    assert stored_names == {"starts.0.w", "starts.1.w", "starts.4.w"}
    numbers = 3 * START["w"].nbytes
    assert got.strategy.step_result.state_bytes == numbers + 2 * N * 8


def test_it_resumes_from_a_checkpoint_bit_for_bit(tmp_path: Path) -> None:
    """Also with the models in files, which are not part of the state."""
    uninterrupted = StrategyRun(build_strategy()).run_rounds(PRESENT)
    interrupted = StrategyRun(build_strategy()).run_rounds(PRESENT[:12])
    state = {name: array.copy() for name, array in interrupted.strategy.get_state().items()}
    resumed = StrategyRun(build_strategy(memory_dir=str(tmp_path)), interrupted.model)
    resumed.strategy.restore(state, decode_arrays(interrupted.model))
    resumed.run_rounds(PRESENT[12:], first=13)
    assert resumed.models == uninterrupted.models[12:]
    assert resumed.means == uninterrupted.means[12:]
    sizes = {run.strategy.step_result.state_bytes for run in (uninterrupted, resumed)}
    assert len(sizes) == 1
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StateError, match="'starts' is of a strategy whose clients start from past"):
        build_named_strategy("average_participating", N).restore(
            state, decode_arrays(interrupted.model)
        )
    for name in ("starts.x.w", "starts.00.w"):
        with pytest.raises(StateError):
            build_strategy().restore({**state, name: np.zeros(2)}, decode_arrays(interrupted.model))


def test_models_that_exceed_the_space_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before training, with the figures and the setting."""
    model = {"w": np.zeros(10**6)}
    monkeypatch.setattr("fedquorum.server.model_store.get_total_memory", lambda: 9 * 10**6)

    def list_needed_models(history: ModelHistory, *starts: int, t: int) -> set[int]:
        """Return the numbers of the models that are stored for clients with these starts."""
        population = Population.from_size(len(starts))
        state = FedAWEState(population.sorted_clients, t + 1 - np.array(starts), t)
        return set(history.prepare_start_models(state, model, population).models)

    history = ModelHistory()
    list_needed_models(history, 0, 0, t=0)
    message = (
        r"memory_dir must be set where this machine's memory does not hold the models from which"
    )
    with pytest.raises(RunError, match=rf"{message} clients start: 2 of 0\.008 GB, got None$"):
        list_needed_models(history, 0, 1, t=1)
    assert list_needed_models(history, 1, 1, t=1) == {1}
    in_files = ModelHistory(tmp_path)
    monkeypatch.setattr("fedquorum.server.model_store.get_free_disk", lambda folder: 0)
    with pytest.raises(RunError, match="memory_dir must be a folder with space for the models"):
        list_needed_models(in_files, 0, t=0)
    missing = ModelHistory(tmp_path / "gone")
    monkeypatch.undo()
    with pytest.raises(RunError, match=r"got .*gone: No such file or directory"):
        list_needed_models(missing, 0, t=0)


# --- the step --------------------------------------------------------------------------------


def test_statistics_are_averaged_and_not_echoed() -> None:
    """A variance stays between those of the clients, and a counter stays an integer."""
    model: NamedArrays = {
        "w": np.zeros(2, np.float32),
        "running_var": np.ones(2, np.float32),
        "num_batches_tracked": np.array(4),
    }

    def shift_model(by: float) -> NamedArrays:
        return {name: array + array.dtype.type(by) for name, array in model.items()}

    starts = ClientStartModels({0: model, 3: shift_model(2.0)}, {5: 0, 8: 3})
    updates = [(5, 50.0, shift_model(-1.0)), (8, 1.0, shift_model(3.0))]
    anchor, update = starts.combine(model, updates, 2.0)
    assert anchor.keys() == {"w"}
    assert anchor["w"].tolist() == [1.0, 1.0]
    assert update["w"].tolist() == [-24.5, -24.5]
    assert update["running_var"].tolist() == [1.0, 1.0]
    assert update["num_batches_tracked"] == 1.0


def test_a_long_update_is_clipped_to_the_norm() -> None:
    """The norm is over all arrays; a short update does not change."""
    update = {"a": np.array([3.0]), "b": np.array([4.0])}
    assert clip_by_norm(update, 5.0) == update
    clipped = clip_by_norm(update, 0.5)
    assert (clipped["a"].tolist(), clipped["b"].tolist()) == (
        pytest.approx([0.3]),
        pytest.approx([0.4]),
    )


def test_the_mean_start_is_over_all_clients() -> None:
    """Each start model counts once for each of its clients."""
    models = {0: {"w": np.array([0.0])}, 3: {"w": np.array([8.0])}}
    mean = compute_mean_start_model(np.array([0, 3, 0, 0]), models, {"w": np.array([5.0])})
    assert mean["w"].tolist() == [2.0]


# --- the rule --------------------------------------------------------------------------------


def test_a_weight_is_explained() -> None:
    """With tau_k, the start model, and the cap if it applies."""
    history = [make_participants([0, 2], 3), make_participants([0], 3), make_participants([], 3)]
    state, _ = weigh_rounds(FedAWEWeighting(echo_cap=2), history, 3)
    given = make_participants([1, 2], 3)
    _, weights = FedAWEWeighting(echo_cap=2).weigh(state, RoundPlan((0, 1, 2)), given, np.ones(2))
    assert weights.weight.tolist() == [1.0, 1.0]
    trace = replace(
        decide_first_round(FedAWEWeighting(echo_cap=2), given, 3), state=state, weights=weights
    )
    first_time, once = (
        list(FedAWEWeighting(echo_cap=2).explain(trace, index)) for index in range(2)
    )
    assert first_time[0].startswith("tau_k = -1,")
    assert "from w_0" in first_time[0]
    origin, weight = once
    assert origin.startswith("tau_k = 0,")
    assert "t = 3," in origin
    assert "from w_1" in origin
    assert weight == "c_k = (min(t - tau_k, echo_cap)) / |S_t| = min(3, 2) / 2 = 1"


def test_an_update_is_clipped_from_its_clients_start() -> None:
    """``robustness.clip_norm`` applies to d_k = w_k - x_k, not to w_k - w_t."""
    bounded = NativeProtocol(robustness=Robustness(clip_norm=1e-3))
    got = StrategyRun(build_strategy(communication=bounded)).run_rounds([[0, 1, 2]] * 20)
    got.clients = {5: make_result(5, START)}
    before, start = got.w, START["w"]
    got.run_rounds([[5]], first=21)
    np.testing.assert_allclose(got.w, start, atol=1e-12)
    assert np.linalg.norm(before - start) > 1e-2
    assert got.strategy.step_result.report.decisions[5].reason is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: RuleSet(EpsilonGate(10), FedAWEWeighting()),
            "selection must be everyone with the weighting",
        ),
        (
            lambda: RuleSet(PriorityOnly(), FedAWEWeighting()),
            "selection must be everyone with the weighting",
        ),
        (
            lambda: RuleSet(AllClients(), FedAWEWeighting(), Momentum(1.0)),
            "server_optimizer must be sgd with",
        ),
        (
            lambda: RuleSet(AllClients(), FedAWEWeighting(), SGD(), UpdateMemoryConfig()),
            "memory must be None with fedawe",
        ),
        (
            lambda: FedAUCorrection(base=FedAWEWeighting().with_fixed_denominator()),
            "participation must be none with the weighting fedawe",
        ),
    ],
)
def test_meaningless_combinations_are_refused(make: Any, message: str) -> None:
    """Gates, groups, other server optimizers, a memory of updates, a further correction."""
    with pytest.raises(ParameterError, match=message):
        make()


def test_it_has_no_bound_for_differential_privacy() -> None:
    """The available clients determine the start of the round."""
    private = NativeProtocol(privacy=GaussianMechanism(1.0, 1.0))
    with pytest.raises(ParameterError, match="availability alone decides it"):
        build_strategy(communication=private)


def test_other_rules_start_from_the_current_model() -> None:
    """They have no hooks, and therefore no start models."""
    assert AverageParticipating().hooks == Hooks()
    made = build_named_strategy("average_participating", N)
    assert made.rules.hooks.client_start is None
