"""Use the named strategies as drop-in Flower strategies: ``FedAU()`` in place of ``FedAvg()``.

Each strategy takes the keywords of ``flwr.serverapp.strategy.FedAvg``, with the same meaning and
defaults. It also takes the parameters of its rules, which ``fedquorum.registry`` declares::

    strategy = FedAU(cutoff=50, fraction_train=0.5)
    result = strategy.start(grid, initial_arrays, num_rounds=3)

Every connected node is a client; nodes that connect later join. For nodes with this project's
ClientApp, which host clients, there is ``protocol="fedquorum"``: see ``DropInStrategy``.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, fields, replace
from logging import INFO, WARNING
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from .. import registry as tables
from ..errors import ParameterError, suggest_name
from ..records.provenance import check_audit_packages
from ..registry import StrategyEntry
from ..rules.parameters import FRACTION, NON_NEGATIVE_INT, POSITIVE, POSITIVE_INT, OneOf
from ..rules.robustness import Robustness
from ..rules.rule import RunContext
from ..rules.selection import Sampling
from ..rules.server_optimizer import SGD, ServerOptimizer
from ..rules.staleness import LATE_REPLIES, LateUpdates
from ..rules.state_arrays import StateArrays
from ..rules.types import Population
from ..sanitize import abbreviate
from ..server.quorum import QUORUM_SIZE, Quorum
from .codec import (
    ACCURACY_KEY,
    ARRAYRECORD_KEY,
    CONFIGRECORD_KEY,
    WEIGHTED_BY_KEY,
    NamedArrays,
)
from .nodes import ClientsByKey, read_fingerprint
from .protocol import DynamicProtocol, MaskedProtocol, MetricsAggregation, StandardProtocol
from .secure.settings import SecureAggregation
from .strategy import ComposedStrategy

if TYPE_CHECKING:
    from .recording import RunRecorder

MAX_CLIENT_ID = 2**31 - 1
"""The largest client id that the tables of the records can hold."""

PROTOCOLS = OneOf(("standard", "fedquorum"))


def _build_signature(entry: StrategyEntry) -> inspect.Signature:
    """Return the keywords of all drop-in strategies, followed by those of the entry's rules."""
    common = list(inspect.signature(DropInStrategy.__init__).parameters.values())[1:-1]
    return inspect.Signature([*common, *map(_build_keyword, entry.parameters)])


def _build_keyword(item: Field[Any]) -> inspect.Parameter:
    return inspect.Parameter(
        item.name, inspect.Parameter.KEYWORD_ONLY, default=item.default, annotation=item.type
    )


