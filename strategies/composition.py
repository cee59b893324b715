"""Which rules go together, and what each combination divides by.

The factors of an admitted client multiply: what the weighting gives it, times omega where a rule
corrects for how often it is there. The sum is divided by the same without omega, over everybody
whom the selection covers, there or not; where nothing is corrected, rules renormalise as in their
papers, over the clients admitted in the round. Any server optimizer moves the model by that sum.
"""

from typing import Any

from strategies.parameters import ParameterError
from strategies.selection import Alone, EpsilonGate, Everyone, Selection
from strategies.server_optimizer import SGD, ServerOptimizer
from strategies.weighting import (
    AFL,
    AAggFFD,
    AAggFFS,
    DataFraction,
    FedMGDAPlus,
    NoWeight,
    Weighting,
)


def divisor(selection: Selection, weighting: Weighting[Any]) -> str:
    """Return in words what the weights of a combination are divided by."""
    whom = selection.covers if weighting.fixed_divisor else "the clients admitted in the round"
    if selection.sampling.priority_draws is not None and isinstance(weighting, DataFraction):
        whom = "all priority clients, drawn or not, and the others admitted in the round"
    return weighting.divisor.format(whom=whom)


def check_composition(
    selection: Selection, weighting: Weighting[Any], server_optimizer: ServerOptimizer[Any]
) -> None:
    """Refuse rules that make no sense together.

    Raises
    ------
    ParameterError
        With the setting, what is allowed, and the reason.
    """
    _check_alone(selection, weighting, server_optimizer)
    _check_mixing(selection, weighting)
    if isinstance(weighting, FedMGDAPlus) and not isinstance(server_optimizer, SGD):
        raise ParameterError(
            "server_optimizer must be sgd with weighting=fedmgda (another step than along the "
            "shortest combination may harm clients, which it is there to avoid), got "
            f"{_name(server_optimizer)}"
        )
    draws = selection.sampling.priority_draws
    if draws is not None and (
        weighting.fixed_divisor or isinstance(weighting, AAggFFD | AFL) or weighting.factor == "1"
    ):
        raise ParameterError(
            "priority_draws must be null with a weighting that is not by data (a draw counts as "
            f"its client's share of the data), got {draws}"
        )
    if weighting.needs_losses and isinstance(selection, Everyone) and not selection.asks_losses:
        raise ParameterError(
            "asks_losses must be true with a weighting by the clients' losses, got False"
        )


def _check_alone(
    selection: Selection, weighting: Weighting[Any], server_optimizer: ServerOptimizer[Any]
) -> None:
    own = isinstance(selection, Alone), isinstance(weighting, NoWeight)
    if own[0] != own[1]:
        raise ParameterError(
            "selection=alone and weighting=no_weight go together only (every client has a model "
            f"of its own, nothing is aggregated), got {_name(selection)} with {_name(weighting)}"
        )
    if own[0] and not isinstance(server_optimizer, SGD):
        raise ParameterError(
            "server_optimizer must be sgd where every client has a model of its own (the server "
            f"moves none), got {_name(server_optimizer)}"
        )


def _check_mixing(selection: Selection, weighting: Weighting[Any]) -> None:
    if isinstance(weighting, AAggFFS) and not isinstance(selection, Everyone):
        raise ParameterError(
            "selection must be everyone with weighting=aaggff_s (its Newton step needs the losses "
            f"of all clients in every round), got {_name(selection)}"
        )
    if isinstance(weighting, AAggFFS) and selection.sampling.fraction < 1.0:
        raise ParameterError(
            "fraction must be 1 for AAggFF-S, whose Newton step needs the responses of all "
            f"clients in every round, got {selection.sampling.fraction!r}; with sampling use "
            "AAggFF-D"
        )
    if isinstance(weighting, FedMGDAPlus) and isinstance(selection, EpsilonGate):
        raise ParameterError(
            "selection must not be epsilon_gate with weighting=fedmgda (the step harms none of "
            "those in it, so a client without priority could stop that of the priority clients)"
        )


def _name(rule: object) -> str:
    return type(rule).__name__
