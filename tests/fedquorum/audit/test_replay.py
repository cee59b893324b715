"""Whatever a round decides is written, read back to the bit, and decided again."""

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
from fedquorum.composition import RuleSet
from fedquorum.decisions import (
    ClientDecision,
    ClientEvaluation,
    compute_priority_objective,
    update_reports,
)
from fedquorum.errors import ParameterError
from fedquorum.named import ALL_SELECTIONS, ALL_WEIGHTINGS, build_rules
from fedquorum.participation import PARTICIPATIONS
from fedquorum.records.reader import load_run, read_table
from fedquorum.records.round_record import RoundRecord, build_round_record
from fedquorum.records.writer import RunWriter
from fedquorum.robustness import Robustness
from fedquorum.round import (
    NOT_FINITE,
    NOT_SOLVED,
    WEIGHT_EXCEEDS_BOUND,
    ClientOutcome,
    RoundDecision,
    RoundOutcomes,
    RoundState,
    decide_round,
)
from fedquorum.rule import RunContext
from fedquorum.types import Objective, Population, RoundPlan

from tests.cases import sample_cases
from tests.fedquorum.records.made import IDENTITY

K, ROUNDS, METRIC = 6, 5, "r2"
POPULATION = Population.from_size(K, (0, 1, 4))
EVERYONE = np.arange(K)

TINY, HUGE = 5e-324, 1.7e308
COUNTED = (0.0, 0.0, TINY, 1e-300, 1e-12, 0.3, 1.0, 1.0, 2.0, 1e15)
"""Losses that rules may be given."""

ANY = (*COUNTED, None, math.nan, math.inf, -math.inf, -0.0, 1e120, -1e120, HUGE, 2**60 + 1)
"""Losses and accuracies that rules are given that do not read them."""

WHOLE = (1, 10, 10, 250, 10**12)
AMOUNTS = (*WHOLE, 0.0, -0.0, TINY, 1e-300, 0.5, 2.0**53 + 2, 2**60 + 1, 1e120, 1e300)
"""Amounts of data: of this project's clients, and of any others."""

MEASURED = (0.0, TINY, 1e-300, 0.3, 1.0, 1.0, 1e15, math.inf, math.nan)
SCORES = (0.0, 0.5, 1.0, math.nan, TINY)
LENGTHS = (0.0, 1e-160, 1e-130, 1e-8, 1.0, 1.0, 1e10)
TEXTS = (
    *("out of memory", "", "\x1b[31m\ud800\u2028", "x" * 100_000, "null", "nan"),
    *(NOT_FINITE, f"{NOT_SOLVED}: x", WEIGHT_EXCEEDS_BOUND),
)


@dataclass(frozen=True)
class Case:
    """The settings of a run, and the rules that they make."""

    config: Mapping[str, Any]
    rules: RuleSet

    @property
    def standard(self) -> bool:
        """Whether the clients know Flower's own protocol alone."""
        return DROP_IN_KEY in self.config


OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "epsilon_gate": {"epsilon": 1.0, "warmup_rounds": 1},
    "maxfl": {"requirement": [0.0, 1.0, math.inf, 1e120, 0.3, 1.0]},
    "known_statistics": {"probabilities": [1e-300, 0.5, 1.0, 1e-120, 0.5, 0.5]},
}
"""What rules are given beside their defaults."""


def part(key: str, **options: Any) -> dict[str, Any]:
    return {"name": key, **OPTIONS.get(key, {}), **options}


def made(
    selection: str, weighting: Mapping[str, Any], participation: str, *, standard: bool
) -> Case | None:
    """Return a composition of a sample of the clients, or of all where it has to be; or None."""
    chosen = part(selection)
    if selection == "power_of_choice":
        chosen["losses"] = "told" if standard else "measured"
    strategy = {
        "name": "composed",
        "selection": chosen,
        "weighting": dict(weighting),
        "participation": part(participation),
    }
    facts = RunContext(ROUNDS, IDENTITY.seed, clients=POPULATION.clients)
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
            return Case(config, build_rules(config["strategy"], config["server_optimizer"], facts))
    return None


