"""A run decided once more, from its records alone.

The rules are pure: what they decided follows from the settings, the clients and what these
answered, and their state from the rounds before. ``replay`` builds the rules from
``config.yaml`` and hands them, round by round, the answers in ``clients/`` and the measurements
in ``evaluations/``. No data, no model and no client are needed.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from conf import Settings
from conf.compose import settings_of
from conf.errors import RunError, SettingsError
from conf.schema.strategy import ComposedSettings
from server_app.build import build_strategy
from server_app.records.round_record import RoundRecord
from server_app.records.tables import CLIENTS_SCHEMA, EVALUATIONS_SCHEMA, POPULATION_SCHEMA
from server_app.report.runs import Run, load_run, read_bytes, read_parts
from strategies import ComposedStrategy
from strategies.composition import divisor
from strategies.decision import admit, decide
from strategies.regret import kl_divergence
from strategies.report import ClientEvaluation, priority_objective
from strategies.types import (
    Admission,
    Call,
    Draws,
    FloatArray,
    GlobalMeasure,
    Population,
    Responses,
    Weights,
)

Row = Mapping[str, Any]


@dataclass(frozen=True)
class RowsByRound:
    """A table sorted by round and client, whose rows are made when a round is asked for."""

    table: pa.Table
    places: Mapping[int, tuple[int, int]]

    @classmethod
    def of(cls, table: pa.Table) -> "RowsByRound":
        """Return a table's rows; its columns have ``round`` and ``client``."""
        ordered = table.sort_by([("round", "ascending"), ("client", "ascending")])
        places, begin = {}, 0
        for found in pc.value_counts(ordered["round"]).to_pylist():
            places[found["values"]] = (begin, found["counts"])
            begin += found["counts"]
        return cls(ordered, places)

    def __getitem__(self, number: int) -> Sequence[Row]:
        """Return the rows of a round, ascending by client; none where there are none."""
        begin, count = self.places.get(number, (0, 0))
        rows: list[Row] = self.table.slice(begin, count).to_pylist()
        return rows


@dataclass(frozen=True)
class Recorded:
    """All that a run left behind about its decisions.

    Parameters
    ----------
    run : Run
        Manifest, settings by dotted key, and rounds.
    settings : Settings
        The settings, typed.
    population : Population
        All clients.
    rates : sequence of float or None
        p_n by client id where a simulation knew it.
    rows : RowsByRound
        Those of ``clients/``.
    evaluated : RowsByRound
        Those of ``evaluations/``; round 0 is the first model.
    summary : mapping
        The manifest's, empty while the run goes on.
    """

    run: Run
    settings: Settings
    population: Population
    rates: Sequence[float] | None
    rows: RowsByRound
    evaluated: RowsByRound
    summary: Mapping[str, Any] = field(default_factory=dict)

    def evaluations(self, number: int) -> tuple[ClientEvaluation, ...]:
        """Return what the clients measured of the model after a round."""
        return tuple(_evaluation(row, self.population) for row in self.evaluated[number])


@dataclass(frozen=True)
class Replayed:
    """One round, decided again.

    Parameters
    ----------
    record : RoundRecord
        The round as it is recorded.
    rows : sequence
        Its rows of the clients table.
    call : Call
        Whom the selection asks.
    called_by_rule : bool
        False where the selection cannot be asked, as its draws need data that the records lack;
        ``call`` is then the recorded one.
    measure : GlobalMeasure
        F and its accuracy, from the evaluations after the round before.
    usable : sequence
        The rows whose updates reached the rules.
    responses : Responses
        What the rules were given; its inner products have the updates' norms on the diagonal
        and nothing elsewhere.
    admission : Admission
        What is admitted of each.
    state, following : Any
        The weighting's state before and after; ``following`` is None where ``weights`` is.
    weights : Weights or None
        What the weighting decides; None where the records lack what it needs.
    divergence : float or None
        KL(p || w).
    divisor : str
        What the weights are divided by, in words.
    """

    record: RoundRecord
    rows: Sequence[Row]
    call: Call
    called_by_rule: bool
    measure: GlobalMeasure
    usable: Sequence[Row]
    responses: Responses
    admission: Admission
    state: Any
    following: Any
    weights: Weights | None
    divergence: float | None
    divisor: str


