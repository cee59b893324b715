"""Format the help of ``fedquorum``: its usage, the options of every group, and all settings."""

import textwrap
from collections.abc import Sequence

from conf.compose import GROUPS, PARTS, compose_overrides, options

WIDTH = 100
OPTION_COLUMN = 26
USAGE = """\
FedQuorum decides which clients take part, how often each one counts, and how much.

  fedquorum GROUP=OPTION KEY=VALUE ...    run one job in this process
  fedquorum -m KEY=A,B,C ...              run all combinations of values
  fedquorum resume=DIR                    resume an interrupted run
  fedquorum --help strategy=fedau ...     show the settings of other options
  fedquorum --hydra-help                  show Hydra's flags

  fedquorum audit DIR                     replay every decision from the records
  fedquorum data KEY=VALUE ...            show each client's data before any training
  fedquorum predict DIR ROWS              predict with the model of a run
  fedquorum report DIR ...                make a page, tables and figures of runs, or follow a run
  fedquorum study KEY=VALUE ...           find out which method helps, and by how much

Each of the last five has its own --help.

On CPUs of one kind, runs with the same settings and seed have the same bits, with any number of
nodes, resumed or not (docs/reliability.md).
"""


def format_help(overrides: Sequence[str]) -> str:
    """Return the help, with the settings composed from ``overrides``.

    Raises
    ------
    SettingsError
        If an override is wrong.
    """
    settings = compose_overrides(tuple(overrides)).to_yaml()
    groups = "\n".join(map(_format_group, ("experiment", *GROUPS, *PARTS, "hydra/sweeper")))
    return (
        f"{USAGE}\nGroups and their options:\n{groups}\n\n"
        f"Settings and their values for these words:\n{settings}"
    )


def _format_group(group: str) -> str:
    return textwrap.fill(
        ", ".join(options(group)),
        WIDTH,
        initial_indent=f"  {group:{OPTION_COLUMN}}",
        subsequent_indent=" " * (OPTION_COLUMN + 2),
        break_on_hyphens=False,
    )
