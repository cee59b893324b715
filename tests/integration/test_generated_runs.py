"""Random compositions of all rules, in runs with every kind of failure.

Clients come and go, join late, fail, and send losses and models that are not finite, zero or huge.
The audit agrees with every decision of any run, and a run that is interrupted after any round and
resumed with another number of nodes ends with the same bits.
"""

import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from fedquorum.audit.check import audit_run
from fedquorum.errors import ParameterError, RunError, SettingsError
from fedquorum.flower.codec import TrainResult, TrainTask
from fedquorum.registry import ALL_SELECTIONS, ALL_WEIGHTINGS, build_rules
from fedquorum.rng import make_generator
from fedquorum.rules.failures import FailureCounts
from fedquorum.rules.parameters import Cutoff, Interval, LossRequirement, OneOf
from fedquorum.rules.participation import PARTICIPATIONS
from fedquorum.rules.rule import Rule, RunContext, get_parameters
from fedquorum.rules.server_optimizer import SERVER_OPTIMIZERS

import client_app.app
from client_app.evaluation.evaluator import CachedEvaluator
from client_app.evaluation.passes import ClientMetrics
from client_app.node.client import FederatedClient
from client_app.training.local_sgd import Arrays, Rounds, list_rounds
from client_app.training.trainer import Trainer
from conf.compose import compose_overrides
from server_app.runs.loop import run_rounds
from tests.builders_flower import ScriptedGrid
from tests.cases import sample_cases
from tests.integration.conftest import assert_same_bits, interrupt_at_round

CLIENTS, ROUNDS = 6, 6
CASES, SAMPLE, PARTS = 2000, 52, 4
LATE = (1, 4)
"""The clients that join late: one node of three hosts both, two nodes of six one each."""

WILD = (math.nan, math.inf, 0.0, 5e-324, 1e14, 1e120, 1e300)
"""The losses of some measurements, in place of the right ones."""

SPOILT = (math.nan, -math.inf, 3e38, 1e15, 1e10)
"""The values of a number in some clients' models."""


@dataclass(frozen=True)
class Case:
    """A run: its settings, the round of its interruption, and the nodes before and after."""

    number: int
    words: tuple[str, ...]
    nodes: tuple[int, int]
    last_round: int
    joining_round: int


# --- sampling of cases ---------------------------------------------------------------------------


def draw(number: int, attempt: int) -> Case | None:
    """Return a case, None if its rules do not go together."""
    rng = np.random.default_rng([number, attempt])

    def one(*values: Any) -> Any:
        return values[rng.integers(len(values))]

    strategy = {
        "name": "composed",
        **{
            part: {"name": key, **options_of(rule, rng)}
            for part, (key, rule) in parts(number, one).items()
        },
        "fraction": one(1, 1, 0.7, 0.5),
        "server_lr": one(1, 0.1, 2),
    }
    optimizer = one(*sorted(SERVER_OPTIMIZERS))
    joining_round = int(one(1, rng.integers(2, ROUNDS)))
    if joining_round == 1 and one(True, False):  # by the data of all priority clients
        strategy["priority_samples"] = 3
    facts = RunContext(ROUNDS, rates=dict.fromkeys(range(CLIENTS), 0.5), clients=(*range(CLIENTS),))
    try:
        build_rules(strategy, {"name": optimizer}, facts)
    except ParameterError:
        return None
    words = (
        *build_overrides(strategy),
        f"server_optimizer={optimizer}",
        *one(("data.priority=[0,1,3]",), ("data.priority=all",), ("data.priority=[5,2]",)),
        *one((), (), ("data.priority_weights={4: 0.5}",)),
        *one((), (), ("data.holdout_client_fraction=0.2",)),
        *one((), ("data.validation_fraction=0.3",)),
        *one(
            (),
            ("availability=bernoulli", "availability.p=0.6"),
            ("availability=markov", "availability.p=0.6"),
            ("availability=cyclic", "availability.p=0.7", "availability.period=3"),
            ("availability=bernoulli", "availability.p=0.8", "availability.rest=1"),
        ),
        *one(
            (),
            (),
            ("response_time=lognormal", f"engine.quorum={one(0.5, 2)}", "engine.grace_seconds=1"),
        ),
        f"evaluation.every={one(1, 2, 3)}",
        f"evaluation.clients={one('all', 'all', 'priority')}",
        f"evaluation.metric={one('accuracy', 'loss', 'f1')}",
        *one((), (), ("robustness.max_weight=0.2", "robustness.clip_norm=0.5")),
        f"engine.partial_aggregation={one('true', 'false')}",
    )
    return Case(number, words, one((3, 6), (6, 3)), int(rng.integers(1, ROUNDS)), joining_round)