class DropInStrategy(ComposedStrategy):
    """Run a named strategy with ClientApps written for Flower's ``FedAvg``.

    With ``protocol="fedquorum"`` the strategy uses this project's protocol instead, with the
    clients that the nodes host:

    - each client decides on its own device whether it trains,
    - the clients measure F(w_t) before each round,
    - fractions and minima count clients instead of nodes,
    - ``priority`` and ``probabilities`` refer to the ids of these clients, and
    - the keys of metrics and records, both aggregation functions, ``client_ids`` and
      ``max_reply_bytes`` must keep their defaults.

    A reply in the form of the other protocol is rejected. If all replies of clients that trained
    are rejected for it in the first round with training, the run stops, and the error has the
    keyword to type. ``protocol="standard"`` accepts a reply of this project's ClientApp for one
    client.

    Parameters
    ----------
    fraction_train, fraction_evaluate : float
        Fraction of the connected nodes that train and evaluate in a round, in [0, 1]. A round uses
        max(int(fraction x nodes), minimum) nodes.
    min_train_nodes, min_evaluate_nodes : int
        Smallest number of nodes that train and evaluate; all nodes if fewer are connected.
    min_available_nodes : int
        Number of nodes that must be connected before a round starts. The strategy waits for them
        without limit.
    weighted_by_key : str
        The metric with a client's amount of data.
    arrayrecord_key, configrecord_key : str
        Names of the records in messages to the nodes.
    train_metrics_aggr_fn, evaluate_metrics_aggr_fn : callable, optional
        ``(list[RecordDict], str) -> MetricRecord``; Flower's weighted mean by default.
    priority : iterable of int, optional
        Ids of the priority clients; all clients by default.
    num_rounds : int, optional
        T, the number of rounds. Schedules need it.
    protocol : {"standard", "fedquorum"}
        The protocol of the nodes' ClientApp; see above. Flower's wrappers need ``standard``.
    loss_key : str, optional
        The metric with the loss; by default ``loss``, ``train_loss`` or ``train-loss``.
    accuracy_key : str
        The metric with the accuracy.
    client_ids : {"node-order", "query", "key"}, optional
        The rule that assigns client ids to nodes; see ``StandardProtocol``. Priority in a
        deployment needs it, or ``clients_by_key``.
    clients_by_key : mapping of str to int, optional
        The client of each node. A node is given by the fingerprint of its public key, by the key
        as in its .pub file, or by the name with which it was registered. Other nodes take no part.
        With ``client_ids="query"`` or ``protocol="fedquorum"`` a node may have several clients.
    startup_timeout : float
        Seconds for which round 1 waits for priority clients once ``min_available_nodes`` are there.
    max_reply_bytes : int, optional
        Largest reply to read, in bytes; by default 64 MiB and 8 models.
    quorum : float, optional
        The number of nodes whose replies close a round, as a fraction below 1 or a whole number. By
        default a round waits for all that it asked, for the ``timeout`` of ``start``.
    late_replies : {"discard", "count"}
        Whether an update that arrives after its round is discarded, or counts in the round in which
        it arrives; see ``fedquorum.rules.staleness``. Only rules that allow it take ``count``, and
        a round then needs a ``quorum`` to close before all have replied.
    staleness_exponent : float
        a of the discount (1 + s)^-a of an update that is s rounds late.
    max_staleness : int, optional
        The largest s of an update that counts; by default there is no limit.
    concurrency : int, optional
        The largest number of clients that train at the same time; by default all.
    secure_aggregation : SecureAggregation or "masks", optional
        Let every node mask its update, so that the server learns the weighted sum of all and no
        other; see docs/privacy.md. The ClientApp needs the mods ``SecureSumMod`` and
        ``StandardAppMod`` of ``fedquorum.flower.mods``, or is this project's. Only rules whose
        weights are known before training take it.
    seed : int
        Seed of the sampling.
    server_lr : float
        Learning rate of the server optimizer, > 0.
    server_optimizer : type
        The server optimizer, such as ``fedquorum.rules.server_optimizer.Adam``, or a callable that
        takes the learning rate and returns one.
    robustness : Robustness, optional
        Bounds on the influence of one client.
    reply_memory : int, optional
        Bytes of replies to keep in memory if the weights of a round need all replies at once; the
        rest goes to files below TMPDIR. By default half of the machine's memory.
    records : str or Path, optional
        Folder for the records of the run, which ``fedquorum-audit`` replays. It must not hold a
        run. By default ``start`` writes no records. Needs the extra ``audit``.
    resume_from : str or Path, optional
        Folder of a run with the same parameters; ``start`` continues it after its last checkpoint.
    **parameters : Any
        Parameters of the strategy's rules; ``help()`` and the signature list them.

    Raises
    ------
    ParameterError
        If a value is outside its range.
    TypeError
        If the strategy has no such parameter.
    """

    entry: ClassVar[StrategyEntry]
    __signature__: ClassVar[inspect.Signature]

    def __init_subclass__(cls, entry: StrategyEntry | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if entry is not None:
            cls.entry = entry
            cls.__signature__ = _build_signature(entry)
        elif "__init__" in cls.__dict__:
            # A user's subclass defines its own constructor.
            parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
            cls.__signature__ = inspect.Signature(parameters)

    def __init__(
        self,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 1.0,
        min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        weighted_by_key: str = WEIGHTED_BY_KEY,
        arrayrecord_key: str = ARRAYRECORD_KEY,
        configrecord_key: str = CONFIGRECORD_KEY,
        train_metrics_aggr_fn: MetricsAggregation | None = None,
        evaluate_metrics_aggr_fn: MetricsAggregation | None = None,
        *,
        priority: Iterable[int] | None = None,
        num_rounds: int | None = None,
        protocol: str = "standard",
        loss_key: str | None = None,
        accuracy_key: str = ACCURACY_KEY,
        client_ids: str | None = None,
        clients_by_key: Mapping[str, int | Iterable[int]] | None = None,
        startup_timeout: float = 300.0,
        max_reply_bytes: int | None = None,
        quorum: float | None = None,
        late_replies: str = "discard",
        staleness_exponent: float = 0.5,
        max_staleness: int | None = None,
        concurrency: int | None = None,
        secure_aggregation: SecureAggregation | str | None = None,
        seed: int = 0,
        server_lr: float = 1.0,
        server_optimizer: Callable[[float], ServerOptimizer[Any]] = SGD,
        robustness: Robustness | None = None,
        reply_memory: int | None = None,
        records: str | Path | None = None,
        resume_from: str | Path | None = None,
        **parameters: Any,
    ) -> None:
        _check_names(type(self), parameters)
        PROTOCOLS.check("protocol", protocol)
        FRACTION.check("fraction_train", fraction_train)
        NON_NEGATIVE_INT.check("min_train_nodes", min_train_nodes)
        POSITIVE.check("server_lr", server_lr)
        if num_rounds is not None:
            POSITIVE_INT.check("num_rounds", num_rounds)
        given = {**parameters, "priority": priority, "num_rounds": num_rounds}
        self.entry.check_required(given)
        if not callable(server_optimizer):
            raise ParameterError(
                "server_optimizer",
                "a class such as fedquorum.rules.server_optimizer.Adam",
                server_optimizer,
            )
        if not isinstance(robustness, Robustness | None):
            raise ParameterError("robustness", "a fedquorum.Robustness, or None", robustness)
        priority_ids, directory = (
            _parse_priority(priority),
            _resolve_directory(records, resume_from),
        )
        self.fraction_train, self.fraction_evaluate = fraction_train, fraction_evaluate
        self.min_train_nodes = _resolve_minimum(
            "train", "training", fraction_train, min_train_nodes
        )
        self.min_evaluate_nodes = _resolve_minimum(
            "evaluate", "evaluation", fraction_evaluate, min_evaluate_nodes
        )
        self.min_available_nodes = min_available_nodes
        self.weighted_by_key = weighted_by_key
        self.arrayrecord_key, self.configrecord_key = arrayrecord_key, configrecord_key
        try:
            rules = self.entry.build_rules(
                parameters,
                RunContext(num_rounds=num_rounds, seed=seed),
                sampling=Sampling(fraction_train, seed=seed, minimum=self.min_train_nodes),
                server_optimizer=server_optimizer(server_lr),
            )
        except ParameterError as error:
            raise _replace_parameter(error) from None
        quorum_rule = Quorum(_parse_quorum(quorum, concurrency))
        late_updates = _build_late_updates(
            late_replies, staleness_exponent, max_staleness, concurrency
        )
        self.protocol = protocol
        self._starts_itself = False
        keys = _parse_clients_by_key(clients_by_key, priority_ids)
        masks = _parse_secure_aggregation(secure_aggregation)
        build_protocol = StandardProtocol if masks is None else MaskedProtocol
        standard = build_protocol(
            secure_aggregation=masks,
            client_ids=client_ids,
            clients_by_key=keys,
            startup_timeout=startup_timeout,
            weighted_by_key=weighted_by_key,
            loss_key=loss_key,
            accuracy_key=accuracy_key,
            arrayrecord_key=arrayrecord_key,
            configrecord_key=configrecord_key,
            fraction_evaluate=fraction_evaluate,
            min_evaluate_nodes=self.min_evaluate_nodes,
            min_available_nodes=max(min_available_nodes, self.min_train_nodes),
            max_reply_bytes=max_reply_bytes,
            train_metrics_aggr_fn=train_metrics_aggr_fn,
            evaluate_metrics_aggr_fn=evaluate_metrics_aggr_fn,
            robustness=robustness or Robustness(),
            reply_memory=reply_memory,
            max_client_id=None if directory is None else MAX_CLIENT_ID,
            quorum=quorum_rule,
            late_updates=late_updates,
        )
        communication = standard if protocol == "standard" else _to_native_protocol(standard)
        super().__init__(
            rules, population=Population.open(priority_ids), communication=communication
        )
        self._recorder: RunRecorder | None = None
        if directory is not None:
            self._recorder = _build_recorder(
                directory, self, parameters, num_rounds=num_rounds, resume=resume_from is not None
            )

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        *args: Any,
        **kwargs: Any,
    ) -> Result:
        """Run all rounds, as ``flwr.serverapp.strategy.Strategy.start`` does.

        Its ``timeout`` is that of a whole round with masks, of training and of the other exchanges.
        """
        given = inspect.signature(Strategy.start).bind(
            self, grid, initial_arrays, num_rounds, *args, **kwargs
        )
        timeout = given.arguments.get("timeout")
        if timeout is not None and self.communication.secure_aggregation is not None:
            self.communication = replace(self.communication, round_timeout=timeout)
            self._session.communication = self.communication
        self._starts_itself, self._last_round = True, num_rounds
        try:
            if self._recorder is not None:
                return self._recorder.start(self, grid, initial_arrays, num_rounds, *args, **kwargs)
            return super().start(grid, initial_arrays, num_rounds, *args, **kwargs)
        finally:
            self._starts_itself = False

    def get_state(self) -> StateArrays:
        """Return the rules' state, the client of each node, and whether clients have trained."""
        assignments = self._session.registry.assignments
        return {
            **super().get_state(),
            "has_trained": np.array([self._session.has_trained]),
            "seats.client": np.array([*assignments], dtype=np.int64),
            "seats.node": np.array([*assignments.values()], dtype=np.uint64),
        }

    def restore(self, state: Mapping[str, NDArray[Any]], model: NamedArrays) -> None:
        """Restore the state that ``get_state`` returned after a round, with the same clients."""
        joiners = Population.open(self.population.required)
        population = joiners.with_clients(state["known"].tolist())
        self._reset_state(population)
        super().restore(state, model)
        (self._session.has_trained,) = state["has_trained"].tolist()
        assignments = zip(state["seats.client"].tolist(), state["seats.node"].tolist(), strict=True)
        self._session.restore_assignments(dict(assignments), population)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return one train message for each node that hosts a selected client."""
        if self.protocol == "fedquorum" and not self._starts_itself:
            raise ParameterError(
                "protocol",
                "standard in a run that the strategy does not start itself, as in one of Flower's "
                "wrappers",
                self.protocol,
                "a wrapper takes a node's reply for that of one client",
            )
        if self.communication.closes_early and not self._starts_itself:
            raise ParameterError(
                "quorum",
                "None inside one of Flower's wrappers",
                self.communication.quorum.size,
                "they start themselves, and wait for all replies of a round",
            )
        if self.communication.needs_sums and not self._starts_itself:
            raise ParameterError(
                "secure_aggregation",
                "None inside one of Flower's wrappers",
                self.communication.secure_aggregation,
                "they read and change the reply of each node",
            )
        if self._recorder is not None and not self._starts_itself:
            raise ParameterError(
                "records",
                "None inside one of Flower's wrappers",
                str(self._recorder.directory),
                "they start themselves, and change the model after the strategy's decision",
            )
        return super().configure_train(server_round, arrays, config, grid)

    def summary(self) -> None:
        """Log fractions, minima and keys as FedAvg does, then the strategy's rules."""
        fractions = (self.fraction_train, self.fraction_evaluate)
        minima = (self.min_train_nodes, self.min_evaluate_nodes)
        log(INFO, "\t├──> Sampling:")
        log(INFO, "\t│\t├──Fraction: train (%.2f) | evaluate ( %.2f)", *fractions)
        log(INFO, "\t│\t├──Minimum nodes: train (%d) | evaluate (%d)", *minima)
        log(INFO, "\t│\t└──Minimum available nodes: %d", self.min_available_nodes)
        super().summary()


