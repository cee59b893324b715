"""Test the policy of a data owner."""

import json
import math
import re
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedquorum import NativeProtocol, Population
from fedquorum.errors import SettingsError
from fedquorum.flower.codec import (
    EVALUATION_KEYS,
    EvaluateRequest,
    Status,
    TrainRequest,
    decode_client_names,
    decode_evaluate_reply,
    decode_hosted_clients,
    decode_train_reply,
    encode_arrays,
    encode_evaluate_request,
    encode_inquiry,
    encode_query,
    encode_train_request,
    find_scale,
)
from fedquorum.flower.codec.keys import MASK_KEYS, MASKED_SUM
from fedquorum.flower.codec.secure import (
    SEALED_BYTES,
    Records,
    encode_keys_request,
    encode_share_request,
    encode_unmask_request,
    encode_vector_request,
)
from fedquorum.flower.mods import NO_MASK_STATE
from fedquorum.flower.secure.keys import HASH_BYTES, RoundId
from fedquorum.flower.secure.messages import ShareRequest, UnmaskRequest, VectorRequest
from fedquorum.flower.secure.node import make_keys
from fedquorum.flower.secure.settings import SecureAggregation
from fedquorum.rules.types import Objective, RoundPlan
from flwr.app import ConfigRecord, Message, RecordDict

from client_app.app import app
from client_app.node.policy import (
    USAGE_FILE,
    Allowlist,
    DailyLimit,
    MaskRequirement,
    NodePolicy,
    PrivacyRequirement,
    UsageLog,
    find_policy,
    load_policy,
)
from client_app.node.shared_scale import decode_scale
from conf import compose_settings
from server_app.engines.in_process import InProcessGrid
from tests.builders_flower import build_named_strategy, evaluate_round

WORDS = "data=npz data.partition=device data.path=nowhere.npz data.num_clients=3 data.priority=all "
WORDS += "data.input_shape=[2] data.num_classes=2 client.local_epochs=1"
MODEL = {"linear.weight": np.zeros((2, 2), np.float32), "linear.bias": np.zeros(2, np.float32)}
TRAIN = encode_train_request(
    encode_arrays(MODEL), TrainRequest(1, RoundPlan((2,)), (True,), Objective(1.0, 0.5))
)
EVALUATE = encode_evaluate_request(encode_arrays(MODEL), EvaluateRequest(1, (2,), (True,), (True,)))
FINETUNE = encode_evaluate_request(
    encode_arrays(MODEL), EvaluateRequest(1, (2,), (False,), (True,), finetune_epochs=3)
)


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with one client's data."""
    np.savez(
        tmp_path / "own.npz",
        x_train=np.arange(12, dtype=np.float32).reshape(6, 2),
        y_train=np.array([0, 1, 0, 1, 0, 1]),
        x_test=np.ones((2, 2), dtype=np.float32),
        y_test=np.array([1, 0]),
    )
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    return tmp_path


def send_message(
    device: Path, content: RecordDict, kind: str, overrides: str = "", **config: Any
) -> Message:
    """Return the reply of a device with its data in this folder."""
    run_config = compose_settings("custom", f"{WORDS} {overrides}").run_config | {"output-dir": ""}
    grid = InProcessGrid(app, run_config, 1)
    (node,) = grid.get_node_ids()
    data = str(device / "own.npz")
    grid._contexts[node].node_config = {"client-id": 2, "data-path": data, **config}
    (reply,) = grid.send_and_receive([Message(content, node, kind)])
    return reply


def write_policy(device: Path, text: str) -> None:
    (device / "node.yaml").write_text(text)


# --- which runs ----------------------------------------------------------------------------------


