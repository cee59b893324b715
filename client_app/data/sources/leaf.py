"""Read LEAF's data sets from its JSON files, with one client for each user."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fedquorum.errors import DataError, to_one_line
from numpy.typing import NDArray

from client_app.data.base import IGNORE_INDEX, Targets
from client_app.data.coding.vocabulary import (
    PADDING_ID,
    UNKNOWN_ID,
    Vocabulary,
    select_common_tokens,
)
from client_app.data.sources.base import (
    LabeledArrays,
    build_pooled_arrays,
    count_classes,
)
from conf.schema.data import LeafSettings

LEAF_KEYS = ("users", "num_samples", "user_data")
LEAF_PADDING = "<PAD>"


def load_leaf_arrays(settings: LeafSettings) -> LabeledArrays:
    """Return the samples of the JSON files below ``data.path``, user by user.

    The folder has ``train`` and ``test``, each with JSON files of ``users``, ``num_samples`` and
    ``user_data``; or JSON files of all data, without a test set. Users are numbered in alphabetical
    order. The files determine the kind of sample:

    - numbers with a class, as in FEMNIST and Synthetic: float32 (n, d), with classes from 0 to
      ``data.num_classes`` - 1, without gaps if that is null;
    - a text with the next character, as in Shakespeare: characters, int32 (n, length), with the
      next one as the class;
    - comments, each of sequences of tokens, with ``target_tokens`` and ``count_tokens``, as in
      Reddit: int32 (n, length) with the next token at every position that counts.

    Tokens are the ``data.vocabulary_size`` most common ones of the training set (characters: all of
    them); 0 is padding and 1 any other token. In LEAF a predicted unknown token is never correct;
    here positions with an unknown target have no target.

    Raises
    ------
    DataError
        If ``data.path`` does not lead to such files.
    """
    path = Path(settings.path).expanduser().resolve()
    try:
        return _read(path, settings)
    except Exception as error:  # foreign JSON may raise anything
        raise DataError(
            "data.path must be a folder with LEAF's JSON files, in train and test or all in one, "
            f"got {path}: {to_one_line(error) or type(error).__name__}"
        ) from None


@dataclass(frozen=True)
class _Split:
    """The samples of one split, with the label and the user of each."""

    x: list[Any]
    y: list[Any]
    users: list[str]


def _read(path: Path, settings: LeafSettings) -> LabeledArrays:
    if not path.is_dir():
        raise ValueError("there is no such folder")
    if not (path / "train").is_dir():
        return _build_arrays([_read_split(path)], settings)
    return _build_arrays([_read_split(path / "train"), _read_split(path / "test")], settings)


def _read_split(folder: Path) -> _Split:
    split = _Split([], [], [])
    files = sorted(folder.glob("*.json"))
    if not files:
        raise ValueError(f"{folder} has no JSON files")
    for file in files:
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{file} is no JSON: {to_one_line(error)}") from None
        missing = [key for key in LEAF_KEYS if not isinstance(content, dict) or key not in content]
        if missing:
            raise ValueError(f"{file} lacks {', '.join(missing)}")
        if len(set(content["users"])) < len(content["users"]):
            raise ValueError(f"{file} must name each user once")
        for user, count in zip(content["users"], content["num_samples"], strict=True):
            data = content["user_data"].get(user)
            if data is None:
                raise ValueError(f"{file} lacks the data of user {user}")
            if not len(data["x"]) == len(data["y"]) == count:
                raise ValueError(
                    f"{file} must have {count} samples of user {user}, got {len(data['x'])} with "
                    f"{len(data['y'])} labels"
                )
            x, y = _flatten_user(data["x"], data["y"])
            split.x.extend(x)
            split.y.extend(y)
            split.users.extend([str(user)] * len(x))
    if not split.x:
        raise ValueError(f"{folder} has no samples")
    return split


def _flatten_user(x: list[Any], y: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return a user's samples and labels; for comments those of their sequences."""
    if not y or not isinstance(y[0], dict):
        return x, y
    targets = [sequence for label in y for sequence in label["target_tokens"]]
    counts = [sequence for label in y for sequence in label["count_tokens"]]
    tokens = [sequence for comment in x for sequence in comment]
    return tokens, list(zip(targets, counts, strict=True))


