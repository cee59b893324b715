"""Read a Hugging Face data set: select the columns of inputs and targets, and their arrays."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Array2D, Array3D, Array4D, Array5D, ClassLabel, Image, LargeList, List, Value
from fedquorum.errors import DataError, to_one_line
from numpy.typing import NDArray

from client_app.data.base import Labels, LazyArray, Samples, Targets
from client_app.data.coding.base import Coding
from client_app.data.coding.images import ImageCoding
from client_app.data.coding.table import TableCoding
from client_app.data.coding.text import WordCoding
from client_app.data.sources.base import LabeledArrays, build_pooled_arrays, count_classes
from client_app.data.sources.hub import HubSplits, load_hub_splits
from client_app.data.sources.media import to_pixels
from client_app.data.sources.text import hash_texts
from client_app.data.sources.validate import validate_inputs, validate_labels, validate_numbers
from conf.schema.data import HfSettings

ARRAY_FEATURES = (Array2D, Array3D, Array4D, Array5D)
FEATURE_KINDS = {Image: "image", ClassLabel: "class", **dict.fromkeys(ARRAY_FEATURES, "array")}
INTEGER_DTYPES = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
VALUE_DTYPES = {
    "number": {*INTEGER_DTYPES, "float16", "float32", "float64", "bool"},
    "text": {"string", "large_string"},
}
GRAY_MODES = ("L", "1")
IMAGE_AXES = (3, 4)
"""Number of axes of uint8 images (n, height, width), without and with channels."""


def load_hf_arrays(settings: HfSettings) -> LabeledArrays:
    """Return the columns of ``data.path`` that ``data.features`` and ``data.target`` name.

    Features are one column of images, uint8 (n, height, width) if gray or (n, height, width, 3),
    read on demand; one column of arrays or of lists of one length (uint8 with two or three axes is
    an image, all others become float32); columns of numbers, float32 (n, columns), not scaled; or
    columns of texts, hashed to tokens as in ``client_app.data.sources.text``. Null selects the only
    column of images, arrays or lists; if there are none of these and none of numbers, it selects
    the only column of texts.

    The target is a ``ClassLabel``, or a column of whole numbers from 0 or of text, whose values
    become classes in ascending order; null selects the only ``ClassLabel``. With
    ``data.regression`` it is a column of numbers. Clients are the values of ``data.client_column``,
    ascending.

    Raises
    ------
    DataError
        If the data set is missing, or lacks such columns.
    """
    splits = load_hub_splits(settings)
    try:
        return _build_arrays(splits, settings)
    except DataError:
        raise
    except Exception as error:  # the library raises any exception for a damaged file
        raise DataError(
            "data.path must be a data set of Hugging Face with features and a target, got "
            f"{settings.path}: {to_one_line(error)}"
        ) from None


@dataclass(frozen=True)
class _Columns:
    """The selected columns, and the common kind of the features."""

    features: tuple[str, ...]
    kind: str
    target: str


def _build_arrays(splits: HubSplits, settings: HfSettings) -> LabeledArrays:
    columns = _select_columns(splits.train.features, settings)
    data_splits = [splits.train, *([] if splits.test is None else [splits.test])]
    for split in data_splits[1:]:
        _check_same_columns(splits.train.features, split.features, columns, settings)
    x = [_read_inputs(split, columns, settings) for split in data_splits]
    y, num_classes = _read_targets(data_splits, columns.target, settings)
    clients: list[Labels | None] = [None] * len(data_splits)
    names: tuple[str, ...] | None = None
    if settings.client_column is not None:
        distinct, found = _find_indices(data_splits, settings.client_column)
        clients, names = [*found], tuple(map(str, distinct))
    num_tokens = settings.vocabulary_size if columns.kind == "text" else None
    if splits.test is None:
        return build_pooled_arrays(
            x[0],
            y[0],
            num_classes,
            client_train=clients[0],
            client_names=names,
            num_tokens=num_tokens,
            coding=_build_coding(x[0], columns, settings),
        )
    return LabeledArrays(
        x[0],
        y[0],
        x[1],
        y[1],
        num_classes,
        client_train=clients[0],
        client_names=names,
        client_test=clients[1],
        num_tokens=num_tokens,
        coding=_build_coding(x[0], columns, settings),
    )


def _build_coding(
    samples: Samples | LazyArray, columns: _Columns, settings: HfSettings
) -> Coding | None:
    """Return how the features become samples; None if they are arrays."""
    if isinstance(samples, HubImages):
        return ImageCoding(samples.size, samples.mode, samples.fit)
    if columns.kind == "number":
        return TableCoding(columns.features)
    if columns.kind == "text":
        return WordCoding(columns.features, settings.length, settings.vocabulary_size)
    return None


# --- columns ------------------------------------------------------------------------------------


def _infer_kind(feature: Any) -> str:
    """Return the kind of a column: image, array, number, text, class or other."""
    if isinstance(feature, List | LargeList):
        return "array" if _infer_kind(feature.feature) in {"array", "number"} else "other"
    if isinstance(feature, Value):
        return next(
            (kind for kind, names in VALUE_DTYPES.items() if feature.dtype in names), "other"
        )
    return FEATURE_KINDS.get(type(feature), "other")


def _select_columns(features: Any, settings: HfSettings) -> _Columns:
    kinds = {name: _infer_kind(feature) for name, feature in features.items()}
    named = {
        "features": settings.features or (),
        "target": [settings.target] if settings.target else (),
        "client_column": [settings.client_column] if settings.client_column else (),
    }
    for key, names in named.items():
        for name in names:
            if name not in kinds:
                raise _build_column_error(key, "of the columns", features, settings, repr(name))
    others = {name: kind for name, kind in kinds.items() if name != settings.client_column}
    target = settings.target
    if target is None:
        classes = [name for name, kind in others.items() if kind == "class"]
        if len(classes) != 1:
            raise _build_column_error(
                "target",
                "named unless one column alone is a ClassLabel",
                features,
                settings,
                "null",
            )
        target = classes[0]
    del others[target]
    chosen = tuple(settings.features or _find_default_features(others))
    selected_kinds = {kinds[name] for name in chosen}
    kind = selected_kinds.pop() if len(selected_kinds) == 1 else "other"
    if kind not in {"image", "array", "number", "text"} or (
        len(chosen) > 1 and kind in {"image", "array"}
    ):
        raise _build_column_error(
            "features",
            "one column of images, arrays or lists of numbers, or any columns of numbers or of "
            "texts (to be named unless there is one candidate alone)",
            features,
            settings,
            str([*chosen]) if chosen else "null",
        )
    return _Columns(chosen, kind, target)


def _find_default_features(kinds: dict[str, str]) -> Sequence[str]:
    """Return the only possible features, or none if there is a choice."""
    wide = [name for name, kind in kinds.items() if kind in {"image", "array"}]
    if wide or "number" in kinds.values():
        return wide if len(wide) == 1 else ()
    texts = [name for name, kind in kinds.items() if kind == "text"]
    return texts if len(texts) == 1 else ()


def _build_column_error(
    key: str, allowed: str, features: Any, settings: HfSettings, got: str
) -> DataError:
    columns = ", ".join(
        f"{name} ({_describe_feature(feature)})" for name, feature in features.items()
    )
    return DataError(
        f"data.{key} must be {allowed}; the columns of {settings.path} are {columns}; got {got}"
    )


def _describe_feature(feature: Any) -> str:
    return feature.dtype if isinstance(feature, Value) else type(feature).__name__


def _check_same_columns(train: Any, test: Any, columns: _Columns, settings: HfSettings) -> None:
    """Refuse a test split with other columns or other class names."""
    used = [*columns.features, columns.target]
    for name in [*used, settings.client_column] if settings.client_column else used:
        if name not in test or _infer_kind(test[name]) != _infer_kind(train[name]):
            raise ValueError(f"{name} of the test split is missing or of another kind")
    if _infer_kind(train[columns.target]) == "class":
        names = train[columns.target].names, test[columns.target].names
        if names[0] != names[1]:
            raise ValueError(f"{columns.target} has other classes in the test split")


# --- inputs -------------------------------------------------------------------------------------


class HubImages:
    """Images of a data set, uint8 (n, height, width) or (n, height, width, 3), read on demand.

    Parameters
    ----------
    rows : datasets.Dataset
    column : str
        The column of images.
    settings : HfSettings
        ``image_size`` and ``image_mode``; null for those of the first image.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, rows: Any, column: str, settings: HfSettings) -> None:
        self._rows = rows.select_columns([column]).cast_column(column, Image(decode=False))
        self._column = column
        self._path = settings.path
        self.fit = "exact" if settings.image_size is None else "stretch"
        self._gray_only = settings.image_mode is None
        first = self._decode(0, self._rows[0][column])
        height, width = settings.image_size or (first.height, first.width)
        self.mode = settings.image_mode or ("L" if first.mode in GRAY_MODES else "RGB")
        self.size = (int(height), int(width))
        self.shape = (len(rows), *self.size, *(() if self.mode == "L" else (len("RGB"),)))

    def __len__(self) -> int:
        """Return n, the number of images."""
        return len(self._rows)

    def __getitem__(self, rows: Any) -> NDArray[np.uint8]:
        """Return the images of a slice or of an array of rows; see ``LazyArray``."""
        selected = np.arange(len(self))[rows]
        pixels = np.empty((len(selected), *self.shape[1:]), dtype=np.uint8)
        files = self._rows[selected.tolist()][self._column]
        for index, (row, file) in enumerate(zip(selected.tolist(), files, strict=True)):
            pixels[index] = self._convert_pixels(row, self._decode(row, file))
        return pixels

    def _decode(self, row: int, file: Any) -> Any:
        try:
            return Image().decode_example(file)
        except Exception as error:  # PIL raises any exception for a damaged file
            raise DataError(
                f"data.path must lead to images, got {self._describe_row(row)}, which is none: "
                f"{to_one_line(error)}"
            ) from None

    def _convert_pixels(self, row: int, image: Any) -> NDArray[np.uint8]:
        if self._gray_only and self.mode == "L" and image.mode not in GRAY_MODES:
            raise DataError(
                "data.image_mode must be L or RGB where not all images are like the first, which "
                f"is gray, got {self._describe_row(row)} of Pillow's mode {image.mode}"
            )
        return to_pixels(
            image.convert(self.mode),
            image.mode,
            self.size,
            self.fit,
            setting="data.path",
            location=self._describe_row(row),
        )

    def _describe_row(self, row: int) -> str:
        return f"row {row} of {self._column} of {self._path}"


