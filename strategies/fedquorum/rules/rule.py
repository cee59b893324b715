"""Declare rules and their parameters.

A rule is a frozen dataclass. Each parameter is a field made by ``parameter``, with its default and
its allowed range. The settings, the command line's help, the constructors of the strategies and the
documentation all follow from this declaration::

    >>> @dataclass(frozen=True)
    ... class Scale(Rule):
    ...     description = RuleDescription("scale", "Scale by a factor.")
    ...     factor: float = parameter(1.0, POSITIVE)
    >>> Scale(-1.0)
    Traceback (most recent call last):
    ...
    fedquorum.errors.ParameterError: factor must be a number > 0, got -1.0
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, ClassVar, Protocol, Self, TypeVar

from .description import RuleDescription
from .hooks import NO_HOOKS, Hooks
from .parameters import Range, SearchSpace
from .schedules import ClientLRSchedule
from .types import FloatArray, PerClient, Population

__all__ = ["RatePattern", "Rule", "RunContext", "injected_value", "parameter"]


class RatePattern(Protocol):
    """A change of participation rates with time; see ``fedquorum.client.availability.periodic``."""

    def compute_probabilities(self, p: FloatArray, t: int) -> FloatArray:
        """Return p_n(t) in round t (from 0) for clients with these p_n, shape (N,)."""

    def compute_max_probabilities(self, p: FloatArray) -> FloatArray:
        """Return the largest p_n(t), 0 for a client that never takes part, shape (N,)."""


@dataclass(frozen=True)
class RunContext:
    """Facts about a run that its rules use beside their parameters.

    Parameters
    ----------
    num_rounds : int, optional
        T, the rounds of the run.
    seed : int
        The run's seed, >= 0.
    rates : mapping of int to float, optional
        p_n, the participation rate of every client, if a simulation knows it.
    clients : tuple of int
        All clients; empty until they have registered.
    pattern : RatePattern, optional
        The change of ``rates`` over time; None if they are constant.
    client_lr_schedule : ClientLRSchedule, optional
        lr_t, the clients' learning rate in a round, if the run knows it.
    priority : frozenset of int, optional
        The clients with priority; None for all.
    counted : mapping of int to float, optional
        The probability that an available client counts: that it is selected and, under a deadline
        or quorum, replies in time. None leaves it to the selection.
    hooks : Hooks
        Hooks that settings of the run add to every strategy, such as ``evaluation.requirement``.
    """

    num_rounds: int | None = None
    seed: int = 0
    rates: Mapping[int, float] | None = None
    clients: tuple[int, ...] = ()
    pattern: RatePattern | None = None
    client_lr_schedule: ClientLRSchedule | None = None
    priority: frozenset[int] | None = None
    counted: Mapping[int, float] | None = None
    hooks: Hooks = NO_HOOKS

    def with_counted(self, probabilities: Callable[[Population], PerClient | None]) -> Self:
        """Return the context with ``counted``, by default the probabilities of a selection."""
        if self.counted is not None or not self.clients:
            return self
        population = Population(
            self.clients, frozenset(self.clients) if self.priority is None else self.priority
        )
        return replace(self, counted=probabilities(population))


def parameter(default: Any, allowed: Range, search: SearchSpace | None = None) -> Any:
    """Return a dataclass field for a parameter, with its default and its allowed range.

    If the default is None, None is also allowed. ``search`` is the range in which tuning searches
    for a value; without it, tuning does not change the parameter.
    """
    return field(
        default=default, metadata={"allowed": allowed, "parameter": True, "search": search}
    )


def injected_value(allowed: Range, **default: Any) -> Any:
    """Return a dataclass field for a value that the run or another part supplies."""
    return field(metadata={"allowed": allowed, "parameter": False}, **default)


class Rule:
    """The base class of selections, weightings, participation corrections and server optimizers.

    A rule declares what it is once, in ``description``. Facts on which a round depends, and which
    parameters may change, are the ``traits`` of selections and weightings.

    Raises
    ------
    ParameterError
        If a value is outside its range.
    """

    description: ClassVar[RuleDescription] = RuleDescription()

    def __post_init__(self) -> None:
        check_parameters(self)

    @property
    def hooks(self) -> Hooks:
        """The rule's hooks; none by default."""
        return NO_HOOKS

    @classmethod
    def from_options(cls, options: Mapping[str, Any], context: RunContext) -> Self:
        """Return the rule with these parameters and the values that it takes from the run."""
        return cls(**options)


def check_parameters(rule: Any) -> None:
    """Check every field that has a range.

    Raises
    ------
    ParameterError
        For the first value outside its range.
    """
    for item in fields(rule):
        value = getattr(rule, item.name)
        optional = item.default is None and value is None
        if "allowed" in item.metadata and not optional:
            item.metadata["allowed"].check(item.name, value)


def get_rule_name(rule: type[Rule] | Rule) -> str:
    """Return a rule's key, or the name of its class if it has none."""
    kind = rule if isinstance(rule, type) else type(rule)
    return rule.description.key or kind.__name__


def get_parameters(rule: type[Any]) -> tuple[Field[Any], ...]:
    """Return the fields of a rule's parameters, in the order of declaration."""
    return tuple(item for item in fields(rule) if item.metadata.get("parameter"))


RuleT = TypeVar("RuleT", bound=Rule)


def index_by_key(rules: Iterable[type[RuleT]]) -> dict[str, type[RuleT]]:
    """Return rules by their keys; every key is unique."""
    found: dict[str, type[RuleT]] = {}
    for rule in rules:
        key = rule.description.key
        assert key, f"{rule.__name__} needs a key"
        assert key not in found, f"{rule.__name__} needs a unique key, got {key!r}"
        found[key] = rule
    return found
