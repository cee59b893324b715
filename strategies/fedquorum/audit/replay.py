"""Replay the decisions of a run from its records alone.

The rules are pure: their decisions follow from the settings, the clients' answers, and the state
after earlier rounds. ``replay`` builds the rules from ``config.yaml``. For each round, it passes
the answers in ``clients/`` and the objective from ``evaluations/`` to ``fedquorum.round.decide``,
which the strategy also uses. It needs no data, no model and no client.
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

from ..client.availability.periodic import pattern_of
from ..client.availability.rates import SimulatedRates
from ..composition import Rules
from ..contrib import recorded_hooks
from ..errors import FedQuorumError, ParameterError, RunError
from ..hooks import NO_HOOKS, Hooks
from ..imports import no_rule_at, rule_at
from ..intake import shown
from ..named import build
from ..records.folder import RunFolder
from ..records.reader import POPULATION, Run, load_run, read_population, read_table
from ..records.round_record import RoundRecord
from ..report import (
    ClientDecision,
    ClientEvaluation,
    TrainReport,
    priority_objective,
    told_after,
)
from ..robustness import Robustness
from ..round import (
    NOT_SOLVED,
    ClientAnswer,
    Round,
    RoundAnswers,
    RoundState,
    decide,
)
from ..rule import RunFacts
from ..schedules import ClientRate
from ..types import Call, Draws, FloatArray, IntArray, Objective, Population, Told

Row = Mapping[str, Any]

DROP_IN = "drop_in"
"""The settings of a run whose strategy ran in another app."""


@dataclass(frozen=True)
class RowsByRound:
    """A table sorted by round and client that makes its rows on demand, round by round."""

    table: pa.Table
    places: Mapping[int, tuple[int, int]]

    @classmethod
    def of(cls, table: pa.Table) -> "RowsByRound":
        """Return the rows of a table with the columns ``round`` and ``client``."""
        ordered = table.sort_by([("round", "ascending"), ("client", "ascending")])
        places, begin = {}, 0
        for found in pc.value_counts(ordered["round"]).to_pylist():
            places[found["values"]] = (begin, found["counts"])
            begin += found["counts"]
        return cls(ordered, places)

    def __getitem__(self, number: int) -> Sequence[Row]:
        """Return the rows of a round, ascending by client; none where there are none."""
        begin, count = self.places.get(number, (0, 0))
        rows: list[dict[str, Any]] = self.table.slice(begin, count).to_pylist()
        return [_with_data(row) for row in rows]


def _with_data(row: dict[str, Any]) -> Row:
    """Return a row with the amount of data that is no whole number at its usual place."""
    return row if row.get("data_weight") is None else {**row, "num_examples": row["data_weight"]}


@dataclass(frozen=True)
class Recorded:
    """The records of a run's decisions.

    Parameters
    ----------
    run : Run
        Manifest, settings, and rounds.
    population : Population
        All clients.
    rates : SimulatedRates or None
        How often each client took part, if a simulation knew it.
    rows : RowsByRound
        The rows of ``clients/``.
    evaluated : RowsByRound
        The rows of ``evaluations/``; round 0 is the first model.
    summary : mapping
        The manifest's summary, empty during the run.
    trusted : bool
        Whether to import rules that the settings name by import path.
    joined : mapping of int to int
        The first round of every client; empty if all were known from the start.
    hooks : Hooks
        What the run added to the hooks of its rules.
    """

    run: Run
    population: Population
    rates: SimulatedRates | None
    rows: RowsByRound
    evaluated: RowsByRound
    summary: Mapping[str, Any] = field(default_factory=dict)
    trusted: bool = False
    joined: Mapping[int, int] = field(default_factory=dict)
    hooks: Hooks = NO_HOOKS

    @property
    def standard(self) -> bool:
        """Whether the clients use Flower's standard protocol, and decide and measure nothing."""
        return self.run.settings.get(f"{DROP_IN}.protocol") == "standard"

    def rates_in(self, number: int) -> FloatArray | None:
        """Return the probability that a round counts each client, shape (N,), if known."""
        return None if self.rates is None else self.rates.at(number - 1)

    def population_in(self, number: int) -> Population:
        """Return the population of a round."""
        if not self.joined:
            return self.population
        everyone = self.population
        there = tuple(k for k in everyone.clients if self.joined[k] <= number)
        return replace(
            everyone, clients=there, priority=everyone.priority.intersection(there), joins=True
        )

    def evaluations(self, number: int) -> tuple[ClientEvaluation, ...]:
        """Return the clients' measurements of the model after a round."""
        return tuple(_evaluation(row, self.population) for row in self.evaluated[number])


