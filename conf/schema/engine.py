"""Settings of where clients run, what bounds them, and when they are evaluated."""

from dataclasses import dataclass
from typing import Any

from fedquorum.parameters import (
    COUNT,
    EVALUATED_CLIENTS,
    FAIRNESS_METRIC,
    NON_NEGATIVE,
    NON_NEGATIVE_COUNT,
    POSITIVE,
    REQUIREMENT,
    OneOf,
)
from fedquorum.quorum import QUORUM_OF, QUORUM_SIZE
from fedquorum.rule import parameter
from omegaconf import MISSING

from conf.schema.ranges import (
    AUTO,
    CheckpointInterval,
    ClusterAddress,
    ConnectionName,
    FilePath,
)


@dataclass
class EvaluationSettings:
    """When and whose test parts are measured, after the round.

    ``every`` n rounds and after the last; ``clients`` all or priority. ``metric`` is what the
    fairness over clients is of, null for accuracy, or for rmse where numbers are predicted.
    ``class_alignment``: whether the records tell on which class each client's update points the way
    of the others; no model changes by it. ``requirement``: rho_k, the training loss that each
    client wants the model to be below, a number, a list, or the directory of a ``local_only`` run;
    appeal and preferred accuracy are then measured, whatever the strategy, and a strategy that
    weighs by requirements takes them. null is the strategy's, if it has one.
    """

    every: int = parameter(1, COUNT)
    metric: str | None = parameter(None, FAIRNESS_METRIC)
    clients: str = parameter("all", EVALUATED_CLIENTS)
    class_alignment: bool = False
    requirement: Any = parameter(None, REQUIREMENT)


@dataclass
class RobustnessSettings:
    """Bounds on what one client can do; see ``fedquorum.Robustness``. null bounds nothing."""

    clip_norm: float | None = parameter(None, POSITIVE)
    max_weight: float | None = parameter(None, POSITIVE)


@dataclass
class EngineSettings:
    """Where the clients run: in this process, on Ray, or by ``flwr run`` with its true exit status.

    ``num_supernodes`` null leaves the number to Flower; with ``ray`` there is one for each worker.
    Timeouts in seconds: for the replies of a round, and for the clients to be there.
    ``quorum``: how many clients must have replied for a round to close, a share below 1 or a
    whole number; null waits for all until ``round_timeout``. ``quorum_of``: whether all clients
    asked are counted, or the priority clients alone. ``grace``: how many seconds longer a round
    waits for further replies.
    ``startup_clients``: how many must be there for round 1 to begin, null for all.
    ``partial_aggregation``: whether a node may send one sum instead of all models, see
    ``fedquorum.flower.communication.Communication``; the model has the same bits either way.
    ``reply_memory``: how many bytes of a round's replies are in memory where its weights need all
    of them at once; the others are in files below TMPDIR. null is half of the machine's memory.
    ``checkpoint_every`` n rounds, and after the last, all is written down that ``resume`` needs;
    auto as often as takes a twentieth of the time, at most once a second, null never.
    ``stop_after``: the round after which the run is left, interrupted, for ``resume`` to go on;
    null for none.
    ``nodes``: the file that says whose public key each client's node has, see
    ``server_app.nodes``; null believes what nodes say of themselves. ``superlink``: the name of
    the deployment in Flower's configuration that ``engine=flower`` submits to, null for the local
    simulation.
    ``workers``: how many processes ``ray`` has for the clients, one GPU each where there are GPUs;
    null takes all cores, or all GPUs, of the cluster. ``address``: the cluster's HOST:PORT; null
    takes the environment variable RAY_ADDRESS, and without it, as with ``local``, Ray is started
    on this machine for the run. ``send_data``: whether workers get the data from this process,
    once, instead of reading it themselves.
    ``arithmetic``: ``same`` refuses to resume a run by another arithmetic than it began with, see
    ``client_app.arithmetic``; ``any`` goes on, and the manifest says so.
    ``trust``: whether ``resume`` may import code that the run's records name by import path, and
    connect to machines that they name; what the command line names itself needs no trust.
    ``jobs``: how many jobs of a sweep run at a time, each in a process of its own.
    """

    name: str = parameter(MISSING, OneOf(("in-process", "ray", "flower")))
    num_supernodes: int | None = parameter(None, COUNT)
    round_timeout: float = parameter(3600.0, POSITIVE)
    quorum: float | None = parameter(None, QUORUM_SIZE)
    quorum_of: str = parameter("asked", QUORUM_OF)
    grace: float = parameter(0.0, NON_NEGATIVE)
    startup_timeout: float = parameter(300.0, POSITIVE)
    startup_clients: int | None = parameter(None, COUNT)
    partial_aggregation: bool = True
    reply_memory: int | None = parameter(None, NON_NEGATIVE_COUNT)
    checkpoint_every: Any = parameter(AUTO, CheckpointInterval())
    stop_after: int | None = parameter(None, COUNT)
    nodes: str | None = parameter(None, FilePath("a file of client ids and public keys"))
    superlink: str | None = parameter(None, ConnectionName())
    workers: int | None = parameter(None, COUNT)
    address: str | None = parameter(None, ClusterAddress())
    send_data: bool = False
    arithmetic: str = parameter("same", OneOf(("same", "any")))
    trust: bool = False
    jobs: int = parameter(1, COUNT)
