"""Apply the policy of a data owner: ``node.yaml`` beside the data.

The server never sees the file. The node checks each message's run against it before it reads any
data. The reply to a refused message has the reason, which goes into the audit trail. The run
brings the code that checks, as it brings all its code; docs/deployment.md explains the limits.
"""

import json
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import Field, asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from logging import ERROR, INFO, WARNING
from pathlib import Path
from typing import Any

import yaml
from fedquorum.errors import ProtocolError, SettingsError, suggest_name, to_one_line
from fedquorum.flower.codec import (
    CLIENT_ID,
    EVALUATION_KEYS,
    VALIDATION_COUNTERPARTS,
    EvaluateResult,
    Status,
    TrainResult,
    add_client_names,
    add_scale,
    decode_evaluate_reply,
    decode_train_reply,
    drop_metrics,
    encode_evaluate_reply,
    encode_hosted_clients,
    encode_train_reply,
    is_inquiry,
    is_of_evaluation,
    requests_training,
)
from fedquorum.flower.codec.keys import (
    MASK_KEYS,
    MASK_SHARES,
    MASKED_SUM,
    TEST_ACCURACY,
    TEST_AVERAGE_PRECISION,
    TEST_CALIBRATION,
    TEST_LOSS,
    TEST_METRIC,
    TEST_R2,
    UNMASK,
)
from fedquorum.flower.codec.secure import (
    decode_share_request,
    decode_unmask_request,
    decode_vector_request,
    find_step,
)
from fedquorum.flower.mods import get_base_message_type
from fedquorum.records.client_names import MAX_CLIENT_NAME_LENGTH, clean_name
from fedquorum.rules.parameters import NON_NEGATIVE_INT, POSITIVE, POSITIVE_INT, Flag, Range
from fedquorum.rules.rule import parameter
from fedquorum.sanitize import abbreviate
from filelock import lock_descriptor
from flwr.app import Context, Error, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.constant import ErrorCode
from flwr.common.logger import log
from flwr.supercore.utils import get_flwr_home

from client_app.data.coding.table import ClientScale
from client_app.node.agreement import QUERY_TYPE
from client_app.node.shared_scale import encode_scale
from conf import ComposedConfig, Settings
from conf.schema.data import DataSettings, agrees_on_numbers, is_on_device, needs_agreement
from conf.schema.privacy import ClippingSettings, FixedClippingSettings

POLICY_FILE = "node.yaml"
USAGE_FILE = "node-usage.json"
"""The node's usage today, in Flower's home because the data folder may be read-only."""


@dataclass(frozen=True)
class NameList(Range):
    """A list of names, limited to ``choices`` unless that is empty."""

    choices: tuple[str, ...] = ()

    def describe(self) -> str:
        """Return the allowed names in words."""
        return f"a list of {', '.join(self.choices) or 'names'}"

    def contains(self, value: object) -> bool:
        """Return whether ``value`` is a list of allowed names."""
        if not isinstance(value, list):
            return False
        return all(
            isinstance(name, str) and (not self.choices or name in self.choices) for name in value
        )


@dataclass(frozen=True)
class ClientName(Range):
    """A name that others can read on one line."""

    def describe(self) -> str:
        """Return the allowed names in words."""
        return f"a text of 1 to {MAX_CLIENT_NAME_LENGTH} characters, on one line"

    def contains(self, value: object) -> bool:
        """Return whether ``value`` is such a name."""
        return isinstance(value, str) and len(value) > 0 and value == clean_name(value)


@dataclass(frozen=True)
class PrivacyRequirement:
    """The differential privacy that a run must have.

    Parameters
    ----------
    noise_multiplier : float, optional
        The least noise.
    clipping_norm : float, optional
        The longest update, of a fixed norm: an adaptive one may become any.
    clips_here : bool
        Whether the update must be clipped on the node, before it leaves.
    """

    noise_multiplier: float | None = parameter(None, POSITIVE)
    clipping_norm: float | None = parameter(None, POSITIVE)
    clips_here: bool = parameter(False, Flag())

    def find_problem(self, settings: Settings) -> str | None:
        """Return the protection that a run lacks, or None if it lacks none."""
        privacy = settings.privacy
        if self == PrivacyRequirement():
            return None
        if not isinstance(privacy, ClippingSettings):
            return f"it asks for differential privacy, and privacy is {privacy.name}"
        noise = privacy.noise_multiplier
        if self.noise_multiplier is not None and noise < self.noise_multiplier:
            return (
                f"it asks for privacy.noise_multiplier >= {self.noise_multiplier:g}, not {noise:g}"
            )
        norm = privacy.clipping_norm if isinstance(privacy, FixedClippingSettings) else None
        if self.clipping_norm is not None and (norm is None or norm > self.clipping_norm):
            given = f"the adaptive norm of {privacy.name}" if norm is None else f"{norm:g}"
            return f"it asks for privacy.clipping_norm <= {self.clipping_norm:g}, not {given}"
        if self.clips_here and not privacy.name.endswith("client"):
            return f"it asks for updates that clients clip, not privacy={privacy.name}"
        return None


