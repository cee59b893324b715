"""Check settings: every value against its range, then all values together."""

from collections.abc import Iterator
from dataclasses import asdict, fields, is_dataclass
from typing import Any

from fedquorum.contrib import find_requirement
from fedquorum.errors import ParameterError, SettingsError
from fedquorum.records.settings import flatten_settings, mask_passwords
from fedquorum.rules.composition import RuleSet
from fedquorum.rules.decisions import EPOCH_SETTINGS
from fedquorum.rules.parameters import PRIORITY_WEIGHT, PROBABILITY, ClientIds, OneOf, Range
from fedquorum.rules.participation.known_rates import needs_rates
from fedquorum.rules.selection.warmup import WarmUpSelection
from fedquorum.server.quorum import Quorum

from conf.schema.availability import CLASS_RATES, RandomAvailabilitySettings
from conf.schema.data import (
    DATA_DIVISIONS,
    CsvSettings,
    DataSettings,
    HfSettings,
    ImageFolderSettings,
    NpzSettings,
    PartitionedSettings,
    TextSettings,
    agrees_on_numbers,
    agrees_on_target,
    get_num_clients,
    is_on_device,
    list_weights,
)
from conf.schema.engine import EngineSettings
from conf.schema.late import build_late_updates, check_late_rules_of, check_late_updates
from conf.schema.model import ModelSettings
from conf.schema.rules import (
    find_setting,
    format_parameter_error,
    get_requirement_settings,
    is_custom,
    rules_from_settings,
)
from conf.schema.secure_sums import check_masked_rules, check_secure_aggregation
from conf.schema.settings import Settings
from conf.schema.strategy import PartsSettings
from conf.schema.tables import check_cells

STATIONARY_AVAILABILITIES = ("always", "bernoulli", "markov")
"""The options of availability with the same distribution in all rounds."""

MAX_TOKENIZED_TEXTS = 2
"""The largest number of texts in a row that a published tokenizer accepts."""


def check_settings(settings: Settings) -> None:
    """Check every value against its range, then the values together, then the rules.

    The check does not import custom rules, because a node that composes the settings may not have
    them. A run checks them at its start.

    Raises
    ------
    SettingsError
        For the first value that is not allowed.
    """
    check_values(settings)
    if not is_custom(settings):
        check_rules(settings, rules_from_settings(settings))


def check_values(settings: Settings) -> None:
    """Check every value against its range, then the values together.

    Raises
    ------
    SettingsError
        For the first value that is not allowed.
    """
    try:
        _check_secrets(settings)
        check_ranges(settings)
        _check_priority(settings.data, settings.data.num_clients)
        _check_num_clients(settings.data)
        _check_shards(settings.data)
        _check_division(settings.data)
        _check_device_data(settings.data)
        _check_agreement(settings)
        _check_columns(settings.data)
        _check_texts(settings.data)
        _check_unused(settings.data)
        _check_client_column(settings.data)
        _check_priority_samples(settings)
        _check_device_availability(settings)
        _check_device_times(settings)
        _check_engine(settings.engine, settings.data)
        _check_privacy(settings)
        _check_clock(settings)
        _check_evaluation_times(settings)
        check_late_updates(settings)
        check_secure_aggregation(settings)
        _check_probabilities(settings)
        _check_init(settings.model)
        _check_epoch_candidates(settings)
        find_requirement(get_requirement_settings(settings))
    except ParameterError as error:
        raise SettingsError(format_parameter_error(error, error.parameter)) from None


def check_rules(settings: Settings, rules: RuleSet) -> None:
    """Check the settings against the needs of the rules.

    Raises
    ------
    SettingsError
        If the rules do not allow a setting.
    """
    _check_full_participation(settings, rules)
    engine = settings.engine
    late = build_late_updates(settings)
    if late is not None:
        check_late_rules_of(settings, rules, late)
    elif not Quorum(engine.quorum, engine.quorum_clients).waits_for_all:
        check_rates_computable(settings, rules)
    kind = settings.privacy.name
    if kind != "none" and rules.dp_unsupported_reason:
        raise SettingsError(
            f"privacy must be none with strategy={settings.strategy.name} "
            f"({rules.dp_unsupported_reason}), got {kind}"
        )
    check_masked_rules(settings, rules)


def _check_epoch_candidates(settings: Settings) -> None:
    """Refuse several numbers of epochs without validation splits, by which clients choose one."""
    if settings.data.validation_fraction > 0:
        return
    for model, epochs in settings.evaluation.personal_epochs.items():
        if len(epochs) > 1:
            raise SettingsError(
                f"{EPOCH_SETTINGS[model]} must be one number without validation splits, got "
                f"{list(epochs)} (data.validation_fraction=0.2 makes them)"
            )


