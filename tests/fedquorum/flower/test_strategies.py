"""The drop-in contract: users of Flower's ``FedAvg`` can expect the same of ``FedAU()``.

Beyond the contract, ``flwr.serverapp.strategy.FedAvg`` of the installed version is the
reference: both run the same rounds on the same nodes.
"""

import inspect
import logging
import math
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Timer
from typing import Any

import fedquorum
import numpy as np
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from fedquorum import (
    AAggFFD,
    AAggFFS,
    ComposedStrategy,
    FedALIGN,
    FedAU,
    FedAvg,
    FedAvgAll,
    FedAvgPriority,
    KnownStatistics,
    MaxFL,
)
from fedquorum.client.availability.processes import Bernoulli, Trace
from fedquorum.errors import ClientsMissingError, ParameterError, ProtocolError
from fedquorum.flower.codec import (
    NamedArrays,
    Status,
    TrainResult,
    TrainTask,
    decode_arrays,
    encode_arrays,
    encode_hosted_clients,
    encode_train_reply,
)
from fedquorum.flower.mods import AvailabilityMod, NodeAvailability
from fedquorum.flower.strategies import DropInStrategy
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg
from flwr.serverapp.strategy import (
    Strategy,
)
from flwr.superlink.grid.inmemory_grid import InMemoryGrid

from server_app.engines.in_process import InProcessGrid
from tests.builders_flower import (
    DROP_INS,
    GATE,
    LOSSES,
    MODEL,
    WRAPPERS,
    KeyedGrid,
    ScriptedGrid,
    drop_in,
    evaluate_round,
    make_deployment_grid,
    make_grid,
    make_scripted_app,
    make_simulation_grid,
    make_standard_app,
    make_standard_reply,
    make_train_result,
    read_kind_and_round,
    request_of,
    train_round,
    wrap_strategy,
)

K = 4
NEEDS_LOSS = {"AAggFFS", "AAggFFD", "QFedAvg", "TERM", "PropFair", "AFL", "FedMGDAPlus", "MaxFL"}
KEEPS_POPULATION = {"AAggFFS": "AAggFF-S", "AAggFFD": "AAggFF-D", "AFL": "AFL"}


@pytest.fixture
def flower_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> pytest.LogCaptureFixture:
    """Return all records of Flower's logger, including INFO."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    caplog.set_level(logging.INFO, logger="flwr")
    return caplog


def list_warnings(flower_log: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in flower_log.records if r.levelno == logging.WARNING]


def list_lines(flower_log: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in flower_log.records]


def configure_round(
    strategy: Strategy, grid: InProcessGrid, *, train: bool = True, round_number: int = 1
) -> list[Message]:
    """Return the messages of a round."""
    configure = strategy.configure_train if train else strategy.configure_evaluate
    return list(configure(round_number, encode_arrays(MODEL), ConfigRecord({"lr": 0.1}), grid))


def get_first_number(arrays: ArrayRecord | None) -> float:
    assert arrays is not None
    return float(decode_arrays(arrays)["w"][0])


def train_with_replies(
    strategy: Strategy,
    answer: Callable[[int, Message], Message | None],
    *,
    nodes: int = K,
    round_number: int = 1,
) -> tuple[ArrayRecord | None, MetricRecord | None]:
    """Train once with the replies that ``answer`` makes from (client, message), in order."""
    grid = make_grid(make_standard_app(), nodes)
    messages = sorted(
        configure_round(strategy, grid, round_number=round_number),
        key=lambda message: message.metadata.dst_node_id,
    )
    replies = [answer(m.metadata.dst_node_id - 1, m) for m in messages]
    return strategy.aggregate_train(round_number, [r for r in replies if r is not None])


def make_usual_reply(client: int, message: Message, **metrics: Any) -> Message:
    """Return a usual reply with changed metrics; None removes a metric."""
    numbers = {"num-examples": client + 1, "loss": LOSSES[client % K]}
    numbers |= {key.replace("num_examples", "num-examples"): v for key, v in metrics.items()}
    metrics_sent = {key: value for key, value in numbers.items() if value is not None}
    arrays = {"w": MODEL["w"] + np.float32(client)}
    return make_standard_reply(message, arrays, metrics_sent)


# --- 1: the signature ----------------------------------------------------------------------


@pytest.mark.parametrize("name", DROP_INS)
def test_the_ten_keywords_are_fedavgs(name: str) -> None:
    """Names, order and defaults agree; the rule's keywords follow, and none is required."""
    flowers = list(inspect.signature(FlowerFedAvg).parameters.values())
    ours = list(inspect.signature(DROP_INS[name]).parameters.values())
    assert [(p.name, p.default) for p in ours[:10]] == [(p.name, p.default) for p in flowers]
    assert [p.kind for p in ours[:10]] == [p.kind for p in flowers]
    assert all(p.default is not inspect.Parameter.empty for p in ours)
    names = [item.name for item in DROP_INS[name].entry.parameters]  # type: ignore[attr-defined]
    assert [p.name for p in ours[len(ours) - len(names) :]] == names
    assert all(p.kind is not inspect.Parameter.VAR_KEYWORD for p in ours)


def test_all_strategies_are_listed() -> None:
    """All named strategies are."""
    assert len(DROP_INS) == 19


@pytest.mark.parametrize("name", DROP_INS)
def test_all_strategies_run_unconfigured(name: str) -> None:
    """With an app written for FedAvg, three rounds change the model and give Flower's metrics."""
    result = drop_in(name).start(
        make_grid(make_standard_app(), K), encode_arrays(MODEL), num_rounds=3
    )
    assert get_first_number(result.arrays) > 1.0
    assert sorted(result.train_metrics_clientapp) == [1, 2, 3]
    assert sorted(result.evaluate_metrics_clientapp) == [1, 2, 3]


def test_the_rules_parameters_reach_the_rules() -> None:
    """They are keywords beside Flower's."""
    assert "cutoff=50" in str(FedAU(cutoff=50, fraction_train=0.5).rules.weighting)
    gate = FedALIGN(priority=[0, 1], num_rounds=3, epsilon=0.7).rules.selection
    assert "epsilon=0.7" in str(gate)


def test_positional_arguments_are_fedavgs() -> None:
    """All ten work by position."""
    values: tuple[Any, ...] = (0.5, 0.25, 3, 4, 5, "n", "a", "c", count_replies, count_replies)
    strategy, flowers = FedAU(*values), FlowerFedAvg(*values)
    names = list(inspect.signature(FlowerFedAvg).parameters)[:8]
    assert [getattr(strategy, n) for n in names] == [getattr(flowers, n) for n in names]
    with pytest.raises(TypeError):
        FedAU(*values, [0])  # type: ignore[call-arg]


def count_replies(replies: list[RecordDict], key: str) -> MetricRecord:
    """Aggregate metrics with a custom function."""
    return MetricRecord({"replies": len(replies), key: 1})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FedAU(cutof=50), r"FedAU has no parameter 'cutof' \(did you mean cutoff\?\)"),
        (lambda: FedAU(fraction_trian=0.5), r"did you mean fraction_train\?"),
        (lambda: FedAvg(xyz=1), "FedAvg has no parameter 'xyz'; beside those of all"),
    ],
)
def test_a_typo_is_refused_with_the_nearest_name(make: Callable[[], object], message: str) -> None:
    """The error suggests the nearest name."""
    with pytest.raises(TypeError, match=message):
        make()


def of(**keywords: Any) -> dict[str, Any]:
    """Return keywords as Any, so that mypy does not check them."""
    return keywords


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FedALIGN(num_rounds=3), "priority must be the ids of the priority clients"),
        (lambda: FedALIGN(priority=[0]), "num_rounds must be a whole number >= 1"),
        (
            lambda: FedALIGN(priority=[], num_rounds=3),
            r"priority must be a list of client ids >= 0, such as \[0, 1\], got \[\]",
        ),
        (lambda: FedAvgPriority(priority=[-1]), "priority must be a list of client ids"),
        (lambda: FedALIGN(**of(priority=0), num_rounds=3), "priority must be a list of client"),
        (
            lambda: FedAU(**of(server_optimizer="adam")),
            "such as fedquorum.rules.server_optimizer.Adam, got 'adam'",
        ),
        (
            lambda: FedAU(**of(robustness=3.0)),
            "robustness must be a fedquorum.Robustness, or None, got",
        ),
        (KnownStatistics, "probabilities must be a list of p_n for each client"),
        (MaxFL, "requirement must be a number, a list of one for each client"),
        (lambda: FedAU(fraction_train=1.5), "fraction_train must be a number >= 0 and <= 1"),
        (lambda: FedAU(server_lr=0.0), "server_lr must be a number > 0, got 0.0"),
        (lambda: FedAU(min_train_nodes=-1), "min_train_nodes must be a whole number >= 0"),
        (lambda: FedAU(cutoff=0), "cutoff must be a whole number >= 1, or inf, got 0"),
        (
            lambda: AAggFFS(fraction_train=0.5),
            r"fraction_train must be 1 for AAggFF-S \(its Newton step .* use AAggFF-D\), got 0.5",
        ),
    ],
)
def test_what_cannot_work_is_refused_at_once(make: Callable[[], object], message: str) -> None:
    """The error names the keyword, the allowed values and the given one."""
    with pytest.raises(ParameterError, match=message):
        make()


def test_the_guide_names_the_strategies_that_need_keywords() -> None:
    """It names exactly those that cannot be created without keywords."""
    needing = set()
    for name, made in DROP_INS.items():
        try:
            made()
        except ParameterError:
            needing.add(name)
    guide = (Path(__file__).parents[3] / "docs" / "drop-in.md").read_text()
    [sentence] = re.findall(r"strategies have required keywords: (.*?)\n\n", guide, re.DOTALL)
    assert set(re.findall(r"`(\w+)\(", sentence)) == needing


def test_the_guide_says_which_strategies_need_losses() -> None:
    """Its answers are those of the weightings; FedALIGN's gate has a separate row."""
    guide = (Path(__file__).parents[3] / "docs" / "drop-in.md").read_text()
    rows = re.findall(r"^\| (`.*) \| (for its gate|no|yes) \|", guide, re.MULTILINE)
    documented = {name: needs for names, needs in rows for name in re.findall(r"`(\w+)`", names)}
    gated = {"FedALIGN": "for its gate"}
    needs = {name: drop_in(name).rules.weighting.traits.needs_losses for name in DROP_INS}
    assert documented == {name: "yes" if needs[name] else "no" for name in DROP_INS} | gated