NO_MASKS = "it asks for masks (secure_aggregation=masks), and the run has none"


@dataclass(frozen=True)
class MaskRequirement:
    """The masks that a run must have, so that the server learns sums over several nodes only.

    Parameters
    ----------
    masks : bool
        Whether the run must have masks, as it also must if one of the others is given.
    threshold : int, optional
        The least number of nodes that together can remove the masks of one.
    participants : int, optional
        The least number of nodes in a sum, this one included. It counts those with which it shares
        masks, and in the last exchange those of them whose sum arrived.
    """

    masks: bool = parameter(False, Flag())
    threshold: int | None = parameter(None, POSITIVE_INT)
    participants: int | None = parameter(None, POSITIVE_INT)

    def find_settings_problem(self, settings: Settings) -> str | None:
        """Return that a run has no masks, which holds for its messages before round 1 too."""
        is_met = self == MaskRequirement() or settings.secure_aggregation.name != "none"
        return None if is_met else NO_MASKS

    def find_problem(self, content: RecordDict) -> str | None:
        """Return what a message lacks that would have a model's sum from this node, or None."""
        if self == MaskRequirement():
            return None
        try:
            step = find_step(content)
            if step is None:
                return NO_MASKS
            threshold, participants = _read_mask_sizes(step, content)
        except ProtocolError as error:
            return str(error)
        low = self.threshold or 0
        if threshold is not None and threshold < low:
            return f"it asks for masks that at least {low} nodes can remove, not {threshold}"
        low = self.participants or 0
        if participants is not None and participants < low:
            return f"it asks for sums of at least {low} nodes, not {participants}"
        return None


def _read_mask_sizes(step: str, content: RecordDict) -> tuple[int | None, int | None]:
    """Return the threshold in a message of a round with masks, and the nodes; None if neither."""
    if step == MASK_SHARES:
        request = decode_share_request(content)
        return request.threshold, len(request.keys) + 1
    if step == MASKED_SUM:
        return None, len(decode_vector_request(content).sealed) + 1
    if step == UNMASK:
        return None, len(decode_unmask_request(content).survivors) + 1
    return None, None


@dataclass(frozen=True)
class Allowlist:
    """The accepted runs, by names with the wildcards * and ?.

    Parameters
    ----------
    experiments, models, strategies : tuple of str
        Names of experiments, of ``model`` and of ``strategy``.
    """

    experiments: tuple[str, ...] = parameter(("*",), NameList())
    models: tuple[str, ...] = parameter(("*",), NameList())
    strategies: tuple[str, ...] = parameter(("*",), NameList())

    def find_problem(self, settings: Settings, experiment: str) -> str | None:
        """Return the name that is not accepted, or None if all are."""
        given = {
            "experiments": experiment,
            "models": settings.model.name,
            "strategies": settings.strategy.name,
        }
        for kind, name in given.items():
            patterns = getattr(self, kind)
            if not any(fnmatchcase(name, pattern) for pattern in patterns):
                return f"it accepts the {kind} {abbreviate(patterns) or '(none)'}, not {name}"
        return None


@dataclass(frozen=True)
class DailyLimit:
    """The limits of a node's work per UTC day; None for no limit.

    Parameters
    ----------
    rounds : int, optional
        Rounds in which it trains; each training of a personal model counts as one.
    examples : int, optional
        Training examples, counted once a round. The round that exceeds the limit is the last.
    """

    rounds: int | None = parameter(None, NON_NEGATIVE_INT)
    examples: int | None = parameter(None, NON_NEGATIVE_INT)

    def find_problem(self, used: "UsageCount") -> str | None:
        """Return the limit that is used up, or None if none is."""
        for kind in ("rounds", "examples"):
            limit, count = getattr(self, kind), getattr(used, kind)
            if limit is not None and count >= limit:
                return f"it trains for {limit} {kind} a day, and has for {count} on {used.day}"
        return None


