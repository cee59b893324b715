"""Updates are added up as replies arrive, if the weights of the round are known."""

import tracemalloc
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from fedquorum import (
    MIFA,
    FedALIGN,
    FedAU,
    FedAvg,
    FedVarp,
    NativeProtocol,
    QFedAvg,
    Robustness,
    StandardProtocol,
)
from fedquorum.errors import ParameterError, RunError
from fedquorum.flower.codec import (
    NamedArrays,
    Status,
    TrainResult,
    TrainTask,
    decode_arrays,
    encode_arrays,
)
from fedquorum.flower.round import find_max_factor
from fedquorum.flower.secure.settings import SecureAggregation
from fedquorum.flower.strategies import DropInStrategy
from fedquorum.flower.strategy import ComposedStrategy
from fedquorum.rules.composition import RuleSet
from fedquorum.rules.round import NOT_UNMASKED, RoundState
from fedquorum.rules.selection import AllClients
from fedquorum.rules.staleness import LateUpdates
from fedquorum.rules.types import (
    AggregationWeights,
    ClientReports,
    ClientUpdates,
    FloatArray,
    KnownWeights,
    Population,
    RoundPlan,
)
from fedquorum.rules.weighting import AverageParticipating
from fedquorum.server.privacy import GaussianMechanism
from fedquorum.server.quorum import Quorum
from fedquorum.server.scratch import ReplyStore
from fedquorum.server.state import ServerState
from flwr.app import ConfigRecord, Message

from server_app.engines.in_process import InProcessGrid
from tests.builders_flower import (
    MODEL,
    ScriptedGrid,
    build_named_strategy,
    make_grid,
    make_scripted_app,
    make_standard_app,
    make_train_result,
    run_first_round,
    train_round,
)

LARGE = encode_arrays({f"layer.{i}": np.full(2**14, i / 7, np.float32) for i in range(16)})
MODEL_BYTES = LARGE.count_bytes()
GATED: Mapping[str, Any] = {"num_rounds": 9, "priority": [0, 1], "warmup_fraction": 0.0}


class OneByOneGrid(InProcessGrid):
    """Nodes that create a reply when it is fetched; the grid holds no reference to it."""

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return (
            reply
            for message in list(messages)
            for reply in self.pull_messages(self.push_messages([message]))
        )


def measure_peak_memory(make: Callable[[], DropInStrategy], clients: int) -> float:
    """Return the peak memory of two rounds, in sizes of the model."""
    app = make_standard_app(by=lambda client: client * 1e-3)  # large terms would need a second sum
    grid, strategy = OneByOneGrid(app, {}, clients), make()
    tracemalloc.start()
    try:
        strategy.start(grid, LARGE, num_rounds=2)
        return tracemalloc.get_traced_memory()[1] / MODEL_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("make", "grows"),
    [
        (lambda: FedAU(fraction_evaluate=0.0), False),
        (lambda: FedAvg(fraction_evaluate=0.0), False),
        (lambda: FedAvg(fraction_evaluate=0.0, robustness=Robustness(clip_norm=1.0)), False),
        (lambda: FedALIGN(fraction_evaluate=0.0, **GATED), True),
        (lambda: FedALIGN(fraction_evaluate=0.0, reply_memory=0, **GATED), False),
        (lambda: FedAvg(fraction_evaluate=0.0, robustness=Robustness(max_weight=1.0)), True),
    ],
    ids=["fedau", "fedavg", "clipped", "gated", "gated in files", "capped"],
)
def test_memory_grows_only_where_all_replies_are_needed(
    make: Callable[[], DropInStrategy], grows: bool
) -> None:
    """Twelve more clients take twelve more models of memory only if a rule needs all updates."""
    few, many = measure_peak_memory(make, 4), measure_peak_memory(make, 16)
    assert abs(many - few - (12.0 if grows else 0.0)) < 0.5
    assert few < 14.0


def compute_final_bits(strategy: DropInStrategy, **options: Any) -> dict[str, bytes]:
    """Return the bits of the model after three rounds with seven clients."""
    arrays = encode_arrays({"w": np.linspace(-1, 1, 999, dtype=np.float32), "n": np.array(3)})
    app = make_standard_app(by=lambda client: (-1.7) ** client / 3)
    grid = make_grid(app, 7)
    for server_round in (1, 2, 3):
        combined = train_round(strategy, grid, server_round, arrays, **options)
        assert combined is not None
        arrays = combined
    return {name: array.tobytes() for name, array in decode_arrays(arrays).items()}


