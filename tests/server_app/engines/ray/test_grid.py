"""Test grid and worker pool with a fake Ray, in which no task runs by itself."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pytest
import ray
from fedquorum.errors import RunError, SettingsError
from fedquorum.flower.codec import encode_arrays
from fedquorum.flower.waiting_grid import WaitingGrid
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from ray.exceptions import RayActorError, RayTaskError

from server_app.engines.ray.cluster import WorkerResources
from server_app.engines.ray.grid import RayGrid
from server_app.engines.ray.worker import Worker, WorkerConfig
from server_app.engines.ray.worker_pool import RayWorkerPool
from server_app.provenance import collect_code_facts


def make_echo_app() -> ClientApp:
    """Return an app that replies with the content of a message, and raises if it is empty."""
    app = ClientApp()

    @app.train()
    def train(message: Message, _: Context) -> Message:
        if not message.content:
            raise ValueError("nothing to reply")
        return Message(message.content, reply_to=message)

    return app


CONFIG = WorkerConfig(make_echo_app(), {}, num_nodes=4, device="cpu", code=collect_code_facts())


class Ref:
    """A reference to a future value, which is ready once ``done`` is set."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make
        self.done = False


class Actor:
    """A worker in this process, which a test can make hang or die."""

    def __init__(self, ray_: "FakeRay", options: Mapping[str, Any], worker: Worker) -> None:
        self.ray, self.options, self.worker = ray_, options, worker
        self.hangs = self.dead = False
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        actor = self

        class Method:
            def remote(self, *arguments: Any) -> Ref:
                return actor.call(name, arguments)

        return Method()

    def call(self, name: str, arguments: tuple[Any, ...]) -> Ref:
        self.calls.append((name, *arguments))
        values = [a.make() if isinstance(a, Ref) else a for a in arguments]
        ref = Ref(lambda: getattr(self.worker, name)(*values))
        ref.done = not self.hangs
        self.ray.actor_of[ref] = self
        return ref


class FakeRay:
    """The functions of Ray that worker pool and grid use."""

    def __init__(self) -> None:
        self.actor_of: dict[Ref, Actor] = {}
        self.actors: list[Actor] = []
        self.puts: list[Any] = []
        self.killed: list[Actor] = []

    def put(self, value: Any) -> Ref:
        self.puts.append(value)
        return Ref(lambda: value)

    def get(self, ref: Ref) -> Any:
        if ref in self.actor_of and self.actor_of[ref].dead:
            raise RayActorError(error_msg="It died.\n\tname: x\nIts end. Some common causes are")
        try:
            return ref.make()
        except Exception as error:
            raise RayTaskError("f", "trace", error) from None

    def wait(
        self, refs: list[Ref], *, num_returns: int = 1, timeout: float | None = None
    ) -> tuple[list[Ref], list[Ref]]:
        assert len(set(refs)) == len(refs) >= num_returns
        dead = {ref for ref, actor in self.actor_of.items() if actor.dead}
        done = [ref for ref in refs if ref.done or ref in dead][:num_returns]
        if not done and timeout:
            time.sleep(min(timeout, 0.01))
        return done, [r for r in refs if r not in done]

    def remote(self, **options: Any) -> Any:
        fake = self

        class Maker:
            def __init__(self, kind: type[Worker]) -> None:
                self.kind = kind

            def remote(self, threads: int) -> Actor:
                fake.actors.append(Actor(fake, options, self.kind(threads)))
                return fake.actors[-1]

        return Maker

    def kill(self, actor: Actor) -> None:
        self.killed.append(actor)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    """Replace Ray's functions with those of a fake, and return the fake."""
    fake_ray = FakeRay()
    for name in ("put", "get", "wait", "remote", "kill"):
        monkeypatch.setattr(ray, name, getattr(fake_ray, name))
    monkeypatch.setattr("server_app.engines.ray.worker.register_serializer", lambda *_, **__: None)
    monkeypatch.setattr("torch.set_num_threads", lambda _: None)
    return fake_ray


