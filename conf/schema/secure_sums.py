"""Build secure sums from settings, and refuse what needs more than the sum of the updates."""

from collections.abc import Iterator
from typing import NamedTuple

from fedquorum.errors import ParameterError, SettingsError
from fedquorum.flower.secure.plan import MIN_NODES
from fedquorum.flower.secure.settings import SecureAggregation
from fedquorum.rules.composition import RuleSet
from fedquorum.rules.metrics import SUMMED_METRICS

from conf.schema.data import agrees_on_numbers, agrees_on_target
from conf.schema.privacy import CLIENT_MODES
from conf.schema.secure_aggregation import MaskSettings
from conf.schema.settings import Settings, get_evaluation_metric

MAX_DEFAULT_NODES = 10
"""Where one process or one cluster has all clients: more nodes would cost time alone."""


_UNSEEN = "the server cannot clip an update that it does not see"


def build_secure_aggregation(settings: Settings) -> SecureAggregation | None:
    """Return what a run assumes of its nodes; None without masks."""
    masks = settings.secure_aggregation
    if not isinstance(masks, MaskSettings):
        return None
    return SecureAggregation(masks.colluding, masks.dropping)


def choose_num_nodes(settings: Settings, num_clients: int) -> int | None:
    """Return the number of nodes of a simulated run; None for the engine's default."""
    given = settings.engine.num_supernodes
    if given is None and isinstance(settings.secure_aggregation, MaskSettings):
        return min(num_clients, MAX_DEFAULT_NODES)
    return given


def check_secure_aggregation(settings: Settings) -> None:
    """Refuse settings with which the server, or the records, need more than the sum.

    Raises
    ------
    ParameterError
        For the first of them, by the name of its setting.
    """
    name = settings.secure_aggregation.name
    if name == "none":
        return
    for condition in (*_list_training_conditions(settings), *_list_result_conditions(settings)):
        if not condition.is_allowed:
            allowed = f"{condition.allowed} with secure_aggregation={name}"
            raise ParameterError(condition.key, allowed, condition.given, condition.reason)


class _Condition(NamedTuple):
    """A setting that masks restrict, what they allow and why."""

    key: str
    given: object
    is_allowed: bool
    allowed: str
    reason: str


def _list_training_conditions(settings: Settings) -> Iterator[_Condition]:
    """Yield what the nodes, and the weights of their updates, need."""
    engine, robustness, privacy = settings.engine, settings.robustness, settings.privacy.name
    for key, given in {
        "engine.num_supernodes": engine.num_supernodes,
        "data.num_clients": settings.data.num_clients,
    }.items():
        yield _Condition(
            key,
            given,
            given is None or given >= MIN_NODES,
            f"at least {MIN_NODES}",
            "of two nodes each could subtract its sum from that of both",
        )
    clock = settings.response_time.name
    reason = "simulated time decides after training which updates count"
    yield _Condition("response_time", clock, clock == "none", "none", reason)
    late = engine.late_replies
    reason = "staleness decides after training how much an update counts"
    yield _Condition("engine.late_replies", late, late == "discard", "discard", reason)
    key, sums = "engine.partial_aggregation", engine.partial_aggregation
    yield _Condition(key, sums, sums, "true", "nodes send sums alone")
    norm, weight = robustness.clip_norm, robustness.max_weight
    yield _Condition("robustness.clip_norm", norm, norm is None, "null", _UNSEEN)
    reason = "a bound on a weight changes it after training"
    yield _Condition("robustness.max_weight", weight, weight is None, "null", reason)
    modes = ("none", *CLIENT_MODES)
    allowed = f"one of {', '.join(modes)}"
    yield _Condition("privacy", privacy, privacy in modes, allowed, _UNSEEN)


def _list_result_conditions(settings: Settings) -> Iterator[_Condition]:
    """Yield what masks need of scales and evaluations, which must be sums too."""
    data, evaluation, metric = settings.data, settings.evaluation, get_evaluation_metric(settings)
    reason = "the sums on which clients agree have no masks"
    yield _Condition("data.scaling", "agreed", not agrees_on_numbers(data), "client", reason)
    scale = "[mean, deviation], such as [400000, 150000] from published numbers,"
    yield _Condition("data.target_scale", None, not agrees_on_target(data), scale, reason)
    allowed = f"one of {', '.join(SUMMED_METRICS)}"
    reason = "others lack clients with one class or target, and the server would learn which"
    yield _Condition("evaluation.metric", metric, metric in SUMMED_METRICS, allowed, reason)
    held_out = data.holdout_client_fraction
    reason = "the mean over the others would be a second sum, and two tell of single clients"
    yield _Condition("data.holdout_client_fraction", held_out, held_out == 0, "0", reason)
    reason = "it needs the results of single clients"
    given = evaluation.requirement
    yield _Condition("evaluation.requirement", given, given is None, "null", reason)
    for name in ("finetune_epochs", "alone_epochs"):
        given = getattr(evaluation, name)
        yield _Condition(f"evaluation.{name}", given, given == 0, "0", reason)


def check_masked_rules(settings: Settings, rules: RuleSet) -> None:
    """Refuse rules that need more of the updates than their sum.

    Raises
    ------
    SettingsError
        If the rules do, with the reason.
    """
    name = settings.secure_aggregation.name
    if name != "none" and (reason := rules.sum_unsupported_reason):
        raise SettingsError(
            f"secure_aggregation must be none with strategy={settings.strategy.name} ({reason}), "
            f"got {name}"
        )