def parts(number: int, one: Callable[..., Any]) -> Mapping[str, tuple[str, type[Rule] | None]]:
    """Return a rule of each kind, with its key: the weightings in turn, with others at random."""
    selections, weightings = (sorted(table.items()) for table in (ALL_SELECTIONS, ALL_WEIGHTINGS))
    return {
        "selection": one(*selections),
        "weighting": weightings[number % len(weightings)],
        "participation": one(("none", None), *sorted(PARTICIPATIONS.items())),
    }


WITH_ANOTHER = ("c1",)
"""Above the default of another parameter, which the run's rounds decide, it ends the run."""


def options_of(rule: type[Rule] | None, rng: np.random.Generator) -> dict[str, Any]:
    """Return values within their ranges for some parameters of a rule."""
    found: dict[str, Any] = {}
    for parameter in () if rule is None else get_parameters(rule):
        allowed, needed = (
            parameter.metadata["allowed"],
            parameter.name in (rule or Rule).description.required_options,
        )
        if parameter.name in WITH_ANOTHER or (not needed and rng.random() < 0.5):
            continue
        if isinstance(allowed, OneOf):
            found[parameter.name] = allowed.choices[rng.integers(len(allowed.choices))]
        elif isinstance(allowed, Interval):
            low, high = max(float(allowed.low), -2.0), min(float(allowed.high), 3.0)
            drawn = low + (high - low) * rng.uniform(0.05, 0.9)
            found[parameter.name] = round(drawn) if allowed.integer else round(drawn, 3)
        elif isinstance(allowed, Cutoff):
            found[parameter.name] = (math.inf, 1, 2, 3)[rng.integers(4)]
        elif isinstance(allowed, LossRequirement):
            found[parameter.name] = (1.0, 0.5, [0.5, 2.0, 1.0, 0.7, 0.2, 3.0])[rng.integers(3)]
    return found


def build_overrides(strategy: Mapping[str, Any]) -> Iterable[str]:
    """Yield the overrides of a composed strategy."""
    for key, value in strategy.items():
        if not isinstance(value, Mapping):
            yield f"strategy={value}" if key == "name" else f"strategy.{key}={value}"
            continue
        for name, option in value.items():
            word = f"strategy/{key}" if name == "name" else f"strategy.{key}.{name}"
            yield f"{word}={str(option).replace(' ', '')}"


SMALL = (
    *("experiment=custom", f"rounds={ROUNDS}", f"data.num_clients={CLIENTS}", "data=synth"),
    *("data.num_priority=2", "model=logistic_regression", "data.sizes=equal", "client.lr=0.05"),
    *("data.samples_per_client=16", "client.local_epochs=1"),
    *("engine.startup_timeout=0.01", "engine.startup_clients=4"),
)


# --- failures ------------------------------------------------------------------------------------


