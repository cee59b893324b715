"""Flower's wrappers for differential privacy around the drop-in strategies."""

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fedquorum import FedAU, FedAvg, FedAvgAll, FedAvgPriority, WaitingGrid
from fedquorum.flower.codec import decode_arrays, encode_arrays
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp import SamplingMethod
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, Result, Strategy
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg

from server_app.engines.in_process import InProcessGrid
from tests.builders_flower import (
    DROP_INS,
    LOSSES,
    MODEL,
    WRAPPERS,
    ScriptedGrid,
    drop_in,
    make_grid,
    make_simulation_grid,
    make_standard_app,
    train_round,
    wrap_strategy,
)

K, ROUNDS = 4, 3
MODS: dict[str, list[Any]] = {
    "fixed client": [fixedclipping_mod],
    "adaptive client": [adaptiveclipping_mod],
}

each_wrapper = pytest.mark.parametrize("kind", WRAPPERS)


def clipping_app(kind: str, data: Callable[[int], int], failing: Iterable[int] = ()) -> ClientApp:
    """Return an app with Flower's mod for a wrapper; client 2 raises in the rounds ``failing``."""
    inner = make_standard_app(lambda k: {"num-examples": data(k), "loss": LOSSES[k]})
    app = ClientApp()

    @app.train(mods=MODS.get(kind, []))
    def train(message: Message, context: Context) -> Message:
        if context.node_config["partition-id"] == 2:
            config = message.content["config"]
            assert isinstance(config, ConfigRecord)
            assert config["server-round"] not in [*failing]
        return inner(message, context)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return inner(message, context)

    return app


def run_wrapped(kind: str, strategy: Strategy, grid: InProcessGrid) -> tuple[Result, float]:
    """Return the Result of three rounds with visible noise, and the last clipping norm.

    Updates are 1.7 to 6.9 long, and those above 4 are clipped. The noise is NumPy's.
    """
    private: Any = wrap_strategy(kind, strategy, norm=4.0, noise=0.3)
    np.random.seed(7)  # noqa: NPY002 - from which Flower takes its noise
    return private.start(grid, encode_arrays(MODEL), num_rounds=ROUNDS), private.clipping_norm


@each_wrapper
@pytest.mark.parametrize("failing", [(), (2,), (1, 2, 3)], ids=str)
@pytest.mark.parametrize(
    ("strategy", "equal_data"),
    [(FedAvg, False), (FedAvgPriority, False), (FedAvgAll, True), (FedAU, True)],
)
def test_the_model_is_fedavgs_in_the_same_wrapper(
    kind: str, failing: tuple[int, ...], strategy: Callable[[], Strategy], *, equal_data: bool
) -> None:
    """The noise is the same, clipped here or by Flower's mods; a failure costs both the round."""
    (ours, norm), (flowers, reference) = (
        run_wrapped(
            kind,
            made(),
            make_grid(clipping_app(kind, lambda k: 5 if equal_data else 3 * k + 1, failing), K),
        )
        for made in (strategy, FlowerFedAvg)
    )
    assert norm == pytest.approx(reference)
    assert [*ours.arrays] == [*flowers.arrays]
    for name, array in ours.arrays.items():
        assert array.numpy() == pytest.approx(flowers.arrays[name].numpy(), rel=1e-5)
    counted = [t for t in range(1, ROUNDS + 1) if t not in failing]
    assert [*ours.train_metrics_clientapp] == [*flowers.train_metrics_clientapp] == counted
    assert [*ours.evaluate_metrics_clientapp] == [*flowers.evaluate_metrics_clientapp] == [1, 2, 3]


@each_wrapper
@pytest.mark.parametrize("name", DROP_INS)
def test_every_strategy_runs_in_every_wrapper(kind: str, name: str) -> None:
    """A failed reply costs round 2, and round 3 continues."""
    strategy = drop_in(name)
    result, _ = run_wrapped(
        kind, strategy, make_grid(clipping_app(kind, lambda k: 3 * k + 1, (2,)), K)
    )
    assert [*result.train_metrics_clientapp] == [1, 3]
    assert [*result.evaluate_metrics_clientapp] == [1, 2, 3]
    model = decode_arrays(result.arrays)["w"]
    assert np.isfinite(model).all()
    assert (model != MODEL["w"]).all()
    decisions = strategy.step_result.report.decisions
    assert len([d for d in decisions if d.num_examples is not None]) == K  # all could be used


