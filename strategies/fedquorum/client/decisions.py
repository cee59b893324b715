"""What a client decides alone, on its own device. Pure functions, plain numbers."""


def joins(
    criterion: str,
    epsilon: float,
    *,
    global_loss: float,
    global_accuracy: float,
    loss: float,
    accuracy: float,
) -> bool:
    """Return whether a non-priority client trains in this round (FedALIGN, Algorithm 1).

    criterion ``loss``: F_k(w_t) <= F(w_t) + eps_t; ``accuracy``, the papers' proxy:
    acc_k >= acc - eps_t. eps_t = 0 closes the gate, even at equal losses; a NaN never joins.

    Parameters
    ----------
    criterion : {"loss", "accuracy"}
        What is compared.
    epsilon : float
        eps_t >= 0, inf allowed, in units of the criterion.
    global_loss, global_accuracy : float
        F(w_t) and its accuracy, as broadcast.
    loss, accuracy : float
        The received model on the client's own training data.

    Raises
    ------
    ValueError
        For a criterion that does not exist.
    """
    if criterion not in ("loss", "accuracy"):
        raise ValueError(f"criterion must be loss or accuracy, got {criterion!r}")
    if epsilon == 0:
        return False
    if criterion == "accuracy":
        return accuracy >= global_accuracy - epsilon
    return loss <= global_loss + epsilon
