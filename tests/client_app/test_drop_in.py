"""Drop-in strategies with this project's own ClientApp and several clients on a node."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from fedquorum import ComposedStrategy, FedALIGN, FedAU
from fedquorum.flower.codec import decode_arrays, encode_arrays
from fedquorum.flower.strategies import DropInStrategy
from flwr.app import ArrayRecord, MetricRecord

from client_app import app as client_app
from server_app.engines.in_process import InProcessGrid
from tests.builders_flower import evaluate_round, train_round

NUM_CLIENTS = 5
OVERRIDES = (
    f"data=synth data.num_clients={NUM_CLIENTS} data.num_priority=2 data.sizes=equal "
    "data.samples_per_client=20 client.device=cpu client.local_epochs=2 seed=3"
)
MODEL = {
    "linear.weight": np.full((10, 60), 0.01, dtype=np.float32),
    "linear.bias": np.zeros(10, dtype=np.float32),
}


pytestmark = pytest.mark.usefixtures("no_node_from_before")


def grid_of(num_nodes: int) -> InProcessGrid:
    return InProcessGrid(
        client_app.app, {"experiment": "custom", "overrides": OVERRIDES}, num_nodes
    )


@pytest.mark.parametrize("num_nodes", [2, NUM_CLIENTS])
@pytest.mark.parametrize(
    "make",
    [
        FedAU,
        partial(FedALIGN, priority=[0, 1], num_rounds=3, warmup_fraction=0.0, epsilon=0.1),
    ],
    ids=["FedAU", "FedALIGN"],
)
def test_the_apps_clients_train_from_round_1(
    make: Callable[..., DropInStrategy], num_nodes: int
) -> None:
    """The models are, to the last bit, those of a strategy that knew the clients before."""
    strategy = make(protocol="fedquorum")
    seen: list[ArrayRecord] = []

    def central(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        seen.append(arrays)
        return MetricRecord({})

    strategy.start(grid_of(num_nodes), encode_arrays(MODEL), num_rounds=3, evaluate_fn=central)
    assert sorted(strategy.population.clients) == list(range(NUM_CLIENTS))
    assert not same(seen[1], seen[0])

    grid = grid_of(num_nodes)
    registered = ComposedStrategy(strategy.rules, population=strategy.population)
    arrays = encode_arrays(MODEL)
    if registered.needs_initial_evaluation:
        registered.aggregate_initial(
            grid.send_and_receive(registered.configure_initial(arrays, grid))
        )
    for server_round in (1, 2, 3):
        arrays = train_round(registered, grid, server_round, arrays) or arrays
        evaluate_round(registered, grid, server_round, arrays)
        assert same(arrays, seen[server_round])
    assert registered.step_result.report.decisions == strategy.step_result.report.decisions


def same(one: ArrayRecord, other: ArrayRecord) -> bool:
    a, b = decode_arrays(one), decode_arrays(other)
    return list(a) == list(b) and all(np.array_equal(a[name], b[name]) for name in a)