@dataclass(frozen=True)
class Replayed:
    """One replayed round.

    Parameters
    ----------
    record : RoundRecord
        The recorded round.
    rules : Rules
        The rules of the round, by the settings of its leg.
    population : Population
        The population of the round.
    rows : sequence
        The round's rows of the clients table.
    call : Call
        The clients that the selection asks.
    called_by_rule : bool
        Whether the selection made ``call``. False if its draws need data that the records lack;
        ``call`` is then the recorded one.
    objective : Objective
        F and its accuracy, from the evaluations after the previous round.
    round : Round
        The decisions.
    decidable : bool
        Whether the records determine the weights.
    refused : str or None
        The reason for refusing the whole round; None if it was not refused.
    """

    record: RoundRecord
    rules: Rules
    population: Population
    rows: Sequence[Row]
    call: Call
    called_by_rule: bool
    objective: Objective
    round: Round
    decidable: bool
    refused: str | None = None

    @property
    def report(self) -> TrainReport:
        """Every decision of the round."""
        return self.round.report

    @property
    def statuses_known(self) -> bool:
        """Whether the records determine what became of each usable update.

        They do not if the server refused weights that they do not determine: an update that had
        none is not among those refused.
        """
        return self.decidable or self.refused in (None, NOT_SOLVED)


class UndecidableError(Exception):
    """The records of a round contradict each other, so that the rules cannot decide it."""

    def __init__(self, number: int, problem: str) -> None:
        super().__init__(problem)
        self.number = number


@contextmanager
def refusing_damage(directory: Path) -> Iterator[None]:
    """Raise RunError, with the run's name, for errors that only contradictory records can cause.

    The reader checks each record by itself. This context covers records that do not fit together,
    on which the rules raise other errors.
    """
    try:
        with np.errstate(all="ignore"):  # records hold any number
            yield
    except FedQuorumError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise RunError(
            f"{directory}: cannot be replayed: {type(error).__name__}: {shown(error)}"
        ) from None


def read_recorded(directory: Path, *, trust: bool = False) -> Recorded:
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
    table = {name: column.to_pylist() for name, column in _population(run).items()}
    _refuse_contradictions(run, table)
    clients = table["client"]
    joined = table["joined_round"]
    unseen = frozenset(compress(clients, table["held_out"]))
    rows = zip(clients, table["priority"], table["priority_weight"], strict=True)
    weights = {client: weight for client, has_priority, weight in rows if has_priority}
    try:
        population = Population(
            tuple(k for k in clients if k not in unseen),
            frozenset(weights),
            {k: weight for k, weight in weights.items() if weight != 1.0},
            unseen=tuple(sorted(unseen)),
        )
    except ValueError as error:
        raise RunError(f"{run.directory}/population.parquet: {error}") from None
    return Recorded(
        run=run,
        population=population,
        rates=_rates(run, table),
        joined={} if None in joined else dict(zip(clients, joined, strict=True)),
        rows=RowsByRound.of(read_table(run.directory / "clients")),
        evaluated=RowsByRound.of(read_table(run.directory / "evaluations")),
        summary=run.summary,
        trusted=trust,
        hooks=recorded_hooks(table),
    )


def _refuse_contradictions(run: Run, table: Mapping[str, Sequence[Any]]) -> None:
    """Refuse a table of clients that says something of some clients alone, or two things of one."""
    place = f"{run.directory / POPULATION}"
    for name in ("base_rate", "joined_round"):  # of the rates of being counted some may lack
        values = table[name]
        if None in values and any(value is not None for value in values):
            raise RunError(f"{place}: {name} must be there for all clients or for none")
    rows = zip(table["client"], table["priority"], table["priority_weight"], strict=True)
    for client, has_priority, weight in rows:
        if has_priority != (weight > 0):
            raise RunError(
                f"{place}: client {client} must have priority and a weight above 0, or neither, "
                f"got {weight:g}"
            )


def _rates(run: Run, table: Mapping[str, Sequence[Any]]) -> SimulatedRates | None:
    """Return how often each client was available, None where nobody knew it."""
    found, base = table["participation_rate"], table["base_rate"]
    rates = found if None in base else base
    if None in rates:
        return None
    try:
        pattern = pattern_of(run.config.get("availability") or {})
    except (AttributeError, ParameterError) as error:
        raise RunError(f"{run.directory}/config.yaml: availability: {error}") from None
    known = SimulatedRates(np.array(rates, dtype=np.float64), pattern)
    counted = np.array([math.nan if rate is None else rate for rate in found])
    there = known.available > 0
    return replace(known, counted=np.divide(counted, known.available, where=there, out=there * 1.0))


