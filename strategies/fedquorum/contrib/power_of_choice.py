"""Select the clients with the largest losses among candidates sampled by their data."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ..errors import ParameterError
from ..rng import make_generator
from ..rules.description import RuleDescription
from ..rules.equality import nan_equals_nan
from ..rules.hooks import Candidates, Hooks
from ..rules.parameters import LOSS_SOURCES, POSITIVE_INT
from ..rules.rule import parameter
from ..rules.selection.base import Selection, SelectionTraits
from ..rules.selection.sampling import Sampling
from ..rules.types import ClientReports, FloatArray, IntArray, PerClient, Population, RoundPlan


@nan_equals_nan
@dataclass(frozen=True)
class LossRankedPlan(RoundPlan):
    """A plan with the candidates that have the largest losses.

    ``candidate_losses`` has each candidate's loss, NaN if unknown, in the order of sampling.
    """

    candidate_losses: Mapping[int, float] = field(default_factory=dict)

    @property
    def is_final(self) -> bool:
        """Whether no message before the round can change the plan; losses can."""
        return False


@dataclass(frozen=True)
class PowerOfChoice(Selection):
    """Sample d candidates by their amounts of data and select the m with the largest losses.

    The selection samples d candidates without replacement, with probabilities proportional to D_k,
    from (seed, "selection", round). It selects the m = round(C n) candidates with the largest
    losses, where C is ``fraction`` and n the number of clients. Equal losses stay in the order of
    sampling. The selection skips a candidate without a loss, even if fewer than m remain. With
    d = m only the sampling decides, with d = n only the losses. A client whose amount of data is
    unknown counts with the mean of the known amounts.

    If there are clients without priority, the selection chooses among them, and samples a fraction
    of the priority clients uniformly, as every other selection does.

    Parameters
    ----------
    candidates : int, optional
        d, from m to the number of clients; by default 2 m, or all clients if there are fewer.
    loss_source : {"evaluated", "reported"}
        ``evaluated`` (pow-d): the candidates evaluate F_k(w_t) in the evaluation that closes the
        previous round. ``reported`` (rpow-d): the selection uses the last F_k that a client
        reported with an update, without a further evaluation. It is infinite before the first
        report, so that new clients come first.
    sampling : Sampling
        The fraction. Sampling with replacement is not allowed.

    Raises
    ------
    ParameterError
        If a value is outside its range, or the sampling is with replacement.

    References
    ----------
    Cho, Wang and Joshi, "Client Selection in Federated Learning: Convergence Analysis and
    Power-of-Choice Selection Strategies", arXiv 2010.01243, with the public copy of the authors'
    code. Their rpow-d takes the mean loss of a client's last training; here it is the loss of the
    model received. The variant on single batches (cpow-d) is left out, and 2 m is ours. The draw
    with exponential keys: Efraimidis and Spirakis 2006.
    """

    description = RuleDescription(
        key="power_of_choice",
        summary="The clients with the largest losses among candidates drawn by their data.",
        clients="the clients with the largest losses among candidates drawn by their data",
        trusts="the loss and `num-examples`",
        gain="a client is selected more often if it reports a high loss or much data",
    )
    traits = SelectionTraits(
        needs_objective=False,
        dp_unsupported_reason="the clients' losses decide which clients are selected",
        late_unsupported_reason="losses of the newest model decide which clients are selected",
        sum_unsupported_reason="the losses of single clients decide which are selected",
    )

    candidates: int | None = parameter(None, POSITIVE_INT)
    loss_source: str = parameter("evaluated", LOSS_SOURCES)
    sampling: Sampling = field(default_factory=Sampling)

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.sampling.priority_samples
        if given is not None:
            allowed = f"None with the selection {self.description.key}"
            reason = "it draws without replacement"
            raise ParameterError("priority_samples", allowed, given, reason)

    @property
    def hooks(self) -> Hooks:
        """The candidates of a round, which evaluate its model first."""
        return Hooks(before_round=CandidateEvaluation(self))

    def check_population(self, population: Population) -> None:
        """Refuse a number of candidates below m or above the number of clients."""
        group = _get_candidate_pool(population)
        num_selected = _compute_num_selected(self.sampling, population, group)
        given = self.candidates
        if given is not None and not num_selected <= given <= len(group):
            raise ParameterError(
                "candidates",
                f"a whole number from {num_selected}, which are selected, to {len(group)}, the "
                "clients",
                given,
                "fraction says how many are selected",
            )

    def plan(self, t: int, population: Population, reports: ClientReports) -> LossRankedPlan:
        """Return a plan with the candidates of the largest losses, and with priority clients."""
        priority, candidates, num_selected = draw_candidates(self, t, population, reports)
        losses = self._get_candidate_losses(candidates, reports)
        selected = _select_largest(losses, num_selected)
        return LossRankedPlan(tuple(sorted((*priority, *selected))), candidate_losses=losses)

    def _get_candidate_losses(
        self, candidates: tuple[int, ...], reports: ClientReports
    ) -> dict[int, float]:
        """Return the loss of each candidate that decides its rank, in the order of sampling."""
        losses, default = reports.losses, math.inf
        if self.loss_source == "evaluated":
            losses, default = reports.evaluated_losses, math.nan
        return {k: float(losses.get(k, default)) for k in candidates}

    def explain_selection(
        self, t: int, population: Population, plan: RoundPlan, client: int
    ) -> str:
        """Return the client's ranks in the sample and by loss, or that it was not sampled."""
        candidates = plan.candidate_losses if isinstance(plan, LossRankedPlan) else {}
        if population.non_priority_clients and client in population.priority:
            groups = "priority clients are eligible"
            return self.sampling.explain(t, plan, client, groups, population)
        seed = f'(seed {self.sampling.seed}, "selection", round {t + 1})'
        sample_text = f"of {len(candidates)} candidates drawn by their data from {seed}"
        if client not in candidates:
            return f"no; it is not one {sample_text}"
        position, loss = [*candidates].index(client) + 1, candidates[client]
        if math.isnan(loss):
            return f"no; number {position} {sample_text}, but it reported no loss"
        ranked = _select_largest(candidates, len(candidates))
        selected = [k for k in ranked if k in plan.clients]
        return (
            f"{'yes' if client in selected else 'no'}; number {position} {sample_text}; "
            f"its loss F_k = {loss:.6g} is number {ranked.index(client) + 1} by size, "
            f"and the largest {len(selected)} are selected"
        )


