"""Grid and fleet, with a stand-in for Ray in which nothing runs by itself."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pytest
import ray
from fedquorum.errors import RunError, SettingsError
from fedquorum.flower.codec import encode_arrays
from fedquorum.flower.waiting import WaitingGrid
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from ray.exceptions import RayActorError, RayTaskError

from server_app.provenance import collect_code_facts
from server_app.ray_engine.cluster import WorkerResources
from server_app.ray_engine.grid import RayGrid
from server_app.ray_engine.worker import Worker, WorkerConfig
from server_app.ray_engine.worker_pool import RayWorkerPool


def echoing_app() -> ClientApp:
    """Return an app that replies what it was sent, if that is anything."""
    app = ClientApp()

    @app.train()
    def train(message: Message, _: Context) -> Message:
        if not message.content:
            raise ValueError("nothing to reply")
        return Message(message.content, reply_to=message)

    return app


HOSTING = WorkerConfig(echoing_app(), {}, num_nodes=4, device="cpu", code=collect_code_facts())


class Ref:
    """What Ray will have: made when somebody lets it be done."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make
        self.done = False


class Actor:
    """A worker in this process; ``hangs`` and ``dead`` as a test says."""

    def __init__(self, ray_: "FakeRay", options: Mapping[str, Any], worker: Worker) -> None:
        self.ray, self.options, self.worker = ray_, options, worker
        self.hangs = self.dead = False
        self.got: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        actor = self

        class Method:
            def remote(self, *arguments: Any) -> Ref:
                return actor.call(name, arguments)

        return Method()

    def call(self, name: str, arguments: tuple[Any, ...]) -> Ref:
        self.got.append((name, *arguments))
        given = [a.make() if isinstance(a, Ref) else a for a in arguments]
        ref = Ref(lambda: getattr(self.worker, name)(*given))
        ref.done = not self.hangs
        self.ray.of[ref] = self
        return ref


class FakeRay:
    """Ray's functions, as far as fleet and grid use them."""

    def __init__(self) -> None:
        self.of: dict[Ref, Actor] = {}
        self.actors: list[Actor] = []
        self.puts: list[Any] = []
        self.killed: list[Actor] = []

    def put(self, value: Any) -> Ref:
        self.puts.append(value)
        return Ref(lambda: value)

    def get(self, ref: Ref) -> Any:
        if ref in self.of and self.of[ref].dead:
            raise RayActorError(error_msg="It died.\n\tname: x\nIts end. Some common causes are")
        try:
            return ref.make()
        except Exception as error:
            raise RayTaskError("f", "trace", error) from None

    def wait(
        self, refs: list[Ref], *, num_returns: int = 1, timeout: float | None = None
    ) -> tuple[list[Ref], list[Ref]]:
        assert len(set(refs)) == len(refs) >= num_returns
        done = [r for r in refs if r.done or (r in self.of and self.of[r].dead)][:num_returns]
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
    """Return the stand-in, in Ray's place."""
    made = FakeRay()
    for name in ("put", "get", "wait", "remote", "kill"):
        monkeypatch.setattr(ray, name, getattr(made, name))
    monkeypatch.setattr("server_app.ray_engine.worker.register_serializer", lambda *_, **__: None)
    monkeypatch.setattr("torch.set_num_threads", lambda _: None)
    return made


@pytest.fixture
def fleet(fake: FakeRay) -> Iterable[RayWorkerPool]:
    """Return two workers with two nodes each."""
    made = RayWorkerPool(WorkerResources(2, 3), HOSTING, threads=1, startup_timeout=1.0)
    with made.keep_running():
        yield made


def messages(nodes: Iterable[int], model: Any = None) -> list[Message]:
    """Return a message for each node, all with the same model."""
    arrays = encode_arrays({"w": np.zeros(3)}) if model is None else model
    return [
        Message(RecordDict({"arrays": arrays, "config": ConfigRecord()}), k, MessageType.TRAIN)
        for k in nodes
    ]


def nodes_of(replies: Iterable[Message]) -> list[int]:
    """Return from which nodes replies are, in their order."""
    return [reply.metadata.src_node_id for reply in replies]


# --- the fleet -------------------------------------------------------------------------------


def test_nodes_are_divided_among_workers(fake: FakeRay, fleet: RayWorkerPool) -> None:
    """Partition j is at worker j mod M; each has its share, and all are ended."""
    assert [member.nodes for member in fleet.workers] == [(1, 3), (2, 4)]
    assert [fleet.get_worker(node).index for node in (1, 2, 3, 4)] == [0, 1, 0, 1]
    assert [actor.options for actor in fake.actors] == [{"num_cpus": 3, "num_gpus": 0}] * 2
    assert fleet.device == "cpu"
    for node in (0, 5):
        with pytest.raises(KeyError):
            fleet.get_worker(node)


def test_all_workers_are_ended(fake: FakeRay) -> None:
    """Also after an interruption."""
    made = RayWorkerPool(WorkerResources(2, 1), HOSTING, threads=1, startup_timeout=1.0)
    with pytest.raises(KeyboardInterrupt), made.keep_running():
        raise KeyboardInterrupt
    assert fake.killed == fake.actors


