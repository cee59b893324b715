"""Group runs that differ only in the seed, and compute means and deviations over seeds."""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

from ..metrics.fairness import exact_sum
from ..records.reader import Run
from ..records.round_record import RoundRecord
from ..records.settings import mask_passwords
from ..records.values import MAX_COUNT
from ..sanitize import sanitize
from .chart_spec import sample_indices
from .names import MIN_DIGITS, choose_digits, format_setting, method_title

_IGNORED_SETTINGS = (
    *("engine.", "client.device", "client.deterministic", "client.batching"),
    *("client.retain_memory", "tracker.", "resume"),
)

TESTED_METRICS = ("accuracy", "loss")

MAX_VALUE_LENGTH = 2**20
"""Characters of a setting in tables."""

MAX_CHART_NAME_LENGTH = 120
"""Characters of a name in charts."""

_QUORUM_SETTINGS = (
    *("engine.quorum", "engine.quorum_clients", "engine.grace_seconds", "engine.late_replies"),
    *("engine.staleness_exponent", "engine.max_staleness", "engine.concurrency"),
)


@dataclass(frozen=True)
class Statistic:
    """Mean and sample standard deviation of one value per seed, in the value's unit.

    sd = sqrt(sum (x - mean)^2 / (n - 1)), None for n = 1.
    """

    mean: float
    sd: float | None


@dataclass(frozen=True)
class Curve:
    """A statistic over rounds."""

    rounds: tuple[int, ...]
    statistics: tuple[Statistic, ...]


@dataclass(frozen=True)
class Group:
    """Runs of one experiment and strategy that differ in nothing but the seed.

    Parameters
    ----------
    experiment, strategy : str
    variant : tuple of str
        The settings that distinguish this group from others of the same experiment and strategy,
        each as ``key=value``; empty without another group.
    runs : tuple of Run
        All runs, of any status.
    digits : mapping
        By setting, the significant digits that distinguish its values in the other groups of the
        strategy; see ``choose_digits``.
    """

    experiment: str
    strategy: str
    variant: tuple[str, ...]
    runs: tuple[Run, ...]
    digits: Mapping[str, int] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The group's name."""
        return f"{self.experiment}, {self.method_name}"

    @property
    def method_name(self) -> str:
        """The group's name within its experiment, such as ``fedalign (epsilon=0.2)``."""
        if not self.variant:
            return self.strategy
        return f"{self.strategy} ({', '.join(map(abbreviate_setting, self.variant))})"

    @property
    def title(self) -> str:
        """The display name, such as ``FedALIGN, epsilon 0.2``."""
        return self.format_title(())

    def format_title(self, omitted: Collection[str]) -> str:
        """Return the title without the settings ``omitted``, each as ``key=value``."""
        remaining = (setting for setting in self.variant if setting not in omitted)
        return ", ".join((method_title(self.strategy), *map(self.format_setting, remaining)))

    def format_setting(self, setting: str) -> str:
        """Format a setting of the variant so that it differs from the other groups'."""
        digits = self.digits.get(setting.partition("=")[0], MIN_DIGITS)
        return format_setting(setting, self.runs[0].settings, digits)

    @property
    def title_with_status(self) -> str:
        """The title, with the runs' statuses if they are not completed."""
        return (
            f"{self.title} [{self.unfinished_statuses}]" if self.unfinished_statuses else self.title
        )

    @property
    def is_regression(self) -> bool:
        """Whether the runs predict numbers, so that losses are squared errors."""
        return self.runs[0].settings.get("data.regression") is True

    @property
    def has_masks(self) -> bool:
        """Whether the nodes mask their sums, so that no record has a result of a single client."""
        return self.runs[0].settings.get("secure_aggregation.name") == "masks"

    @property
    def metric(self) -> str:
        """The test metric whose spread over clients is recorded, such as accuracy."""
        return str(self.runs[0].settings.get("evaluation.metric", "accuracy"))

    @property
    def unfinished_statuses(self) -> str:
        """The statuses other than completed of the runs that enter the statistics."""
        return ", ".join(sorted({run.status for run in self.counted_runs} - {"completed"}))

    @property
    def counted_runs(self) -> tuple[Run, ...]:
        """The runs that enter the statistics: one per seed, ascending by seed.

        These are completed runs or, if there are none, runs with at least one round. Of several
        runs with one seed, the one with the most rounds counts, and among these the latest.
        """
        started = [run for run in self.runs if run.rounds]
        completed = [run for run in started if run.status == "completed"]
        ordered = sorted(completed or started, key=lambda run: (len(run.rounds), run.started))
        by_seed = {run.seed: run for run in ordered}
        return tuple(by_seed[seed] for seed in sorted(by_seed))

    def compute_statistic(self, value: Callable[[Run], float]) -> Statistic | None:
        """Compute the statistic of ``value`` over seeds, without seeds that have NaN."""
        return compute_mean_and_sd([value(run) for run in self.counted_runs])

    def compute_curve(self, value: Callable[[RoundRecord], float]) -> Curve:
        """Compute the statistic of ``value`` at rounds where every seed has a finite value.

        Other rounds are left out, because a mean over fewer seeds would jump. Many rounds are
        subsampled evenly to the points of a chart.
        """
        seeds = [
            {record.round: value(record) for record in run.rounds} for run in self.counted_runs
        ]
        defined = [
            number
            for number in sorted(set().union(*seeds))
            if all(math.isfinite(seed.get(number, math.nan)) for seed in seeds)
        ]
        rounds = [defined[i] for i in sample_indices(len(defined))]
        statistics = (compute_mean_and_sd([seed[number] for seed in seeds]) for number in rounds)
        return Curve(tuple(rounds), tuple(one for one in statistics if one is not None))