def cases(weighting: str) -> list[Case]:
    """Return every composition with a weighting, for each protocol that its clients can have."""
    variants = [part(weighting)]
    if weighting == "qfedavg":
        variants.append(part(weighting, lipschitz=10.0))
    compositions = product(ALL_SELECTIONS, variants, ("none", *PARTICIPATIONS), (False, True))
    found = [made(*chosen, standard=standard) for *chosen, standard in compositions]
    return [case for case in found if case is not None]


@dataclass(frozen=True)
class Player:
    """Plays the server of a run whose clients answer anything that they may."""

    case: Case
    rng: random.Random

    def evaluations(self) -> tuple[ClientEvaluation, ...]:
        """Return what the clients measured of a model; some do not answer."""
        if self.case.standard:
            return ()
        pick, rules = self.rng.choice, self.case.rules
        measures_all = rules.hooks.before_round is not None or rules.trains_local_models
        nothing = (math.nan,)
        return tuple(
            ClientEvaluation(
                k,
                POPULATION.get_priority_weight(k),
                pick(WHOLE),
                pick(MEASURED if measures_all or k in POPULATION.priority else nothing),
                pick(SCORES if measures_all or k in POPULATION.priority else nothing),
                pick((math.nan, *WHOLE)),
                pick(MEASURED),
                pick(SCORES),
                pick((*SCORES, -1e15, 1e15)),
            )
            for k in range(K)
            if self.rng.random() < 0.9
        )

    def objective(
        self, call: RoundPlan, evaluated: tuple[ClientEvaluation, ...]
    ) -> Objective | None:
        """Return F of the model broadcast, None where the answers tell it."""
        if self.case.standard:
            return None
        rules, selection = self.case.rules, self.case.rules.selection
        asked = selection.select_objective_clients(POPULATION.priority)
        if rules.needs_objective and selection.samples_objective and not rules.hooks.before_round:
            asked = asked.intersection(call.clients)
        heard = [e for e in evaluated if e.client in asked]
        missing = asked - {e.client for e in heard if e.has_objective_loss}
        return replace(compute_priority_objective(heard), missing_clients=tuple(sorted(missing)))

    def answer(self, client: int, call: RoundPlan, objective: Objective | None) -> ClientOutcome:
        """Return what a client asked says."""
        pick, text = self.rng.choice, self.rng.choice(TEXTS)
        if self.rng.random() < 0.2:
            return ClientOutcome(client, pick(("failed", "rejected", "unavailable")), text)
        reads = self.case.rules.needs_losses or not self.case.standard
        answer = ClientOutcome(
            client,
            "trained",
            num_examples=pick(AMOUNTS if self.case.standard else WHOLE),
            loss=pick(COUNTED if reads else ANY),
            accuracy=pick(ANY if self.case.standard else SCORES[:3]),
            note=pick((None, None, text)),
            seconds=pick((None, 0.0, 1e15)),
        )
        if objective is None or call.epsilon is None or client in POPULATION.priority:
            return answer
        joined = should_train(
            call.criterion,
            call.epsilon,
            global_loss=objective.loss,
            global_accuracy=objective.accuracy,
            loss=math.nan if answer.loss is None else answer.loss,
            accuracy=math.nan if answer.accuracy is None else answer.accuracy,
        )
        return answer if joined else ClientOutcome(client, "declined")

    def round(
        self, number: int, state: RoundState, call: RoundPlan, objective: Any
    ) -> RoundDecision:
        """Return a round, refused where the model would not be finite, and now and then else."""
        each = tuple(self.answer(k, call, objective) for k in sorted(call.clients))
        count = sum(answer.is_usable for answer in each)
        lengths = np.array([self.rng.choice(LENGTHS) for _ in range(count)]).reshape(-1, 1)
        updates = np.random.default_rng(number).normal(size=(count, 3)) * lengths
        decided = decide_round(
            self.case.rules,
            POPULATION,
            state,
            server_round=number,
            plan=replace(call, clients_apply_gate=not self.case.standard),
            objective=objective,
            outcomes=RoundOutcomes(each, EVERYONE, lambda: updates @ updates.T),
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

    def play(
        self, directory: Path
    ) -> tuple[list[RoundRecord], list[RoundDecision], list[tuple[ClientEvaluation, ...]]]:
        """Play a run, write it down, and return its rounds, and the evaluations from round 0."""
        rules = self.case.rules
        records: list[RoundRecord] = []
        rounds: list[RoundDecision] = []
        state, evaluated = RoundState.initial(rules, POPULATION), self.evaluations()
        measured = [evaluated]
        text = yaml.safe_dump(dict(self.case.config))
        identity = replace(IDENTITY, strategy="composed", rounds=ROUNDS)
        with RunWriter(
            directory, identity, text, regret_bound=rules.compute_regret_bound
        ) as written:
            written.save_population(POPULATION, None)
            written.add_evaluations(0, evaluated)
            for number in range(1, ROUNDS + 1):
                told = update_reports(
                    state.reports, evaluated, all_clients=rules.hooks.before_round is not None
                )
                state = replace(state, reports=told)
                call = rules.plan_round(number - 1, POPULATION, told)
                one = self.round(number, state, call, self.objective(call, evaluated))
                evaluated = self.evaluations()
                measured.append(evaluated)
                record = build_round_record(
                    one.report,
                    evaluated,
                    bytes_down=2**53,
                    bytes_up=0,
                    seconds=self.rng.choice((0.0, TINY, 1e15)),
                    state_bytes=0,
                    rates=None,
                    metric=METRIC,
                    all_evaluated=True,
                    previous=records[-1] if records else None,
                )
                written.add_round(record, one.report, evaluated)
                state = one.next_state
                records.append(record)
                rounds.append(one)
        return records, rounds, measured


def bits(value: Any) -> Any:
    """Return a value such that equal ones have the same bits, all NaN alike."""
    if isinstance(value, Mapping):
        return {key: bits(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [bits(item) for item in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "nan" if math.isnan(value) else struct.pack("<d", value)
    return value


def drop_reason(decision: ClientDecision) -> dict[str, Any]:
    """Return a decision without its reason, which is cut and cleaned."""
    return {
        item.name: getattr(decision, item.name)
        for item in fields(decision)
        if item.name != "reason"
    }


@pytest.mark.parametrize("weighting", ALL_WEIGHTINGS)
def test_whatever_is_decided_is_read_back_and_decided_again(tmp_path: Path, weighting: str) -> None:
    """For every rule, with losses of 0, NaN, infinity, denormal and huge numbers, and any text."""
    possible = cases(weighting)
    assert possible
    for place in sample_cases(range(len(possible)), 12):
        case = possible[place]
        directory = tmp_path / str(place)
        player = Player(case, random.Random(f"{weighting} {place}"))
        with np.errstate(all="ignore"):
            records, rounds, measured = player.play(directory)
            found = audit_run(directory)
        assert [str(problem) for problem in found.mismatches] == [], case.config
        assert found.num_rounds == ROUNDS
        run = load_run(directory)
        assert [bits(one.to_json()) for one in run.rounds] == [
            bits(one.to_json()) for one in records
        ]
        table = read_table(directory / "clients").to_pylist()
        rows = {(row["round"], row["client"]): row for row in table}
        for one in rounds:
            for decision in one.report.decisions:
                row = rows.pop((one.report.server_round, decision.client))
                if row["data_weight"] is not None:
                    row["num_examples"] = row["data_weight"]
                given = drop_reason(decision)
                assert bits({name: row[name] for name in given}) == bits(given)
        assert rows == {}
        evaluated = read_audit_input(directory).get_evaluations
        for number, evaluations in enumerate(measured):
            again = evaluated(number)
            assert bits([astuple(one) for one in again]) == bits([astuple(e) for e in evaluations])