def test_a_subclass_may_define_a_constructor() -> None:
    """The subclass then has the signature of its constructor."""

    class Mine(FedAU):
        def __init__(self, rate: float) -> None:
            super().__init__(fraction_train=rate)

    assert list(inspect.signature(Mine).parameters) == ["rate"]
    assert Mine(0.5).fraction_train == 0.5


# --- 2: numbers of nodes -------------------------------------------------------------------


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("nodes", [2, 3, 7, 10])
@pytest.mark.parametrize("fraction", [0.1, 0.3, 0.5, 0.99, 1.0])
@pytest.mark.parametrize("minimum", [0, 2])
def test_as_many_clients_are_selected_as_by_fedavg(
    *, train: bool, nodes: int, fraction: float, minimum: int
) -> None:
    """A round uses max(int(n * fraction), minimum) nodes, each once, with FedAvg's message."""
    step = "train" if train else "evaluate"
    options: dict[str, Any] = {f"fraction_{step}": fraction, f"min_{step}_nodes": minimum}
    grid = make_grid(make_standard_app(), nodes)
    ours, flowers = FedAvg(**options), FlowerFedAvg(**options)
    configure_round(ours, grid)
    asked, reference = (configure_round(s, grid, train=train) for s in (ours, flowers))
    assert len(asked) == len(reference) == max(int(nodes * fraction), minimum)
    assert len({m.metadata.dst_node_id for m in asked}) == len(asked)
    for message, other in zip(asked, reference, strict=False):
        assert message.metadata.message_type == other.metadata.message_type
        assert list(message.content) == list(other.content) == ["arrays", "config"]
        assert dict(message.content["config"]) == {"lr": 0.1, "server-round": 1}
        assert message.content["arrays"] == other.content["arrays"]
        assert message.metadata.ttl == pytest.approx(other.metadata.ttl)


def test_rounds_sample_different_nodes() -> None:
    """The sample depends only on the seed and the round."""
    grid = make_grid(make_standard_app(), 10)

    def drawn(seed: int) -> list[tuple[int, ...]]:
        strategy = FedAU(fraction_train=0.5, seed=seed)
        rounds = [configure_round(strategy, grid, round_number=t) for t in range(1, 9)]
        return [tuple(sorted(m.metadata.dst_node_id for m in sent)) for sent in rounds]

    assert len(set(drawn(0))) > 4
    assert drawn(0) == drawn(0) != drawn(1)


@pytest.mark.parametrize("name", sorted(DROP_INS.keys() - {"AAggFFS"}))
def test_a_fraction_of_zero_selects_nobody_with_a_warning(
    name: str, flower_log: pytest.LogCaptureFixture
) -> None:
    """Evaluation continues and the model stays; likewise without evaluation."""
    strategy = drop_in(name, fraction_train=0.0)
    assert "fraction_train is set to 0.0. Federated training will be skipped." in flower_log.text
    grid = make_grid(make_standard_app(), K)
    seen: list[float] = []
    result = strategy.start(
        grid,
        encode_arrays(MODEL),
        num_rounds=2,
        evaluate_fn=lambda t, arrays: seen.append(get_first_number(arrays)),
    )
    assert seen == [1.0, 1.0, 1.0]
    assert result.train_metrics_clientapp == {}
    assert sorted(result.evaluate_metrics_clientapp) == [1, 2]
    assert "no update counted" not in flower_log.text
    assert configure_round(drop_in(name, fraction_train=0.0), grid) == []


def test_evaluation_can_be_disabled(flower_log: pytest.LogCaptureFixture) -> None:
    """It is disabled as in FedAvg, with the same log message."""
    for kind in (FedAU, FlowerFedAvg):
        flower_log.clear()
        result = kind(fraction_evaluate=0.0).start(
            make_grid(make_standard_app(), K), encode_arrays(MODEL), num_rounds=2
        )
        said = "fraction_evaluate is set to 0.0. Federated evaluation will be skipped."
        assert list_warnings(flower_log) == [said]
        assert result.evaluate_metrics_clientapp == {}


# --- 3 and 4: waiting, and connected nodes -------------------------------------------------


@pytest.mark.parametrize("options", [{"min_available_nodes": 3}, {"min_train_nodes": 3}])
def test_every_round_waits_for_its_nodes(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, flower_log: pytest.LogCaptureFixture
) -> None:
    """Each round waits without limit until enough nodes are connected."""
    monkeypatch.setattr("fedquorum.flower.nodes.POLL_SECONDS", 0.01)
    strategy = FedAU(**options)
    grid = ScriptedGrid(make_standard_app(), {}, 3, there={1})
    for round_number, late in ((1, {1, 2, 3}), (2, {1, 2, 3})):
        grid.there = {1, 3}
        timer = Timer(0.3, setattr, (grid, "there", late))
        timer.start()
        started = time.monotonic()
        train_round(strategy, grid, round_number)
        assert time.monotonic() - started >= 0.25
        assert strategy.step_result.report.count("trained") == 3
    assert "2 connected (minimum required: 3)" in flower_log.text


def test_evaluation_waits_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for ``min_evaluate_nodes``, as FedAvg's evaluation does."""
    monkeypatch.setattr("fedquorum.flower.nodes.POLL_SECONDS", 0.01)
    strategy = FedAU(min_evaluate_nodes=3)
    grid = ScriptedGrid(make_standard_app(), {}, 3, there={1, 2})
    model = train_round(strategy, grid)
    assert model is not None
    Timer(0.2, setattr, (grid, "there", {1, 2, 3})).start()
    assert len(configure_round(strategy, grid, train=False)) == 3


