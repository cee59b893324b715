"""What every rule declares of itself, beside its maths.

A rule is a frozen dataclass. Its parameters are fields made by ``parameter``, which carry the
default and the allowed range; nothing else states them. The settings, the command line's help,
the constructors of the strategies and the documentation are derived from the declarations::

    >>> @dataclass(frozen=True)
    ... class Scale(Rule):
    ...     key = "scale"
    ...     factor: float = parameter(1.0, POSITIVE)
    >>> Scale(-1.0)
    Traceback (most recent call last):
    ...
    fedquorum.errors.ParameterError: factor must be a number > 0, got -1.0
"""

from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from enum import StrEnum
from typing import Any, ClassVar, Protocol, Self, TypeVar

from .parameters import Range
from .schedules import ClientRate
from .search import Search
from .types import FloatArray

__all__ = ["Question", "RatePattern", "Rule", "RunFacts", "parameter", "supplied"]


class Question(StrEnum):
    """What a method answers, beside how to average."""

    PRIORITY = "priority"
    PARTICIPATION = "participation"
    FAIRNESS = "fairness"
    AVERAGE = "average"
    APPEAL = "appeal"


class RatePattern(Protocol):
    """How participation rates change with time; see ``fedquorum.client.availability.periodic``."""

    def at(self, p: FloatArray, t: int) -> FloatArray:
        """Return p_n(t) of round t (from 0) of clients with these p_n, shape (N,)."""

    def largest(self, p: FloatArray) -> FloatArray:
        """Return the largest p_n(t) there is, 0 for a client that never takes part, shape (N,)."""


@dataclass(frozen=True)
class RunFacts:
    """What rules take from the run that they are part of, rather than from their parameters.

    Parameters
    ----------
    num_rounds : int, optional
        T, the rounds of the run.
    seed : int
        The run's seed, >= 0.
    rates : mapping of int to float, optional
        p_n, the participation rate of every client, where a simulation knows it.
    clients : tuple of int
        All clients, empty as long as they are not known.
    pattern : RatePattern, optional
        How ``rates`` change with time; None where they stay the same.
    requirements : mapping of int to float, optional
        rho_k, the loss that each client wants the model to be below, where the run has them.
    client_rate : ClientRate, optional
        lr_t, the clients' learning rate of a round, where the run knows it.
    """

    num_rounds: int | None = None
    seed: int = 0
    rates: Mapping[int, float] | None = None
    clients: tuple[int, ...] = ()
    pattern: RatePattern | None = None
    requirements: Mapping[int, float] | None = None
    client_rate: ClientRate | None = None


def parameter(default: Any, allowed: Range, search: Search | None = None) -> Any:
    """Return the dataclass field of a parameter, with its default and its allowed range.

    With a default of None, None is allowed too. ``search`` is where a tuning looks for a better
    value; without it the parameter is not tuned.
    """
    return field(
        default=default, metadata={"allowed": allowed, "parameter": True, "search": search}
    )


def supplied(allowed: Range, **default: Any) -> Any:
    """Return the field of a value that comes from the run or from another part, in a range."""
    return field(metadata={"allowed": allowed, "parameter": False}, **default)


class Rule:
    """The base of selections, weightings, participation corrections and server optimizers.

    ``key`` is the rule's name in settings and records; ``summary`` says in one line what it does.
    ``needed`` names what a user has to say where no run knows it: what is allowed, and why.

    Raises
    ------
    ParameterError
        When made with a value outside its range.
    """

    key: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    needed: ClassVar[Mapping[str, tuple[str, str]]] = {}

    def __post_init__(self) -> None:
        check_parameters(self)

    @classmethod
    def of(cls, options: Mapping[str, Any], facts: RunFacts) -> Self:
        """Return the rule with these parameters, and what else it takes from the run."""
        return cls(**options)


def check_parameters(rule: Any) -> None:
    """Compare every field that has a range with it.

    Raises
    ------
    ParameterError
        For the first value that is not allowed.
    """
    for item in fields(rule):
        value = getattr(rule, item.name)
        optional = item.default is None and value is None
        if "allowed" in item.metadata and not optional:
            item.metadata["allowed"].check(item.name, value)


def parameters_of(rule: type[Any]) -> tuple[Field[Any], ...]:
    """Return the fields of a rule's parameters, in their order."""
    return tuple(item for item in fields(rule) if item.metadata.get("parameter"))


RuleT = TypeVar("RuleT", bound=Rule)


def table(rules: Iterable[type[RuleT]]) -> dict[str, type[RuleT]]:
    """Return rules by their keys, each once."""
    found: dict[str, type[RuleT]] = {}
    for rule in rules:
        if not rule.key or rule.key in found:
            raise ValueError(f"{rule.__name__} needs a key of its own, got {rule.key!r}")
        found[rule.key] = rule
    return found
