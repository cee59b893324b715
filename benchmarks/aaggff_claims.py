"""AAggFF's claims, measured: how the clients' test metrics are spread, for every method.

    python benchmarks/aaggff_claims.py DIR [DIR ...]

reads all completed runs of aaggff/ experiments below the folders and prints Markdown: the
fairness tables of ``fedquorum-report``, with the regret and its bound, and the paired
differences of AAggFF to each other method.
"""

import argparse
from pathlib import Path

from server_app.report.groups import group_runs
from server_app.report.runs import find_runs, load_run
from server_app.report.tables import (
    differences,
    differences_table,
    fairness_table,
    markdown,
    summarize,
)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directories", nargs="+", type=Path, metavar="DIR")
    runs = [load_run(d) for d in find_runs(parser.parse_args().directories)]
    done = [r for r in runs if r.status == "completed" and r.experiment.startswith("aaggff/")]
    for experiment in sorted({run.experiment for run in done}):
        own = [run for run in done if run.experiment == experiment]
        rows = summarize(group_runs(own))
        lengths = sorted({len(run.rounds) for run in own})
        title = f"{experiment}, rounds: {', '.join(map(str, lengths))}"
        tables = [fairness_table(rows, title), differences_table(differences(rows), title)]
        print(f"\n{markdown(tables)}")


if __name__ == "__main__":
    main()
