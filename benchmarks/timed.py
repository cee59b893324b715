"""Run the command ``fedquorum`` and write the time after every round to a file.

python benchmarks/timed.py TIMES KEY=VALUE ...
"""

import sys
import time
from pathlib import Path
from typing import Any

from fedquorum.records.writer import RunWriter

from server_app.cli.fedquorum import main

if __name__ == "__main__":
    times_file = Path(sys.argv.pop(1))
    original_end_round = RunWriter.end_round

    def end_timed_round(self: RunWriter, *arguments: Any) -> None:
        """Record a round, then write the time."""
        original_end_round(self, *arguments)
        with times_file.open("a") as file:
            print(time.time(), file=file)

    RunWriter.end_round = end_timed_round  # type: ignore[assignment,method-assign]
    main()
