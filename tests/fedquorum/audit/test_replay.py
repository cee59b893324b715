"""Tests that generated decisions are recorded, restored bit by bit, and replayed."""

import math
import random
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import astuple, dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from fedquorum.audit.check import audit_run
from fedquorum.audit.replay import DROP_IN_KEY, read_audit_input
from fedquorum.client.gate import should_train
from fedquorum.errors import ParameterError
from fedquorum.records.callback import FinishedRound
from fedquorum.records.reader import load_run, read_table
from fedquorum.records.round_record import RoundRecord, build_round_record
from fedquorum.records.writer import RunWriter
from fedquorum.registry import ALL_SELECTIONS, ALL_WEIGHTINGS, build_rules
from fedquorum.rules.composition import RuleSet
from fedquorum.rules.decisions import (
    ClientDecision,
    ClientEvaluation,
    compute_priority_objective,
    update_reports,
)
from fedquorum.rules.participation import PARTICIPATIONS
from fedquorum.rules.robustness import Robustness
from fedquorum.rules.round import (
    NOT_FINITE,
    NOT_SOLVED,
    WEIGHT_EXCEEDS_BOUND,
    ClientOutcome,
    RoundDecision,
    RoundOutcomes,
    RoundState,
    decide_round,
)
from fedquorum.rules.rule import RunContext
from fedquorum.rules.selection.base import samples_objective, select_objective_clients
from fedquorum.rules.types import Objective, Population, RoundPlan

from tests.cases import sample_cases
from tests.fedquorum.records.made import IDENTITY

K, ROUNDS, METRIC = 6, 5, "r2"
POPULATION = Population.from_size(K, (0, 1, 4))
EVERYONE = np.arange(K)

TINY, HUGE = 5e-324, 1.7e308
COUNTED = (0.0, 0.0, TINY, 1e-300, 1e-12, 0.3, 1.0, 1.0, 2.0, 1e15)
"""Losses that rules may read."""

ANY = (*COUNTED, None, math.nan, math.inf, -math.inf, -0.0, 1e120, -1e120, HUGE, 2**60 + 1)
"""Losses and accuracies for rules that do not read them."""

WHOLE = (1, 10, 10, 250, 10**12)
AMOUNTS = (*WHOLE, 0.0, -0.0, TINY, 1e-300, 0.5, 2.0**53 + 2, 2**60 + 1, 1e120, 1e300)
"""Amounts of data, of this project's clients and of other clients."""

LOSSES = (0.0, TINY, 1e-300, 0.3, 1.0, 1.0, 1e15, math.inf, math.nan)
SCORES = (0.0, 0.5, 1.0, math.nan, TINY)
LENGTHS = (0.0, 1e-160, 1e-130, 1e-8, 1.0, 1.0, 1e10)
TEXTS = (
    *("out of memory", "", "\x1b[31m\ud800\u2028", "x" * 100_000, "null", "nan"),
    *(NOT_FINITE, f"{NOT_SOLVED}: x", WEIGHT_EXCEEDS_BOUND),
)


@dataclass(frozen=True)
class Case:
    """The settings of a run, and its rules."""

    config: Mapping[str, Any]
    rules: RuleSet

    @property
    def standard(self) -> bool:
        """Whether the clients use only Flower's standard protocol."""
        return DROP_IN_KEY in self.config


OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "epsilon_gate": {"epsilon": 1.0, "warmup_rounds": 1},
    "maxfl": {"requirement": [0.0, 1.0, math.inf, 1e120, 0.3, 1.0]},
    "known_statistics": {"probabilities": [1e-300, 0.5, 1.0, 1e-120, 0.5, 0.5]},
}
"""The options of rules beside their defaults."""


def make_part(key: str, **options: Any) -> dict[str, Any]:
    return {"name": key, **OPTIONS.get(key, {}), **options}


def make_case(
    selection: str, weighting: Mapping[str, Any], participation: str, *, standard: bool
) -> Case | None:
    """Return a composition on a sample of the clients, or on all if it needs them; or None."""
    selection_settings = make_part(selection)
    if selection == "power_of_choice":
        selection_settings["loss_source"] = "reported" if standard else "evaluated"
    strategy = {
        "name": "composed",
        "selection": selection_settings,
        "weighting": dict(weighting),
        "participation": make_part(participation),
    }
    context = RunContext(ROUNDS, IDENTITY.seed, clients=POPULATION.clients)
    for fraction in (0.7, 1.0):
        config: dict[str, Any] = {
            "seed": IDENTITY.seed,
            "rounds": ROUNDS,
            "strategy": {**strategy, "fraction": fraction},
            "server_optimizer": {"name": "sgd"},
            "evaluation": {"metric": METRIC},
            **({DROP_IN_KEY: {"protocol": "standard", "num_rounds": ROUNDS}} if standard else {}),
        }
        with suppress(ParameterError):
            return Case(
                config, build_rules(config["strategy"], config["server_optimizer"], context)
            )
    return None


