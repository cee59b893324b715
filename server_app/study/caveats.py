"""Find the caveats of a study's result, as sentences with numbers.

Each function examines one source: the clients' data, if the server has it; the records of one run,
which also a real federation has; the tuning; and the compared runs.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from fedquorum.records.client_names import NO_NAMES, ClientNames
from fedquorum.records.reader import Run, read_dataset
from fedquorum.records.tables import get_metric_column
from fedquorum.report.names import format_setting, get_setting_name
from fedquorum.rules.metrics import get_metric
from numpy.typing import NDArray

from client_app.data import FederatedData
from client_app.data.partitioned import PartitionedData
from client_app.data.seed_draws import SeedDraws
from server_app.study.result import MethodResult, ScoreCurve
from server_app.study.scores import PER_ROW_METRICS
from server_app.study.text import Unit, capitalize, format_method_name, join_words, to_possessive

MIN_RELIABLE_ROWS = 10
MIN_RELIABLE_SEEDS = 10
MAX_AUROC_STEP = 0.1
"""If one row can change a client's AUROC by more, the client's number says little."""

MAX_CLIENTS_LISTED = 8
TENTH = 10
EDGE_FRACTION = 0.02
"""The fraction of a range, at each end, in which a value counts as the end."""

MIN_STANDARD_ERRORS = 2
"""The tuning's noise may explain a difference of fewer standard errors."""

LATE_FRACTION = 0.1

SearchRanges = Mapping[str, tuple[float, float, bool]]
"""By setting: the lowest and highest value of the search, and whether its scale is log."""


# --- the data ---------------------------------------------------------------------------------


def find_data_caveats(
    data: FederatedData, metric: str, names: ClientNames = NO_NAMES
) -> tuple[str, ...]:
    """Find caveats in the distribution of classes over clients; none without classes.

    Parameters
    ----------
    data : FederatedData
        The data of one seed.
    metric : str
        The clients' metric. Only AUROC depends on the classes of a test split.
    names : ClientNames
    """
    if data.target != "class":
        return ()
    targets = {client: data.get_targets(client) for client in range(data.num_clients)}
    train = {client: labels for client, (labels, _) in targets.items()}
    test = {client: labels for client, (_, labels) in targets.items()}
    found = (
        _describe_single_class(
            train, "training", "these clients learn nothing about the other classes", names
        ),
        _describe_single_class(
            test, "test", "a model that always predicts this class makes no mistake there", names
        ),
        _describe_auroc_steps(test, names) if metric == "auroc" else "",
    )
    return tuple(sentence for sentence in found if sentence)


def find_group_caveats(
    data: PartitionedData, group_column: str, metric: str, names: ClientNames = NO_NAMES
) -> tuple[str, ...]:
    """Find the caveat that the test rows of clients are of few groups.

    The groups are the independent units, not their rows.

    Parameters
    ----------
    data : PartitionedData
        The data of one seed.
    group_column : str
        ``data.group_column``.
    metric : str
        The clients' metric.
    names : ClientNames
    """
    units = {client: data.count_test_units(client) for client in range(data.num_clients)}
    few = [client for client, count in units.items() if count < MIN_RELIABLE_ROWS]
    if not few:
        return ()
    least = min(few, key=units.__getitem__)
    sentence = (
        f"Rows with the same {group_column} are one observation: "
        f"{_format_clients(few, len(units), names)} {_get_verb(few)} test rows of fewer than "
        f"{MIN_RELIABLE_ROWS} of them; client {names.format(least)} has {units[least]}"
    )
    if metric in PER_ROW_METRICS:
        name = Unit.for_metric(metric, MAX_AUROC_STEP).metric
        sentence += f", and one moves its {name} by about {100 / units[least]:.0f} points"
    return (f"{sentence}.",)


def _describe_single_class(
    labels: Mapping[int, NDArray[np.int64]], split: str, meaning: str, names: ClientNames
) -> str:
    clients = [client for client, y in labels.items() if len(y) and (y == y[0]).all()]
    if not clients:
        return ""
    subject = f"{_format_clients(clients, len(labels), names)} {_get_verb(clients)}"
    return f"{subject} {split} rows of one class only: {meaning}."


def _describe_auroc_steps(labels: Mapping[int, NDArray[np.int64]], names: ClientNames) -> str:
    steps = {client: compute_auroc_step(y) for client, y in labels.items()}
    large = {client: step for client, step in steps.items() if step > MAX_AUROC_STEP}
    if not large:
        return ""
    worst = max(large, key=large.__getitem__)
    clients = _format_clients(list(large), len(labels), names)
    return (
        f"A single test row can move the AUROC of {clients} by more than "
        f"{100 * MAX_AUROC_STEP:.0f} points, that of client {names.format(worst)} by up to "
        f"{100 * large[worst]:.0f}."
    )


