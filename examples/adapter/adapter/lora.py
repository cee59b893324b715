"""Adapt linear layers by low-rank matrices.

Hu, Shen, Wallis, Allen-Zhu, Li, Wang, Wang and Chen, "LoRA: Low-Rank Adaptation of Large Language
Models", ICLR 2022, equation 3.
"""

import math

import torch
from torch import nn


class LowRank(nn.Module):
    """h = W_0 x + (alpha / r) B A x: W_0 (d, k) is frozen, A (r, k) and B (d, r) are trained.

    B begins as zeros, so the first h is that of W_0.
    """

    def __init__(self, frozen: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.scale = alpha / rank
        self.A = nn.Parameter(torch.empty(rank, frozen.in_features))
        self.B = nn.Parameter(torch.zeros(frozen.out_features, rank))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return h, shape (n, d), of x, shape (n, k)."""
        return self.frozen(x) + self.scale * (x @ self.A.T @ self.B.T)


def add_adapters(model: nn.Module, rank: int, alpha: float = 16.0) -> nn.Module:
    """Freeze a model, and add an adapter to each of its linear layers."""
    model.requires_grad_(False)
    linear = [(m, name, c) for m in model.modules() for name, c in m.named_children()]
    for parent, name, child in linear:
        if isinstance(child, nn.Linear):
            setattr(parent, name, LowRank(child, rank, alpha))
    return model


def get_adapter(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the trained parameters, which are all that messages contain."""
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


def load_adapter(model: nn.Module, adapter: dict[str, torch.Tensor]) -> None:
    """Load an adapter into a model with the frozen parameters."""
    unknown = model.load_state_dict(adapter, strict=False).unexpected_keys
    if unknown or adapter.keys() != get_adapter(model).keys():
        raise ValueError(f"not the adapter of this model: {sorted(adapter)}")