class FedALIGN(DropInStrategy, entry=tables.FEDALIGN):
    """Train for priority clients, with the help of clients whose loss is similar (FedALIGN).

    A non-priority client takes part in round t if its loss is within eps_t of the priority
    clients' loss F(w_t). The new model averages all admitted models:
    w_{t+1} = (sum_P p_k w_k + sum_admitted p_k w_k) / (1 + sum_admitted p_k), with
    p_k = D_k / sum_{i in P} D_i. ``priority`` and ``num_rounds`` are required;
    ``fedquorum.rules.selection.EpsilonGate`` describes the gate's parameters.

    References
    ----------
    Ravi and Shomorony, "Prioritized Federated Learning: Leveraging Non-Priority Clients for
    Targeted Model Improvement", TMLR, Algorithm 1.
    """


class FedAvg(DropInStrategy, entry=tables.FEDAVG):
    """Average the clients' models, weighted by data: w_{t+1} = sum_k D_k w_k / sum_k D_k.

    References
    ----------
    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
    AISTATS 2017, Algorithm 1.
    """


class FedAvgPriority(DropInStrategy, entry=tables.FEDAVG_PRIORITY):
    """Run FedAvg with the priority clients only: FedALIGN's baseline "None"."""


class FedAU(DropInStrategy, entry=tables.FEDAU):
    """Correct the average for clients that are often absent (FedAU): c_n = omega_n / N.

    omega_n estimates 1 / (participation rate of client n) as the mean interval between the rounds
    in which client n took part; ``cutoff`` limits an interval. See
    ``fedquorum.rules.participation.FedAUCorrection``.

    References
    ----------
    Wang and Ji, "A Lightweight Method for Tackling Unknown Participation Statistics in Federated
    Averaging", ICLR 2024, Algorithms 1 and 2.
    """


