"""Log each distinct failure of a run once: a broken model fails at every client in every round."""

import threading
from logging import ERROR

from fedquorum.errors import FedQuorumError, describe_error, to_one_line
from fedquorum.rules.failures import normalize_reason
from flwr.common.logger import log


class FailureLog:
    """Logs failures, each distinct one once in a run.

    Two failures are the same if their errors are, regardless of the numbers in their texts, such as
    the client's.

    Attributes
    ----------
    run_id : int
        The run of the current message, by Flower's id: the process of a node can serve several.
    """

    def __init__(self) -> None:
        self.run_id = 0
        self._logged: set[tuple[int, str, str]] = set()
        self._lock = threading.Lock()  # clients train in several threads

    def clear(self) -> None:
        """Log every failure once more, for a new run."""
        with self._lock:
            self._logged.clear()

    def log(self, level: int, text: str, error: Exception) -> None:
        """Log a failure that has not been logged yet.

        A user can correct the cause of an error of ours, which therefore has no trace. A warning
        has none either: what caused it is tried again, and fails again if it must.
        """
        key = self.run_id, normalize_reason(text), normalize_reason(describe_error(error))
        with self._lock:
            if key in self._logged:
                return
            self._logged.add(key)
        if isinstance(error, FedQuorumError):
            log(level, "%s: %s", text, error)
        elif level < ERROR:
            log(level, "%s: %s: %s", text, type(error).__name__, to_one_line(error))
        else:
            log(level, text, exc_info=error)


FAILURE_LOG = FailureLog()
"""The failures of this process's run."""

log_failure = FAILURE_LOG.log
