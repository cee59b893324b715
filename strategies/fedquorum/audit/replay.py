"""Replay the decisions of a run from its records alone.

The rules are pure: their decisions follow from the settings, the clients' outcomes, and the state
after earlier rounds. ``replay_rounds`` builds the rules from ``config.yaml``. For each round, it
passes the outcomes in ``clients/`` and the objective from ``evaluations/`` to
``fedquorum.rules.round.decide_round``, which the strategy also uses. It needs no data, no model and
no client.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..client.availability.periodic import build_pattern
from ..client.availability.rates import ParticipationRates
from ..contrib import restore_appeal_hooks
from ..errors import FedQuorumError, ParameterError, RunError
from ..records.reader import POPULATION_FILE, Run, load_run, read_population, read_table
from ..records.round_record import RoundRecord
from ..records.safe_files import SafeRunDir
from ..registry import build_rules, import_rule, refuse_import
from ..rules.composition import RuleSet
from ..rules.decisions import (
    PERSONAL_METRICS,
    PERSONAL_MODELS,
    ClientDecision,
    ClientEvaluation,
    PersonalEvaluation,
    RoundReport,
    compute_priority_objective,
    update_reports,
)
from ..rules.hooks import NO_HOOKS, Hooks
from ..rules.robustness import Robustness
from ..rules.round import (
    NOT_SOLVED,
    ClientOutcome,
    RoundDecision,
    RoundOutcomes,
    RoundState,
    decide_round,
)
from ..rules.rule import RunContext
from ..rules.schedules import ClientLRSchedule
from ..rules.selection.base import samples_objective, select_objective_clients
from ..rules.staleness import LateUpdates
from ..rules.types import (
    ClientReports,
    ClientsUnderWay,
    FloatArray,
    IntArray,
    Objective,
    Population,
    ReplacementSample,
    RoundPlan,
)
from ..sanitize import sanitize

TableRow = Mapping[str, Any]

DROP_IN_KEY = "drop_in"
"""The key of the settings of a drop-in strategy, which ran in another app."""


@dataclass(frozen=True)
class RowsByRound:
    """A table sorted by round and client that builds its rows on demand, round by round."""

    table: pa.Table
    row_ranges: Mapping[int, tuple[int, int]]

    @classmethod
    def from_table(cls, table: pa.Table) -> "RowsByRound":
        """Return the rows of a table with the columns ``round`` and ``client``."""
        ordered = table.sort_by([("round", "ascending"), ("client", "ascending")])
        row_ranges, start = {}, 0
        for found in pc.value_counts(ordered["round"]).to_pylist():
            row_ranges[found["values"]] = (start, found["counts"])
            start += found["counts"]
        return cls(ordered, row_ranges)

    def __getitem__(self, number: int) -> Sequence[TableRow]:
        """Return the rows of a round, ascending by client."""
        start, count = self.row_ranges.get(number, (0, 0))
        rows: list[dict[str, Any]] = self.table.slice(start, count).to_pylist()
        return [_fill_num_examples(row) for row in rows]


def _fill_num_examples(row: dict[str, Any]) -> TableRow:
    """Return a row with ``num_examples`` filled from ``data_weight`` if that has the amount."""
    return row if row.get("data_weight") is None else {**row, "num_examples": row["data_weight"]}


@dataclass(frozen=True)
class AuditInput:
    """The records of a run's decisions.

    Parameters
    ----------
    run : Run
        The manifest, the settings, and the rounds.
    population : Population
        All clients.
    rates : ParticipationRates or None
        How often each client participated, if a simulation knew it.
    client_rows : RowsByRound
        The rows of ``clients/``.
    evaluation_rows : RowsByRound
        The rows of ``evaluations/``; round 0 is the first model.
    summary : mapping
        The manifest's summary, empty during the run.
    trusts_code : bool
        Whether to import rules that the settings name by import path.
    joined_rounds : mapping of int to int
        The first round of every client; empty if all were registered from the start.
    hooks : Hooks
        The run's additions to the hooks of its rules.
    """

    run: Run
    population: Population
    rates: ParticipationRates | None
    client_rows: RowsByRound
    evaluation_rows: RowsByRound
    summary: Mapping[str, Any] = field(default_factory=dict)
    trusts_code: bool = False
    joined_rounds: Mapping[int, int] = field(default_factory=dict)
    hooks: Hooks = NO_HOOKS

    @property
    def is_standard(self) -> bool:
        """Whether the clients use Flower's standard protocol, which has no gate or evaluation."""
        return self.run.settings.get(f"{DROP_IN_KEY}.protocol") == "standard"

    @property
    def has_masks(self) -> bool:
        """Whether nodes masked their sums, so that clients have no numbers of their own."""
        return bool(self.run.settings.get("secure_aggregation.name", "none") != "none")

    def is_usable(self, row: TableRow, record: RoundRecord) -> bool:
        """Say whether a client's update reached the rules."""
        if row["num_examples"] is not None or not self.has_masks:
            return row["num_examples"] is not None
        is_refused = str(row["reason"]).startswith(record.refused or "-")
        return bool(row["status"] == "trained" or (row["status"] == "rejected" and is_refused))

    def get_rates(self, number: int) -> FloatArray | None:
        """Return the probability that a round counts each client, shape (N,), if known."""
        return None if self.rates is None else self.rates.get_rates(number - 1)

    def get_population(self, number: int) -> Population:
        """Return the population of a round."""
        if not self.joined_rounds:
            return self.population
        everyone = self.population
        joined = tuple(k for k in everyone.clients if self.joined_rounds[k] <= number)
        return replace(
            everyone, clients=joined, priority=everyone.priority.intersection(joined), is_open=True
        )

    def get_evaluations(self, number: int) -> tuple[ClientEvaluation, ...]:
        """Return the clients' evaluations of the model after a round."""
        return tuple(
            _build_evaluation(row, self.population) for row in self.evaluation_rows[number]
        )


