"""Summarize a whole run: the diagnostics at the end of its manifest."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..errors import StateError, to_one_line
from ..metrics.fairness import exact_mean
from ..rules.decisions import RoundReport
from ..rules.regret import Bound, compute_regret
from ..rules.state_arrays import StateArrays
from ..rules.types import FloatArray, IntArray
from .round_record import RoundRecord
from .values import COUNT, OPTIONAL_NUMBER, FieldCodec, read_count, read_object

MAX_WORK = 10**10
"""T K min(T, K) at most: a step of the search for the best p takes about as many operations, so
that the end of a run waits for seconds and not for hours."""

MAX_TABLE_SIZE = 5 * 10**7
"""The largest table with one column per client, in numbers: 400 MB."""

MAX_PROBED_VALUES = 999
"""Enough to find the response that most clients have, without sorting all K in every round."""

RegretBound = Callable[[int, int], Bound | None]
"""The bound on the regret after T decisions over K clients; None if the method has none."""


@dataclass(frozen=True)
class ResponseEstimate:
    """r_t of all K clients; if few were sampled, most have the same value.

    Parameters
    ----------
    num_clients : int
        K.
    default : float
        The response of all other clients.
    indices : IntArray
        The clients with a response of another value, ascending, shape (m,).
    values : FloatArray
        Their responses, shape (m,).
    """

    num_clients: int
    default: float
    indices: IntArray
    values: FloatArray

    @classmethod
    def from_responses(cls, responses: FloatArray) -> Self:
        """Return the responses (K,) of a round; the default is the most frequent of a few."""
        few = responses[:: max(1, len(responses) // MAX_PROBED_VALUES)]
        found, counts = np.unique(few, return_counts=True)
        default = float(found[np.argmax(counts)])
        indices = np.flatnonzero(responses != default)
        return cls(len(responses), default, indices, responses[indices])

    def select_values(self, clients: IntArray) -> FloatArray:
        """Return the responses of these clients, ascending."""
        found = np.full(len(clients), self.default)
        found[np.searchsorted(clients, self.indices)] = self.values
        return found


def summarize_decisions(
    bound: RegretBound, losses: Sequence[float], responses: Sequence[ResponseEstimate]
) -> dict[str, Any] | None:
    """Return the sum of the decision losses, the regret and its bound; None without decisions.

    regret = sum_t l_t(p_t) - min over fixed p of sum_t l_t(p), l_t(p) = -log(1 + <p, r_t>), over
    the T rounds with a decision. Under sampling r_t are the doubly robust
    estimates that the rule used. The regret is None if T K min(T, K) exceeds ``MAX_WORK``.
    ``regret_bound_proven`` is 1 if the bound is proven for the run, else 0.

    Parameters
    ----------
    bound : callable
        The method's bound, a function of T and K.
    losses : sequence of float
        l_t(p_t), shape (T,).
    responses : sequence of ResponseEstimate
        r_t of each round.
    """
    if not losses:
        return None
    rounds, num_clients = len(losses), responses[0].num_clients
    bounded = bound(rounds, num_clients)
    summary: dict[str, Any] = {
        "decisions": rounds,
        "decision_loss_sum": float(np.sum(losses)),
        "regret": None,
        "regret_bound": None if bounded is None else bounded.value,
        "regret_bound_proven": None if bounded is None else int(bounded.is_proven),
    }
    table, multiplicity = _build_table(responses, num_clients)
    columns = table.shape[1]
    if rounds * columns * min(rounds, columns) <= MAX_WORK:
        summary["regret"], _ = compute_regret(np.array(losses), table, multiplicity)
    return summary


def _build_table(
    responses: Sequence[ResponseEstimate], clients: int
) -> tuple[FloatArray, IntArray | None]:
    """Return r_t, shape (T, K); a large table has one column for all clients never sampled.

    Such a table comes with the number of clients that each column stands for, shape (K',).
    """
    everyone = np.arange(clients)
    if len(responses) * clients <= MAX_TABLE_SIZE:
        return np.array([each.select_values(everyone) for each in responses]), None
    sampled = np.unique(np.concatenate([each.indices for each in responses]))
    others = clients - len(sampled)
    table = np.array([each.select_values(sampled) for each in responses])
    if not others:
        return table, None
    default_column = np.array([[each.default] for each in responses])
    multiplicity = np.ones(len(sampled) + 1, dtype=np.int64)
    multiplicity[0] = others
    return np.concatenate([default_column, table], axis=1), multiplicity


def _to_arrays(responses: Sequence[ResponseEstimate]) -> StateArrays:
    """Return the estimates of all rounds as concatenated arrays."""
    empty = np.zeros(0)
    return {
        "responses.clients": np.array([each.num_clients for each in responses], dtype=np.int64),
        "responses.common": np.array([each.default for each in responses], dtype=np.float64),
        "responses.counts": np.array([len(each.indices) for each in responses], dtype=np.int64),
        "responses.places": np.concatenate([empty, *(e.indices for e in responses)]).astype(
            np.int64
        ),
        "responses.values": np.concatenate([empty, *(each.values for each in responses)]),
    }


def _from_arrays(state: Mapping[str, NDArray[Any]], rounds: int) -> list[ResponseEstimate]:
    """Return the estimates that ``_to_arrays`` wrote."""
    counts = state["responses.counts"]
    if len(counts) != rounds:
        raise StateError(f"'responses' are of {len(counts)} rounds, for {rounds} losses")
    clients, indices = state["responses.clients"], state["responses.places"]
    if len(indices) and not (indices.min() >= 0 and indices.max() < clients.min()):
        raise StateError("'responses.places' must be those of clients")
    ends = np.cumsum(counts)[:-1]
    estimates = zip(
        clients.tolist(),
        state["responses.common"].tolist(),
        np.split(indices, ends),
        np.split(state["responses.values"], ends),
        strict=True,
    )
    return [ResponseEstimate(*fields) for fields in estimates] if rounds else []


def _to_json_mixing(mixing: Mapping[str, float | None] | None) -> dict[str, Any] | None:
    if mixing is None:
        return None
    return {name: OPTIONAL_NUMBER.to_json(value) for name, value in mixing.items()}


def _read_mixing(given: Any, name: str) -> dict[str, float | None] | None:
    if given is None:
        return None
    mixing = read_object(given, name)
    return {key: OPTIONAL_NUMBER.from_json(value, key) for key, value in mixing.items()}


def _read_admission_counts(given: Any, name: str) -> dict[str, int]:
    admitted = read_object(given, name)
    return {client: read_count(count, client) for client, count in admitted.items()}


SUMMARY_FIELDS: Mapping[str, FieldCodec] = {
    "theta": OPTIONAL_NUMBER,
    "inclusion_mass": OPTIONAL_NUMBER,
    "empty_rounds": COUNT,
    "admitted_rounds": FieldCodec(dict, _read_admission_counts),
    "mixing": FieldCodec(_to_json_mixing, _read_mixing),
}
"""The manifest's diagnostics of a whole run."""


def read_summary(given: Any) -> Mapping[str, Any]:
    """Return the diagnostics of a whole run, without those that the manifest lacks.

    Raises
    ------
    CorruptRecordError
        If a diagnostic is invalid.
    """
    fields = read_object(given, "summary")
    return {
        name: value.read_field(fields, name)
        for name, value in SUMMARY_FIELDS.items()
        if name in fields
    }


class RunSummary:
    """The diagnostics of a whole run.

    theta_T (FedALIGN, eq. 7), mean A, how often each client was admitted; the regret of the mixing
    decisions (AAggFF, eq. 5).

    Parameters
    ----------
    regret_bound : callable
        The method's bound on the regret, a function of the numbers of decisions and clients.
    """

    def __init__(self, regret_bound: RegretBound) -> None:
        self._regret_bound = regret_bound
        self._decision_losses: list[float] = []
        self._responses: list[ResponseEstimate] = []
        self._masses: list[float] = []
        self._thetas: list[float] = []
        self._empty = 0
        self._admitted: Counter[int] = Counter()

    def add_round(self, record: RoundRecord, report: RoundReport) -> None:
        """Add one round."""
        if report.decision_loss is not None and report.estimate is not None:
            self._decision_losses.append(report.decision_loss)
            self._responses.append(ResponseEstimate.from_responses(report.estimate))
        if record.inclusion_mass is not None and record.theta is not None:
            self._masses.append(record.inclusion_mass)
            self._thetas.append(record.theta)
        self._empty += record.admitted == 0
        self._admitted.update(d.client for d in report.decisions if d.weight != 0.0)

    @property
    def admission_counts(self) -> dict[int, int]:
        """The number of rounds in which each client's update counted, by ascending id, if any."""
        return dict(sorted(self._admitted.items()))

    def to_arrays(self) -> StateArrays:
        """Return the state of the summary, for a checkpoint."""
        return {
            "decision_losses": np.array(self._decision_losses),
            **_to_arrays(self._responses),
            "masses": np.array(self._masses),
            "thetas": np.array(self._thetas),
            "empty": np.array(self._empty),
            "admitted": np.array([*self.admission_counts.items()], dtype=np.int64).reshape(-1, 2),
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore the state that ``to_arrays`` returned.

        Raises
        ------
        StateError
            If ``state`` is something else.
        """
        try:
            self._load_arrays(state)
        except (LookupError, TypeError, ValueError) as error:
            raise StateError(
                f"the summary of a run cannot be restored: {to_one_line(error)}"
            ) from None

    def _load_arrays(self, state: Mapping[str, NDArray[Any]]) -> None:
        losses = state["decision_losses"]
        self._decision_losses = [float(loss) for loss in losses]
        self._responses = _from_arrays(state, len(losses))
        self._masses = [float(mass) for mass in state["masses"]]
        self._thetas = [float(theta) for theta in state["thetas"]]
        self._empty = int(state["empty"])
        self._admitted = Counter({int(k): int(n) for k, n in state["admitted"]})

    def to_json(self) -> dict[str, Any]:
        """Return the summary as JSON; ``read_summary`` restores it."""
        summary = {
            "theta": exact_mean(self._thetas),
            "inclusion_mass": exact_mean(self._masses),
            "empty_rounds": self._empty,
            "admitted_rounds": {str(k): n for k, n in self.admission_counts.items()},
            "mixing": summarize_decisions(
                self._regret_bound, self._decision_losses, self._responses
            ),
        }
        return {name: SUMMARY_FIELDS[name].to_json(value) for name, value in summary.items()}