@dataclass(frozen=True)
class UsageCount:
    """A node's work on one day."""

    day: str
    rounds: int = 0
    examples: int = 0


@dataclass(frozen=True)
class NodePolicy:
    """The policy of a data owner.

    Parameters
    ----------
    privacy : PrivacyRequirement
        The protection that updates must have.
    secure_aggregation : MaskRequirement
        The masks that sums must have.
    withhold : tuple of str
        Metrics that stay on the node. ``num-examples`` cannot be withheld, because every rule needs
        it.
    accept : Allowlist
        The runs that it takes part in.
    per_day : DailyLimit
    client_name : str, optional
        The name by which the run's records show the client; by default it stays here.
    statistics : bool
        Whether exact sums of the client's numbers may leave the node, for scales that all clients
        share. They do only if the owner says so.
    scales : bool
        Whether the scale by which the client takes its own numbers may leave the node, for the
        model card.
    reasons : bool
        Whether the texts of errors, which may quote data, may leave the node; by default only their
        classes do.
    """

    privacy: PrivacyRequirement = field(default_factory=PrivacyRequirement)
    secure_aggregation: MaskRequirement = field(default_factory=MaskRequirement)
    withhold: tuple[str, ...] = parameter((), NameList(EVALUATION_KEYS))
    accept: Allowlist = field(default_factory=Allowlist)
    per_day: DailyLimit = field(default_factory=DailyLimit)
    client_name: str | None = parameter(None, ClientName())
    statistics: bool = parameter(False, Flag())
    scales: bool = parameter(False, Flag())
    reasons: bool = parameter(False, Flag())

    @property
    def withheld(self) -> frozenset[str]:
        """The withheld metrics; the validation split withholds the same as the test split.

        R2 and average precision stay on the node with the metric, which they may be. The sums of
        bins of confidence stay with any test metric, because they include the correct predictions
        and say much about the others.
        """
        beside = [TEST_R2, TEST_AVERAGE_PRECISION] if TEST_METRIC in self.withhold else []
        if {TEST_LOSS, TEST_ACCURACY, TEST_METRIC}.intersection(self.withhold):
            beside.append(TEST_CALIBRATION)
        names = {*self.withhold, *beside}
        counterparts = {name: VALIDATION_COUNTERPARTS.get(name, name) for name in names}
        return frozenset(names.union(counterparts.values()))

    def find_problem(self, settings: Settings, experiment: str) -> str | None:
        """Return why the node refuses a run, or None if it takes part."""
        return (
            self.privacy.find_problem(settings)
            or self.secure_aggregation.find_settings_problem(settings)
            or self.accept.find_problem(settings, experiment)
            or self._find_statistics_problem(settings.data)
        )

    def find_message_problem(self, kind: str, content: RecordDict) -> str | None:
        """Return why the node refuses a message that trains or evaluates, or None if it does not.

        Other messages have no masks.
        """
        if kind not in {MessageType.TRAIN, MessageType.EVALUATE}:
            return None
        return self.secure_aggregation.find_problem(content)

    def _find_statistics_problem(self, data: DataSettings) -> str | None:
        """Return why the node refuses a run that needs sums of its client's numbers."""
        if self.statistics or not is_on_device(data) or not needs_agreement(data):
            return None
        setting = "data.scaling=agreed" if agrees_on_numbers(data) else "data.regression=true"
        return f"{setting} needs sums of its numbers, which node.yaml allows by statistics: true"


def find_policy(configured: str, data_path: str) -> Path | None:
    """Return the path of a node's policy: the configured file, or ``node.yaml`` beside the data."""
    if configured:
        return Path(configured)
    beside = Path(data_path).parent / POLICY_FILE
    return beside if data_path and beside.is_file() else None


def may_send_reasons(node_config: Mapping[str, Any]) -> bool:
    """Say whether the owner of a device lets the texts of errors leave it."""
    path = _find_policy_of(node_config)
    try:
        return path is not None and load_policy(path).reasons
    except SettingsError:
        return False


_POLICY: ContextVar[NodePolicy] = ContextVar("policy", default=NodePolicy())  # noqa: B039 - frozen
"""The policy that ``PolicyMod`` has read for the message that is being handled."""


def get_withheld() -> frozenset[str]:
    """Return the metrics that stay on a device while it handles a message."""
    return _POLICY.get().withheld


