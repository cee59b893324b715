"""Log the rounds of a standard ClientApp, as no records are kept."""

import re
from collections import Counter
from logging import INFO, WARNING

from flwr.common.logger import log

from ..composition import RuleSet
from ..decisions import ClientDecision, RoundReport
from ..errors import ProtocolError
from ..selection.epsilon_gate import NO_LOSS
from .codec import FOUND_KEYS_PREFIX, Status, TrainResult, is_native_reply
from .communication import NativeProtocol
from .nodes import SET_FEDQUORUM
from .replies import ReplyResults

MIN_REPLIES = 2
_NUMBER = re.compile(r"[-+]?(\d[\d.,e+-]*|\binf\b|\bnan\b)")


class RoundLogger:
    """Logs each kind of trouble once as a warning, and stops a run that cannot learn anything."""

    def __init__(self, communication: NativeProtocol, rules: RuleSet) -> None:
        self._communication = communication
        self._reads_loss = rules.needs_losses or rules.selection.has_gate
        self._warned: set[str] = set()
        self._logged: set[str] = set()

    def log_round(self, report: RoundReport, results: ReplyResults[TrainResult]) -> None:
        """Log how many updates count, and why others do not.

        Raises
        ------
        ProtocolError
            In the first round, if all of several replies are unusable and malformed in the same
            way: the run would complete without having learned anything.
        """
        if not report.decisions:
            return
        counts = (report.count("trained"), len(report.decisions))
        log(INFO, "aggregate_train: %d of %d updates count", *counts)
        self._warn_about_protocol(results)
        self._log_loss_key(report, results)
        rejected = [
            d for d in report.decisions if d.status == "rejected" and d.num_examples is None
        ]
        self._warn_about_rejected(rejected)
        for decision in report.decisions:
            if decision.status != "trained" and decision not in rejected:
                details = (decision.client, decision.status, decision.reason)
                log(INFO, "\t> Client %d %s: %s", *details)
        usable = any(decision.num_examples is not None for decision in report.decisions)
        if report.server_round == 1 and not usable:
            self._stop_if_malformed(rejected, results)

    def _warn_about_protocol(self, results: ReplyResults[TrainResult]) -> None:
        """Warn once that a reply of this project's ClientApp is read as a standard reply."""
        for client, result in results.by_client.items():
            if result.status is Status.DONE and is_native_reply(results.contents[client]):
                self._log_once(
                    WARNING,
                    "A reply is in FedQuorum's protocol, for one client, and counts as one in "
                    "Flower's standard form. For nodes of several clients, and clients that decide "
                    f"for themselves, {SET_FEDQUORUM}",
                )
                return

    def _log_loss_key(self, report: RoundReport, results: ReplyResults[TrainResult]) -> None:
        """Log the key of the loss, or warn that the gate has no loss to compare."""
        keys = map(self._communication.find_loss_key, results.contents.values())
        loss_key = next(filter(None, keys), None) if self._reads_loss else None
        if loss_key is not None:
            self._log_once(INFO, f"The clients' loss is taken from '{loss_key}'")
            return
        loss_keys = self._communication.loss_keys
        if loss_keys and any(d.reason == NO_LOSS for d in report.decisions):
            expected = " or ".join(f"'{key}'" for key in loss_keys)
            self._log_once(
                WARNING,
                f"No client reports a loss, {expected}: the gate admits priority clients alone"
                f"{self._communication.get_hint(expected)}",
            )

    def _warn_about_rejected(self, rejected: list[ClientDecision]) -> None:
        """Log how many replies are rejected for each reason; the first time as a warning."""
        for reason, count in Counter(_normalize_reason(d.reason) for d in rejected).items():
            example = next(d.reason for d in rejected if _normalize_reason(d.reason) == reason)
            level = INFO if reason in self._warned else WARNING
            self._warned.add(reason)
            log(level, "\t> %d updates rejected: %s", count, example)

    def _stop_if_malformed(
        self, rejected: list[ClientDecision], results: ReplyResults[TrainResult]
    ) -> None:
        reasons = {results.malformed.get(decision.client, "") for decision in rejected}
        kinds = {reason.partition(FOUND_KEYS_PREFIX)[0] for reason in reasons}
        if len(rejected) < MIN_REPLIES or len(kinds) > 1 or "" in reasons:
            return
        reason = min(reasons)
        raise ProtocolError(
            f"none of the {len(rejected)} replies of round 1 can be used: {reason}"
            f"{self._communication.get_hint(kinds.pop())}"
        )

    def _log_once(self, level: int, text: str) -> None:
        if text not in self._logged:
            self._logged.add(text)
            log(level, text)


def _normalize_reason(reason: str | None) -> str:
    """Return a reason without its numbers, the same for each client and round."""
    return _NUMBER.sub("#", (reason or "").partition(FOUND_KEYS_PREFIX)[0])
