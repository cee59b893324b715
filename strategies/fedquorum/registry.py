"""Build strategies from rules: the table of named strategies, and ``build_rules``.

The command line, the run records and the constructors in Python all build a strategy with
``build_rules``, from its name and its options. Options have the names of the rules' parameters; the
strategy ``composed`` groups them by part.
"""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, fields, is_dataclass, replace
from functools import partial
from hashlib import sha256
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from .contrib import CONTRIB_SELECTIONS, CONTRIB_WEIGHTINGS
from .errors import ParameterError, suggest_name, to_one_line
from .rules.composition import RuleSet, UpdateMemoryConfig
from .rules.description import Goal, RuleDescription
from .rules.participation import (
    PARTICIPATIONS,
    EmpiricalCorrection,
    FedAUCorrection,
    KnownRatesCorrection,
    Participation,
    correct_weighting,
)
from .rules.participation.known_rates import build_undeclared_error
from .rules.rule import Rule, RunContext, get_parameters
from .rules.schedules import ServerLRSchedule
from .rules.selection import (
    SELECTIONS,
    AfterWarmup,
    AllClients,
    EpsilonGate,
    PriorityOnly,
    Sampling,
    Selection,
)
from .rules.selection.base import declares_probabilities, get_known_probabilities
from .rules.server_optimizer import SERVER_OPTIMIZERS, ServerOptimizer
from .rules.weighting import (
    WEIGHTINGS,
    AverageAll,
    AverageParticipating,
    DataFraction,
    Weighting,
)
from .sanitize import abbreviate

RuleImporter = Callable[[Any, Mapping[str, Any], RunContext], Any]
"""Returns a rule of a kind from its options and the run's context, as ``import_rule`` does."""


def refuse_import(_kind: Any, options: Mapping[str, Any], _facts: RunContext) -> NoReturn:
    """Refuse to import a rule that records name: whoever wrote the records could run code here.

    Raises
    ------
    ParameterError
        Always.
    """
    raise ParameterError(
        "path",
        "absent from records that are only read",
        options.get("path"),
        "it names code; --trust, or trust=True in Python, imports it",
    )


def import_rule(kind: Any, options: Mapping[str, Any], context: RunContext) -> Any:
    """Return an instance of the class at ``options["path"]``, made from ``options["args"]``.

    Parameters
    ----------
    kind : type
        The required base class: ``Selection``, ``Weighting`` or ``ServerOptimizer``.
    options : mapping
        ``path`` and ``args``, the parameters by name.
    context : RunContext

    Raises
    ------
    ParameterError
        If there is no such class, it is not of this kind, or it does not take these arguments.
    """
    path, arguments = str(options["path"]), dict(options.get("args") or {})
    allowed = f"the import path of a fedquorum {kind.__name__}, such as package.module.Class or "
    allowed += "folder/file.py:Class"
    try:
        make = import_object(path)
    except Exception as error:  # a module may raise anything when it is imported
        raise ParameterError("path", allowed, path, to_one_line(error)) from None
    if not callable(make):
        raise ParameterError("path", allowed, path, f"it is a {type(make).__name__}")
    try:
        made = (
            make.from_options(arguments, context)
            if isinstance(make, type) and issubclass(make, Rule)
            else make(**arguments)
        )
    except Exception as error:
        raise ParameterError(
            "args", f"arguments of {path}", arguments, to_one_line(error)
        ) from None
    if not isinstance(made, kind):
        raise ParameterError("path", allowed, path, f"it makes {type(made).__name__}")
    return made


def import_object(path: str) -> Any:
    """Return the object at an import path, ``package.module.name`` or ``file.py:name``."""
    file_name, colon, name = path.rpartition(":")
    if colon:
        return _get_member(_load_module(Path(file_name).expanduser().resolve()), name)
    module, _, name = path.rpartition(".")
    if (working_directory := str(Path.cwd())) not in sys.path:
        sys.path.append(working_directory)
    return _get_member(import_module(module), name)


def _get_member(module: ModuleType, name: str) -> Any:
    if not hasattr(module, name):
        hint = suggest_name(name, vars(module))
        raise AttributeError(f"there is no {name} in it" + (f"; {hint}" if hint else ""))
    return getattr(module, name)