@dataclass(frozen=True)
class ReplayedRound:
    """One replayed round.

    Parameters
    ----------
    record : RoundRecord
        The recorded round.
    rules : RuleSet
        The rules of the round, by the settings of its leg.
    population : Population
        The population of the round.
    rows : sequence
        The round's rows of the clients table.
    plan : RoundPlan
        The clients that the selection chooses.
    plan_matches_rule : bool
        Whether the selection made ``plan``. False if its samples need data that the records lack;
        ``plan`` is then the recorded one.
    objective : Objective
        F and its accuracy, from the evaluations after the previous round.
    decision : RoundDecision
    is_decidable : bool
        Whether the records determine the weights.
    refusal : str or None
        The reason for refusing the whole round, or None.
    under_way : ClientsUnderWay or None
        The clients under way before the round; None if late updates do not count.
    """

    record: RoundRecord
    rules: RuleSet
    population: Population
    rows: Sequence[TableRow]
    plan: RoundPlan
    plan_matches_rule: bool
    objective: Objective
    decision: RoundDecision
    is_decidable: bool
    refusal: str | None = None
    under_way: ClientsUnderWay | None = None

    @property
    def report(self) -> RoundReport:
        """Every decision of the round."""
        return self.decision.report

    @property
    def has_known_statuses(self) -> bool:
        """Whether the records determine the status of each usable update.

        They do not if the server refused weights that the records do not determine: an update
        without a weight was then not refused.
        """
        return self.is_decidable or self.refusal in (None, NOT_SOLVED)


class UndecidableError(Exception):
    """The records of a round contradict each other, so that the rules cannot decide it."""

    def __init__(self, number: int, problem: str) -> None:
        super().__init__(problem)
        self.number = number


@contextmanager
def convert_damage_errors(directory: Path) -> Iterator[None]:
    """Raise RunError, with the run's name, for errors that only contradictory records can cause.

    The reader checks each record by itself. This context covers records that contradict each other,
    for which the rules raise other errors.
    """
    try:
        with np.errstate(all="ignore"):  # records hold any number
            yield
    except FedQuorumError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise RunError(
            f"{directory}: cannot be replayed: {type(error).__name__}: {sanitize(error)}"
        ) from None