def rules_of(recorded: Recorded, config: Mapping[str, Any]) -> Rules:
    """Return the rules of a run, or of one of its legs, from the settings.

    Raises
    ------
    RunError
        If the settings do not define rules.
    """
    optimizer = config.get("server_optimizer", {"name": "sgd"})
    try:
        facts = _facts(recorded, config)
        custom = rule_at if recorded.trusted else no_rule_at
        return build(config["strategy"], optimizer, facts, custom=custom)
    except KeyError as error:
        raise RunError(f"{recorded.run.directory}/config.yaml: {error} is missing") from None
    except ParameterError as error:
        setting = error.parameter
        if not setting.startswith("server_optimizer"):
            setting = f"strategy.{setting}"
        text = error.told_of(setting)
        raise RunError(f"{recorded.run.directory}/config.yaml: {text}") from None
    except (AttributeError, ArithmeticError, TypeError, ValueError) as error:
        raise RunError(f"{recorded.run.directory}/config.yaml: {error}") from None


def _facts(recorded: Recorded, config: Mapping[str, Any]) -> RunFacts:
    """Return what the rules take from the run; a drop-in strategy was told all that it knew."""
    rates = recorded.rates
    seed = int(config.get("seed", recorded.run.seed))
    if DROP_IN in config:
        return RunFacts(num_rounds=config[DROP_IN].get("num_rounds"), seed=seed)
    return RunFacts(
        num_rounds=int(config.get("rounds") or len(recorded.run.rounds)),
        seed=seed,
        rates=None if rates is None else rates.by_client,
        clients=recorded.population.clients,
        hooks=recorded.hooks,
        pattern=None if rates is None else rates.pattern,
        client_rate=ClientRate.of(config.get("client") or {}),
        priority=recorded.population.priority,
        counted=_counted(recorded),
    )


def _counted(recorded: Recorded) -> Mapping[int, float] | None:
    """Return the probability that an available client counts, if a virtual clock decides on it.

    Without a virtual clock it follows from the selection.
    """
    clock = recorded.run.settings.get("response_time.name", "none")
    if recorded.rates is None or clock == "none":
        return None
    return recorded.rates.counted_by_client


def replay(recorded: Recorded) -> Iterator[Replayed]:
    """Yield the decisions of every round for which the clients table has rows.

    Raises
    ------
    UndecidableError
        If the rules refuse the records of a round.
    """
    run = recorded.run
    leg = run.leg_of(1)
    rules = rules_of(recorded, leg.config)
    before = recorded.population_in(0)
    state = RoundState.initial(rules, before)
    for record in run.rounds:
        if run.leg_of(record.round) is not leg:
            leg = run.leg_of(record.round)
            rules = rules_of(recorded, leg.config)
        population = recorded.population_in(record.round)
        if population.clients != before.clients:
            state, before = state.grown(rules, before, population), population
        evaluations = recorded.evaluations(record.round - 1)
        everyone = rules.hooks.before_round is not None
        told = told_after(state.told, evaluations, everyone=everyone)
        state = replace(state, told=told)
        rows = recorded.rows[record.round]
        if not rows and record.selected > 0:
            return
        try:
            replayed = _replay_round(recorded, rules, record, rows, state)
        except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise UndecidableError(record.round, str(error)) from None
        yield replayed
        state = replayed.round.following


def _replay_round(
    recorded: Recorded,
    rules: Rules,
    record: RoundRecord,
    rows: Sequence[Row],
    state: RoundState,
) -> Replayed:
    population = recorded.population_in(record.round)
    call, by_rule = _call(rules, record, rows, population, _told(recorded, record, state.told))
    call = replace(call, clients_decide=not recorded.standard)
    refused = record.refused
    decidable = not rules.weighting.needs_updates
    decided = decide(
        rules,
        population,
        state,
        server_round=record.round,
        call=call,
        objective=(
            None
            if recorded.standard
            else Objective(
                record.global_loss, record.global_accuracy, record.stale_clients, record.unmeasured
            )
        ),
        answers=_answers(rows, population, record),
        robustness=Robustness(max_weight=_max_weight(recorded.run, record.round)),
        weighs=decidable and refused != NOT_SOLVED,
    )
    recorded_decisions = tuple(_decision(row) for row in rows if _usable(row))
    decided = replace(decided, decided=replace(decided.decided, recorded=recorded_decisions))
    if refused is not None:
        decided = decided.refused(refused)
    return Replayed(
        record=record,
        rules=rules,
        population=population,
        rows=rows,
        call=call,
        called_by_rule=by_rule,
        objective=(
            decided.report.objective
            if recorded.standard
            else _objective(rules, recorded, record, call)
        ),
        round=decided,
        decidable=decidable,
        refused=refused,
    )


def _told(recorded: Recorded, record: RoundRecord, told: Told) -> Told:
    """Return what the selection was told; where clients may join, also who was connected."""
    if not recorded.joined:
        return told
    there = frozenset(recorded.population_in(record.round).clients)
    return replace(told, present=there.difference(record.disconnected))