def _load_module(file: Path) -> Any:
    """Return the module in a file, loaded once: a second copy would define other classes."""
    name = f"fedquorum_custom_{sha256(str(file).encode()).hexdigest()[:16]}"
    if name not in sys.modules:
        spec = spec_from_file_location(name, file)
        if spec is None or spec.loader is None or not file.is_file():
            raise FileNotFoundError(f"there is no Python file {file}")
        module = module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


ALL_SELECTIONS: dict[str, type[Selection]] = {**SELECTIONS, **CONTRIB_SELECTIONS}
"""All selections by their keys."""

ALL_WEIGHTINGS: dict[str, type[Weighting[Any]]] = {**WEIGHTINGS, **CONTRIB_WEIGHTINGS}
"""All weightings by their keys."""

COMPOSED = "composed"
CUSTOM = "custom"
NONE = "none"


@dataclass(frozen=True)
class StrategyEntry:
    """A named strategy and its rules.

    Parameters
    ----------
    key : str
        The strategy's name in settings and records.
    summary : str
        A description in one line. A published name comes first, with a colon after it.
    weighting : type
    selection : type
    participation : type, optional
        The correction of the weighting for participation.
    memory : UpdateMemoryConfig, optional
        Set if the server stores the clients' last updates.
    declared_goal : Goal, optional
        The goal of the strategy; by default that of its weighting.
    is_baseline : bool
        Whether the papers use the strategy as a baseline.
    supports_replacement : bool
        Whether priority clients may be sampled with replacement.
    reference_for : tuple of Goal
        The goals for which this strategy is a study's baseline.
    description : RuleDescription
        Texts that replace those of its rules in the documentation.
    """

    key: str
    summary: str
    weighting: type[Weighting[Any]]
    selection: type[Selection] = AllClients
    participation: type[Participation[Any]] | None = None
    memory: UpdateMemoryConfig | None = None
    declared_goal: Goal | None = None
    is_baseline: bool = True
    supports_replacement: bool = False
    reference_for: tuple[Goal, ...] = ()
    description: RuleDescription = RuleDescription()

    @property
    def title(self) -> str:
        """The readable name: the one before the summary's colon, or else the key in words."""
        name, colon, _ = self.summary.partition(": ")
        return name if colon else self.key.replace("_", " ")

    @property
    def goal(self) -> Goal:
        """The goal of the strategy."""
        return self.declared_goal or self.weighting.description.goal

    @property
    def rule_classes(self) -> tuple[type[Any], ...]:
        """The classes whose parameters are the strategy's options."""
        rules = (self.selection, self.weighting, self.participation)
        memory = () if self.memory is None else (UpdateMemoryConfig,)
        return (*(part for part in rules if part is not None), *memory)

    def check_required(self, given: Mapping[str, Any]) -> None:
        """Raise ParameterError for the first required parameter that is missing."""
        for part in (self.selection, self.weighting, self.participation):
            required = part.description.required_options if part else {}
            for name, (allowed, why) in required.items():
                if given.get(name) is None:
                    raise ParameterError(name, allowed, None, why)

    @property
    def parameters(self) -> tuple[Field[Any], ...]:
        """The fields of the rules' parameters, without those of sampling."""
        return tuple(item for part in self.rule_classes for item in get_parameters(part))

    def build_rules(
        self,
        options: Mapping[str, Any],
        context: RunContext,
        *,
        sampling: Sampling,
        server_optimizer: ServerOptimizer[Any],
    ) -> RuleSet:
        """Return the strategy's rules with these parameters.

        Raises
        ------
        ParameterError
            If there is no such parameter, or a rule rejects a value.
        """
        allowed_names = [item.name for item in self.parameters]
        for name in options:
            if name not in allowed_names:
                raise ParameterError(
                    name,
                    f"a parameter of {self.key} ({abbreviate(allowed_names, near=name)})",
                    name,
                )

        def get_options(part: type[Any]) -> dict[str, Any]:
            return {i.name: options[i.name] for i in get_parameters(part) if i.name in options}

        weighting: Weighting[Any] = self.weighting.from_options(
            get_options(self.weighting), context
        )
        selection = self.selection.from_options(
            {**get_options(self.selection), "sampling": sampling}, context
        )
        if self.participation is not None:
            given = get_options(self.participation)
            weighting = _apply_correction(weighting, self.participation, given, context, selection)
        memory = self.memory
        if memory is not None:
            memory = replace(memory, **get_options(UpdateMemoryConfig))
        return RuleSet(
            selection=selection,
            weighting=weighting,
            server_optimizer=server_optimizer,
            memory=memory,
        )


