"""Read a coding from a model card, or infer it from arrays."""

from collections.abc import Mapping
from typing import Any

from client_app.data.base import LazyArray, PixelNormalization, Samples
from client_app.data.coding.arrays import ArrayCoding, DeviceCoding
from client_app.data.coding.base import Coding
from client_app.data.coding.images import CHANNELS, ImageCoding
from client_app.data.coding.table import TableCoding
from client_app.data.coding.text import SequenceCoding, WordCoding

CODINGS: Mapping[str, type[Coding]] = {
    coding.kind: coding
    for coding in (ArrayCoding, DeviceCoding, ImageCoding, SequenceCoding, TableCoding, WordCoding)
}


def read_coding(given: Mapping[str, Any]) -> Coding:
    """Return the coding in a model card.

    Raises
    ------
    KeyError, TypeError, ValueError
        If the card is damaged.
    """
    return CODINGS[given["kind"]].from_json(given)


def infer_coding(
    samples: Samples | LazyArray,
    num_tokens: int | None = None,
    normalization: PixelNormalization | None = None,
) -> Coding:
    """Return the coding of data that is arrays already, from its samples (n, ...)."""
    shape, dtype = tuple(samples.shape[1:]), samples.dtype.name
    modes = [mode for mode, channels in CHANNELS.items() if shape[2:] == channels]
    if dtype == "uint8" and len(shape) > 1 and modes:
        return ImageCoding((shape[0], shape[1]), modes[0], "exact", normalization)
    return ArrayCoding(shape, dtype, num_tokens, normalization)
