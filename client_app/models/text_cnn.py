"""Define a small convolutional network for texts."""

import torch
from torch import nn

KERNEL_WIDTHS = (3, 4, 5)
PADDING_INDEX = 0


class TextCNN(nn.Module):
    """Embedding of the tokens, convolutions over 3, 4 and 5 of them, their maxima, and the logits.

    Each of the three has ``channels`` features, a ReLU, and the maximum over all positions;
    dropout comes before the logits. The convolutions pad both ends, so that one token is enough.
    The embedding of padding is and stays 0. All initial values are torch's own.

    Parameters
    ----------
    num_tokens : int
        Size of the vocabulary; token 0 is padding.
    num_classes : int
        Number of logits.
    embedding : int
        Size of a token's embedding: 300 in the paper.
    channels : int
        Features of each width: 100 in the paper.
    dropout : float
        Fraction of numbers dropped in training, below 1: 0.5 in the paper.

    References
    ----------
    Kim, Convolutional neural networks for sentence classification (EMNLP 2014), CNN-rand.
    """

    def __init__(
        self,
        num_tokens: int,
        num_classes: int,
        embedding: int = 64,
        channels: int = 64,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_tokens, embedding, padding_idx=PADDING_INDEX)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(embedding, channels, width, padding=width - 1) for width in KERNEL_WIDTHS
        )
        self.dropout = nn.Dropout(dropout)
        self.logits = nn.Linear(len(KERNEL_WIDTHS) * channels, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits (n, num_classes) of tokens (n, length)."""
        embedded = self.embedding(x).transpose(1, 2)  # (n, embedding, length)
        features = [convolve(embedded).relu().amax(dim=2) for convolve in self.convolutions]
        logits: torch.Tensor = self.logits(self.dropout(torch.cat(features, dim=1)))
        return logits