def read_audit_input(directory: Path, *, trust: bool = False) -> AuditInput:
    """Return the records of a run.

    Parameters
    ----------
    directory : Path
        The run's folder.
    trust : bool
        Whether to import rules that its settings name by import path, which executes their code.

    Raises
    ------
    RunError
        If a record is missing or damaged, or the run has no finished round.
    """
    run = load_run(directory)
    table = {name: column.to_pylist() for name, column in _read_population_columns(run).items()}
    _refuse_contradictions(run, table)
    clients = table["client"]
    joined = table["joined_round"]
    held_out = frozenset(compress(clients, table["held_out"]))
    rows = zip(clients, table["priority"], table["priority_weight"], strict=True)
    weights = {client: weight for client, has_priority, weight in rows if has_priority}
    try:
        population = Population(
            tuple(k for k in clients if k not in held_out),
            frozenset(weights),
            {k: weight for k, weight in weights.items() if weight != 1.0},
            held_out=tuple(sorted(held_out)),
        )
    except ValueError as error:
        raise RunError(f"{run.directory}/population.parquet: {error}") from None
    return AuditInput(
        run=run,
        population=population,
        rates=_read_rates(run, table),
        joined_rounds={} if None in joined else dict(zip(clients, joined, strict=True)),
        client_rows=RowsByRound.from_table(read_table(run.directory / "clients")),
        evaluation_rows=RowsByRound.from_table(read_table(run.directory / "evaluations")),
        summary=run.summary,
        trusts_code=trust,
        hooks=restore_appeal_hooks(table),
    )


def _refuse_contradictions(run: Run, table: Mapping[str, Sequence[Any]]) -> None:
    """Refuse a table of clients with facts for only some clients, or with contradictory ones."""
    path = f"{run.directory / POPULATION_FILE}"
    for name in ("base_rate", "joined_round"):  # a participation rate may be missing for some
        values = table[name]
        if None in values and any(value is not None for value in values):
            raise RunError(f"{path}: {name} must be there for all clients or for none")
    rows = zip(table["client"], table["priority"], table["priority_weight"], strict=True)
    for client, has_priority, weight in rows:
        if has_priority != (weight > 0):
            raise RunError(
                f"{path}: client {client} must have priority and a weight above 0, or neither, "
                f"got {weight:g}"
            )


def _read_rates(run: Run, table: Mapping[str, Sequence[Any]]) -> ParticipationRates | None:
    """Return how often each client was available; None if unknown."""
    participation, base_rates = table["participation_rate"], table["base_rate"]
    rates = participation if None in base_rates else base_rates
    if None in rates:
        return None
    try:
        pattern = build_pattern(run.config.get("availability") or {})
    except (AttributeError, ParameterError) as error:
        raise RunError(f"{run.directory}/config.yaml: availability: {error}") from None
    known_rates = ParticipationRates(np.array(rates, dtype=np.float64), pattern)
    counted = np.array([math.nan if rate is None else rate for rate in participation])
    is_available = known_rates.availability > 0
    return replace(
        known_rates,
        counted=np.divide(
            counted, known_rates.availability, where=is_available, out=is_available * 1.0
        ),
    )


def build_recorded_rules(recorded: AuditInput, config: Mapping[str, Any]) -> RuleSet:
    """Return the rules of a run, or of one of its legs, from the settings.

    Raises
    ------
    RunError
        If the settings do not define rules.
    """
    optimizer = config.get("server_optimizer", {"name": "sgd"})
    try:
        context = _build_run_context(recorded, config)
        importer = import_rule if recorded.trusts_code else refuse_import
        return build_rules(config["strategy"], optimizer, context, importer=importer)
    except KeyError as error:
        raise RunError(f"{recorded.run.directory}/config.yaml: {error} is missing") from None
    except ParameterError as error:
        setting = error.parameter
        if not setting.startswith("server_optimizer"):
            setting = f"strategy.{setting}"
        text = error.format_for(setting)
        raise RunError(f"{recorded.run.directory}/config.yaml: {text}") from None
    except (AttributeError, ArithmeticError, TypeError, ValueError) as error:
        raise RunError(f"{recorded.run.directory}/config.yaml: {error}") from None