@pytest.fixture
def pool(fake: FakeRay) -> Iterable[RayWorkerPool]:
    """Return a pool of two workers with two nodes each."""
    worker_pool = RayWorkerPool(WorkerResources(2, 3), CONFIG, threads=1, startup_timeout=1.0)
    with worker_pool.keep_running():
        yield worker_pool


def make_messages(nodes: Iterable[int], model: Any = None) -> list[Message]:
    """Return one message for each node, all with the same model."""
    arrays = encode_arrays({"w": np.zeros(3)}) if model is None else model
    return [
        Message(RecordDict({"arrays": arrays, "config": ConfigRecord()}), k, MessageType.TRAIN)
        for k in nodes
    ]


def list_nodes(replies: Iterable[Message]) -> list[int]:
    """Return the nodes that sent the replies, in order."""
    return [reply.metadata.src_node_id for reply in replies]


# --- the worker pool -------------------------------------------------------------------------


def test_nodes_are_divided_among_workers(fake: FakeRay, pool: RayWorkerPool) -> None:
    """Worker j mod M hosts partition j, and each worker requests its cores."""
    assert [worker.nodes for worker in pool.workers] == [(1, 3), (2, 4)]
    assert [pool.get_worker(node).index for node in (1, 2, 3, 4)] == [0, 1, 0, 1]
    assert [actor.options for actor in fake.actors] == [{"num_cpus": 3, "num_gpus": 0}] * 2
    assert pool.device == "cpu"
    for node in (0, 5):
        with pytest.raises(KeyError):
            pool.get_worker(node)


def test_all_workers_are_stopped(fake: FakeRay) -> None:
    """They are also stopped after an interruption."""
    pool = RayWorkerPool(WorkerResources(2, 1), CONFIG, threads=1, startup_timeout=1.0)
    with pytest.raises(KeyboardInterrupt), pool.keep_running():
        raise KeyboardInterrupt
    assert fake.killed == fake.actors


def test_workers_that_do_not_start_in_time_are_counted(fake: FakeRay) -> None:
    """The error has the numbers of started and of all workers."""
    pool = RayWorkerPool(WorkerResources(2, 1), CONFIG, threads=1, startup_timeout=0.05)
    ref = pool.workers[1].ready
    ref.done = False
    message = r"^after 0\.05 s \(engine\.startup_timeout\), 1 of 2 workers have started: others may"
    with pytest.raises(RunError, match=message), pool.keep_running():
        pass


@pytest.mark.parametrize(
    ("error", "expected_type", "message"),
    [
        (SettingsError("client.device must be cpu"), SettingsError, "^client.device must be cpu$"),
        (ValueError("two\nlines"), RunError, "^a worker cannot start: ValueError: two lines$"),
    ],
)
def test_a_worker_that_cannot_start_ends_the_run(
    fake: FakeRay,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    expected_type: type[Exception],
    message: str,
) -> None:
    """An error in the settings is raised unchanged, any other error as one line."""

    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(Worker, "host", refuse)
    with (
        pytest.raises(expected_type, match=message),
        RayWorkerPool(WorkerResources(1, 1), CONFIG, threads=1, startup_timeout=1.0).keep_running(),
    ):
        pass


# --- the grid --------------------------------------------------------------------------------


def test_a_model_is_put_once(fake: FakeRay, pool: RayWorkerPool) -> None:
    """All nodes and the next exchange share it in Ray's memory, until the model changes."""
    grid, models = RayGrid(pool), [encode_arrays({"w": np.full(2**14, k)}) for k in range(2)]
    before = len(fake.puts)
    for model in (models[0], models[0], models[1]):
        ids = list(grid.push_messages(make_messages([1, 2, 3, 4], model)))
    assert fake.puts[before:] == models
    shells = [call[1] for actor in fake.actors for call in actor.calls if call[0] == "handle"]
    assert [set(shell.content) for shell in shells] == [{"config"}] * 12
    replies = list(grid.pull_messages(ids))
    assert [reply.content.array_records["arrays"] for reply in replies] == [models[1]] * 4