@dataclass(frozen=True)
class CandidateEvaluation:
    """Let the candidates of a round evaluate its model first; see ``fedquorum.rules.hooks``."""

    rule: PowerOfChoice

    @property
    def needs_reports(self) -> bool:
        """Whether losses come with the updates, so that no client evaluates a model first."""
        return self.rule.loss_source == "reported"

    def select_candidates(
        self, t: int, population: Population, reports: ClientReports
    ) -> Candidates:
        """Return all candidates of round t, with those that evaluate its model first.

        Before round 1 all clients evaluate it, and report their amounts of data.
        """
        priority, candidates, _ = draw_candidates(self.rule, t, population, reports)
        evaluating = () if self.needs_reports else candidates
        if t == 0:
            evaluating = tuple(population.sorted_clients.tolist())
        return Candidates(tuple(sorted((*priority, *candidates))), evaluating)


def draw_candidates(
    rule: PowerOfChoice, t: int, population: Population, reports: ClientReports
) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Return the selected priority clients, the candidates in the order of sampling, and m."""
    sampling = rule.sampling
    rng = make_generator(sampling.seed, "selection", t)
    group, priority = _get_candidate_pool(population), population.priority_clients
    if reports.available is not None:
        group = tuple(k for k in group if k in reports.available)
        priority = tuple(k for k in priority if k in reports.available)
    priority = (
        sampling.sample_fraction(priority, rng, at_least=1)
        if population.non_priority_clients
        else ()
    )
    num_selected = _compute_num_selected(sampling, population, group)
    count = max(num_selected, 2 * num_selected if rule.candidates is None else rule.candidates)
    clients = np.array(group, dtype=np.int64)
    data = PerClient.from_mapping(reports.num_examples).get_array(clients, math.nan)
    order = _draw_order(data, rng)
    return priority, tuple(clients[order[:count]].tolist()), num_selected


def _compute_num_selected(
    sampling: Sampling, population: Population, group: tuple[int, ...]
) -> int:
    """Return m, the number of clients to select from the group."""
    at_least = 0 if population.non_priority_clients else 1
    return sampling.compute_sample_size(len(group), at_least=at_least)


def _get_candidate_pool(population: Population) -> tuple[int, ...]:
    """Return the clients to choose among, ascending: those without priority, or all."""
    return tuple(sorted(population.non_priority_clients or population.clients))


def _draw_order(data: FloatArray, rng: np.random.Generator) -> IntArray:
    """Return the indices of clients in the order of sampling by their data.

    The keys are E_k / D_k with E_k exponential: client k has the smallest key with probability
    D_k / sum of D, and so on for the remaining clients. A client without data is not sampled,
    unless no client has data.
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
    """Return at most ``count`` clients with the largest losses, ties in the order of sampling."""
    reported = [client for client, loss in candidates.items() if not math.isnan(loss)]
    return sorted(reported, key=lambda client: -candidates[client])[:count]