def _build_run_context(recorded: AuditInput, config: Mapping[str, Any]) -> RunContext:
    """Return the rules' context; of a drop-in strategy's run, it has its arguments only."""
    rates = recorded.rates
    seed = int(config.get("seed", recorded.run.seed))
    if DROP_IN_KEY in config:
        return RunContext(num_rounds=config[DROP_IN_KEY].get("num_rounds"), seed=seed)
    return RunContext(
        num_rounds=int(config.get("rounds") or len(recorded.run.rounds)),
        seed=seed,
        rates=None if rates is None else rates.by_client,
        clients=recorded.population.clients,
        hooks=recorded.hooks,
        pattern=None if rates is None else rates.pattern,
        client_lr_schedule=ClientLRSchedule.from_settings(config.get("client") or {}),
        priority=recorded.population.priority,
        counted=_get_counted_rates(recorded),
    )


def _get_counted_rates(recorded: AuditInput) -> Mapping[int, float] | None:
    """Return the probability that an available client counts, if a virtual clock decides on it.

    Without a virtual clock, it follows from the selection.
    """
    clock = recorded.run.settings.get("response_time.name", "none")
    if recorded.rates is None or clock == "none":
        return None
    return recorded.rates.counted_by_client


def read_late_updates(settings: Mapping[str, Any]) -> LateUpdates | None:
    """Return how late updates count by a run's settings; None if they do not."""
    if settings.get("engine.late_replies", "discard") == "discard":
        return None
    names = ("staleness_exponent", "max_staleness", "concurrency")
    return LateUpdates(*(settings[f"engine.{name}"] for name in names))


def _advance_under_way(
    under_way: ClientsUnderWay | None, rows: Sequence[TableRow], number: int
) -> ClientsUnderWay | None:
    """Return the clients under way after a round: without those that left, with new ones."""
    if under_way is None:
        return None
    left = [row["client"] for row in rows if (row["start_round"] or number) < number]
    new = [row["client"] for row in rows if row["status"] == "late"]
    stay = np.setdiff1d(under_way.clients, np.array(left, dtype=np.int64))
    return replace(under_way, clients=np.union1d(stay, np.array(new, dtype=np.int64)))


def _block_clients(
    under_way: ClientsUnderWay | None, rows: Sequence[TableRow]
) -> ClientsUnderWay | None:
    """Return the clients under way, with those on busy nodes, which the round could not ask."""
    if under_way is None:
        return None
    return replace(
        under_way, blocked=tuple(row["client"] for row in rows if row["status"] == "busy")
    )


def replay_rounds(recorded: AuditInput) -> Iterator[ReplayedRound]:
    """Yield the decisions of every round for which the clients table has rows.

    Raises
    ------
    UndecidableError
        If the rules refuse the records of a round.
    """
    run = recorded.run
    leg = run.find_leg(1)
    rules = build_recorded_rules(recorded, leg.config)
    before = recorded.get_population(0)
    state = RoundState.initial(rules, before)
    late = read_late_updates(run.settings)
    no_clients = np.zeros(0, dtype=np.int64)
    under_way = None if late is None else ClientsUnderWay(no_clients, late.concurrency)
    for record in run.rounds:
        if run.find_leg(record.round) is not leg:
            leg = run.find_leg(record.round)
            rules = build_recorded_rules(recorded, leg.config)
        population = recorded.get_population(record.round)
        if population.clients != before.clients:
            state, before = state.with_clients(rules, before, population), population
        evaluations = recorded.get_evaluations(record.round - 1)
        everyone = rules.hooks.before_round is not None
        reports = update_reports(state.reports, evaluations, all_clients=everyone)
        rows = recorded.client_rows[record.round]
        under_way = _block_clients(under_way, rows)
        reports = replace(reports, under_way=under_way)
        state = replace(state, reports=reports)
        if not rows and record.selected > 0:
            return
        try:
            replayed = _replay_round(recorded, rules, record, rows, state)
        except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise UndecidableError(record.round, str(error)) from None
        yield replace(replayed, under_way=under_way)
        state = replayed.decision.next_state
        under_way = _advance_under_way(under_way, rows, record.round)