def test_fedalign_waits_for_its_priority_clients_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients 0 to 3 must connect before round 1; one that leaves later is unavailable."""
    monkeypatch.setattr("fedquorum.flower.nodes.POLL_SECONDS", 0.01)
    strategy = FedALIGN(priority=[0, 3], num_rounds=3, warmup_rounds=0)
    grid = ScriptedGrid(make_standard_app(), {}, 4, there={1, 2})
    Timer(0.2, setattr, (grid, "there", {1, 2, 3, 4})).start()
    train_round(strategy, grid)
    assert strategy.population.priority == {0, 3}
    grid.there = {1, 2}
    train_round(strategy, grid, 2)
    assert [d.client for d in strategy.step_result.report.decisions] == [0, 1]


@pytest.mark.parametrize("name", sorted(DROP_INS.keys() - KEEPS_POPULATION.keys()))
def test_joiners_are_selected_and_returning_nodes_keep_their_ids(name: str) -> None:
    """Joiners are selected from the next round on; a returning node keeps its client id."""
    loss = {1: 10.0, 2: 20.0, 3: 30.0, 4: 40.0}  # by node; partition = node - 1
    app = make_standard_app(lambda partition: {"num-examples": 10, "loss": loss[partition + 1]})
    strategy = drop_in(name, **({"warmup_rounds": 0} if name == "FedALIGN" else {}))
    grid = ScriptedGrid(app, {}, 4, there={2, 4})
    losses, model = [], encode_arrays(MODEL)
    rounds = ({2, 4}, {2, 4, 1}, {4, 1}, {2, 4, 1, 3})
    for t, there in enumerate(rounds, 1):
        grid.there = there
        model = train_round(strategy, grid, t, model) or model
        decisions = strategy.step_result.report.decisions
        losses.append({d.client: d.loss for d in decisions})
        evaluate_round(strategy, grid, t, model)
    first = {0: 20.0, 1: 40.0}
    assert losses == [
        first,
        {**first, 2: 10.0},
        {1: 40.0, 2: 10.0},
        {**first, 2: 10.0, 3: 30.0},
    ]


@pytest.mark.parametrize("name", KEEPS_POPULATION)
def test_a_joiner_is_refused_by_name_where_k_is_fixed(
    name: str, flower_log: pytest.LogCaptureFixture
) -> None:
    """The run continues with the clients of round 1, and logs the refusal once."""
    strategy = drop_in(name)
    grid = ScriptedGrid(make_standard_app(), {}, 5, there={1, 2, 3})
    statuses = []
    for t, there in enumerate(({1, 2, 3}, {1, 2, 3, 4}, {1, 3, 4, 5}, {1, 2, 3, 4}), 1):
        grid.there = there
        train_round(strategy, grid, t)
        statuses.append([d.status for d in strategy.step_result.report.decisions])
    all_there = ["trained"] * 3
    assert statuses == [all_there, all_there, ["trained", "unavailable", "trained"], all_there]
    refusal = (
        f"node 4 is refused: {KEEPS_POPULATION[name]} keeps the 3 clients that it started with"
    )
    assert flower_log.text.count(refusal) == 1


@pytest.mark.parametrize("name", KEEPS_POPULATION)
def test_k_is_fixed_by_the_nodes_of_round_1(name: str) -> None:
    """K counts connected nodes, not replies."""
    strategy = drop_in(name)
    train_with_replies(strategy, lambda k, m: make_usual_reply(k, m) if k < 2 else None)
    assert strategy.population.clients == (0, 1, 2, 3)
    moved_on, _ = train_with_replies(strategy, make_usual_reply, round_number=2)
    assert moved_on is not None
    assert [d.status for d in strategy.step_result.report.decisions] == ["trained"] * K


def test_a_client_without_a_rate_is_refused_by_name(flower_log: pytest.LogCaptureFixture) -> None:
    """Its updates could not be corrected; the run continues with the others."""
    strategy = KnownStatistics(probabilities={0: 0.5, 1: 1.0})
    grid = ScriptedGrid(make_standard_app(), {}, 3, there={1, 2})
    for t, there in enumerate(({1, 2}, {1, 2, 3}, {1, 2, 3}), 1):
        grid.there = there
        train_round(strategy, grid, t)
        assert [d.client for d in strategy.step_result.report.decisions] == [0, 1]
    refusal = "node 3 is refused: as client 2 it cannot take part, as probabilities has no rate"
    assert flower_log.text.count(refusal) == 1


def test_fedau_counts_the_rounds_without_a_client() -> None:
    """omega of a client that takes part every second round becomes 1.5, connected or not."""
    strategy = FedAU()
    grid = ScriptedGrid(make_standard_app(), {}, 3)
    for t in range(1, 6):
        grid.there = {1, 2, 3} if t % 2 else {1, 2}
        train_round(strategy, grid, t)
    omega = {d.client: d.participation_correction for d in strategy.step_result.report.decisions}
    assert omega == {0: 1.0, 1: 1.0, 2: 1.5}


def test_a_simulation_cannot_assign_priority_by_chance() -> None:
    """The run stops in round 1 with two alternatives; without non-priority clients it works."""
    grid = make_simulation_grid(make_standard_app(), 3)
    assert isinstance(grid, InMemoryGrid)
    arrays = encode_arrays(MODEL)
    ways = "client_ids must be query in a simulation, .* partition-id.*, or run a deployment"
    strategy: DropInStrategy
    for strategy in (FedALIGN(**GATE), FedAvgPriority(priority=[0])):
        with pytest.raises(ParameterError, match=ways):
            strategy.start(grid, arrays, num_rounds=1)
    for strategy in (FedAU(), FedALIGN(priority=[0, 1, 2], num_rounds=3)):
        assert len(strategy.start(grid, arrays, num_rounds=1).arrays) == 1
    assert len(FedALIGN(**GATE).start(make_grid(make_standard_app(), 3), arrays, 1).arrays) == 1


def make_device_grid(count: int) -> KeyedGrid:
    """Return nodes with keys that run the standard app."""
    return KeyedGrid([[k] for k in range(count)], make_standard_app())


@pytest.mark.parametrize("priority", [[0, 1], [0, 77], [0, 1, 2, 3]])
def test_a_deployment_cannot_assign_priority_unasked(priority: list[int]) -> None:
    """The lowest of the random node ids is no choice; the error has the nodes and what to type."""
    nodes = make_device_grid(4)
    strategy = FedALIGN(priority=priority, num_rounds=3)
    with pytest.raises(ParameterError) as refused:
        train_round(strategy, make_deployment_grid(nodes))
    text = str(refused.value)
    assert text.startswith(
        "client_ids must be given in a deployment with priority clients, unless "
    )
    for word in ('clients_by_key={"KEY": 0}', 'client_ids="query"', 'client_ids="node-order"'):
        assert word in text
    for client in range(4):
        key = nodes.get_fingerprint(client + 1)
        assert f"client {client} is node {client + 1} with key {key}" in text
    assert text.endswith("got None")
    assert "\n" not in text
    assert nodes.kinds == []


@pytest.mark.parametrize("name", ["FedAvgPriority", "FedGP"])
def test_every_strategy_with_priority_needs_named_nodes(name: str) -> None:
    """A strategy without priority does not."""
    with pytest.raises(ParameterError, match="client_ids must be given in a deployment"):
        train_round(
            getattr(fedquorum, name)(priority=[1]), make_deployment_grid(make_device_grid(2))
        )
    assert train_round(FedAU(), make_deployment_grid(make_device_grid(2)))


def test_the_order_of_nodes_may_be_chosen(flower_log: pytest.LogCaptureFixture) -> None:
    """The log then has which node is which client."""
    nodes = make_device_grid(3)
    strategy = FedALIGN(**GATE, client_ids="node-order")
    assert train_round(strategy, make_deployment_grid(nodes)) is not None
    for client, label in ((0, " (priority)"), (1, " (priority)"), (2, "")):
        host = f"node {client + 1} with key {nodes.get_fingerprint(client + 1)}"
        assert f"Client {client}{label} is {host}" in flower_log.text


def test_a_key_names_the_priority_client(flower_log: pytest.LogCaptureFixture) -> None:
    """Node 3 is client 0, though its id is the highest, and nodes of other keys take no part."""
    nodes = make_device_grid(4)
    form = (Encoding.OpenSSH, PublicFormat.OpenSSH)
    public = nodes.keys[3].public_key().public_bytes(*form).decode()
    nodes.labels = {1: "South"}
    strategy = FedALIGN(
        priority=[0],
        num_rounds=3,
        warmup_rounds=0,
        clients_by_key={f"{public} here": 0, "South": 1, nodes.get_fingerprint(2): [2]},
    )
    train_round(strategy, make_deployment_grid(nodes))
    assert {k: host.node for k, host in strategy.client_hosts.items()} == {0: 3, 1: 1, 2: 2}
    assert strategy.population.priority == {0}
    assert {message.metadata.dst_node_id for message in nodes.messages} == {1, 2, 3}
    assert f"Client 0 (priority) is node 3 with key {nodes.get_fingerprint(3)}" in flower_log.text
    with pytest.raises(ClientsMissingError, match="nodes have no keys, as in a simulation"):
        train_round(FedALIGN(**GATE, clients_by_key={"a": 0, "b": 1}), make_grid(ClientApp(), 2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clients_by_key": {}}, "clients_by_key must be a dict of public keys and their clients"),
        ({"clients_by_key": ["a"]}, "clients_by_key must be a dict of public keys"),
        ({"clients_by_key": {"a": -1}}, "clients_by_key must be a dict .*got {'a': -1}"),
        ({"clients_by_key": {0: "a"}}, "clients_by_key must be a dict .*got {0: 'a'}"),
        ({"clients_by_key": {"a": 0, "b": 0}}, "each client once, got {'b': 0}"),
        ({"clients_by_key": {"a": [0, 1]}}, 'must be one client for each key, or client_ids="que'),
        (
            {"clients_by_key": {"a": 0, "b": 1}, "priority": [0, 77]},
            r"priority must be among the clients in clients_by_key, 0, 1, got \[77\]",
        ),
        (
            {"clients_by_key": {"a": 0}, "client_ids": "node-order"},
            "client_ids must be key or query with clients_by_key",
        ),
        ({"client_ids": "key"}, "clients_by_key must be the client of each public key"),
        ({"startup_timeout": 0}, "startup_timeout must be a number > 0"),
    ],
)
def test_wrong_keys_are_refused_at_once(options: dict[str, Any], message: str) -> None:
    """The error names the keyword and what is allowed."""
    with pytest.raises(ParameterError, match=message):
        FedALIGN(**{"priority": [0], "num_rounds": 3, **options})


def test_a_priority_client_that_never_comes_ends_the_start(
    monkeypatch: pytest.MonkeyPatch, flower_log: pytest.LogCaptureFixture
) -> None:
    """The error and the log say which clients there are."""
    monkeypatch.setattr("fedquorum.flower.nodes.POLL_SECONDS", 0.01)
    strategy = FedALIGN(
        priority=[0, 77], num_rounds=3, client_ids="node-order", startup_timeout=0.1
    )
    message = "priority must be among the clients 0, 1, 2, 3, which are connected, got 77 too"
    with pytest.raises(ClientsMissingError, match=message):
        train_round(strategy, make_deployment_grid(make_device_grid(4)))
    waiting = "missing priority clients: 77, connected ones: 0, 1, 2, 3"
    assert waiting in flower_log.text


def test_a_simulation_does_not_wait_for_a_client_that_it_lacks() -> None:
    """All its nodes are there from the start."""
    grid = make_simulation_grid(make_query_app(3), 4)
    strategy = FedALIGN(priority=[0, 77], num_rounds=3, client_ids="query")
    with pytest.raises(ClientsMissingError, match=r"among the clients 0, 1, 2, 3, .* got 77 too"):
        train_round(strategy, grid)


def test_a_wait_for_nodes_that_were_there_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, flower_log: pytest.LogCaptureFixture
) -> None:
    """A node that has left for good need not hold the federation."""
    monkeypatch.setattr("fedquorum.flower.nodes.POLL_SECONDS", 0.01)
    grid = ScriptedGrid(make_standard_app(), {}, 3, there={1, 2, 3})
    strategy = FedAU(min_available_nodes=3)
    train_round(strategy, grid)
    assert "left for good" not in flower_log.text
    grid.there = {1, 2}
    Timer(0.1, setattr, (grid, "there", {1, 2, 3})).start()
    train_round(strategy, grid, 2)
    assert "go on with resume_from and a lower min_available_nodes" in flower_log.text


@pytest.mark.parametrize("deployed", [True, False])
def test_a_broken_node_is_named_once(deployed: bool, flower_log: pytest.LogCaptureFixture) -> None:
    """In a deployment, with its node; the nodes of a simulation have no names."""
    nodes = make_device_grid(3)
    nodes.failing = {t: {2: "RuntimeError: no GPU"} for t in (1, 2)}
    strategy, grid = FedAU(), make_deployment_grid(nodes) if deployed else nodes
    for server_round in (1, 2):
        train_round(strategy, grid, server_round)
    host = f"node 2 with key {nodes.get_fingerprint(2)}"
    named = flower_log.text.count(f"Client 1 on {host} failed: RuntimeError: no GPU")
    assert named == int(deployed)
    warnings = [one for one in flower_log.records if one.levelname == "WARNING"]
    assert sum("no GPU" in one.getMessage() for one in warnings) == 1


def make_query_app(offset: int) -> ClientApp:
    """Return an app whose nodes report their client ids."""
    app = make_standard_app()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        client = offset - int(context.node_config["partition-id"])
        content = RecordDict({"metrics": MetricRecord({"client-id": client})})
        return Message(content, reply_to=message)

    return app


def test_nodes_may_report_their_client_ids() -> None:
    """Priority then follows the data, even in a simulation."""
    strategy = FedALIGN(**GATE, client_ids="query", warmup_rounds=0, epsilon=0.0)
    result = strategy.start(
        make_simulation_grid(make_query_app(3), 4), encode_arrays(MODEL), num_rounds=1
    )
    assert get_first_number(result.arrays) == pytest.approx(1 + (3 + 4) / 2)


def test_an_app_without_a_query_function_ends_the_run() -> None:
    """The error names the missing function and the page, instead of waiting."""
    strategy = FedALIGN(**GATE, client_ids="query")
    with pytest.raises(ClientsMissingError, match=r"@app\.query\(\).*'Who is client 0'"):
        strategy.start(
            make_simulation_grid(make_standard_app(), 4), encode_arrays(MODEL), num_rounds=1
        )


def test_a_node_without_a_query_reply_delays_no_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its reply counts whenever it arrives."""
    monkeypatch.setattr("fedquorum.flower.nodes.QUERY_SECONDS", 0.1)
    monkeypatch.setattr("fedquorum.flower.nodes.POLL_SECONDS", 0.01)

    strategy = FedAU(client_ids="query")
    grid = ScriptedGrid(make_query_app(2), {}, 3, mute={3})
    train_round(strategy, grid)
    assert [d.client for d in strategy.step_result.report.decisions] == [1, 2]
    grid.mute = ()
    train_round(strategy, grid, 2)
    train_round(strategy, grid, 3)
    assert [d.client for d in strategy.step_result.report.decisions] == [0, 1, 2]


