"""The weighted sum of clients' updates, made where they train."""

from collections.abc import Sequence

import torch

from client_app.measurements import Arrays


class UpdateSum:
    """sum_k a_k (x_k - x) over clients' models x_k, in float64; those with NaN or Inf are left out.

    Parameters
    ----------
    start : list of array
        x, the model that all of them received.
    device : torch.device
        Where the sum is made.
    """

    def __init__(self, start: Arrays, device: torch.device) -> None:
        self._start = [torch.from_numpy(array).to(device, torch.float64) for array in start]
        self._total = [torch.zeros_like(array) for array in self._start]

    def add(self, models: Sequence[torch.Tensor], factors: Sequence[float]) -> list[bool]:
        """Add clients' updates, and return which of them are finite and so in the sum.

        Parameters
        ----------
        models : sequence of tensor
            Of each array those of m clients, (m, *shape).
        factors : sequence of float
            a_k, (m,).
        """
        finite = torch.stack([m.reshape(len(m), -1).isfinite().all(dim=1) for m in models]).all(
            dim=0
        )
        finite_factors = torch.tensor(factors, dtype=torch.float64, device=finite.device)[finite]
        for total, model, array in zip(self._total, models, self._start, strict=True):
            total.add_(torch.tensordot(finite_factors, model[finite].double() - array, dims=1))
        return [bool(each) for each in finite.tolist()]

    @property
    def arrays(self) -> Arrays:
        """The sum so far, float64."""
        return [tensor.cpu().numpy() for tensor in self._total]
