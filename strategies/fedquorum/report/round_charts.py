"""Build charts over rounds: metrics, admission, mixing decisions and costs."""

import math
from collections.abc import Sequence
from functools import partial
from statistics import fmean

from ..records.data_facts import get_constant_accuracy
from ..records.round_record import RoundRecord
from ..rules.hooks import ReportedMetrics
from ..rules.metrics import get_metric
from .chart_helpers import (
    PlottedMethod,
    build_round_panel,
    find_published,
    format_group_label,
    format_loss_label,
    format_metric_label,
    format_sources,
    get_metric_bounds,
    has_other_clients,
    name_tested_models,
    select_tested_groups,
)
from .chart_spec import FRACTION_BOUNDS, NO_BOUNDS, PERCENT_BOUNDS, LineChart, Panel, ReferenceLine
from .seed_groups import get_test_metric
from .tables import METRIC_NAMES

BYTES_PER_MEGABYTE = 1_000_000
CONSTANT_LABEL = "largest class always"
BLACK_STYLE = 6
"""The style of a line that is no method's; see ``chart_spec.get_line_style``."""


def build_training_chart(methods: Sequence[PlottedMethod]) -> LineChart | None:
    """Build the chart of test metrics and losses, with published results as reference lines."""
    models = name_tested_models(methods)
    tested = tuple(models)
    metrics = list(dict.fromkeys([*(m.group.metric for m in methods), "accuracy"]))
    panels = [
        build_round_panel(
            methods,
            format_metric_label(metric),
            partial(_get_scaled_metric, clients=clients, name=metric),
            title=models[clients],
            reference_lines=(
                *(_build_published_lines(methods, metric) if clients == tested[0] else ()),
                *_build_constant_lines(methods, metric, clients),
            ),
            bounds=get_metric_bounds({metric}),
        )
        for metric in metrics
        for clients in tested
        if metric != "loss"
    ]
    panels.append(
        build_round_panel(
            methods,
            format_loss_label(methods, "training loss F(w)"),
            lambda record: record.global_loss,
            title=models[tested[0]] if tested else "",
        )
    )
    panels += [
        build_round_panel(
            methods,
            format_loss_label(methods, "test loss"),
            partial(_get_scaled_metric, clients=clients, name="loss"),
            title=models[clients],
        )
        for clients in tested[:1]
    ]
    constant = f' "{CONSTANT_LABEL}": always guessing the class of most rows.'
    has_constant = any(
        level.label == CONSTANT_LABEL
        for panel in panels
        if panel
        for level in panel.reference_lines
    )
    over = "the priority clients" if has_other_clients(methods) else "all clients"
    broadcast = f"F(w), of {over}, is of the model broadcast in"
    tests = (
        "Test metrics are of the model after the round, mean over the clients' test splits by "
        f"training data; {broadcast} it."
    )
    note = (
        f"{tests if tested else f'{broadcast} the round.'} Lines are means over seeds, bands or "
        "bars one standard deviation to either side."
    )
    return _build_chart(
        "training",
        _format_training_title(methods),
        note + (constant if has_constant else "") + format_sources(methods, "values"),
        panels,
    )


def _build_constant_lines(
    methods: Sequence[PlottedMethod], metric: str, clients: str
) -> tuple[ReferenceLine, ...]:
    """Return the accuracy of always guessing the largest class, mean over runs, if it is known."""
    runs = [run for method in methods for run in method.group.counted_runs]
    found = [get_constant_accuracy(run.data, clients) for run in runs]
    known = [100 * accuracy for accuracy in found if not math.isnan(accuracy)]
    if metric != "accuracy" or not known:
        return ()
    level = fmean(known)
    return (ReferenceLine(CONSTANT_LABEL, BLACK_STYLE, level, f"{CONSTANT_LABEL}: {level:.2f}"),)


def _format_training_title(methods: Sequence[PlottedMethod]) -> str:
    """Return a title such as "Accuracy and loss"."""
    others = {m.group.metric for m in methods} - {"loss"} or {"accuracy"}
    names = [METRIC_NAMES[metric].partition(", ")[0] for metric in sorted(others)]
    title = f"{', '.join(names)} and loss"
    return title[0].upper() + title[1:]


