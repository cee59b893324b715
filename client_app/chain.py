"""Gradients in closed form of convolutional networks that are a chain of layers.

Automatic differentiation records every operation and gives each gradient memory of its own. Here
each layer keeps what its gradient needs, calls the kernels of torch directly, and the gradient of
a fully connected layer is added by the product that computes it.

Shapes: b samples in a batch; c channels, images of h x w: (b, c, h, w); u units: (b, u); sound of
length l: (b, c, l).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, cast

import torch
from torch import nn
from torch.nn import functional

from client_app.dropout import GivenDropout
from client_app.models.celeba_cnn import CelebaCNN
from client_app.models.cnn import CNN
from client_app.models.m5 import M5, RowConvolution, SoundAsImage, channels_last
from client_app.models.small_cnn import SmallCNN
from client_app.tasks import CrossEntropy, Task

aten = torch.ops.aten
Tensors = Sequence[torch.Tensor]

OF_SOUND = 3  # axes of the weights of sound's convolutions
POSITIONS = (0, 2, 3)  # the axes of images but that of their channels


class Link(Protocol):
    """One layer: a forward pass, and the backward pass of the same batch."""

    def forward(self, x: torch.Tensor, weights: Tensors) -> torch.Tensor:
        """Return the layer's output; ``x`` is the layer's to keep, and not to change."""

    def backward(
        self, slope: torch.Tensor, weights: Tensors, into: Tensors, *, first: bool
    ) -> torch.Tensor:
        """Add the gradient of the layer's weights to ``into``; return that of its input.

        ``slope`` is the gradient of the output. ``into`` may be ``weights``. Of the ``first``
        layer with weights nobody needs the gradient of the input, and any tensor may be returned.
        """


class Convolution:
    """z = W * x + b with the strides, padding and groups of the layer.

    Sound is an image of one row, and its layers have weights (c', c, k) for (c', c, 1, k).
    """

    def __init__(self, layer: nn.Conv2d | RowConvolution, places: tuple[int, ...]) -> None:
        self._places = places
        self._geometry: tuple[Any, ...] = (layer.stride, layer.padding, layer.dilation)
        if isinstance(layer, RowConvolution):
            self._geometry = layer.geometry
        self._groups = layer.groups
        self._x = torch.empty(0)

    def forward(self, x: torch.Tensor, weights: Tensors) -> torch.Tensor:
        """Return z (b, c', h', w')."""
        self._x = x
        weight, bias = (weights[i] for i in self._places)
        z: torch.Tensor = aten.convolution(
            x, _of_images(weight), bias, *self._geometry, False, [0, 0], self._groups
        )
        return z

    def backward(
        self, slope: torch.Tensor, weights: Tensors, into: Tensors, *, first: bool
    ) -> torch.Tensor:
        """Add both gradients, and return that of x."""
        weight, bias = self._places
        below, of_weight, of_bias = aten.convolution_backward(
            *(slope, self._x, _of_images(weights[weight]), list(weights[bias].shape)),
            *(*self._geometry, False, [0, 0], self._groups, [not first, True, True]),
        )
        _of_images(into[weight]).add_(of_weight)
        into[bias].add_(of_bias)
        return slope if first else below


def _of_images(weight: torch.Tensor) -> torch.Tensor:
    """Return the weights (c', c, h, w) of a convolution of images, those of sound with one row."""
    return weight.unsqueeze(2) if weight.ndim == OF_SOUND else weight


class WaveformConvolution(Convolution):
    """The first convolution of a waveform, which has one channel.

    Row i of X (b w', k) is what the kernel sees at position i, and row i of S (b w', c') is the
    slope there. The gradient of the weights is S^T X: for one channel in the layout of the others
    torch's own kernel takes five times as long.
    """

    def __init__(self, layer: RowConvolution, places: tuple[int, ...]) -> None:
        super().__init__(layer, places)
        (self._size,), (self._stride,) = layer.kernel_size, layer.stride

    def backward(
        self, slope: torch.Tensor, weights: Tensors, into: Tensors, *, first: bool
    ) -> torch.Tensor:
        """Add both gradients; nobody needs that of x, which is an input."""
        weight, bias = (into[i] for i in self._places)
        seen = self._x.flatten(start_dim=1).unfold(1, self._size, self._stride)
        slopes = slope.movedim(1, -1).flatten(end_dim=2)
        weight.squeeze(1).addmm_(slopes.t(), seen.flatten(end_dim=1))
        bias.add_(slopes.sum(dim=0))
        return slope


class Dense:
    """z = x W^T + b."""

    def __init__(self, layer: nn.Linear, places: tuple[int, ...]) -> None:
        self._places = places
        self._x = torch.empty(0)

    def forward(self, x: torch.Tensor, weights: Tensors) -> torch.Tensor:
        """Return z (b, u') of x (b, u)."""
        self._x = x
        weight, bias = (weights[i] for i in self._places)
        return torch.addmm(bias, x, weight.t())

    def backward(
        self, slope: torch.Tensor, weights: Tensors, into: Tensors, *, first: bool
    ) -> torch.Tensor:
        """Add both gradients, and return that of x."""
        weight, bias = self._places
        below = slope if first else slope @ weights[weight]  # before into, which may be weights
        into[weight].addmm_(slope.t(), self._x)
        into[bias].add_(slope.sum(dim=0))
        return below


class Normalisation:
    """Batch normalisation by the batch at hand, which moves the running statistics."""

    def __init__(self, layer: nn.BatchNorm1d | nn.BatchNorm2d, places: tuple[int, ...]) -> None:
        self._layer = layer
        self._places = places
        self._saved: tuple[torch.Tensor, ...] = ()

    def forward(self, x: torch.Tensor, weights: Tensors) -> torch.Tensor:
        """Return the normalised x, scaled and shifted."""
        layer = self._layer
        weight, bias = (weights[i] for i in self._places)
        if layer.num_batches_tracked is not None:
            layer.num_batches_tracked.add_(1)
        z, mean, inverse = aten.native_batch_norm(
            x, weight, bias, layer.running_mean, layer.running_var, True, layer.momentum, layer.eps
        )
        self._saved = (x, mean, inverse)
        return cast("torch.Tensor", z)

    def backward(
        self, slope: torch.Tensor, weights: Tensors, into: Tensors, *, first: bool
    ) -> torch.Tensor:
        """Add both gradients, and return that of x."""
        weight, bias = self._places
        x, mean, inverse = self._saved
        below, of_weight, of_bias = aten.native_batch_norm_backward(
            *(slope, x, weights[weight], None, None, mean, inverse, True, self._layer.eps),
            [not first, True, True],
        )
        into[weight].add_(of_weight)
        into[bias].add_(of_bias)
        return slope if first else below


class SoundNormalisation:
    """Batch normalisation of sound, whose statistics are exact to rounding.

    With the channels last torch's kernels add all numbers of a channel one after the other. Where
    a recording is silent they are alike and round alike: of 40,000 numbers in a batch of spoken
    digits the mean was off by 0.002 standard deviations.
    """

    def __init__(self, layer: nn.BatchNorm2d, places: tuple[int, ...]) -> None:
        self._layer: Any = layer
        self._places = places
        self._saved: tuple[torch.Tensor, ...] = ()

    def forward(self, x: torch.Tensor, weights: Tensors) -> torch.Tensor:
        """Return w (x - m) / s + b, with the mean m and the standard deviation s of channels."""
        mean = x.mean(POSITIONS, keepdim=True)
        centred = x - mean
        variance = centred.square().mean(POSITIONS, keepdim=True)
        count = x.numel() // mean.numel()
        self._layer.num_batches_tracked.add_(1)
        for running, now in (
            (self._layer.running_mean, mean),
            (self._layer.running_var, variance * (count / (count - 1))),
        ):
            running.lerp_(now.flatten(), self._layer.momentum)
        inverse = (variance + self._layer.eps).rsqrt()
        self._saved = (centred, inverse)
        weight, bias = (weights[i].view_as(mean) for i in self._places)
        return torch.addcmul(bias, centred, weight * inverse)

    def backward(
        self, slope: torch.Tensor, weights: Tensors, into: Tensors, *, first: bool
    ) -> torch.Tensor:
        """Add both gradients, and return that of x."""
        weight, bias = self._places
        centred, inverse = self._saved
        mean = slope.mean(POSITIONS, keepdim=True)
        along = (slope * centred).mean(POSITIONS, keepdim=True) * inverse
        scale = weights[weight].view_as(inverse) * inverse
        below = torch.addcmul(-scale * mean, centred, -scale * along * inverse)
        below.addcmul_(slope, scale)
        count = slope.numel() // mean.numel()
        into[weight].add_(along.flatten(), alpha=count)
        into[bias].add_(mean.flatten(), alpha=count)
        return below


class Pooling:
    """The maximum of each window."""

    def __init__(self, layer: nn.MaxPool2d) -> None:
        sizes = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
        self._sizes = [[size, size] if isinstance(size, int) else list(size) for size in sizes]
        self._ceil = layer.ceil_mode
        self._saved: tuple[torch.Tensor, ...] = ()

    def forward(self, x: torch.Tensor, weights: Tensors) -> torch.Tensor:
        """Return the maxima (b, c, h', w')."""
        z, places = aten.max_pool2d_with_indices(x, *self._sizes, self._ceil)
        self._saved = (x, places)
        return cast("torch.Tensor", z)

    def backward(
        self, slope: torch.Tensor, weights: Tensors, into: Tensors, *, first: bool
    ) -> torch.Tensor:
        """Return the slope where the maxima were."""
        x, places = self._saved
        below: torch.Tensor = aten.max_pool2d_with_indices_backward(
            slope, x, *self._sizes, self._ceil, places
        )
        return below


class Rectifier:
    """max(x, 0), in the memory of x: no layer before it looks at its own output again."""

    def __init__(self) -> None:
        self._z = torch.empty(0)

    def forward(self, x: torch.Tensor, weights: Tensors) -> torch.Tensor:
        """Return x, changed."""
        self._z = x.clamp_(min=0)
        return self._z

    def backward(
        self, slope: torch.Tensor, weights: Tensors, into: Tensors, *, first: bool
    ) -> torch.Tensor:
        """Return the slope where x was positive."""
        below: torch.Tensor = aten.threshold_backward(slope, self._z, 0)
        return below


class Flattening:
    """Images (b, c, h, w) as rows (b, c h w), in this order whatever their layout is."""

    def __init__(self) -> None:
        self._shape = torch.Size()

    def forward(self, x: torch.Tensor, weights: Tensors) -> torch.Tensor:
        """Return the rows."""
        self._shape = x.shape
        return x.flatten(start_dim=1)

    def backward(
        self, slope: torch.Tensor, weights: Tensors, into: Tensors, *, first: bool
    ) -> torch.Tensor:
        """Return the slope in the layout of the convolutions."""
        return slope.view(self._shape).contiguous(memory_format=torch.channels_last)


class Imaging:
    """Sound (b, c, l) as images of one row (b, c, 1, l)."""

    def forward(self, x: torch.Tensor, weights: Tensors) -> torch.Tensor:
        """Return the images."""
        return channels_last(x)

    def backward(
        self, slope: torch.Tensor, weights: Tensors, into: Tensors, *, first: bool
    ) -> torch.Tensor:
        """Return the slope as that of sound."""
        return slope.squeeze(2)


class Averaging:
    """The mean of each channel (b, c, 1, 1)."""

    def __init__(self) -> None:
        self._shape = torch.Size()

    def forward(self, x: torch.Tensor, weights: Tensors) -> torch.Tensor:
        """Return the means."""
        self._shape = x.shape
        return x.mean(dim=(2, 3), keepdim=True)

    def backward(
        self, slope: torch.Tensor, weights: Tensors, into: Tensors, *, first: bool
    ) -> torch.Tensor:
        """Return a share of the slope at each position, in the layout of the convolutions."""
        share = slope / (self._shape[2] * self._shape[3])
        return share.expand(self._shape).contiguous(memory_format=torch.channels_last)


class Mask:
    """Dropout whose mask is given."""

    def __init__(self, layer: GivenDropout) -> None:
        self._layer = layer

    def forward(self, x: torch.Tensor, weights: Tensors) -> torch.Tensor:
        """Return x times the batch's mask."""
        return x * self._layer.mask

    def backward(
        self, slope: torch.Tensor, weights: Tensors, into: Tensors, *, first: bool
    ) -> torch.Tensor:
        """Return the slope times the mask."""
        return slope * self._layer.mask


WITH_WEIGHTS = (Convolution, Dense, Normalisation, SoundNormalisation)


class Chain:
    """Closed form of the gradient of a chain of layers with cross entropy on its logits.

    With p the softmax of the logits, v_i the weight of sample i and v their sum, the slope of the
    mean loss by the logits is v_i (p - onehot(y)) / v. Each layer takes the slope of its output to
    that of its input.

    Parameters
    ----------
    links : sequence of Link
        The layers, from input to logits.
    class_weights : tensor (c,), optional
        Of the cross entropy.
    """

    def __init__(self, links: Sequence[Link], class_weights: torch.Tensor | None) -> None:
        self._links = links
        self._class_weights = class_weights
        weighted = [isinstance(link, WITH_WEIGHTS) for link in links]
        self._first = weighted.index(True)

    def add(
        self, x: torch.Tensor, y: torch.Tensor, weights: Tensors, into: Tensors, factor: float
    ) -> None:
        """Add ``factor`` times the gradient of the batch's mean loss to ``into``.

        Parameters
        ----------
        x, y : tensor
            Inputs, (b, c, h, w) or (b, c, l), and labels (b,).
        weights, into : sequence of tensor
            One for each parameter, and where its gradient goes; may be the same.
        factor : float
            Of the gradient: minus the rate for a step of plain gradient descent.
        """
        for link in self._links:
            x = link.forward(x, weights)
        slope = functional.softmax(x, dim=1)
        rows = y.unsqueeze(1)
        slope.scatter_add_(1, rows, slope.new_full((1, 1), -1.0).expand(rows.shape))
        if self._class_weights is None:
            slope *= factor / len(y)
        else:
            v = self._class_weights.to(slope)[y]
            total = v.sum()
            slope *= (v * (factor / torch.where(total == 0, 1, total))).unsqueeze(1)
        for i in range(len(self._links) - 1, self._first - 1, -1):
            slope = self._links[i].backward(slope, weights, into, first=i == self._first)


def chain_of(model: nn.Module, task: Task) -> Chain | None:
    """Return the closed form for ``model`` on a CPU, None where there is none.

    There is one for the models that are chains of known layers, with cross entropy, all of whose
    parameters train and which draw no numbers from torch's generators.
    """
    if type(task) is not CrossEntropy or not all(p.requires_grad for p in model.parameters()):
        return None
    layers = list(_layers(model))
    kinds = _LINKS_OF_SOUND if type(model) is M5 else _LINKS
    if not layers or any(type(layer) not in kinds for layer in layers):
        return None
    if any(parameter.device.type != "cpu" for parameter in model.parameters()):
        return None
    places = {id(parameter): i for i, parameter in enumerate(model.parameters())}
    links = [
        kinds[type(layer)](layer, tuple(places[id(p)] for p in layer.parameters()))
        for layer in layers
    ]
    return Chain(_pooled_first(links), task.class_weights)


def _layers(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers of a model that is a chain, but those that do nothing in training."""
    parts: Sequence[nn.Module] = []
    if type(model) is SmallCNN:
        parts = [*model.features, model.logits]
    elif type(model) is M5:
        parts = [model.image, *model.features, model.logits]
    elif type(model) in {CNN, CelebaCNN}:
        parts = list(cast("CNN | CelebaCNN", model).layers)
    for layer in parts:
        if not (isinstance(layer, nn.Dropout | GivenDropout) and layer.p == 0):
            yield layer


def _row_convolution(layer: RowConvolution, places: tuple[int, ...]) -> Convolution:
    of_waveform = layer.in_channels == 1 and layer.padding == (0,)
    return (WaveformConvolution if of_waveform else Convolution)(layer, places)


_LINKS: Mapping[type[nn.Module], Callable[[Any, tuple[int, ...]], Link]] = {
    nn.Conv2d: Convolution,
    nn.Linear: Dense,
    nn.BatchNorm1d: Normalisation,
    nn.BatchNorm2d: Normalisation,
    nn.MaxPool2d: lambda layer, _: Pooling(layer),
    nn.ReLU: lambda *_: Rectifier(),
    nn.Flatten: lambda *_: Flattening(),
    GivenDropout: lambda layer, _: Mask(layer),
}
_LINKS_OF_SOUND: Mapping[type[nn.Module], Callable[[Any, tuple[int, ...]], Link]] = {
    **_LINKS,
    SoundAsImage: lambda *_: Imaging(),
    RowConvolution: _row_convolution,
    nn.BatchNorm2d: SoundNormalisation,
    nn.AdaptiveAvgPool2d: lambda *_: Averaging(),
}


def _pooled_first(links: Sequence[Link]) -> list[Link]:
    """Let maxima come before rectifiers: the order does not matter, and fewer numbers are left."""
    order = list(links)
    for i in range(len(order) - 1):
        if isinstance(order[i], Rectifier) and isinstance(order[i + 1], Pooling):
            order[i], order[i + 1] = order[i + 1], order[i]
    return order