def load_policy(path: Path) -> NodePolicy:
    """Return the policy in a file.

    Raises
    ------
    SettingsError
        If the file cannot be read or is no policy; the message names the file and the key.
    """
    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        raise SettingsError(f"{path} must be YAML that can be read: {to_one_line(error)}") from None
    policy: NodePolicy = _build_section(NodePolicy, {} if given is None else given, path)
    return policy


def _build_section(kind: Any, given: object, path: Path, prefix: str = "") -> Any:
    """Build a dataclass from the section of a file below a key."""
    if not isinstance(given, dict):
        keys = ", ".join(item.name for item in fields(kind))
        raise _build_policy_error(
            path, prefix.rstrip(".") or "the file", f"a mapping with {keys}", given
        )
    fields_by_name = {item.name: item for item in fields(kind)}
    values = {}
    for key, value in given.items():
        if key not in fields_by_name:
            hint = (
                suggest_name(str(key), fields_by_name) or f"allowed are {', '.join(fields_by_name)}"
            )
            raise SettingsError(f"{path}: {prefix}{key} is not a key of node.yaml; {hint}")
        values[key] = _read_value(fields_by_name[key], value, path, f"{prefix}{key}")
    return kind(**values)


def _read_value(item: Field[Any], value: object, path: Path, name: str) -> object:
    """Return the validated value of a field of the policy."""
    allowed: Range | None = item.metadata.get("allowed")
    if allowed is None:
        return _build_section(item.default_factory, value, path, f"{name}.")
    optional = item.default is None
    if not (allowed.contains(value) or (optional and value is None)):
        raise _build_policy_error(
            path, name, f"{allowed.describe()}{', or null' if optional else ''}", value
        )
    return tuple(value) if isinstance(value, list) else value


def _build_policy_error(path: Path, name: str, allowed: str, got: object) -> SettingsError:
    return SettingsError(f"{path}: {name} must be {allowed}, got {got!r}")


class UsageLog:
    """A node's work today, in a file that several processes may update.

    Parameters
    ----------
    path : Path
        The file; it is created on first use.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def count_round(self, limit: DailyLimit) -> str | None:
        """Count a round and return None, or return the day's limit that is used up.

        Raises
        ------
        SettingsError
            If the file cannot be written.
        """

        def add_round(usage: UsageCount) -> UsageCount:
            used_up = limit.find_problem(usage) is not None
            return usage if used_up else replace(usage, rounds=usage.rounds + 1)

        return limit.find_problem(self._update(add_round))

    def find_problem(self, limit: DailyLimit) -> str | None:
        """Return the day's limit that is used up, or None; count nothing."""
        return limit.find_problem(self._update(lambda usage: usage))

    def add_examples(self, count: int) -> None:
        """Count the examples of an allowed round."""
        self._update(lambda usage: replace(usage, examples=usage.examples + count))

    def _update(self, change: Callable[[UsageCount], UsageCount]) -> UsageCount:
        """Apply ``change`` to today's usage, and return the previous one."""
        try:
            with self._path.open("a+", encoding="utf-8") as file:
                lock_descriptor(file.fileno())
                file.seek(0)
                before = _parse_usage(file.read())
                file.truncate(0)
                file.write(json.dumps(asdict(change(before))))
        except OSError as error:
            raise SettingsError(
                f"{self._path} must be a file that the node can write, for per_day in its policy: "
                f"{error.strerror}"
            ) from None
        return before


def _parse_usage(text: str) -> UsageCount:
    """Return today's usage from the file's text; zero if it is of another day."""
    empty = UsageCount(datetime.now(UTC).date().isoformat())
    try:
        usage = UsageCount(**json.loads(text)) if text else empty
    except (TypeError, ValueError):
        return empty
    return usage if usage.day == empty.day else empty


