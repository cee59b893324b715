"""Build strategies from rules: the table of named strategies, and ``build``.

The command line, the run records and the constructors in Python all build a strategy by ``build``,
from its name and its options. Options have the names of the rules' parameters; the strategy
``composed`` has them grouped by part.
"""

from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, replace
from typing import Any

from .composition import LastUpdates, Rules
from .contrib import CONTRIB_SELECTIONS, CONTRIB_WEIGHTINGS
from .description import RuleDescription
from .errors import ParameterError, did_you_mean
from .imports import RuleImport, rule_at
from .participation import (
    PARTICIPATIONS,
    EmpiricalRates,
    KnownRates,
    MeanInterval,
    Participation,
)
from .rule import Question, Rule, RunFacts, parameters_of
from .schedules import ServerRate
from .selection import (
    SELECTIONS,
    AfterWarmup,
    Alone,
    EpsilonGate,
    Everyone,
    PriorityOnly,
    Sampling,
    Selection,
)
from .server_optimizer import SERVER_OPTIMIZERS, ServerOptimizer
from .weighting import (
    WEIGHTINGS,
    AverageAll,
    AverageParticipating,
    DataFraction,
    NoWeight,
    Weighting,
)

ALL_SELECTIONS: dict[str, type[Selection]] = {**SELECTIONS, **CONTRIB_SELECTIONS}
"""All selections by their keys."""

ALL_WEIGHTINGS: dict[str, type[Weighting[Any]]] = {**WEIGHTINGS, **CONTRIB_WEIGHTINGS}
"""All weightings by their keys."""

COMPOSED = "composed"
CUSTOM = "custom"
NONE = "none"


@dataclass(frozen=True)
class Named:
    """A named strategy and the rules that it consists of.

    Parameters
    ----------
    key : str
        The strategy's name in settings and records.
    summary : str
        A description in one line. A published name comes first, with a colon after it.
    weighting : type
        The weighting.
    selection : type
        The selection.
    participation : type, optional
        The correction of the weighting for participation.
    memory : LastUpdates, optional
        Set if the server keeps the clients' last updates.
    question : Question, optional
        The question that the strategy answers; by default that of its weighting.
    baseline : bool
        Whether the papers use the strategy as a baseline.
    draws : bool
        Whether priority clients may be drawn with replacement.
    plain_for : tuple of Question
        The questions for which this is a study's baseline.
    description : RuleDescription
        What the documents say of the strategy where its rules do not say it.
    """

    key: str
    summary: str
    weighting: type[Weighting[Any]]
    selection: type[Selection] = Everyone
    participation: type[Participation[Any]] | None = None
    memory: LastUpdates | None = None
    question: Question | None = None
    baseline: bool = True
    draws: bool = False
    plain_for: tuple[Question, ...] = ()
    description: RuleDescription = RuleDescription()

    @property
    def title(self) -> str:
        """The readable name: the one before the summary's colon, or else the key in words."""
        name, colon, _ = self.summary.partition(": ")
        return name if colon else self.key.replace("_", " ")

    @property
    def answers(self) -> Question:
        """The question that the strategy answers."""
        return self.question or self.weighting.question

    @property
    def parts(self) -> tuple[type[Any], ...]:
        """The classes whose parameters are the strategy's options."""
        rules = (self.selection, self.weighting, self.participation)
        memory = () if self.memory is None else (LastUpdates,)
        return (*(part for part in rules if part is not None), *memory)

    def check_needed(self, given: Mapping[str, Any]) -> None:
        """Raise ParameterError for the first required parameter that is missing."""
        for part in (self.selection, self.weighting, self.participation):
            for name, (allowed, why) in (part.needed if part else {}).items():
                if given.get(name) is None:
                    raise ParameterError(name, allowed, None, why)

    @property
    def parameters(self) -> tuple[Field[Any], ...]:
        """The fields of the rules' parameters, without those of sampling."""
        return tuple(item for part in self.parts for item in parameters_of(part))

    def rules(
        self,
        options: Mapping[str, Any],
        facts: RunFacts,
        *,
        sampling: Sampling,
        server_optimizer: ServerOptimizer[Any],
    ) -> Rules:
        """Return the strategy's rules with these parameters.

        Raises
        ------
        ParameterError
            If there is no such parameter, or the rules refuse a value.
        """
        known = {item.name for item in self.parameters}
        for name in options:
            if name not in known:
                raise ParameterError(name, f"a parameter of {self.key} ({', '.join(known)})", name)

        def of(part: type[Any]) -> dict[str, Any]:
            return {i.name: options[i.name] for i in parameters_of(part) if i.name in options}

        weighting: Weighting[Any] = self.weighting.of(of(self.weighting), facts)
        selection = self.selection.of({**of(self.selection), "sampling": sampling}, facts)
        if self.participation is not None:
            given = of(self.participation)
            weighting = _corrected(weighting, self.participation, given, facts, selection)
        memory = self.memory
        if memory is not None:
            memory = replace(memory, **of(LastUpdates))
        return Rules(
            selection=selection,
            weighting=weighting,
            server_optimizer=server_optimizer,
            memory=memory,
        )