class FedAvgParticipating(DropInStrategy, entry=tables.NAMED_STRATEGIES["average_participating"]):
    """Average the updates of the clients that took part: c_n = 1 / |S_t|."""


class FedAvgAll(DropInStrategy, entry=tables.NAMED_STRATEGIES["average_all"]):
    """Average over all clients, and count an absent client's update as zero: c_n = 1 / N."""


class KnownStatistics(DropInStrategy, entry=tables.KNOWN_STATISTICS):
    """Correct the average with given participation rates: c_n = 1 / (p_n N).

    FedAU estimates these rates; this strategy is its baseline. ``probabilities`` has p_n by client
    id and is required: the probability that a round counts client n, that is, that its node is
    connected, asked and in time. The strategy samples among the connected nodes and multiplies p_n
    by nothing. It refuses a node that joins as a client without a rate.
    """


class FedVarp(DropInStrategy, entry=tables.FEDVARP):
    """Replace absent clients by their last updates y_n (FedVarp).

    The server steps by the mean of Delta_n - y_n over the participants plus the mean of y_n over
    all clients.

    References
    ----------
    Jhunjhunwala et al., "FedVARP", UAI 2022, Algorithm 2.
    """


class MIFA(DropInStrategy, entry=tables.MIFA):
    """Average the last update of every client, present or absent (MIFA).

    The model moves even in a round without participants.

    References
    ----------
    Gu et al., "Fast Federated Learning in the Presence of Arbitrary Device Unavailability",
    NeurIPS 2021, Algorithm 1.
    """