@dataclass(frozen=True)
class PolicyMod:
    """A Flower mod that lets a device take part only in runs that its owner allows.

    The node config must name the device's client. A refused message does not reach the ClientApp:
    the client replies that it is unavailable, with the reason. The client replies to a query even
    if the policy refuses the run, so that the run's records have the reason.

    Parameters
    ----------
    compose : callable
        Returns the settings and the experiment of the run of a context.
    find_scale : callable
        Returns the scale of the client of a context; None if it does not scale by its own numbers.
    """

    compose: Callable[[Context], ComposedConfig]
    find_scale: Callable[[Context], ClientScale | None]

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Check one message against the policy, and return the reply."""
        path = _find_policy_of(context.node_config)
        kind, client = get_base_message_type(message), int(context.node_config[CLIENT_ID])
        usage = UsageLog(get_flwr_home() / USAGE_FILE)
        composed = self.compose(context)
        try:
            policy = NodePolicy() if path is None else load_policy(path)
            problem = (
                policy.find_problem(composed.settings, composed.experiment)
                or policy.find_message_problem(kind, message.content)
                or _find_usage_problem(policy.per_day, usage, message)
            )
        except SettingsError as error:
            log(ERROR, "The policy of this node cannot be used: %s", error)
            policy, problem = NodePolicy(), "its policy cannot be used"
        if problem is not None:
            log(WARNING, "Refused by %s: %s", path or "a node without node.yaml", problem)
            return refuse_message(message, client, problem)
        token = _POLICY.set(policy)
        try:
            reply = call_next(message, context)
        finally:
            _POLICY.reset(token)
        if reply.has_error():
            return reply
        is_query = message.metadata.message_type == MessageType.QUERY
        if is_query and policy.client_name and composed.settings.data.names:
            reply.content = add_client_names(reply.content, {client: policy.client_name})
        if is_query and policy.scales:
            self._add_scale(reply, context, composed.settings)
        return reply

    def _add_scale(self, reply: Message, context: Context, settings: Settings) -> None:
        """Add the client's scale to the reply to a query, unless the run hides single clients."""
        scale = self.find_scale(context)
        if scale is None:
            return
        for group in ("privacy", "secure_aggregation"):
            option = getattr(settings, group).name
            if option != "none":
                given = f"{group}={option}"
                log(INFO, "The scale of client %d stays here: the run has %s", scale.client, given)
                return
        reply.content = add_scale(reply.content, encode_scale(scale))


def limit_results(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Count a device's examples of a day, and withhold what the owner withholds: a Flower mod.

    It is the last of the mods, next to the app, and applies the policy that ``PolicyMod``, the
    first one, has read: what the others add up or mask is without the metrics that stay on the
    device, and with masks no reply has the number of examples.
    """
    reply = call_next(message, context)
    if reply.has_error():
        return reply
    policy, kind = _POLICY.get(), get_base_message_type(message)
    if policy.per_day != DailyLimit() and _asks_for_training(message):
        decode = decode_train_reply if kind == MessageType.TRAIN else decode_evaluate_reply
        counts = [result.num_examples for result in decode(reply.content) if result.num_examples]
        UsageLog(get_flwr_home() / USAGE_FILE).add_examples(int(sum(counts)))
    if policy.withhold:
        reply.content = drop_metrics(reply.content, policy.withheld)
    return reply


def _find_policy_of(node_config: Mapping[str, Any]) -> Path | None:
    """Return the path of the policy of a node, None if it has none."""
    return find_policy(*(str(node_config.get(key, "")) for key in ("policy-path", "data-path")))


def _asks_for_training(message: Message) -> bool:
    """Say whether clients train for a message.

    A round with masks has four messages of type train, of which one trains.
    """
    kind = get_base_message_type(message)
    if kind == MessageType.TRAIN:
        return not is_inquiry(message.content)
    return kind == MessageType.EVALUATE and requests_training(message.content)


def _find_usage_problem(limit: DailyLimit, usage: UsageLog, message: Message) -> str | None:
    """Return the day's limit that is used up, or None; count the round if the message trains."""
    if limit == DailyLimit():
        return None
    if _asks_for_training(message):
        return usage.count_round(limit)
    # A node that cannot train says so before it holds others' shares, which would be lost with it.
    content = message.content
    will_train = MASK_KEYS in content and not is_of_evaluation(content)
    return usage.find_problem(limit) if will_train else None


def refuse_message(message: Message, client: int, problem: str) -> Message:
    """Return the reply of a client whose node takes no part in the run, with the reason."""
    reason = f"its node takes no part: {problem}"
    if message.metadata.message_type == QUERY_TYPE:
        refusal = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason)
        return Message(refusal, reply_to=message)
    content = _build_refusal(get_base_message_type(message), client, reason)
    return Message(content, reply_to=message)


def _build_refusal(kind: str, client: int, reason: str) -> RecordDict:
    """Return the content of a refusal."""
    if kind == MessageType.TRAIN:
        return encode_train_reply([TrainResult(client, Status.UNAVAILABLE, reason=reason)])
    if kind == MessageType.EVALUATE:
        return encode_evaluate_reply([EvaluateResult(client, Status.UNAVAILABLE, reason=reason)])
    return encode_hosted_clients([client])
