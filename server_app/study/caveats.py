"""Why a study's answer may be weaker than it looks: sentences with numbers.

Each function looks at one thing: the clients' data, where it is here; the records of one run, which
are all that a real federation gives; the tuning; and the runs that are compared.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from fedquorum.records.reader import Run, read_dataset
from fedquorum.records.tables import get_metric_column
from numpy.typing import NDArray

from client_app.data import FederatedData
from server_app.names import format_setting, get_setting_name
from server_app.study.result import MethodResult, ScoreCurve
from server_app.study.text import Unit, capitalize, format_method_name, join_words, to_possessive

MIN_RELIABLE_ROWS = 10
MIN_RELIABLE_SEEDS = 10
MAX_AUROC_STEP = 0.1
"""Of an AUROC that one row moves by more, a client's number says little."""

MAX_CLIENTS_LISTED = 8
NUM_SAMPLED_CLIENTS = 10
TENTH = 10
EDGE_FRACTION = 0.02
"""The part of a range, at each end, in which a value counts as the end."""

MIN_STANDARD_ERRORS = 2
"""A difference of fewer standard errors of the tuning may come from it."""

LATE_FRACTION = 0.1
PER_ROW_METRICS = ("accuracy", "top5")
"""Metrics that are a share of the rows."""

GUESSING_SCORES: Mapping[str, Callable[[int], float]] = {
    "accuracy": lambda classes: 1 / classes,
    "top5": lambda classes: min(1.0, 5 / classes),
    "auroc": lambda _: 0.5,
    "loss": math.log,
}
"""What a model has, by metric, that gives each of so many classes the same probability."""

SearchRanges = Mapping[str, tuple[float, float, bool]]
"""Of a setting: the lowest and the highest value that was tried, and whether the scale is log."""


# --- the data ---------------------------------------------------------------------------------


def find_data_caveats(data: FederatedData, metric: str) -> tuple[str, ...]:
    """Return what the clients' classes make of the answer; nothing where there are no classes.

    Parameters
    ----------
    data : FederatedData
        The data of one seed.
    metric : str
        What is measured, of which only AUROC depends on the classes of a test part.
    """
    if data.target != "class":
        return ()
    targets = {client: data.get_targets(client) for client in range(data.num_clients)}
    train = {client: labels for client, (labels, _) in targets.items()}
    test = {client: labels for client, (_, labels) in targets.items()}
    found = (
        _describe_single_class(
            train, "training", "these clients learn nothing about the other classes"
        ),
        _describe_single_class(
            test, "test", "a model that always predicts this class makes no mistake there"
        ),
        _describe_auroc_steps(test) if metric == "auroc" else "",
    )
    return tuple(sentence for sentence in found if sentence)


def has_shared_rows(one: FederatedData, other: FederatedData) -> bool:
    """Say whether test rows of one seed are training rows of another.

    Parameters
    ----------
    one, other : FederatedData
        The data of two seeds.
    """
    tested: set[bytes] = set()
    for client in range(min(one.num_clients, NUM_SAMPLED_CLIENTS)):
        tested.update(row.tobytes() for row in one.get_client(client).x_test)
    return any(
        row.tobytes() in tested
        for client in range(other.num_clients)
        for row in other.get_client(client).x_train
    )


def _describe_single_class(labels: Mapping[int, NDArray[np.int64]], part: str, meaning: str) -> str:
    clients = [client for client, y in labels.items() if len(y) and (y == y[0]).all()]
    if not clients:
        return ""
    return f"{_format_clients(clients, len(labels))} {_get_verb(clients)} {part} rows of one class only: {meaning}."


def _describe_auroc_steps(labels: Mapping[int, NDArray[np.int64]]) -> str:
    steps = {client: compute_auroc_step(y) for client, y in labels.items()}
    large = {client: step for client, step in steps.items() if step > MAX_AUROC_STEP}
    if not large:
        return ""
    worst = max(large, key=large.__getitem__)
    return (
        f"A single test row can move the AUROC of {_format_clients(list(large), len(labels))} by more than "
        f"{100 * MAX_AUROC_STEP:.0f} points, that of client {worst} by up to {100 * large[worst]:.0f}."
    )


