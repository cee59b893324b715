"""Define DistilBERT, from transformers."""

from pathlib import Path
from typing import Any

import torch
from fedquorum.errors import SettingsError, to_one_line
from torch import nn

PAD_TOKEN_ID = 0
MIN_POSITIONS = 512


class DistilBERT(nn.Module):
    """A classifier of texts: the encoder, and two layers on its first position.

    ``transformers.DistilBertForSequenceClassification``; padding is not attended to.

    Parameters
    ----------
    num_tokens : int
        Size of the vocabulary; token 0 is padding.
    num_classes : int
        Number of logits.
    length : int
        Tokens of a text.
    layers, width, heads : int
        Sizes of the encoder; the base model has 6, 768 and 12. Hidden layers are 4 times as wide.
    dropout : float
        Fraction of numbers dropped in training, also in attention and before the logits (there
        transformers' default is 0.2).
    pretrained : str, optional
        A folder with published weights; the tokens must come from its tokenizer.

    Raises
    ------
    SettingsError
        If transformers is not installed, the sizes are inconsistent, or the weights are missing or
        have other sizes.

    References
    ----------
    Sanh et al., DistilBERT, a distilled version of BERT (2019).
    """

    def __init__(
        self,
        num_tokens: int,
        num_classes: int,
        length: int,
        *,
        layers: int = 6,
        width: int = 768,
        heads: int = 12,
        dropout: float = 0.1,
        pretrained: str | None = None,
    ) -> None:
        super().__init__()
        transformers = _import_transformers()
        if width % heads:
            raise SettingsError(
                f"model.width must be a multiple of model.heads ({heads}), got {width}"
            )
        config = transformers.DistilBertConfig(
            vocab_size=num_tokens,
            n_layers=layers,
            dim=width,
            hidden_dim=4 * width,
            n_heads=heads,
            dropout=dropout,
            attention_dropout=dropout,
            seq_classif_dropout=dropout,
            max_position_embeddings=max(MIN_POSITIONS, length),
            pad_token_id=PAD_TOKEN_ID,
            num_labels=num_classes,
        )
        model_class = transformers.DistilBertForSequenceClassification
        self.classifier: nn.Module = (
            model_class(config)
            if pretrained is None
            else _load_pretrained(model_class, config, pretrained)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits (n, num_classes) of tokens (n, length)."""
        output = self.classifier(input_ids=x, attention_mask=(x != PAD_TOKEN_ID).long())
        logits: torch.Tensor = output.logits
        return logits


def _import_transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise SettingsError(
            "model=distilbert needs the package transformers (pip install transformers), which is "
            "not installed"
        ) from None
    return transformers


def _load_pretrained(model_class: Any, config: Any, path: str) -> nn.Module:
    requirement = (
        f"model.pretrained must be a folder with a DistilBERT of these sizes, got {path!r}"
    )
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise SettingsError(f"{requirement}: there is no such folder")
    try:
        model: nn.Module = model_class.from_pretrained(folder, config=config, local_files_only=True)
    except Exception as error:  # a foreign file may raise anything
        raise SettingsError(f"{requirement}: {to_one_line(error)}") from None
    return model.float()  # transformers keeps the type of the file, such as bfloat16