def list_cases(weighting: str) -> list[Case]:
    """Return every composition with a weighting, for each protocol."""
    variants = [make_part(weighting)]
    if weighting == "qfedavg":
        variants.append(make_part(weighting, lipschitz=10.0))
    compositions = product(ALL_SELECTIONS, variants, ("none", *PARTICIPATIONS), (False, True))
    cases = [make_case(*parts, standard=standard) for *parts, standard in compositions]
    return [case for case in cases if case is not None]


@dataclass(frozen=True)
class RandomRun:
    """Runs a server whose clients send random valid replies."""

    case: Case
    rng: random.Random

    def evaluate(self) -> tuple[ClientEvaluation, ...]:
        """Return the clients' evaluations of a model; some do not reply."""
        if self.case.standard:
            return ()
        pick, rules = self.rng.choice, self.case.rules
        evaluates_all = rules.hooks.before_round is not None
        nothing = (math.nan,)
        return tuple(
            ClientEvaluation(
                k,
                POPULATION.get_priority_weight(k),
                pick(WHOLE),
                pick(LOSSES if evaluates_all or k in POPULATION.priority else nothing),
                pick(SCORES if evaluates_all or k in POPULATION.priority else nothing),
                pick((math.nan, *WHOLE)),
                pick(LOSSES),
                pick(SCORES),
                pick((*SCORES, -1e15, 1e15)),
            )
            for k in range(K)
            if self.rng.random() < 0.9
        )

    def compute_objective(
        self, plan: RoundPlan, evaluated: tuple[ClientEvaluation, ...]
    ) -> Objective | None:
        """Return F of the broadcast model, None if it follows from the outcomes."""
        if self.case.standard:
            return None
        rules, selection = self.case.rules, self.case.rules.selection
        selected = select_objective_clients(selection, POPULATION.priority)
        if rules.needs_objective and samples_objective(selection) and not rules.hooks.before_round:
            selected = selected.intersection(plan.clients)
        reported = [e for e in evaluated if e.client in selected]
        missing = selected - {e.client for e in reported if e.has_objective_loss}
        return replace(compute_priority_objective(reported), missing_clients=tuple(sorted(missing)))

    def make_outcome(
        self, client: int, plan: RoundPlan, objective: Objective | None
    ) -> ClientOutcome:
        """Return the outcome of a selected client."""
        pick, text = self.rng.choice, self.rng.choice(TEXTS)
        if self.rng.random() < 0.2:
            return ClientOutcome(client, pick(("failed", "rejected", "unavailable")), text)
        reads_losses = self.case.rules.needs_losses or not self.case.standard
        outcome = ClientOutcome(
            client,
            "trained",
            num_examples=pick(AMOUNTS if self.case.standard else WHOLE),
            loss=pick(COUNTED if reads_losses else ANY),
            accuracy=pick(ANY if self.case.standard else SCORES[:3]),
            note=pick((None, None, text)),
            seconds=pick((None, 0.0, 1e15)),
        )
        if objective is None or plan.epsilon is None or client in POPULATION.priority:
            return outcome
        trains = should_train(
            plan.criterion,
            plan.epsilon,
            global_loss=objective.loss,
            global_accuracy=objective.accuracy,
            loss=math.nan if outcome.loss is None else outcome.loss,
            accuracy=math.nan if outcome.accuracy is None else outcome.accuracy,
        )
        return outcome if trains else ClientOutcome(client, "declined")

    def decide(
        self, number: int, state: RoundState, plan: RoundPlan, objective: Any
    ) -> RoundDecision:
        """Return a round, rejected if the model would not be finite, and sometimes at random."""
        outcomes = tuple(self.make_outcome(k, plan, objective) for k in sorted(plan.clients))
        count = sum(outcome.is_usable for outcome in outcomes)
        lengths = np.array([self.rng.choice(LENGTHS) for _ in range(count)]).reshape(-1, 1)
        updates = np.random.default_rng(number).normal(size=(count, 3)) * lengths
        decided = decide_round(
            self.case.rules,
            POPULATION,
            state,
            server_round=number,
            plan=replace(plan, clients_apply_gate=not self.case.standard),
            objective=objective,
            outcomes=RoundOutcomes(outcomes, EVERYONE, lambda: updates @ updates.T),
            robustness=Robustness(),
        )
        if not np.isfinite(decided.weight).all():
            return decided.reject(NOT_FINITE)
        if self.rng.random() < 0.1 and decided.report.rejection_reason is None:
            return decided.reject(self.rng.choice((NOT_FINITE, WEIGHT_EXCEEDS_BOUND)))
        weights = decided.trace.weights
        if decided.report.is_empty or weights is None or weights.update_norm is None:
            return decided
        norm = float(np.linalg.norm(decided.weight @ updates))
        return replace(decided, report=replace(decided.report, update_norm=norm))

    def run(
        self, directory: Path
    ) -> tuple[list[RoundRecord], list[RoundDecision], list[tuple[ClientEvaluation, ...]]]:
        """Record a run, and return its rounds, and its evaluations from round 0."""
        rules = self.case.rules
        records: list[RoundRecord] = []
        rounds: list[RoundDecision] = []
        state, evaluated = RoundState.initial(rules, POPULATION), self.evaluate()
        all_evaluations = [evaluated]
        text = yaml.safe_dump(dict(self.case.config))
        identity = replace(IDENTITY, strategy="composed", rounds=ROUNDS)
        with RunWriter(
            directory, identity, text, regret_bound=rules.compute_regret_bound
        ) as writer:
            writer.save_population(POPULATION, None)
            initial = evaluated
            for number in range(1, ROUNDS + 1):
                reports = update_reports(
                    state.reports, evaluated, all_clients=rules.hooks.before_round is not None
                )
                state = replace(state, reports=reports)
                plan = rules.plan_round(number - 1, POPULATION, reports)
                decision = self.decide(number, state, plan, self.compute_objective(plan, evaluated))
                evaluated = self.evaluate()
                all_evaluations.append(evaluated)
                record = build_round_record(
                    decision.report,
                    evaluated,
                    bytes_down=2**53,
                    bytes_up=0,
                    seconds=self.rng.choice((0.0, TINY, 1e15)),
                    state_bytes=0,
                    get_rates=None,
                    metric=METRIC,
                    all_evaluated=True,
                    previous=records[-1] if records else None,
                )
                writer.end_round(FinishedRound(record, decision.report, evaluated, initial))
                initial = ()
                state = decision.next_state
                records.append(record)
                rounds.append(decision)
        return records, rounds, all_evaluations