def _replay_round(
    recorded: AuditInput,
    rules: RuleSet,
    record: RoundRecord,
    rows: Sequence[TableRow],
    state: RoundState,
) -> ReplayedRound:
    population = recorded.get_population(record.round)
    plan, plan_matches_rule = _plan_round(
        rules, record, rows, population, _add_available_clients(recorded, record, state.reports)
    )
    plan = replace(plan, clients_apply_gate=not recorded.is_standard)
    refusal = record.refused
    is_decidable = not rules.weighting.traits.needs_updates
    decision = decide_round(
        rules,
        population,
        state,
        server_round=record.round,
        plan=plan,
        objective=(
            None
            if recorded.is_standard
            else Objective(
                record.global_loss, record.global_accuracy, record.stale_clients, record.unmeasured
            )
        ),
        outcomes=_build_outcomes(recorded, rows, population, record),
        robustness=Robustness(max_weight=_get_max_weight(recorded.run, record.round)),
        late=read_late_updates(recorded.run.settings),
        compute_weights=is_decidable and refusal != NOT_SOLVED,
    )
    recorded_decisions = tuple(
        _build_decision(row) for row in rows if recorded.is_usable(row, record)
    )
    decision = replace(
        decision, trace=replace(decision.trace, recorded_decisions=recorded_decisions)
    )
    if refusal is not None:
        decision = decision.reject(refusal)
    return ReplayedRound(
        record=record,
        rules=rules,
        population=population,
        rows=rows,
        plan=plan,
        plan_matches_rule=plan_matches_rule,
        objective=(
            decision.report.objective
            if recorded.is_standard or recorded.has_masks
            else _compute_objective(rules, recorded, record, plan)
        ),
        decision=decision,
        is_decidable=is_decidable,
        refusal=refusal,
    )


def _add_available_clients(
    recorded: AuditInput, record: RoundRecord, reports: ClientReports
) -> ClientReports:
    """Return the reports, with the available clients if clients may join."""
    if not recorded.joined_rounds:
        return reports
    joined = frozenset(recorded.get_population(record.round).clients)
    return replace(reports, available=joined.difference(record.disconnected))


def _get_max_weight(run: Run, number: int) -> float | None:
    value: float | None = run.find_leg(number).settings.get("robustness.max_weight")
    return value


def _plan_round(
    rules: RuleSet,
    record: RoundRecord,
    rows: Sequence[TableRow],
    population: Population,
    reports: ClientReports,
) -> tuple[RoundPlan, bool]:
    sampled_data = record.priority_data
    if sampled_data is not None:
        data = sum(reports.num_examples.get(k, 0.0) for k in population.priority)
        if not math.isclose(data, sampled_data, rel_tol=1e-9):
            # A priority client registered late: the server's facts of that time are not recorded.
            num_draws = {
                row["client"]: row["num_draws"] for row in rows if row["num_draws"] is not None
            }
            clients = tuple(row["client"] for row in rows)
            criterion = getattr(rules.selection, "criterion", "loss")
            sample = ReplacementSample(num_draws, sampled_data)
            plan = RoundPlan(clients, record.epsilon, criterion, sample, t=record.round - 1)
            return plan, False
    return rules.plan_round(record.round - 1, population, reports), True


def _compute_objective(
    rules: RuleSet, recorded: AuditInput, record: RoundRecord, plan: RoundPlan
) -> Objective:
    """Return F(w_t), of the round's clients only if the selection samples the objective."""
    selected = frozenset(plan.clients)
    # If clients may join, the round's clients were not final when the evaluation started.
    # Candidates are evaluated before the round selects among them.
    selection = rules.selection
    only_selected = (
        rules.needs_objective
        and samples_objective(selection)
        and rules.hooks.before_round is None
        and not recorded.joined_rounds
    )
    evaluations = recorded.get_evaluations(record.round - 1)
    objective_clients = select_objective_clients(
        selection, frozenset(e.client for e in evaluations)
    )
    return compute_priority_objective(
        [
            e
            for e in evaluations
            if e.client in objective_clients and (not only_selected or e.client in selected)
        ],
        [
            _find_last_evaluation(recorded, client, record.round - 1)
            for client in record.stale_clients
        ],
    )