@each_wrapper
@pytest.mark.parametrize("name", ["FedAU", "FedAvgAll", "AAggFFD", "FedALIGN"])
def test_updates_are_clipped_before_any_rule_sees_them(kind: str, name: str) -> None:
    """The server clips; or the wrapper trusts the clients to clip, which these do not."""
    app = make_standard_app(lambda k: {"num-examples": 10, "loss": LOSSES[k], "norm_bit": 1.0})
    private = wrap_strategy(kind, drop_in(name))
    result = private.start(make_grid(app, K), encode_arrays(MODEL), num_rounds=1)
    length = np.linalg.norm(decode_arrays(result.arrays)["w"] - MODEL["w"])
    assert length == pytest.approx(0.01, rel=1e-2) if "server" in kind else length > 1


@each_wrapper
def test_a_failed_reply_costs_its_round(kind: str) -> None:
    """The wrapper skips that round, and the run continues."""
    app = make_standard_app(lambda k: {"num-examples": 10, "loss": LOSSES[k], "norm_bit": 1.0})
    strategy = FedAU(fraction_evaluate=0.0)
    private = wrap_strategy(kind, strategy)
    grid = ScriptedGrid(app, {}, K, failing={1: {2: "boom"}})
    assert train_round(private, grid) is None
    assert train_round(private, grid, 2) is not None
    assert strategy.step_result.report.count("trained") == K


@each_wrapper
@pytest.mark.parametrize("made", [FedAU, FlowerFedAvg])
def test_wrappers_run_on_a_waiting_grid(kind: str, made: Callable[[], Strategy]) -> None:
    """Adaptive clipping reads the replies twice, as docs/drop-in.md says."""
    app = make_standard_app(lambda k: {"num-examples": 10, "loss": LOSSES[k], "norm_bit": 1.0})
    grid = WaitingGrid(make_simulation_grid(app, K))
    result = wrap_strategy(kind, made()).start(grid, encode_arrays(MODEL), num_rounds=2)
    assert [*result.train_metrics_clientapp] == [1, 2]


def test_a_subclass_may_read_the_replies_as_well() -> None:
    """It reads them before and after the strategy, as with Flower's, under ``start``."""
    num_read: list[int] = []

    class Curious(FedAU):
        def aggregate_train(
            self, server_round: int, replies: Iterable[Message]
        ) -> tuple[ArrayRecord | None, MetricRecord | None]:
            num_read.append(len([*replies]))
            done = super().aggregate_train(server_round, replies)
            num_read.append(sum(len(reply.content.array_records) for reply in replies))
            return done

    class Watchful(FedAU):
        def aggregate_evaluate(
            self, server_round: int, replies: Iterable[Message]
        ) -> MetricRecord | None:
            num_read.append(len([*replies]))
            return super().aggregate_evaluate(server_round, replies)

    plain = FedAU().start(
        make_simulation_grid(make_standard_app(), K), encode_arrays(MODEL), num_rounds=2
    )
    for made, expected in ((Curious, [K] * 4), (Watchful, [K] * 2)):
        num_read.clear()
        result = made().start(
            make_simulation_grid(make_standard_app(), K), encode_arrays(MODEL), num_rounds=2
        )
        assert result.arrays == plain.arrays
        assert [*result.evaluate_metrics_clientapp] == [1, 2]
        assert num_read == expected
    replies = (
        FedAU()
        .build_waiting_grid(make_simulation_grid(make_standard_app(), K))
        .send_and_receive([])
    )
    assert not isinstance(replies, list)  # without such a subclass, one at a time


def test_flowers_accountant_accepts_only_fedavgs_own_class() -> None:
    """A privacy budget is for rules with equal weights, as docs/drop-in.md says."""
    accountant: Any = SimpleNamespace(
        config=SimpleNamespace(sampling_method=SamplingMethod.NO_AMPLIFICATION)
    )
    for strategy in (FedAvg(), FedAvgAll()):
        with pytest.raises(ValueError, match=r"requires a strategy using FedAvg\.aggregate_train"):
            DifferentialPrivacyServerSideFixedClipping(
                strategy, 1.0, 1.0, num_sampled_clients=K, accountant=accountant
            )
