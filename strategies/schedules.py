"""Values that change over the rounds. Rounds count from t = 0 to T - 1, warm-up included."""

import math


def rounds_in(fraction: float, num_rounds: int) -> int:
    """Return how many rounds t satisfy t < fraction * T.

    The product is rounded to 9 digits first: 0.07 * 100 is 7.000000000000001 in binary
    and would otherwise count an eighth round.
    """
    return math.ceil(round(fraction * num_rounds, 9))


def epsilon_at(
    schedule: str, epsilon: float, t: int, num_rounds: int, step_fraction: float
) -> float:
    """Return eps_t, the gate's threshold in round t.

    ``constant``: eps_0. ``step``: eps_0 while t < step_fraction * T, then 0.

    Raises
    ------
    ValueError
        For a schedule that does not exist.
    """
    if schedule == "constant":
        return epsilon
    if schedule == "step":
        return epsilon if t < rounds_in(step_fraction, num_rounds) else 0.0
    raise ValueError(f"no epsilon schedule named {schedule!r}")