def test_workers_that_do_not_start_in_time(fake: FakeRay) -> None:
    """One line that counts them."""
    made = RayWorkerPool(WorkerResources(2, 1), HOSTING, threads=1, startup_timeout=0.05)
    ref = made.workers[1].ready
    ref.done = False
    told = r"^after 0\.05 s \(engine\.startup_timeout\), 1 of 2 workers have started: others may"
    with pytest.raises(RunError, match=told), made.keep_running():
        pass


@pytest.mark.parametrize(
    ("problem", "kind", "told"),
    [
        (SettingsError("client.device must be cpu"), SettingsError, "^client.device must be cpu$"),
        (ValueError("two\nlines"), RunError, "^a worker cannot start: ValueError: two lines$"),
    ],
)
def test_a_worker_that_cannot_start(
    fake: FakeRay,
    monkeypatch: pytest.MonkeyPatch,
    problem: Exception,
    kind: type[Exception],
    told: str,
) -> None:
    """What is to be mended is said as it would be here; anything else in one line."""

    def refuse(*_: object) -> None:
        raise problem

    monkeypatch.setattr(Worker, "host", refuse)
    with (
        pytest.raises(kind, match=told),
        RayWorkerPool(
            WorkerResources(1, 1), HOSTING, threads=1, startup_timeout=1.0
        ).keep_running(),
    ):
        pass


# --- the grid --------------------------------------------------------------------------------


def test_a_model_is_put_once(fake: FakeRay, fleet: RayWorkerPool) -> None:
    """For all nodes, and for the next exchange with the same one; another model replaces it."""
    grid, models = RayGrid(fleet), [encode_arrays({"w": np.full(2**14, k)}) for k in range(2)]
    before = len(fake.puts)
    for model in (models[0], models[0], models[1]):
        ids = list(grid.push_messages(messages([1, 2, 3, 4], model)))
    assert fake.puts[before:] == models
    shells = [call[1] for actor in fake.actors for call in actor.got if call[0] == "answer"]
    assert all(set(shell.content) == {"config"} for shell in shells)
    replies = list(grid.pull_messages(ids))
    assert [reply.content.array_records["arrays"] for reply in replies] == [models[1]] * 4


def test_a_small_model_is_sent_with_each_message(fake: FakeRay, fleet: RayWorkerPool) -> None:
    """That is quicker than by way of Ray's memory."""
    before, model = len(fake.puts), encode_arrays({"w": np.arange(2**12)})
    replies = list(RayGrid(fleet).send_and_receive(messages([1, 2], model)))
    assert len(fake.puts) == before
    assert [reply.content.array_records["arrays"] for reply in replies] == [model] * 2


def test_replies_are_pulled_as_they_come(fake: FakeRay, fleet: RayWorkerPool) -> None:
    """Nothing blocks, and each reply is handed out once."""
    fake.actors[1].hangs = True
    grid = RayGrid(fleet)
    ids = list(grid.push_messages(messages([1, 2, 3, 4])))
    assert nodes_of(grid.pull_messages(ids)) == [1, 3]
    assert list(grid.pull_messages(ids)) == []
    for ref in fake.of:
        ref.done = True
    grid.wait(ids, 1.0)
    replies = list(grid.pull_messages(ids))
    assert nodes_of(replies) == [2, 4]
    assert [reply.metadata.reply_to_message_id for reply in replies] == [ids[1], ids[3]]
    assert list(grid.pull_messages(["unknown"])) == []


def test_a_worker_that_hangs_costs_a_round_its_deadline(
    fake: FakeRay, fleet: RayWorkerPool
) -> None:
    """The grid alone waits as within the run loop; other workers' replies count."""
    fake.actors[0].hangs = True
    started = time.monotonic()
    replies = RayGrid(fleet).send_and_receive(messages([1, 2, 3, 4]), timeout=0.3)
    assert nodes_of(replies) == [2, 4]
    assert 0.3 <= time.monotonic() - started < 2


def test_a_quorum_closes_an_exchange(fake: FakeRay, fleet: RayWorkerPool) -> None:
    """The nodes of the slow worker are busy until their replies come, which are late."""
    fake.actors[0].hangs = True
    waiting = WaitingGrid(RayGrid(fleet), is_quorum=lambda arrival: arrival.node == 4)
    replies = waiting.send_and_receive(messages([1, 2, 3, 4]), timeout=20)
    assert nodes_of(replies) == [2, 4]
    assert waiting.closed_early
    assert waiting.busy_nodes == {1, 3}
    for ref in fake.of:
        ref.done = True
    assert nodes_of(waiting.send_and_receive(messages([2]), timeout=20)) == [2]
    assert sorted(nodes_of(a.message for a in waiting.take_late_arrivals())) == [1, 3]
    assert waiting.busy_nodes == frozenset()