@pytest.mark.parametrize("kind", [FedAvg, FedAU])
@pytest.mark.parametrize("clip_norm", [None, 5.0])
def test_the_model_has_the_same_bits_as_with_all_replies_at_once(
    kind: type[DropInStrategy], clip_norm: float | None
) -> None:
    """A bound above all weights makes the server store all replies, and changes nothing else."""
    expected = compute_final_bits(kind(robustness=Robustness(clip_norm=clip_norm, max_weight=1e9)))
    strategy = kind(robustness=Robustness(clip_norm=clip_norm))
    assert compute_final_bits(strategy, change=lambda replies: iter(replies[::-1])) == expected


@pytest.mark.parametrize("kind", [FedALIGN, MIFA])
def test_replies_in_files_count_as_those_in_memory(kind: type[DropInStrategy]) -> None:
    """Files change neither the model nor the clients' decisions."""
    options = {**GATED, "epsilon": 10.0} if kind is FedALIGN else {}
    in_memory, in_files = kind(**options), kind(reply_memory=0, **options)
    assert compute_final_bits(in_memory) == compute_final_bits(in_files)
    assert in_memory.step_result.last_report == in_files.step_result.last_report


def test_metrics_functions_read_whole_replies() -> None:
    """The functions get replies with arrays, as from Flower's own strategies."""
    seen: list[int] = []

    def count(contents: Any, key: str) -> None:
        seen.extend(len(content.array_records) for content in contents)

    compute_final_bits(FedAvg(train_metrics_aggr_fn=count))  # type: ignore[arg-type]
    assert seen == [1] * 21


@dataclass(frozen=True)
class Doubled(AverageParticipating):
    """A weighting whose numerators differ from its declared known weights."""

    def weigh(
        self, state: None, plan: RoundPlan, updates: ClientUpdates, admitted_fraction: FloatArray
    ) -> tuple[None, AggregationWeights]:
        _, weights = super().weigh(state, plan, updates, admitted_fraction)
        return None, replace(
            weights, numerator=2 * weights.numerator, denominator=2 * weights.denominator
        )


def test_numerators_that_differ_from_the_declared_weights_are_an_assertion() -> None:
    """The sum uses the declared weights, so different ones would give a wrong model."""
    rules = RuleSet(AllClients(), Doubled())
    strategy = ComposedStrategy(rules, population=Population.from_size(2))
    grid = make_grid(
        make_scripted_app(2, lambda client, task, arrays: make_train_result(client, 1.0)), 2
    )
    with pytest.raises(AssertionError, match="added by other weights than the decision's"):
        run_first_round(strategy, grid)
    assert MODEL["w"][0] == 1.0