# --- 5: numbers that no rule reads ---------------------------------------------------------

UNREAD: list[dict[str, Any]] = [
    {"loss": math.nan},
    {"loss": -1.0},
    {"loss": math.inf},
    {"loss": [1.0, 2.0]},
    {"loss": []},
    {"loss": None},
]
ODD = {"accuracy": 87.5, "train_loss": [1.0], "other": math.nan, "history": [1.0, 2.0]}


@pytest.mark.parametrize("name", DROP_INS)
def test_unread_metrics_may_be_anything(name: str) -> None:
    """Every update counts with accuracies in percent, lists or NaN, in all 17 strategies."""
    strategy = drop_in(name)
    arrays, _ = train_with_replies(strategy, lambda k, m: make_usual_reply(k, m, **ODD))
    assert arrays is not None
    statuses = {d.status for d in strategy.step_result.report.decisions}
    assert statuses == {"trained"}


@pytest.mark.parametrize("name", sorted(DROP_INS.keys() - NEEDS_LOSS))
@pytest.mark.parametrize("metrics", UNREAD, ids=str)
def test_an_unread_loss_may_be_anything(name: str, metrics: dict[str, Any]) -> None:
    """The model is that of the same replies with a proper loss, to the last bit."""
    options: dict[str, Any] = {"epsilon": 0.0} if name == "FedALIGN" else {}
    odd, _ = train_with_replies(
        drop_in(name, **options), lambda k, m: make_usual_reply(k, m, **metrics)
    )
    plain, _ = train_with_replies(drop_in(name, **options), make_usual_reply)
    assert odd is not None
    assert odd == plain


@pytest.mark.parametrize("metrics", [m for m in UNREAD if m["loss"] != -1.0], ids=str)
def test_fedalign_counts_priority_clients_whatever_their_loss(metrics: dict[str, Any]) -> None:
    """F is the mean of the finite losses, and the gate compares with it."""
    strategy = FedALIGN(**GATE, warmup_rounds=0, epsilon=0.3)
    train_with_replies(strategy, lambda k, m: make_usual_reply(k, m, **(metrics if k == 0 else {})))
    report = strategy.step_result.report
    assert report.objective.loss == pytest.approx(1.1)
    assert [d.weight for d in report.decisions] == pytest.approx([1 / 6, 2 / 6, 3 / 6, 0])


@pytest.mark.parametrize("name", DROP_INS)
@pytest.mark.parametrize("weights", [(0, 1, 2.5, 3), (0.1, 0.2, 0.0, 1e-9), (1e300, 1, 1, 1)])
def test_weights_may_be_any_finite_numbers(name: str, weights: tuple[float, ...]) -> None:
    """Weights start from 0; unusable weights do not end the run."""
    strategy = drop_in(name)
    arrays, _ = train_with_replies(
        strategy, lambda k, m: make_usual_reply(k, m, num_examples=weights[k])
    )
    assert {d.status for d in strategy.step_result.report.decisions} == {"trained"}
    assert arrays is not None
    assert np.isfinite(decode_arrays(arrays)["w"]).all()


def test_a_weight_of_zero_counts_as_nothing() -> None:
    """The model is FedAvg's, of the same replies."""
    strategies = FedAvg(), FlowerFedAvg()
    results = [
        train_with_replies(s, lambda k, m: make_usual_reply(k, m, num_examples=(0, 1, 2.5, 3)[k]))
        for s in strategies
    ]
    ours, flowers = (decode_arrays(arrays)["w"] for arrays, _ in results if arrays is not None)
    np.testing.assert_allclose(ours, flowers, rtol=1e-6)
    assert dict(results[0][1] or {}) == pytest.approx(dict(results[1][1] or {}))


@pytest.mark.parametrize("name", DROP_INS)
def test_a_round_without_data_does_not_end_the_run(name: str) -> None:
    """FedAvg would divide by zero."""
    strategy = drop_in(name)
    for t in (1, 2):
        arrays, _ = train_with_replies(
            strategy, lambda k, m: make_usual_reply(k, m, num_examples=0), round_number=t
        )
        assert arrays is None or np.isfinite(decode_arrays(arrays)["w"]).all()


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("name", DROP_INS)
def test_arrays_of_another_precision_are_converted(name: str, dtype: str) -> None:
    """The model keeps its precision."""
    strategy = drop_in(name)
    arrays = train_round(strategy, make_grid(make_standard_app(dtype=dtype), K))
    assert arrays is not None
    assert decode_arrays(arrays)["w"].dtype == np.float32
    assert {d.status for d in strategy.step_result.report.decisions} == {"trained"}


@pytest.mark.parametrize("name", DROP_INS)
def test_partial_models_are_accepted(name: str) -> None:
    """An adapter alone works if the replies match the initial arrays."""
    adapter = encode_arrays({"lora.a": np.zeros((2, 1), np.float32), "lora.b": MODEL["w"]})
    result = drop_in(name).start(make_grid(make_standard_app(), K), adapter, num_rounds=2)
    assert list(result.arrays) == ["lora.a", "lora.b"]


# --- 6: never complete without learning ----------------------------------------------------


@pytest.mark.parametrize(
    ("name", "app", "message"),
    [
        (
            "FedAU",
            make_standard_app(lambda k: {"n": 3, f"loss-{k}": 1.0}),
            "'num-examples' is missing in the metrics; found 'loss-0', 'n'. Set weighted_by_key to",
        ),
        (
            "AAggFFS",
            make_standard_app(lambda k: {"num-examples": 3, "avg": 1.0}),
            "'train-loss' is missing in the metrics; found 'avg', 'num-examples'. Set loss_key to",
        ),
        (
            "FedAU",
            make_standard_app(names=()),
            "the model's arrays w are missing. Let the ClientApp reply the arrays",
        ),
    ],
)
def test_a_run_that_cannot_learn_stops_in_round_1(name: str, app: ClientApp, message: str) -> None:
    """The error names the key, the keys found and the setting."""
    with pytest.raises(ProtocolError, match=re.escape(message)):
        drop_in(name).start(make_grid(app, K), encode_arrays(MODEL), num_rounds=2)


def test_replies_that_are_all_too_large_stop_as_well() -> None:
    """The server refuses them for their size in every round."""
    with pytest.raises(ProtocolError, match=r"at most 5 are expected\. Set max_reply_bytes"):
        train_round(FedAU(max_reply_bytes=5), make_grid(make_standard_app(), K))


@pytest.mark.parametrize(
    "answers",
    [
        {0: {"num_examples": None}},  # one reply only
        {0: {"num_examples": None}, 1: {"num_examples": [1]}},  # two reasons
        {0: {"num_examples": -1}, 1: {"num_examples": -1}},  # numbers, which may change
        {0: {"num_examples": None}, 1: {"num_examples": None}, 2: {}},  # one that counts
    ],
    ids=["one", "two reasons", "values", "one counts"],
)
def test_changeable_reasons_do_not_stop_the_run(answers: dict[int, dict[str, Any]]) -> None:
    """A run stops only if at least two replies are all malformed for one reason."""
    strategy = FedAU()
    train_with_replies(
        strategy, lambda k, m: make_usual_reply(k, m, **answers[k]) if k in answers else None
    )
    train_with_replies(strategy, make_usual_reply, round_number=2)
    assert strategy.step_result.report.count("trained") == K


def test_later_rounds_warn_once_with_a_count(flower_log: pytest.LogCaptureFixture) -> None:
    """A reason is a warning the first time, regardless of its numbers."""
    strategy = FedAU()
    train_with_replies(strategy, make_usual_reply)
    for t in range(2, 6):
        train_with_replies(
            strategy, lambda k, m: make_usual_reply(k, m, num_examples=None), round_number=t
        )
    for t in range(6, 9):
        broken = lambda k, m, t=t: make_usual_reply(k, m, **({"num_examples": -t} if k < 2 else {}))  # noqa: E731
        train_with_replies(strategy, broken, round_number=t)
    rejected = [line.strip() for line in list_warnings(flower_log) if "rejected" in line]
    assert rejected == [
        "> 4 updates rejected: 'num-examples' is missing in the metrics; found 'loss'",
        "> 2 updates rejected: the amount of data is -6, not a finite number >= 0",
    ]
    assert sum("updates rejected" in line for line in list_lines(flower_log)) == 7


def test_a_round_without_available_clients_does_not_stop_the_run() -> None:
    """Reports of unavailable clients from the availability mod are understood."""

    def mod(rate: float) -> AvailabilityMod:
        def of_node(context: Context) -> NodeAvailability:
            hosted = (7 + int(context.node_config["partition-id"]),)
            return NodeAvailability(3, hosted, lambda k: Bernoulli(rate))

        return AvailabilityMod(of_node)

    for rate, counts in ((1e-9, (0, K)), (0.5, None)):
        app = ClientApp(mods=[mod(rate)])
        inner = make_standard_app()

        @app.train()
        def train(message: Message, context: Context, inner: ClientApp = inner) -> Message:
            return inner(message, context)

        strategy = FedAU()
        grid, seen = make_grid(app, K), set()
        for t in range(1, 6):
            train_round(strategy, grid, t)
            decisions = strategy.step_result.report.decisions
            assert {d.status for d in decisions} <= {"trained", "unavailable"}
            seen.add(strategy.step_result.report.count("trained"))
            if counts:
                assert strategy.step_result.report.count("unavailable") == K
        assert counts is not None or len(seen) > 1


# --- the project's protocol ----------------------------------------------------------------


def make_native_app(clients: int, losses: Mapping[int, float] | None = None) -> ClientApp:
    """Return an app of this project's protocol, whose client k moves the model by k + 1."""

    def fit(client: int, task: TrainTask, arrays: NamedArrays) -> TrainResult:
        by = np.float32(client + 1)
        return replace(make_train_result(client, 0.0), arrays={"w": arrays["w"] + by})

    return make_scripted_app(clients, fit, losses)


def start(strategy: Strategy, grid: InProcessGrid, num_rounds: int = 3) -> ArrayRecord:
    return strategy.start(grid, encode_arrays(MODEL), num_rounds=num_rounds).arrays


def get_reasons(strategy: ComposedStrategy) -> dict[int, str | None]:
    """Return the reason of the last decision on every client."""
    return {d.client: d.reason for d in strategy.step_result.report.decisions}


