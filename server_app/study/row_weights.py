"""Find how far scores would differ on other test rows of the same clients, by weights of rows.

Where all seeds test the same rows, the spread over seeds does not contain the draw of these rows.
So each of ``NUM_WEIGHT_SETS`` sets of weights counts each test row w times, with w from the Poisson
distribution with mean 1, and every method is scored again with each set: a bootstrap of the rows
within each client. Clients are never drawn anew. A weight belongs to the row in the source, or to
its group, and depends on nothing else: it is the same for all methods and seeds, also where each
seed divides the rows among clients anew.

The models are the runs' last ones. This process has the data in simulations alone, so a study of
devices never comes here.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Self

import numpy as np
from fedquorum.audit.replay import read_audit_input
from fedquorum.errors import FedQuorumError, RunError
from fedquorum.records.reader import Run
from fedquorum.rng import make_generator
from fedquorum.rules.decisions import PERSONAL_MODELS, ClientEvaluation
from fedquorum.rules.types import FloatArray
from numpy.typing import NDArray

from client_app.data.examples import Examples
from client_app.data.partitioned import PartitionedData
from client_app.evaluation.row_terms import MEAN_METRICS, Terms, evaluate_rows, weigh_rows
from client_app.losses import build_task
from client_app.node.node import resolve_device
from conf import Settings
from server_app.runs.reload import load_trained_model, reload_data
from server_app.study.candidates import MethodComparison
from server_app.study.guessing import guess_rows
from server_app.study.paired_statistics import GUESSING, NUM_WEIGHT_SETS
from server_app.study.result import SeedRun
from server_app.study.scores import compute_score, get_test_metric, replace_metric

MIN_UNITS = 3
"""The fewest test rows of a client: with two, the weights show half of the variance only."""

ROWS_AT_ONCE = 10_000
TOLERANCE = 1e-3
"""The largest difference of a client's metric from the recorded one, relative to it if above 1."""


@dataclass(frozen=True)
class ResampledScores:
    """Each method's score with each set of weights, mean over seeds.

    Parameters
    ----------
    scores : mapping of str to array
        By method, and ``GUESSING``, (B,), in the score's unit; empty if they are not known.
    problem : str
        Why they are not known; empty if they are.
    """

    scores: Mapping[str, FloatArray] = field(default_factory=dict)
    problem: str = ""


@lru_cache(maxsize=1)
def draw_row_weights(num_units: int) -> NDArray[np.uint8]:
    """Return the weights of the source's first rows, (num_units, B).

    A row's weights do not depend on how many others there are.
    """
    rng = make_generator(0, "row-weights")
    starts = range(0, num_units, ROWS_AT_ONCE)
    sizes = [(min(ROWS_AT_ONCE, num_units - start), NUM_WEIGHT_SETS) for start in starts]
    drawn = [rng.poisson(1.0, size).astype(np.uint8) for size in sizes]
    return np.concatenate([np.zeros((0, NUM_WEIGHT_SETS), np.uint8), *drawn])


def resample_scores(
    comparison: MethodComparison, directory: Path, *, has_guessing: bool
) -> ResampledScores:
    """Score all methods, and guessing if it has a score, with each set of row weights.

    Parameters
    ----------
    comparison : MethodComparison
        The methods with their runs, whose seeds all test the same rows.
    directory : Path
        The study's folder.
    has_guessing : bool
    """
    if comparison.metric not in MEAN_METRICS:
        return ResampledScores({}, f"{comparison.metric} is no mean over rows")
    if comparison.score.partition(".")[0] in PERSONAL_MODELS:
        return ResampledScores({}, "runs keep no personal models")
    by_method: dict[str, list[FloatArray]] = {}
    try:
        for number, _ in enumerate(comparison.baseline.runs):
            for candidate in comparison.active_candidates:
                recorded = _RecordedRun.read(comparison, directory, candidate.runs[number])
                terms = {candidate.method.name: recorded.evaluate_rows()}
                if has_guessing and candidate is comparison.baseline:
                    terms[GUESSING] = recorded.guess_rows()
                for name, of_clients in terms.items():
                    by_method.setdefault(name, []).append(recorded.resample(of_clients))
    except FedQuorumError as error:
        return ResampledScores({}, str(error))
    means = {name: np.mean(scores, axis=0) for name, scores in by_method.items()}
    return ResampledScores(means)


