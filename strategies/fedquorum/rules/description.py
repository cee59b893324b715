"""Describe rules: what settings, help, reports, audits and the documentation say of each."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

__all__ = ["Goal", "RuleDescription"]


class Goal(StrEnum):
    """The goal of a method beside averaging."""

    PRIORITY = "priority"
    PARTICIPATION = "participation"
    FAIRNESS = "fairness"
    AVERAGE = "average"
    APPEAL = "appeal"


@dataclass(frozen=True)
class RuleDescription:
    """All facts about a rule that no parameter changes, and that say what it is.

    ``python -m docs.tables`` writes the texts from ``use`` to ``bound_needs`` into the tables of
    the documentation. Each is Markdown without a full stop, or empty. A strategy takes them from
    its participation correction, or else from its weighting, and from its selection.

    Parameters
    ----------
    key : str
        The rule's name in settings and records.
    summary : str
        A description in one line. A published name comes first, with a colon after it.
    use : str
        When to use a strategy, after "use it when"; empty for one to compare others with.
    clients : str
        The clients that take part, for a selection.
    weight : str
        How much an update counts, in the paper's symbols.
    source : str
        The paper, with a link and the algorithm or equation.
    state : str
        The bytes that the server stores for each client between rounds; empty if they follow from
        the size of the state.
    trusts : str
        The parts of a reply that the server trusts.
    gain : str
        The gain of a dishonest client from a lie.
    limit : str
        The bound on that gain.
    update_bound : str
        c, the largest weight of one update, for differential privacy; empty without a bound.
    bound_needs : str
        The settings that this bound needs.
    required_options : mapping of str to tuple of str
        The options that a user must give unless the run supplies them, each with its allowed values
        and the reason.
    population : str
        For a selection, the clients whose updates can count, available or not: a fixed denominator
        sums over them. Empty if no update counts.
    goal : Goal
        The goal of a weighting.
    is_strategy : bool
        Whether ``strategy=<key>`` is this weighting on all clients or a sample of them.
    is_baseline : bool
        Whether the papers use the rule as a baseline.
    reference_for : tuple of Goal
        The goals for which this rule is a study's baseline.
    sampled_scope : str
        The clients in a weighting's sum if priority clients are sampled with replacement; empty if
        that makes no difference.
    default_form : str
        The default one of several published forms; empty if there is only one.
    authors_form : str
        The form behind the paper's tables, if it differs; otherwise empty.
    unreplayable : str
        The part of a decision that the records cannot replay, and why; empty if they can replay
        all of it.
    """

    key: str = ""
    summary: str = ""
    use: str = ""
    clients: str = ""
    weight: str = ""
    source: str = ""
    state: str = ""
    trusts: str = ""
    gain: str = ""
    limit: str = ""
    update_bound: str = ""
    bound_needs: str = ""
    required_options: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    population: str = "all registered clients"
    goal: Goal = Goal.FAIRNESS
    is_strategy: bool = True
    is_baseline: bool = True
    reference_for: tuple[Goal, ...] = ()
    sampled_scope: str = ""
    default_form: str = ""
    authors_form: str = ""
    unreplayable: str = ""