def _read_inputs(rows: Any, columns: _Columns, settings: HfSettings) -> Samples | LazyArray:
    read: dict[str, Callable[[], Samples | LazyArray]] = {
        "image": lambda: HubImages(rows, columns.features[0], settings),
        "array": lambda: _read_array(rows, columns.features[0]),
        "number": lambda: _read_table(rows, columns.features),
        "text": lambda: _read_tokens(rows, columns.features, settings),
    }
    return read[columns.kind]()


def _read(rows: Any, column: str) -> pa.Array:
    """Return a column as one Arrow array; raise ValueError for missing values."""
    found = rows.select_columns([column]).with_format("arrow")[:][column].combine_chunks()
    if isinstance(found, pa.ChunkedArray):  # e.g. without rows, or of an extension type
        found = pa.concat_arrays(found.chunks)
    if found.null_count:
        row = pc.index(found.is_null(), True).as_py()
        raise ValueError(f"{column} is missing in row {row}")
    return found


def _read_array(rows: Any, column: str) -> Samples:
    """Return arrays, or lists of one length, as an array (n, ...)."""
    found = _read(rows, column)
    shape = [len(found)]
    if isinstance(found, pa.ExtensionArray):
        found = found.storage
    while pa.types.is_nested(found.type):
        lengths = pc.unique(pc.list_value_length(found)).to_pylist()
        if len(lengths) != 1:
            raise ValueError(f"{column} must have lists of one length, got {sorted(lengths)[:5]}")
        shape.append(lengths[0])
        found = found.flatten()
        if found.null_count:
            raise ValueError(f"{column} has lists with missing values")
    x = _to_numpy(found).reshape(shape)
    if x.dtype != np.uint8 or x.ndim not in IMAGE_AXES:
        x = x.astype(np.float32)
    return validate_inputs(column, x)