def test_what_a_client_app_raises_is_an_error_reply(fake: FakeRay, fleet: RayWorkerPool) -> None:
    """As in process: the worker goes on."""
    bad = Message(RecordDict(), 1, MessageType.TRAIN)
    (reply,) = RayGrid(fleet).send_and_receive([bad])
    assert reply.has_error()
    assert not fake.killed


def test_a_dead_worker_is_started_again(fake: FakeRay, fleet: RayWorkerPool) -> None:
    """Its messages get errors with the reason; then it has what was kept the last time."""
    grid = RayGrid(fleet)
    kept = fake.actors[0].worker._nodes.contexts[3].state
    kept["x"] = ConfigRecord({"kept": 1})
    states = grid.get_node_states()
    kept["y"] = ConfigRecord()  # since then
    fake.actors[0].hangs = fake.actors[0].dead = True
    replies = list(grid.send_and_receive(messages([1, 2, 3, 4]), timeout=1.0))
    lost = [reply for reply in replies if reply.has_error()]
    assert sorted(nodes_of(lost)) == [1, 3]
    assert {reply.error.reason for reply in lost} == {"the worker of its node was lost: Its end."}
    assert fake.killed == fake.actors[:1]
    assert len(fake.actors) == 3
    assert fake.actors[2].options == {"num_cpus": 0, "num_gpus": 0}
    assert sorted(nodes_of(grid.send_and_receive(messages([1, 2, 3, 4])))) == [1, 2, 3, 4]
    assert set(fake.actors[2].worker._nodes.contexts[3].state) == {"x"}
    assert grid.get_node_states()["3"].tobytes() == states["3"].tobytes()


def test_a_worker_that_does_not_come_back(fake: FakeRay, fleet: RayWorkerPool) -> None:
    """As where a GPU is lost: its nodes count as gone, and are taken back when it starts."""
    grid = RayGrid(fleet)
    fake.actors[0].dead = True
    list(grid.send_and_receive(messages([1])))
    again = fleet.workers[0]
    again.ready.done, fake.actors[2].hangs = False, True
    assert list(grid.get_node_ids()) == [1, 2, 3, 4]
    replies = list(grid.send_and_receive(messages([1, 2]), timeout=20))
    assert nodes_of(replies) == [2, 1]
    assert replies[1].error.reason == (
        "the worker of its node was lost: "
        "it was not started again within 1 s (engine.startup_timeout)"
    )
    assert list(grid.get_node_ids()) == [2, 4]
    again.ready.done, fake.actors[2].hangs = True, False
    assert list(grid.get_node_ids()) == [1, 2, 3, 4]
    assert nodes_of(grid.send_and_receive(messages([1]))) == [1]


def test_a_worker_started_again_with_other_code_ends_the_run(
    fake: FakeRay, fleet: RayWorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is perhaps on a machine that had none before."""
    grid = RayGrid(fleet)
    fake.actors[0].dead = True
    monkeypatch.setattr("server_app.provenance.collect_code_facts", lambda: {"torch": "1.0"})
    list(grid.send_and_receive(messages([1])))
    with pytest.raises(RunError, match=r"all workers must have the code .* torch is 1\.0 on"):
        grid.get_node_ids()


def test_states_of_a_worker_at_work_are_those_of_before(
    fake: FakeRay, fleet: RayWorkerPool
) -> None:
    """A checkpoint waits for no slow worker."""
    grid = RayGrid(fleet)
    for actor in fake.actors:
        for context in actor.worker._nodes.contexts.values():
            context.state["x"] = ConfigRecord()
    fake.actors[0].hangs = True
    grid.push_messages(messages([1]))
    states = grid.get_node_states()
    assert sorted(states) == ["1", "2", "3", "4"]
    assert [len(states[node]) > 0 for node in sorted(states)] == [False, True, False, True]


def test_states_go_to_the_workers_of_their_nodes(fake: FakeRay, fleet: RayWorkerPool) -> None:
    """What one grid returned another takes over, with another number of workers; not of nodes."""
    for node in (1, 2, 3, 4):
        state = fleet.get_worker(node).actor.worker._nodes.contexts[node].state
        state["node"] = ConfigRecord({"id": node})
    states = RayGrid(fleet).get_node_states()
    other = RayWorkerPool(WorkerResources(3, 1), HOSTING, threads=1, startup_timeout=1.0)
    with other.keep_running():
        RayGrid(other).restore_node_states(states)
        for node in (1, 2, 3, 4):
            state = other.get_worker(node).actor.worker._nodes.contexts[node].state
            assert state.config_records["node"]["id"] == node
        with pytest.raises(SettingsError, match=r"^engine\.num_supernodes must be 3, as when .* 4"):
            RayGrid(other).restore_node_states({k: states[k] for k in "123"})


def test_expired_messages_are_forgotten(fake: FakeRay, fleet: RayWorkerPool) -> None:
    """Nobody will ask for their replies."""
    fake.actors[0].hangs = True
    grid = RayGrid(fleet)
    (message,) = messages([1])
    message.metadata.ttl = 0.01
    grid.push_messages([message])
    time.sleep(0.02)
    grid.push_messages(messages([2]))
    assert [sent.worker.index for sent in grid._sent.values()] == [1]
