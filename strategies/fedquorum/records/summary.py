"""The diagnostics of a whole run, which its manifest ends with."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import StateError, one_line
from ..report import TrainReport
from ..state import StateArrays
from .fairness import mean_of
from .regret import Estimate, RegretBound, decision_summary
from .round_record import RoundRecord
from .values import COUNT, OPTIONAL, Value, read_count, read_object


def _written(responses: Sequence[Estimate]) -> StateArrays:
    """Return estimates as arrays, those of one round after the other."""
    none = np.zeros(0)
    return {
        "responses.clients": np.array([each.clients for each in responses], dtype=np.int64),
        "responses.common": np.array([each.common for each in responses], dtype=np.float64),
        "responses.counts": np.array([len(each.places) for each in responses], dtype=np.int64),
        "responses.places": np.concatenate([none, *(e.places for e in responses)]).astype(np.int64),
        "responses.values": np.concatenate([none, *(each.values for each in responses)]),
    }


def _read(state: Mapping[str, NDArray[Any]], rounds: int) -> list[Estimate]:
    """Return the estimates that ``_written`` wrote."""
    counts = state["responses.counts"]
    if len(counts) != rounds:
        raise StateError(f"'responses' are of {len(counts)} rounds, for {rounds} losses")
    clients, places = state["responses.clients"], state["responses.places"]
    if len(places) and not (places.min() >= 0 and places.max() < clients.min()):
        raise StateError("'responses.places' must be those of clients")
    ends = np.cumsum(counts)[:-1]
    parts = zip(
        clients.tolist(),
        state["responses.common"].tolist(),
        np.split(places, ends),
        np.split(state["responses.values"], ends),
        strict=True,
    )
    return [Estimate(*part) for part in parts] if rounds else []


def _written_mixing(mixing: Mapping[str, float | None] | None) -> dict[str, Any] | None:
    if mixing is None:
        return None
    return {name: OPTIONAL.written(value) for name, value in mixing.items()}


def _read_mixing(given: Any, name: str) -> dict[str, float | None] | None:
    if given is None:
        return None
    mixing = read_object(given, name)
    return {key: OPTIONAL.read(value, key) for key, value in mixing.items()}


def _read_admitted(given: Any, name: str) -> dict[str, int]:
    admitted = read_object(given, name)
    return {client: read_count(times, client) for client, times in admitted.items()}


SUMMARY: Mapping[str, Value] = {
    "theta": OPTIONAL,
    "inclusion_mass": OPTIONAL,
    "empty_rounds": COUNT,
    "admitted_rounds": Value(dict, _read_admitted),
    "mixing": Value(_written_mixing, _read_mixing),
}
"""What the manifest says of a whole run."""


def read_summary(given: Any) -> Mapping[str, Any]:
    """Return the diagnostics of a whole run; those that the manifest lacks are left out.

    Raises
    ------
    DamagedError
        If one is none.
    """
    fields = read_object(given, "summary")
    return {name: value.of(fields, name) for name, value in SUMMARY.items() if name in fields}


class Summary:
    """The diagnostics of a whole run.

    theta_T (FedALIGN, eq. 7), mean A, who was admitted how often; the regret of the mixing
    decisions (AAggFF, eq. 5).

    Parameters
    ----------
    regret_bound : callable
        The method's bound on the regret, of the number of decisions and of clients.
    """

    def __init__(self, regret_bound: RegretBound) -> None:
        self._regret_bound = regret_bound
        self._decision_losses: list[float] = []
        self._responses: list[Estimate] = []
        self._masses: list[float] = []
        self._thetas: list[float] = []
        self._empty = 0
        self._admitted: Counter[int] = Counter()

    def add(self, record: RoundRecord, report: TrainReport) -> None:
        """Add one round."""
        if report.decision_loss is not None and report.estimate is not None:
            self._decision_losses.append(report.decision_loss)
            self._responses.append(Estimate.of(report.estimate))
        if record.inclusion_mass is not None and record.theta is not None:
            self._masses.append(record.inclusion_mass)
            self._thetas.append(record.theta)
        self._empty += record.admitted == 0
        self._admitted.update(d.client for d in report.decisions if d.weight != 0.0)

    @property
    def admitted_rounds(self) -> dict[int, int]:
        """In how many rounds the update of each client counted, ascending; others in none."""
        return dict(sorted(self._admitted.items()))

    def state(self) -> StateArrays:
        """Return the state of the summary, for a checkpoint."""
        return {
            "decision_losses": np.array(self._decision_losses),
            **_written(self._responses),
            "masses": np.array(self._masses),
            "thetas": np.array(self._thetas),
            "empty": np.array(self._empty),
            "admitted": np.array([*self.admitted_rounds.items()], dtype=np.int64).reshape(-1, 2),
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore what ``state`` returned.

        Raises
        ------
        StateError
            If it is something else.
        """
        try:
            self._take_over(state)
        except (LookupError, TypeError, ValueError) as error:
            raise StateError(f"the summary of a run cannot go on: {one_line(error)}") from None

    def _take_over(self, state: Mapping[str, NDArray[Any]]) -> None:
        losses = state["decision_losses"]
        self._decision_losses = [float(loss) for loss in losses]
        self._responses = _read(state, len(losses))
        self._masses = [float(mass) for mass in state["masses"]]
        self._thetas = [float(theta) for theta in state["thetas"]]
        self._empty = int(state["empty"])
        self._admitted = Counter({int(k): int(n) for k, n in state["admitted"]})

    def as_dict(self) -> dict[str, Any]:
        """Return it as the manifest has it, from which ``read_summary`` makes the same."""
        summary = {
            "theta": mean_of(self._thetas),
            "inclusion_mass": mean_of(self._masses),
            "empty_rounds": self._empty,
            "admitted_rounds": {str(k): n for k, n in self.admitted_rounds.items()},
            "mixing": decision_summary(self._regret_bound, self._decision_losses, self._responses),
        }
        return {name: SUMMARY[name].written(value) for name, value in summary.items()}
