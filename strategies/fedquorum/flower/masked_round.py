"""Play the exchanges of a round with masks that surround the exchange of the masked vectors.

``ComposedStrategy.configure_train`` plays the first two exchanges, and returns the messages of the
third one. ``ComposedStrategy.aggregate_train`` receives the masked integers, plays the last one and
adds the sum to those of the round. A client whose node has no usable reply in one of them has no
part in the next ones.

The round has one deadline. The exchanges without a model take little time and get
``SMALL_EXCHANGE`` of it each; training gets what is left. Each may end earlier, by its quorum.
"""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Self

from flwr.app import ConfigRecord, MessageType, RecordDict
from flwr.serverapp import Grid

from ..errors import ParameterError, ProtocolError
from ..rules.round import NOT_UNMASKED, ClientOutcome
from ..sanitize import MAX_REASON_LENGTH, sanitize
from ..server.exact_sum import PartialSums
from ..server.fixed_bins import FixedBins
from .codec import NamedArrays, Status, TrainResult, encode_inquiry
from .codec.secure import (
    Records,
    decode_keys,
    decode_shares,
    decode_summed_fields,
    decode_unmask_shares,
    encode_keys_request,
    encode_share_request,
    encode_unmask_request,
)
from .secure.errors import ProtocolViolationError, SecureSumError
from .secure.keys import RoundId, Vector
from .secure.messages import MaskedVector, VectorRequest
from .secure.plan import MIN_NODES, GraphSize
from .secure.server import SecureSum
from .secure.settings import SecureAggregation
from .session import NodeSession, ReplyResults

SMALL_EXCHANGE = 1 / 8
"""The share of a round's time for each exchange of keys, of shares, and to unmask the sum."""

LEFT_OUT = "too few of the nodes that hold its shares are left"


