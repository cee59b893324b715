"""Values that change over the rounds. Rounds count from t = 0 to T - 1, warm-up included."""

import math
from collections.abc import Callable


def rounds_in(fraction: float, num_rounds: int) -> int:
    """Return how many rounds t satisfy t < fraction * T.

    The product is rounded to 9 digits first: 0.07 * 100 is 7.000000000000001 in binary
    and would otherwise count an eighth round.
    """
    return math.ceil(round(fraction * num_rounds, 9))


def epsilon_factor(
    schedule: str, t: int, num_rounds: int, step_fraction: float, rate: float
) -> float:
    """Return eps_t / eps_0 in round t, in [0, 1], with u = t / max(T - 1, 1).

    ``constant``: 1. ``step``: 1 while t < step_fraction * T, then 0. ``linear``: 1 - u.
    ``cosine``: (1 + cos(pi u)) / 2. ``exponential``: exp(-rate u). ``sqrt``: 1 / sqrt(t + 1).

    Raises
    ------
    ValueError
        For a schedule that does not exist.
    """
    u = t / max(num_rounds - 1, 1)
    factors: dict[str, Callable[[], float]] = {
        "constant": lambda: 1.0,
        "step": lambda: 1.0 if t < rounds_in(step_fraction, num_rounds) else 0.0,
        "linear": lambda: 1.0 - u,
        "cosine": lambda: (1.0 + math.cos(math.pi * u)) / 2.0,
        "exponential": lambda: math.exp(-rate * u),
        "sqrt": lambda: 1.0 / math.sqrt(t + 1),
    }
    if schedule not in factors:
        raise ValueError(f"no epsilon schedule named {schedule!r}")
    return factors[schedule]()
