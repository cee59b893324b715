"""Report a run to TensorBoard and trackers while its records are written."""

from collections.abc import Mapping
from pathlib import Path


class RunCallback:
    """A listener to a run's events; a subclass overrides the events that it needs.

    An ``OSError`` or ``RunError`` raised by any method but ``finish`` ends the run, like a record
    that cannot be written. A callback that the run can do without therefore catches its own errors.
    """

    def start(self, directory: Path) -> None:
        """Start; the run's records are in ``directory``."""

    def log_round(self, server_round: int, scalars: Mapping[str, float]) -> None:
        """Receive the numbers of a round, by names such as ``round/global_loss``."""

    def flush(self) -> None:
        """Write buffered data, before a checkpoint records the lengths of the files."""

    def close(self) -> None:
        """Close the files."""

    def finish(self, status: str, files: Mapping[str, str]) -> None:
        """Receive the run's final status, and the paths of its records by name."""
