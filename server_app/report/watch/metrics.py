"""The figures of a run for Prometheus; needs the package ``prometheus_client``."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from fedquorum.records.reader import STATUSES as RUN_STATUSES
from fedquorum.records.round_record import groups_of
from fedquorum.report import STATUSES
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from server_app.report.watch.clients import NOT_CONNECTED, SHOWN_STATUSES
from server_app.report.watch.folder import WatchedFolder
from server_app.report.watch.run import FollowedRun

STATISTICS = ("average", "worst", "best")
CONNECTED = tuple(status for status in SHOWN_STATUSES if status not in NOT_CONNECTED)


class RunCollector(Collector):
    """Tells Prometheus of a run.

    Parameters
    ----------
    folder : WatchedFolder
        The folder with the run.
    found : tuple of str and FollowedRun, optional
        The run's name and what is known of it by now; None where there is no run.
    """

    def __init__(self, folder: WatchedFolder, found: tuple[str, FollowedRun] | None) -> None:
        self._folder = folder
        self._found = found

    def collect(self) -> Iterable[Metric]:
        """Yield all figures of the run."""
        statuses = Counter(manifest.status for manifest in self._folder.manifests.values())
        yield _gauges(
            "fedquorum_runs",
            "Runs in the folder.",
            ("status",),
            {(status,): statuses[status] for status in RUN_STATUSES},
        )
        if self._found is not None:
            name, run = self._found
            yield from _of_manifest(name, run)
            yield from _of_rounds(run)
            yield from _of_last_round(run)
            yield from _of_tests(run)
            yield from _of_clients(run)


def exposition(collector: Collector, accept: str) -> tuple[bytes, str]:
    """Return the figures and their content type, in the format that is asked for.

    Parameters
    ----------
    collector : Collector
        What knows the figures.
    accept : str
        The header ``Accept`` of the request.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def _of_manifest(name: str, run: FollowedRun) -> Iterator[Metric]:
    manifest = run.manifest
    labels = {field: manifest.text(field) for field in ("experiment", "strategy", "seed")}
    info = InfoMetricFamily("fedquorum_run", "The run that is followed.")
    info.add_metric((), {"run": name, **labels})
    yield info
    yield _gauges(
        "fedquorum_run_status",
        "1 for the status of the run. One that was killed stays running.",
        ("status",),
        {(status,): float(manifest.status == status) for status in RUN_STATUSES},
    )
    yield _gauge("fedquorum_rounds", "Rounds planned.", run.planned)
    yield _gauge(
        "fedquorum_silent_seconds",
        "For how long a running run has recorded nothing.",
        run.silent_for,
    )
    yield _gauge(
        "fedquorum_unreadable_records",
        "Problems met while the records were read.",
        len(run.problems),
    )


def _of_rounds(run: FollowedRun) -> Iterator[Metric]:
    """Yield the sums over rounds."""
    rounds = run.rounds
    yield _gauge(
        "fedquorum_round",
        "The last complete round.",
        0 if rounds.last is None else rounds.last.round,
    )
    yield CounterMetricFamily("fedquorum_seconds", "Duration of all rounds.", rounds.seconds)
    traffic = CounterMetricFamily(
        "fedquorum_bytes", "Payload of all messages.", labels=("direction",)
    )
    for direction, count in (("down", rounds.bytes_down), ("up", rounds.bytes_up)):
        traffic.add_metric((direction,), count)
    yield traffic
    answers = CounterMetricFamily(
        "fedquorum_answers", "What became of the clients asked, all rounds.", labels=("status",)
    )
    for status in STATUSES:
        answers.add_metric((status,), rounds.answers[status])
    yield answers
    yield CounterMetricFamily(
        "fedquorum_late_replies",
        "Replies that came after a quorum had closed their round.",
        rounds.late_replies,
    )


def _of_last_round(run: FollowedRun) -> Iterator[Metric]:
    if run.rounds.last is None:
        return
    yield _gauges(
        "fedquorum_clients",
        "What became of the clients asked in the last round.",
        ("status",),
        {(status,): run.rounds.latest(status) for status in STATUSES},
    )
    for name, column, text in (
        ("fedquorum_admitted", "admitted", "Updates admitted in the last round."),
        ("fedquorum_round_seconds", "seconds", "Duration of the last round."),
        ("fedquorum_global_loss", "global_loss", "F(w) of the model broadcast, nats."),
        ("fedquorum_global_accuracy", "global_accuracy", "Its accuracy on training data."),
        ("fedquorum_simulated_seconds", "simulated_seconds", "The virtual clock of the run."),
    ):
        value = run.rounds.latest(column)
        if not math.isnan(value):
            yield _gauge(name, text, value)


def _of_tests(run: FollowedRun) -> Iterator[Metric]:
    """Yield the last test metrics; those over clients are of ``evaluation.metric``."""
    record, metric = run.rounds.last_tested, run.metric
    if record is None or record.test is None:
        return
    yield _gauge("fedquorum_tested_round", "The round of the last model tested.", record.round)
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for group in groups_of(record.test):
        values = record.test[group] or {}
        names = {name: (name, "mean") for name in ("accuracy", "loss", metric)}
        names |= {name: (metric, name) for name in STATISTICS}
        for name, (family, statistic) in names.items():
            value = values.get(name, math.nan)
            if not math.isnan(value):
                found.setdefault(family, {})[group, statistic] = value
    for family, samples in found.items():
        name = "fedquorum_accuracy" if family == "accuracy" else f"fedquorum_test_{family}"
        text = f"Test {family} of the last model tested, over clients."
        yield _gauges(name, text, ("clients", "statistic"), samples)


def _of_clients(run: FollowedRun) -> Iterator[Metric]:
    seen = run.clients.seen
    yield _gauge("fedquorum_clients_known", "Clients of the run.", len(seen.client))
    yield _gauge(
        "fedquorum_clients_connected",
        "Clients that were asked and not unavailable the last time.",
        seen.count(CONNECTED),
    )


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _gauges(
    name: str, text: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float]
) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for texts, value in values.items():
        family.add_metric(texts, value)
    return family