def check_rates_computable(settings: Settings, rules: RuleSet) -> None:
    """Check that simulated rounds can show how often each client counts, if the rules need it.

    Use it for runs in which a quorum or the deadline decides which replies are in time.

    Raises
    ------
    SettingsError
        If they cannot show it.
    """
    if not needs_rates(rules.weighting):
        return
    clock, availability = settings.response_time.name, settings.availability.name
    if clock == "none" and settings.engine.name == "in-process":
        return  # all clients reply immediately
    reason = ""
    if clock == "none":
        reason = "lateness on the machine's clock tells no rates; response_time simulates it"
    elif availability not in STATIONARY_AVAILABILITIES:
        others = ", ".join(STATIONARY_AVAILABILITIES)
        reason = f"availability={availability} changes with the rounds; {others} do not"
    elif isinstance(rules.selection, WarmUpSelection) and rules.selection.num_warmup_rounds > 0:
        reason = "the rates change after the warm-up"
    if reason:
        error = ParameterError(
            "probabilities",
            "the rates of being counted where a quorum or the deadline decides who is in time",
            None,
            reason,
        )
        raise SettingsError(format_parameter_error(error, find_setting(error, settings)))


def _check_secrets(settings: Settings) -> None:
    """Refuse passwords, because settings go to records, trackers and every client's device."""
    for key, value in flatten_settings(asdict(settings)).items():
        if mask_passwords(str(value)) != str(value):
            raise SettingsError(
                f"{key} must have no password, as settings are recorded and sent to clients, got "
                f"{mask_passwords(str(value))}; put it into the environment, for a tracking server "
                "as MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
            )


def check_ranges(node: Any, prefix: str = "") -> None:
    """Check every value of a group of settings against its range.

    Raises
    ------
    SettingsError
        For the first value outside its range.
    """
    for key, value, allowed in _list_ranged_values(node, prefix):
        try:
            allowed.check(key, value)
        except ParameterError as error:
            raise SettingsError(format_parameter_error(error, error.parameter)) from None


def _list_ranged_values(node: Any, prefix: str) -> Iterator[tuple[str, object, Range]]:
    for item in fields(node):
        key, value = f"{prefix}{item.name}", getattr(node, item.name)
        if is_dataclass(value):
            yield from _list_ranged_values(value, f"{key}.")
        elif "allowed" in item.metadata and value is not None:
            yield key, value, item.metadata["allowed"]


def check_clients(data: DataSettings, num_found: int) -> None:
    """Check the settings against the number of clients in the data.

    Raises
    ------
    SettingsError
        If ``num_clients`` is neither null nor that number, or a setting names clients that do not
        exist.
    """
    if data.num_clients not in {None, num_found}:
        raise SettingsError(
            f"data.num_clients must be null or {num_found}, the number of clients in the data, got "
            f"{data.num_clients}"
        )
    try:
        _check_priority(data, num_found)
    except ParameterError as error:
        raise SettingsError(format_parameter_error(error, error.parameter)) from None


def _check_priority(data: DataSettings, num_clients: int | None) -> None:
    choices = OneOf(("heterogeneous", "random", "all"))
    if isinstance(data.priority, str):
        if not choices.contains(data.priority):
            raise SettingsError(
                f"data.priority must be {choices.describe()}, or a list of client ids or names "
                f"such as [0, North], got {data.priority!r}"
            )
        if data.priority != "all" and num_clients and data.num_priority > num_clients:
            raise SettingsError(
                f"data.num_priority must be at most data.num_clients ({num_clients}), "
                f"got {data.num_priority}"
            )
    else:
        ClientIds(data.num_clients).check("data.priority", data.priority)
    _check_priority_weights(data)


def _check_priority_weights(data: DataSettings) -> None:
    weights = data.priority_weights
    if weights is None:
        return
    if not isinstance(weights, dict) and not _is_list_of_pairs(weights):
        raise SettingsError(
            "data.priority_weights must be a mapping such as {3: 0.5, North: 1}, or a list such as "
            f"[[3, 0.5], ['Nord-Süd', 1]], got {weights!r}"
        )
    pairs = list_weights(weights)
    ClientIds(data.num_clients).check(
        "data.priority_weights (its clients)", [client for client, _ in pairs]
    )
    for client, weight in pairs:
        PRIORITY_WEIGHT.check(f"data.priority_weights[{client}]", weight)


