"""Small data sets of Hugging Face on disk: saved, as Parquet files, or as in the Hub's cache."""

from pathlib import Path
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image
from datasets.data_files import DataFilesDict
from datasets.load import configure_builder_class
from datasets.packaged_modules.parquet.parquet import Parquet, ParquetConfig
from numpy.typing import NDArray
from PIL import Image as Pillow

CLASSES = ["cat", "dog", "owl"]


def make_gray_images(n: int, size: int = 8) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return n gray images of noise, and their classes."""
    x = np.random.default_rng(n).integers(256, size=(n, size, size), dtype=np.uint8)
    return x, np.arange(n) % len(CLASSES)


def make_image_rows(x: NDArray[np.uint8], y: NDArray[np.int64], column: str = "image") -> Dataset:
    """Return a data set with a column of images and a ``ClassLabel``."""
    features = Features({column: Image(), "label": ClassLabel(names=CLASSES)})
    images = [Pillow.fromarray(pixels) for pixels in x]
    return Dataset.from_dict({column: images, "label": y}, features=features)


def save_splits(folder: Path, **splits: Any) -> Path:
    """Save splits, data sets or dicts of columns, by ``save_to_disk``; returns the folder."""
    made = {
        name: rows if isinstance(rows, Dataset) else Dataset.from_dict(rows)
        for name, rows in splits.items()
    }
    DatasetDict(made).save_to_disk(folder)
    return folder


def write_parquet_splits(folder: Path, **splits: Dataset) -> Path:
    """Write splits as Parquet files named like those on the Hub; returns the folder."""
    (folder / "data").mkdir(parents=True)
    for name, rows in splits.items():
        rows.to_parquet(folder / "data" / f"{name}-00000-of-00001.parquet")
    return folder


def add_to_cache(cache: Path, files: Path, commit: str, subset: str = "default") -> None:
    """Put a folder of Parquet files into the cache, as a download of owner/tiny at a commit."""
    found = {path.name.partition("-")[0]: [str(path)] for path in (files / "data").iterdir()}
    config = ParquetConfig(name=subset, data_files=DataFilesDict.from_patterns(found))
    builder: Any = configure_builder_class(
        Parquet, builder_configs=[config], default_config_name=subset, dataset_name="tiny"
    )
    builder(
        cache_dir=str(cache), repo_id="owner/tiny", dataset_name="tiny", hash=commit
    ).download_and_prepare()
