"""Tokenize texts for a published model, with transformers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fedquorum.errors import DataError, to_one_line
from numpy.typing import NDArray

from client_app.data.coding.vocabulary import PADDING_ID, describe_cut_texts


def tokenize_texts(
    texts: Sequence[Sequence[str]], length: int, folder: str
) -> tuple[NDArray[np.int32], int, tuple[str, ...]]:
    """Return the tokens of all rows, (n, length), the vocabulary's size, and a line on cut texts.

    Rows are padded with 0. Two texts are a pair to the tokenizer: the longer one is cut first.

    Parameters
    ----------
    texts : sequence of sequence of str
        One or two texts of every row, (texts, n).
    length : int
        Number of tokens of a row, including the tokenizer's special tokens.
    folder : str
        A folder with a tokenizer as transformers saves it; nothing is downloaded.

    Raises
    ------
    DataError
        If transformers is not installed, the folder has no tokenizer whose padding is 0, or its
        special tokens fill a row.
    """
    tokenizer = _load_tokenizer(folder)
    marks = tokenizer.num_special_tokens_to_add(pair=len(texts) > 1)
    if length < marks + len(texts):
        raise DataError(
            f"data.length must be at least {marks + len(texts)} for {len(texts)} texts and the "
            f"{marks} marks of the tokenizer in {folder}, got {length}"
        )
    columns = [*map(list, texts)]
    encoded = tokenizer(*columns, padding="max_length", truncation=True, max_length=length)
    whole = tokenizer(*columns, truncation=False, verbose=False)
    lengths = np.array([[len(ids)] for ids in whole["input_ids"]])
    warnings = describe_cut_texts(lengths, length, length, "tokens of data.tokenizer")
    return np.array(encoded["input_ids"], dtype=np.int32), len(tokenizer), warnings


def _load_tokenizer(folder: str) -> Any:
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise DataError(
            "data.tokenizer must be null where transformers is not installed (pip install "
            f"transformers), got {folder!r}"
        ) from None
    path = Path(folder).expanduser()
    requirement = (
        f"data.tokenizer must be a folder with a tokenizer of transformers, got {folder!r}"
    )
    if not path.is_dir():
        raise DataError(f"{requirement}: there is no such folder")
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except Exception as error:  # a foreign file may raise anything
        raise DataError(f"{requirement}: {to_one_line(error)}") from None
    if tokenizer.pad_token_id != PADDING_ID:
        raise DataError(f"{requirement}: its padding is {tokenizer.pad_token_id}, not {PADDING_ID}")
    return tokenizer