def compute_auroc_step(labels: NDArray[np.int64]) -> float:
    """Return the largest change of a client's AUROC that the rank of one row can cause.

    The AUROC is the mean over the C classes among n labels of the fraction of pairs (a row of the
    class, another row) in the right order. A row of class k is in n - n_k of the n_k (n - n_k)
    pairs of its class, and in n_j of the n_j (n - n_j) pairs of any other class j: together at most
    (1 / n_k + sum_{j != k} 1 / (n - n_j)) / C. With two classes that is 1 / n_k, so the largest
    step is 1 / min(n_0, n_1). With one class there is no AUROC, and the result is 0.

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
    """A client's last evaluation in a run.

    Parameters
    ----------
    client : int
        The client's id.
    test_rows, validation_rows : int
    metric : float
        ``evaluation.metric`` on the test split, NaN if undefined.
    """

    client: int
    test_rows: int
    validation_rows: int
    metric: float


def read_last_evaluations(run: Run, metric: str) -> tuple[LastEvaluation, ...]:
    """Read each client's last evaluation, sorted by client id; none without such records.

    Parameters
    ----------
    run : Run
    metric : str

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
        rows, validation_rows = row["test_num_examples"], row.get("validation_num_examples")
        if rows is not None:
            value = row.get(column)
            number = math.nan if value is None else float(value)
            last[row["client"]] = LastEvaluation(row["client"], rows, validation_rows or 0, number)
    return tuple(last[client] for client in sorted(last))


def find_run_caveats(
    clients: Sequence[LastEvaluation],
    metric: str,
    names: ClientNames = NO_NAMES,
    *,
    is_tuned: bool = True,
) -> tuple[str, ...]:
    """Find caveats in the clients' numbers of rows.

    Parameters
    ----------
    clients : sequence of LastEvaluation
        All clients of one run.
    metric : str
    names : ClientNames
    is_tuned : bool
        Whether the validation rows chose any value.
    """
    found = (
        _describe_few_clients(clients, metric, names),
        _describe_few_test_rows(clients, metric, names),
        _describe_undefined_metric(clients, metric, names),
        _describe_few_validation_rows(clients, names) if is_tuned else "",
    )
    return tuple(sentence for sentence in found if sentence)


def _describe_few_clients(
    clients: Sequence[LastEvaluation], metric: str, names: ClientNames
) -> str:
    evaluated = [one for one in clients if not math.isnan(one.metric)]
    if not evaluated or len(evaluated) // TENTH > 1:
        return ""
    sign = 1.0 if get_metric(metric).higher_is_better else -1.0
    worst = min(evaluated, key=lambda one: sign * one.metric)
    return (
        f"With {len(evaluated)} evaluated clients, the worst 10 % are a single client: in the "
        f"baseline's first run, client {names.format(worst.client)}."
    )


def _describe_few_test_rows(
    clients: Sequence[LastEvaluation], metric: str, names: ClientNames
) -> str:
    few = [one for one in clients if 0 < one.test_rows < MIN_RELIABLE_ROWS]
    if not few:
        return ""
    smallest = min(few, key=lambda one: one.test_rows)
    ids, least = [one.client for one in few], names.format(smallest.client)
    subject = f"{_format_clients(ids, len(clients), names)} {_get_verb(ids)}"
    first = f"{subject} fewer than {MIN_RELIABLE_ROWS} test rows"
    if metric not in PER_ROW_METRICS:
        return f"{first}; client {least} has {smallest.test_rows}."
    name = Unit.for_metric(metric, MAX_AUROC_STEP).metric
    return (
        f"{first}: client {least} has {smallest.test_rows}, so one row moves its "
        f"{name} by {100 / smallest.test_rows:.0f} points."
    )


def _describe_undefined_metric(
    clients: Sequence[LastEvaluation], metric: str, names: ClientNames
) -> str:
    without = [one.client for one in clients if math.isnan(one.metric)]
    if not without:
        return ""
    name = capitalize(Unit.for_metric(metric, MAX_AUROC_STEP).metric)
    excluded = _format_clients(without, len(clients), names)
    return f"{name} is not defined for {excluded}: the means leave these clients out."


def _describe_few_validation_rows(clients: Sequence[LastEvaluation], names: ClientNames) -> str:
    if not any(one.validation_rows for one in clients):
        return ""
    few = [one.client for one in clients if one.validation_rows < MIN_RELIABLE_ROWS]
    if not few:
        return ""
    subject = f"{_format_clients(few, len(clients), names)} {_get_verb(few)}"
    return (
        f"{subject} fewer than {MIN_RELIABLE_ROWS} validation rows, and the tuning used these rows."
    )


# --- the tuning -------------------------------------------------------------------------------