def _is_list_of_pairs(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(pair, list) and len(pair) == len(("client", "weight")) for pair in value
    )


def _check_num_clients(data: DataSettings) -> None:
    has_clients = isinstance(data, PartitionedSettings) and data.partition in DATA_DIVISIONS
    if not has_clients and not isinstance(data, CsvSettings):
        get_num_clients(data)


def _check_shards(data: DataSettings) -> None:
    if not isinstance(data, PartitionedSettings) or data.partition != "shards":
        return
    if data.samples_per_shard is not None and data.samples_per_shard > data.shard_size:
        raise SettingsError(
            f"data.samples_per_shard must be at most data.shard_size ({data.shard_size}), "
            f"got {data.samples_per_shard}"
        )


def _check_division(data: DataSettings) -> None:
    """Refuse settings of artificial divisions where the data chooses the division."""
    if not isinstance(data, NpzSettings) or data.partition != "auto":
        return
    defaults = {item.name: item.default for item in fields(data)}
    for key, partition in _DIVISION_SETTINGS.items():
        if getattr(data, key) != defaults[key]:
            raise SettingsError(
                f"data.{key} must be with data.partition={partition}, got {getattr(data, key)} "
                "with auto, which is natural or iid"
            )


_DIVISION_SETTINGS = {
    "shards_per_client": "shards",
    "shard_size": "shards",
    "samples_per_shard": "shards",
    "alpha": "dirichlet, proportional or quantity",
}
"""Settings of some divisions, and these divisions."""


def _check_device_data(data: DataSettings) -> None:
    """Check that the settings state what a device cannot infer from its own rows."""
    required: tuple[str, ...] = ()
    if isinstance(data, NpzSettings | HfSettings) and data.partition == "device":
        required = ("input_shape", *(() if data.regression else ("num_classes",)))
    elif isinstance(data, ImageFolderSettings) and data.partition == "device":
        required = ("image_size", "classes")
    elif isinstance(data, CsvSettings) and data.client_column is None:
        required = ("columns",)
    for key in ("num_clients", *required) if required else ():
        if getattr(data, key) is None:
            raise SettingsError(
                f"data.{key} must have a value where each device has only its own client's data, "
                "got null"
            )
    if required and getattr(data, "min_samples", None) is not None:
        raise SettingsError(
            "data.min_samples must be null where each device has only its own client's data, "
            f"got {getattr(data, 'min_samples', None)}"
        )
    if required and data.priority == "heterogeneous":
        raise SettingsError(
            "data.priority must be all, random or a list where each device has only its own "
            "client's data, got 'heterogeneous'"
        )


def _check_agreement(settings: Settings) -> None:
    """Check the settings of scales that all clients agree on."""
    data, privacy = settings.data, settings.privacy.name
    scale = getattr(data, "target_scale", None)
    if scale is not None and not getattr(data, "regression", False):
        raise SettingsError(
            f"data.target_scale must be null where data.regression is false, got {scale}"
        )
    if agrees_on_numbers(data) and isinstance(data, HfSettings) and is_on_device(data):
        raise SettingsError(
            "data.scaling must be client with data=hf data.partition=device (the server does not "
            "know the columns there; data.columns of data=csv states them), got agreed"
        )
    if privacy == "none":
        return
    if agrees_on_numbers(data):
        raise SettingsError(
            f"data.scaling must be client with privacy={privacy} (the noise does not cover the "
            "sums that clients agree on), got agreed"
        )
    if agrees_on_target(data):
        raise SettingsError(
            f"data.target_scale must be [mean, deviation] with privacy={privacy} and "
            "data.regression=true (the noise does not cover the sums that clients agree on), such "
            "as [400000, 150000] from published numbers, got null"
        )


def _check_csv_columns(data: CsvSettings) -> None:
    columns = data.columns
    if columns is None:
        return
    types = {"numbers": list, "categories": dict, "classes": list}
    is_valid = isinstance(columns, dict) and set(columns) <= set(types)
    if not is_valid or any(not isinstance(value, types[key]) for key, value in columns.items()):
        raise SettingsError(
            "data.columns must be a mapping such as {numbers: [age], categories: {kind: [a, b]}, "
            f"classes: [no, yes]}}, got {columns!r}"
        )
    categories = columns.get("categories", {})
    lists = {"numbers": columns.get("numbers", []), "classes": columns.get("classes", [])}
    lists |= {f"categories.{name}": values for name, values in categories.items()}
    for key, values in lists.items():
        if not isinstance(values, list) or len(set(map(str, values))) != len(values):
            raise SettingsError(
                f"data.columns.{key} must be a list of values, each once, got {values!r}"
            )
    inputs = [*lists["numbers"], *categories]
    if (
        not inputs
        or len(set(inputs)) != len(inputs)
        or {data.target, data.client_column} & {*inputs}
    ):
        raise SettingsError(
            "data.columns must have at least one input column, each once, other than data.target "
            f"and data.client_column, got {inputs}"
        )
    if (len(lists["classes"]) > 1) == data.regression:
        raise SettingsError(
            "data.columns.classes must be at least two values, none where data.regression is true, "
            f"got {lists['classes']}"
        )


