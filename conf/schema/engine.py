"""Define the settings of engines, of bounds on clients, and of evaluation."""

from dataclasses import dataclass
from typing import Any

from fedquorum.rules.decisions import ALONE, FINETUNED
from fedquorum.rules.parameters import (
    EVALUATED_CLIENTS,
    FAIRNESS_METRIC,
    NON_NEGATIVE,
    NON_NEGATIVE_INT,
    POSITIVE,
    POSITIVE_INT,
    REQUIREMENT,
    OneOf,
)
from fedquorum.rules.rule import parameter
from fedquorum.rules.staleness import LATE_REPLIES
from fedquorum.server.quorum import QUORUM_CLIENTS, QUORUM_SIZE
from omegaconf import MISSING

from conf.schema.ranges import (
    AUTO,
    EPOCH_CANDIDATES,
    CheckpointInterval,
    ClusterAddress,
    ConnectionName,
    FilePath,
)


@dataclass
class EvaluationSettings:
    """The evaluation of clients' test splits after a round.

    ``every``: evaluate every n rounds, and after the last; null only after the last.
    ``every_seconds``: evaluate after each round in which the simulated clock passes another
    multiple of these seconds; null never. ``clients``: all or priority.
    ``metric``: the metric of the clients' fairness; null for accuracy, or for rmse if the data has
    numbers to predict. ``requirement``: rho_k, the training loss below which the model satisfies
    client k: a number, a list, or the folder of a run with ``alone_epochs``. With it, any run
    reports appeal and preferred accuracy, and a strategy that weights by requirements uses it. null
    uses the strategy's requirement, if any.

    ``finetune_epochs``: after the last round, each evaluated client that trains also trains the
    last model on its own rows for N epochs, evaluates the result and discards it. 0 is off. Of a
    list, the number with the best mean on validation splits counts, for all clients; 0 there is the
    last model itself. ``alone_epochs``: the same from the first model, that is without the others.
    The client's settings hold, except ``client.local_epochs``, ``client.local_steps`` and
    ``client.proximal_mu``.
    """

    every: int | None = parameter(1, POSITIVE_INT)
    every_seconds: float | None = parameter(None, POSITIVE)
    metric: str | None = parameter(None, FAIRNESS_METRIC)
    clients: str = parameter("all", EVALUATED_CLIENTS)
    requirement: Any = parameter(None, REQUIREMENT)
    finetune_epochs: Any = parameter(0, EPOCH_CANDIDATES)
    alone_epochs: Any = parameter(0, EPOCH_CANDIDATES)

    @property
    def personal_epochs(self) -> dict[str, tuple[int, ...]]:
        """The numbers of epochs to try, by the personal models that the run evaluates."""
        given = {FINETUNED: self.finetune_epochs, ALONE: self.alone_epochs}
        return {
            model: tuple(epochs) if isinstance(epochs, list) else (epochs,)
            for model, epochs in given.items()
            if epochs != 0
        }


@dataclass
class RobustnessSettings:
    """Bounds on the influence of one client; null for no bound. See ``fedquorum.Robustness``."""

    clip_norm: float | None = parameter(None, POSITIVE)
    max_weight: float | None = parameter(None, POSITIVE)


