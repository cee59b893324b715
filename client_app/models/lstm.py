"""Define the recurrent network of AAggFF's next-token experiments."""

import torch
from torch import nn


class LSTM(nn.Module):
    """Embedding of the tokens, LSTM layers, and the logits of the next token.

    It predicts at every position, from that position and the previous ones; or only after the last
    one, as for the single next character in LEAF's Shakespeare. All initial values are torch's
    own. Each gate has two biases, as in torch and cuDNN; papers count one.

    Parameters
    ----------
    num_tokens : int
        Size of the vocabulary.
    num_classes : int
        Number of logits of a prediction.
    embedding : int
        Size of a token's embedding: 256 for Reddit and 8 for Shakespeare in LEAF.
    hidden : int
        Size of a layer's state.
    layers : int
        Number of LSTM layers.
    every_position : bool
        Whether every position has a prediction.

    References
    ----------
    Hahn et al., Pursuing overall welfare in federated learning through sequential decision making
    (ICML 2024); Caldas et al., LEAF: a benchmark for federated settings (2018).
    """

    def __init__(
        self,
        num_tokens: int,
        num_classes: int,
        embedding: int = 256,
        hidden: int = 256,
        layers: int = 2,
        *,
        every_position: bool = True,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_tokens, embedding)
        self.recurrent = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.logits = nn.Linear(hidden, num_classes)
        self.every_position = every_position

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits (n, length, c), or (n, c), of tokens (n, length)."""
        states, _ = self.recurrent(self.embedding(x))
        logits: torch.Tensor = self.logits(states if self.every_position else states[:, -1])
        return logits