def to_bits(value: Any) -> Any:
    """Return a value that is equal for equal bits, with a single NaN."""
    if isinstance(value, Mapping):
        return {key: to_bits(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_bits(item) for item in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "nan" if math.isnan(value) else struct.pack("<d", value)
    return value


def drop_reason(decision: ClientDecision) -> dict[str, Any]:
    """Return a decision without its reason, which is truncated and sanitized."""
    return {
        item.name: getattr(decision, item.name)
        for item in fields(decision)
        if item.name != "reason"
    }


@pytest.mark.parametrize("weighting", ALL_WEIGHTINGS)
def test_random_decisions_are_restored_and_replayed(tmp_path: Path, weighting: str) -> None:
    """Every rule gets losses of 0, NaN, infinity, denormal and huge numbers, and any text."""
    cases = list_cases(weighting)
    assert cases
    for index in sample_cases(range(len(cases)), 12):
        case = cases[index]
        directory = tmp_path / str(index)
        random_run = RandomRun(case, random.Random(f"{weighting} {index}"))
        with np.errstate(all="ignore"):
            records, rounds, all_evaluations = random_run.run(directory)
            found = audit_run(directory)
        assert [str(problem) for problem in found.mismatches] == [], case.config
        assert found.num_rounds == ROUNDS
        run = load_run(directory)
        assert [to_bits(record.to_json()) for record in run.rounds] == [
            to_bits(record.to_json()) for record in records
        ]
        table = read_table(directory / "clients").to_pylist()
        rows = {(row["round"], row["client"]): row for row in table}
        for replayed in rounds:
            for decision in replayed.report.decisions:
                row = rows.pop((replayed.report.server_round, decision.client))
                if row["data_weight"] is not None:
                    row["num_examples"] = row["data_weight"]
                given = drop_reason(decision)
                assert to_bits({name: row[name] for name in given}) == to_bits(given)
        assert rows == {}
        recorded = read_audit_input(directory)
        for number, evaluations in enumerate(all_evaluations):
            restored = recorded.get_evaluations(number)
            assert to_bits([astuple(e) for e in restored]) == to_bits(
                [astuple(e) for e in evaluations]
            )
