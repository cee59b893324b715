"""Read a Hugging Face data set: select the columns of inputs and targets, and their arrays."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Array2D, Array3D, Array4D, Array5D, ClassLabel, Image, LargeList, List, Value
from fedquorum.errors import DataError, to_one_line
from fedquorum.sanitize import abbreviate
from numpy.typing import NDArray

from client_app.data.base import Labels, LazyArray, RowIndex, Samples, Targets
from client_app.data.coding.base import Coding
from client_app.data.coding.cells import clean_column
from client_app.data.coding.images import ImageCoding
from client_app.data.coding.media import check_header, get_upright_size, to_pixels
from client_app.data.coding.text import WordCoding
from client_app.data.coding.vocabulary import hash_texts
from client_app.data.sources.base import LabeledArrays, count_classes
from client_app.data.sources.client_table import ClientTable
from client_app.data.sources.csv_table import build_client_table
from client_app.data.sources.hub import HubSplits, load_hub_splits
from client_app.data.sources.labels import find_names
from client_app.data.sources.validate import validate_inputs, validate_labels, validate_numbers
from client_app.data.split import Rows
from conf.schema.data import CsvSettings, HfSettings

ARRAY_FEATURES = (Array2D, Array3D, Array4D, Array5D)
FEATURE_KINDS = {Image: "image", ClassLabel: "class", **dict.fromkeys(ARRAY_FEATURES, "array")}
INTEGER_DTYPES = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
VALUE_DTYPES = {
    "number": {*INTEGER_DTYPES, "float16", "float32", "float64", "bool"},
    "text": {"string", "large_string"},
}
TABLE_KINDS = {"number", "text", "class"}
TABLE_KEYS = (
    *("drop_columns", "imputation", "zero_as_missing", "numbers", "categories", "missing"),
    *("invalid_cells", "max_categories", "replace", "scaling"),
)
KEYS_BY_KIND = {
    "image": ("image_size", "image_mode"),
    "text": ("length", "vocabulary_size"),
    "table": TABLE_KEYS,
}
"""The settings that only inputs of one kind use."""
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
    become classes in the order of ``find_names``; null selects the only ``ClassLabel``. With
    ``data.regression`` it is a column of numbers. Clients are the values of ``data.client_column``,
    in that order.

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
    _check_unused(columns.kind, settings)
    if columns.kind == "table":
        return _build_table(data_splits, columns, settings)
    read = [_read_inputs(split, columns, settings) for split in data_splits]
    x, cut = [samples for samples, _ in read], [line for _, lines in read for line in lines]
    num_tokens = settings.vocabulary_size if columns.kind == "text" else None
    return LabeledArrays(
        x_train=x[0],
        x_test=x[-1],
        num_tokens=num_tokens,
        warnings=tuple(cut),
        coding=_build_coding(x[0], columns, settings),
        **_read_labels(data_splits, columns, settings),
    )


def _read_labels(splits: Sequence[Any], columns: _Columns, settings: HfSettings) -> dict[str, Any]:
    """Return the fields of ``LabeledArrays`` other than the inputs."""
    y, class_names, num_classes = _read_targets(splits, columns.target, settings)
    fields: dict[str, Any] = {
        "y_train": y[0],
        "y_test": y[-1],
        "num_classes": num_classes,
        "pooled": len(splits) == 1,
        "class_names": class_names,
        **dict.fromkeys(("client_train", "client_test", "client_names")),
    }
    if settings.client_column is not None:
        fields["client_names"], clients = _find_indices(splits, settings.client_column)
        fields |= dict(zip(("client_train", "client_test"), clients, strict=False))
    return fields


def _check_unused(kind: str, settings: HfSettings) -> None:
    """Refuse values that inputs of this kind do not use."""
    default = HfSettings()
    for other, keys in KEYS_BY_KIND.items():
        for key in keys if other != kind else ():
            if getattr(settings, key) != getattr(default, key):
                raise DataError(
                    f"data.{key} must be left out where data.features are no {other}s but "
                    f"{kind}s, got {getattr(settings, key)!r}"
                )


def _build_coding(
    samples: Samples | LazyArray, columns: _Columns, settings: HfSettings
) -> Coding | None:
    """Return how the features become samples; None if they are arrays."""
    if isinstance(samples, HubImages):
        return ImageCoding(samples.size, samples.mode, samples.fit)
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
    chosen = tuple(settings.features or _find_default_features(others, settings))
    selected_kinds = {kinds[name] for name in chosen}
    kind = selected_kinds.pop() if len(selected_kinds) == 1 else "other"
    if not {kinds[name] for name in chosen} - TABLE_KINDS and kind != "text" and chosen:
        kind = "table"
    if kind not in {"image", "array", "table", "text"} or (
        len(chosen) > 1 and kind in {"image", "array"}
    ):
        raise _build_column_error(
            "features",
            "one column of images, arrays or lists of numbers, any columns of numbers and "
            "categories, or of texts (to be named unless there is one candidate alone)",
            features,
            settings,
            str([*chosen]) if chosen else "null",
        )
    return _Columns(chosen, kind, target)


def _find_default_features(kinds: dict[str, str], settings: HfSettings) -> Sequence[str]:
    """Return the only possible features: the columns of a table are one; none for a choice."""
    wide = [name for name, kind in kinds.items() if kind in {"image", "array"}]
    texts = [name for name, kind in kinds.items() if kind == "text"]
    if wide:
        return wide if len(wide) == 1 else ()
    if "number" not in kinds.values():
        return texts if len(texts) == 1 else ()
    return [
        name
        for name, kind in kinds.items()
        if kind in TABLE_KINDS and name not in settings.drop_columns
    ]


def _build_column_error(
    key: str, allowed: str, features: Any, settings: HfSettings, got: str
) -> DataError:
    columns = abbreviate(
        (f"{name} ({_describe_feature(feature)})" for name, feature in features.items()), near=got
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
            image = self._decode(row, file)
            self._check_header(row, image)
            pixels[index] = to_pixels(image.convert(self.mode), self.size)
        return pixels

    def check(self, rows: NDArray[np.int64]) -> None:
        """Check the headers of images that are in the data set or in a file; see ``LazyArray``."""
        for row in rows.tolist():
            file = self._rows[row][self._column]
            if file["bytes"] is None and not Path(file["path"]).is_file():
                continue  # in an archive, which the library opens
            with self._explain_damage(row):
                source = file["path"] if file["bytes"] is None else BytesIO(file["bytes"])
                with PIL.Image.open(source) as image:
                    self._check_header(row, image)

    def _decode(self, row: int, file: Any) -> Any:
        with self._explain_damage(row):
            return Image().decode_example(file)

    @contextmanager
    def _explain_damage(self, row: int) -> Iterator[None]:
        try:
            yield
        except DataError:
            raise
        except Exception as error:  # PIL raises any exception for a damaged file
            raise DataError(
                f"data.path must lead to images, got {self._describe_row(row)}, which is damaged "
                f"or none: {to_one_line(error)}"
            ) from None

    def _check_header(self, row: int, image: Any) -> None:
        if self._gray_only and self.mode == "L" and image.mode not in GRAY_MODES:
            raise DataError(
                "data.image_mode must be L or RGB where not all images are like the first, which "
                f"is gray, got {self._describe_row(row)} of Pillow's mode {image.mode}"
            )
        found = get_upright_size(image)
        check_header(image.mode, found, self.size, self.fit, self._describe_row(row))

    def _describe_row(self, row: int) -> str:
        return f"row {row} of {self._column} of {self._path}"


def _read_inputs(
    rows: Any, columns: _Columns, settings: HfSettings
) -> tuple[Samples | LazyArray, tuple[str, ...]]:
    """Return the inputs, and a line on cut texts."""
    if columns.kind == "text":
        return _read_tokens(rows, columns.features, settings)
    read: dict[str, Callable[[], Samples | LazyArray]] = {
        "image": lambda: HubImages(rows, columns.features[0], settings),
        "array": lambda: _read_array(rows, columns.features[0]),
    }
    return read[columns.kind](), ()


def _read(rows: Any, column: str, *, is_text: bool = False) -> pa.Array:
    """Return a column as one Arrow array, text clean; raise ValueError for missing values."""
    found = rows.select_columns([column]).with_format("arrow")[:][column].combine_chunks()
    if isinstance(found, pa.ChunkedArray):  # e.g. without rows, or of an extension type
        found = pa.concat_arrays(found.chunks)
    if is_text:
        found = clean_column(found.cast(pa.string()))
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


def _to_numpy(column: pa.Array) -> NDArray[Any]:
    numbers: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return numbers


@dataclass(frozen=True)
class _HubRows:
    """The rows of a data set, of all splits in one table; see ``TableOrigin``."""

    path: Path
    has_several = False
    names: tuple[str, ...] = ()
    client_indices = np.zeros(0, dtype=np.int64)
    client_key: str | None = None
    is_test = np.zeros(0, dtype=np.bool_)
    dropped_columns: Mapping[str, str] = field(default_factory=dict)
    passed_over: Mapping[str, int] = field(default_factory=dict)

    def list_doubts(self, *, named: bool) -> tuple[str, ...]:
        """Return no doubt."""
        return ()

    def describe_row(self, row: int) -> str:
        """Return the place of a row in words; rows of the test split follow those for training."""
        return f"row {row}"


def _build_table(splits: Sequence[Any], columns: _Columns, settings: HfSettings) -> LabeledArrays:
    """Return columns of numbers and categories as inputs, as ``data=csv`` does.

    Both splits are one table for the reader, so that they have the same categories.
    """
    from client_app.data.tabular import build_table_arrays

    arrow = pa.concat_tables([_read_arrow(split, columns.features) for split in splits])
    # Labels are read apart: a ClassLabel may have classes without rows.
    target = columns.target
    arrow = arrow.append_column(target, pa.array(np.zeros(len(arrow))))
    shared = {key: getattr(settings, key) for key in TABLE_KEYS if key != "drop_columns"}
    table_settings = CsvSettings(
        path=settings.path, target=target, client_column=None, regression=True, **shared
    )
    table = build_client_table(_HubRows(Path(settings.path)), arrow, table_settings)
    if table.dropped_columns and settings.features:
        name, reason = next(iter(table.dropped_columns.items()))
        raise DataError(
            f"data.features must be columns of numbers or categories, got {name}, which has "
            f"{reason}"
        )
    if settings.partition == "device" and table.schema.categories:
        raise ValueError(
            f"data.partition=device is for numbers and images, not for categories such as those of "
            f"{next(iter(table.schema.categories))}"
        )
    labels = _read_labels(splits, columns, settings)
    count = len(labels["y_train"])

    def build(
        scaled: LabeledArrays, arrays: Mapping[str, Any], *, shares_rows: bool
    ) -> LabeledArrays:
        x, agreed = scaled.x_train, scaled.agreed
        if agreed is not None:
            build_scaled = agreed.build_scaled
            agreed = replace(
                agreed,
                build_scaled=lambda scale: build(
                    build_scaled(scale), arrays, shares_rows=shares_rows
                ),
            )
        return replace(
            scaled,
            x_train=x[:count],
            x_test=x[:count] if shares_rows else x[count:],
            build_for_training=None,
            summary=None,
            warnings=_describe_dropped(table),
            agreed=agreed,
            **arrays,
        )

    pooled = len(splits) == 1
    whole = build_table_arrays(table, table_settings)

    def build_for_training(rows: Rows) -> LabeledArrays:
        assert whole.build_for_training is not None
        return build(whole.build_for_training(rows), labels, shares_rows=pooled)

    def build_for_clients(
        arrays: LabeledArrays, train: RowIndex, validation: RowIndex, test: RowIndex
    ) -> LabeledArrays:
        shares_rows = arrays.y_test is arrays.y_train
        clients = np.zeros(len(table.labels), dtype=np.int64)  # rows of nobody go with client 0
        for index, start in ((train, 0), (validation, 0), (test, 0 if shares_rows else count)):
            clients[index.flat + start] = np.repeat(index.clients, index.counts)
        owned = build_table_arrays(replace(table, clients=clients), table_settings)
        assert owned.build_for_training is not None
        given = {key: getattr(arrays, key) for key in labels}
        return build(owned.build_for_training(train.flat), given, shares_rows=shares_rows)

    return replace(
        build(whole, labels, shares_rows=pooled),
        build_for_training=build_for_training,
        build_for_clients=build_for_clients,
    )


def _read_arrow(rows: Any, columns: Sequence[str]) -> pa.Table:
    """Return columns of a split for the reader of tables, classes as their names."""
    table = rows.select_columns([*columns]).with_format("arrow")[:]
    found = {}
    for name in columns:
        column, feature = table[name], rows.features[name]
        if isinstance(feature, ClassLabel):
            known = pc.if_else(pc.greater_equal(column, 0), column, None)  # -1: missing
            column = pa.chunked_array([pa.array(feature.names).take(known.combine_chunks())])
        elif _infer_kind(feature) == "text":
            column = clean_column(column.cast(pa.string()))
        elif pa.types.is_floating(column.type):
            column = column.cast(pa.float64())
            column = pc.if_else(pc.is_nan(column), pa.scalar(None, pa.float64()), column)
        found[name] = column
    return pa.table(found)


def _describe_dropped(table: ClientTable) -> tuple[str, ...]:
    """Return the lines on a table, with the columns that are no inputs."""
    columns = [f"{name} ({reason})" for name, reason in table.dropped_columns.items()]
    left_out = f"columns that are left out, unless data.features names others: {', '.join(columns)}"
    return (*table.warnings, left_out) if columns else table.warnings


def _read_tokens(
    rows: Any, columns: Sequence[str], settings: HfSettings
) -> tuple[Samples, tuple[str, ...]]:
    if settings.partition == "device":
        raise ValueError("data.partition=device is for numbers and images, not for texts")
    texts = [_read(rows, name).to_pylist() for name in columns]
    return hash_texts(texts, settings.length, settings.vocabulary_size)


# --- targets and clients ------------------------------------------------------------------------


def _read_targets(
    splits: Sequence[Any], target: str, settings: HfSettings
) -> tuple[list[Targets], tuple[str, ...] | None, int]:
    """Return the targets of all splits, the names of the classes, and their number."""
    feature = splits[0].features[target]
    if _infer_kind(feature) == "text" and not settings.regression:
        if settings.partition == "device":
            raise ValueError(f"{target} must be a ClassLabel with data.partition=device, not text")
        classes, labels = _find_indices(splits, target)
        return [*labels], classes, settings.num_classes or len(classes)
    validate = validate_numbers if settings.regression else validate_labels
    y = [validate(target, _to_integers(_to_numpy(_read(split, target)))) for split in splits]
    if settings.regression:
        return y, None, 1
    names = tuple(feature.names) if isinstance(feature, ClassLabel) else None
    return y, names, count_classes(settings.num_classes or len(names or ()) or None, *y)


def _to_integers(values: NDArray[Any]) -> NDArray[Any]:
    """Return booleans as 0 and 1, and other values unchanged."""
    return values.astype(np.int64) if values.dtype == np.bool_ else values


def _find_indices(splits: Sequence[Any], column: str) -> tuple[tuple[str, ...], list[Labels]]:
    """Return a column's distinct names in all splits, in order, and the index of each row's."""
    feature = splits[0].features[column]
    values = [_read(split, column, is_text=_infer_kind(feature) == "text") for split in splits]
    names, indices = find_names(pa.chunked_array(values))
    if isinstance(feature, ClassLabel):
        names = tuple(feature.int2str([*map(int, names)]))
    return names, np.split(indices, np.cumsum([len(split) for split in values])[:-1])
