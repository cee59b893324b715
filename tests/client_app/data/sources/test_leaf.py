"""LEAF's JSON files, tiny ones of each kind."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedquorum.errors import DataError, SettingsError

from client_app.data import load_data
from client_app.data.sources.base import LabeledArrays
from client_app.data.sources.leaf import load_leaf_arrays
from conf.schema.data import LeafSettings
from tests.client_app.clients import assert_one_line

Users = dict[str, tuple[list[Any], list[Any]]]


def write(folder: Path, users: Users, name: str = "all_data_0.json") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(users),
        "num_samples": [len(x) for x, _ in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }
    (folder / name).write_text(json.dumps(content))


def make_numbers(seed: int, count: int) -> tuple[list[Any], list[Any]]:
    rng = np.random.default_rng(seed)
    return rng.random((count, 4)).tolist(), rng.integers(3, size=count).tolist()


def make_comment(*sequences: str) -> list[list[str]]:
    return [sequence.split() for sequence in sequences]


REDDIT: Users = {
    "1": (
        [
            make_comment("<BOS> the cat sat", "on <PAD> <PAD> <PAD>"),
            make_comment("<BOS> the dog <PAD>"),
        ],
        [
            {
                "target_tokens": make_comment("the cat sat on", "mat <PAD> <PAD> <PAD>"),
                "count_tokens": [[1, 1, 1, 1], [1, 0, 0, 0]],
                "subreddit": "cats",
            },
            {
                "target_tokens": make_comment("the dog <EOS> <PAD>"),
                "count_tokens": [[1, 1, 1, 0]],
                "subreddit": "dogs",
            },
        ],
    ),
    "2": (
        [make_comment("<BOS> the cat sat")],
        [{"target_tokens": make_comment("the cat sat <EOS>"), "count_tokens": [[1, 1, 1, 1]]}],
    ),
}


def load(path: Path, **settings: Any) -> LabeledArrays:
    return load_leaf_arrays(LeafSettings(path=str(path), **settings))


def assert_refused(path: Path, reason: str) -> None:
    wanted = "data.path must be a folder with LEAF's JSON files, in train and test"
    assert_one_line(lambda: load(path), reason, wanted)


def test_numbers_by_user(tmp_path: Path) -> None:
    """FEMNIST's kind: numbers with a class; users in the alphabet's order, over all files."""
    splits: dict[str, Users] = {
        split: {
            user: make_numbers(i, n + extra) for i, (user, n) in enumerate([("b", 4), ("a", 2)])
        }
        for split, extra in (("train", 3), ("test", 0))
    }
    write(tmp_path / "train", {"b": splits["train"]["b"]}, "one.json")
    write(tmp_path / "train", {"a": splits["train"]["a"]}, "two.json")
    write(tmp_path / "test", splits["test"])
    arrays = load(tmp_path)
    np.testing.assert_array_equal(
        arrays.x_train[:], np.array(splits["train"]["b"][0] + splits["train"]["a"][0], np.float32)
    )
    assert arrays.num_classes == 3
    assert arrays.client_train is not None
    assert arrays.client_train.tolist() == [1] * 7 + [0] * 5
    data = load_data(LeafSettings(path=str(tmp_path)), 1)
    assert data.num_clients == 2
    client = data.get_client(0)
    np.testing.assert_array_equal(client.x_test, np.array(splits["test"]["a"][0], np.float32))
    assert client.y_train.tolist() == splits["train"]["a"][1]


def test_characters_with_the_next_one(tmp_path: Path) -> None:
    """Shakespeare's kind: 0 and 1 are kept, and equal characters have equal numbers."""
    write(tmp_path / "train", {"LEAR": (["abca", "bcaa"], ["b", "c"])})
    write(tmp_path / "test", {"LEAR": (["abcd"], ["a"])})
    arrays = load(tmp_path)
    assert arrays.x_train[:].tolist() == [[2, 3, 4, 2], [3, 4, 2, 2]]
    assert arrays.x_train.dtype == np.int32
    assert arrays.y_train.tolist() == [3, 4]
    assert arrays.x_test[:].tolist() == [[2, 3, 4, 1]]
    assert arrays.num_tokens == arrays.num_classes == 5
    client = load_data(LeafSettings(path=str(tmp_path)), 1).get_client(0)
    assert client.x_train.dtype == np.int64


def test_sequences_of_words(tmp_path: Path) -> None:
    """Reddit's kind: sequences of all comments, targets where they count and are known."""
    write(tmp_path / "train", REDDIT)
    write(tmp_path / "test", REDDIT)
    arrays = load(tmp_path)
    # <BOS> 3 times and the 3 times, then cat and sat 2 times, then dog and on.
    bos, the, cat, sat, dog, on = 2, 3, 4, 5, 6, 7
    assert arrays.x_train[:].tolist() == [
        [bos, the, cat, sat],
        [on, 0, 0, 0],
        [bos, the, dog, 0],
        [bos, the, cat, sat],
    ]
    assert arrays.y_train.tolist() == [
        [the, cat, sat, on],
        [-100, -100, -100, -100],  # mat is unknown
        [the, dog, -100, -100],  # <EOS> is no input, so it is unknown too
        [the, cat, sat, -100],
    ]
    assert arrays.num_tokens == arrays.num_classes == 8
    small = load(tmp_path, vocabulary_size=4)
    assert small.x_train[:].tolist()[0] == [bos, the, 1, 1]
    assert small.y_train.tolist()[0] == [the, -100, -100, -100]


