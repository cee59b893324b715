"""Define the facts with which a run's manifest begins."""

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
        What the settings were composed from, beside the experiment, each as ``key=value``.
    strategy : str
        The name of the strategy.
    seed : int
        The run's seed.
    engine : str
        What carries the messages: ``in-process``, ``ray`` or ``flower``.
    device : str
        Where the clients train, as configured.
    rounds : int
        How many rounds there are to be.
    source : str
        The folder of the code.
    commit : str or None
        The code's git commit, None outside git.
    packages : mapping
        The versions of the packages that shape a result, None where one is not installed.
    arithmetic : mapping
        What decides the last bits beside the settings, as JSON has it; empty where nobody says.
    data : mapping
        What the data was taken for, as JSON has it; empty where nobody says.
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
