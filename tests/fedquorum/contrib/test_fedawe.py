"""FedAWE: every client goes on from where it left off, and its update echoes the rounds away."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedquorum import ComposedStrategy, NativeProtocol, Population, Robustness
from fedquorum.composition import RuleSet, UpdateMemoryConfig
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
from fedquorum.hooks import Hooks
from fedquorum.participation import FedAUCorrection
from fedquorum.privacy import GaussianMechanism
from fedquorum.selection import AllClients, EpsilonGate, PriorityOnly
from fedquorum.server_optimizer import SGD, Momentum
from fedquorum.state_arrays import expand_state
from fedquorum.types import RoundPlan
from fedquorum.weighting import AverageParticipating
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
THERE = [
    [k for k in range(N) if there[k]] for there in np.random.default_rng(3).random((25, N)) < 0.3
]
"""Who is there by round: sometimes nobody, and client 3 for the first time in round 9 or so."""


def step_toward_target(client: int, arrays: NamedArrays, lr: float = 0.1) -> NamedArrays:
    """Return a model after one step on |x - u_k|^2 / 2."""
    return {"w": arrays["w"] - lr * (arrays["w"] - TARGETS[client])}


def answer(client: int, arrays: NamedArrays) -> TrainResult:
    return TrainResult(client, Status.DONE, num_examples=10, arrays=arrays)


def away(client: int) -> TrainResult:
    return TrainResult(client, Status.UNAVAILABLE)


@dataclass
class Played:
    """Rounds of a strategy: w_t and xbar after each, and the echo of each client that counted."""

    strategy: ComposedStrategy
    model: ArrayRecord = field(default_factory=lambda: encode_arrays(START))
    models: list[bytes] = field(default_factory=list)
    means: list[list[float]] = field(default_factory=list)
    echoes: list[dict[int, float]] = field(default_factory=list)
    clients: Mapping[int, TrainResult] = field(default_factory=dict)

    def play(self, there: Sequence[Collection[int]], nodes: int = 2, first: int = 1) -> "Played":
        """Play these rounds; ``clients`` may answer otherwise than by training."""

        def fit(client: int, task: TrainTask, arrays: NamedArrays) -> TrainResult:
            if client not in there[task.server_round - first]:
                return away(client)
            return self.clients.get(client) or answer(client, step_toward_target(client, arrays))

        grid = make_grid(make_scripted_app(N, fit), nodes)
        for number in range(first, first + len(there)):
            self.model = train_round(self.strategy, grid, number, self.model) or self.model
            self._note()
        return self

    def _note(self) -> None:
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


def strategy(**options: Any) -> ComposedStrategy:
    return build_named_strategy("fedawe", N, **options)


# --- against the paper's algorithm, and what it reduces to -----------------------------------


@pytest.mark.parametrize("nodes", [1, 6])
@pytest.mark.parametrize(
    "options",
    [{}, {"clip": 0.3}, {"echo_cap": 3}, {"server_lr": 0.5}, {"clip": 0.2, "server_lr": 2.0}],
    ids=str,
)
def test_as_with_models_that_stay_on_the_devices(options: Mapping[str, Any], nodes: int) -> None:
    """Algorithm 1 keeps x_k and tau_k on the clients: every model, mean and echo is the same."""
    other = fedawe.Federation(START["w"].tolist(), N, **options)
    got = Played(strategy(**options))

    def train(client: int, t: int, x: list[float]) -> list[float]:
        return [float(v) for v in step_toward_target(client, {"w": np.array(x)})["w"]]

    for t, there in enumerate(THERE, 1):
        expected = other.run_round(there, train)
        got.play([there], nodes, first=t)
        np.testing.assert_allclose(got.w, other.w, atol=1e-9)
        np.testing.assert_allclose(got.means[-1], other.mean, atol=1e-9)
        assert got.echoes[-1] == expected
    assert max(max(each.values(), default=0) for each in got.echoes) >= 3


def test_two_clients_of_whom_one_is_rarely_there() -> None:
    """FedAvg ends near the other one, FedAWE's mean over clients in the middle, its w_t nearly."""
    found = fedawe.run_two_clients(0.01, 40_000)
    assert found.mean == pytest.approx(50.0, abs=0.05)
    assert found.w == pytest.approx(47.5, abs=0.3)
    assert found.fedavg == pytest.approx(5.97, abs=0.5)