class FedAWE(DropInStrategy, entry=tables.NAMED_STRATEGIES["fedawe"]):
    """Let clients continue from their last model, and scale updates by the rounds away (FedAWE).

    A node receives the model after the round in which it last took part. After a run,
    ``compute_mean_start_model(result.arrays)`` returns the mean of all clients' models, which the
    paper evaluates. See ``fedquorum.contrib.FedAWEWeighting``.

    References
    ----------
    Xiang, Ioannidis, Yeh, Joe-Wong and Su, "Efficient Federated Learning against Heterogeneous and
    Non-stationary Client Unavailability", NeurIPS 2024, Algorithm 1.
    """


class AAggFFS(DropInStrategy, entry=tables.NAMED_STRATEGIES["aaggff_s"]):
    """Mix a few clients fairly, for cross-silo learning (AAggFF-S).

    Every client takes part in every round. An online Newton step decides the mixing coefficients;
    see ``fedquorum.rules.weighting.AAggFFSWeighting``.

    References
    ----------
    Hahn, Kim and Lee, "Pursuing Overall Welfare in Federated Learning through Sequential Decision
    Making", ICML 2024, Algorithm 2.
    """


class AAggFFD(DropInStrategy, entry=tables.NAMED_STRATEGIES["aaggff_d"]):
    """Mix many sampled clients fairly, for cross-device learning (AAggFF-D).

    The mixing coefficients have a closed form; see ``fedquorum.rules.weighting.AAggFFDWeighting``.

    References
    ----------
    Hahn, Kim and Lee 2024, Algorithm 3.
    """