def _read_table(rows: Any, columns: Sequence[str]) -> Samples:
    numbers = [_to_numpy(_read(rows, name)).astype(np.float32) for name in columns]
    return validate_inputs(", ".join(columns), np.stack(numbers, axis=1))


def _to_numpy(column: pa.Array) -> NDArray[Any]:
    numbers: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return numbers


def _read_tokens(rows: Any, columns: Sequence[str], settings: HfSettings) -> Samples:
    if settings.partition == "device":
        raise ValueError("data.partition=device is for numbers and images, not for texts")
    texts = [_read(rows, name).to_pylist() for name in columns]
    return hash_texts(texts, settings.length, settings.vocabulary_size)


# --- targets and clients ------------------------------------------------------------------------


def _read_targets(
    splits: Sequence[Any], target: str, settings: HfSettings
) -> tuple[list[Targets], int]:
    """Return the targets of all splits, and the number of classes."""
    feature = splits[0].features[target]
    if _infer_kind(feature) == "text" and not settings.regression:
        if settings.partition == "device":
            raise ValueError(f"{target} must be a ClassLabel with data.partition=device, not text")
        classes, labels = _find_indices(splits, target)
        return [*labels], settings.num_classes or len(classes)
    validate = validate_numbers if settings.regression else validate_labels
    y = [validate(target, _to_integers(_to_numpy(_read(split, target)))) for split in splits]
    if settings.regression:
        return y, 1
    named = feature.num_classes if isinstance(feature, ClassLabel) else None
    return y, count_classes(settings.num_classes or named, *y)


def _to_integers(values: NDArray[Any]) -> NDArray[Any]:
    """Return booleans as 0 and 1, and other values unchanged."""
    return values.astype(np.int64) if values.dtype == np.bool_ else values


def _find_indices(splits: Sequence[Any], column: str) -> tuple[list[Any], list[Labels]]:
    """Return a column's distinct values in all splits, ascending, and the index of each row's."""
    values = [_read(split, column).to_pylist() for split in splits]
    distinct = sorted({value for split in values for value in split})
    position = {value: i for i, value in enumerate(distinct)}
    return distinct, [
        np.array([position[value] for value in split], dtype=np.int64) for split in values
    ]