FEDALIGN = StrategyEntry(
    "fedalign",
    "FedALIGN: priority clients, and clients whose loss is within epsilon of theirs.",
    DataFraction,
    EpsilonGate,
    declared_goal=Goal.PRIORITY,
    is_baseline=False,
    supports_replacement=True,
    description=RuleDescription(
        use="a few clients have priority, and clients whose loss is close to theirs may help"
    ),
)
FEDAVG = StrategyEntry(
    "fedavg",
    "FedAvg: all clients, weighted by their data.",
    DataFraction,
    AfterWarmup,
    supports_replacement=True,
    reference_for=(Goal.PRIORITY, Goal.FAIRNESS, Goal.AVERAGE),
)
FEDAVG_PRIORITY = StrategyEntry(
    "fedavg_priority",
    "FedAvg on priority clients: all other clients are left out.",
    DataFraction,
    PriorityOnly,
    declared_goal=Goal.PRIORITY,
    supports_replacement=True,
)
FEDAU = StrategyEntry(
    "fedau",
    FedAUCorrection.description.summary,
    AverageAll,
    participation=FedAUCorrection,
    is_baseline=False,
)
EMPIRICAL = StrategyEntry(
    "empirical",
    EmpiricalCorrection.description.summary,
    AverageAll,
    participation=EmpiricalCorrection,
)
KNOWN_STATISTICS = StrategyEntry(
    "known_statistics",
    KnownRatesCorrection.description.summary,
    AverageAll,
    participation=KnownRatesCorrection,
)
_MEMORY = RuleDescription(
    use="clients come and go, and the server can hold an update for each client",
    state="a model (`strategy.memory_dir` keeps it in files)",
    gain="a bad update counts until the client's next one",
)
FEDVARP = StrategyEntry(
    "fedvarp",
    "FedVarp: a memory of all last updates reduces the variance of participation.",
    AverageParticipating,
    memory=UpdateMemoryConfig(),
    description=replace(
        _MEMORY,
        weight="1 / (number available), with a memory of every client's last update",
        source="Jhunjhunwala et al. 2022",
    ),
)
MIFA = StrategyEntry(
    "mifa",
    "MIFA: the mean of all last updates.",
    AverageAll,
    memory=UpdateMemoryConfig(steps_without_updates=True),
    description=replace(
        _MEMORY,
        weight="1 / N, with a memory of every client's last update",
        source="Gu et al. 2021",
    ),
)


def _list_strategies() -> Iterator[StrategyEntry]:
    """Yield the strategies above, and one for each weighting that is a strategy by itself."""
    yield from (FEDALIGN, FEDAVG, FEDAVG_PRIORITY, FEDAU)
    for key, weighting in ALL_WEIGHTINGS.items():
        description = weighting.description
        if description.is_strategy:
            yield StrategyEntry(
                key,
                description.summary,
                weighting,
                is_baseline=description.is_baseline,
                reference_for=description.reference_for,
            )
    yield from (EMPIRICAL, KNOWN_STATISTICS, FEDVARP, MIFA)


NAMED_STRATEGIES: dict[str, StrategyEntry] = {named.key: named for named in _list_strategies()}
"""All named strategies by their keys."""


def get_goal(strategy: str, rules: RuleSet) -> Goal:
    """Return the goal of a strategy: of its name, or else of its rules."""
    return NAMED_STRATEGIES[strategy].goal if strategy in NAMED_STRATEGIES else rules.goal