def test_everybody_there_is_the_average_of_those_who_take_part() -> None:
    """All start from w_t and echo 1: to the bit, and so is the mean over clients."""
    everyone = [range(N)] * 5
    got = Played(strategy()).play(everyone)

    def fit(client: int, task: TrainTask, arrays: NamedArrays) -> TrainResult:
        return answer(client, step_toward_target(client, arrays))

    other, model = build_named_strategy("average_participating", N), encode_arrays(START)
    grid = make_grid(make_scripted_app(N, fit), 3)
    for number in range(1, 6):
        model = train_round(other, grid, number, model) or model
        assert decode_arrays(model)["w"].tobytes() == got.models[number - 1]
    np.testing.assert_array_equal(got.means[-1], got.w)
    assert other.compute_mean_start_model(model) is None


def test_any_number_of_nodes_gives_the_same_bits() -> None:
    """Whether clients share a message with those that start elsewhere changes nothing."""
    first, *others = (Played(strategy()).play(THERE, nodes).models for nodes in (1, 2, 6))
    assert all(models == first for models in others)


def test_the_echoes_of_a_client_sum_to_the_rounds() -> None:
    """Proposition 1: up to the last round in which it took part."""
    echoes = Played(strategy()).play(THERE).echoes
    for client in range(N):
        last = max(t for t, each in enumerate(echoes) if client in each)
        assert sum(each.get(client, 0.0) for each in echoes) == last + 1


def test_without_training_the_mean_over_clients_stays() -> None:
    """The gossip alone is doubly stochastic, from wherever the clients are."""
    got = Played(strategy()).play(THERE[:10])

    def fit(client: int, task: TrainTask, arrays: NamedArrays) -> TrainResult:
        return answer(client, arrays) if client in (1, 2, 4) else away(client)

    grid = make_grid(make_scripted_app(N, fit), 2)
    model = train_round(got.strategy, grid, 11, got.model)
    assert model is not None
    mean = got.strategy.compute_mean_start_model(model)
    assert mean is not None
    np.testing.assert_allclose(decode_arrays(mean)["w"], got.means[-1], atol=1e-9)
    assert decode_arrays(model)["w"].tobytes() != got.models[-1]


def test_a_round_with_nobody_leaves_all_as_it_is() -> None:
    """Models, mean and starts stay, and the echoes grow."""
    got = Played(strategy()).play([[0, 1], [], [], [0]])
    assert got.models[0] == got.models[1] == got.models[2] != got.models[3]
    assert got.means[0] == got.means[1] == got.means[2]
    assert [each.get(0) for each in got.echoes] == [1.0, None, None, 3.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e20])
def test_an_unusable_reply_is_none(bad: float) -> None:
    """Its client goes on from where it was, and no model that is kept holds NaN."""
    got, other = Played(strategy()), Played(strategy())
    got.play([[0, 1]])
    other.play([[0, 1]])
    got.clients = {2: answer(2, {"w": np.array([1.0, bad, 0.0])})}
    got.play([[0, 2]], first=2)
    other.play([[0]], first=2)
    got.clients = {}
    for played in (got, other):
        played.play([[2]], first=3)
    assert got.models == other.models
    assert got.echoes[-1] == {2: 3.0}
    assert all(np.isfinite(array).all() for array in got.strategy.get_state().values())


def test_a_round_that_is_refused_is_none_of_the_rounds() -> None:
    """Where the model would not be finite nothing is remembered: the next round is played again."""
    model = {"w": np.ones(3, np.float32)}
    refused = Played(strategy(server_lr=1e30), encode_arrays(model))
    refused.clients = {0: answer(0, {"w": np.full(3, 1e14, np.float32)})}
    refused.play([[0]])
    assert refused.strategy.step_result.report.decisions[0].status == "rejected"
    assert refused.w.tobytes() == model["w"].tobytes()
    state = refused.strategy.get_state()
    assert state["weighting.age"].tolist() == [1] * N
    assert [name for name in state if name.startswith("starts.")] == ["starts.0.w"]
    assert state["weighting.t"] == 0