def _build_arrays(splits: Sequence[_Split], settings: LeafSettings) -> LabeledArrays:
    names = {user: i for i, user in enumerate(sorted({u for split in splits for u in split.users}))}
    clients = [np.array([names[u] for u in split.users], dtype=np.int64) for split in splits]
    num_tokens: int | None = None
    if isinstance(splits[0].y[0], tuple):
        vocabulary = Vocabulary(
            select_common_tokens(
                (token for s in splits[0].x for token in s if token != LEAF_PADDING),
                settings.vocabulary_size - 2,
            )
        )
        samples = [_encode_sequences(split, vocabulary) for split in splits]
        num_tokens = num_classes = len(vocabulary)
    elif isinstance(splits[0].x[0], str):
        characters = Vocabulary(sorted(_collect_characters(splits[0])))
        samples = [_encode_texts(split, characters) for split in splits]
        num_tokens = num_classes = len(characters)
    else:
        samples = [_encode_numbers(split) for split in splits]
        num_classes = count_classes(settings.num_classes, *(y for _, y in samples))
    if num_tokens is not None and settings.num_classes is not None:
        raise ValueError(
            "its samples are texts, whose classes are the tokens: data.num_classes must be null, "
            f"got {settings.num_classes}"
        )
    others: dict[str, Any] = {
        "client_train": clients[0],
        "client_names": tuple(names),
        "num_tokens": num_tokens,
    }
    if len(splits) == 1:
        return build_pooled_arrays(*samples[0], num_classes, **others)
    return LabeledArrays(*samples[0], *samples[1], num_classes, client_test=clients[1], **others)


def _encode_numbers(split: _Split) -> tuple[NDArray[Any], Targets]:
    x = np.array(split.x, dtype=np.float32)
    wrong = [label for label in split.y if isinstance(label, float) and not label.is_integer()]
    if wrong:
        raise ValueError(f"labels must be whole numbers, got {wrong[0]}")
    labels = np.array([int(label) for label in split.y], dtype=np.int64)
    if x.ndim == 1 or not np.isfinite(x).all():
        raise ValueError("samples must be lists of equally many finite numbers, texts or comments")
    return x, labels


def _collect_characters(split: _Split) -> set[str]:
    found = Counter[str]()
    for text in (*split.x, *split.y):
        found.update(text)
    return set(found)


def _encode_texts(split: _Split, vocabulary: Vocabulary) -> tuple[NDArray[Any], Targets]:
    _check_lengths(split.x)
    wrong = [label for label in split.y if len(label) != 1]
    if wrong:
        raise ValueError(f"the label of a text must be one character, got {wrong[0]!r}")
    next_ones = np.array([vocabulary.encode([label])[0] for label in split.y], dtype=np.int64)
    return np.array([vocabulary.encode(text) for text in split.x], dtype=np.int32), next_ones


def _encode_sequences(split: _Split, vocabulary: Vocabulary) -> tuple[NDArray[Any], Targets]:
    _check_lengths(split.x)
    padded = (
        [PADDING_ID if token == LEAF_PADDING else vocabulary.get_id(token) for token in sequence]
        for sequence in split.x
    )
    x = np.array(list(padded), dtype=np.int32)
    y = np.array([vocabulary.encode(targets) for targets, _ in split.y], dtype=np.int64)
    counts = np.array([counted for _, counted in split.y], dtype=np.int64)
    if not x.shape == y.shape == counts.shape:
        raise ValueError(
            f"tokens, target_tokens and count_tokens must be equally long, got {x.shape}, "
            f"{y.shape} and {counts.shape}"
        )
    y[(counts == 0) | (y == UNKNOWN_ID)] = IGNORE_INDEX
    return x, y


def _check_lengths(sequences: Iterable[Sequence[Any]]) -> None:
    lengths = sorted({len(sequence) for sequence in sequences})
    if len(lengths) != 1 or lengths == [0]:
        raise ValueError(f"sequences must be equally long, got lengths {lengths}")
