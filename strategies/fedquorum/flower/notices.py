"""Log the replies of a standard ClientApp, of which no records are kept."""

import re
from collections import Counter
from logging import INFO, WARNING

from flwr.common.logger import log

from ..composition import Rules
from ..errors import ProtocolError
from ..report import ClientDecision, TrainReport
from ..selection.epsilon_gate import NO_LOSS
from .codec import FOUND, Status, TrainAnswer, is_in_protocol
from .communication import Communication
from .directory import SET_FEDQUORUM
from .replies import Answers

AT_LEAST_TWO = 2
_NUMBER = re.compile(r"[-+]?(\d[\d.,e+-]*|\binf\b|\bnan\b)")


class Notices:
    """Logs each kind of trouble once as a warning, and stops a run that cannot learn anything.

    Parameters
    ----------
    communication : Communication
        How the strategy talks to the nodes.
    rules : Rules
        The strategy's rules.
    """

    def __init__(self, communication: Communication, rules: Rules) -> None:
        self._communication = communication
        self._reads_loss = rules.needs_losses or rules.selection.gated
        self._warned: set[str] = set()
        self._told: set[str] = set()

    def after(self, report: TrainReport, answers: Answers[TrainAnswer]) -> None:
        """Log how many updates count, and why the others do not.

        Raises
        ------
        ProtocolError
            In the first round, if no reply of several could be used and all for one reason of
            form: the run would end well and have learned nothing.
        """
        if not report.decisions:
            return
        told = (report.count("trained"), len(report.decisions))
        log(INFO, "aggregate_train: %d of %d updates count", *told)
        self._warn_of_protocol(answers)
        self._tell_loss_key(report, answers)
        refused = [d for d in report.decisions if d.status == "rejected" and d.num_examples is None]
        self._warn(refused)
        for decision in report.decisions:
            if decision.status != "trained" and decision not in refused:
                words = (decision.client, decision.status, decision.reason)
                log(INFO, "\t> Client %d %s: %s", *words)
        usable = any(decision.num_examples is not None for decision in report.decisions)
        if report.server_round == 1 and not usable:
            self._stop_without_form(refused, answers)

    def _warn_of_protocol(self, answers: Answers[TrainAnswer]) -> None:
        """Warn once that a reply of this project's ClientApp counts as one in the standard form."""
        for client, part in answers.parts.items():
            if part.status is Status.DONE and is_in_protocol(answers.contents[client]):
                self._once(
                    WARNING,
                    "A reply is in FedQuorum's protocol, for one client, and counts as one in "
                    "Flower's standard form. For nodes of several clients, and clients that decide "
                    f"for themselves, {SET_FEDQUORUM}",
                )
                return

    def _tell_loss_key(self, report: TrainReport, answers: Answers[TrainAnswer]) -> None:
        """Log where the loss is found, or warn that a gate lacks what it compares."""
        keys = map(self._communication.loss_key_of, answers.contents.values())
        taken = next(filter(None, keys), None) if self._reads_loss else None
        if taken is not None:
            self._once(INFO, f"The clients' loss is taken from '{taken}'")
            return
        keys_sought = self._communication.loss_keys
        if keys_sought and any(d.reason == NO_LOSS for d in report.decisions):
            sought = " or ".join(f"'{key}'" for key in keys_sought)
            self._once(
                WARNING,
                f"No client reports a loss, {sought}: the gate admits priority clients alone"
                f"{self._communication.hint(sought)}",
            )

    def _warn(self, refused: list[ClientDecision]) -> None:
        """Log how many replies cannot be used, by the reason: a warning the first time."""
        for reason, count in Counter(_kind(d.reason) for d in refused).items():
            example = next(d.reason for d in refused if _kind(d.reason) == reason)
            level = INFO if reason in self._warned else WARNING
            self._warned.add(reason)
            log(level, "\t> %d updates rejected: %s", count, example)

    def _stop_without_form(
        self, refused: list[ClientDecision], answers: Answers[TrainAnswer]
    ) -> None:
        reasons = {answers.malformed.get(decision.client, "") for decision in refused}
        kinds = {reason.partition(FOUND)[0] for reason in reasons}
        if len(refused) < AT_LEAST_TWO or len(kinds) > 1 or "" in reasons:
            return
        reason = min(reasons)
        raise ProtocolError(
            f"none of the {len(refused)} replies of round 1 can be used: {reason}"
            f"{self._communication.hint(kinds.pop())}"
        )

    def _once(self, level: int, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            log(level, text)


def _kind(reason: str | None) -> str:
    """Return a reason without its numbers, the same for each client and round."""
    return _NUMBER.sub("#", (reason or "").partition(FOUND)[0])