@dataclass
class EngineSettings:
    """The engine of the clients: this process, Ray, or ``flwr run`` with its true exit status.

    ``num_supernodes``: null leaves the number to Flower; ``ray`` uses one for each worker. With
    ``secure_aggregation=masks``, ``ray`` and this process use min(clients, 10).
    ``round_timeout`` and ``startup_timeout``: seconds to wait for the replies of a round, and for
    the clients to connect. ``quorum``: the number of clients whose replies close a round, as a
    fraction below 1 or a whole number; null waits for all until ``round_timeout``.
    ``quorum_clients``: asked counts all selected clients, priority only those with priority.
    ``grace_seconds``: seconds to wait for further replies after the quorum. ``late_replies``:
    whether an update that arrives after its round is discarded, or counts in the round in which it
    arrives, see ``fedquorum.rules.staleness.LateUpdates``: by simulated response times, or by the
    real clock with ``flower``. ``staleness_exponent``: a of the discount (1 + s)^-a of an update
    that is s rounds late. ``max_staleness``: the largest s that counts; null for no limit.
    ``concurrency``: the number of clients that may be under way at the same time; null for all.
    ``simulated_seconds``: end the run after the first round at whose end the simulated clock has
    reached these seconds; ``rounds`` stays the largest number of rounds. null ends it by rounds
    alone. ``startup_clients``: the number of clients that must be connected before round 1; null
    for all.
    ``partial_aggregation``: whether a node may send one sum instead of all models, see
    ``fedquorum.flower.protocol.NativeProtocol``; the model has the same bits either way.
    ``reply_memory``: bytes of replies to store in memory if the weights of a round need all replies
    at once; the rest goes to files below TMPDIR. null is half of the machine's memory.
    ``checkpoint_every``: write a checkpoint every n rounds, and after the last; auto spends at most
    a twentieth of the time, and writes at most once a second; null never. ``stop_after_round``: the
    round after which the run stops with status interrupted, so that ``resume`` can continue it;
    null for none. ``node_keys``: the file with the public key of each client's node, see
    ``server_app.runs.node_keys``; null trusts each node. ``superlink``: the name of the deployment
    in Flower's configuration to which ``engine=flower`` submits; null for the local simulation.
    ``workers``: the number of ``ray``'s processes for the clients, each with one GPU if there are
    GPUs; null takes all cores, or all GPUs, of the cluster. ``address``: the cluster's HOST:PORT;
    null takes the environment variable RAY_ADDRESS. Without the variable, and with ``local``, Ray
    starts on this machine for the run. ``share_data``: whether this process sends the data to the
    workers once, instead of each worker reading it. ``on_numerics_change``: ``same`` refuses to
    resume a run with another arithmetic than at its start, see ``client_app.training.numerics``;
    ``any`` continues it, and the manifest says so. ``trust_code``: whether ``resume`` may import
    code that the run's records name by import path, and connect to machines that they name. Names
    on the command line need no trust. ``jobs``: the number of a sweep's jobs that run at the same
    time, each in a separate process.
    """

    name: str = parameter(MISSING, OneOf(("in-process", "ray", "flower")))
    num_supernodes: int | None = parameter(None, POSITIVE_INT)
    round_timeout: float = parameter(3600.0, POSITIVE)
    quorum: float | None = parameter(None, QUORUM_SIZE)
    quorum_clients: str = parameter("asked", QUORUM_CLIENTS)
    grace_seconds: float = parameter(0.0, NON_NEGATIVE)
    late_replies: str = parameter("discard", OneOf(LATE_REPLIES))
    staleness_exponent: float = parameter(0.5, NON_NEGATIVE)
    max_staleness: int | None = parameter(None, NON_NEGATIVE_INT)
    concurrency: int | None = parameter(None, POSITIVE_INT)
    simulated_seconds: float | None = parameter(None, POSITIVE)
    startup_timeout: float = parameter(300.0, POSITIVE)
    startup_clients: int | None = parameter(None, POSITIVE_INT)
    partial_aggregation: bool = True
    reply_memory: int | None = parameter(None, NON_NEGATIVE_INT)
    checkpoint_every: Any = parameter(AUTO, CheckpointInterval())
    stop_after_round: int | None = parameter(None, POSITIVE_INT)
    node_keys: str | None = parameter(None, FilePath("a file of client ids and public keys"))
    superlink: str | None = parameter(None, ConnectionName())
    workers: int | None = parameter(None, POSITIVE_INT)
    address: str | None = parameter(None, ClusterAddress())
    share_data: bool = False
    on_numerics_change: str = parameter("same", OneOf(("same", "any")))
    trust_code: bool = False
    jobs: int = parameter(1, POSITIVE_INT)