def _find_last_evaluation(recorded: AuditInput, client: int, before: int) -> ClientEvaluation:
    """Return a client's last evaluation before one that it missed."""
    for number in sorted(
        (n for n in recorded.evaluation_rows.row_ranges if n < before), reverse=True
    ):
        for evaluation in recorded.get_evaluations(number):
            if evaluation.client == client and evaluation.has_objective_loss:
                return evaluation
    raise ValueError(f"client {client} is stale, but has measured nothing before round {before}")


def _build_outcomes(
    recorded: AuditInput, rows: Sequence[TableRow], population: Population, record: RoundRecord
) -> RoundOutcomes:
    """Return the outcomes; the inner products of the updates have only the norms."""
    norms = [row["update_norm"] for row in rows if recorded.is_usable(row, record)]
    squared = np.square([math.nan if norm is None else norm for norm in norms])
    return RoundOutcomes(
        tuple(
            ClientOutcome(
                row["client"],
                "trained",
                num_examples=row["num_examples"],
                loss=row["loss"],
                accuracy=row["accuracy"],
                start_round=row.get("start_round"),
            )
            if recorded.is_usable(row, record)
            else ClientOutcome(row["client"], row["status"], row["reason"])
            for row in rows
        ),
        registered=_get_registered_clients(population, record),
        gram=lambda: np.diag(squared),
        unregistered=record.unregistered,
    )


def _get_registered_clients(population: Population, record: RoundRecord) -> IntArray:
    """Return the clients whose nodes were registered."""
    if not record.unregistered:
        return population.sorted_clients
    return np.setdiff1d(population.sorted_clients, np.array(record.unregistered, dtype=np.int64))


def _build_decision(row: TableRow) -> ClientDecision:
    """Return the recorded decision about a client whose update reached the rules."""
    return ClientDecision(
        row["client"],
        row["priority"],
        row["status"],
        row["reason"],
        num_examples=row["num_examples"],
        loss=row["loss"],
        accuracy=row["accuracy"],
        num_draws=row["num_draws"],
        response=row["response"],
        mixing_coefficient=row["mixing_coefficient"],
        participation_correction=row["participation_correction"],
        update_norm=row["update_norm"],
        weight=row["weight"],
    )


def _build_evaluation(row: TableRow, population: Population) -> ClientEvaluation:
    def get_value(name: str) -> Any:
        value = row.get(name)  # a personal model may have no columns
        if name.endswith("calibration"):
            return b"" if value is None else value
        return math.nan if value is None else float(value)

    return ClientEvaluation(
        client=row["client"],
        priority_weight=population.get_priority_weight(row["client"]),
        num_examples=get_value("num_examples"),
        loss=get_value("loss"),
        accuracy=get_value("accuracy"),
        test_num_examples=get_value("test_num_examples"),
        test_loss=get_value("test_loss"),
        test_accuracy=get_value("test_accuracy"),
        test_metric=get_value("test_metric"),
        test_r2=get_value("test_r2"),
        test_average_precision=get_value("test_average_precision"),
        test_calibration=get_value("test_calibration"),
        validation_num_examples=get_value("validation_num_examples"),
        validation_loss=get_value("validation_loss"),
        validation_accuracy=get_value("validation_accuracy"),
        validation_metric=get_value("validation_metric"),
        validation_r2=get_value("validation_r2"),
        validation_average_precision=get_value("validation_average_precision"),
        validation_calibration=get_value("validation_calibration"),
        held_out=row["client"] in population.held_out,
        personal=tuple(
            PersonalEvaluation(
                model,
                row[f"{model}_epochs"],
                **{name: get_value(f"{model}_{name}") for name in PERSONAL_METRICS},
            )
            for model in PERSONAL_MODELS
            if row.get(f"{model}_epochs") is not None
        ),
    )


def _read_population_columns(run: Run) -> Mapping[str, pa.ChunkedArray]:
    """Return the columns of the table of clients."""
    directory = run.directory
    if SafeRunDir(directory).get_file_id(POPULATION_FILE) is None:
        if not run.rounds:
            raise RunError(f"{directory} has no finished round: there is nothing to replay")
        raise RunError(
            f"expected a file of a run, got {directory / POPULATION_FILE} "
            "(No such file or directory)"
        )
    table = read_population(directory)
    return {name: table[name] for name in table.column_names}