class QFedAvg(DropInStrategy, entry=tables.NAMED_STRATEGIES["qfedavg"]):
    """Weight clients by a power of their loss (q-FedAvg): p_i proportional to w_i F_i^q.

    See ``fedquorum.rules.weighting.QFedAvgWeighting``.
    """


class TERM(DropInStrategy, entry=tables.NAMED_STRATEGIES["term"]):
    """Weight clients by the exponential of their loss (TERM).

    p_i is proportional to w_i exp(lambda F_i); ``tilt`` is lambda. See
    ``fedquorum.rules.weighting.TERMWeighting``.
    """


class PropFair(DropInStrategy, entry=tables.NAMED_STRATEGIES["propfair"]):
    """Weight clients by their distance from the largest loss M (PropFair).

    p_i is proportional to w_i / (M - F_i), guarded near M. See
    ``fedquorum.rules.weighting.PropFairWeighting``.
    """


class AFL(DropInStrategy, entry=tables.NAMED_STRATEGIES["afl"]):
    """Train for the worst mixture of clients (AFL): p climbs the losses on the simplex.

    See ``fedquorum.rules.weighting.AFLWeighting``.
    """


class MaxFL(DropInStrategy, entry=tables.NAMED_STRATEGIES["maxfl"]):
    """Satisfy as many clients as possible (MaxFL).

    A model satisfies client k if its loss is below rho_k. Clients that the model nearly satisfies
    have the largest weights. ``requirement`` is rho_k: a number, a list, or a mapping of client
    ids. It is required. See ``fedquorum.contrib.MaxFLWeighting``.
    """


class FedMGDAPlus(DropInStrategy, entry=tables.NAMED_STRATEGIES["fedmgda"]):
    """Step along the shortest combination of the normalized updates (FedMGDA+).

    See ``fedquorum.rules.weighting.FedMGDAWeighting``.
    """