@pytest.mark.parametrize("hosted", [1, 2])
@pytest.mark.parametrize("name", DROP_INS)
def test_every_strategy_speaks_the_projects_protocol(name: str, hosted: int) -> None:
    """The clients are those that the nodes host, from round 1 on."""
    clients = hosted * K
    options = {"probabilities": dict.fromkeys(range(clients), 0.5)}
    options = options if name == "KnownStatistics" else {}
    strategy = drop_in(name, protocol="fedquorum", **options)
    grid = ScriptedGrid(make_native_app(clients), {}, K)
    model = start(strategy, grid)
    assert strategy.population.clients == tuple(range(clients))
    assert strategy.step_result.report.server_round == 3
    assert strategy.step_result.report.num_admitted > 0
    assert get_first_number(model) != MODEL["w"][0]
    kinds = [kind for kind, _ in grid.sent]
    assert kinds[:K] == [MessageType.QUERY] * K
    assert kinds.count(MessageType.QUERY) == K
    for server_round in (1, 2, 3):
        asked = [
            k
            for c in grid.get_round_configs(MessageType.TRAIN, server_round)
            for k in c["client-id"]
        ]
        assert sorted(asked) == sorted(set(asked))
        assert asked
        assert set(asked) <= set(range(clients))


@pytest.mark.parametrize("name", DROP_INS)
def test_the_models_equal_those_with_a_known_population(name: str) -> None:
    """After every round, the first one included."""
    strategy = drop_in(name, protocol="fedquorum")
    path = []

    def central(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        path.append(get_first_number(arrays))
        return MetricRecord({})

    grid = make_grid(make_native_app(K), K)
    strategy.start(grid, encode_arrays(MODEL), num_rounds=3, evaluate_fn=central)
    known = ComposedStrategy(strategy.rules, population=strategy.population)
    assert path[0] == MODEL["w"][0]
    assert path[1:] == run_from_first_weights(
        known, make_grid(make_native_app(K), K), rounds=(1, 2, 3)
    )


def run_from_first_weights(
    strategy: ComposedStrategy, grid: InProcessGrid, rounds: Iterable[int]
) -> list[float]:
    """Run rounds as Flower's loop does; return the model's first number after each."""
    arrays, path = encode_arrays(MODEL), []
    strategy.evaluate_initial(arrays, grid)
    for server_round in rounds:
        arrays = train_round(strategy, grid, server_round, arrays) or arrays
        evaluate_round(strategy, grid, server_round, arrays)
        path.append(get_first_number(arrays))
    return path


def test_native_clients_decide_and_evaluate_f() -> None:
    """FedALIGN's clients receive F(w_t) and epsilon in every round, including the first."""
    losses = dict(enumerate((1.0, 2.0, 1.5, 9.0)))
    strategy = FedALIGN(
        protocol="fedquorum",
        priority=[0, 1],
        num_rounds=3,
        warmup_fraction=0.0,
        fraction_evaluate=0.0,
    )
    grid = ScriptedGrid(make_native_app(K, losses), {}, 2)
    start(strategy, grid)
    for server_round in (1, 2, 3):
        for config in grid.get_round_configs(MessageType.TRAIN, server_round):
            assert config["global-loss"] == pytest.approx(1.5)
            assert "epsilon" in config
    assert strategy.population.priority == {0, 1}
    assert strategy.population.non_priority_clients == (2, 3)


def test_fractions_and_minima_count_clients() -> None:
    """Of 8 clients on 2 nodes, a quarter trains and half evaluates."""
    grid = ScriptedGrid(make_native_app(8), {}, 2)
    strategy = FedAU(protocol="fedquorum", fraction_train=0.25, fraction_evaluate=0.5)
    start(strategy, grid, num_rounds=1)
    [*trained_here] = grid.get_round_configs(MessageType.TRAIN, 1)
    [*evaluated_here] = grid.get_round_configs(MessageType.EVALUATE, 1)
    assert sum(len(config["client-id"]) for config in trained_here) == 2
    assert sum(len(config["client-id"]) for config in evaluated_here) == 4


@pytest.mark.parametrize("name", ["FedAU", "AAggFFS"])
def test_joiners_take_part_in_the_protocol(name: str, flower_log: pytest.LogCaptureFixture) -> None:
    """A node that connects after round 2 is queried; its clients join if the rules allow it."""
    grid = ScriptedGrid(make_native_app(6), {}, 3, there=[1, 2])
    strategy = drop_in(name, protocol="fedquorum")

    def central(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        if server_round == 2:
            grid.there = {1, 2, 3}
        return MetricRecord({})

    strategy.start(grid, encode_arrays(MODEL), num_rounds=5, evaluate_fn=central)
    fixed = name in KEEPS_POPULATION
    assert strategy.population.clients == ((0, 1, 3, 4) if fixed else (0, 1, 2, 3, 4, 5))
    assert len(strategy.step_result.report.decisions) == (4 if fixed else 6)
    refusals = [
        line
        for line in list_warnings(flower_log)
        if "keeps the 4 clients that it started with" in line
    ]
    assert bool(refusals) == fixed


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("weighted_by_key", "n"),
        ("arrayrecord_key", "model"),
        ("configrecord_key", "settings"),
        ("loss_key", "nll"),
        ("accuracy_key", "acc"),
        ("client_ids", "query"),
        ("max_reply_bytes", 10**6),
        ("train_metrics_aggr_fn", count_replies),
        ("evaluate_metrics_aggr_fn", count_replies),
    ],
)
def test_settings_without_effect_in_the_protocol_are_refused(name: str, value: Any) -> None:
    """A key or a function that would never be used raises an error."""
    said = rf'{name} must be .*, its default, with protocol="fedquorum" \(.*\), got '
    with pytest.raises(ParameterError, match=said):
        FedAU(protocol="fedquorum", **{name: value})


def test_another_protocol_is_refused() -> None:
    """The error is immediate and lists the protocols."""
    with pytest.raises(ParameterError, match="protocol must be one of standard, fedquorum, got "):
        FedAU(protocol="flower")


def test_standard_apps_are_not_queried() -> None:
    """A standard ClientApp gets only messages to train and to evaluate."""
    grid = ScriptedGrid(make_standard_app(), {}, K)
    strategy = FedAU()
    start(strategy, grid, 4)
    assert {kind for kind, _ in grid.sent} == {MessageType.TRAIN, MessageType.EVALUATE}
    assert strategy.step_result.report.count("trained") == K


def test_traffic_counts_the_initial_evaluation() -> None:
    """Messages before round 1 count as well."""
    options: dict[str, Any] = {"protocol": "fedquorum", "fraction_evaluate": 0.0}
    bytes_down = []
    for strategy in (FedAU(**options), FedALIGN(**GATE, **options)):
        start(strategy, make_grid(make_native_app(K), K), 1)
        bytes_down.append(strategy.step_result.traffic.bytes_down)
    assert bytes_down[0] > K * MODEL["w"].nbytes
    assert bytes_down[1] > bytes_down[0] + 2 * MODEL["w"].nbytes


# --- the other protocol: standard, with nodes in the project's protocol --------------------

OTHER = "its reply is in FedQuorum's protocol, for 2 clients, and not in Flower's standard form"
SET_FEDQUORUM = (
    r"every client that trained in round {} replied in FedQuorum's protocol, for several clients "
    r"of a node: set protocol=\"fedquorum\" \(not inside one of Flower's wrappers\)$"
)


def make_native_reply(message: Message, *statuses: Status) -> Message:
    """Return a reply of this project's protocol, for a client of each status."""
    answers = [
        make_train_result(k, 1.0) if status is Status.DONE else TrainResult(k, status, reason=None)
        for k, status in enumerate(statuses)
    ]
    return Message(encode_train_reply(answers), reply_to=message)


def make_reply_of_several(message: Message) -> Message:
    """Return a reply for two clients that trained."""
    return make_native_reply(message, Status.DONE, Status.DONE)


def make_mixed_grid(
    reply: Callable[[int, int, Message], Message], app: ClientApp | None = None
) -> ScriptedGrid:
    """Return nodes whose train replies are ``reply(round, client, message)``."""

    def made(message: Message) -> Message | None:
        kind, server_round = read_kind_and_round(message)
        client = message.metadata.dst_node_id - 1
        return reply(server_round, client, message) if kind == MessageType.TRAIN else None

    return ScriptedGrid(app or make_standard_app(), {}, K, reply=made)


@pytest.mark.parametrize("name", DROP_INS)
def test_nodes_of_several_clients_stop_round_1(name: str) -> None:
    """The error names the keyword and its value; no further message is sent."""
    grid = ScriptedGrid(make_native_app(2 * K), {}, K)
    with pytest.raises(ProtocolError, match=SET_FEDQUORUM.format(1)):
        start(drop_in(name), grid)
    assert {kind for kind, _ in grid.sent} == {MessageType.TRAIN}


def test_one_node_alone_is_refused_as_well() -> None:
    """It is the only client that trained."""
    strategy = FedAU(min_train_nodes=1, min_available_nodes=1)
    with pytest.raises(ProtocolError, match=SET_FEDQUORUM.format(1)):
        start(strategy, make_grid(make_native_app(2), 1))


def test_a_reply_for_one_client_counts_with_one_warning(
    flower_log: pytest.LogCaptureFixture,
) -> None:
    """It counts in every round, as in Flower's FedAvg."""
    strategy = FedAvg(fraction_evaluate=0.0)
    model = start(strategy, make_grid(make_native_app(K), K), 3)
    assert strategy.step_result.report.count("trained") == K
    assert get_first_number(model) == pytest.approx(MODEL["w"][0] + 3 * 2.5)
    flowers = start(FlowerFedAvg(fraction_evaluate=0.0), make_grid(make_native_app(K), K), 3)
    assert get_first_number(model) == get_first_number(flowers)
    (warning,) = [line for line in list_warnings(flower_log) if "FedQuorum's protocol" in line]
    assert "for one client, and counts as one in Flower's standard form" in warning
    assert warning.endswith('set protocol="fedquorum" (not inside one of Flower\'s wrappers)')


def test_a_single_native_reply_is_logged_as_a_warning(flower_log: pytest.LogCaptureFixture) -> None:
    """The warning comes in any round."""

    def reply(server_round: int, client: int, message: Message) -> Message:
        ours = server_round == 2 and client == 3
        return (
            make_native_reply(message, Status.DONE) if ours else make_usual_reply(client, message)
        )

    strategy = FedAU(fraction_evaluate=0.0)
    start(strategy, make_mixed_grid(reply), 1)
    assert "FedQuorum's protocol" not in flower_log.text
    start(FedAU(fraction_evaluate=0.0), make_mixed_grid(reply), 3)
    assert len([line for line in list_warnings(flower_log) if "for one client" in line]) == 1