FEDALIGN = Named(
    "fedalign",
    "FedALIGN: priority clients, and clients whose loss is within epsilon of theirs.",
    DataFraction,
    EpsilonGate,
    question=Question.PRIORITY,
    baseline=False,
    draws=True,
)
FEDAVG = Named(
    "fedavg",
    "FedAvg: all clients, weighted by their data.",
    DataFraction,
    AfterWarmup,
    draws=True,
    plain_for=(Question.PRIORITY, Question.FAIRNESS, Question.AVERAGE),
)
FEDAVG_PRIORITY = Named(
    "fedavg_priority",
    "FedAvg on priority clients: all other clients are left out.",
    DataFraction,
    PriorityOnly,
    question=Question.PRIORITY,
    draws=True,
)
LOCAL_ONLY = Named(
    "local_only",
    "Every client trains a local model; nothing is aggregated.",
    NoWeight,
    Alone,
)
FEDAU = Named("fedau", MeanInterval.summary, AverageAll, participation=MeanInterval, baseline=False)
EMPIRICAL = Named("empirical", EmpiricalRates.summary, AverageAll, participation=EmpiricalRates)
KNOWN_STATISTICS = Named(
    "known_statistics", KnownRates.summary, AverageAll, participation=KnownRates
)
_MEMORY = {
    "state": "a model (`strategy.memory_dir` keeps it in files)",
    "gain": "a bad update counts until the client's next one",
    "secure_sum": "no: the server keeps every client's last update",
}
FEDVARP = Named(
    "fedvarp",
    "FedVarp: a memory of all last updates reduces the variance of participation.",
    AverageParticipating,
    memory=LastUpdates(),
    description=RuleDescription(
        weight="1 / (number available), with a memory of every client's last update",
        source="Jhunjhunwala et al. 2022",
        **_MEMORY,
    ),
)
MIFA = Named(
    "mifa",
    "MIFA: the mean of all last updates.",
    AverageAll,
    memory=LastUpdates(moves_alone=True),
    description=RuleDescription(
        weight="1 / N, with a memory of every client's last update",
        source="Gu et al. 2021",
        **_MEMORY,
    ),
)


def _all_named() -> Iterator[Named]:
    """Yield the strategies above, and one for each weighting that is a strategy by itself."""
    yield from (FEDALIGN, FEDAVG, FEDAVG_PRIORITY, LOCAL_ONLY, FEDAU)
    for key, weighting in ALL_WEIGHTINGS.items():
        if weighting.strategy:
            yield Named(
                key,
                weighting.summary,
                weighting,
                baseline=weighting.baseline,
                plain_for=weighting.plain_for,
            )
    yield from (EMPIRICAL, KNOWN_STATISTICS, FEDVARP, MIFA)


NAMED: dict[str, Named] = {named.key: named for named in _all_named()}
"""All named strategies by their keys."""


def question_of(strategy: str, rules: Rules) -> Question:
    """Return the question that a strategy answers: its name's, or else its rules'."""
    return NAMED[strategy].answers if strategy in NAMED else rules.question


def build(
    strategy: Mapping[str, Any],
    server_optimizer: Mapping[str, Any],
    facts: RunFacts,
    *,
    custom: RuleImport = rule_at,
) -> Rules:
    """Return the rules of a strategy from its name and options.

    Parameters
    ----------
    strategy : mapping
        ``name``, one of ``NAMED``, ``composed`` or ``custom``; ``fraction``, ``priority_samples``,
        ``minimum`` and ``server_lr``; and the parameters of its rules. The
        strategy ``composed`` has those in the mappings ``selection``, ``weighting`` and
        ``participation``, each with a ``name``. A part named ``custom`` has ``path`` and ``args``;
        see ``fedquorum.imports``.
    server_optimizer : mapping
        ``name``, the optimizer's parameters, and ``lr_schedule``; see ``ServerRate``.
    facts : RunFacts
        Facts about the run.
    custom : callable
        Makes the rules named ``custom``; by default it imports them.

    Raises
    ------
    ParameterError
        If a name or a parameter does not exist, a value is outside its range, or the rules make no
        sense together.
    """
    options = dict(strategy)
    name = options.pop("name")
    sampling = Sampling(
        options.pop("fraction", 1.0),
        options.pop("priority_samples", None),
        facts.seed,
        options.pop("minimum", None),
    )
    moving = dict(server_optimizer)
    rate = ServerRate.of(moving.pop("lr_schedule", "constant"), facts.client_rate)
    optimizer = _optimizer(moving, options.pop("server_lr", None), facts, custom)
    if name == COMPOSED:
        rules = _composed(options, facts, sampling, optimizer, custom)
    elif name == CUSTOM:
        rules = Rules(Everyone(sampling), custom(Weighting, options, facts), optimizer)
    else:
        named: Named = look_up(NAMED, "strategy", name)
        rules = named.rules(options, facts, sampling=sampling, server_optimizer=optimizer)
    return replace(rules, server_rate=rate, run_hooks=facts.hooks)


