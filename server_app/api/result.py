"""Give Python access to a run: its records as frames, its model, its charts and its audit."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pandas as pd
from fedquorum.audit.cli import format_summary_line
from fedquorum.records.reader import Run, load_run

from server_app.api.display import format_directory, format_facts_table, format_image
from server_app.api.frames import build_rounds_frame, read_table_frame

if TYPE_CHECKING:
    from fedquorum.report.figure_files import NotebookFigure
    from torch import nn

    from server_app.runs.prediction import TrainedModel

PROBLEM_COLUMNS = {"round": "Int64", "client": "Int64", "text": "string"}


@dataclass(frozen=True)
class RunAudit:
    """The result of replaying every decision of a run from its records.

    Parameters
    ----------
    rounds, decisions : int
        Number of replayed rounds, and of replayed client outcomes.
    problems : pandas.DataFrame
        The mismatches, with the columns ``round``, ``client`` and ``text``. ``round`` is null for
        a mismatch of the whole run, and ``client`` for one of a whole round.
    unknown : tuple of str
        Facts that the records cannot show.
    """

    rounds: int
    decisions: int
    problems: pd.DataFrame
    unknown: tuple[str, ...]

    @property
    def is_consistent(self) -> bool:
        """Whether every decision follows from the records."""
        return len(self.problems) == 0

    def __repr__(self) -> str:
        replayed = f"{self.rounds} rounds and {self.decisions} client answers replayed"
        lines = [
            f"{replayed}: {format_summary_line(len(self.problems))}",
            *(f"not in the records: {text}" for text in self.unknown),
            *(f"mismatch: {text}" for text in self.problems["text"]),
        ]
        return "\n".join(lines)


@dataclass(frozen=True, repr=False, eq=False)
class RunResult:
    """The records of one run. Each record is read once, on first use.

    Parameters
    ----------
    records : fedquorum.records.reader.Run
        Manifest, settings and rounds.
    trusted : bool
        Whether code that the records name by import path may be imported.
    """

    records: Run
    trusted: bool = False

    @classmethod
    def read(cls, directory: Path, *, trust: bool = False) -> Self:
        """Return the run in a folder; see ``fedquorum_app.load``."""
        return cls(load_run(directory), trust)

    @property
    def directory(self) -> Path:
        """The run's folder, an absolute path."""
        return self.records.directory

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """One row per complete round; the test metrics are columns like ``test.all.accuracy``."""
        return build_rounds_frame(self.records)

    @property
    def status(self) -> str:
        """``completed``, ``interrupted``, ``failed``, or ``running`` (also for a killed run)."""
        return self.records.status

    @cached_property
    def clients(self) -> pd.DataFrame:
        """One row per round and selected client: the audit trail."""
        return read_table_frame(self.records, "clients")

    @property
    def settings(self) -> Mapping[str, Any]:
        """All settings by dotted key, such as ``client.lr``."""
        return self.records.settings

    @cached_property
    def evaluations(self) -> pd.DataFrame:
        """One row per round and evaluated client."""
        return read_table_frame(self.records, "evaluations")

    @cached_property
    def charts(self) -> tuple[str, ...]:
        """The names of the charts that ``plot`` draws."""
        from server_app.api.charts import build_charts

        return tuple(build_charts([self.records]))

    def plot(self, chart: str = "") -> "NotebookFigure":
        """Return one of the report's charts, a Matplotlib figure that a notebook shows.

        Parameters
        ----------
        chart : str
            A name in ``charts``; by default the first one, accuracy and loss over rounds.

        Raises
        ------
        ParameterError
            If there is no chart of that name.
        RunError
            If the run has no complete round.
        """
        from server_app.api.charts import draw_named_chart

        return draw_named_chart([self.records], chart)

    def load_model(self) -> "nn.Module":
        """Return a new model with the run's last weights, in evaluation mode, without its data.

        Raises
        ------
        RunError
            If the run has no model, the model or its card is damaged, or the model is named by
            import path without trust.
        """
        return self._read_trained_model().model

    def predict(
        self, rows: Any, client: int | str | None = None, *, data: Path | str | None = None
    ) -> pd.DataFrame:
        """Return predictions of the run's model, without its data.

        >>> load("outputs/run").predict(frame, client="North")  # doctest: +SKIP

        A ``UserWarning`` says what was decided for the rows, such as how an unseen category counts.

        Parameters
        ----------
        rows : Any
            Of a table: a DataFrame, a dict of columns, the dict of a row, or a list of such. Other
            columns are ignored. Of images: a folder, paths, or an array. Of texts: a list. All
            other rows are arrays.
        client : int or str, optional
            The id or the name of the client whose rows they are: its statistics scale the numbers
            of a table. By default it is the mean of all clients' statistics.
        data : Path or str, optional
            On a device whose statistics did not leave it: its data.

        Returns
        -------
        pandas.DataFrame
            One row each: ``prediction``, and for classes ``probability_NAME`` for each.

        Raises
        ------
        DataError
            If the rows are not as in training; the message names row and column.
        RunError
            If the run has no common model, or ``load_model`` would raise it.
        SettingsError
            If there is no such client.
        """
        frame, notes = self._trained_model.predict(rows, client, data)
        for note in notes:
            warnings.warn(note, stacklevel=2)
        return frame

    @cached_property
    def _trained_model(self) -> "TrainedModel":
        return self._read_trained_model()

    def _read_trained_model(self) -> "TrainedModel":
        from server_app.runs.prediction import TrainedModel

        return TrainedModel(self.directory, self.trusted)

    def audit(self) -> RunAudit:
        """Replay every decision from the records, as ``fedquorum audit`` does.

        Raises
        ------
        RunError
            If a record is missing or damaged, or the run names a rule by import path without trust.
        """
        from fedquorum.audit.check import audit_run

        audit = audit_run(self.directory, trust=self.trusted)
        names = self.records.client_names
        rows = [(one.round, one.client, one.format(names)) for one in audit.mismatches]
        problems = pd.DataFrame(rows, columns=list(PROBLEM_COLUMNS)).astype(PROBLEM_COLUMNS)
        return RunAudit(audit.num_rounds, audit.num_decisions, problems, audit.unverifiable)

    def explain(self, server_round: int, client: int | str) -> str:
        """Explain why a round selected a client, what it replied, and how its update was weighted.

        Parameters
        ----------
        server_round : int
        client : int or str
            The client's id, or its name.

        Raises
        ------
        RunError
            If there is no such round or client, or ``audit`` would raise it.
        """
        from fedquorum.audit.explain import describe_decision
        from fedquorum.audit.replay import convert_damage_errors, read_audit_input

        with convert_damage_errors(self.directory):
            recorded = read_audit_input(self.directory, trust=self.trusted)
            return "\n".join(describe_decision(recorded, client, server_round))

    def resume(self, *overrides: str, verbose: bool = True, **settings: Any) -> "RunResult":
        """Resume the run after its last checkpoint; see ``fedquorum_app.run``.

        Parameters
        ----------
        *overrides, **settings
            Settings that may change on a resume, such as those of ``engine``.
        verbose : bool
            As in ``fedquorum_app.run``.

        Raises
        ------
        FedQuorumError
            As in ``fedquorum_app.run``.
        """
        from server_app.api.run import run_from_python

        directory = run_from_python(
            (*overrides,), {**settings, "resume": self.directory}, verbose=verbose
        )
        return type(self).read(directory, trust=self.trusted)

    @property
    def _facts(self) -> Mapping[str, object]:
        run = self.records
        facts: dict[str, object] = {
            "experiment": run.experiment,
            "strategy": run.strategy,
            "seed": run.seed,
            "status": f"{run.status}, {len(run.rounds)} of {run.planned} rounds",
            "folder": format_directory(run.directory),
        }
        return facts | ({"error": run.error} if run.error else {})

    def __repr__(self) -> str:
        facts = ", ".join(f"{name}: {fact}" for name, fact in self._facts.items())
        return f"<run, {facts}>"

    def _repr_html_(self) -> str:
        image = format_image(self.plot()) if self.records.rounds else ""
        return format_facts_table(self._facts) + image
