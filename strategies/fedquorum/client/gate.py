"""Decide on the client's device, by pure functions of plain numbers."""


def should_train(
    criterion: str,
    epsilon: float,
    *,
    global_loss: float,
    global_accuracy: float,
    loss: float,
    accuracy: float,
) -> bool:
    """Say whether a non-priority client trains in this round (FedALIGN, Algorithm 1).

    With the criterion ``loss`` it trains if F_k(w_t) <= F(w_t) + eps_t; with ``accuracy``, the
    papers' proxy, if acc_k >= acc - eps_t. eps_t = 0 closes the gate, even for equal losses. A NaN
    never trains.

    Parameters
    ----------
    criterion : {"loss", "accuracy"}
        The quantity to compare.
    epsilon : float
        eps_t >= 0, inf allowed, in units of the criterion.
    global_loss, global_accuracy : float
        F(w_t) and its accuracy, as broadcast.
    loss, accuracy : float
        Loss and accuracy of the received model on the client's training data.

    Raises
    ------
    ValueError
        If there is no such criterion.
    """
    if criterion not in ("loss", "accuracy"):
        raise ValueError(f"criterion must be loss or accuracy, got {criterion!r}")
    if epsilon == 0:
        return False
    if criterion == "accuracy":
        return accuracy >= global_accuracy - epsilon
    return loss <= global_loss + epsilon