def build_rule_metrics_chart(
    methods: Sequence[PlottedMethod], numbers: ReportedMetrics
) -> LineChart | None:
    """Build the chart of a rule's reported metrics over rounds, or None if no run has any."""
    panels = [
        build_round_panel(
            methods,
            f"{words}, %",
            partial(_get_scaled_metric, clients=clients, name=name),
            title=format_group_label(clients),
            bounds=PERCENT_BOUNDS,
        )
        for name, words in numbers.labels.items()
        for clients in select_tested_groups(methods)
    ]
    return _build_chart(numbers.key, numbers.title, numbers.note, panels)


def build_admission_chart(methods: Sequence[PlottedMethod]) -> LineChart | None:
    """Build the chart of admitted updates, with A and theta for rules with a gate.

    None without a gate if every method admits the same number in every round.
    """
    gated = [method for method in methods if _has_gate(method)]
    admitted = {r.admitted for m in methods for run in m.group.counted_runs for r in run.rounds}
    if not gated and len(admitted) <= 1:
        return None
    panels = [
        build_round_panel(methods, "updates admitted, a round", lambda record: record.admitted),
        build_round_panel(gated, "inclusion mass A", lambda record: record.inclusion_mass),
        build_round_panel(
            gated, "theta = 1 / (1 + A)", lambda record: record.theta, bounds=FRACTION_BOUNDS
        ),
    ]
    note = (
        "A is the data of the admitted non-priority clients over that of the priority clients; "
        "theta_T, the mean of theta over rounds, is a factor of FedALIGN's bound."
    )
    return _build_chart("admission", "Admission", note if gated else "", panels)


def build_decision_chart(methods: Sequence[PlottedMethod]) -> LineChart | None:
    """Build the chart of decision losses and KL(p || w), for rules that mix."""
    panels = [
        build_round_panel(
            methods, "sum of decision losses, nats", lambda r: r.decision_loss_sum, bounds=NO_BOUNDS
        ),
        build_round_panel(methods, "KL(p || w), nats", lambda record: record.kl_to_data),
    ]
    note = (
        "The decision loss is -log(1 + <p, r>) of the p held before the round's decision, of "
        "AAggFF alone; KL(p || w) is the divergence of p from the fractions of training data w."
    )
    return _build_chart("decisions", "Mixing decisions", note, panels)


def build_cost_chart(methods: Sequence[PlottedMethod]) -> LineChart | None:
    """Build the chart of bytes and seconds per round."""
    largest = max(
        max(r.bytes_down, r.bytes_up)
        for m in methods
        for run in m.group.counted_runs
        for r in run.rounds
    )
    unit, size = ("MB", 1e6) if largest >= BYTES_PER_MEGABYTE else ("kB", 1e3)
    panels = [
        build_round_panel(methods, f"{unit} to the nodes, a round", lambda r: r.bytes_down / size),
        build_round_panel(methods, f"{unit} from the nodes, a round", lambda r: r.bytes_up / size),
        build_round_panel(
            methods, "seconds a round", lambda record: record.duration_seconds, log="y"
        ),
    ]
    note = "Payload of all messages, for training and evaluation; seconds are of the machine used."
    return _build_chart("costs", "Bytes and seconds", note, panels)


def _build_chart(
    name: str, title: str, note: str, panels: Sequence[Panel | None]
) -> LineChart | None:
    drawn = tuple(panel for panel in panels if panel is not None)
    return LineChart(name, title, note, drawn) if drawn else None


def _get_scaled_metric(record: RoundRecord, clients: str, name: str) -> float:
    return get_metric(name).scale * get_test_metric(record, clients, name)


def _build_published_lines(
    methods: Sequence[PlottedMethod], metric: str
) -> tuple[ReferenceLine, ...]:
    levels = []
    for method, one in find_published(methods):
        value = one.values.get("test", one.values.get("average"))
        if method.group.metric == metric and value is not None:
            text = f"{method.label}, published: {100 * value:.2f}"
            levels.append(ReferenceLine(method.label, method.style, 100 * value, text))
    return tuple(levels)


def _has_gate(method: PlottedMethod) -> bool:
    """Return whether a non-priority client could ever add to the inclusion mass."""
    return any(
        (record.inclusion_mass or 0.0) > 0.0 or (record.epsilon or 0.0) > 0.0
        for run in method.group.counted_runs
        for record in run.rounds
    )