def compute_auroc_step(labels: NDArray[np.int64]) -> float:
    """Return by how much the rank of one row can change a client's AUROC, 0 where it has none.

    The AUROC is the mean over the C classes among n labels of the share of pairs (a row of the
    class, another row) in right order. A row of class k stands in all n - n_k pairs of each of n_k
    rows, and of any other class j in n_j of the n_j (n - n_j) pairs: together at most
    (1 / n_k + sum_{j != k} 1 / (n - n_j)) / C. With two classes that is 1 / n_k, so the largest
    step is 1 / min(n_0, n_1).

    Parameters
    ----------
    labels : array of int
        A client's test labels, (n,).
    """
    _, counts = np.unique(labels, return_counts=True)
    if len(counts) <= 1:
        return 0.0
    others = 1.0 / (len(labels) - counts)
    return float((1.0 / counts + others.sum() - others).max() / len(counts))


# --- the records of a run ---------------------------------------------------------------------


@dataclass(frozen=True)
class LastEvaluation:
    """What a client measured last in a run.

    Parameters
    ----------
    client : int
        Its id.
    test_rows, validation_rows : int
        How many rows its parts have.
    metric : float
        ``evaluation.metric`` on its test part, NaN where it is not defined.
    """

    client: int
    test_rows: int
    validation_rows: int
    metric: float


def read_last_evaluations(run: Run, metric: str) -> tuple[LastEvaluation, ...]:
    """Return what each client measured last, by client id; none without such records.

    Parameters
    ----------
    run : Run
        Whose records.
    metric : str
        What is measured.

    Raises
    ------
    RunError
        If the table of evaluations is damaged.
    """
    folder = run.directory / "evaluations"
    if not folder.is_dir():
        return ()
    column = get_metric_column("test", metric)
    columns = ["client", "test_num_examples", "validation_num_examples", column]
    table = read_dataset(folder, columns)
    last: dict[int, LastEvaluation] = {}
    for row in table.to_pylist():
        rows, kept = row["test_num_examples"], row.get("validation_num_examples")
        if rows is not None:
            value = row.get(column)
            number = math.nan if value is None else float(value)
            last[row["client"]] = LastEvaluation(row["client"], rows, kept or 0, number)
    return tuple(last[client] for client in sorted(last))


def find_run_caveats(clients: Sequence[LastEvaluation], metric: str) -> tuple[str, ...]:
    """Return what the clients' numbers of rows make of the answer.

    Parameters
    ----------
    clients : sequence of Measured
        All clients of one run.
    metric : str
        What is measured.
    """
    found = (
        _describe_few_clients(clients),
        _describe_few_test_rows(clients, metric),
        _describe_undefined_metric(clients, metric),
        _describe_few_validation_rows(clients),
    )
    return tuple(sentence for sentence in found if sentence)


def _describe_few_clients(clients: Sequence[LastEvaluation]) -> str:
    count = sum(not math.isnan(one.metric) for one in clients)
    if count == 0 or count // TENTH > 1:
        return ""
    return f"With {count} clients measured, the worst 10 % are a single client."


def _describe_few_test_rows(clients: Sequence[LastEvaluation], metric: str) -> str:
    few = [one for one in clients if 0 < one.test_rows < MIN_RELIABLE_ROWS]
    if not few:
        return ""
    least = min(few, key=lambda one: one.test_rows)
    ids = [one.client for one in few]
    first = f"{_format_clients(ids, len(clients))} {_get_verb(ids)} fewer than {MIN_RELIABLE_ROWS} test rows"
    if metric not in PER_ROW_METRICS:
        return f"{first}; client {least.client} has {least.test_rows}."
    name = Unit.for_metric(metric, MAX_AUROC_STEP).metric
    return (
        f"{first}: client {least.client} has {least.test_rows}, so one row moves its "
        f"{name} by {100 / least.test_rows:.0f} points."
    )


def _describe_undefined_metric(clients: Sequence[LastEvaluation], metric: str) -> str:
    without = [one.client for one in clients if math.isnan(one.metric)]
    if not without:
        return ""
    name, which = (
        capitalize(Unit.for_metric(metric, MAX_AUROC_STEP).metric),
        _format_clients(without, len(clients)),
    )
    return f"{name} is not defined for {which}: the means leave these clients out."


