"""What the documents say of a rule."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RuleDescription:
    """What the documents say of a rule in their tables; ``python -m docs.tables`` writes them.

    Each is Markdown without a full stop, and empty where the rule has nothing to say. A strategy
    says what its participation correction says, or else its weighting, and what its selection says.

    Parameters
    ----------
    use : str
        When to use a strategy, after "use it when"; empty for one to compare others with.
    clients : str
        The clients that take part, of a selection.
    weight : str
        How much an update counts, in the paper's symbols.
    source : str
        The paper, with a link and the algorithm or equation.
    state : str
        The bytes that the server keeps of a client between rounds; empty where the size of the
        state says it.
    trusts : str
        What the server believes of a reply.
    gain : str
        What a dishonest client gains from a lie.
    limit : str
        What bounds that gain.
    update_bound : str
        c, the most that one update counts, for differential privacy; empty if there is no bound.
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