def test_clients_that_join_start_from_the_model_of_their_round() -> None:
    """Until a client is known its x_k is the present model: w_{t0}, with tau = t0 - 1."""
    seen: dict[tuple[int, int], float] = {}

    def fit(client: int, task: TrainTask, arrays: NamedArrays) -> TrainResult:
        seen[task.server_round, client] = float(arrays["w"][0])
        return answer(client, {"w": arrays["w"] + 1.0})

    made = strategy(communication=NativeProtocol(startup_clients=3))
    grid, model = ScriptedGrid(make_scripted_app(N, fit), {}, 2, there=[1]), encode_arrays(START)
    for number in (1, 2, 3):
        grid.there = {1} if number < 3 else {1, 2}
        model = train_round(made, grid, number, model) or model
    assert {k: seen[3, k] for k in range(N)} == dict.fromkeys(range(N), 3.0)
    assert {d.participation_correction for d in made.step_result.report.decisions} == {1.0}
    before, after = Population((1, 4), frozenset({1})), Population((0, 1, 4), frozenset({1}))
    state, _ = weigh_rounds(FedAWEWeighting(), [make_participants([1], 2)], 2)
    state = replace(state, client=before.sorted_clients)
    larger = expand_state(state, FedAWEWeighting().init(after), 2, np.array([1, 2]))
    assert (larger.client.tolist(), larger.age.tolist(), larger.t) == ([0, 1, 4], [1, 2, 1], 1)


# --- what is kept ----------------------------------------------------------------------------


def test_versions_that_nobody_starts_from_are_forgotten() -> None:
    """Three models are held after four rounds: that of the first, of round 1 and of round 4."""
    got = Played(strategy()).play([[0, 1], [0], [0], [0, 2]])
    got.strategy.compute_mean_start_model(got.model)
    held = {name for name in got.strategy.get_state() if name.startswith("starts.")}
    assert held == {"starts.0.w", "starts.1.w", "starts.4.w"}
    numbers = 3 * START["w"].nbytes
    assert got.strategy.step_result.state_bytes == numbers + 2 * N * 8


def test_it_resumes_from_a_checkpoint_bit_for_bit(tmp_path: Path) -> None:
    """Also with the models in files, which are none of the bits."""
    whole = Played(strategy()).play(THERE)
    begun = Played(strategy()).play(THERE[:12])
    state = {name: array.copy() for name, array in begun.strategy.get_state().items()}
    resumed = Played(strategy(memory_dir=str(tmp_path)), begun.model)
    resumed.strategy.restore(state, decode_arrays(begun.model))
    resumed.play(THERE[12:], first=13)
    assert resumed.models == whole.models[12:]
    assert resumed.means == whole.means[12:]
    sizes = {played.strategy.step_result.state_bytes for played in (whole, resumed)}
    assert len(sizes) == 1
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StateError, match="'starts' is of a strategy whose clients start from past"):
        build_named_strategy("average_participating", N).restore(state, decode_arrays(begun.model))
    for name in ("starts.x.w", "starts.00.w"):
        with pytest.raises(StateError):
            strategy().restore({**state, name: np.zeros(2)}, decode_arrays(begun.model))


