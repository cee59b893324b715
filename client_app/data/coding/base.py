"""Define the interface of a coding."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class EncodedRows:
    """Rows as a model's inputs.

    Attributes
    ----------
    inputs : array
        (n, *input_shape), float32, or int64 for tokens.
    labels : sequence
        The label of each row in a table of predictions: its index, its path, or its number.
    notes : tuple of str
        What a reader of the predictions should know, one sentence each.
    last : array of int64, optional
        (n,), the position of the last token of each text, for a model of next tokens.
    """

    inputs: NDArray[Any]
    labels: Sequence[Any]
    notes: tuple[str, ...] = ()
    last: NDArray[np.int64] | None = None


class Coding(ABC):
    """How rows become a model's inputs. Training and prediction share it.

    A coding is part of the model card, so it consists of JSON values, and needs no training data.
    """

    kind: ClassVar[str]
    """The coding's name in a model card."""

    scaling: Any = None
    """The scales of the clients' numbers, for a coding that has such."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return the coding as JSON values; ``from_json`` restores it."""

    @classmethod
    @abstractmethod
    def from_json(cls, given: Mapping[str, Any]) -> Self:
        """Return the coding in a model card.

        Raises
        ------
        KeyError, TypeError, ValueError
            If the card is damaged.
        """

    @abstractmethod
    def encode(self, rows: Any, client: int | str | None = None) -> EncodedRows:
        """Return rows as inputs.

        Parameters
        ----------
        rows : Any
            The rows in the form that people have them; see the class.
        client : int or str, optional
            The id or the name of the client whose rows they are.

        Raises
        ------
        DataError
            If the rows are not as in training.
        """
