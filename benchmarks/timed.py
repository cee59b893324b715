"""One run of the command ``fedquorum``, with the time after every round noted.

python benchmarks/timed.py TIMES KEY=VALUE ...
"""

import sys
import time
from pathlib import Path
from typing import Any

from fedquorum.records.writer import RunRecords

from server_app.command_line import main

if __name__ == "__main__":
    times = Path(sys.argv.pop(1))
    written = RunRecords.add_round

    def noted(self: RunRecords, *arguments: Any) -> None:
        """Write a round as always, then the time."""
        written(self, *arguments)
        with times.open("a") as file:
            print(time.time(), file=file)

    RunRecords.add_round = noted  # type: ignore[assignment,method-assign]
    main()