@dataclass
class MaskedRound:
    """The masks of the round in progress.

    Parameters
    ----------
    session : NodeSession
    grid : Grid
    server_round : int
    config : ConfigRecord
        The user's config for the messages.
    secure_sum : SecureSum, optional
        The state of the protocol; None if the round has too few nodes.

    Attributes
    ----------
    clients_by_node : mapping of int to tuple of int
        The nodes that take part, each with its clients that do.
    requests : mapping of int to VectorRequest
        The shares for each node that masks its sum.
    outcomes : dict of int to ClientOutcome
        The outcomes of the clients that dropped out before they were asked to train.
    problem : str or None
        Why the round has no sum.
    of_evaluation : bool
        Whether the vectors are of an evaluation instead of training.
    fields_by_node : dict of int to frozenset of str
        The numbers of an evaluation that each node that sent keys expects to have.
    withheld : frozenset of str
        The numbers of an evaluation that turned out to be of too few nodes.
    started : float
        When the round started, by the monotonic clock.
    """

    session: NodeSession
    grid: Grid
    server_round: int
    config: ConfigRecord
    secure_sum: SecureSum | None = None
    clients_by_node: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    requests: Mapping[int, VectorRequest] = field(default_factory=dict)
    outcomes: dict[int, ClientOutcome] = field(default_factory=dict)
    problem: str | None = None
    of_evaluation: bool = False
    fields_by_node: dict[int, frozenset[str]] = field(default_factory=dict)
    withheld: frozenset[str] = frozenset()
    started: float = field(default_factory=time.monotonic)

    @classmethod
    def open(
        cls,
        session: NodeSession,
        grid: Grid,
        server_round: int,
        config: ConfigRecord,
        *,
        length: int,
        seed: int,
        of_evaluation: bool = False,
        started: float | None = None,
    ) -> Self:
        """Play the exchanges of keys and of shares with the nodes of the session's open exchange.

        Parameters
        ----------
        session : NodeSession
        grid : Grid
        server_round : int
        config : ConfigRecord
        length : int
            The length of the masked vectors, see ``count_integers`` for those of a model.
        seed : int
            The run's seed, from which the neighbors follow.
        of_evaluation : bool
            Whether the vectors are of an evaluation.
        started : float, optional
            When the round started, by the monotonic clock; now by default.
        """
        masked = cls(
            session,
            grid,
            server_round,
            config,
            clients_by_node=session.clients_by_node,
            of_evaluation=of_evaluation,
            started=time.monotonic() if started is None else started,
        )
        nodes = [*masked.clients_by_node]
        if not nodes:
            return masked
        secure_aggregation = session.communication.secure_aggregation
        assert secure_aggregation is not None
        try:
            size = secure_aggregation.choose_size(len(nodes), session.quorum_share)
            round_id = RoundId(str(grid.run.run_id), server_round)
            if of_evaluation:
                round_id = round_id.of_evaluation
            masked.secure_sum = SecureSum(round_id, nodes, seed, length)
            masked._collect_keys(masked.secure_sum, max(MIN_NODES, size.threshold))
            masked._collect_shares(masked.secure_sum, secure_aggregation, len(nodes))
            session.count_replies_again(masked.secure_sum.can_sum)
        except (ParameterError, SecureSumError) as error:
            masked._give_up(str(error))
        session.clients_by_node = masked.clients_by_node
        if masked.requests:
            session.close_by(masked.get_end("vectors"))
        return masked

    def get_end(self, exchange: str) -> float:
        """Return when an exchange ends, by the monotonic clock."""
        shares = {
            "keys": SMALL_EXCHANGE,
            "shares": 2 * SMALL_EXCHANGE,
            "vectors": 1 - SMALL_EXCHANGE,
            "unmask": 1.0,
        }
        return self.started + shares[exchange] * self.session.communication.reply_timeout

    def _collect_keys(self, secure_sum: SecureSum, low: int) -> None:
        """Ask all nodes for keys: who has no available client, or no masks, is not asked again."""

        def receive(node: int, content: RecordDict) -> None:
            fields = decode_summed_fields(content) if self.of_evaluation else frozenset()
            secure_sum.receive_keys(node, decode_keys(content))
            self.fields_by_node[node] = fields

        requests = {node: encode_keys_request() for node in self.clients_by_node}
        self._play_exchange("keys", requests, receive, lambda nodes: len(nodes) >= low)

    def _collect_shares(
        self, secure_sum: SecureSum, assumed: SecureAggregation, num_asked: int
    ) -> None:
        """Collect the shares for all nodes, which the messages of training have.

        The graph is that of the nodes that sent keys: one without an available client is not lost,
        because nobody masks with it.
        """

        def receive(node: int, content: RecordDict) -> None:
            secure_sum.receive_shares(node, decode_shares(content))

        def choose_size(num_nodes: int) -> GraphSize:
            return assumed.choose_size_again(num_nodes, num_asked, self.session.quorum_share)

        requests = {
            node: encode_share_request(request)
            for node, request in secure_sum.close_keys(choose_size).items()
        }
        low = secure_sum.min_holders
        self._play_exchange("shares", requests, receive, lambda nodes: len(nodes) >= low)
        self.requests = secure_sum.close_shares()
        self._reject({*self.clients_by_node}.difference(self.requests), LEFT_OUT)

    def _play_exchange(
        self,
        name: str,
        requests: Mapping[int, Records],
        receive: Callable[[int, RecordDict], None],
        can_close: Callable[[Collection[int]], bool],
    ) -> None:
        """Play an exchange; clients without a usable reply leave the round, with their reasons."""
        results = self._send_requests(name, requests, receive, can_close)
        left = {}
        for node, clients in self.clients_by_node.items():
            usable = [k for k in clients if _has_replied(k, results)]
            self.outcomes |= {
                k: self.session.get_client_outcome(k, results, None)
                for k in clients
                if k not in usable
            }
            if usable:
                left[node] = tuple(usable)
        self.clients_by_node = self.session.clients_by_node = left

    def _send_requests(
        self,
        name: str,
        requests: Mapping[int, Records],
        receive: Callable[[int, RecordDict], None],
        can_close: Callable[[Collection[int]], bool],
    ) -> ReplyResults[TrainResult]:
        """Send messages without a model; give the reply of each node to the protocol."""
        session, number = self.session, self.server_round
        session.count_replies_again(can_close)
        contents = {
            node: RecordDict(
                {
                    # No mod has a part in an evaluation: the experimenter makes it.
                    **encode_inquiry(
                        number,
                        self.clients_by_node[node],
                        asked_before=self.of_evaluation or name != "keys",
                        of_evaluation=self.of_evaluation,
                    ),
                    **records,
                }
            )
            for node, records in requests.items()
        }
        group = f"{'evaluation ' if self.of_evaluation else ''}{name} {number}"
        messages = session.build_messages(
            contents, MessageType.TRAIN, number, self.config, group=group
        )
        timeout = max(0.0, self.get_end(name) - time.monotonic())
        replies = self.grid.send_and_receive(messages, timeout=timeout)
        results: ReplyResults[TrainResult] = ReplyResults()
        for node, selected in session.read_train_replies(replies, number, None, results):
            usable = [k for k in selected if _has_replied(k, results)]
            if not usable:
                continue
            try:
                receive(node, results.contents[usable[0]])
            except ProtocolError as error:
                problem = sanitize(error, MAX_REASON_LENGTH)
            except ProtocolViolationError as error:
                problem = error.reason
            else:
                continue
            results.malformed.update(dict.fromkeys(usable, problem))
        session.bytes_up += results.num_bytes
        return results

    def _reject(self, nodes: Collection[int], reason: str) -> None:
        """Reject all clients of these nodes, which are not asked to train."""
        for node in nodes:
            clients = self.clients_by_node[node]
            self.outcomes |= {k: ClientOutcome(k, "rejected", reason) for k in clients}
        self.clients_by_node = {k: v for k, v in self.clients_by_node.items() if k not in nodes}

    def _give_up(self, problem: str) -> None:
        """Ask nobody to train: the round has no sum."""
        self.problem, self.requests = problem, {}
        self._reject([*self.clients_by_node], f"{NOT_UNMASKED}: {problem}")

    # --- after the exchange of training ------------------------------------------------------

    def receive_vector(self, node: int, vector: MaskedVector) -> str | None:
        """Add a node's masked vector to the sum; return the problem if it cannot be used."""
        assert self.secure_sum is not None, "no node was asked for a vector"
        try:
            self.secure_sum.receive_vector(node, vector)
        except ProtocolViolationError as error:
            return error.reason
        return None

    def unmask(
        self, results: ReplyResults[TrainResult], model: NamedArrays, bins: FixedBins
    ) -> str | None:
        """Play the last exchange, and add the sum of all vectors to that of the round.

        A node without an answer in this exchange counts: the others hold its shares.

        Returns
        -------
        str or None
            The problem, if masks stay in the sum.
        """
        if self.secure_sum is None or self.problem is not None:
            return self.problem
        # Who did not reply to the messages of training, before the next ones are sent.
        for client in (k for clients in self.clients_by_node.values() for k in clients):
            if client not in results.outcomes:
                results.outcomes[client] = self.session.get_client_outcome(client, results, None)
        self.session.note_late(self.server_round)
        try:
            parts = self._compute_sum(results, model, bins)
        except (SecureSumError, ProtocolViolationError, ArithmeticError) as error:
            return str(error)
        if results.total is not None:
            results.total.merge(parts)
        return None

    def compute_total(self, note: Callable[[int, str], object]) -> Vector:
        """Play the last exchange, and return the sum of all vectors without masks.

        ``note`` receives a client and a remark on its node's answer.

        Raises
        ------
        SecureSumError, ProtocolViolationError
            If masks stay in the sum.
        """
        secure_sum = self.secure_sum
        assert secure_sum is not None, "no node was asked for a vector"

        def receive(node: int, content: RecordDict) -> None:
            secure_sum.receive_unmask(node, decode_unmask_shares(content))

        requests = {k: encode_unmask_request(r) for k, r in secure_sum.close_vectors().items()}
        answers = self._send_requests("unmask", requests, receive, secure_sum.can_unmask)
        for client, problem in answers.malformed.items():
            note(client, f"its answer to unmask the sum was refused: {problem}")
        for client, result in answers.by_client.items():
            if result.status is not Status.DONE and client not in answers.malformed:
                note(client, f"it did not help to unmask the sum: {result.reason}")
        total, _ = secure_sum.finish()
        return total

    def _compute_sum(
        self, results: ReplyResults[TrainResult], model: NamedArrays, bins: FixedBins
    ) -> PartialSums:
        """Return the sum of all updates, and count those that needed no clipping."""
        total = self.compute_total(results.note)
        num_trained = sum(outcome.is_usable for outcome in results.outcomes.values())
        count = int(total[-1])
        if count > num_trained:
            raise ArithmeticError(f"{count} of {num_trained} updates needed no clipping")
        shapes = {name: array.shape for name, array in model.items()}
        parts = bins.from_integers(total[:-1].reshape(2, -1), shapes)
        results.num_unclipped = count
        return parts


def count_integers(model: NamedArrays) -> int:
    """Return the length of the masked vector of a sum of updates.

    Each number has two parts; the last integer is the number of updates that needed no clipping.
    """
    return 2 * sum(array.size for array in model.values()) + 1


def _has_replied(client: int, results: ReplyResults[TrainResult]) -> bool:
    """Say whether a client takes part, with a usable reply of its node."""
    result = results.by_client.get(client)
    is_done = result is not None and result.status is Status.DONE
    return is_done and client not in results.malformed