def _describe_few_validation_rows(clients: Sequence[LastEvaluation]) -> str:
    if not any(one.validation_rows for one in clients):
        return ""
    few = [one.client for one in clients if one.validation_rows < MIN_RELIABLE_ROWS]
    if not few:
        return ""
    return (
        f"{_format_clients(few, len(clients))} {_get_verb(few)} fewer than {MIN_RELIABLE_ROWS} validation rows, and the "
        "tuning used these rows."
    )


# --- the tuning -------------------------------------------------------------------------------


def find_tuning_caveats(methods: Sequence[MethodResult], ranges: SearchRanges) -> tuple[str, ...]:
    """Return what the tuning leaves open: values at the end of their range, trials that failed.

    Parameters
    ----------
    methods : sequence of MethodResult
        All methods.
    ranges : mapping
        Lowest and highest value of each setting tuned, and whether its scale is logarithmic.
    """
    compared = [method for method in methods if not method.left_out]
    ends = (
        end
        for method in compared
        for word in method.tuned
        if (end := _describe_range_end(method, word, ranges))
    )
    return (*ends, *filter(None, map(_describe_failed_trials, compared)))


def _describe_range_end(method: MethodResult, override: str, ranges: SearchRanges) -> str:
    key, _, text = override.lstrip("+").partition("=")
    if key not in ranges:
        return ""
    low, high, log = ranges[key]
    value, (bottom, top) = float(text), (low, high)
    if log:
        value, bottom, top = math.log(value), math.log(low), math.log(high)
    place = (value - bottom) / (top - bottom)
    if EDGE_FRACTION < place < 1 - EDGE_FRACTION:
        return ""
    end, other = ("lower", "smaller") if place <= EDGE_FRACTION else ("upper", "larger")
    whose = to_possessive(format_method_name(method.name))
    return (
        f"{whose} {format_setting(override)} is at the {end} end of the range tried ({low:g} to "
        f"{high:g}): a {other} {get_setting_name(key)} may do better."
    )


def _describe_failed_trials(method: MethodResult) -> str:
    failed = sum(trial.status == "failed" for trial in method.trials)
    if not failed:
        return ""
    return f"{failed} of {len(method.trials)} trials of {format_method_name(method.name)} failed."


# --- the comparison ---------------------------------------------------------------------------


def find_comparison_caveats(
    methods: Sequence[MethodResult], metric: str, margin: float, *, pooled: bool
) -> tuple[str, ...]:
    """Return what the runs compared leave open.

    Parameters
    ----------
    methods : sequence of MethodResult
        All methods.
    metric : str
        What is measured.
    margin : float
        The largest difference that makes none, in the metric's unit.
    pooled : bool
        Whether the data has no test set, so that each seed draws test parts from the same rows.
    """
    compared = [method for method in methods if method.runs and not method.left_out]
    unit = Unit.for_metric(metric, margin)
    found = (
        _describe_tuning_noise(compared, unit, margin),
        _describe_few_seeds(compared),
        _describe_late_gains(compared, unit, margin),
        _describe_shared_rows() if pooled else "",
    )
    return tuple(sentence for sentence in found if sentence)


def find_guessing_caveat(
    methods: Sequence[MethodResult], client_group: str, metric: str, classes: int, margin: float
) -> str:
    """Return that no method does better than a model that gives all classes one probability.

    A tuning by the worst clients' loss may choose rates at which a model hardly moves, where what
    moves it helps others only. So no method differs from another, and none is of use.

    Parameters
    ----------
    methods : sequence of MethodResult
        All methods.
    client_group : str
        The clients of the score, in words.
    metric : str
        What is measured.
    classes : int
        How many classes there are.
    margin : float
        The largest difference that makes none, in the metric's unit.
    """
    unit = Unit.for_metric(metric, margin)
    scores = {
        method.name: unit.sign * fmean(run.score for run in method.runs)
        for method in methods
        if method.runs and not method.left_out
    }
    if metric not in GUESSING_SCORES or not scores:
        return ""
    best = max(scores, key=scores.__getitem__)
    guess, score = GUESSING_SCORES[metric](classes), unit.sign * scores[best]
    if scores[best] > unit.sign * guess:
        return ""
    in_unit = " %" if unit.unit == "points" else f" {unit.unit}"
    return (
        f"No method does better than guessing for {client_group}: guessing has {unit.metric} "
        f"{unit.format_number(guess)}{in_unit}, and the best method, {format_method_name(best)}, has "
        f"{unit.format_number(score)}{in_unit}. Differences between such models mean little."
    )