def _check_columns(data: DataSettings) -> None:
    if isinstance(data, HfSettings):
        check_cells(data)
    if not isinstance(data, CsvSettings):
        return
    _check_csv_columns(data)
    check_cells(data)
    if data.target == data.client_column:
        raise SettingsError(
            f"data.target must be another column than data.client_column, got {data.target!r}"
        )
    for key in ("client_column", "target"):
        if getattr(data, key) in data.drop_columns:
            raise SettingsError(
                f"data.drop_columns must be columns other than data.{key} ({getattr(data, key)}), "
                f"got {data.drop_columns}"
            )
    _check_split_columns(data)


def _check_split_columns(data: CsvSettings) -> None:
    if data.group_column is not None and data.order_column is not None:
        raise SettingsError(
            "data.order_column must be null where data.group_column is set, because the latest "
            f"rows of a client may be of any group, got {data.order_column!r}"
        )
    columns = data.columns or {}
    others: dict[str, list[Any]] = {
        "data.target": [data.target],
        "data.client_column": [data.client_column],
        "data.columns": [*columns.get("numbers", []), *columns.get("categories", {})],
    }
    for key in ("group_column", "order_column"):
        name = getattr(data, key)
        for other, names in others.items():
            if name is not None and name in names:
                raise SettingsError(f"data.{key} must be no column of {other}, got {name!r}")


def _check_texts(data: DataSettings) -> None:
    if not isinstance(data, TextSettings):
        return
    columns = data.text_columns
    if not columns or data.client_column in columns or data.target in columns:
        raise SettingsError(
            "data.text_columns must be at least one column other than data.client_column and "
            f"data.target, got {columns}"
        )
    if data.target is None and len(columns) > 1:
        raise SettingsError(
            f"data.text_columns must be one column where data.target is null, got {columns}"
        )
    if data.tokenizer is not None and (data.target is None or len(columns) > MAX_TOKENIZED_TEXTS):
        raise SettingsError(
            "data.tokenizer must be null where data.target is null or there are more than two "
            f"data.text_columns, got {data.tokenizer!r}"
        )
    if data.tokenizer is not None and data.tokens != "words":
        raise SettingsError(
            "data.tokens must be words where data.tokenizer is set, which has its own tokens, "
            f"got {data.tokens}"
        )
    min_length = 2 * len(columns) - 1
    if data.length < min_length:
        raise SettingsError(
            f"data.length must be at least {min_length} for {len(columns)} texts, got {data.length}"
        )


def _check_unused(data: DataSettings) -> None:
    """Refuse values that nothing would use; most users expect an effect of what they set."""
    unused: dict[str, str] = {}
    if isinstance(data, TextSettings) and data.target is None:
        unused = dict.fromkeys(("classes", "group_column"), "data.target is null")
    if isinstance(data, NpzSettings | HfSettings) and data.regression:
        unused["num_classes"] = "data.regression is true"
    for key, reason in unused.items():
        if getattr(data, key) is not None:
            raise SettingsError(
                f"data.{key} must be null where {reason}, got {getattr(data, key)!r}"
            )


def _check_client_column(data: DataSettings) -> None:
    if not isinstance(data, HfSettings):
        return
    if (data.partition == "natural") != (data.client_column is not None):
        raise SettingsError(
            "data.client_column must be the name of a column with data.partition=natural, and "
            f"null with the others, got {data.client_column!r} with {data.partition}"
        )
    if {data.target, data.client_column} & {*(data.features or ())} - {None}:
        raise SettingsError(
            "data.features must be columns other than data.target and data.client_column, got "
            f"{data.features}"
        )


def _check_device_availability(settings: Settings) -> None:
    availability = settings.availability
    if (
        is_on_device(settings.data)
        and isinstance(availability, RandomAvailabilitySettings)
        and availability.p in (None, CLASS_RATES)
    ):
        raise SettingsError(
            "availability.p must be given where each device has only its own client's data (how "
            "often it is available would follow from its classes), got "
            f"{availability.p or 'null'}"
        )


