"""Data sets of Hugging Face, by Flower Datasets: from a folder, the Hub, or the Hub's cache."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
from datasets.naming import camelcase_to_snakecase
from datasets.packaged_modules.cache.cache import Cache
from fedquorum.errors import DataError, to_one_line
from huggingface_hub import HfApi
from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

from conf.schema.data import HfSettings

HUB_ID_PATTERN = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
COMMIT_PATTERN = re.compile(r"[0-9a-f]{40}")
HUB_TIMEOUT_SECONDS = 10
"""How long the Hub has to answer the first request, before the cache is all there is."""
SAVED_FILES = ("dataset_dict.json", "state.json")
"""Files by which a folder of ``save_to_disk`` is known."""
DEFAULT_TEST_SPLIT = "test"
"""The split that is the test set where the settings name none."""


@dataclass(frozen=True)
class HubSplits:
    """The rows for training, and those for testing where the data divides them.

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
    """The Hub does not answer."""


def load_hub_splits(settings: HfSettings) -> HubSplits:
    """Return the splits of ``data.path``; no row is read yet, and nothing of the data set is run.

    A folder is one that ``Dataset.save_to_disk`` or ``DatasetDict.save_to_disk`` wrote, or one of
    files that ``datasets.load_dataset`` reads. A Hub id is downloaded into the cache, with the
    commit that ``data.revision`` means now. Where the Hub does not answer, with
    ``data.download=false``, and where ``data.revision`` is a commit that is there, the data set is
    taken from the cache.

    Raises
    ------
    DataError
        If there is no such data set, subset, revision or split.
    """
    path = Path(settings.path).expanduser().resolve()
    try:
        loaded = _load_from_folder(path, settings) if path.is_dir() else _load_from_hub(settings)
        return _select_splits(loaded, settings)
    except DataError:
        raise
    except Exception as error:  # for a damaged file the library raises what it pleases
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
    """Return the commit that the settings mean, by one request, as those of others are repeated."""
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
    """Say where the data set was looked for, and how to bring it here."""
    given = [settings.path, *([settings.subset] if settings.subset else [])]
    revision = f", revision={settings.revision!r}" if settings.revision else ""
    return (
        f"data.path must be a folder, or a data set of the Hub that can be downloaded or is in the "
        f"cache {_get_cache_dir(settings)}, got {settings.path} ({reason}); where there is a network, "
        f"datasets.load_dataset({', '.join(map(repr, given))}{revision}).save_to_disk('FOLDER') "
        "fetches it for data.path=FOLDER"
    )


def _get_cache_dir(settings: HfSettings) -> Path:
    return Path(settings.cache_dir or datasets.config.HF_DATASETS_CACHE).expanduser().resolve()


def _load_cached(settings: HfSettings) -> Any:
    """Return the data set that was last downloaded and fits the settings, None if there is none.

    ``load_dataset`` would take the last one whatever its revision.
    """
    cache, (owner, name) = _get_cache_dir(settings), settings.path.split("/")
    folder = cache / f"{owner}___{camelcase_to_snakecase(name)}"
    pattern = f"{settings.subset or '*'}/*/{settings.revision or '*'}/dataset_info.json"
    found = sorted(folder.glob(pattern), key=lambda info: info.stat().st_mtime)
    subsets = sorted({info.parts[-4] for info in found})
    if len(subsets) > 1:
        raise DataError(
            f"data.subset must be one of {', '.join(subsets)}, which the cache has of "
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

    Its partitioners only hand the splits on: what a client gets follows from the run's seed.
    """
    from flwr_datasets import FederatedDataset  # seconds, most of them for its charts

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
    federated.partitioners  # noqa: B018 - it loads, and reports nothing to Flower's telemetry
    return splits


def _select_splits(splits: Any, settings: HfSettings) -> HubSplits:
    names = [*splits]
    for key in ("train_split", "test_split"):
        name = getattr(settings, key)
        if name is not None and name not in names:
            raise DataError(
                f"data.{key} must be one of the splits of {settings.path}, which are "
                f"{', '.join(names)}, got {name!r}"
            )
    test = settings.test_split
    if test is None and DEFAULT_TEST_SPLIT in names and settings.train_split != DEFAULT_TEST_SPLIT:
        test = DEFAULT_TEST_SPLIT
    return HubSplits(splits[settings.train_split], None if test is None else splits[test])