def look_up(rules: Mapping[str, Any], group: str, name: str) -> Any:
    """Return the entry of a table.

    Raises
    ------
    ParameterError
        If the name is not in the table; the message suggests the nearest one.
    """
    if name not in rules:
        allowed = f"one of {', '.join(rules)}"
        raise ParameterError(group, allowed, name, did_you_mean(str(name), rules))
    return rules[name]


def _optimizer(
    settings: Mapping[str, Any],
    learning_rate: float | None,
    facts: RunFacts,
    custom: RuleImport,
) -> ServerOptimizer[Any]:
    options = {**settings}
    name = options.pop("name")
    if learning_rate is not None:
        options["learning_rate"] = learning_rate
    try:
        if name == CUSTOM:
            options["args"] = {**(options.get("args") or {}), **_rate(options)}
            made: ServerOptimizer[Any] = custom(ServerOptimizer, options, facts)
        else:
            made = look_up(SERVER_OPTIMIZERS, "server_optimizer", name).of(options, facts)
    except ParameterError as error:
        if error.parameter != "learning_rate":
            raise
        raise ParameterError("server_lr", error.allowed, error.got, error.reason) from None
    return made


def _rate(options: dict[str, Any]) -> dict[str, Any]:
    given = options.pop("learning_rate", None)
    return {} if given is None else {"learning_rate": given}


def _composed(
    options: Mapping[str, Any],
    facts: RunFacts,
    sampling: Sampling,
    optimizer: ServerOptimizer[Any],
    custom: RuleImport,
) -> Rules:
    chosen = {**options["selection"], "sampling": sampling}
    selection = _part("selection", chosen, facts, custom)
    weighting = _part("weighting", options["weighting"], facts, custom)
    participation = dict(options["participation"])
    name = participation.pop("name")
    if name != NONE:
        correction = look_up(PARTICIPATIONS, "participation", name)
        weighting = _corrected(weighting, correction, participation, facts, selection)
    return Rules(selection, weighting, optimizer)


def _corrected(
    weighting: Weighting[Any],
    correction: type[Participation[Any]],
    options: Mapping[str, Any],
    facts: RunFacts,
    selection: Selection,
) -> Weighting[Any]:
    """Return a weighting with its correction for participation.

    Given rates need a selection that tells how often it asks each client, and that asks it at all.
    """
    facts = facts.counted_by(selection.known_probabilities)
    undeclared = selection.declares_probabilities and facts.counted is None
    if undeclared and facts.clients and correction.given_rates:
        raise selection.undeclared(correction.key)
    never = [client for client, counted in (facts.counted or {}).items() if counted == 0.0]
    if never and correction.given_rates:
        raise ParameterError(
            "fraction",
            "so large that a round can ask every client that the selection covers",
            selection.sampling.fraction,
            f"client {never[0]} would never be asked, and no weight of {correction.key} makes up "
            "for that",
        )
    return correction.correcting(weighting, options, facts)


_KINDS: Mapping[str, tuple[Any, Mapping[str, type[Rule]]]] = {
    "selection": (Selection, ALL_SELECTIONS),
    "weighting": (Weighting, ALL_WEIGHTINGS),
}


def _part(group: str, settings: Mapping[str, Any], facts: RunFacts, custom: RuleImport) -> Any:
    (kind, rules), options = _KINDS[group], dict(settings)
    name = options.pop("name")
    if name == CUSTOM:
        sampling = options.pop("sampling", None)
        if sampling is not None:
            options["args"] = {**(options.get("args") or {}), "sampling": sampling}
        return custom(kind, options, facts)
    return look_up(rules, group, name).of(options, facts)