class FedGP(DropInStrategy, entry=tables.NAMED_STRATEGIES["fedgp"]):
    """Add to the priority clients' step the other updates' projections onto it (FedGP).

    Like FedALIGN it trains for priority clients, but it needs no losses. ``priority`` is required.
    See ``fedquorum.rules.weighting.FedGPWeighting``.

    References
    ----------
    Jiang, Zhang and Koyejo, "Principled Federated Domain Adaptation: Gradient Projection and
    Auto-Weighting", ICLR 2024, Definition 4.3.
    """


def get_strategy(name: str, **keywords: Any) -> ComposedStrategy:
    """Return a strategy by its name, such as ``get_strategy("fedau", cutoff=50)``.

    Raises
    ------
    ParameterError
        If no strategy has that name; the message suggests the nearest one.
    """
    entry: StrategyEntry = tables.find_entry(tables.NAMED_STRATEGIES, "strategy", name)
    classes = {cls.entry.key: cls for cls in DropInStrategy.__subclasses__()}
    strategy_class: type[DropInStrategy] = classes.get(entry.key) or type(
        entry.key, (DropInStrategy,), {}, entry=entry
    )
    return strategy_class(**keywords)


def _resolve_directory(records: str | Path | None, resume_from: str | Path | None) -> Path | None:
    """Return the folder for the records of the run; None without records.

    Raises
    ------
    RunError
        If the packages of the extra ``audit`` are missing.
    """
    given = {"records": records, "resume_from": resume_from}
    paths = {name: path for name, path in given.items() if path is not None}
    for name, path in paths.items():
        if not isinstance(path, str | Path) or not str(path).strip():
            raise ParameterError(name, "the path of a folder", path)
    folders = {Path(path).expanduser().absolute() for path in paths.values()}
    if len(folders) > 1:
        raise ParameterError("records", "None or the folder in resume_from", str(records))
    if folders:
        check_audit_packages()
    return folders.pop() if folders else None


def _build_recorder(
    directory: Path,
    strategy: DropInStrategy,
    parameters: Mapping[str, Any],
    *,
    num_rounds: int | None,
    resume: bool,
) -> "RunRecorder":
    """Return the recorder of a strategy's runs."""
    from .recording import RunRecorder, build_strategy_settings  # needs the extra

    return RunRecorder(
        directory, build_strategy_settings(strategy, parameters, num_rounds=num_rounds), resume
    )


def _to_native_protocol(standard: StandardProtocol) -> DynamicProtocol:
    """Return the communication in this project's protocol, with the same settings.

    Raises
    ------
    ParameterError
        If a setting differs from its default that only ``StandardProtocol`` has.
    """
    names = {item.name for item in fields(DynamicProtocol)}
    for item in fields(standard):
        value = getattr(standard, item.name)
        if item.name not in names and value != item.default:
            raise ParameterError(
                item.name,
                f'{item.default}, its default, with protocol="fedquorum"',
                value,
                "it has a meaning in Flower's standard form only",
            )
    return DynamicProtocol(**{name: getattr(standard, name) for name in names})


def _parse_priority(given: Iterable[int] | None) -> frozenset[int] | None:
    """Return the ids of the priority clients; None for all."""
    if given is None:
        return None
    ids = [*given] if isinstance(given, Iterable) else []
    if not ids or not all(map(NON_NEGATIVE_INT.contains, ids)):
        raise ParameterError("priority", "a list of client ids >= 0, such as [0, 1]", given)
    return frozenset(ids)


