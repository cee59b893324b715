"""Describe rules for the tables of the documentation."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RuleDescription:
    """The texts about a rule in the documentation's tables; ``python -m docs.tables`` writes them.

    Each text is Markdown without a full stop, or empty. A strategy takes its texts from its
    participation correction, or else from its weighting, and from its selection.

    Parameters
    ----------
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
    secure_sum : str
        Whether sums of updates alone would be enough.
    """

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
    secure_sum: str = ""


SUM_BY_LOSSES = (
    "only in two steps: the losses in the clear, then the sum of updates "
    "with the weights that follow; the losses stay visible"
)
"""``secure_sum`` of a rule whose weights follow from the losses."""

SUM_BY_PARTICIPATION = (
    "possible: the weights follow from participation alone, so clients can "
    "scale their updates themselves"
)
"""``secure_sum`` of a rule whose weights follow from participation."""

NO_SUM = "no: it needs the inner products of updates, and the norm of each"
"""``secure_sum`` of a rule that compares updates."""