@pytest.mark.parametrize("first", [1, 2])
def test_some_nodes_of_several_clients_are_rejected_and_the_run_continues(
    first: int, flower_log: pytest.LogCaptureFixture
) -> None:
    """They have a reason, which is logged once as a warning."""

    def reply(server_round: int, client: int, message: Message) -> Message:
        ours = client < 2 and server_round >= first
        return make_reply_of_several(message) if ours else make_usual_reply(client, message)

    strategy = FedAU(fraction_evaluate=0.0)
    start(strategy, make_mixed_grid(reply), 4)
    assert strategy.step_result.report.server_round == 4
    assert get_reasons(strategy) == {0: OTHER, 1: OTHER, 2: None, 3: None}
    assert strategy.step_result.report.count("rejected") == 2
    assert [line for line in list_warnings(flower_log) if "rejected" in line] == [
        f"\t> 2 updates rejected: {OTHER}"
    ]


def test_one_standard_reply_in_the_first_round_lets_the_run_continue() -> None:
    """Later replies do not matter: a round with training has passed."""

    def reply(server_round: int, client: int, message: Message) -> Message:
        standard = server_round == 1 and client == 0
        return make_usual_reply(client, message) if standard else make_reply_of_several(message)

    strategy = FedAU(fraction_evaluate=0.0)
    start(strategy, make_mixed_grid(reply), 4)
    assert set(get_reasons(strategy).values()) == {OTHER}


def test_an_unusable_standard_reply_is_one_of_its_form() -> None:
    """Its client trained and replied in the right form."""

    def reply(server_round: int, client: int, message: Message) -> Message:
        if client == 0:
            return make_standard_reply(message, MODEL, {"loss": 1.0})
        return make_reply_of_several(message)

    strategy = FedAU(fraction_evaluate=0.0)
    start(strategy, make_mixed_grid(reply), 2)
    assert strategy.step_result.report.count("rejected") == K


ABSENT = (Status.UNAVAILABLE, Status.FAILED)


@pytest.mark.parametrize("hosted", [1, 2])
@pytest.mark.parametrize("others", ["several", "standard", "mixed"])
def test_absent_and_failed_replies_do_not_indicate_a_protocol(hosted: int, others: str) -> None:
    """The first round with training decides, by the clients that trained in it.

    No client trains in rounds 1 and 2; clients 0 and 1 train in round 3.
    """

    def reply(server_round: int, client: int, message: Message) -> Message:
        if server_round == 2 and client == 3:
            return Message(Error(1, "boom"), reply_to=message)
        if server_round < 3 or client > 1:
            return make_native_reply(message, *[ABSENT[client % 2]] * hosted)
        ours = others == "several" or (others == "mixed" and client == 0)
        return make_reply_of_several(message) if ours else make_usual_reply(client, message)

    strategy = FedAU(fraction_evaluate=0.0)
    grid = make_mixed_grid(reply)
    if others == "several":
        with pytest.raises(ProtocolError, match=SET_FEDQUORUM.format(3)):
            start(strategy, grid, 5)
        assert len(grid.get_round_configs(MessageType.TRAIN, 3)) == K
        assert not grid.get_round_configs(MessageType.TRAIN, 4)
        return
    start(strategy, grid, 5)
    report = strategy.step_result.report
    assert report.server_round == 5
    assert (report.count("unavailable"), report.count("failed")) == (1, 1)
    assert report.count("trained") == (1 if others == "mixed" else 2)
    assert report.count("rejected") == (1 if others == "mixed" else 0)


def test_a_reply_for_no_client_has_failed() -> None:
    """No client trained in it."""

    def reply(server_round: int, client: int, message: Message) -> Message:
        return make_native_reply(message)

    strategy = FedAU(fraction_evaluate=0.0)
    start(strategy, make_mixed_grid(reply), 2)
    assert strategy.step_result.report.count("failed") == K
    assert set(get_reasons(strategy).values()) == {"its node replied for no client"}


def test_a_failed_round_is_not_the_first_with_training() -> None:
    """Neither is a round without replies."""

    def reply(server_round: int, client: int, message: Message) -> Message:
        if server_round == 1:
            return Message(Error(1, "boom"), reply_to=message)
        return make_reply_of_several(message)

    with pytest.raises(ProtocolError, match=SET_FEDQUORUM.format(2)):
        start(FedAU(fraction_evaluate=0.0), make_mixed_grid(reply))


@pytest.mark.parametrize("app", ["standard", "one", "several"])
def test_replies_of_the_availability_mod_do_not_indicate_a_protocol(
    app: str, flower_log: pytest.LogCaptureFixture
) -> None:
    """The mod replies in the project's protocol; no client is available in round 1."""
    inner = (
        make_standard_app() if app == "standard" else make_native_app(K if app == "one" else 2 * K)
    )
    hosts = 2 if app == "several" else 1

    def get_availability(context: Context) -> NodeAvailability:
        node = context.node_id - 1
        clients = [node + K * i for i in range(hosts)]
        return NodeAvailability(seed=0, hosted=clients, process=lambda _: Trace(frozenset({2, 3})))

    grid = ScriptedGrid(add_mods(inner, AvailabilityMod(get_availability)), {}, K)
    strategy = FedAU(fraction_evaluate=0.0)
    if app == "several":
        with pytest.raises(ProtocolError, match=SET_FEDQUORUM.format(2)):
            start(strategy, grid)
        return
    start(strategy, grid)
    assert strategy.step_result.report.count("trained") == K
    warned = [line for line in list_warnings(flower_log) if "for one client" in line]
    assert len(warned) == (app == "one")


def test_evaluations_in_the_other_form_are_rejected(flower_log: pytest.LogCaptureFixture) -> None:
    """Without training there are no other replies, and the run continues."""
    strategy = FedAU(fraction_train=0.0)
    grid = ScriptedGrid(make_native_app(2 * K), {}, K)
    start(strategy, grid, 2)
    assert len(grid.get_round_configs(MessageType.EVALUATE, 2)) == K
    assert f"Client 0: unusable evaluation: {OTHER}" in list_warnings(flower_log)


@pytest.mark.parametrize("kind", WRAPPERS)
def test_wrappers_of_flowers_see_one_client_on_each_node(kind: str) -> None:
    """Nodes of one client work in wrappers; nodes of several and the protocol are refused."""
    strategy = FedAvgAll(fraction_evaluate=0.0)
    start(
        wrap_strategy(kind, strategy), make_grid(make_standard_app(make_wrapper_metrics(kind)), K)
    )
    assert strategy.step_result.report.count("trained") == K
    if kind != "adaptive client":  # that one refuses such replies itself
        with pytest.raises(ProtocolError, match=SET_FEDQUORUM.format(1)):
            start(
                wrap_strategy(kind, FedAvgAll(fraction_evaluate=0.0)),
                make_grid(make_native_app(2 * K), K),
            )
    grid = ScriptedGrid(make_native_app(K), {}, K)
    with pytest.raises(
        ParameterError,
        match="protocol must be standard in a run that the strategy does not start itself, as in "
        r"one of Flower's wrappers \(.*\), got 'fedquorum'",
    ):
        start(wrap_strategy(kind, FedAvgAll(protocol="fedquorum")), grid)
    assert grid.sent == []


def make_wrapper_metrics(kind: str) -> Callable[[int], dict[str, Any]]:
    """Return the clients' metrics in a wrapper; some wrappers need a clip indicator."""
    more = {"norm_bit": 1} if kind == "adaptive client" else {}
    return lambda client: {"num-examples": 10, "loss": 1.0, **more}


def test_a_strategy_may_start_again_after_a_refusal() -> None:
    """With the right keyword, the same nodes work."""
    grid = make_grid(make_native_app(2 * K), K)
    with pytest.raises(ProtocolError):
        start(FedAU(), grid)
    strategy = FedAU(protocol="fedquorum")
    start(strategy, grid)
    assert strategy.step_result.report.count("trained") == 2 * K


# --- the other protocol: fedquorum, with nodes in Flower's standard form --------------------

SET_STANDARD = (
    r'protocol="fedquorum" asks every node which clients it hosts, and no ClientApp here answers '
    r"in that protocol\. For ClientApps written for Flower's own strategies set "
    r'protocol="standard"$'
)
STANDARD = "its reply is in Flower's standard form, and not in FedQuorum's protocol"


def add_query(app: ClientApp, answer: Callable[[int], RecordDict]) -> ClientApp:
    """Return an app with a query function, whose node n replies ``answer(n - 1)``."""

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return Message(answer(context.node_id - 1), reply_to=message)

    return app


def add_mods(app: ClientApp, *mods: AvailabilityMod) -> ClientApp:
    """Return an app with mods in front of it."""
    return make_delegating_app(app, app, *mods)


def make_delegating_app(first: ClientApp, others: ClientApp, *mods: AvailabilityMod) -> ClientApp:
    """Return an app that uses one app on the first two nodes, and another on the rest."""
    outer = ClientApp(mods=[*mods])

    def answer(message: Message, context: Context) -> Message:
        return (first if context.node_id <= 2 else others)(message, context)

    for kind in (outer.query, outer.train, outer.evaluate):
        kind()(answer)
    return outer


def make_id_metrics(client: int) -> RecordDict:
    """Return the metrics that ``client_ids="query"`` expects."""
    return RecordDict({"metrics": MetricRecord({"client-id": client})})


def unavailable(context: Context) -> NodeAvailability:
    return NodeAvailability(
        seed=0, hosted=[context.node_id - 1], process=lambda _: Trace(frozenset())
    )


@pytest.mark.parametrize(
    "app",
    [
        make_standard_app(),
        add_query(make_standard_app(), make_id_metrics),
        add_mods(make_standard_app(), AvailabilityMod(unavailable)),
    ],
    ids=["plain", "with a query", "behind a mod"],
)
@pytest.mark.parametrize("name", ["FedAU", "FedALIGN"])
def test_plain_apps_are_refused_before_round_1(name: str, app: ClientApp) -> None:
    """The error has the keyword; otherwise the strategy would wait without end."""
    grid = ScriptedGrid(app, {}, K)
    options: dict[str, Any] = {} if name == "FedAU" else {"fraction_train": 0.5}
    with pytest.raises(ClientsMissingError, match=SET_STANDARD):
        start(drop_in(name, protocol="fedquorum", **options), grid)
    assert {kind for kind, _ in grid.sent} == {MessageType.QUERY}