def test_a_small_model_is_sent_with_each_message(fake: FakeRay, pool: RayWorkerPool) -> None:
    """A small model is faster inside the message than in Ray's memory."""
    before, model = len(fake.puts), encode_arrays({"w": np.arange(2**12)})
    replies = list(RayGrid(pool).send_and_receive(make_messages([1, 2], model)))
    assert len(fake.puts) == before
    assert [reply.content.array_records["arrays"] for reply in replies] == [model] * 2


def test_replies_are_pulled_as_they_arrive(fake: FakeRay, pool: RayWorkerPool) -> None:
    """Pulling does not block, and returns each reply once."""
    fake.actors[1].hangs = True
    grid = RayGrid(pool)
    ids = list(grid.push_messages(make_messages([1, 2, 3, 4])))
    assert list_nodes(grid.pull_messages(ids)) == [1, 3]
    assert list(grid.pull_messages(ids)) == []
    for ref in fake.actor_of:
        ref.done = True
    grid.wait(ids, 1.0)
    replies = list(grid.pull_messages(ids))
    assert list_nodes(replies) == [2, 4]
    assert [reply.metadata.reply_to_message_id for reply in replies] == [ids[1], ids[3]]
    assert list(grid.pull_messages(["unknown"])) == []


def test_a_hanging_worker_delays_a_round_until_its_deadline(
    fake: FakeRay, pool: RayWorkerPool
) -> None:
    """The grid waits until the timeout, and returns the replies of other workers."""
    fake.actors[0].hangs = True
    started = time.monotonic()
    replies = RayGrid(pool).send_and_receive(make_messages([1, 2, 3, 4]), timeout=0.3)
    assert list_nodes(replies) == [2, 4]
    assert 0.3 <= time.monotonic() - started < 2


def test_a_quorum_closes_an_exchange(fake: FakeRay, pool: RayWorkerPool) -> None:
    """The nodes of the slow worker are busy until their late replies arrive."""
    fake.actors[0].hangs = True
    waiting = WaitingGrid(RayGrid(pool), is_quorum=lambda arrival: arrival.node == 4)
    replies = waiting.send_and_receive(make_messages([1, 2, 3, 4]), timeout=20)
    assert list_nodes(replies) == [2, 4]
    assert waiting.closed_early
    assert waiting.busy_nodes == {1, 3}
    for ref in fake.actor_of:
        ref.done = True
    assert list_nodes(waiting.send_and_receive(make_messages([2]), timeout=20)) == [2]
    assert sorted(list_nodes(a.message for a in waiting.take_late_arrivals())) == [1, 3]
    assert waiting.busy_nodes == frozenset()


def test_an_error_in_a_client_app_is_an_error_reply(fake: FakeRay, pool: RayWorkerPool) -> None:
    """The worker is not restarted, as in process."""
    bad = Message(RecordDict(), 1, MessageType.TRAIN)
    (reply,) = RayGrid(pool).send_and_receive([bad])
    assert reply.has_error()
    assert not fake.killed


def test_a_dead_worker_is_restarted(fake: FakeRay, pool: RayWorkerPool) -> None:
    """Its messages get error replies, and it starts with the last states of its clients."""
    grid = RayGrid(pool)
    state = fake.actors[0].worker._nodes.contexts[3].state
    state["x"] = ConfigRecord({"number": 1})
    states = grid.get_node_states()
    state["y"] = ConfigRecord()  # after the last call
    fake.actors[0].hangs = fake.actors[0].dead = True
    replies = list(grid.send_and_receive(make_messages([1, 2, 3, 4]), timeout=1.0))
    lost = [reply for reply in replies if reply.has_error()]
    assert sorted(list_nodes(lost)) == [1, 3]
    assert {reply.error.reason for reply in lost} == {"the worker of its node was lost: Its end."}
    assert fake.killed == fake.actors[:1]
    assert len(fake.actors) == 3
    assert fake.actors[2].options == {"num_cpus": 0, "num_gpus": 0}
    assert sorted(list_nodes(grid.send_and_receive(make_messages([1, 2, 3, 4])))) == [1, 2, 3, 4]
    assert set(fake.actors[2].worker._nodes.contexts[3].state) == {"x"}
    assert grid.get_node_states()["3"].tobytes() == states["3"].tobytes()