def find_tuning_caveats(methods: Sequence[MethodResult], ranges: SearchRanges) -> tuple[str, ...]:
    """Find caveats of the tuning: values at an end of their range, and failed trials.

    Parameters
    ----------
    methods : sequence of MethodResult
        All methods.
    ranges : mapping
        The lowest and highest value of each tuned setting, and whether its scale is logarithmic.
    """
    compared = [method for method in methods if not method.left_out]
    ends = (
        end
        for method in compared
        for override in method.tuned
        if (end := _describe_range_end(method, override, ranges))
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
    position = (value - bottom) / (top - bottom)
    if EDGE_FRACTION < position < 1 - EDGE_FRACTION:
        return ""
    end, other = ("lower", "smaller") if position <= EDGE_FRACTION else ("upper", "larger")
    owner = to_possessive(format_method_name(method.name))
    return (
        f"{owner} {format_setting(override)} is at the {end} end of the range tried ({low:g} to "
        f"{high:g}): a {other} {get_setting_name(key)} may do better."
    )


def _describe_failed_trials(method: MethodResult) -> str:
    failed = sum(trial.status == "failed" for trial in method.trials)
    if not failed:
        return ""
    return f"{failed} of {len(method.trials)} trials of {format_method_name(method.name)} failed."


# --- the comparison ---------------------------------------------------------------------------


def find_comparison_caveats(
    methods: Sequence[MethodResult],
    metric: str,
    margin: float,
    draws: SeedDraws,
    unknown_rows: str = "",
) -> tuple[str, ...]:
    """Find caveats of the compared runs.

    Parameters
    ----------
    methods : sequence of MethodResult
        All methods.
    metric : str
    margin : float
        The largest difference that counts as none, in the metric's unit.
    draws : SeedDraws
        What a seed draws anew.
    unknown_rows : str
        Why nobody knows how far scores would differ on other rows than those that all seeds test;
        empty if that is known, or seeds test other rows.
    """
    compared = [method for method in methods if method.runs and not method.left_out]
    unit = Unit.for_metric(metric, margin)
    found = (
        _describe_tuning_noise(compared, unit, margin),
        _describe_few_seeds(compared),
        _describe_late_gains(compared, unit, margin),
        _describe_test_rows(
            draws, is_tuned=any(method.trials for method in compared), unknown_rows=unknown_rows
        ),
    )
    return tuple(sentence for sentence in found if sentence)


def find_seed_caveats(skipped: Mapping[int, str], baseline: str) -> tuple[str, ...]:
    """Find the caveat that seeds do not count, because the baseline has no score in them.

    Parameters
    ----------
    skipped : mapping of int to str
        The reason of each such seed.
    baseline : str
        The baseline's name.
    """
    if not skipped:
        return ()
    seed, reason = next(iter(skipped.items()))
    others = f", and {len(skipped) - 1} more" if len(skipped) > 1 else ""
    name = format_method_name(baseline)
    return (f"Seed {seed}{others} does not count, as {name} has no score there: {reason}.",)


def _describe_few_seeds(methods: Sequence[MethodResult]) -> str:
    seeds = min((len(method.runs) for method in methods), default=0)
    if not 0 < seeds < MIN_RELIABLE_SEEDS:
        return ""
    return (
        f"The comparison has {seeds} seed{'s' if seeds > 1 else ''}: with so few, intervals are "
        "right only if the differences between seeds are roughly normal."
    )


def _describe_tuning_noise(methods: Sequence[MethodResult], unit: Unit, margin: float) -> str:
    """Return the caveat that the tuning's noise may explain the methods' differences, or "".

    Each finalist has two scores, one per seed of the tuning. With d the differences of these pairs,
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
    baseline = format_method_name(methods[0].name)
    return (
        f"The validation scores that chose the values have a standard error of "
        f"{unit.format_amount(error)}, and the methods differ from {baseline} by "
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
    """Return the mean improvement of the score at the end, over seeds.

    The end is the last tenth of the rounds, or more if evaluations are rarer.

    Parameters
    ----------
    method : MethodResult
        A method with runs.
    sign : float
        -1 if lower scores are better.
    """
    return fmean(sign * _compute_late_change(run.curve) for run in method.runs)


def _compute_late_change(curve: ScoreCurve) -> float:
    if not curve:
        return 0.0
    scores = dict(curve)
    before, last = _find_late_rounds(curve)
    return scores[last] - scores[before]


def _find_late_rounds(curve: ScoreCurve) -> tuple[int, int]:
    """Return the last evaluated round at least a tenth earlier, if any, and the last one."""
    last = curve[-1][0]
    before = [number for number, _ in curve if number <= (1 - LATE_FRACTION) * last]
    return (before or [last])[-1], last


def _describe_test_rows(draws: SeedDraws, *, is_tuned: bool, unknown_rows: str) -> str:
    if unknown_rows:
        return (
            "Every seed tests the same rows: the intervals hold for these rows, and for new rows "
            f"of these clients they would be wider ({unknown_rows})."
        )
    if draws.data or not (draws.test_rows and is_tuned):
        return ""
    return (
        "Each seed, also in the tuning, divides the same rows anew: the tuning trained on rows "
        "that later runs test, but it chose by others."
    )


def _format_clients(clients: Sequence[int], total: int, names: ClientNames) -> str:
    """Format clients as "3 of 40 clients (7, 12, 31)", with the first names or ids."""
    ellipsis = ", ..." if len(clients) > MAX_CLIENTS_LISTED else ""
    listed = ", ".join(map(names.format, clients[:MAX_CLIENTS_LISTED]))
    return f"{len(clients)} of {total} clients ({listed}{ellipsis})"


def _get_verb(clients: Sequence[int]) -> str:
    return "has" if len(clients) == 1 else "have"