def test_models_for_which_there_is_no_room_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anybody trains, with the figures and the setting."""
    model = {"w": np.zeros(10**6)}
    monkeypatch.setattr("fedquorum.contrib.fedawe.get_total_memory", lambda: 9 * 10**6)

    def list_needed_models(history: ModelHistory, *starts: int, t: int) -> set[int]:
        """Return the numbers of the models that are held for clients with these starts."""
        population = Population.from_size(len(starts))
        state = FedAWEState(population.sorted_clients, t + 1 - np.array(starts), t)
        return set(history.prepare_start_models(state, model, population).models)

    kept = ModelHistory()
    list_needed_models(kept, 0, 0, t=0)
    told = r"memory_dir must be set where this machine's memory does not hold the models from which"
    with pytest.raises(RunError, match=rf"{told} clients start: 2 of 0\.008 GB, got None$"):
        list_needed_models(kept, 0, 1, t=1)
    assert list_needed_models(kept, 1, 1, t=1) == {1}
    in_files = ModelHistory(tmp_path)
    monkeypatch.setattr("fedquorum.contrib.fedawe.get_free_disk", lambda folder: 0)
    with pytest.raises(RunError, match="memory_dir must be a folder with space for the models"):
        list_needed_models(in_files, 0, t=0)
    gone = ModelHistory(tmp_path / "gone")
    monkeypatch.undo()
    with pytest.raises(RunError, match=r"got .*gone: No such file or directory"):
        list_needed_models(gone, 0, t=0)


# --- the step --------------------------------------------------------------------------------


def test_statistics_are_averaged_and_not_echoed() -> None:
    """A variance stays between those of the clients, a counter is a whole number."""
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


def test_a_long_update_is_shortened_to_the_norm() -> None:
    """Over all arrays together; a short one is as it was."""
    update = {"a": np.array([3.0]), "b": np.array([4.0])}
    assert clip_by_norm(update, 5.0) == update
    found = clip_by_norm(update, 0.5)
    assert (found["a"].tolist(), found["b"].tolist()) == (
        pytest.approx([0.3]),
        pytest.approx([0.4]),
    )


def test_the_mean_start_is_over_all_clients() -> None:
    """Those of one start count as often as there are of them."""
    models = {0: {"w": np.array([0.0])}, 3: {"w": np.array([8.0])}}
    mean = compute_mean_start_model(np.array([0, 3, 0, 0]), models, {"w": np.array([5.0])})
    assert mean["w"].tolist() == [2.0]


# --- the rule --------------------------------------------------------------------------------


def test_a_weight_is_explained() -> None:
    """With tau_k, the model of the start, and the cap where it bites."""
    history = [make_participants([0, 2], 3), make_participants([0], 3), make_participants([], 3)]
    state, _ = weigh_rounds(FedAWEWeighting(echo_cap=2), history, 3)
    given = make_participants([1, 2], 3)
    _, weights = FedAWEWeighting(echo_cap=2).weigh(state, RoundPlan((0, 1, 2)), given, np.ones(2))
    assert weights.weight.tolist() == [1.0, 1.0]
    made = replace(
        decide_first_round(FedAWEWeighting(echo_cap=2), given, 3), state=state, weights=weights
    )
    never, once = (list(FedAWEWeighting(echo_cap=2).explain(made, place)) for place in range(2))
    assert never[0].startswith("tau_k = -1,")
    assert "from w_0" in never[0]
    origin, weight = once
    assert origin.startswith("tau_k = 0,")
    assert "t = 3," in origin
    assert "from w_1" in origin
    assert weight == "c_k = (min(t - tau_k, echo_cap)) / |S_t| = min(3, 2) / 2 = 1"


def test_an_update_is_bounded_from_where_its_client_started() -> None:
    """``robustness.clip_norm`` is of d_k = w_k - x_k, and not of w_k - w_t."""
    bounded = NativeProtocol(robustness=Robustness(clip_norm=1e-3))
    got = Played(strategy(communication=bounded)).play([[0, 1, 2]] * 20)
    got.clients = {5: answer(5, START)}
    before, start = got.w, START["w"]
    got.play([[5]], first=21)
    np.testing.assert_allclose(got.w, start, atol=1e-12)
    assert np.linalg.norm(before - start) > 1e-2
    assert got.strategy.step_result.report.decisions[5].reason is None


@pytest.mark.parametrize(
    ("make", "told"),
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
def test_combinations_that_make_no_sense_are_refused(make: Any, told: str) -> None:
    """Gates, groups, other server optimizers, a memory of updates, a correction on top."""
    with pytest.raises(ParameterError, match=told):
        make()


def test_it_has_no_bound_for_differential_privacy() -> None:
    """Who is there decides where the round begins."""
    private = NativeProtocol(privacy=GaussianMechanism(1.0, 1.0))
    with pytest.raises(ParameterError, match="availability alone decides it"):
        strategy(communication=private)


def test_other_rules_start_from_the_present_model() -> None:
    """They have no hooks, and with them no start models."""
    assert AverageParticipating().hooks == Hooks()
    made = build_named_strategy("average_participating", N)
    assert made.rules.hooks.client_start is None