def _check_device_times(settings: Settings) -> None:
    factors = getattr(settings.response_time, "by_class", None)
    if is_on_device(settings.data) and factors is not None:
        raise SettingsError(
            "response_time.by_class must be null where each device has only its own client's data "
            f"(its time would follow from its classes), got {factors}"
        )


def _check_engine(engine: EngineSettings, data: DataSettings) -> None:
    if engine.superlink is not None and engine.num_supernodes is not None:
        raise SettingsError(
            "engine.num_supernodes must be null with engine.superlink (a deployment has the nodes "
            f"that connect), got {engine.num_supernodes}"
        )
    if engine.name != "in-process" and engine.jobs > 1:
        raise SettingsError(
            f"engine.jobs must be 1 with engine={engine.name}, which runs one job after the other, "
            f"got {engine.jobs}"
        )
    if engine.name == "ray" and engine.share_data and is_on_device(data):
        raise SettingsError(
            "engine.share_data must be false where each device has only its own client's data, "
            "got true"
        )


def _check_privacy(settings: Settings) -> None:
    name = settings.privacy.name
    if name == "none":
        return
    if settings.engine.startup_clients is not None:
        raise SettingsError(
            f"engine.startup_clients must be null with privacy={name} (while not all clients are "
            f"known, one counts for more), got {settings.engine.startup_clients}"
        )


def _check_clock(settings: Settings) -> None:
    clock, engine = settings.response_time.name, settings.engine
    if clock == "none":
        _refuse_simulated_seconds(settings)
        return
    if settings.privacy.name != "none":
        raise SettingsError(
            f"response_time must be none with privacy={settings.privacy.name} (its noise is for "
            f"all clients asked, late ones too), got {clock}"
        )
    if engine.superlink is not None:
        raise SettingsError(
            "response_time must be none with engine.superlink (devices take as long as they take), "
            f"got {clock}"
        )


def _refuse_simulated_seconds(settings: Settings) -> None:
    given = {
        "engine.simulated_seconds": settings.engine.simulated_seconds,
        "evaluation.every_seconds": settings.evaluation.every_seconds,
    }
    for key, value in given.items():
        if value is not None:
            raise SettingsError(
                f"{key} must be null with response_time=none (it counts simulated seconds: "
                f"response_time=lognormal), got {value:g}"
            )


def _check_evaluation_times(settings: Settings) -> None:
    """Refuse an interval in seconds beside an evaluation after every round."""
    evaluation = settings.evaluation
    if evaluation.every_seconds is not None and evaluation.every == 1:
        raise SettingsError(
            f"evaluation.every must be null or above 1 with evaluation.every_seconds="
            f"{evaluation.every_seconds:g} (otherwise every round is evaluated), got 1"
        )


def _check_priority_samples(settings: Settings) -> None:
    samples = getattr(settings.strategy, "priority_samples", None)
    if samples is not None and settings.data.priority_weights:
        raise SettingsError(
            "strategy.priority_samples must be null where data.priority_weights are set (a draw "
            f"counts as a whole client), got {samples}"
        )


def _check_full_participation(settings: Settings, rules: RuleSet) -> None:
    strategy = settings.strategy
    if (
        isinstance(strategy, PartsSettings)
        and rules.weighting.traits.requires_full_participation
        and settings.availability.name != "always"
    ):
        raise SettingsError(
            f"availability must be always with strategy/weighting={strategy.weighting.name} (it "
            f"needs all clients in every round), got {settings.availability.name}"
        )


def _check_init(model: ModelSettings) -> None:
    if getattr(model, "pretrained", None) is not None and model.init != "default":
        raise SettingsError(
            f"model.init must be default where model.pretrained is set, got {model.init}"
        )


def _check_probabilities(settings: Settings) -> None:
    availability, count = settings.availability, settings.data.num_clients
    if not isinstance(availability, RandomAvailabilitySettings):
        return
    if availability.p in (None, CLASS_RATES):
        return
    if isinstance(availability.p, list) and count in {None, len(availability.p)}:
        for client, p in enumerate(availability.p):
            PROBABILITY.check(f"availability.p[{client}]", p)
    elif not PROBABILITY.contains(availability.p):
        clients = f"the {count} clients" if count else "the clients"
        raise SettingsError(
            f"availability.p must be null, {CLASS_RATES}, {PROBABILITY.describe()}, or a list of "
            f"one for each of {clients}, got {availability.p!r}"
        )
