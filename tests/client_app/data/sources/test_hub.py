"""Where a data set of Hugging Face is taken from: a folder, the Hub, or the Hub's cache."""

import json
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest
from fedquorum.errors import DataError
from huggingface_hub import HfApi

from client_app.data.sources.hub import HubSplits, load_hub_splits
from conf.schema.data import HfSettings
from tests.builders_hf import (
    add_to_cache,
    make_gray_images,
    make_image_rows,
    save_splits,
    write_parquet_splits,
)
from tests.client_app.clients import assert_one_line

OLD, NEW = "a" * 40, "b" * 40


def load(path: Path | str, folder: Path, **others: Any) -> HubSplits:
    return load_hub_splits(HfSettings(path=str(path), cache_dir=str(folder / "cache"), **others))


def files(folder: Path, n: int = 12) -> Path:
    """Write Parquet files with n and 6 images; returns the folder."""
    return write_parquet_splits(
        folder,
        train=make_image_rows(*make_gray_images(n)),
        test=make_image_rows(*make_gray_images(6)),
    )


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Fill a cache with two commits of owner/tiny, of 12 and of 15 training rows."""
    for commit, n in ((OLD, 12), (NEW, 15)):
        add_to_cache(tmp_path / "cache", files(tmp_path / commit, n), commit)
    return tmp_path


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send requests to a port of this machine at which nothing listens, and refuse telemetry."""
    monkeypatch.setattr("flwr_datasets.federated_dataset.event", pytest.fail)
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", "http://127.0.0.1:9")


class Hub:
    """A Hub whose data set owner/tiny lies in a folder; notes what is asked of it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.asked: list[Any] = []
        self._load = datasets.load_dataset
        monkeypatch.setattr(HfApi, "dataset_info", self.dataset_info)
        monkeypatch.setattr(datasets, "load_dataset", self.load_dataset)

    def dataset_info(self, repo_id: str, *, revision: str | None, timeout: float) -> Any:
        self.asked.append((repo_id, revision))
        assert timeout <= 10
        return SimpleNamespace(sha=NEW)

    def load_dataset(self, path: str, name: str | None, **others: Any) -> Any:
        self.asked.append((path, name, others.pop("revision")))
        assert others.keys() == {"cache_dir"}
        return self._load(str(self.folder), name, **others)


@pytest.mark.parametrize("write", [files, lambda path: save_splits(path, train={"a": [1]})])
def test_a_folder(write: Any, tmp_path: Path, no_hub: None) -> None:
    """Saved, or of files that load_dataset reads: with its test split, if it has one."""
    splits = load(write(tmp_path / "data"), tmp_path)
    if splits.test is None:
        assert splits.train["a"][:] == [1]
    else:
        assert (len(splits.train), len(splits.test)) == (12, 6)


def test_one_saved_split(tmp_path: Path) -> None:
    """A Dataset that was saved alone is the training rows."""
    datasets.Dataset.from_dict({"a": [1, 2]}).save_to_disk(tmp_path / "one")
    assert load(tmp_path / "one", tmp_path).train["a"][:] == [1, 2]


def test_files_that_changed_are_read_again(tmp_path: Path) -> None:
    """The cache is of the files as they were."""
    folder = tmp_path / "data"
    assert len(load(files(folder), tmp_path).train) == 12
    make_image_rows(*make_gray_images(9)).to_parquet(
        folder / "data" / "train-00000-of-00001.parquet"
    )
    assert len(load(folder, tmp_path).train) == 9


def test_subsets_of_a_folder(tmp_path: Path) -> None:
    """The card of a data set names subsets; one of several has to be chosen."""
    folder = tmp_path / "data"
    files(folder / "small")
    files(folder / "large", 15)
    named = [
        {"config_name": name, "data_files": [{"split": "train", "path": f"{name}/data/train*"}]}
        for name in ("small", "large")
    ]
    (folder / "README.md").write_text(f"---\nconfigs: {json.dumps(named)}\n---\n")
    assert len(load(folder, tmp_path, subset="large").train) == 15
    with pytest.raises(DataError, match=r"data\.subset one of .* and null: .*small.*large"):
        load(folder, tmp_path)


def test_splits_by_name(tmp_path: Path) -> None:
    """Another split may be the training or the test rows; an unknown one is refused."""
    folder = save_splits(tmp_path / "x", a={"i": [1]}, test={"i": [2]}, validation={"i": [3]})
    splits = load(folder, tmp_path, train_split="a", test_split="validation")
    assert (splits.train["i"][:], splits.test["i"][:]) == ([1], [3])
    assert load(folder, tmp_path, train_split="test").test is None
    for overrides in ({}, {"train_split": "a", "test_split": "dev"}):
        with pytest.raises(DataError, match=r"one of the splits of .*, which are a, test, valid"):
            load(folder, tmp_path, **overrides)


def test_the_commit_that_the_hub_names_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A branch is one commit for the whole load, and nothing but name and cache is passed on."""
    hub = Hub(files(tmp_path / "data"), monkeypatch)
    assert len(load("owner/tiny", tmp_path, revision="main").train) == 12
    assert hub.asked == [("owner/tiny", "main"), ("owner/tiny", None, NEW)]


