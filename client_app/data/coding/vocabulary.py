"""Map tokens to numbers."""

import re
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

PADDING_ID = 0
UNKNOWN_ID = 1
SEPARATOR_ID = 2
NUM_RESERVED_IDS = 3
UNSPACED_SCRIPTS = (
    r"\u0e00-\u0eff"  # Thai and Lao
    r"\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f"  # Burmese
    r"\u1780-\u17ff\u19e0-\u19ff"  # Khmer
    r"\u1950-\u19df\u1a20-\u1aaf"  # Tai
    r"\u2e80-\u2fff\u3005-\u3007\u3021-\u3029\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"  # Han
    r"\U00020000-\U0003ffff"  # Han, rare characters
    r"\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f"  # Japanese
    r"\u3100-\u312f\u31a0-\u31bf"  # Bopomofo
)
"""Letters and marks of languages without blanks between words, as ranges of a pattern."""
_LETTER = rf"[{UNSPACED_SCRIPTS}](?:(?!\w)[{UNSPACED_SCRIPTS}])*"  # with the marks on it
_WORD = re.compile(rf"{_LETTER}|[^\W{UNSPACED_SCRIPTS}]+(?:'[^\W{UNSPACED_SCRIPTS}]+)*|[^\w\s]")


def split_words(text: str) -> list[str]:
    """Return the words and punctuation marks of a text, in lower case.

    In a script without blanks between words, each letter is a word, with its marks. So does BERT's
    tokenizer (Devlin et al. 2019) for Chinese characters.
    """
    return _WORD.findall(text.lower())


def split_characters(text: str) -> list[str]:
    """Return the characters of a text, in lower case, each run of blanks as one."""
    return list(" ".join(text.lower().split()))


def select_common_tokens(tokens: Iterable[str], size: int) -> list[str]:
    """Return the ``size`` most common tokens, equally common ones in alphabetical order."""
    counts = Counter(tokens)
    return sorted(counts, key=lambda token: (-counts[token], token))[:size]


class Vocabulary:
    """Token numbers: 0 is padding, 1 any unknown token.

    Parameters
    ----------
    tokens : sequence of str
        The known tokens, numbered from 2.
    """

    def __init__(self, tokens: Sequence[str]) -> None:
        self.tokens = tuple(tokens)
        self._ids = {token: i for i, token in enumerate(tokens, 2)}

    def __len__(self) -> int:
        """Return the number of different numbers, including 0 and 1."""
        return 2 + len(self._ids)

    def get_id(self, token: str) -> int:
        """Return the number of a token."""
        return self._ids.get(token, UNKNOWN_ID)

    def encode(self, tokens: Iterable[str]) -> list[int]:
        """Return the numbers of tokens."""
        return [self.get_id(token) for token in tokens]


def hash_token(token: str, size: int) -> int:
    """Return a number in 3 .. size - 1 that depends only on the token, by CRC-32.

    Clients need not agree on a vocabulary, nor reveal their tokens to build one; different tokens
    may share a number. 0 is padding, 1 unused, 2 separates texts.
    """
    return NUM_RESERVED_IDS + zlib.crc32(token.encode()) % (size - NUM_RESERVED_IDS)


def hash_texts(
    texts: Sequence[Sequence[str]], length: int, size: int, tokens: str = "words"
) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Return the hashed tokens of all rows, (n, length), padded with 0, and a line on cut texts.

    Parameters
    ----------
    texts : sequence of sequence of str
        One or more texts of every row, (texts, n). Each has an equal part of the length.
    length : int
        Number of tokens of a row.
    size : int
        Number of different tokens; see ``hash_token``.
    tokens : str
        ``words`` or ``characters``.
    """
    split = split_words if tokens == "words" else split_characters
    # Every text but the last is followed by a separator.
    tokens_each = (length - (len(texts) - 1)) // len(texts)
    x = np.full((len(texts[0]), length), PADDING_ID, dtype=np.int32)
    lengths = np.empty((len(texts[0]), len(texts)), dtype=np.int64)
    for row, row_texts in enumerate(zip(*texts, strict=True)):
        ids: list[int] = []
        for index, text in enumerate(row_texts):
            words = split(text)
            lengths[row, index] = len(words)
            ids += [SEPARATOR_ID] * bool(ids) + [
                hash_token(word, size) for word in words[:tokens_each]
            ]
        x[row, : len(ids)] = ids
    return x, describe_cut_texts(lengths, tokens_each, length, tokens)


def describe_cut_texts(
    lengths: NDArray[np.int64], limit: int, length: int, unit: str
) -> tuple[str, ...]:
    """Return a line on the texts that are cut, or none.

    Parameters
    ----------
    lengths : array of int
        The number of tokens of each text, (n, texts).
    limit : int
        The largest number that is not cut.
    length : int
        ``data.length``.
    unit : str
        The kind of tokens.
    """
    count = int((lengths > limit).sum())
    if not count:
        return ()
    parts = f" for {lengths.shape[1]} texts" if lengths.shape[1] > 1 else ""
    verb = "is" if count == 1 else "are"
    line = (
        f"{count:,} of {lengths.size:,} texts {verb} longer than {limit} {unit} and cut there "
        f"(data.length={length}{parts}); the longest has {lengths.max():,}"
    )
    return (line,)
