"""Continue a strategy from a checkpoint."""

from typing import TYPE_CHECKING

from ..errors import FedQuorumError, RunError, one_line
from ..state import array_like
from .codec import NamedArrays
from .strategy import ComposedStrategy

if TYPE_CHECKING:
    from ..records.checkpoint import Checkpoint


def go_on(strategy: ComposedStrategy, start: "Checkpoint", initial: NamedArrays) -> None:
    """Bring a strategy to where it was.

    Parameters
    ----------
    strategy : ComposedStrategy
        One with the same rules, before its first round.
    start : Checkpoint
        The round after which it goes on.
    initial : mapping
        The model that a new run would begin with, of the same form.

    Raises
    ------
    RunError
        If the checkpoint is of another strategy or model.
    """
    try:
        for name, array in initial.items():
            array_like(array, name, start.model)
        strategy.restore(start.strategy, start.model)
    except (FedQuorumError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise RunError(f"the checkpoint does not fit the strategy: {one_line(error)}") from None