def build_rules(
    strategy: Mapping[str, Any],
    server_optimizer: Mapping[str, Any],
    context: RunContext,
    *,
    importer: RuleImporter = import_rule,
) -> RuleSet:
    """Return the rules of a strategy from its name and options.

    Parameters
    ----------
    strategy : mapping
        ``name``, one of ``NAMED_STRATEGIES``, ``composed`` or ``custom``; ``fraction``,
        ``priority_samples``, ``minimum`` and ``server_lr``; and the parameters of its rules. The
        strategy ``composed`` has those in the mappings ``selection``, ``weighting`` and
        ``participation``, each with a ``name``. A part named ``custom`` has ``path`` and ``args``;
        see ``fedquorum.registry``.
    server_optimizer : mapping
        ``name``, the optimizer's parameters, and ``lr_schedule``; see ``ServerLRSchedule``.
    context : RunContext
    importer : callable
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
        context.seed,
        options.pop("minimum", None),
    )
    optimizer_settings = dict(server_optimizer)
    lr_schedule = ServerLRSchedule.for_client(
        optimizer_settings.pop("lr_schedule", "constant"), context.client_lr_schedule
    )
    optimizer = _build_optimizer(
        optimizer_settings, options.pop("server_lr", None), context, importer
    )
    if name == COMPOSED:
        rules = _compose_rules(options, context, sampling, optimizer, importer)
    elif name == CUSTOM:
        rules = RuleSet(AllClients(sampling), importer(Weighting, options, context), optimizer)
    else:
        named: StrategyEntry = find_entry(NAMED_STRATEGIES, "strategy", name)
        rules = named.build_rules(options, context, sampling=sampling, server_optimizer=optimizer)
    return replace(rules, server_lr_schedule=lr_schedule, run_hooks=context.hooks)


def takes_client_facts(rules: RuleSet) -> bool:
    """Say whether the weighting takes a parameter from the run's clients, such as their rates."""
    weighting = rules.weighting
    return any(
        item.name in part.description.required_options
        for part in (weighting, getattr(weighting, "base", weighting))
        for item in get_parameters(type(part))
    )


def find_entry(rules: Mapping[str, Any], group: str, name: str) -> Any:
    """Return the entry of a table.

    Raises
    ------
    ParameterError
        If the name is not in the table; the message suggests the nearest one.
    """
    if name not in rules:
        allowed = f"one of {abbreviate(rules, near=str(name))}"
        raise ParameterError(group, allowed, name, suggest_name(str(name), rules))
    return rules[name]


def _build_optimizer(
    settings: Mapping[str, Any],
    learning_rate: float | None,
    context: RunContext,
    importer: RuleImporter,
) -> ServerOptimizer[Any]:
    options = {**settings}
    name = options.pop("name")
    if learning_rate is not None:
        options["learning_rate"] = learning_rate
    try:
        if name == CUSTOM:
            options["args"] = {**(options.get("args") or {}), **_extract_learning_rate(options)}
            made: ServerOptimizer[Any] = importer(ServerOptimizer, options, context)
        else:
            made = find_entry(SERVER_OPTIMIZERS, "server_optimizer", name).from_options(
                options, context
            )
    except ParameterError as error:
        if error.parameter != "learning_rate":
            raise
        raise ParameterError("server_lr", error.allowed, error.got, error.reason) from None
    return made


def _extract_learning_rate(options: dict[str, Any]) -> dict[str, Any]:
    given = options.pop("learning_rate", None)
    return {} if given is None else {"learning_rate": given}


def _compose_rules(
    options: Mapping[str, Any],
    context: RunContext,
    sampling: Sampling,
    optimizer: ServerOptimizer[Any],
    importer: RuleImporter,
) -> RuleSet:
    selection_options = {**options["selection"], "sampling": sampling}
    selection = _build_part("selection", selection_options, context, importer)
    weighting = _build_part("weighting", options["weighting"], context, importer)
    participation = dict(options["participation"])
    name = participation.pop("name")
    if name != NONE:
        correction = find_entry(PARTICIPATIONS, "participation", name)
        weighting = _apply_correction(weighting, correction, participation, context, selection)
    return RuleSet(selection, weighting, optimizer)


def _apply_correction(
    weighting: Weighting[Any],
    correction: type[Participation[Any]],
    options: Mapping[str, Any],
    context: RunContext,
    selection: Selection,
) -> Weighting[Any]:
    """Return a weighting with its correction for participation.

    Known rates need a selection that declares how often it selects each client. Every client must
    have a chance to be selected.
    """
    context = context.with_counted(partial(get_known_probabilities, selection))
    uses_known_rates = issubclass(correction, KnownRatesCorrection)
    undeclared = declares_probabilities(selection) and context.counted is None
    if undeclared and context.clients and uses_known_rates:
        raise build_undeclared_error(selection, correction)
    never = [client for client, counted in (context.counted or {}).items() if counted == 0.0]
    if never and uses_known_rates:
        raise ParameterError(
            "fraction",
            "so large that a round can select every client that the selection covers",
            selection.sampling.fraction,
            f"client {never[0]} would never be selected, and no weight of "
            f"{correction.description.key} makes up for that",
        )
    return correct_weighting(correction, weighting, options, context)


