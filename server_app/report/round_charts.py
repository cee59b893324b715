"""Charts over rounds: metrics, admission, mixing decisions, costs."""

from collections.abc import Sequence
from functools import partial

from fedquorum.hooks import ReportedNumbers
from fedquorum.metrics import metric_called
from fedquorum.records.round_record import RoundRecord

from server_app.report.chart_parts import (
    Method,
    bounds_of,
    loss_label,
    metric_label,
    models_tested,
    over_rounds,
    published,
    sources,
    tested_clients,
    whose,
)
from server_app.report.charts import ANY, FRACTION, PERCENT, Level, LineChart, Panel
from server_app.report.groups import metric_after_round
from server_app.report.tables import METRIC_NAMES

MEGABYTE = 1_000_000


def training_chart(methods: Sequence[Method]) -> LineChart | None:
    """Return test metrics and losses over rounds, with what is published as levels."""
    models = models_tested(methods)
    tested = tuple(models)
    metrics = list(dict.fromkeys([*(m.group.metric for m in methods), "accuracy"]))
    panels = [
        over_rounds(
            methods,
            metric_label(metric),
            partial(_tested, clients=clients, name=metric),
            title=models[clients],
            levels=_published_levels(methods, metric) if clients == tested[0] else (),
            bounds=bounds_of({metric}),
        )
        for metric in metrics
        for clients in tested
        if metric != "loss"
    ]
    panels.append(
        over_rounds(
            methods,
            loss_label(methods, "training loss F(w)"),
            lambda record: record.global_loss,
            title=models[tested[0]] if tested else "",
        )
    )
    panels += [
        over_rounds(
            methods,
            loss_label(methods, "test loss"),
            partial(_tested, clients=clients, name="loss"),
            title=models[clients],
        )
        for clients in tested[:1]
    ]
    note = (
        "Test metrics are of the model after the round, mean over the clients' own test parts by "
        "training data; F(w), of the priority clients, is of the model broadcast in it. Lines are "
        "means over seeds, bands or bars one standard deviation to either side."
    )
    return _chart("training", _training_title(methods), note + sources(methods, "values"), panels)


def _training_title(methods: Sequence[Method]) -> str:
    """Return "Accuracy and loss", or the same of another metric."""
    others = {m.group.metric for m in methods} - {"loss"} or {"accuracy"}
    names = [METRIC_NAMES[metric].partition(", ")[0] for metric in sorted(others)]
    title = f"{', '.join(names)} and loss"
    return title[0].upper() + title[1:]


def report_chart(methods: Sequence[Method], numbers: ReportedNumbers) -> LineChart | None:
    """Return the numbers that a report of a rule adds to the rounds; None where no run has any."""
    panels = [
        over_rounds(
            methods,
            f"{words}, %",
            partial(_tested, clients=clients, name=name),
            title=whose(clients),
            bounds=PERCENT,
        )
        for name, words in numbers.words.items()
        for clients in tested_clients(methods)
    ]
    return _chart(numbers.key, numbers.title, numbers.note, panels)


def admission_chart(methods: Sequence[Method]) -> LineChart | None:
    """Return admitted updates over rounds, and of rules with a gate A and theta.

    None where every method admits the same number in every round.
    """
    gated = [method for method in methods if _has_gate(method)]
    admitted = {r.admitted for m in methods for run in m.group.counted for r in run.rounds}
    if not gated and len(admitted) <= 1:
        return None
    panels = [
        over_rounds(methods, "updates admitted, a round", lambda record: record.admitted),
        over_rounds(gated, "inclusion mass A", lambda record: record.inclusion_mass),
        over_rounds(gated, "theta = 1 / (1 + A)", lambda record: record.theta, bounds=FRACTION),
    ]
    note = (
        "A is the data of the admitted non-priority clients over that of the priority clients; "
        "theta_T, the mean of theta over rounds, is a factor of FedALIGN's bound."
    )
    return _chart("admission", "Admission", note if gated else "", panels)


def decisions_chart(methods: Sequence[Method]) -> LineChart | None:
    """Return the sum of the decision losses, and KL(p || w), of rules that mix."""
    panels = [
        over_rounds(
            methods, "sum of decision losses, nats", lambda r: r.decision_loss_sum, bounds=ANY
        ),
        over_rounds(methods, "KL(p || w), nats", lambda record: record.kl_to_data),
    ]
    note = (
        "The decision loss is -log(1 + <p, r>) of the p held before the round's decision, of "
        "AAggFF alone; KL(p || w) tells how far p is from the fractions of training data w."
    )
    return _chart("decisions", "Mixing decisions", note, panels)


def costs_chart(methods: Sequence[Method]) -> LineChart | None:
    """Return bytes and seconds of each round."""
    largest = max(
        max(r.bytes_down, r.bytes_up)
        for m in methods
        for run in m.group.counted
        for r in run.rounds
    )
    unit, size = ("MB", 1e6) if largest >= MEGABYTE else ("kB", 1e3)
    panels = [
        over_rounds(methods, f"{unit} to the nodes, a round", lambda r: r.bytes_down / size),
        over_rounds(methods, f"{unit} from the nodes, a round", lambda r: r.bytes_up / size),
        over_rounds(methods, "seconds a round", lambda record: record.duration_seconds, log="y"),
    ]
    note = "Payload of all messages, for training and evaluation; seconds are of the machine used."
    return _chart("costs", "Bytes and seconds", note, panels)


def _chart(name: str, title: str, note: str, panels: Sequence[Panel | None]) -> LineChart | None:
    drawn = tuple(panel for panel in panels if panel is not None)
    return LineChart(name, title, note, drawn) if drawn else None


def _tested(record: RoundRecord, clients: str, name: str) -> float:
    return metric_called(name).factor * metric_after_round(record, clients, name)


def _published_levels(methods: Sequence[Method], metric: str) -> tuple[Level, ...]:
    levels = []
    for method, one in published(methods):
        value = one.values.get("test", one.values.get("average"))
        if method.group.metric == metric and value is not None:
            text = f"{method.label}, published: {100 * value:.2f}"
            levels.append(Level(method.label, method.style, 100 * value, text))
    return tuple(levels)


def _has_gate(method: Method) -> bool:
    """Say whether a non-priority client could ever have added to the inclusion mass."""
    return any(
        (record.inclusion_mass or 0.0) > 0.0 or (record.epsilon or 0.0) > 0.0
        for run in method.group.counted
        for record in run.rounds
    )
