"""Predict with the model of a run, from its model card and without its data.

Shapes: n rows, c classes.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from fedquorum.errors import RunError, SettingsError, to_one_line
from fedquorum.records.safe_files import SafeRunDir
from fedquorum.records.writer import MODEL, MODEL_CARD
from fedquorum.sanitize import sanitize
from numpy.typing import NDArray

from client_app.data.coding.base import Coding, EncodedRows
from client_app.data.coding.read import read_coding
from client_app.data.coding.table import ClientScale, TableCoding, TableScaling
from conf.compose import model_settings_from_dict, settings_from_yaml
from conf.schema.data import is_on_device
from conf.schema.model import ModelSettings, ModuleSettings
from server_app.runs.model_card import CARD_FORMAT, untag_infinite

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

ROWS_AT_ONCE = 256
TARGET_KINDS = ("class", "sequence", "number")


@dataclass(frozen=True, eq=False)
class TargetInfo:
    """The meaning of a model's outputs.

    Parameters
    ----------
    kind : str
        ``class``, ``sequence`` (the class of the next token) or ``number``.
    classes : tuple of str
        The names of the classes, in the order of the outputs.
    is_binary : bool
        Whether one output is the logit of the second of two classes.
    mean, deviation : float
        A number is ``mean`` + ``deviation`` * output.
    """

    kind: str
    classes: tuple[str, ...] = ()
    is_binary: bool = False
    mean: float = 0.0
    deviation: float = 1.0

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Self:
        """Return the target in a model card."""
        if given["kind"] not in TARGET_KINDS:
            raise ValueError(f"the kind of target must be one of {', '.join(TARGET_KINDS)}")
        scale = given["scale"] or {"mean": 0.0, "deviation": 1.0}
        return cls(
            str(given["kind"]),
            tuple(map(str, given["classes"] or ())),
            given["outputs"] == "sigmoid",
            float(scale["mean"]),
            float(scale["deviation"]),
        )

    def build_columns(self, outputs: NDArray[np.float64]) -> dict[str, Any]:
        """Return the columns of predictions for outputs (n, outputs)."""
        if self.kind == "number":
            return {"prediction": self.mean + self.deviation * outputs[:, 0]}
        logits = np.stack([0 * outputs[:, 0], outputs[:, 0]], axis=1) if self.is_binary else outputs
        scores = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities = scores / scores.sum(axis=1, keepdims=True)
        best = logits.argmax(axis=1)
        columns: dict[str, Any] = {"prediction": [self.classes[index] for index in best]}
        if self.kind == "sequence":
            return columns | {"probability": probabilities[np.arange(len(best)), best]}
        names = [f"probability_{name}" for name in self.classes]
        return columns | dict(zip(names, probabilities.T, strict=True))


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """The model of a run with its model card.

    Parameters
    ----------
    directory : Path
        The run's folder.
    trusted : bool
        Whether a model that the card names by import path may be imported.
    """

    directory: Path
    trusted: bool = False

    @cached_property
    def card(self) -> Mapping[str, Any]:
        """The card.

        Raises
        ------
        RunError
            If there is none, or it is damaged.
        """
        content = SafeRunDir(self.directory).read(MODEL_CARD)
        if content is None:
            raise RunError(
                f"{self.directory} must have a {MODEL_CARD}, got none: the run has not ended, was "
                "killed, or was made by a drop-in strategy"
            )
        with self._refuse_damage():
            card = json.loads(content, parse_constant=_refuse_constant)
            if card["format"] != CARD_FORMAT:
                raise ValueError(f"its format must be {CARD_FORMAT}, got {card['format']!r}")
        return dict(card)

    @cached_property
    def coding(self) -> Coding:
        """How rows become inputs."""
        with self._refuse_damage():
            return read_coding(self.card["inputs"])

    @cached_property
    def target(self) -> TargetInfo:
        """The meaning of the outputs."""
        with self._refuse_damage():
            target = TargetInfo.from_json(self.card["target"])
            if target.kind == "sequence":
                tokens = map(str, self.card["inputs"].get("vocabulary", ()))
                target = replace(target, classes=("(padding)", "(unknown)", *tokens))
        return target

    @cached_property
    def model(self) -> "nn.Module":
        """The model with the run's last weights, in evaluation mode.

        Raises
        ------
        RunError
            If the card or the model is damaged, or the model is code that is not trusted.
        """
        from safetensors.torch import load

        from client_app.models import build_model

        settings, (shape, outputs, seed, tokens, sequence) = self._read_architecture()
        if isinstance(settings, ModuleSettings) and not self.trusted:
            raise RunError(
                f"{self.directory}: the model in model.path is code, {sanitize(settings.path)}; "
                "load(DIR, trust=True) imports it"
            )
        sizes: Any = {"num_tokens": tokens, "sequence": sequence}
        try:
            weights = load(self._read_weights())
            model = build_model(settings, shape, outputs, seed, **sizes, pretrained=False)
            model.load_state_dict(weights)
        except SettingsError:
            raise
        except Exception as error:  # safetensors and PyTorch raise many types
            text = sanitize(to_one_line(error))
            raise RunError(f"{self.directory}/{MODEL}: cannot be read: {text}") from None
        return model.eval()

    def predict(
        self, rows: Any, client: int | str | None = None, data: Path | str | None = None
    ) -> tuple["pd.DataFrame", tuple[str, ...]]:
        """Return predictions, one for each row, and what a reader of them should know.

        Parameters
        ----------
        rows : Any
            The rows; see the ``encode`` of the card's coding.
        client : int or str, optional
            The id or the name of the client whose rows they are.
        data : Path or str, optional
            A device's data, for the scale of its numbers if that stayed on the device.

        Raises
        ------
        DataError
            If the rows are not as in training.
        RunError
            If ``model`` would raise it.
        SettingsError
            If there is no such client.
        """
        import pandas as pd

        coding = self.coding if data is None else self._fit_coding(client, data)
        encoded = coding.encode(rows, client)
        outputs = self._compute_outputs(encoded)
        wrong = ~np.isfinite(outputs).all(axis=1)
        if wrong.any():
            raise RunError(
                f"the model in {self.directory} must give finite outputs, got none in row "
                f"{int(np.argmax(wrong)) + 1}: its training may have diverged"
            )
        index = pd.Index(encoded.labels)
        return pd.DataFrame(self.target.build_columns(outputs), index=index), encoded.notes

    def _compute_outputs(self, encoded: EncodedRows) -> NDArray[np.float64]:
        """Return the outputs (n, outputs) for encoded rows."""
        import torch

        inputs = torch.from_numpy(encoded.inputs)
        last = None if encoded.last is None else torch.from_numpy(encoded.last)
        num_outputs = int(self.card["model"]["outputs"])
        parts = [np.zeros((0, num_outputs))]
        with torch.no_grad():
            for start in range(0, len(inputs), ROWS_AT_ONCE):
                outputs = self.model(inputs[start : start + ROWS_AT_ONCE])
                if last is not None:
                    rows = torch.arange(len(outputs))
                    outputs = outputs[rows, last[start : start + ROWS_AT_ONCE]]
                parts.append(outputs.double().numpy())
        return np.concatenate(parts)

    def _read_architecture(self) -> tuple[ModelSettings, Any]:
        """Return the model's settings, and the arguments of ``build_model``."""
        with self._refuse_damage():
            given = self.card["model"]
            settings = model_settings_from_dict(untag_infinite(given["settings"]))
            tokens = given["tokens"]
            return settings, (
                tuple(map(int, given["input_shape"])),
                int(given["outputs"]),
                int(self.card["seed"]),
                None if tokens is None else int(tokens),
                bool(given["every_position"]),
            )

    def _read_weights(self) -> bytes:
        """Return the content of the model's file, which must be the one of the card."""
        with SafeRunDir(self.directory).open(MODEL) as file:
            if file is None:
                raise ValueError("there is no such file")
            content = file.read()
        if hashlib.sha256(content).hexdigest() != self.card["model"]["sha256"]:
            raise ValueError(f"its SHA-256 is not that of {MODEL_CARD}")
        return content

    def _fit_coding(self, client: int | str | None, data: Path | str) -> Coding:
        """Return the coding with the statistics of a device's data."""
        from client_app.data.load import load_data
        from client_app.data.single_client import SingleClientData

        settings = settings_from_yaml(self._read_config())
        own: Any = settings.data
        if not is_on_device(own):
            raise SettingsError(
                f"data must be left out, got {sanitize(data)}: the model card has the scales"
            )
        if not isinstance(client, int):
            raise SettingsError(
                f"client must be the id of this device's client where data is given, got {client!r}"
            )
        path = str(Path(data).expanduser().absolute())
        loaded = load_data(replace(own, path=path), settings.seed)
        assert isinstance(loaded, SingleClientData)
        coding = loaded.get_client_coding(client)
        if not isinstance(coding, TableCoding):
            return coding
        (known,) = coding.scaling.clients
        own_scale = ClientScale(client, known.rows, known.scale)
        return replace(coding, scaling=TableScaling("client", None, (own_scale,)))

    def _read_config(self) -> str:
        return (SafeRunDir(self.directory).read("config.yaml") or b"").decode("utf-8", "replace")

    @contextmanager
    def _refuse_damage(self) -> Iterator[None]:
        """Raise RunError for errors of a damaged card."""
        try:
            yield
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            text = sanitize(f"{type(error).__name__}: {to_one_line(error)}")
            path = self.directory / MODEL_CARD
            raise RunError(f"{path} must be a model card, got a damaged one ({text})") from None


def _refuse_constant(text: str) -> None:
    raise ValueError(f"JSON has no {text}")