def _describe_few_seeds(methods: Sequence[MethodResult]) -> str:
    seeds = min((len(method.runs) for method in methods), default=0)
    if not 0 < seeds < MIN_RELIABLE_SEEDS:
        return ""
    return (
        f"The comparison has {seeds} seed{'s' if seeds > 1 else ''}: with so few, intervals are "
        "right only if the differences between seeds are roughly normal."
    )


def _describe_tuning_noise(methods: Sequence[MethodResult], unit: Unit, margin: float) -> str:
    """Return that the tuning's noise is as large as what the methods differ by.

    With d the differences between the two scores of the finalists, one for each seed of the tuning,
    a finalist's mean has the standard error sqrt(mean(d^2)) / 2.
    """
    squares = [
        (trial.again - trial.score) ** 2
        for method in methods
        for trial in method.trials
        if trial.again is not None and trial.score is not None
    ]
    means = [fmean(run.score for run in method.runs) for method in methods]
    if not squares or not means[1:]:
        return ""
    error = math.sqrt(fmean(squares)) / 2
    largest = max(abs(mean - means[0]) for mean in means[1:])
    if largest <= margin or MIN_STANDARD_ERRORS * error < largest:
        return ""
    return (
        f"The validation scores that chose the values have a standard error of "
        f"{unit.format_amount(error)}, and the methods differ from {format_method_name(methods[0].name)} by "
        f"{unit.format_amount(largest)} at most: part of that may be the luck of the tuning."
    )


def _describe_late_gains(methods: Sequence[MethodResult], unit: Unit, margin: float) -> str:
    gains = {method.name: compute_late_gain(method, unit.sign) for method in methods}
    rising = {name: gain for name, gain in gains.items() if gain > margin}
    if not rising:
        return ""
    names = join_words(
        [
            f"{format_method_name(name)} (by {unit.format_amount(gain)})"
            for name, gain in rising.items()
        ]
    )
    curve = next(method.runs[0].curve for method in methods if method.name in rising)
    before, last = _find_late_rounds(curve)
    return (
        f"The {unit.metric} still improves from round {before} to round {last} with {names}: more "
        "rounds may change the order."
    )


def compute_late_gain(method: MethodResult, sign: float = 1.0) -> float:
    """Return by how much the score gets better at the end, mean over seeds.

    The end is the last tenth of the rounds, or more where the model is not evaluated so often.

    Parameters
    ----------
    method : MethodResult
        A method with runs.
    sign : float
        -1 where lower scores are better.
    """
    return fmean(sign * _compute_late_change(run.curve) for run in method.runs)


def _compute_late_change(curve: ScoreCurve) -> float:
    if not curve:
        return 0.0
    scores = dict(curve)
    before, last = _find_late_rounds(curve)
    return scores[last] - scores[before]


def _find_late_rounds(curve: ScoreCurve) -> tuple[int, int]:
    """Return the last round measured and the last one a tenth of the rounds before, if any."""
    last = curve[-1][0]
    before = [number for number, _ in curve if number <= (1 - LATE_FRACTION) * last]
    return (before or [last])[-1], last


def _describe_shared_rows() -> str:
    return (
        "Each seed, also in the tuning, divides the same rows anew, so test rows of one seed are "
        "training or validation rows of another. The tuning used rows that are tested later. The "
        "seeds show how results vary over divisions of these rows, not over other data."
    )


def _format_clients(clients: Sequence[int], total: int) -> str:
    """Return "3 of 40 clients (7, 12, 31)", with the first ids."""
    more = ", ..." if len(clients) > MAX_CLIENTS_LISTED else ""
    ids = ", ".join(map(str, clients[:MAX_CLIENTS_LISTED]))
    return f"{len(clients)} of {total} clients ({ids}{more})"


def _get_verb(clients: Sequence[int]) -> str:
    return "has" if len(clients) == 1 else "have"