def test_a_pinned_commit_in_the_cache_needs_no_hub(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each commit is found again, whichever came last; the Hub is not asked."""
    hub = Hub(cache, monkeypatch)
    for commit, n in ((OLD, 12), (NEW, 15)):
        assert len(load("owner/tiny", cache, revision=commit).train) == n
    assert hub.asked == []


@pytest.mark.parametrize("download", [True, False])
def test_without_the_hub_the_last_download_is_taken(
    download: bool, cache: Path, no_hub: None
) -> None:
    """At once, where datasets itself repeats its requests for half a minute."""
    started = time.monotonic()
    assert len(load("owner/tiny", cache, download=download).train) == 15
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("overrides", [{}, {"revision": "c" * 40}, {"revision": "main"}])
def test_a_data_set_that_is_nowhere(
    overrides: dict[str, Any], tmp_path: Path, cache: Path, no_hub: None
) -> None:
    """One line says where it was looked for and what fetches it, also of an absent commit."""
    name = "owner/tiny" if overrides else "owner/other"
    with pytest.raises(DataError) as caught:
        load(name, tmp_path, **overrides)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith("data.path must be a folder, or a data set of the Hub that can be ")
    assert f"the cache {tmp_path / 'cache'}, got {name} (the Hub does not answer: " in text
    revision = f", revision={overrides['revision']!r}" if overrides else ""
    assert f"datasets.load_dataset({name!r}{revision}).save_to_disk('FOLDER')" in text


def test_a_subset_that_the_cache_leaves_open(tmp_path: Path) -> None:
    """Of two in the cache one has to be named."""
    for subset, n in (("small", 6), ("large", 12)):
        add_to_cache(tmp_path / "cache", files(tmp_path / subset, n), OLD, subset)
    assert len(load("owner/tiny", tmp_path, download=False, subset="large").train) == 12
    with pytest.raises(DataError, match=r"^data\.subset must be one of large, small, which the ca"):
        load("owner/tiny", tmp_path, download=False)


def script(folder: Path) -> Path:
    """Write a folder with a loading script, as old data sets on the Hub have one."""
    folder.mkdir()
    (folder / f"{folder.name}.py").write_text("raise SystemExit('run')")
    return folder


def broken(folder: Path) -> Path:
    path = save_splits(folder, train={"a": [1]})
    (path / "train" / "state.json").write_text("{")
    return path


@pytest.mark.parametrize(
    ("write", "overrides", "reason"),
    [
        (lambda path: path, {}, "there is no such folder, and a Hub id is OWNER/NAME"),
        (lambda path: "pandas", {}, "there is no such folder, and a Hub id is OWNER/NAME"),
        (lambda path: "hf://datasets/a/b", {}, "a Hub id is OWNER/NAME"),
        (script, {}, "scripts are no longer supported"),
        (broken, {}, "Expecting property name"),
        (files, {"revision": "main"}, "a folder has no data.revision main"),
        (
            lambda path: save_splits(path, train={"a": [1]}),
            {"subset": "x"},
            "a saved data set has no data.subset x",
        ),
    ],
)
def test_no_data_set(
    write: Any, overrides: dict[str, Any], reason: str, tmp_path: Path, no_hub: None
) -> None:
    """One line, and no code that lies beside the data is run."""
    path = write(tmp_path / "data")
    start = "data.path must be a folder with a data set that Hugging"
    assert_one_line(lambda: load(path, tmp_path, **overrides), re.escape(reason), start)
