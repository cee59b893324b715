"""Define the facts at the top of a run's manifest."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class RunInfo:
    """The identity of a run, and of its code.

    Parameters
    ----------
    experiment : str
        The name of the preset.
    overrides : tuple of str
        The overrides of the experiment's settings, each as ``key=value``.
    strategy : str
        The name of the strategy.
    seed : int
    engine : str
        The carrier of the messages: ``in-process``, ``ray`` or ``flower``.
    device : str
        Where the clients train, as configured.
    rounds : int
        The planned number of rounds.
    source : str
        The folder of the code.
    commit : str or None
        The code's git commit; None outside git.
    packages : mapping
        The versions of the packages that affect a result, None for one that is not installed.
    arithmetic : mapping
        The facts beside the settings that affect the last bits, as JSON; empty if not given.
    data : mapping
        How the data was interpreted, as JSON; empty if not given.
    """

    experiment: str
    overrides: tuple[str, ...]
    strategy: str
    seed: int
    engine: str
    device: str
    rounds: int
    source: str
    commit: str | None
    packages: Mapping[str, str | None]
    arithmetic: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
