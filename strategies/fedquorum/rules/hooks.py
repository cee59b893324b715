"""Declare the optional hooks of a rule: work in a round beside its decision.

A rule returns its hooks from the property ``hooks``. Most rules have none, and a round then skips
this module. The rules of ``fedquorum.contrib`` are examples:

``before_round``  power-of-choice: candidates evaluate a model before the round selects among them
``client_start``  FedAWE: clients start from models of earlier rounds
``columns``       MaxFL: numbers of each client in the records of all clients
``report``        MaxFL: further numbers of each group of clients in the record of a round
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from numpy.typing import NDArray

from .state_arrays import StateArrays
from .types import ClientReports, FloatArray, Population

Model = Mapping[str, NDArray[Any]]
"""The arrays of a model by their names."""


@dataclass(frozen=True)
class Candidates:
    """The clients that a round may select, ascending, and those that evaluate its model first.

    The server passes their losses to the selection as ``ClientReports.evaluated_losses``.
    """

    clients: tuple[int, ...]
    evaluating_clients: tuple[int, ...] = ()


class BeforeRound(Protocol):
    """Chooses the clients that evaluate a round's model before the selection decides by losses.

    The server sends the request with the evaluation that closes the previous round, and separately
    before round 1. Checkpoints store the losses.
    """

    @property
    def needs_reports(self) -> bool:
        """Whether the losses come with the updates instead, so that every update needs a loss."""

    def select_candidates(
        self, t: int, population: Population, reports: ClientReports
    ) -> Candidates:
        """Return the candidates of round t (from 0), before clients evaluate its model."""


class SentModels(Protocol):
    """Models from which the clients of one round start, if not all start from the newest."""

    @property
    def models(self) -> Mapping[int, Model]:
        """The models by their numbers."""

    @property
    def index_by_client(self) -> Mapping[int, int]:
        """The number of each client's start model, by client id."""

    def get_model(self, client: int) -> Model:
        """Return the model from which a client starts."""


class StartModels(SentModels, Protocol):
    """The models of a rule that chooses from which its clients start."""

    def combine(
        self, model: Model, updates: Sequence[tuple[int, float, Model]], denominator: float
    ) -> tuple[Mapping[str, FloatArray], Mapping[str, FloatArray]]:
        """Return the arrays from which the server optimizer steps, and the combined update.

        ``updates`` has the client, a_k and the trained model of each update that counts. There is
        at least one update. c_k = a_k / ``denominator``.
        """


class StartModelStore(Protocol):
    """The store of the models from which clients start, one for each strategy."""

    @property
    def nbytes(self) -> int:
        """The size of the store in bytes."""

    def prepare_start_models(self, state: Any, model: Model, population: Population) -> StartModels:
        """Return the start models of a round.

        ``state`` is the weighting's state before the round, and ``model`` the round's model.
        """

    def compute_mean_model(self, state: Any, model: Model, population: Population) -> Model:
        """Return the mean, over all clients, of the models from which they start next."""

    def get_state(self) -> StateArrays:
        """Return the store as named arrays; they are not copies, so write them at once."""

    def restore(self, arrays: StateArrays, model: Model) -> None:
        """Restore what ``get_state`` returned, for a model of the same form."""


GroupReport = Callable[[Mapping[str, FloatArray]], Mapping[str, float]]
"""Returns further numbers of a group from its clients' numbers, shape (n,) each.

The clients' numbers are ``training_loss``, the test split's ``loss``, ``accuracy`` and ``metric``,
and the hook's ``columns``.
"""


@dataclass(frozen=True)
class ReportedMetrics:
    """The labels of the numbers that a ``report`` adds, each of them a fraction in [0, 1].

    ``labels`` is by the numbers' keys in the records. ``title`` and ``note`` belong to the chart
    ``key``, which shows the numbers over the rounds.
    """

    key: str
    labels: Mapping[str, str]
    title: str
    note: str


@dataclass(frozen=True)
class Hooks:
    """The hooks of a rule, or of all rules of a strategy.

    Parameters
    ----------
    before_round : BeforeRound, optional
        Chooses the clients that evaluate a round's model before the selection.
    client_start : callable, optional
        Makes the store of the models from which clients start; None if all start from the round's
        model.
    columns : mapping of str to mapping of int to float
        Numbers of each client, by the name of their column in ``population.parquet`` and by client
        id; a client that is missing has a null.
    report : callable, optional
        Computes further numbers of each group of clients after an evaluation. With it, all
        evaluated clients also evaluate their training split.
    """

    before_round: BeforeRound | None = None
    client_start: Callable[[], StartModelStore] | None = None
    columns: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    report: GroupReport | None = None

    def __or__(self, other: "Hooks") -> "Hooks":
        """Return the hooks of both.

        Raises
        ------
        ValueError
            If both have the same hook.
        """
        given = [
            {item.name: value for item in fields(one) if (value := getattr(one, item.name))}
            for one in (self, other)
        ]
        if twice := sorted(given[0].keys() & given[1].keys()):
            raise ValueError(f"two rules of one strategy have the hook {twice[0]}")
        return Hooks(**given[0], **given[1])


NO_HOOKS = Hooks()