@pytest.mark.slow
def test_a_worker_that_does_not_restart_is_unavailable(fake: FakeRay, pool: RayWorkerPool) -> None:
    """Its nodes are unavailable, for example after the loss of a GPU, until it has started."""
    grid = RayGrid(pool)
    fake.actors[0].dead = True
    list(grid.send_and_receive(make_messages([1])))
    restarted = pool.workers[0]
    restarted.ready.done, fake.actors[2].hangs = False, True
    assert list(grid.get_node_ids()) == [1, 2, 3, 4]
    replies = list(grid.send_and_receive(make_messages([1, 2]), timeout=20))
    assert list_nodes(replies) == [2, 1]
    assert replies[1].error.reason == (
        "the worker of its node was lost: "
        "it was not started again within 1 s (engine.startup_timeout)"
    )
    assert list(grid.get_node_ids()) == [2, 4]
    restarted.ready.done, fake.actors[2].hangs = True, False
    assert list(grid.get_node_ids()) == [1, 2, 3, 4]
    assert list_nodes(grid.send_and_receive(make_messages([1]))) == [1]


def test_a_worker_restarted_with_other_code_ends_the_run(
    fake: FakeRay, pool: RayWorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be on another machine than before."""
    grid = RayGrid(pool)
    fake.actors[0].dead = True
    monkeypatch.setattr("server_app.provenance.collect_code_facts", lambda: {"torch": "1.0"})
    list(grid.send_and_receive(make_messages([1])))
    with pytest.raises(RunError, match=r"all workers must have the code .* torch is 1\.0 on"):
        grid.get_node_ids()


def test_the_states_of_a_busy_worker_are_the_last_ones(fake: FakeRay, pool: RayWorkerPool) -> None:
    """A checkpoint does not wait for a slow worker."""
    grid = RayGrid(pool)
    for actor in fake.actors:
        for context in actor.worker._nodes.contexts.values():
            context.state["x"] = ConfigRecord()
    fake.actors[0].hangs = True
    grid.push_messages(make_messages([1]))
    states = grid.get_node_states()
    assert sorted(states) == ["1", "2", "3", "4"]
    assert [len(states[node]) > 0 for node in sorted(states)] == [False, True, False, True]


def test_states_go_to_the_workers_of_their_nodes(fake: FakeRay, pool: RayWorkerPool) -> None:
    """Another grid restores them with another number of workers."""
    for node in (1, 2, 3, 4):
        state = pool.get_worker(node).actor.worker._nodes.contexts[node].state
        state["node"] = ConfigRecord({"id": node})
    states = RayGrid(pool).get_node_states()
    other = RayWorkerPool(WorkerResources(3, 1), CONFIG, threads=1, startup_timeout=1.0)
    with other.keep_running():
        RayGrid(other).restore_node_states(states)
        for node in (1, 2, 3, 4):
            state = other.get_worker(node).actor.worker._nodes.contexts[node].state
            assert state.config_records["node"]["id"] == node


def test_expired_messages_are_dropped(fake: FakeRay, pool: RayWorkerPool) -> None:
    """Their replies will not be pulled."""
    fake.actors[0].hangs = True
    grid = RayGrid(pool)
    (message,) = make_messages([1])
    message.metadata.ttl = 0.01
    grid.push_messages([message])
    time.sleep(0.02)
    grid.push_messages(make_messages([2]))
    assert [sent.worker.index for sent in grid._sent.values()] == [1]