@dataclass(frozen=True)
class _RecordedRun:
    """A run with its data, and the last evaluations of the clients that its score counts."""

    run: Run
    data: PartitionedData
    settings: Settings
    evaluated: Sequence[ClientEvaluation]
    metric: str
    score: str

    @classmethod
    def read(cls, comparison: MethodComparison, directory: Path, seed_run: SeedRun) -> Self:
        """Read a run of the study.

        Raises
        ------
        RunError
            If a client has too few test rows.
        """
        recorded = read_audit_input(directory / seed_run.folder)
        data, settings = reload_data(recorded.run, trust=True)
        assert isinstance(data, PartitionedData), "generated data tests other rows with each seed"
        last = recorded.get_evaluations(len(recorded.run.rounds))
        evaluated = [one for one in last if one.client in seed_run.clients]
        counts = {one.client: data.count_test_units(one.client) for one in evaluated}
        fewest = min(counts, key=counts.__getitem__)
        if counts[fewest] < MIN_UNITS:
            name = recorded.run.client_names.format(fewest)
            rows = "row" if counts[fewest] == 1 else "rows"
            raise RunError(
                f"client {name} has {counts[fewest]} test {rows}, fewer than {MIN_UNITS}"
            )
        return cls(recorded.run, data, settings, evaluated, comparison.metric, comparison.score)

    def evaluate_rows(self) -> dict[int, Terms]:
        """Return the terms of each client's test rows with the run's last model.

        Raises
        ------
        RunError
            If the run's clients did not test this model.
        """
        device = resolve_device(self.settings.client.device)
        model = load_trained_model(self.run, self.settings, self.data).to(device)
        clients = [one.client for one in self.evaluated]
        examples = Examples(self.data.get_pooled_split("test", clients), device)
        task = build_task(self.settings, self.data)
        flat = evaluate_rows(model, examples, task, self.metric)
        ends = np.cumsum(examples.get_counts(clients))[:-1]
        terms = dict(zip(clients, np.split(flat, ends), strict=True))
        for one in self.evaluated:
            found = weigh_rows(terms[one.client], np.ones((1, len(terms[one.client]))), self.metric)
            recorded = get_test_metric(one, self.metric)
            if not np.allclose(found, recorded, rtol=TOLERANCE, atol=TOLERANCE):
                name = self.run.directory.name
                raise RunError(f"the records lack the models that the clients of run {name} tested")
        return terms

    def guess_rows(self) -> dict[int, Terms]:
        """Return the terms of each client's test rows where a model guesses."""
        held_out = {one.client for one in self.evaluated if one.held_out}
        trained = [k for k in range(self.data.num_clients) if k not in held_out]
        return guess_rows(self.data, trained, self.metric)

    def resample(self, terms: Mapping[int, Terms]) -> FloatArray:
        """Return the score with each set of weights, (B,).

        Raises
        ------
        RunError
            If it is not defined.
        """
        units = {one.client: self.data.get_test_units(one.client) for one in self.evaluated}
        weights = draw_row_weights(1 + max(int(rows.max()) for rows in units.values()))
        metrics = np.stack(
            [
                weigh_rows(terms[client], weights[rows].T.astype(np.float64), self.metric)
                for client, rows in units.items()
            ],
            axis=1,
        )
        return np.array([self._summarize(values) for values in metrics.tolist()])

    def _summarize(self, values: Sequence[float]) -> float:
        """Return the score where the clients' metrics have these values."""
        weighed = [
            replace_metric(one, self.metric, value)
            for one, value in zip(self.evaluated, values, strict=True)
        ]
        score = compute_score(weighed, self.score, self.metric)
        if math.isnan(score):
            raise RunError(f"test.{self.score} is not defined with weights of rows")
        return score