def test_some_plain_nodes_are_excluded_and_the_run_continues(
    flower_log: pytest.LogCaptureFixture,
) -> None:
    """The log has the reason and the setting."""
    strategy = FedAU(protocol="fedquorum")
    start(strategy, make_grid(make_delegating_app(make_native_app(K), make_standard_app()), K))
    assert strategy.population.clients == (0, 1)
    assert strategy.step_result.report.count("trained") == 2
    line = (
        'A node cannot take part: protocol="fedquorum" asks every node which clients it hosts, and '
        "the ClientApp of node 3 never answers in that protocol. For ClientApps written for "
        'Flower\'s own strategies set protocol="standard"'
    )
    assert line in list_warnings(flower_log)


@pytest.mark.parametrize("first", [1, 2])
def test_all_training_in_the_standard_form_is_refused(first: int) -> None:
    """Nodes report their clients; failures in earlier rounds do not indicate a protocol."""

    def reply(server_round: int, client: int, message: Message) -> Message:
        if server_round < first:
            return Message(Error(1, "boom"), reply_to=message)
        return make_usual_reply(client, message)

    grid = make_mixed_grid(reply, make_native_app(K))
    said = (
        f"every client that trained in round {first} replied in Flower's standard form. For "
        'ClientApps written for Flower\'s own strategies set protocol="standard"'
    )
    with pytest.raises(ProtocolError, match=f"^{re.escape(said)}$"):
        start(FedAU(protocol="fedquorum"), grid)


def test_some_training_in_the_standard_form_is_rejected() -> None:
    """The run continues with a reason; in later rounds it continues even if all are rejected."""

    def reply(server_round: int, client: int, message: Message) -> Message:
        if client < 2 or server_round == 3:
            return make_usual_reply(client, message)
        return Message(encode_train_reply([make_train_result(client, 1.0)]), reply_to=message)

    strategy = FedAU(protocol="fedquorum")
    start(strategy, make_mixed_grid(reply, make_native_app(K)), 2)
    assert get_reasons(strategy) == {0: STANDARD, 1: STANDARD, 2: None, 3: None}
    strategy = FedAU(protocol="fedquorum")
    start(strategy, make_mixed_grid(reply, make_native_app(K)), 3)
    assert set(get_reasons(strategy).values()) == {STANDARD}


def test_rounds_without_training_decide_nothing() -> None:
    """Without training there is no first round with training."""
    strategy = FedAU(protocol="fedquorum", fraction_train=0.0)
    grid = ScriptedGrid(make_native_app(2 * K), {}, K)
    start(strategy, grid, 2)
    assert len(strategy.step_result.evaluations) == 2 * K
    assert MessageType.TRAIN not in {kind for kind, _ in grid.sent}


# --- 7: the loss ---------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["loss", "train_loss", "train-loss", "mine"])
@pytest.mark.parametrize("name", ["AAggFFS", "FedALIGN", "FedAU"])
def test_the_key_of_the_loss_is_found_and_logged_once(
    name: str, key: str, flower_log: pytest.LogCaptureFixture
) -> None:
    """The default keys or the given one are found, and logged if a rule reads the loss."""
    strategy = drop_in(name, loss_key="mine" if key == "mine" else None)
    app = make_standard_app(lambda k: {"num-examples": 10, key: LOSSES[k]})
    for t in (1, 2):
        train_round(strategy, make_grid(app, K), t)
        assert strategy.step_result.report.decisions[1].loss == LOSSES[1]
    taken = f"The clients' loss is taken from '{key}'"
    assert list_lines(flower_log).count(taken) == (name != "FedAU")


def test_a_gate_without_losses_warns_once(flower_log: pytest.LogCaptureFixture) -> None:
    """The run continues with priority clients only; without a warning it would look normal."""
    strategy = FedALIGN(**GATE, warmup_rounds=0)
    app = make_standard_app(lambda k: {"num-examples": 10})
    for t in (1, 2):
        train_round(strategy, make_grid(app, K), t)
        assert {d.client for d in strategy.step_result.report.decisions if d.weight > 0} == {0, 1}
    warned = [r for r in flower_log.records if "No client reports a loss" in r.getMessage()]
    assert [r.levelname for r in warned] == ["WARNING"]
    assert "'loss' or 'train_loss' or 'train-loss'" in warned[0].getMessage()


def test_the_default_loss_keys_have_an_order() -> None:
    """``loss``, then ``train_loss``, then ``train-loss``."""
    strategy = AAggFFD()
    train_with_replies(
        strategy, lambda k, m: make_usual_reply(k, m, **{"train_loss": 7.0, "train-loss": 8.0})
    )
    assert [d.loss for d in strategy.step_result.report.decisions] == list(LOSSES)
    strategy = AAggFFD()
    metrics = {"loss": None, "train_loss": 7.0}
    train_with_replies(
        strategy, lambda k, m: make_usual_reply(k, m, **metrics, **{"train-loss": 8.0})
    )
    assert {d.loss for d in strategy.step_result.report.decisions} == {7.0}


# --- 8: names do not collide ---------------------------------------------------------------


def test_the_users_config_does_not_affect_the_strategy() -> None:
    """Keys that the project's own protocol uses reach the nodes unchanged."""
    mine: dict[str, Any] = {"measure-test": False, "epsilon": 0.0, "client-id": [7], "protocol": 1}
    mine |= {"measures-loss": False, "server-round": 99}
    seen: list[list[dict[str, Any]]] = []
    for strategy in (FedAU(), FlowerFedAvg()):
        configs: list[ConfigRecord] = []
        config = ConfigRecord(dict(mine))
        result = strategy.start(
            make_grid(make_standard_app(seen=configs), K),
            encode_arrays(MODEL),
            num_rounds=2,
            train_config=config,
            evaluate_config=ConfigRecord(dict(mine)),
        )
        assert sorted(result.evaluate_metrics_clientapp) == [1, 2]
        seen.append([dict(c) for c in configs])
        if isinstance(strategy, FedAU):
            assert dict(config) == mine  # the caller's config stays unchanged
    assert seen[0] == seen[1]
    assert seen[0][0] == {**mine, "server-round": 1}


# --- 9: replies and messages ---------------------------------------------------------------


class Rebuilding(FedAU):
    """A user's subclass that rebuilds the messages, and so drops their group."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any
    ) -> Iterator[Message]:
        """Send an additional record."""
        for message in super().configure_train(server_round, arrays, config, grid):
            content = RecordDict({**message.content, "config": ConfigRecord({"more": 1})})
            yield Message(content, message.metadata.dst_node_id, MessageType.TRAIN)


def test_a_subclass_may_rebuild_the_messages() -> None:
    """Its replies name no group and still count."""
    seen: list[ConfigRecord] = []
    strategy = Rebuilding()
    train_round(strategy, make_grid(make_standard_app(seen=seen), K))
    assert strategy.step_result.report.count("trained") == K
    assert [dict(config) for config in seen] == [{"more": 1}] * K


def test_a_subclass_may_change_the_config() -> None:
    """The subclass is the one in Flower's documentation."""

    class Decaying(FedAU):
        def configure_train(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any
        ) -> Iterable[Message]:
            config["lr"] = 1 / server_round
            return super().configure_train(server_round, arrays, config, grid)

    seen: list[ConfigRecord] = []
    app = make_standard_app(seen=seen)
    strategy = Decaying(fraction_evaluate=0.0)
    strategy.start(make_grid(app, 2), encode_arrays(MODEL), num_rounds=2)
    assert [c["lr"] for c in seen] == [1.0, 1.0, 0.5, 0.5]


def reply_to_another_round(replies: list[Message]) -> list[Message]:
    """Let node 1 reply to another round."""
    late = request_of(replies[0], group="train 7")
    return [Message(replies[0].content, reply_to=late), *replies[1:]]


def reply_to_another_message(replies: list[Message]) -> list[Message]:
    """Let node 1 reply to node 2's message."""
    replies[0].metadata.__dict__["_reply_to_message_id"] = replies[1].metadata.reply_to_message_id
    return replies


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (reply_to_another_round, "a reply to 'train 7', asked was 'train 1'"),
        (
            reply_to_another_message,
            "a reply to another message than the one that its node was sent",
        ),
    ],
)
def test_a_reply_that_contradicts_its_message_is_refused(
    change: Callable[[list[Message]], list[Message]], reason: str
) -> None:
    """It names another round, or another node's message."""
    strategy = FedAU()
    train_round(strategy, make_grid(make_standard_app(), K), change=change)
    first, *others = strategy.step_result.report.decisions
    assert (first.status, first.reason) == ("rejected", reason)
    assert {d.status for d in others} == {"trained"}


# --- 10: sizes -----------------------------------------------------------------------------


def test_a_reply_is_bounded_by_what_was_sent() -> None:
    """Several MB beside a small model pass; more than 64 MiB and 8 models do not."""

    def with_record(size: int, k: int, message: Message) -> Message:
        reply = make_usual_reply(k, message)
        if k == 0:
            reply.content["notes"] = ConfigRecord({"log": b"x" * size})
        return reply

    for size, status in ((10**7, "trained"), (2**26 + 10**6, "rejected")):
        strategy = FedAU()
        train_with_replies(strategy, partial(with_record, size))
        assert strategy.step_result.report.decisions[0].status == status
    strategy = FedAU(max_reply_bytes=10**4)
    train_with_replies(strategy, partial(with_record, 10**5))
    decision = strategy.step_result.report.decisions[0]
    assert "at most 10000 are expected" in str(decision.reason)


# --- 11: the summary -----------------------------------------------------------------------


def test_the_summary_is_fedavgs_and_then_the_rules(flower_log: pytest.LogCaptureFixture) -> None:
    """FedAvg's lines come in their order, followed by the strategy's own."""
    options: dict[str, Any] = {"fraction_train": 0.5, "min_evaluate_nodes": 3}

    def words(strategy: Strategy) -> list[str]:
        flower_log.clear()
        strategy.summary()
        return [line.strip("\t│├└─> ") for line in list_lines(flower_log)]

    flowers, ours = words(FlowerFedAvg(**options)), words(FedAU(cutoff=50, **options))
    places = [ours.index(line) for line in flowers]
    assert places == sorted(places)
    (rule,) = [line for line in ours if line.startswith("Weighting: ")]
    assert "cutoff=50" in rule
    assert ours.index(rule) > places[-1]


# --- comparison with FedAvg ----------------------------------------------------------------


