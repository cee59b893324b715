"""Run the command ``fedquorum study``: find the method that helps, and by how much."""

import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from fedquorum.errors import FedQuorumError, SettingsError
from fedquorum.records.run_dir import create_run_directory
from fedquorum.sanitize import abbreviate
from hydra.core.override_parser.types import Override

from conf import Settings
from conf.compose import CONFIG_NAME, parse_override, quote, start_hydra
from conf.options import format_suggestion
from server_app.cli.fedquorum import prepare_sweep_overrides
from server_app.runs.job import EXIT_ERROR, EXIT_INTERRUPTED, SweepRefused, SweepUnfinished, run_job
from server_app.runs.next_commands import format_command, format_override
from server_app.study.settings import StudySettings

OUTPUT_KEY = "output"
OUTPUT_ROOT = Path("outputs")
RUN_SETTINGS = ("experiment", *(item.name for item in fields(Settings)))
"""Settings of runs without a dot in their names."""

STUDY_USAGE = """\
Find out which method helps a federation, and by how much.

  fedquorum study goal=GOAL budget=BUDGET KEY=VALUE ...

  goal=priority|participation|fairness|average
  budget=20min            or 2h, 200runs, 5000rounds
  data=..., model=...     settings of the runs, as for fedquorum; experiment=NAME uses a preset
  methods=[fedau,mifa]    the methods to compare; by default all that serve the goal
  baseline=fedavg         the plain method with which they are compared
  metric_key=all.worst10  the number to compare, below test in rounds.jsonl
  trials=9                combinations of values that the tuning tries with each method
  seeds=10                the largest number of seeds to compare
  min_effect=0.01         the largest difference that counts as none
  confidence=0.95         the probability with which all intervals hold
  budget_max=2h           the budget up to which the same command may continue the study
  personal=true           compare the methods with personal models
  output=DIR              the study's folder; the same command continues the study in it
"""


def main(words: Sequence[str]) -> int:
    """Run the command line and return the exit status.

    Parameters
    ----------
    words : sequence of str
        The arguments after the command's name.

    Raises
    ------
    SweepUnfinished
        If the study was interrupted. The exception has the exit status.
    """
    if {"-h", "--help"} & set(words) or not words:
        print(STUDY_USAGE, end="")
        return 0
    try:
        start_study(words)
    except FedQuorumError as error:
        print(f"fedquorum study: {error}", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        print("fedquorum study: interrupted before the first run", file=sys.stderr)
        return EXIT_INTERRUPTED
    except SweepUnfinished as end:
        arguments = [word for word in words if not word.startswith(f"{OUTPUT_KEY}=")]
        command = format_command("study", *arguments, format_override(OUTPUT_KEY, end.directory))
        print(f"fedquorum study: interrupted; to continue: {command}", file=sys.stderr)
        raise
    return 0


def start_study(overrides: Sequence[str]) -> Path:
    """Start or resume a study and return its folder.

    Parameters
    ----------
    overrides : sequence of str
        Arguments of the command line.

    Raises
    ------
    FedQuorumError
        If the study cannot start, or its baseline fails.
    SweepUnfinished
        If the study was interrupted.
    """
    study_overrides, run_overrides = _split_overrides(overrides)
    output = str(study_overrides.pop(OUTPUT_KEY).value()) if OUTPUT_KEY in study_overrides else ""
    values: dict[str, Any] = {key: override.value() for key, override in study_overrides.items()}
    StudySettings(**values)
    arguments = prepare_sweep_overrides(run_overrides)
    folder = Path(output) if output else create_run_directory(OUTPUT_ROOT, "studies")
    arguments += [
        "hydra.mode=MULTIRUN",
        "hydra/sweeper=study",
        f"hydra.sweep.dir={quote(str(folder.absolute()))}",
        *(f"hydra.sweeper.{item.input_line}" for item in study_overrides.values()),
    ]
    try:
        with start_hydra() as hydra:
            hydra.multirun(CONFIG_NAME, run_job, arguments, with_log_configuration=False)
    except SweepRefused as end:
        raise end.error from None
    return folder


def _split_overrides(overrides: Sequence[str]) -> tuple[dict[str, Override], list[str]]:
    """Split overrides into those of the study, by key, and those of its runs.

    Raises
    ------
    SettingsError
        If an argument is neither, or no override at all.
    """
    allowed = (*(item.name for item in fields(StudySettings)), OUTPUT_KEY)
    study_overrides, run_overrides = {}, []
    for override in overrides:
        key = override.partition("=")[0]
        if override.startswith("-"):
            raise SettingsError(
                f"a study takes settings KEY=VALUE and no flag but --help, got {override}"
            )
        if key in allowed:
            study_overrides[key] = parse_override(override)
        elif key.isidentifier() and key not in RUN_SETTINGS:
            raise SettingsError(
                f"{key} is neither a setting of a study ({', '.join(allowed)}) nor of its runs"
                f" ({abbreviate(RUN_SETTINGS, near=key)})"
                + format_suggestion(key, (*allowed, *RUN_SETTINGS))
            )
        else:
            run_overrides.append(override)
    return study_overrides, run_overrides