def _max_weight(run: Run, number: int) -> float | None:
    value: float | None = run.leg_of(number).settings.get("robustness.max_weight")
    return value


def _call(
    rules: Rules,
    record: RoundRecord,
    rows: Sequence[Row],
    population: Population,
    told: Told,
) -> tuple[Call, bool]:
    draws = record.priority_data
    if draws is not None:
        data = sum(told.examples.get(k, 0.0) for k in population.priority)
        if not math.isclose(data, draws, rel_tol=1e-9):
            # Some priority client came late: what the server knew of it then is not recorded.
            count = {
                row["client"]: row["num_draws"] for row in rows if row["num_draws"] is not None
            }
            clients = tuple(row["client"] for row in rows)
            criterion = getattr(rules.selection, "criterion", "loss")
            drawn = Draws(count, draws)
            call = Call(clients, record.epsilon, criterion, drawn, t=record.round - 1)
            return call, False
    return rules.call(record.round - 1, population, told), True


def _objective(rules: Rules, recorded: Recorded, record: RoundRecord, call: Call) -> Objective:
    """Return F(w_t), of the clients that the round asks where the selection says so."""
    asked = frozenset(call.clients)
    # Where clients join, whom the round would ask was not settled when they measured.
    # Candidates measure before the round chooses among them.
    selection = rules.selection
    chosen = rules.needs_objective and selection.samples_objective
    needed = chosen and rules.hooks.before_round is None and not recorded.joined
    evaluations = recorded.evaluations(record.round - 1)
    compared = selection.compared(frozenset(e.client for e in evaluations))
    return priority_objective(
        [e for e in evaluations if e.client in compared and (not needed or e.client in asked)],
        [_last_measured(recorded, client, record.round - 1) for client in record.stale_clients],
    )


def _last_measured(recorded: Recorded, client: int, before: int) -> ClientEvaluation:
    """Return what a client measured last before an evaluation that it missed."""
    for number in sorted((n for n in recorded.evaluated.places if n < before), reverse=True):
        for evaluation in recorded.evaluations(number):
            if evaluation.client == client and evaluation.measured:
                return evaluation
    raise ValueError(f"client {client} is stale, but has measured nothing before round {before}")


def _usable(row: Row) -> bool:
    return row["num_examples"] is not None


def _answers(rows: Sequence[Row], population: Population, record: RoundRecord) -> RoundAnswers:
    """Return what came back, of which the updates' inner products have their norms alone."""
    norms = [row["update_norm"] for row in rows if _usable(row)]
    squared = np.square([math.nan if norm is None else norm for norm in norms])
    return RoundAnswers(
        tuple(
            ClientAnswer(
                row["client"],
                "trained",
                num_examples=row["num_examples"],
                loss=row["loss"],
                accuracy=row["accuracy"],
            )
            if _usable(row)
            else ClientAnswer(row["client"], row["status"], row["reason"])
            for row in rows
        ),
        known=_known(population, record),
        gram=lambda: np.diag(squared),
        unknown=record.unregistered,
    )


def _known(population: Population, record: RoundRecord) -> IntArray:
    """Return the clients whose nodes the server had met."""
    if not record.unregistered:
        return population.ascending
    return np.setdiff1d(population.ascending, np.array(record.unregistered, dtype=np.int64))


def _decision(row: Row) -> ClientDecision:
    """Return what is recorded of a client whose update reached the rules."""
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


def _evaluation(row: Row, population: Population) -> ClientEvaluation:
    def value(name: str) -> float:
        return math.nan if row[name] is None else float(row[name])

    return ClientEvaluation(
        client=row["client"],
        priority_weight=population.priority_weight(row["client"]),
        num_examples=value("num_examples"),
        loss=value("loss"),
        accuracy=value("accuracy"),
        test_num_examples=value("test_num_examples"),
        test_loss=value("test_loss"),
        test_accuracy=value("test_accuracy"),
        test_metric=value("test_metric"),
        validation_num_examples=value("validation_num_examples"),
        validation_loss=value("validation_loss"),
        validation_accuracy=value("validation_accuracy"),
        validation_metric=value("validation_metric"),
        held_out=row["client"] in population.unseen,
    )


def _population(run: Run) -> Mapping[str, pa.ChunkedArray]:
    """Return the columns of the table of clients."""
    directory = run.directory
    if RunFolder(directory).identity(POPULATION) is None:
        if not run.rounds:
            raise RunError(f"{directory} has no finished round: there is nothing to replay")
        raise RunError(
            f"expected a file of a run, got {directory / POPULATION} (No such file or directory)"
        )
    table = read_population(directory)
    return {name: table[name] for name in table.column_names}
