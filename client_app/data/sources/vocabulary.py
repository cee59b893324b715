"""Map tokens to numbers."""

import re
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence

PADDING_ID = 0
UNKNOWN_ID = 1
SEPARATOR_ID = 2
NUM_RESERVED_IDS = 3
_WORD = re.compile(r"\w+(?:'\w+)*|[^\w\s]")


def split_words(text: str) -> list[str]:
    """Return the words and punctuation marks of a text, in lower case."""
    return _WORD.findall(text.lower())


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