def group_runs(runs: Iterable[Run]) -> tuple[Group, ...]:
    """Group runs by all settings that affect results, sorted by experiment, strategy and variant.

    Runs of one group may differ in the seed, in settings of where and how clients run (``engine``
    without its quorum, and a few of ``client``), in ``tracker`` and in ``resume``.
    """
    by_name: dict[tuple[str, str], dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        key = json.dumps(select_result_settings(run), sort_keys=True)
        by_name[run.experiment, run.strategy][key].append(run)
    groups = []
    for (experiment, strategy), by_settings in by_name.items():
        members = list(by_settings.values())
        variants = _build_variants([select_result_settings(same[0]) for same in members])
        values: dict[str, list[str]] = defaultdict(list)
        for key, _, value in (one.partition("=") for variant in variants for one in variant):
            values[key].append(value)
        digits = {key: choose_digits(found) for key, found in values.items()}
        for variant, same in zip(variants, members, strict=True):
            groups.append(Group(experiment, strategy, variant, tuple(same), digits))
    return tuple(
        sorted(groups, key=lambda g: (g.experiment, g.strategy, _get_variant_sort_key(g.variant)))
    )


def _get_variant_sort_key(variant: Sequence[str]) -> tuple[tuple[str, tuple[int, float, str]], ...]:
    parts = [setting.partition("=") for setting in variant]
    return tuple((key, get_value_sort_key(value)) for key, _, value in parts)


def get_value_sort_key(value: str) -> tuple[int, float, str]:
    """Return a sort key for values of a setting: 2 before 10, inf, then words."""
    try:
        number = float(value)
    except ValueError:
        return 1, 0.0, value
    return (1, 0.0, value) if math.isnan(number) else (0, number, "")


def is_tested(record: RoundRecord, group: str) -> bool:
    """Return whether a group has an accuracy or a loss after a round."""
    return any(not math.isnan(get_test_metric(record, group, name)) for name in TESTED_METRICS)


def get_test_metric(record: RoundRecord, group: str, name: str) -> float:
    """Return a test metric of one of ``TEST_GROUPS`` after a round, or NaN."""
    values = None if record.test is None else record.test.get(group)
    return math.nan if values is None else values.get(name, math.nan)


def select_result_settings(run: Run) -> dict[str, Any]:
    """Return the settings that affect results, without the seed.

    Settings of where and how clients run, and of a resume, affect no number.
    """
    affects_lateness = {*_QUORUM_SETTINGS}
    if run.settings.get("response_time.name", "none") != "none":
        affects_lateness.add("engine.round_timeout")
    return {
        key: _mask_seed_path(key, value)
        for key, value in run.settings.items()
        if key in affects_lateness or (key != "seed" and not key.startswith(_IGNORED_SETTINGS))
    }


def _mask_seed_path(key: str, value: Any) -> Any:
    """Mask the part of a setting that names a run of one seed.

    Clients' requirements come from a run of the same seed: each run names another directory
    in one folder.
    """
    names_run = key.endswith(".requirement") and isinstance(value, str)
    return f"{Path(value).parent}/*" if names_run else value


def _build_variants(settings: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    texts = [{key: format_setting_value(one[key]) for key in one} for one in settings]
    keys = find_distinguishing_keys(texts)
    return [tuple(f"{key}={text[key]}" for key in keys if key in text) for text in texts]


def find_distinguishing_keys(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the keys that distinguish the settings, in their order.

    These are keys with different values, except those that the option of their group implies:
    ``availability.period`` comes with ``availability=cyclic``, so it counts only if two settings
    with this option differ in it.
    """
    keys = dict.fromkeys(key for one in settings for key in one)
    differing = [key for key in keys if len({one.get(key) for one in settings}) > 1]
    return [key for key in differing if _is_distinguishing(key, settings)]


def _is_distinguishing(key: str, settings: Sequence[Mapping[str, str]]) -> bool:
    name = f"{key.rpartition('.')[0]}.name"
    values: dict[str | None, set[str | None]] = defaultdict(set)
    for one in settings:
        values[one.get(name)].add(one.get(key))
    return key == name or any(len(found) > 1 for found in values.values())


def abbreviate_setting(setting: str) -> str:
    """Shorten ``strategy.epsilon=0.2`` to ``epsilon=0.2``, and an option's name to its value."""
    key, _, value = setting.partition("=")
    group, _, name = key.rpartition(".")
    if name == "name":
        return value
    return f"{name}={value}" if group in ("", "strategy") else setting


def format_setting_value(value: Any) -> str:
    """Format a setting for the command line, with passwords masked."""
    if isinstance(value, float) and value.is_integer() and abs(value) <= MAX_COUNT:
        return str(int(value))
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return mask_passwords(sanitize(value, MAX_VALUE_LENGTH))


def abbreviate_name(text: str) -> str:
    """Shorten a text for charts; a checksum keeps shortened texts distinct."""
    if len(text) <= MAX_CHART_NAME_LENGTH:
        return text
    return f"{text[:MAX_CHART_NAME_LENGTH]}... ({crc32(text.encode()):08x})"


def subtract_by_seed(one: Group, other: Group, value: Callable[[Run], float]) -> list[float]:
    """Return the differences, one minus other, for each common seed in ascending order."""
    theirs = {run.seed: run for run in other.counted_runs}
    return [value(run) - value(theirs[run.seed]) for run in one.counted_runs if run.seed in theirs]


def format_mean_sd(values: Iterable[float], digits: int = 2) -> str:
    """Format "mean ± standard deviation" of the values without NaN, "-" without any."""
    found = compute_mean_and_sd(values)
    if found is None:
        return "-"
    mean = f"{found.mean:.{digits}f}"
    return mean if found.sd is None else f"{mean} ± {found.sd:.{digits}f}"


def compute_mean_and_sd(values: Iterable[float]) -> Statistic | None:
    """Compute mean and sample standard deviation of the values without NaN."""
    x = [value for value in values if not math.isnan(value)]
    if not x:
        return None
    mean = exact_sum(x) / len(x)
    if len(x) == 1:
        return Statistic(mean, None)
    return Statistic(mean, math.sqrt(exact_sum((v - mean) * (v - mean) for v in x) / (len(x) - 1)))
