"""Load Hugging Face data sets with Flower Datasets, from a folder, the Hub or its cache."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
from datasets.naming import camelcase_to_snakecase
from datasets.packaged_modules.cache.cache import Cache
from fedquorum.errors import DataError, to_one_line
from fedquorum.sanitize import abbreviate
from huggingface_hub import HfApi
from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

from conf.schema.data import HfSettings

HUB_ID_PATTERN = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
COMMIT_PATTERN = re.compile(r"[0-9a-f]{40}")
HUB_TIMEOUT_SECONDS = 10
"""Timeout of the first request to the Hub; after it only the cache is used."""
SAVED_FILES = ("dataset_dict.json", "state.json")
"""Files that identify a folder of ``save_to_disk``."""
DEFAULT_TEST_SPLIT = "test"
"""The test split if the settings name none."""


@dataclass(frozen=True)
class HubSplits:
    """The training split, and the test split if the data has one.

    Attributes
    ----------
    train : datasets.Dataset
        The split ``data.train_split``.
    test : datasets.Dataset, optional
        The split ``data.test_split``.
    """

    train: Any
    test: Any


class _UnreachableError(Exception):
    """The Hub does not respond."""


def load_hub_splits(settings: HfSettings) -> HubSplits:
    """Return the splits of ``data.path`` without reading rows or running code of the data set.

    A folder was written by ``Dataset.save_to_disk`` or ``DatasetDict.save_to_disk``, or has files
    that ``datasets.load_dataset`` reads. A Hub id is downloaded into the cache, at the commit that
    ``data.revision`` currently resolves to. The data set is loaded from the cache if the Hub does
    not respond, with ``data.download=false``, and if ``data.revision`` is a cached commit.

    Raises
    ------
    DataError
        If the data set, subset, revision or split is missing.
    """
    path = Path(settings.path).expanduser().resolve()
    try:
        loaded = _load_from_folder(path, settings) if path.is_dir() else _load_from_hub(settings)
        return _select_splits(loaded, settings)
    except DataError:
        raise
    except Exception as error:  # the library raises any exception for a damaged file
        subset = settings.subset or "null"
        raise DataError(
            "data.path must be a folder with a data set that Hugging Face's datasets reads, or a "
            "Hub id such as ylecun/mnist, and data.subset one of its configurations where it has "
            f"several, got {settings.path} and {subset}: {to_one_line(error)}"
        ) from None


def _load_from_folder(path: Path, settings: HfSettings) -> Any:
    if settings.revision is not None:
        raise ValueError(f"a folder has no data.revision {settings.revision}")
    if not any((path / name).is_file() for name in SAVED_FILES):
        return _load_splits(str(path), settings)
    if settings.subset is not None:
        raise ValueError(f"a saved data set has no data.subset {settings.subset}")
    saved = datasets.load_from_disk(str(path))
    if isinstance(saved, datasets.DatasetDict):
        return saved
    return datasets.DatasetDict({settings.train_split: saved})


def _load_from_hub(settings: HfSettings) -> Any:
    if not HUB_ID_PATTERN.fullmatch(settings.path):
        raise ValueError("there is no such folder, and a Hub id is OWNER/NAME")
    pinned = COMMIT_PATTERN.fullmatch(settings.revision or "") is not None
    cached = _load_cached(settings) if pinned or not settings.download else None
    if cached is not None:
        return cached
    try:
        return _load_splits(settings.path, settings, revision=_resolve_commit(settings))
    except _UnreachableError as unreachable:
        found = _load_cached(settings)
        if found is None:
            raise DataError(_explain_download(settings, unreachable)) from None
        return found


def _resolve_commit(settings: HfSettings) -> str:
    """Return the commit of ``data.revision`` with one request; the libraries would retry theirs."""
    if not settings.download:
        raise _UnreachableError("data.download is false")
    try:
        found = HfApi(endpoint=datasets.config.HF_ENDPOINT).dataset_info(
            settings.path, revision=settings.revision, timeout=HUB_TIMEOUT_SECONDS
        )
    except (RepositoryNotFoundError, RevisionNotFoundError):
        raise
    except Exception as error:
        raise _UnreachableError(f"the Hub does not answer: {to_one_line(error)}") from None
    return str(found.sha)


def _explain_download(settings: HfSettings, reason: Exception) -> str:
    """Return a message with the searched locations and the command that downloads the data."""
    given = [settings.path, *([settings.subset] if settings.subset else [])]
    revision = f", revision={settings.revision!r}" if settings.revision else ""
    arguments = f"{', '.join(map(repr, given))}{revision}"
    return (
        f"data.path must be a folder, or a data set of the Hub that can be downloaded or is in the "
        f"cache {_get_cache_dir(settings)}, got {settings.path} ({reason}); where there is a "
        f"network, datasets.load_dataset({arguments}).save_to_disk('FOLDER') fetches it for "
        "data.path=FOLDER"
    )


def _get_cache_dir(settings: HfSettings) -> Path:
    return Path(settings.cache_dir or datasets.config.HF_DATASETS_CACHE).expanduser().resolve()


def _load_cached(settings: HfSettings) -> Any:
    """Return the last downloaded data set that fits the settings, or None if there is none.

    ``load_dataset`` would load the last one of any revision.
    """
    cache, (owner, name) = _get_cache_dir(settings), settings.path.split("/")
    folder = cache / f"{owner}___{camelcase_to_snakecase(name)}"
    pattern = f"{settings.subset or '*'}/*/{settings.revision or '*'}/dataset_info.json"
    found = sorted(folder.glob(pattern), key=lambda info: info.stat().st_mtime)
    subsets = sorted({info.parts[-4] for info in found})
    if len(subsets) > 1:
        raise DataError(
            f"data.subset must be one of {abbreviate(subsets)}, which the cache has of "
            f"{settings.path}, got null"
        )
    if not found:
        return None
    subset, version, commit = found[-1].parts[-4:-1]
    return Cache(
        cache_dir=str(cache),
        repo_id=settings.path,
        dataset_name=name,
        config_name=subset,
        version=version,
        hash=commit,
    ).as_dataset()


def _load_splits(path: str, settings: HfSettings, **others: Any) -> Any:
    """Return all splits, as Flower Datasets loads them.

    No partitioner is used, because the run's seed determines the clients' rows.
    """
    from flwr_datasets import FederatedDataset  # takes seconds, mostly for its charts

    splits: dict[str, Any] = {}

    def store_splits(loaded: Any) -> Any:
        splits.update(loaded)
        return loaded

    federated = FederatedDataset(
        dataset=path,
        subset=settings.subset,
        partitioners={},
        preprocessor=store_splits,
        shuffle=False,
        cache_dir=str(_get_cache_dir(settings)),
        **others,
    )
    federated.partitioners  # noqa: B018 - loads the splits without reporting to Flower's telemetry
    return splits


def _select_splits(splits: Any, settings: HfSettings) -> HubSplits:
    names = [*splits]
    for key in ("train_split", "test_split"):
        name = getattr(settings, key)
        if name is not None and name not in names:
            raise DataError(
                f"data.{key} must be one of the splits of {settings.path}, which are "
                f"{abbreviate(names, near=name)}, got {name!r}"
            )
    test = settings.test_split
    if test is None and DEFAULT_TEST_SPLIT in names and settings.train_split != DEFAULT_TEST_SPLIT:
        test = DEFAULT_TEST_SPLIT
    return HubSplits(splits[settings.train_split], None if test is None else splits[test])
