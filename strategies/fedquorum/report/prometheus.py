"""Export a run's metrics for Prometheus; needs the package ``prometheus_client``."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from ..records.reader import RUN_STATUSES, Run
from ..records.round_record import list_groups
from ..rules.decisions import STATUSES
from .client_status import ClientStatusTable
from .watched_run import WatchedRun

EXPORTED_STATISTICS = ("average", "worst", "best")


class _FixedCollector(Collector):
    """A collector that returns given metrics."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = tuple(metrics)

    def collect(self) -> Iterable[Metric]:
        """Return the given metrics."""
        return self._metrics


def format_metrics(
    runs: Sequence[WatchedRun],
    newest: WatchedRun | None,
    name: str,
    clients: ClientStatusTable | None,
    num_problems: int,
) -> bytes:
    """Return metrics in Prometheus' text format.

    Parameters
    ----------
    runs : sequence of WatchedRun
        All readable runs.
    newest : WatchedRun, optional
        The run to export, with its ``name`` and ``clients``.
    num_problems : int
        The number of unreadable records.
    """
    statuses = Counter(one.run.status for one in runs)
    metrics = [
        _build_gauges(
            "runs", "Runs in the folder.", "status", {s: statuses[s] for s in RUN_STATUSES}
        ),
        _build_gauge("unreadable_records", "Records that cannot be read.", num_problems),
    ]
    if newest is not None and clients is not None:
        metrics += [
            *_build_run_metrics(newest, name),
            *_build_round_metrics(newest.run),
            *_build_test_metrics(newest.run),
        ]
        num_clients = len(clients.table)
        metrics.append(_build_gauge("clients_known", "Clients of the run.", num_clients))
        text = "Selected clients that were not unavailable the last time."
        metrics.append(_build_gauge("clients_connected", text, clients.num_connected))
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_FixedCollector(metrics))
    return generate_latest(registry)


def _build_run_metrics(watched: WatchedRun, name: str) -> Iterator[Metric]:
    run = watched.run
    info = InfoMetricFamily("fedquorum_run", "The run that is watched.")
    labels = {"experiment": run.experiment, "strategy": run.strategy, "seed": str(run.seed)}
    info.add_metric((), {"run": name, **labels})
    yield info
    text = "1 for the status of the run. One that was killed stays running."
    yield _build_gauges("run_status", text, "status", {s: run.status == s for s in RUN_STATUSES})
    yield _build_gauge("rounds", "Rounds planned.", run.planned)
    text = "When the run last recorded anything, in seconds since 1970."
    yield _build_gauge("last_record_timestamp_seconds", text, watched.last_record)


def _build_round_metrics(run: Run) -> Iterator[Metric]:
    """Yield sums over all rounds, and metrics of the last round."""
    rounds = run.rounds
    yield _build_gauge("round", "The last complete round.", rounds[-1].round if rounds else 0)
    seconds = sum(r.duration_seconds for r in rounds if not math.isnan(r.duration_seconds))
    yield CounterMetricFamily("fedquorum_seconds", "Duration of all rounds.", seconds)
    sizes = {"down": sum(r.bytes_down for r in rounds), "up": sum(r.bytes_up for r in rounds)}
    yield _build_counters("bytes", "Payload of all messages.", "direction", sizes)
    text = "Outcomes of the selected clients, all rounds."
    counts = {status: sum(getattr(r, status) for r in rounds) for status in STATUSES}
    yield _build_counters("answers", text, "status", counts)
    text = "Replies that came after a quorum had closed their round."
    late = sum(len(r.late_replies) for r in rounds)
    yield CounterMetricFamily("fedquorum_late_replies", text, late)
    if not rounds:
        return
    last = rounds[-1]
    text = "Outcomes of the clients selected in the last round."
    yield _build_gauges("clients", text, "status", {s: getattr(last, s) for s in STATUSES})
    for name, text, value in (
        ("admitted", "Updates admitted in the last round.", last.admitted),
        ("round_seconds", "Duration of the last round.", last.duration_seconds),
        ("global_loss", "F(w) of the model broadcast, nats.", last.global_loss),
        ("global_accuracy", "Its accuracy on training data.", last.global_accuracy),
        ("simulated_seconds", "The virtual clock of the run.", last.simulated_seconds),
    ):
        if value is not None and not math.isnan(value):
            yield _build_gauge(name, text, value)


def _build_test_metrics(run: Run) -> Iterator[Metric]:
    """Yield the last test metrics; spread over clients is that of ``evaluation.metric``."""
    record = next((r for r in reversed(run.rounds) if r.test), None)
    if record is None or record.test is None:
        return
    yield _build_gauge("tested_round", "The round of the last model tested.", record.round)
    metric = str(run.settings.get("evaluation.metric", "accuracy"))
    found: dict[str, GaugeMetricFamily] = {}
    for group in list_groups(record.test):
        values = record.test[group] or {}
        names = {name: (name, "mean") for name in ("accuracy", "loss", metric)}
        names |= {name: (metric, name) for name in EXPORTED_STATISTICS}
        for name, (base, statistic) in names.items():
            value = values.get(name, math.nan)
            if not math.isnan(value):
                family = "fedquorum_accuracy" if base == "accuracy" else f"fedquorum_test_{base}"
                text = f"Test {base} of the last model tested, over clients."
                found.setdefault(
                    base, GaugeMetricFamily(family, text, labels=("clients", "statistic"))
                ).add_metric((group, statistic), value)
    yield from found.values()


def _build_gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"fedquorum_{name}", text, value=value)


def _build_gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(f"fedquorum_{name}", text, labels=(label,))
    for label_value, value in values.items():
        family.add_metric((label_value,), float(value))
    return family


def _build_counters(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(f"fedquorum_{name}", text, labels=(label,))
    for label_value, value in values.items():
        family.add_metric((label_value,), value)
    return family
