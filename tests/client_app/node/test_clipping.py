"""The mod by which clients clip their own updates."""

from collections.abc import Callable

import numpy as np
import pytest
from fedquorum.flower.codec import (
    NamedArrays,
    Status,
    TrainRequest,
    TrainResult,
    decode_train_reply,
    decode_train_request,
    encode_arrays,
    encode_train_reply,
    encode_train_request,
)
from fedquorum.rules.types import Objective, RoundPlan
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from client_app.node.clipping import ClippingMod
from server_app.engines.in_process import InProcessGrid

MODEL: NamedArrays = {"w": np.array([1.0, 2.0], dtype=np.float32), "b": np.zeros(1, np.float32)}
Fit = Callable[[int], TrainResult]


def make_result(client: int, by: float) -> TrainResult:
    """Return a client whose update is (by, 0) and 0."""
    arrays = {"w": MODEL["w"] + np.array([by, 0], np.float32), "b": MODEL["b"].copy()}
    return TrainResult(client, Status.DONE, num_examples=4.0, arrays=arrays)


def send_message(fit: Fit, clients: tuple[int, ...], **config: float) -> list[TrainResult]:
    """Return the results of one node's clients for a train message."""
    app = ClientApp(mods=[ClippingMod(clients)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        _, tasks = decode_train_request(message.content, clients)
        return Message(encode_train_reply([fit(task.client) for task in tasks]), reply_to=message)

    call = RoundPlan(clients)
    request = TrainRequest(1, call, (True,) * len(clients), Objective(1.0, 0.5))
    content = encode_train_request(encode_arrays(MODEL), request)
    for key, value in config.items():
        content.config_records["config"][key] = value
    grid = InProcessGrid(app, {}, 1)
    (node,) = grid.get_node_ids()
    (reply,) = grid.send_and_receive([Message(content, node, "train")])
    return decode_train_reply(reply.content)


def compute_shift(result: TrainResult) -> float:
    assert result.arrays is not None
    return float(result.arrays["w"][0] - MODEL["w"][0])


@pytest.mark.parametrize("clients", [(0,), (0, 1, 2)])
def test_every_client_is_clipped_alone(clients: tuple[int, ...]) -> None:
    """With C = 1, an update of norm 5 is shortened to 1; those of 0.5 and 0.8 do not change."""
    lengths = {0: 0.5, 1: 5.0, 2: 0.8}
    results = send_message(lambda k: make_result(k, lengths[k]), clients, clipping_norm=1.0)
    assert [result.client for result in results] == list(clients)
    for result in results:
        assert result.client is not None
        assert compute_shift(result) == pytest.approx(min(1.0, lengths[result.client]), rel=1e-6)
        assert result.norm_bit == (lengths[result.client] > 1)
        assert result.num_examples == 4


def test_results_without_an_update_do_not_change() -> None:
    """Silence, failures with their reasons, and updates of zero have nothing to clip."""

    def fit(client: int) -> TrainResult:
        if client == 0:
            return TrainResult(0, Status.DECLINED)
        if client == 1:
            return TrainResult(1, Status.FAILED, reason="no memory")
        return make_result(client, 0.0 if client == 2 else 5.0)

    results = send_message(fit, (0, 1, 2, 3), clipping_norm=1.0)
    assert [(p.status, p.reason) for p in results] == [
        (Status.DECLINED, None),
        (Status.FAILED, "no memory"),
        (Status.DONE, None),
        (Status.DONE, None),
    ]
    assert [compute_shift(result) for result in results[2:]] == [0.0, pytest.approx(1.0)]


def test_updates_at_the_edges_of_float32() -> None:
    """A norm that float32 has as 0 is no failure, nor is another order; Inf goes as it is."""

    def fit(client: int) -> TrainResult:
        arrays = {"b": MODEL["b"] + np.float32(1e-30), "w": MODEL["w"]}
        if client == 1:
            arrays = {"b": MODEL["b"] + np.float32(np.inf), "w": MODEL["w"]}
        return TrainResult(client, Status.DONE, num_examples=4.0, arrays=arrays)

    tiny, infinite = send_message(fit, (0, 1), clipping_norm=1.0)
    assert tiny.arrays is not None
    assert tiny.arrays["b"][0] == np.float32(1e-30)
    assert tiny.arrays["b"].dtype == np.float32
    assert infinite.arrays is not None
    assert np.isinf(infinite.arrays["b"]).all()


def test_a_server_that_sends_no_norm_gets_no_update() -> None:
    """A client that must clip but receives no norm sends no update."""
    (result,) = send_message(lambda k: make_result(k, 5.0), (0,))
    assert result.status is Status.FAILED
    assert result.reason is not None
    assert "clipping_norm" in result.reason
    assert result.arrays is None