_KINDS: Mapping[str, tuple[Any, Mapping[str, type[Rule]]]] = {
    "selection": (Selection, ALL_SELECTIONS),
    "weighting": (Weighting, ALL_WEIGHTINGS),
}


def _build_part(
    group: str, settings: Mapping[str, Any], context: RunContext, importer: RuleImporter
) -> Any:
    (kind, rules), options = _KINDS[group], dict(settings)
    name = options.pop("name")
    if name == CUSTOM:
        sampling = options.pop("sampling", None)
        if sampling is not None:
            options["args"] = {**(options.get("args") or {}), "sampling": sampling}
        return importer(kind, options, context)
    return find_entry(rules, group, name).from_options(options, context)


def to_settings(entry: StrategyEntry, options: Mapping[str, Any], rules: RuleSet) -> dict[str, Any]:
    """Return the settings ``strategy`` and ``server_optimizer`` from which ``build_rules`` starts.

    Parameters
    ----------
    entry : StrategyEntry
        The strategy; one that is not in ``NAMED_STRATEGIES`` is described by its parts.
    options : mapping
        The parameters given to its rules, by name.
    rules : RuleSet

    Raises
    ------
    ParameterError
        If settings cannot name a part of a custom strategy.
    """
    sampling = rules.selection.sampling
    sampled = {"fraction": sampling.fraction, "minimum": sampling.minimum}
    if NAMED_STRATEGIES.get(entry.key) is entry:
        selected_options = _select_options(entry.rule_classes, options)
        strategy = {"name": entry.key, **sampled, **selected_options}
    else:
        strategy = {"name": COMPOSED, **sampled, **_describe_parts(entry, options)}
    optimizer = _describe_optimizer(rules.server_optimizer)
    return {"strategy": to_builtins(strategy), "server_optimizer": to_builtins(optimizer)}


def to_builtins(value: Any) -> Any:
    """Return a value in the types of YAML and JSON, with Python numbers instead of NumPy's."""
    if isinstance(value, Mapping):
        return {key: to_builtins(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [to_builtins(item) for item in value]
    if isinstance(value, float):
        return float(value)
    return value


def _select_options(parts: Sequence[type[Any]], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of parts, with defaults for those that are not given."""
    declared = [item for part in parts for item in get_parameters(part)]
    return {item.name: options.get(item.name, item.default) for item in declared}


def _describe_parts(entry: StrategyEntry, options: Mapping[str, Any]) -> dict[str, Any]:
    participation = entry.participation
    is_listed = participation is None or participation in PARTICIPATIONS.values()
    if entry.memory is not None or not is_listed:
        raise ParameterError(
            "records",
            "None for a strategy with a memory or a participation correction that is in no table",
            entry.key,
            "settings cannot name it",
        )
    correction = {"name": NONE}
    if participation is not None:
        correction = {
            "name": participation.description.key,
            **_select_options([participation], options),
        }
    return {
        "selection": _describe_part(ALL_SELECTIONS, entry.selection, options),
        "weighting": _describe_part(ALL_WEIGHTINGS, entry.weighting, options),
        "participation": correction,
    }


def _describe_part(
    table: Mapping[str, type[Rule]], part: type[Rule], options: Mapping[str, Any]
) -> dict[str, Any]:
    return _describe_rule(table, part, _select_options([part], options))


def _describe_optimizer(optimizer: ServerOptimizer[Any]) -> dict[str, Any]:
    items: Sequence[Field[Any]] = fields(optimizer) if is_dataclass(optimizer) else ()
    names = [item.name for item in items if item.name != "learning_rate"]
    given = {name: getattr(optimizer, name) for name in names}
    named = _describe_rule(SERVER_OPTIMIZERS, type(optimizer), given)
    return {**named, "learning_rate": optimizer.learning_rate}


def _describe_rule(
    table: Mapping[str, type[Rule]], rule: type[Rule], parameters: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a rule by its key, or by its import path if it is not in the table."""
    key = rule.description.key
    if table.get(key) is rule:
        return {"name": key, **parameters}
    return {"name": CUSTOM, "path": _get_import_path(rule), "args": dict(parameters)}


def _get_import_path(rule: type[Any]) -> str:
    """Return the import path of a rule: by its module, or by the file that the user ran."""
    if rule.__module__ == "__main__":
        return f"{inspect.getsourcefile(rule)}:{rule.__qualname__}"
    return f"{rule.__module__}.{rule.__qualname__}"
