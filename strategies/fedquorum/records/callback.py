"""Report a run to observers while its records are written: TensorBoard, trackers."""

from collections.abc import Mapping
from pathlib import Path


class RunCallback:
    """An observer of a run; a subclass overrides the events that it needs.

    An ``OSError`` or ``RunError`` that one raises, but for ``finish``, ends the run like a record
    that cannot be written. So an observer without which a run is worth as much catches its own.
    """

    def start(self, directory: Path) -> None:
        """Begin; the run's records are in ``directory``."""

    def log_round(self, server_round: int, scalars: Mapping[str, float]) -> None:
        """Take the numbers of a round, by names such as ``round/global_loss``."""

    def flush(self) -> None:
        """Write buffered data, before a checkpoint notes the lengths of the files."""

    def close(self) -> None:
        """Close the files."""

    def finish(self, status: str, files: Mapping[str, str]) -> None:
        """Take the run's final status, and the paths of its records by their names."""