def spoil(monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    """Let clients fail, report impossible evaluations, and train unusable models.

    A failure depends on the client and the round or the model, not on its node.
    """
    measure, join = CachedEvaluator.evaluate, FederatedClient.evaluate_and_decide
    train: Callable[..., Any] = Trainer.train_clients

    def wild(self: CachedEvaluator, arrays: Arrays, part: Any, client: int) -> ClientMetrics:
        measured = measure(self, arrays, part, client)
        digest = zlib.crc32(b"".join(array.tobytes() for array in arrays))
        rng = make_generator(case.number, "wild", digest, client)
        if rng.random() > 0.15 or not measured.num_examples:
            return measured
        return replace(measured, loss=float(rng.choice(WILD)))

    def fails(self: FederatedClient, parameters: Arrays, task: TrainTask) -> TrainResult:
        if make_generator(case.number, "fails", task.server_round, self.client_id).random() < 0.08:
            raise RuntimeError("out of battery")
        return join(self, parameters, task)

    def spoilt(
        self: Trainer, arrays: Arrays, clients: Sequence[int], t: Rounds, use: Any, **further: Any
    ) -> Iterable[Any]:
        rounds = list_rounds(t, len(clients))

        def spoil_and_use(indices: list[int], models: list[torch.Tensor]) -> Any:
            for i, index in enumerate(indices):
                rng = make_generator(case.number, "spoilt", rounds[index], clients[index])
                if rng.random() < 0.1:
                    models[0][i].flatten()[0:1] = float(rng.choice(SPOILT))
            return use(indices, models)

        yield from train(self, arrays, clients, t, spoil_and_use, **further)

    monkeypatch.setattr(CachedEvaluator, "evaluate", wild)
    monkeypatch.setattr(FederatedClient, "evaluate_and_decide", fails)
    monkeypatch.setattr(Trainer, "train_clients", spoilt)


# --- a run ---------------------------------------------------------------------------------------


def play(
    case: Case, directory: Path, num_nodes: int, *, resume: bool = False, after: int = 0
) -> Path:
    """Run a case from the round after ``after``, with checkpoints where the case is interrupted."""
    composed = compose_overrides((*SMALL, f"seed={case.number}", *case.words))
    settings = composed.settings.engine
    engine = replace(settings, num_supernodes=num_nodes, checkpoint_every=case.last_round)
    resumed = str(directory) if resume else None
    composed = replace(composed, settings=replace(composed.settings, engine=engine, resume=resumed))
    late = {client % num_nodes + 1 for client in LATE}
    away = dict.fromkeys(range(case.joining_round - 1), late)  # while the round before is the last
    grid = ScriptedGrid(client_app.app.app, composed.run_config, num_nodes, away=away)
    grid.server_round = after
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FailureCounts, "are_alike", lambda _: False)  # none stops early
            run_rounds(grid, composed, str(directory), engine=grid.engine)
    except RunError as error:  # such a run fails at its end: its records are as complete as others
        if not str(error).startswith("no client trained with success"):
            raise
    return directory


def run_first_valid_case(number: int, directory: Path) -> Case:
    """Return the first case of a number whose rules go together, and run it whole."""
    for attempt in range(10_000):
        case = draw(number, attempt)
        if case is None:
            continue
        try:
            with pytest.MonkeyPatch.context() as patch:
                spoil(patch, case)
                play(case, directory / "whole", case.nodes[1])
        except (SettingsError, ParameterError):
            lines = directory / "whole" / "rounds.jsonl"
            if lines.exists() and lines.read_bytes():
                raise
            rmtree(directory / "whole", ignore_errors=True)
        else:
            return case
    raise AssertionError("no rules go together")


def list_numbers() -> list[int]:
    """Return the numbers of the cases to play."""
    return sample_cases(range(CASES), SAMPLE, seed=1)


def test_every_kind_of_rule_is_played() -> None:
    """Each rule, server optimizer, availability and priority is in a case of the sample."""
    words: set[str] = set()
    for number in list_numbers():
        attempts = (draw(number, attempt) for attempt in count())
        words.update(next(case for case in attempts if case is not None).words)
    kinds: Mapping[str, Iterable[str]] = {
        "strategy/selection": ALL_SELECTIONS,
        "strategy/weighting": ALL_WEIGHTINGS,
        # The rates that known statistics require are no option that is drawn.
        "strategy/participation": {"none", *PARTICIPATIONS} - {"known_statistics"},
        "server_optimizer": SERVER_OPTIMIZERS,
        "availability": ("bernoulli", "markov", "cyclic"),
        "data.priority": ("all", "[0,1,3]", "[5,2]"),
    }
    for kind, names in kinds.items():
        assert {f"{kind}={name}" for name in names} <= words


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_any_run_is_audited_and_continued(part: int, tmp_path: Path) -> None:
    """Audits find no problem, and a resumed run on other nodes has the same bits."""
    for number in list_numbers()[part::PARTS]:
        check(number, tmp_path / str(number))


def problems(directory: Path) -> list[str]:
    """Return the audit's mismatches."""
    return [str(problem) for problem in audit_run(directory).mismatches]


def check(number: int, folder: Path) -> None:
    """Run a case in one leg and in two legs, and audit both."""
    case = run_first_valid_case(number, folder)
    whole, stopped = folder / "whole", folder / "stopped"
    assert problems(whole) == [], case
    with pytest.MonkeyPatch.context() as patch:
        spoil(patch, case)
        with interrupt_at_round(patch, case.last_round + 1):
            play(case, stopped, case.nodes[0])
        play(case, stopped, case.nodes[1], resume=True, after=case.last_round)
    assert problems(stopped) == [], case
    assert_same_bits(whole, stopped, ROUNDS)
    for table in ("clients", "evaluations"):
        assert pq.read_table(whole / table).equals(pq.read_table(stopped / table)), table