REFUSED = {
    "accept: {strategies: [fedau, 'fed*g']}": (
        "strategy=aaggff_d",
        "it accepts the strategies fedau, fed*g, not aaggff_d",
    ),
    "accept: {models: [mlp]}": ("", "it accepts the models mlp, not logistic_regression"),
    "accept: {experiments: [fedau/*]}": ("", "it accepts the experiments fedau/*, not custom"),
    "accept: {models: []}": ("", "it accepts the models (none), not logistic_regression"),
    "privacy: {noise_multiplier: 0.5}": (
        "",
        "it asks for differential privacy, and privacy is none",
    ),
    "privacy: {noise_multiplier: 2}": (
        "strategy=average_all privacy=dp_fixed_server",
        "it asks for privacy.noise_multiplier >= 2, not 1",
    ),
    "privacy: {clipping_norm: 0.5}": (
        "strategy=average_all privacy=dp_fixed_client",
        "it asks for privacy.clipping_norm <= 0.5, not 1",
    ),
    "privacy: {clipping_norm: 9}": (
        "strategy=average_all privacy=dp_adaptive_server privacy.noise_multiplier=0.1",
        "it asks for privacy.clipping_norm <= 9, not the adaptive norm of dp_adaptive_server",
    ),
    "privacy: {clips_here: true}": (
        "strategy=average_all privacy=dp_fixed_server",
        "it asks for updates that clients clip, not privacy=dp_fixed_server",
    ),
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_run_that_is_not_allowed_is_refused_before_data_is_read(device: Path, text: str) -> None:
    """The client is unavailable with a reason, but a query still returns its id."""
    overrides, problem = REFUSED[text]
    write_policy(device, text)
    (device / "own.npz").unlink()  # whoever reads it fails
    reason = f"its node takes no part: {problem}"
    (trained,) = decode_train_reply(send_message(device, TRAIN, "train", overrides).content)
    assert (trained.client, trained.status) == (2, Status.UNAVAILABLE)
    assert trained.reason == reason
    (measured,) = decode_evaluate_reply(
        send_message(device, EVALUATE, "evaluate", overrides).content
    )
    assert (measured.status, measured.reason) == (Status.UNAVAILABLE, reason)
    assert decode_hosted_clients(
        send_message(device, RecordDict(), "query", overrides).content
    ) == (2,)


ALLOWED = {
    "": "",
    "accept: {strategies: [fedavg], models: ['*'], experiments: [custom]}": "strategy=fedavg",
    "privacy: {noise_multiplier: 0.1}": (
        "strategy=average_all privacy=dp_adaptive_server privacy.noise_multiplier=0.1"
    ),
    "per_day: {rounds: null, examples: 6}": "",
}


@pytest.mark.parametrize("text", ALLOWED)
def test_a_run_that_is_allowed_trains(device: Path, text: str) -> None:
    """Also with an empty file."""
    write_policy(device, text)
    (trained,) = decode_train_reply(send_message(device, TRAIN, "train", ALLOWED[text]).content)
    assert (trained.status, trained.num_examples) == (Status.DONE, 6)


def test_clients_that_clip() -> None:
    """A run whose clients clip to a fixed norm has all that a policy can ask for."""
    overrides = f"{WORDS} strategy=average_all privacy=dp_fixed_client"
    policy = NodePolicy(PrivacyRequirement(1.0, 1.0, clips_here=True))
    assert policy.find_problem(compose_settings("custom", overrides).settings, "custom") is None


def test_a_policy_that_cannot_be_used_allows_nothing(
    device: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The server learns only that; the node's log has the details."""
    write_policy(device, "accept: {strategy: [fedau]}")
    missing = {"policy-path": str(device / "other.yaml")}
    for config in ({}, missing):
        (trained,) = decode_train_reply(send_message(device, TRAIN, "train", **config).content)
        assert trained.status is Status.UNAVAILABLE
        assert trained.reason == "its node takes no part: its policy cannot be used"
    assert "accept.strategy is not a key of node.yaml; did you mean strategies?" in caplog.text
    assert "other.yaml must be YAML that can be read: No such file" in caplog.text


# --- what it says --------------------------------------------------------------------------------


def test_metrics_that_are_withheld_do_not_leave_the_node(device: Path) -> None:
    """All others do."""
    metrics = send_message(device, TRAIN, "train").content.metric_records["metrics"]
    measured = send_message(device, EVALUATE, "evaluate").content.metric_records["metrics"]
    write_policy(device, f"withhold: [{', '.join(EVALUATION_KEYS)}]")
    reply = send_message(device, TRAIN, "train").content
    assert set(metrics) - set(reply.metric_records["metrics"]) == {"loss", "accuracy"}
    (trained,) = decode_train_reply(reply)
    assert (trained.loss, trained.accuracy, trained.num_examples) == (None, None, 6)
    assert trained.arrays is not None
    evaluated = send_message(device, EVALUATE, "evaluate").content
    assert [*evaluated] == ["metrics"]
    left = evaluated.metric_records["metrics"]
    assert set(measured) - set(left) == {"loss", "accuracy", "test-loss", "test-accuracy"}
    assert {"num-examples", "test-num-examples"} <= set(left)
    calibration = {"test-calibration", "validation-calibration"}
    assert NodePolicy(withhold=("test-loss", "loss")).withheld == {
        *("test-loss", "validation-loss", "loss"),
        *calibration,
    }
    assert NodePolicy(withhold=("loss", "accuracy")).withheld == {"loss", "accuracy"}
    assert NodePolicy(withhold=("test-calibration",)).withheld == calibration
    names = ("metric", "r2", "average-precision", "calibration")
    both = {f"{split}-{name}" for split in ("test", "validation") for name in names}
    assert NodePolicy(withhold=("test-metric",)).withheld == both
    write_policy(device, "withhold: [test-accuracy]")
    left = send_message(device, EVALUATE, "evaluate").content.metric_records["metrics"]
    assert set(measured) - set(left) == {"test-accuracy"}


@pytest.mark.parametrize(
    ("withhold", "leaves"),
    [("loss", True), ("test-accuracy", False), ("test-loss", False), ("test-calibration", False)],
)
def test_the_calibration_stays_with_any_test_metric(
    device: Path, withhold: str, *, leaves: bool
) -> None:
    """It has the correct predictions and how sure they are; the owner may withhold it alone."""
    (free,) = decode_evaluate_reply(send_message(device, EVALUATE, "evaluate").content)
    assert free.test_calibration
    write_policy(device, f"withhold: [{withhold}]")
    (result,) = decode_evaluate_reply(send_message(device, EVALUATE, "evaluate").content)
    assert result.test_calibration == (free.test_calibration if leaves else b"")


def test_metrics_of_a_model_of_its_own_are_withheld_as_well(device: Path) -> None:
    """The reply to a request to train before the evaluation has the keys of any evaluation."""
    (free,) = decode_evaluate_reply(send_message(device, FINETUNE, "evaluate").content)
    assert not np.isnan(free.test_loss)
    assert not np.isnan(free.test_accuracy)
    write_policy(device, "withhold: [test-loss]")
    reply = send_message(device, FINETUNE, "evaluate")
    assert [*reply.content] == ["metrics"]
    (result,) = decode_evaluate_reply(reply.content)
    assert np.isnan(result.test_loss)
    assert result.test_accuracy == free.test_accuracy


def test_a_name_leaves_the_node_only_if_the_policy_gives_one(device: Path) -> None:
    """Only with the reply to the query, and only to a run that keeps names."""
    assert decode_client_names(send_message(device, encode_query(), "query").content) == {}
    write_policy(device, "client_name: Hospital North")
    reply = send_message(device, encode_query(), "query").content
    assert (decode_client_names(reply), decode_hosted_clients(reply)) == (
        {2: "Hospital North"},
        (2,),
    )
    for overrides in ("data.names=false", "strategy=aaggff_d"):
        write_policy(device, "client_name: North\naccept: {strategies: [fedavg, fedalign]}")
        reply = send_message(device, encode_query(), "query", overrides).content
        assert decode_client_names(reply) == {}
    assert "names" not in send_message(device, TRAIN, "train").content


@pytest.mark.slow
def test_a_scale_leaves_the_node_only_if_the_policy_says_so(device: Path) -> None:
    """Only with the reply to the query, and only of numbers that the client scales by itself."""
    table = ["a,b,ill", *(f"{k},{7 * k % 5},{'no' if k % 2 else 'yes'}" for k in range(10))]
    (device / "own.csv").write_text("\n".join(table))
    words = "data=csv data.client_column=null data.path=nowhere.csv data.target=ill "
    words += "data.num_clients=3 data.columns={numbers:[a,b],classes:[no,yes]}"

    def ask(policy: str, more: str = "") -> RecordDict:
        write_policy(device, policy)
        run_config = compose_settings("custom", f"{words} {more}").run_config | {"output-dir": ""}
        grid = InProcessGrid(app, run_config, 1)
        data = str(device / "own.csv")
        grid._contexts[1].node_config = {"client-id": 2, "data-path": data}
        (reply,) = grid.send_and_receive([Message(encode_query(), 1, "query")])
        return reply.content

    assert find_scale(ask("client_name: North\nstatistics: true")) is None
    content = ask("client_name: North\nscales: true")
    record = find_scale(content)
    assert record is not None
    found = decode_scale(record, 2, 2)
    assert (found.rows, found.scale.deviation.shape) == (8, (2,))
    assert (decode_client_names(content), decode_hosted_clients(content)) == ({2: "North"}, (2,))
    refusing = "scales: true\naccept: {strategies: [fedau]}"
    assert find_scale(ask(refusing, "strategy=fedavg")) is None
    hiding = ("privacy=dp_fixed_server strategy=average_all", MASKS)
    for more in ("data.scaling=agreed", *hiding):
        assert find_scale(ask("scales: true\nstatistics: true", more)) is None
    write_policy(device, "scales: true")  # arrays have no scales
    assert find_scale(send_message(device, encode_query(), "query").content) is None


# --- masks ---------------------------------------------------------------------------------------


def build_share_request(num_others: int, threshold: int) -> Records:
    keys = {k: make_keys(k, RoundId("0", 1))[1] for k in range(1, num_others + 1)}
    return encode_share_request(ShareRequest(keys, threshold))


def build_vector_request(num_others: int) -> Records:
    hashes = {k: bytes(HASH_BYTES) for k in range(1, num_others + 1)}
    sealed = {k: bytes(SEALED_BYTES) for k in hashes}
    return encode_vector_request(VectorRequest(sealed, hashes, hashes))


def build_unmask_request(num_others: int) -> Records:
    others = tuple(range(1, num_others + 1))
    return encode_unmask_request(UnmaskRequest(others[:-1], others[-1:]))


NO_MASKS = "it asks for masks (secure_aggregation=masks), and the run has none"
MASKS = "strategy=fedau secure_aggregation=masks"
ASKING: dict[str, Any] = {**encode_inquiry(1, (2,))}
UNMASKABLE = {
    "{masks: true}": [(TRAIN, NO_MASKS), (EVALUATE, NO_MASKS), (ASKING, NO_MASKS)],
    "{threshold: 3}": [
        (TRAIN, NO_MASKS),
        (
            ASKING | build_share_request(3, 2),
            "it asks for masks that at least 3 nodes can remove, not 2",
        ),
    ],
    "{participants: 4}": [
        (TRAIN, NO_MASKS),
        (
            ASKING | build_share_request(2, 3),
            "it asks for sums of at least 4 nodes, not 3",
        ),
        (
            {**TRAIN, **build_vector_request(2)},
            "it asks for sums of at least 4 nodes, not 3",
        ),
        # Of three others one was lost after its shares, so that three nodes are in the sum.
        (ASKING | build_unmask_request(3), "it asks for sums of at least 4 nodes, not 3"),
    ],
}


@pytest.mark.parametrize("text", UNMASKABLE)
def test_a_run_without_the_masks_that_the_owner_asks_for_is_refused(
    device: Path, text: str
) -> None:
    """In each exchange, whatever the run's settings say, before any data is read."""
    write_policy(device, f"secure_aggregation: {text}")
    (device / "own.npz").unlink()
    for content, problem in UNMASKABLE[text]:
        kind = "evaluate" if content is EVALUATE else "train"
        decode = decode_evaluate_reply if content is EVALUATE else decode_train_reply
        reply = send_message(device, RecordDict({**content}), kind, MASKS)
        [result] = decode(reply.content)
        assert (result.client, result.status) == (2, Status.UNAVAILABLE)
        assert result.reason == f"its node takes no part: {problem}"


def test_a_run_whose_settings_have_no_masks_learns_nothing_before_round_1(device: Path) -> None:
    """Neither which clients there are, nor their scales or sums."""
    write_policy(device, "secure_aggregation: {masks: true}\nstatistics: true\nclient_name: North")
    (device / "own.npz").unlink()
    reply = send_message(device, encode_query(), "query")
    [(name, metrics)] = reply.content.items()  # that the client is there, for the records
    assert (name, {*metrics} - {"protocol"}) == ("metrics", {"client-id"})
    refusal = send_message(device, encode_query(), "query.statistics").error
    assert NO_MASKS in str(refusal.reason)


def test_a_run_with_the_masks_that_the_owner_asks_for_is_allowed(device: Path) -> None:
    """The node sends its keys; what it says of later exchanges is no word of the policy."""
    write_policy(device, "secure_aggregation: {masks: true, threshold: 3, participants: 4}")
    reply = send_message(device, RecordDict(ASKING | encode_keys_request()), "train", MASKS)
    assert decode_train_reply(reply.content)[0].status is Status.DONE
    assert MASK_KEYS in reply.content
    for records in (
        build_share_request(3, 3),
        build_vector_request(3),
        build_unmask_request(4),
    ):
        content = {**TRAIN, **records} if MASKED_SUM in records else ASKING | records
        reply = send_message(device, RecordDict(content), "train", MASKS)
        [result] = decode_train_reply(reply.content)
        assert (result.status, result.reason) == (Status.FAILED, NO_MASK_STATE)


def test_masks_that_nobody_asks_for_are_allowed(device: Path) -> None:
    """A policy without the key takes part in runs of both kinds."""
    write_policy(device, "withhold: [loss]")
    for content in (ASKING | encode_keys_request(), ASKING):
        reply = send_message(device, RecordDict(content), "train")
        assert decode_train_reply(reply.content)[0].status is Status.DONE


def test_a_round_with_masks_of_three_devices(device: Path) -> None:
    """Each has its own policy, which counts and withholds before anything is masked."""
    run_config = compose_settings("custom", f"{WORDS} {MASKS}").run_config | {"output-dir": ""}
    grid = InProcessGrid(app, run_config, 3)
    texts = {
        0: "secure_aggregation: {threshold: 2, participants: 3}",
        1: "withhold: [test-loss]",
        2: "per_day: {examples: 9}",
    }
    for client, (node, text) in enumerate(zip(grid.get_node_ids(), texts.values(), strict=True)):
        folder = device / str(client)
        folder.mkdir()
        shutil.copy(device / "own.npz", folder)
        write_policy(folder, text)
        grid._contexts[node].node_config = {
            "client-id": client,
            "data-path": str(folder / "own.npz"),
        }
    strategy = build_named_strategy(
        "average_all",
        Population.from_size(3),
        communication=NativeProtocol(secure_aggregation=SecureAggregation()),
    )
    statuses, model = [], encode_arrays(MODEL)
    for server_round in (1, 2, 3):
        messages = strategy.configure_train(server_round, model, ConfigRecord(), grid)
        stepped, _ = strategy.aggregate_train(server_round, grid.send_and_receive(messages))
        model = model if stepped is None else stepped
        evaluate_round(strategy, grid, server_round, model)
        statuses.append([d.status for d in strategy.step_result.report.decisions])
        if server_round == 1:
            sums = strategy.step_result.sums
            assert sums is not None
            # Of a sum over the other two, each could tell the other's.
            assert (sums.counts["test_loss"], sums.counts["test_accuracy"]) == (0, 3)
            assert math.isnan(sums.means["test_loss"])
    # The second round ends the day of client 2, and two devices are no sum for the first one.
    assert statuses == [["trained"] * 3, ["trained"] * 3, ["rejected", "rejected", "unavailable"]]
    assert json.loads((device / USAGE_FILE).read_text())["examples"] == 12


# --- how much ------------------------------------------------------------------------------------


def test_the_rounds_of_a_day(device: Path) -> None:
    """Each is counted over processes, and evaluations are not; the next day begins anew."""
    write_policy(device, "per_day: {rounds: 2}")
    statuses = []
    for _ in range(3):
        (trained,) = decode_train_reply(send_message(device, TRAIN, "train").content)
        statuses.append(trained.status)
        send_message(device, EVALUATE, "evaluate")
    assert statuses == [Status.DONE, Status.DONE, Status.UNAVAILABLE]
    today = datetime.now(UTC).date()
    assert trained.reason == (
        f"its node takes no part: it trains for 2 rounds a day, and has for 2 on {today}"
    )
    counted = device / USAGE_FILE
    assert json.loads(counted.read_text()) == {"day": f"{today}", "rounds": 2, "examples": 12}
    counted.write_text(
        json.dumps({"day": f"{today - timedelta(days=1)}", "rounds": 2, "examples": 12})
    )
    (trained,) = decode_train_reply(send_message(device, TRAIN, "train").content)
    assert trained.status is Status.DONE


def test_a_question_without_training_is_no_round_of_the_day(device: Path) -> None:
    """As in three of the four exchanges of a round with masks."""
    write_policy(device, "per_day: {rounds: 1}")
    for _ in range(3):
        reply = send_message(device, encode_inquiry(1, (2,)), "train")
        assert decode_train_reply(reply.content)[0].status is Status.DONE
    assert not (device / USAGE_FILE).exists()
    (trained,) = decode_train_reply(send_message(device, TRAIN, "train").content)
    assert trained.status is Status.DONE


def test_a_day_that_is_used_up_is_known_with_the_keys(device: Path) -> None:
    """A node that could not train would hold shares that the others need."""
    write_policy(device, "per_day: {rounds: 1}")
    keys = RecordDict(ASKING | encode_keys_request())
    [before] = decode_train_reply(send_message(device, keys, "train").content)
    assert before.status is Status.DONE
    send_message(device, TRAIN, "train")
    reply = send_message(device, RecordDict(ASKING | encode_keys_request()), "train")
    [after] = decode_train_reply(reply.content)
    assert after.status is Status.UNAVAILABLE
    assert "it trains for 1 rounds a day" in (after.reason or "")
    assert MASK_KEYS not in reply.content
    assert json.loads((device / USAGE_FILE).read_text())["rounds"] == 1
    # The last exchange of the round that was counted is not refused.
    reply = send_message(device, RecordDict(ASKING | build_unmask_request(3)), "train")
    assert decode_train_reply(reply.content)[0].reason == NO_MASK_STATE


def test_the_examples_of_a_day(device: Path) -> None:
    """The round that exceeds them is the last."""
    write_policy(device, "per_day: {examples: 7}")
    statuses = [
        decode_train_reply(send_message(device, TRAIN, "train").content)[0].status for _ in range(3)
    ]
    assert statuses == [Status.DONE, Status.DONE, Status.UNAVAILABLE]


def test_a_model_of_its_own_counts_as_a_round_of_the_day(device: Path) -> None:
    """The client trains for it; an evaluation without training is free."""
    write_policy(device, "per_day: {rounds: 1}")
    for content, status in ((EVALUATE, 0), (FINETUNE, 0), (FINETUNE, 2), (EVALUATE, 0)):
        (result,) = decode_evaluate_reply(send_message(device, content, "evaluate").content)
        assert result.status == status
    (trained,) = decode_train_reply(send_message(device, TRAIN, "train").content)
    assert trained.status is Status.UNAVAILABLE
    assert json.loads((device / USAGE_FILE).read_text())["examples"] == 6


def test_a_misplaced_count_allows_nothing(tmp_path: Path) -> None:
    """The message names the file."""
    usage = UsageLog(tmp_path / "nowhere" / USAGE_FILE)
    with pytest.raises(SettingsError, match=f"{USAGE_FILE} must be a file that the node can write"):
        usage.count_round(DailyLimit(rounds=1))


@pytest.mark.parametrize("text", ["{", "[]", '{"day": 3}', '{"hour": 1}', "null"])
def test_a_count_that_is_damaged_begins_anew(tmp_path: Path, text: str) -> None:
    """What is in the file is of another day, or of none."""
    (tmp_path / USAGE_FILE).write_text(text)
    usage = UsageLog(tmp_path / USAGE_FILE)
    assert usage.count_round(DailyLimit(rounds=1)) is None
    assert usage.count_round(DailyLimit(rounds=1)) is not None


# --- the file ------------------------------------------------------------------------------------


def test_all_of_a_policy(tmp_path: Path) -> None:
    """Every key has its place."""
    (tmp_path / "node.yaml").write_text(
        "privacy: {noise_multiplier: 1.1, clipping_norm: 2, clips_here: true}\n"
        "secure_aggregation: {masks: true, threshold: 3, participants: 5}\n"
        "withhold: [loss]\n"
        "accept: {experiments: ['fedau/*'], models: [mlp], strategies: [fedau]}\n"
        "per_day: {rounds: 100, examples: 1000000}\n"
        "client_name: North\n"
        "statistics: true\n"
        "scales: true\n"
    )
    assert load_policy(tmp_path / "node.yaml") == NodePolicy(
        PrivacyRequirement(1.1, 2, clips_here=True),
        MaskRequirement(masks=True, threshold=3, participants=5),
        ("loss",),
        Allowlist(("fedau/*",), ("mlp",), ("fedau",)),
        DailyLimit(100, 1000000),
        "North",
        statistics=True,
        scales=True,
    )


def test_the_example_of_the_documentation(tmp_path: Path) -> None:
    """It has every key, and is read as it says."""
    page = (Path(__file__).parents[3] / "docs" / "deployment.md").read_text()
    (example,) = re.findall(r"```yaml\n(privacy:.*?)```", page, re.DOTALL)
    (tmp_path / "node.yaml").write_text(example)
    found = load_policy(tmp_path / "node.yaml")
    assert found.privacy == PrivacyRequirement(1.0, 2.0, clips_here=True)
    assert found.secure_aggregation == MaskRequirement(masks=True, threshold=3, participants=5)
    assert found.withhold == ("loss", "accuracy")
    assert found.accept.experiments == ("custom", "fedau/*")
    assert found.per_day == DailyLimit(200, 100000)
    assert found.client_name == "Hospital North"
    assert (found.statistics, found.scales) == (True, True)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[", "must be YAML that can be read: while parsing"),
        (
            "- a",
            "the file must be a mapping with privacy, secure_aggregation, withhold, accept, per_",
        ),
        (
            "privacy: 3",
            "privacy must be a mapping with noise_multiplier, clipping_norm, clips_here, got 3",
        ),
        ("privacy: {least: 3}", "privacy.least is not a key of node.yaml; allowed are noise_multi"),
        ("privacy: {noise: 3}", "is not a key of node.yaml; did you mean noise_multiplier?"),
        ("acept: {}", "acept is not a key of node.yaml; did you mean accept?"),
        (
            "privacy: {noise_multiplier: -1}",
            "privacy.noise_multiplier must be a number > 0, or null, got -1",
        ),
        ("privacy: {clips_here: 1}", "privacy.clips_here must be true or false, got 1"),
        (
            "secure_aggregation: masks",
            "secure_aggregation must be a mapping with masks, threshold, participants, got 'masks'",
        ),
        ("secure_aggregation: {mask: true}", "is not a key of node.yaml; did you mean masks?"),
        ("secure_aggregation: {masks: masks}", "secure_aggregation.masks must be true or false, g"),
        (
            "secure_aggregation: {threshold: 0.5}",
            "secure_aggregation.threshold must be a whole number >= 1, or null, got 0.5",
        ),
        ("per_day: {rounds: 1.5}", "per_day.rounds must be a whole number >= 0, or null, got 1.5"),
        ("client_name: 7", "client_name must be a text of 1 to 100 characters, on one line, or"),
        ('client_name: "a\\nb"', "client_name must be a text of 1 to 100 characters, on one line"),
        ("scales: yes please", "scales must be true or false, got 'yes please'"),
        ("scale: true", "scale is not a key of node.yaml; did you mean scales?"),
        ("accept: {models: mlp}", "accept.models must be a list of names, got 'mlp'"),
        (
            "withhold: [num-examples]",
            f"withhold must be a list of {', '.join(EVALUATION_KEYS)}, got ['num-examples']",
        ),
        ("!!python/object/apply:os.system [true]", "could not determine a constructor"),
    ],
)
def test_mistakes_in_a_policy_are_one_line(tmp_path: Path, text: str, problem: str) -> None:
    """The error names the file, the allowed values and the given one."""
    path = tmp_path / "node.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError) as error:
        load_policy(path)
    assert str(error.value).startswith(str(path))
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


def test_where_a_policy_is(tmp_path: Path) -> None:
    """Beside the data, or where the node config says."""
    data = tmp_path / "own.npz"
    assert find_policy("", str(data)) is None
    assert find_policy("", "") is None
    (tmp_path / "node.yaml").touch()
    assert find_policy("", str(data)) == tmp_path / "node.yaml"
    assert find_policy("/etc/other.yaml", str(data)) == Path("/etc/other.yaml")