@pytest.mark.parametrize(
    ("kind", "place", "words"),
    [
        (
            FedVarp,
            "fedquorum.server.update_memory.get_total_memory",
            "strategy.memory_dir must be set where",
        ),
        (QFedAvg, "fedquorum.server.scratch.get_free_disk", "reply_memory must leave no more to"),
    ],
)
def test_a_round_that_exceeds_memory_or_disk_is_refused_before_training(
    kind: type[DropInStrategy], place: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server sends no message."""
    monkeypatch.setattr(place, lambda *folder: 11)
    grid = ScriptedGrid(make_standard_app(), {}, 3)
    with pytest.raises(RunError, match=words):
        kind(reply_memory=10**6 if kind is FedVarp else 0).start(grid, encode_arrays(MODEL))
    assert grid.sent == []


def test_only_usable_updates_go_to_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A usable update has the model's size, so a node that sends more cannot fill the disk."""
    kept: list[int] = []

    def count(self: ReplyStore, arrays: NamedArrays) -> NamedArrays:
        kept.append(len(arrays))
        return arrays

    monkeypatch.setattr(ReplyStore, "store", count)
    app = make_standard_app(by=lambda client: np.nan if client == 1 else 1.0)
    strategy = MIFA(reply_memory=0)
    assert train_round(strategy, make_grid(app, 4)) is not None
    assert len(kept) == 3


# --- required sums ---------------------------------------------------------------------------


def test_a_required_sum_replaces_every_model() -> None:
    """A node that sends models although the server requires their sum is rejected, and named."""

    def fit(client: int, task: TrainTask, arrays: NamedArrays) -> TrainResult:
        if client == 2:
            return TrainResult(2, Status.FAILED, reason="no memory")
        assert task.can_be_summed
        return make_train_result(client, 1.0)

    strategy = build_named_strategy(
        "fedau", 3, communication=NativeProtocol(requires_sums=True), cutoff=50
    )
    model, report = run_first_round(strategy, make_grid(make_scripted_app(3, fit), 3))
    assert model is None
    assert [(d.client, d.status, d.reason) for d in report.decisions] == [
        (0, "rejected", "its node did not send the weighted sum that the server requires"),
        (1, "rejected", "its node did not send the weighted sum that the server requires"),
        (2, "failed", "no memory"),
    ]


SERVER_CLIPS = GaussianMechanism(1.0, 1.0)
UNSEEN = "the server cannot clip an update that it does not see"


SUM_SWITCHES: dict[str, Any] = {
    "requires_sums": True,
    "fixed_bins": True,
    "secure_aggregation": SecureAggregation(),
}


@pytest.mark.parametrize(
    ("options", "setting", "reason"),
    [
        ({"virtual_clock": True}, "response times", "simulated time decides after training"),
        ({"late_updates": LateUpdates()}, "late_replies=count", "staleness decides after training"),
        ({"robustness": Robustness(max_weight=0.1)}, "max_weight", "changes it after training"),
        ({"robustness": Robustness(clip_norm=0.1)}, "clip_norm", UNSEEN),
        ({"privacy": SERVER_CLIPS}, "privacy without clients_clip", UNSEEN),
        ({"partial_aggregation": False}, "partial_aggregation=False", "the model of each client"),
    ],
)
@pytest.mark.parametrize("name", SUM_SWITCHES)
def test_what_needs_single_updates_is_refused_with_sums(
    options: dict[str, Any], setting: str, reason: str, name: str
) -> None:
    """Fixed bins alone need only the weights before training: the server sees every update."""
    needs_weights = setting in ("response times", "late_replies=count", "max_weight")
    if name == "fixed_bins" and not needs_weights:
        NativeProtocol(fixed_bins=True, **options)
        return
    with pytest.raises(ParameterError) as caught:
        NativeProtocol(**{name: SUM_SWITCHES[name], **options})
    assert caught.value.parameter == name
    off = "None" if name == "secure_aggregation" else "False"
    assert caught.value.allowed == f"{off} with {setting}"
    assert reason in caught.value.reason


def test_rules_that_need_single_updates_are_refused_with_sums() -> None:
    """When the strategy is built, with the rule's reason."""
    for name, value in SUM_SWITCHES.items():
        protocol = NativeProtocol(**{name: value})
        with pytest.raises(ParameterError, match=f"{name} must be .* .*losses of single"):
            build_named_strategy("qfedavg", 3, communication=protocol)
    with pytest.raises(ParameterError, match="requires_sums must be False with StandardProtocol"):
        StandardProtocol(requires_sums=True)
    with pytest.raises(ParameterError, match="secure_aggregation must be None with StandardProto"):
        StandardProtocol(secure_aggregation=SecureAggregation())


def test_masks_need_three_nodes_and_a_quorum_above_the_threshold() -> None:
    """When all clients are there, before any message; k and t are shown."""
    population = Population.from_size(10)
    for nodes, quorum, problem in (
        (2, Quorum(), "secure_aggregation must be none with fewer than 3 nodes, got 2"),
        (10, Quorum(0.5), "quorum must be at least"),
        (10, Quorum(0.9), None),
    ):
        protocol = NativeProtocol(
            secure_aggregation=SecureAggregation(colluding=0.3, dropping=0.1), quorum=quorum
        )
        strategy = build_named_strategy("average_all", population, communication=protocol)
        grid = make_grid(make_scripted_app(10, shift_by_one), nodes)
        if problem is None:
            strategy._update_population(grid)
            continue
        with pytest.raises(ParameterError, match=problem):
            strategy.configure_train(1, encode_arrays(MODEL), ConfigRecord(), grid)


def test_a_node_without_the_mod_is_sent_no_model() -> None:
    """Its reply to the first message has no keys; so no update of it is ever in the clear."""
    protocol = NativeProtocol(secure_aggregation=SecureAggregation())
    strategy = build_named_strategy("average_all", 3, communication=protocol)
    grid = make_grid(make_scripted_app(3, shift_by_one, get_seconds=lambda *_: 1.0), 3)
    arrays = encode_arrays(MODEL)
    assert list(strategy.configure_train(1, arrays, ConfigRecord(), grid)) == []
    assert strategy.aggregate_train(1, [])[0] is None
    report = strategy.step_result.report
    assert {(d.status, d.reason) for d in report.decisions} == {
        ("rejected", "the record 'mask-keys' is missing")
    }
    assert report.rejection_reason == NOT_UNMASKED


def shift_by_one(client: int, task: TrainTask, model: NamedArrays) -> TrainResult:
    """Train like any client."""
    return make_train_result(client, 1.0)


def test_the_largest_factor_of_a_round() -> None:
    """The largest a_k of the plan; a client with unknown data counts as the one with the most."""
    state = ServerState(RoundState(None, reports=ClientReports({0: 5.0, 1: 7.0, 3: 900.0})))
    plan = RoundPlan((0, 1, 2))
    proportions = {0: 3.0, 1: 2.0, 2: 0.5, 3: 100.0}
    assert find_max_factor(plan, KnownWeights(proportions), state) == 3.0
    assert find_max_factor(plan, KnownWeights(proportions, by_data=True), state) == 450.0
    assert find_max_factor(RoundPlan(()), KnownWeights(), state) == 1.0
