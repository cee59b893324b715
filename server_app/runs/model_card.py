"""Write the model card of a run: what its model is, and how rows become the model's inputs.

The card lies beside the model. With both files ``server_app.runs.prediction`` predicts without any
data; so can others, because the card is plain JSON (docs/records.md describes it).
"""

import hashlib
import math
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedquorum import ComposedStrategy
from fedquorum.records.client_names import NO_NAMES, can_record_names
from fedquorum.records.provenance import get_versions
from fedquorum.records.round_record import RoundRecord
from fedquorum.records.settings import flatten_settings
from fedquorum.records.values import to_json_number
from fedquorum.records.writer import MEAN_MODEL, MODEL, RunWriter
from torch import nn

from client_app.data import FederatedData
from client_app.data.coding.base import Coding
from client_app.data.coding.table import TableCoding, TableScaling
from client_app.data.describe import list_class_names
from client_app.data.summary import DataSummary
from client_app.losses import count_outputs
from conf import ComposedConfig, Settings
from server_app.provenance import PACKAGES
from server_app.runs.recording import drop_resume_settings
from server_app.runs.shared_scales import decode_scales, merge_scales, read_earlier_scales

CARD_FORMAT = 1
"""The version of the card's form."""

METRIC_KEYS = ("round", "global_loss", "test", "validation")


@dataclass(frozen=True)
class ModelCardWriter:
    """Writes the card of a run's last model.

    Parameters
    ----------
    records : RunWriter
    composed : ComposedConfig
        The run's settings.
    data : FederatedData
    summary : DataSummary
        How the run interpreted the data.
    model_class : str
        The import path of the model's class.
    strategy : ComposedStrategy
        The strategy, which has what devices report beside their updates.
    """

    records: RunWriter
    composed: ComposedConfig
    data: FederatedData
    summary: DataSummary
    model_class: str
    strategy: ComposedStrategy

    def save(self, evaluated: RoundRecord | None) -> None:
        """Write the card of the model that the records have.

        ``evaluated`` is the record of the last evaluation.

        Raises
        ------
        RunError
            If it cannot be written.
        """
        composed, settings = self.composed, drop_resume_settings(self.composed.settings)
        values = None if evaluated is None else evaluated.to_json()
        card = {
            "format": CARD_FORMAT,
            "experiment": composed.experiment,
            "strategy": settings.strategy.name,
            "model": self._describe_model(settings),
            "inputs": self._find_coding(settings).to_json(),
            "target": describe_target(self.data, settings),
            "data": self.summary.to_dict(),
            "metrics": None if values is None else {key: values[key] for key in METRIC_KEYS},
            "settings": flatten_settings(asdict(settings)),
            "seed": settings.seed,
            "versions": {"python": platform.python_version(), **get_versions(PACKAGES)},
        }
        self.records.save_model_card(to_strict_json(card))

    def _find_coding(self, settings: Settings) -> Coding:
        """Return the coding of the data, with what the records keep about clients."""
        coding = _name_clients(self.data, settings)
        if not isinstance(coding, TableCoding) or coding.scaling.kind != "device":
            return coding
        has_names = can_record_names(self.data.num_clients, recorded=settings.data.names)
        names = self.strategy.client_names if has_names else NO_NAMES
        # The card of an earlier leg of a resumed run: a scale that it has stays.
        earlier = read_earlier_scales(self.records.directory, len(coding.numbers))
        now = decode_scales(self.strategy.client_scales, len(coding.numbers), names)
        scaling = TableScaling.from_devices(merge_scales(earlier, now))
        return replace(coding, scaling=scaling)

    def _describe_model(self, settings: Settings) -> dict[str, Any]:
        """Return the card's entry for the architecture and the file of the model."""
        data, folder = self.data, self.records.directory
        outputs, sequence = count_outputs(settings, data), data.target == "sequence"
        keywords = f", num_tokens={data.num_tokens}" if data.num_tokens is not None else ""
        keywords += ", sequence=True" if sequence else ""
        shape = tuple(map(int, data.input_shape))
        return {
            "file": MODEL,
            "sha256": compute_sha256(folder / MODEL),
            "mean_file": MEAN_MODEL if (folder / MEAN_MODEL).exists() else None,
            "class": self.model_class,
            "settings": tag_infinite(asdict(settings.model)),
            "input_shape": list(shape),
            "outputs": outputs,
            "tokens": data.num_tokens,
            "every_position": sequence,
            "python": [
                "from safetensors.torch import load_file",
                "from client_app.models import build_model",
                f"from conf.schema.model import {type(settings.model).__name__}",
                f"settings = {settings.model!r}",
                f"model = build_model(settings, {shape}, {outputs}, {settings.seed}{keywords})",
                f"model.load_state_dict(load_file({MODEL!r}))",
            ],
        }


def describe_class(model: nn.Module) -> str:
    """Return the import path of a model's class."""
    return f"{type(model).__module__}.{type(model).__qualname__}"


def describe_target(data: FederatedData, settings: Settings) -> dict[str, Any]:
    """Return the card's entry for what the outputs mean.

    ``scale`` is that by which a target of numbers was scaled, None if it was not.
    """
    outputs = {
        "class": "sigmoid" if count_outputs(settings, data) == 1 else "softmax",
        "sequence": "softmax at each position",
        "number": "number",
    }
    return {
        "kind": data.target,
        "name": getattr(settings.data, "target", None) or None,
        "classes": list_class_names(data) if data.target == "class" else None,
        "outputs": outputs[data.target],
        "scale": data.scales.to_dict()["target"],
    }


def compute_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def to_strict_json(value: Any) -> Any:
    """Return a value whose numbers JSON has: NaN is null, an infinite number the text inf."""
    if isinstance(value, Mapping):
        return {str(key): to_strict_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_strict_json(item) for item in value]
    return to_json_number(value) if isinstance(value, float) else value


def tag_infinite(value: Any) -> Any:
    """Return settings with each number that JSON lacks as ``{"number": "inf"}``."""
    if isinstance(value, Mapping):
        return {str(key): tag_infinite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [tag_infinite(item) for item in value]
    is_infinite = isinstance(value, float) and not math.isfinite(value)
    return {"number": str(value)} if is_infinite else value


def untag_infinite(value: Any) -> Any:
    """Return the settings that ``tag_infinite`` took."""
    if isinstance(value, Mapping):
        if value.keys() == {"number"} and value["number"] in {"inf", "-inf", "nan"}:
            return float(value["number"])
        return {key: untag_infinite(item) for key, item in value.items()}
    return [untag_infinite(item) for item in value] if isinstance(value, list) else value


def _name_clients(data: FederatedData, settings: Settings) -> Coding:
    """Return the coding of the data, with the names of the clients if records keep them."""
    coding, names = data.coding, data.client_names
    if names is None or not can_record_names(len(names), recorded=settings.data.names):
        return coding
    if not isinstance(coding, TableCoding):
        return coding
    clients = tuple(replace(known, name=names[known.client]) for known in coding.scaling.clients)
    return replace(coding, scaling=replace(coding.scaling, clients=clients))