def test_next_tokens_are_no_classes(tmp_path: Path) -> None:
    """What needs classes is refused for sequences: priority by classes, partitions by classes."""
    write(tmp_path / "train", REDDIT)
    write(tmp_path / "test", REDDIT)
    data = load_data(LeafSettings(path=str(tmp_path), priority="heterogeneous"), 1)
    with pytest.raises(SettingsError, match=r"^data\.priority must be all, random or a list"):
        _ = data.priority
    settings = LeafSettings(path=str(tmp_path), partition="shards", num_clients=1)
    with pytest.raises(SettingsError, match=r"^data\.partition must be iid, quantity or natural"):
        load_data(settings, 1)
    even = load_data(LeafSettings(path=str(tmp_path), partition="iid", num_clients=2), 1)
    assert even.get_client(0).y_train.shape == (2, 4)


def test_all_data_in_one_folder(tmp_path: Path) -> None:
    """Without train and test, every user's samples are divided."""
    write(tmp_path, {"a": make_numbers(0, 10), "b": make_numbers(1, 5)})
    data = load_data(LeafSettings(path=str(tmp_path)), 1)
    assert [len(data.get_client(k).y_test) for k in range(2)] == [2, 1]
    assert [len(data.get_client(k).y_train) for k in range(2)] == [8, 4]


def test_users_with_few_samples(tmp_path: Path) -> None:
    """One sample cannot be divided: refused, or the user is left out by data.min_samples."""
    write(tmp_path, {"a": make_numbers(0, 10), "b": make_numbers(1, 1), "c": make_numbers(2, 3)})
    with pytest.raises(DataError, match=r"1 row of client b \(data\.min_samples=2 leaves such"):
        load_data(LeafSettings(path=str(tmp_path)), 1)
    assert load_data(LeafSettings(path=str(tmp_path), min_samples=2), 1).num_clients == 2
    with pytest.raises(DataError, match=r"^data\.min_samples must be at most .* 10, got 11$"):
        load_data(LeafSettings(path=str(tmp_path), min_samples=11), 1)


def test_user_without_samples(tmp_path: Path) -> None:
    """A user who has nothing is no client."""
    write(tmp_path, {"a": make_numbers(0, 10), "b": ([], [])})
    assert load_data(LeafSettings(path=str(tmp_path)), 1).num_clients == 1


def test_user_without_test_samples(tmp_path: Path) -> None:
    """A test set of some users only is refused, with the user."""
    write(tmp_path / "train", {"a": make_numbers(0, 10), "b": make_numbers(1, 5)})
    write(tmp_path / "test", {"a": make_numbers(0, 3)})
    with pytest.raises(DataError, match="all or none"):
        load_data(LeafSettings(path=str(tmp_path)), 1)


def test_missing_folder(tmp_path: Path) -> None:
    """A path that leads nowhere, or to no JSON files, is one line."""
    assert_refused(tmp_path / "none", "there is no such folder$")
    assert_refused(tmp_path, "has no JSON files$")
    write(tmp_path / "train", {"a": make_numbers(0, 3)})
    assert_refused(tmp_path, "test has no JSON files$")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "is no JSON: Expecting value"),
        ('{"users": ["a"], "num_sam', "is no JSON: "),
        ("[1, 2]", "lacks users, num_samples, user_data$"),
        ('{"users": [], "user_data": {}}', "lacks num_samples$"),
        ('{"users": [], "num_samples": [], "user_data": {}}', "has no samples$"),
        ('{"users": ["a"], "num_samples": [], "user_data": {}}', "zip"),
        ('{"users": ["a"], "num_samples": [1], "user_data": {}}', "lacks the data of user a$"),
        (
            '{"users": ["a"], "num_samples": [2], "user_data": {"a": {"x": [[1]], "y": [0]}}}',
            "must have 2 samples of user a, got 1 with 1 labels$",
        ),
        (
            '{"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [1], "y": [0]}}}',
            "samples must be lists of equally many finite numbers",
        ),
        (
            '{"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [[NaN]], "y": [0]}}}',
            "samples must be lists of equally many finite numbers",
        ),
        (
            '{"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [[1]], "y": [-1]}}}',
            r"where data\.num_classes is null, got -1 but no 0$",
        ),
        (
            '{"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [[1]], "y": [0.5]}}}',
            r"labels must be whole numbers, got 0\.5$",
        ),
        (
            (
                '{"users": ["a"], "num_samples": [2], "user_data": {"a": {"x": [[1], [2]], '
                '"y": [0, 999]}}}'
            ),
            r"where data\.num_classes is null, got 999 but no 1$",
        ),
        (
            '{"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": ["ab"], "y": ["ab"]}}}',
            "the label of a text must be one character, got 'ab'$",
        ),
        (
            '{"users": ["a", "a"], "num_samples": [1, 1], "user_data": {}}',
            "must name each user once$",
        ),
        (
            (
                '{"users": ["a"], "num_samples": [2], "user_data": {"a": {"x": ["ab", "c"], '
                '"y": ["a", "b"]}}}'
            ),
            r"sequences must be equally long, got lengths \[1, 2\]$",
        ),
    ],
)
def test_foreign_files(tmp_path: Path, content: str, reason: str) -> None:
    """A file that is cut short, of another kind or does not fit together is one line."""
    (tmp_path / "data.json").write_text(content)
    assert_refused(tmp_path, reason)