class UndecidableError(Exception):
    """What is recorded of a round is nothing that the rules can decide on."""

    def __init__(self, number: int, problem: str) -> None:
        super().__init__(problem)
        self.number = number


def weighting_name(recorded: Recorded) -> str:
    """Return the name of the weighting, which is that of the strategy where it has a name."""
    own = recorded.settings.strategy
    return own.weighting.name if isinstance(own, ComposedSettings) else own.name


def needs_inner_products(recorded: Recorded) -> bool:
    """Say whether the weights follow from the updates themselves, which no record holds."""
    return weighting_name(recorded) == "fedmgda"


def read_recorded(directory: Path) -> Recorded:
    """Return the records of a run.

    Raises
    ------
    RunError
        If a record is missing or damaged, or the run is older than the records that it takes.
    """
    run = load_run(directory)
    try:
        settings = settings_of(read_bytes(run.directory / "config.yaml").decode())
    except (SettingsError, UnicodeDecodeError) as error:
        raise RunError(f"{run.directory}/config.yaml: {error}") from None
    table = _population(run.directory / "population.parquet").to_pylist()
    weights = {r["client"]: r["priority_weight"] for r in table if r["priority"]}
    rates = [row["participation_rate"] for row in table]
    try:
        population = Population(
            tuple(row["client"] for row in table),
            frozenset(weights),
            {k: weight for k, weight in weights.items() if weight != 1.0},
        )
    except ValueError as error:
        raise RunError(f"{run.directory}/population.parquet: {error}") from None
    manifest = json.loads(read_bytes(run.directory / "manifest.json"))
    return Recorded(
        run=run,
        settings=settings,
        population=population,
        rates=None if None in rates else rates,
        rows=RowsByRound.of(_table(run.directory / "clients", CLIENTS_SCHEMA)),
        evaluated=RowsByRound.of(_table(run.directory / "evaluations", EVALUATIONS_SCHEMA)),
        summary=manifest.get("summary") or {},
    )


def replay(recorded: Recorded) -> Iterator[Replayed]:
    """Decide round after round again, as far as there are rows of the clients.

    Raises
    ------
    UndecidableError
        If the rules refuse what is recorded of a round.
    """
    strategy = _strategy(recorded)
    examples = _examples(recorded.evaluations(0))
    state, covered = strategy.weighting.init(recorded.population), None
    for record in recorded.run.rounds:
        rows = recorded.rows[record.round]
        if not rows and record.asked > 0:
            return
        try:
            replayed, covered = _replay_round(
                recorded, strategy, record, rows, state=state, covered=covered, examples=examples
            )
        except (ValueError, RuntimeError, KeyError, IndexError) as error:
            raise UndecidableError(record.round, str(error)) from None
        yield replayed
        state = state if replayed.weights is None else replayed.following
        examples |= _examples(recorded.evaluations(record.round))


def _replay_round(
    recorded: Recorded,
    strategy: ComposedStrategy[Any],
    record: RoundRecord,
    rows: Sequence[Row],
    *,
    state: Any,
    covered: FloatArray | None,
    examples: dict[int, float],
) -> tuple[Replayed, FloatArray | None]:
    """Decide one round; ``examples``, D_k as far as known, takes up what the clients tell."""
    population = recorded.population
    call, by_rule = _call(strategy, record, rows, population, examples)
    measure = _measure(strategy, recorded.evaluations(record.round - 1), call)
    usable = [row for row in rows if row["num_examples"] is not None]
    examples |= {row["client"]: float(row["num_examples"]) for row in usable}
    silent = [row["client"] for row in rows if row["status"] == "silent"]
    responses = replace(
        _responses(usable, population, record),
        silent=np.array(silent, dtype=np.int64),
        examples=examples,
    )
    recorded_measure = GlobalMeasure(record.global_loss, record.global_accuracy)
    weighting, following, weights = strategy.weighting, None, None
    if needs_inner_products(recorded):
        admission = admit(strategy.selection, weighting, call, recorded_measure, responses)
    else:
        decision = decide(
            strategy.selection,
            weighting,
            population,
            call=call,
            measure=recorded_measure,
            responses=responses,
            state=state,
            covered=covered,
        )
        admission, weights = decision.admission, decision.weights
        following, covered, responses = decision.state, decision.covered, decision.responses
    replayed = Replayed(
        record=record,
        rows=rows,
        call=call,
        called_by_rule=by_rule,
        measure=measure,
        usable=usable,
        responses=responses,
        admission=admission,
        state=state,
        following=following,
        weights=weights,
        divergence=_divergence(weights, population, examples),
        divisor=divisor(strategy.selection, weighting),
    )
    return replayed, covered