def assert_same_model(strategy: Strategy, flowers: Strategy, app: Callable[[], ClientApp]) -> None:
    results = [
        s.start(make_grid(app(), K), encode_arrays(MODEL), num_rounds=3)
        for s in (strategy, flowers)
    ]
    ours, theirs = (decode_arrays(result.arrays)["w"] for result in results)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    for kind in ("train_metrics_clientapp", "evaluate_metrics_clientapp"):
        one, other = (getattr(result, kind) for result in results)
        assert {t: dict(r) for t, r in one.items()} == {
            t: pytest.approx(dict(r)) for t, r in other.items()
        }


@pytest.mark.parametrize(
    ("strategy", "equal_data"),
    [(FedAvg, False), (FedAvgPriority, False), (FedAvgAll, True), (FedAU, True)],
)
def test_the_model_is_fedavgs_if_the_rules_agree(
    strategy: type[DropInStrategy], *, equal_data: bool
) -> None:
    """FedAU and the average over all agree with FedAvg for equal data and full participation."""
    metrics = lambda k: {"num-examples": 3 if equal_data else 3 * k + 1, "loss": LOSSES[k]}  # noqa: E731
    assert_same_model(strategy(), FlowerFedAvg(), lambda: make_standard_app(metrics))


def test_fedau_moves_two_thirds_where_one_of_three_fails() -> None:
    """The documented difference: an absent client counts as an update of zero."""
    steps = []
    for strategy in (FedAU(), FlowerFedAvg()):
        arrays, _ = train_with_replies(
            strategy,
            lambda k, m: (
                None
                if k == 2
                else make_standard_reply(m, make_train_result(0, 3.0).arrays, {"num-examples": 1})
            ),
            nodes=3,
        )
        steps.append(get_first_number(arrays) - 1.0)
    assert steps == pytest.approx([2.0, 3.0])


def failing(k: int, message: Message) -> Message | None:
    """Return an error, nothing, and two good replies."""
    if k == 0:
        return Message(Error(1, "boom"), reply_to=message)
    return None if k == 1 else make_usual_reply(k, message)


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_errors_and_missing_replies(kind: str, flower_log: pytest.LogCaptureFixture) -> None:
    """Model and metrics cover the clients that replied, as FedAvg's do."""
    results = []
    for strategy in (FedAvg(), FlowerFedAvg()):
        if kind == "train":
            arrays, metrics = train_with_replies(strategy, failing)
            assert arrays is not None
            results.append((decode_arrays(arrays)["w"].tolist(), dict(metrics or {})))
            continue
        grid = make_grid(make_standard_app(), K)
        configure_round(strategy, grid)
        messages = configure_round(strategy, grid, train=False)
        messages.sort(key=lambda m: m.metadata.dst_node_id)
        replies = [failing(m.metadata.dst_node_id - 1, m) for m in messages]
        measured = strategy.aggregate_evaluate(1, [r for r in replies if r is not None])
        results.append(([], dict(measured or {})))
    assert results[0][0] == pytest.approx(results[1][0])
    assert results[0][1] == pytest.approx(results[1][1])
    assert results[0][1]
    assert "boom" in flower_log.text


@pytest.mark.parametrize("replies", [[], None])
def test_without_a_good_reply_the_results_are_none(replies: list[Message] | None) -> None:
    """Without replies, or with errors only: (None, None), and None from the evaluation."""
    for strategy in (FedAvg(), FedAU(), FlowerFedAvg()):
        grid = make_grid(make_standard_app(), 2)
        sent = configure_round(strategy, grid)
        errors = [Message(Error(1, "boom"), reply_to=message) for message in sent]
        given = errors if replies is None else replies
        assert strategy.aggregate_train(1, given) == (None, None)
        sent = configure_round(strategy, grid, train=False)
        errors = [Message(Error(1, "boom"), reply_to=message) for message in sent]
        assert strategy.aggregate_evaluate(1, errors if replies is None else replies) is None


@pytest.mark.parametrize("where", ["train", "evaluate"])
def test_both_aggregation_functions_get_what_fedavgs_get(where: str) -> None:
    """They get the replies' contents and ``weighted_by_key``."""
    calls: list[list[tuple[list[list[str]], str]]] = []
    for kind in (FedAvg, FlowerFedAvg):
        seen: list[tuple[list[list[str]], str]] = []

        def aggregate(replies: list[RecordDict], key: str, seen: list[Any] = seen) -> MetricRecord:
            seen.append(([sorted(map(str, reply)) for reply in replies], key))
            return MetricRecord({"count": len(replies)})

        options: dict[str, Any] = {f"{where}_metrics_aggr_fn": aggregate}
        strategy = kind(weighted_by_key="n", **options)
        app = ClientApp()

        def answer(message: Message, context: Context) -> Message:
            del context
            return make_standard_reply(message, dict(MODEL), {"n": 2, "a": 1.0})

        app.train()(answer)
        app.evaluate()(answer)
        result = strategy.start(make_grid(app, K), encode_arrays(MODEL), num_rounds=2)
        assert getattr(result, f"{where}_metrics_clientapp")[2]["count"] == K
        calls.append(seen)
    assert calls[0] == calls[1]


def test_lists_are_averaged_as_flower_does() -> None:
    """Lists are averaged by element; lists of unlike lengths have no mean, and end no run."""
    app = make_standard_app(lambda k: {"num-examples": k + 1, "history": [float(k), 1.0]})
    means = []
    for strategy in (FedAvg(), FlowerFedAvg()):
        result = strategy.start(make_grid(app, K), encode_arrays(MODEL), num_rounds=1)
        means.append(result.train_metrics_clientapp[1]["history"])
    assert means[0] == pytest.approx(means[1])
    ragged = make_standard_app(lambda k: {"num-examples": 1, "history": [1.0] * k})
    result = FedAvg().start(make_grid(ragged, K), encode_arrays(MODEL), num_rounds=1)
    assert result.train_metrics_clientapp == {}
    assert len(result.arrays) == 1


def test_evaluations_are_weighted_by_any_finite_number() -> None:
    """Test splits may have 0 examples, and weights may be fractions."""
    inner, outer = make_standard_app(), ClientApp()

    @outer.train()
    def train(message: Message, context: Context) -> Message:
        return inner(message, context)

    @outer.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        k = int(context.node_config["partition-id"])
        return make_standard_reply(message, None, {"num-examples": 0.5 * k, "eval_acc": 25.0 * k})

    results = [
        s.start(make_grid(outer, K), encode_arrays(MODEL), num_rounds=1)
        for s in (FedAU(), FlowerFedAvg())
    ]
    ours, flowers = (dict(r.evaluate_metrics_clientapp[1]) for r in results)
    assert ours == pytest.approx(flowers)


@pytest.mark.parametrize("num_rounds", [0, 2])
@pytest.mark.parametrize("kind", [FedAU, AAggFFD, FedAvgAll])
def test_the_result_is_flowers(kind: type[DropInStrategy], num_rounds: int) -> None:
    """It covers ``evaluate_fn`` from round 0, None results, and runs without rounds.

    Without a round, Flower's result has no arrays; ours has the initial model.
    """

    def central(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        return None if server_round == 1 else MetricRecord({"w": get_first_number(arrays)})

    results = [
        s.start(
            grid=make_grid(make_standard_app(lambda k: {"num-examples": 2, "loss": 1.0}), K),
            initial_arrays=encode_arrays(MODEL),
            num_rounds=num_rounds,
            timeout=30,
            evaluate_fn=central,
        )
        for s in (kind(), FlowerFedAvg())
    ]
    ours, flowers = results
    assert len(ours.arrays) == len(MODEL)
    assert len(flowers.arrays) == (num_rounds > 0)
    for key in (
        "train_metrics_clientapp",
        "evaluate_metrics_clientapp",
        "evaluate_metrics_serverapp",
    ):
        assert getattr(ours, key).keys() == getattr(flowers, key).keys()
    assert ours.evaluate_metrics_serverapp[0]["w"] == 1.0


@pytest.mark.parametrize("name", DROP_INS)
def test_one_object_may_start_twice(name: str) -> None:
    """It may start again on the same nodes or on others."""
    strategy = drop_in(name)
    for grid in (make_grid(make_standard_app(), K), make_grid(make_standard_app(), K)):
        result = strategy.start(grid, encode_arrays(MODEL), num_rounds=2)
        assert get_first_number(result.arrays) > 1.0
        assert sorted(result.train_metrics_clientapp) == [1, 2]


@pytest.mark.parametrize("name", DROP_INS)
def test_one_bad_reply_never_ends_a_run(name: str) -> None:
    """The bad replies are of many kinds, from another node in every round."""
    good = {"num-examples": 2, "loss": 1.0}
    nan: NamedArrays = {"w": np.full(3, np.nan, dtype=np.float32)}
    wrong: list[Callable[[Message], Message | None]] = [
        lambda m: Message(RecordDict(), reply_to=m),
        lambda m: make_standard_reply(m, None, good),
        lambda m: make_standard_reply(m, nan, good),
        lambda m: make_standard_reply(m, {"w": np.zeros(2, dtype=np.float32)}, good),
        lambda m: make_standard_reply(m, {"v": MODEL["w"]}, good),
        lambda m: make_standard_reply(m, {"w": np.zeros(3, dtype=np.int64)}, good),
        lambda m: make_standard_reply(m, dict(MODEL), {}),
        lambda m: make_standard_reply(m, dict(MODEL), {**good, "num-examples": math.inf}),
        lambda m: make_standard_reply(m, dict(MODEL), {**good, "more": 1.0}),
        lambda m: Message(encode_hosted_clients([1, 2]), reply_to=m),
        lambda m: Message(Error(5, "x" * 10**5), reply_to=m),
        lambda m: None,
    ]
    strategy = drop_in(name, **({"num_rounds": 20} if name == "FedALIGN" else {}))

    def answer(t: int, client: int, message: Message) -> Message | None:
        return wrong[t - 1](message) if client == t % K else make_usual_reply(client, message)

    for t in range(1, len(wrong) + 1):
        arrays, _ = train_with_replies(strategy, partial(answer, t), round_number=t)
        assert arrays is not None
        assert np.isfinite(decode_arrays(arrays)["w"]).all()


def test_pythons_random_state_is_unused() -> None:
    """The sample of nodes comes from the strategy's seed, not from the global generator."""
    random.seed(5)
    expected = random.random()
    random.seed(5)
    configure_round(FedAU(fraction_train=0.5), make_grid(make_standard_app(), 10))
    assert random.random() == expected
