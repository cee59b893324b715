"""From tokens to numbers."""

import re
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence

PADDING = 0
UNKNOWN = 1
SEPARATOR = 2
RESERVED = 3
_WORD = re.compile(r"\w+(?:'\w+)*|[^\w\s]")


def words(text: str) -> list[str]:
    """Return the words and punctuation marks of a text, in lower case."""
    return _WORD.findall(text.lower())


def common_tokens(tokens: Iterable[str], size: int) -> list[str]:
    """Return the ``size`` most common tokens, of equally common ones the alphabet's first."""
    counts = Counter(tokens)
    return sorted(counts, key=lambda token: (-counts[token], token))[:size]


class Vocabulary:
    """Tokens by number: 0 is padding, 1 any token that is not among them.

    Parameters
    ----------
    tokens : sequence of str
        Those that have a number, from 2.
    """

    def __init__(self, tokens: Sequence[str]) -> None:
        self._ids = {token: i for i, token in enumerate(tokens, 2)}

    def __len__(self) -> int:
        """Return how many numbers there are, with 0 and 1."""
        return 2 + len(self._ids)

    def id(self, token: str) -> int:
        """Return the number of a token."""
        return self._ids.get(token, UNKNOWN)

    def ids(self, tokens: Iterable[str]) -> list[int]:
        """Return the numbers of tokens."""
        return [self.id(token) for token in tokens]


def hashed_id(token: str, size: int) -> int:
    """Return a number in 3 .. size - 1 that follows from the token alone, by CRC-32.

    No vocabulary has to be agreed on, or learned from what clients say; different tokens may share
    a number. 0 is padding, 1 unused, 2 separates texts.
    """
    return RESERVED + zlib.crc32(token.encode()) % (size - RESERVED)