def _strategy(recorded: Recorded) -> ComposedStrategy[Any]:
    try:
        return build_strategy(recorded.settings, recorded.population, recorded.rates)
    except SettingsError as error:
        raise RunError(f"{recorded.run.directory}/config.yaml: {error}") from None


def _call(
    strategy: ComposedStrategy[Any],
    record: RoundRecord,
    rows: Sequence[Row],
    population: Population,
    examples: Mapping[int, float],
) -> tuple[Call, bool]:
    draws = record.priority_data
    if draws is not None:
        data = sum(examples.get(k, 0.0) for k in population.priority)
        if not math.isclose(data, draws, rel_tol=1e-9):
            # Some priority client came late: what the server knew of it then is not recorded.
            count = {row["client"]: row["draws"] for row in rows if row["draws"] is not None}
            clients = tuple(row["client"] for row in rows)
            criterion = getattr(strategy.selection, "criterion", "loss")
            return Call(clients, record.epsilon, criterion, Draws(count, draws)), False
    return strategy.selection.call(record.round - 1, population, examples), True


def _measure(
    strategy: ComposedStrategy[Any], evaluations: Sequence[ClientEvaluation], call: Call
) -> GlobalMeasure:
    """Return F(w_t) of the clients that the round asks; of all where no round needs F."""
    asked = frozenset(call.clients)
    needed = strategy.selection.measures
    return priority_objective([e for e in evaluations if not needed or e.client in asked])


def _responses(usable: Sequence[Row], population: Population, record: RoundRecord) -> Responses:
    def column(name: str) -> FloatArray:
        values = [math.nan if row[name] is None else row[name] for row in usable]
        return np.array(values, dtype=np.float64)

    norms = column("update_norm")
    clients = [row["client"] for row in usable]
    known = np.setdiff1d(population.ascending, np.array(record.unknown, dtype=np.int64))
    return Responses(
        client=np.array(clients, dtype=np.int64),
        priority_weight=np.array([population.priority_weight(k) for k in clients]),
        num_examples=column("num_examples"),
        loss=column("loss"),
        accuracy=column("accuracy"),
        known=known,
        gram=lambda: np.diag(norms * norms),
    )


def _divergence(
    weights: Weights | None, population: Population, examples: Mapping[int, float]
) -> float | None:
    if weights is None or weights.mixing is None:
        return None
    if not set(population.clients) <= examples.keys():
        return None
    data = np.array([examples[k] for k in population.ascending.tolist()])
    return kl_divergence(weights.mixing, data / data.sum())


def _examples(evaluations: Sequence[ClientEvaluation]) -> dict[int, float]:
    """Return D_k of the clients that measured their training part."""
    return {e.client: e.num_examples for e in evaluations if not math.isnan(e.loss)}


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
    )


def _population(path: Path) -> pa.Table:
    if not path.is_file():
        raise RunError(
            f"expected a file of a run, got {path} (No such file or directory); runs of older "
            "versions lack it and cannot be decided again"
        )
    try:
        return pq.read_table(path).select(POPULATION_SCHEMA.names).cast(POPULATION_SCHEMA)
    except (pa.ArrowException, KeyError, OSError, ValueError) as error:
        raise RunError(f"{path}: {' '.join(str(error).split())}") from None


def _table(folder: Path, schema: pa.Schema) -> pa.Table:
    table = read_parts(folder)
    if table.num_columns == 0:
        return schema.empty_table()
    try:
        return table.select(schema.names).cast(schema)
    except (pa.ArrowException, KeyError, ValueError) as error:
        raise RunError(f"{folder}: {' '.join(str(error).split())}") from None
