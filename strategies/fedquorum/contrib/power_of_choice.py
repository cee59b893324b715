"""Ask the clients with the largest losses among candidates drawn by their data."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ..description import RuleDescription
from ..equality import nan_equals_nan
from ..errors import ParameterError
from ..hooks import Candidates, Hooks
from ..parameters import LOSS_SOURCES, POSITIVE_INT
from ..rng import make_generator
from ..rule import parameter
from ..selection.base import Selection
from ..selection.sampling import Sampling
from ..types import ClientReports, FloatArray, IntArray, PerClient, Population, RoundPlan


@nan_equals_nan
@dataclass(frozen=True)
class LossRankedPlan(RoundPlan):
    """A call to the candidates with the largest losses.

    ``candidate_losses`` has each candidate's loss, NaN if unknown, in the order of drawing.
    """

    candidate_losses: Mapping[int, float] = field(default_factory=dict)

    @property
    def is_final(self) -> bool:
        """Whether no message before the round can change the call: losses can."""
        return False


@dataclass(frozen=True)
class PowerOfChoice(Selection):
    """Draw d candidates by their amounts of data and ask the m with the largest losses.

    The selection draws d candidates without replacement, with probabilities proportional to D_k,
    from (seed, "selection", round). It asks the m = round(C n) candidates with the largest losses,
    where C is ``fraction`` and n the number of clients. Equal losses keep the order of drawing. The
    selection skips a candidate without a loss, even if fewer than m remain. With d = m only the
    draw decides, with d = n only the losses. A client whose amount of data is unknown counts with
    the mean of the known amounts.

    If there are clients without priority, the selection chooses among them, and draws a fraction of
    the priority clients uniformly, as every other selection does.

    Parameters
    ----------
    candidates : int, optional
        d, from m to the number of clients; by default 2 m, or all clients if there are fewer.
    losses : {"measured", "told"}
        ``measured`` (pow-d): the candidates measure F_k(w_t) in the evaluation that closes the
        previous round. ``told`` (rpow-d): the selection uses the last F_k that a client reported
        with an update, without a further measurement. It is infinite before the first report, so
        that new clients come first.
    sampling : Sampling
        The fraction. Draws with replacement and rests are not allowed.

    Raises
    ------
    ParameterError
        If a value is outside its range, or the sampling has priority draws or rests.

    References
    ----------
    Cho, Wang and Joshi, "Client Selection in Federated Learning: Convergence Analysis and
    Power-of-Choice Selection Strategies", arXiv 2010.01243, with the public copy of the authors'
    code. Their rpow-d takes the mean loss of a client's last training; here it is the loss of the
    model received. The variant on single batches (cpow-d) is left out, and 2 m is ours. The draw
    with exponential keys: Efraimidis and Spirakis 2006.
    """

    key = "power_of_choice"
    summary = "The clients with the largest losses among candidates drawn by their data."
    description = RuleDescription(
        clients="the clients with the largest losses among candidates drawn by their data",
        trusts="the loss and `num-examples`",
        gain="a client is asked more often if it reports a high loss or much data",
        secure_sum="only with the losses in the clear",
    )
    needs_objective = False
    dp_unsupported_reason = "the clients' losses decide which clients are asked"

    candidates: int | None = parameter(None, POSITIVE_INT)
    losses: str = parameter("measured", LOSS_SOURCES)
    sampling: Sampling = field(default_factory=Sampling)

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.sampling.priority_samples
        if given is not None:
            allowed, reason = f"None with the selection {self.key}", "it draws without replacement"
            raise ParameterError("priority_samples", allowed, given, reason)

    @property
    def hooks(self) -> Hooks:
        """The candidates of a round, which measure its model first."""
        return Hooks(before_round=self)

    @property
    def needs_reports(self) -> bool:
        """Whether a loss comes with each update, so that nobody measures a model first."""
        return self.losses == "told"

    def check_population(self, population: Population) -> None:
        """Refuse a number of candidates below m or above the number of clients."""
        group = _get_candidate_pool(population)
        asked, given = self._compute_num_selected(population, group), self.candidates
        if given is not None and not asked <= given <= len(group):
            raise ParameterError(
                "candidates",
                f"a whole number from {asked}, which are asked, to {len(group)}, the clients",
                given,
                "fraction says how many are asked",
            )

    def select_candidates(
        self, t: int, population: Population, reports: ClientReports
    ) -> Candidates:
        """Return all candidates of round t, with those that measure its model first.

        Before round 1 all clients measure it, and with it report their amounts of data.
        """
        priority, drawn, _ = self._draw_candidates(t, population, reports)
        measuring = () if self.needs_reports else drawn
        if t == 0:
            measuring = tuple(population.sorted_clients.tolist())
        return Candidates(tuple(sorted((*priority, *drawn))), measuring)

    def plan(self, t: int, population: Population, reports: ClientReports) -> LossRankedPlan:
        """Return a call to the candidates with the largest losses, and to priority clients."""
        priority, drawn, asked = self._draw_candidates(t, population, reports)
        candidates = self._get_candidate_losses(drawn, reports)
        chosen = _select_largest(candidates, asked)
        return LossRankedPlan(tuple(sorted((*priority, *chosen))), candidate_losses=candidates)

    def _draw_candidates(
        self, t: int, population: Population, reports: ClientReports
    ) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        """Return the priority clients asked, the candidates in the order of drawing, and m."""
        rng = make_generator(self.sampling.seed, "selection", t)
        group, priority = _get_candidate_pool(population), population.priority_clients
        if reports.available is not None:
            group = tuple(k for k in group if k in reports.available)
            priority = tuple(k for k in priority if k in reports.available)
        priority = (
            self.sampling.sample_fraction(priority, rng, at_least=1)
            if population.non_priority_clients
            else ()
        )
        asked = self._compute_num_selected(population, group)
        count = max(asked, 2 * asked if self.candidates is None else self.candidates)
        clients = np.array(group, dtype=np.int64)
        order = _draw_order(
            PerClient.from_mapping(reports.num_examples).get_array(clients, math.nan), rng
        )
        return priority, tuple(clients[order[:count]].tolist()), asked

    def _compute_num_selected(self, population: Population, group: tuple[int, ...]) -> int:
        """Return m of the clients in the group."""
        return self.sampling.compute_sample_size(
            len(group), at_least=0 if population.non_priority_clients else 1
        )

    def _get_candidate_losses(
        self, drawn: tuple[int, ...], reports: ClientReports
    ) -> dict[int, float]:
        """Return the loss that counts of each candidate, in the order of drawing."""
        known, nothing = reports.losses, math.inf
        if not self.needs_reports:
            known, nothing = reports.evaluated_losses, math.nan
        return {k: float(known.get(k, nothing)) for k in drawn}

    def explain_selection(
        self, t: int, population: Population, plan: RoundPlan, client: int
    ) -> str:
        """Return the client's ranks in the draw and by loss, or that it was not drawn."""
        candidates = plan.candidate_losses if isinstance(plan, LossRankedPlan) else {}
        if population.non_priority_clients and client in population.priority:
            return self.sampling.explain(t, plan, client, "priority clients are asked", population)
        seed = f'(seed {self.sampling.seed}, "selection", round {t + 1})'
        drawn = f"of {len(candidates)} candidates drawn by their data from {seed}"
        if client not in candidates:
            return f"no; it is not one {drawn}"
        place, loss = [*candidates].index(client) + 1, candidates[client]
        if math.isnan(loss):
            return f"no; number {place} {drawn}, but it reported no loss"
        ranked = _select_largest(candidates, len(candidates))
        asked = [k for k in ranked if k in plan.clients]
        return (
            f"{'yes' if client in asked else 'no'}; number {place} {drawn}; its loss F_k = "
            f"{loss:.6g} is number {ranked.index(client) + 1} by size, and the largest "
            f"{len(asked)} are asked"
        )


def _get_candidate_pool(population: Population) -> tuple[int, ...]:
    """Return the clients to choose among, ascending: those without priority, or all."""
    return tuple(sorted(population.non_priority_clients or population.clients))


def _draw_order(data: FloatArray, rng: np.random.Generator) -> IntArray:
    """Return the places of clients in the order in which they are drawn by their data.

    The keys E_k / D_k with E_k exponential: the smallest is that of client k with probability
    D_k / sum of D, and so on among those left. Without data nobody is drawn, unless nobody has any.
    """
    known = data[~np.isnan(data)]
    weight = np.where(np.isnan(data), known.mean() if len(known) else 1.0, data)
    if not weight.any():
        weight = np.ones_like(weight)
    with np.errstate(divide="ignore"):
        keys = rng.exponential(size=len(weight)) / weight
    order: IntArray = np.argsort(keys, kind="stable")
    return order[np.isfinite(keys[order])]


def _select_largest(candidates: Mapping[int, float], count: int) -> list[int]:
    """Return the clients with the largest losses, at most so many, ties as they were drawn."""
    known = [client for client, loss in candidates.items() if not math.isnan(loss)]
    return sorted(known, key=lambda client: -candidates[client])[:count]