def _parse_clients_by_key(
    given: Mapping[str, int | Iterable[int]] | None, priority: frozenset[int] | None
) -> ClientsByKey | None:
    """Return the clients of each key's fingerprint, or of each name; None if not given."""
    if given is None:
        return None
    allowed = 'a dict of public keys and their clients, such as {"SHA256:...": 0}, each client once'
    if not isinstance(given, Mapping) or not given:
        raise ParameterError("clients_by_key", allowed, given)
    clients_by_key: dict[str, frozenset[int]] = {}
    for key, value in given.items():
        clients = [*value] if isinstance(value, Iterable) else [value]
        earlier = frozenset[int]().union(*clients_by_key.values())
        is_valid = isinstance(key, str) and clients and all(map(NON_NEGATIVE_INT.contains, clients))
        if not is_valid or earlier.intersection(clients):
            raise ParameterError("clients_by_key", allowed, {key: value})
        name = read_fingerprint(key)
        clients_by_key[name] = clients_by_key.get(name, frozenset()).union(clients)
    listed = frozenset[int]().union(*clients_by_key.values())
    if priority is not None and not priority <= listed:
        raise ParameterError(
            "priority",
            f"among the clients in clients_by_key, {abbreviate(sorted(listed))}",
            sorted(priority - listed),
        )
    return clients_by_key


def _parse_quorum(quorum: float | None, concurrency: int | None) -> float | None:
    """Return a quorum that the concurrency can reach."""
    if quorum is not None:
        QUORUM_SIZE.check("quorum", quorum)
    if quorum is not None and concurrency is not None and quorum > concurrency:
        raise ParameterError(
            "quorum", f"at most {concurrency}, the concurrency", quorum, "no more clients train"
        )
    return quorum


def _build_late_updates(
    late_replies: str,
    staleness_exponent: float,
    max_staleness: int | None,
    concurrency: int | None,
) -> LateUpdates | None:
    """Return how late updates count; None if they are discarded."""
    OneOf(LATE_REPLIES).check("late_replies", late_replies)
    if late_replies == "count":
        return LateUpdates(staleness_exponent, max_staleness, concurrency)
    given = {"max_staleness": max_staleness, "concurrency": concurrency}
    for name, value in given.items():
        if value is not None:
            raise ParameterError(
                name, 'None with late_replies="discard"', value, "it is about late updates"
            )
    return None


def _parse_secure_aggregation(given: SecureAggregation | str | None) -> SecureAggregation | None:
    """Return what a run assumes of its nodes; None without masks."""
    if given == "masks":
        return SecureAggregation()
    if isinstance(given, SecureAggregation | None):
        return given
    raise ParameterError("secure_aggregation", 'None, "masks" or a SecureAggregation', given)


def _resolve_minimum(name: str, step: str, fraction: float, minimum: int) -> int:
    """Return the minimum number of nodes; 0, with a warning, if the fraction is 0."""
    if fraction != 0.0:
        return minimum
    log(WARNING, f"fraction_{name} is set to 0.0. Federated {step} will be skipped.")
    return 0


def _replace_parameter(error: ParameterError) -> ParameterError:
    """Return a rule's error with the strategy's keyword instead of the rule's parameter."""
    keyword = {"fraction": "fraction_train", "learning_rate": "server_lr"}.get(error.parameter)
    if keyword is None:
        return error
    return ParameterError(keyword, error.allowed, error.got, error.reason)


def _check_names(kind: type[DropInStrategy], given: Mapping[str, Any]) -> None:
    parameters = [item.name for item in kind.entry.parameters]
    known = inspect.signature(DropInStrategy.__init__).parameters.keys() - {"self", "parameters"}
    for name in given:
        if name not in parameters:
            near = suggest_name(name, [*parameters, *known])
            raise TypeError(
                f"{kind.__name__} has no parameter {name!r}{near and f' ({near})'}; beside those "
                f"of all strategies it has {abbreviate(parameters, near=name) or 'none'}"
            )


__all__ = [
    "AFL",
    "MIFA",
    "TERM",
    "AAggFFD",
    "AAggFFS",
    "DropInStrategy",
    "FedALIGN",
    "FedAU",
    "FedAWE",
    "FedAvg",
    "FedAvgAll",
    "FedAvgParticipating",
    "FedAvgPriority",
    "FedGP",
    "FedMGDAPlus",
    "FedVarp",
    "KnownStatistics",
    "MaxFL",
    "PropFair",
    "QFedAvg",
    "get_strategy",
]
