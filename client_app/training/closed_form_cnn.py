"""Compute gradients in closed form for convolutional networks that are a chain of layers.

Automatic differentiation records every operation and allocates memory for each gradient. Here each
layer stores what its gradient needs and calls torch's kernels directly, and the product that
computes the gradient of a fully connected layer also adds it.

Shapes: b samples in a batch; c channels, images of h x w: (b, c, h, w); u units: (b, u); sound of
length l: (b, c, l).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, cast

import torch
from torch import nn
from torch.nn import functional

from client_app.losses import CrossEntropy, Task
from client_app.models.celeba_cnn import CelebaCNN
from client_app.models.cnn import CNN
from client_app.models.m5 import M5, RowConv1d, SoundAsImage, to_channels_last
from client_app.models.small_cnn import SmallCNN
from client_app.training.dropout import MaskedDropout

aten = torch.ops.aten
Tensors = Sequence[torch.Tensor]

NDIM_SOUND_WEIGHT = 3  # axes of the weights of sound's convolutions
NON_CHANNEL_AXES = (0, 2, 3)  # all axes of images except that of the channels


class Layer(Protocol):
    """One layer: a forward pass, and the backward pass of the same batch."""

    def forward(self, x: torch.Tensor, weights: Tensors) -> torch.Tensor:
        """Return the layer's output; the layer may store ``x`` but not change it."""

    def backward(
        self, grad_output: torch.Tensor, weights: Tensors, grads: Tensors, *, first: bool
    ) -> torch.Tensor:
        """Add the gradient of the layer's weights to ``grads``; return that of its input.

        ``grad_output`` is the gradient of the output. ``grads`` may be ``weights``. The ``first``
        layer with weights may return any tensor, because its input's gradient is not used.
        """


class Conv2dGrad:
    """z = W * x + b with the strides, padding and groups of the layer.

    Sound is an image of one row, and its layers have weights (c', c, k) for (c', c, 1, k).
    """

    def __init__(self, layer: nn.Conv2d | RowConv1d, indices: tuple[int, ...]) -> None:
        self._indices = indices
        self._geometry: tuple[Any, ...] = (layer.stride, layer.padding, layer.dilation)
        if isinstance(layer, RowConv1d):
            self._geometry = layer.geometry
        self._groups = layer.groups
        self._x = torch.empty(0)

    def forward(self, x: torch.Tensor, weights: Tensors) -> torch.Tensor:
        """Return z (b, c', h', w')."""
        self._x = x
        weight, bias = (weights[i] for i in self._indices)
        z: torch.Tensor = aten.convolution(
            x, _to_image_weight(weight), bias, *self._geometry, False, [0, 0], self._groups
        )
        return z

    def backward(
        self, grad_output: torch.Tensor, weights: Tensors, grads: Tensors, *, first: bool
    ) -> torch.Tensor:
        """Add both gradients, and return that of x."""
        weight, bias = self._indices
        below, of_weight, of_bias = aten.convolution_backward(
            *(grad_output, self._x, _to_image_weight(weights[weight]), list(weights[bias].shape)),
            *(*self._geometry, False, [0, 0], self._groups, [not first, True, True]),
        )
        _to_image_weight(grads[weight]).add_(of_weight)
        grads[bias].add_(of_bias)
        return grad_output if first else below


def _to_image_weight(weight: torch.Tensor) -> torch.Tensor:
    """Return the weights (c', c, h, w) of a convolution of images, those of sound with one row."""
    return weight.unsqueeze(2) if weight.ndim == NDIM_SOUND_WEIGHT else weight


class WaveformConvGrad(Conv2dGrad):
    """The first convolution of a waveform, which has one channel.

    Row i of X (b w', k) is the kernel's window at position i, and row i of S (b w', c') is the
    slope there. The gradient of the weights is S^T X. For one channel, torch's kernel takes five
    times as long in the layout of the other layers.
    """

    def __init__(self, layer: RowConv1d, indices: tuple[int, ...]) -> None:
        super().__init__(layer, indices)
        (self._size,), (self._stride,) = layer.kernel_size, layer.stride

    def backward(
        self, grad_output: torch.Tensor, weights: Tensors, grads: Tensors, *, first: bool
    ) -> torch.Tensor:
        """Add both gradients; that of x is not needed, because x is the model's input."""
        weight, bias = (grads[i] for i in self._indices)
        windows = self._x.flatten(start_dim=1).unfold(1, self._size, self._stride)
        slopes = grad_output.movedim(1, -1).flatten(end_dim=2)
        weight.squeeze(1).addmm_(slopes.t(), windows.flatten(end_dim=1))
        bias.add_(slopes.sum(dim=0))
        return grad_output


class LinearGrad:
    """z = x W^T + b."""

    def __init__(self, layer: nn.Linear, indices: tuple[int, ...]) -> None:
        self._indices = indices
        self._x = torch.empty(0)

    def forward(self, x: torch.Tensor, weights: Tensors) -> torch.Tensor:
        """Return z (b, u') of x (b, u)."""
        self._x = x
        weight, bias = (weights[i] for i in self._indices)
        return torch.addmm(bias, x, weight.t())

    def backward(
        self, grad_output: torch.Tensor, weights: Tensors, grads: Tensors, *, first: bool
    ) -> torch.Tensor:
        """Add both gradients, and return that of x."""
        weight, bias = self._indices
        # Before grads changes, because it may be weights.
        below = grad_output if first else grad_output @ weights[weight]
        grads[weight].addmm_(grad_output.t(), self._x)
        grads[bias].add_(grad_output.sum(dim=0))
        return below


class BatchNormGrad:
    """Batch normalization by the current batch, which updates the running statistics."""

    def __init__(self, layer: nn.BatchNorm1d | nn.BatchNorm2d, indices: tuple[int, ...]) -> None:
        self._layer = layer
        self._indices = indices
        self._saved: tuple[torch.Tensor, ...] = ()

    def forward(self, x: torch.Tensor, weights: Tensors) -> torch.Tensor:
        """Return the normalized x, scaled and shifted."""
        layer = self._layer
        weight, bias = (weights[i] for i in self._indices)
        if layer.num_batches_tracked is not None:
            layer.num_batches_tracked.add_(1)
        z, mean, inverse = aten.native_batch_norm(
            x, weight, bias, layer.running_mean, layer.running_var, True, layer.momentum, layer.eps
        )
        self._saved = (x, mean, inverse)
        return cast("torch.Tensor", z)

    def backward(
        self, grad_output: torch.Tensor, weights: Tensors, grads: Tensors, *, first: bool
    ) -> torch.Tensor:
        """Add both gradients, and return that of x."""
        weight, bias = self._indices
        x, mean, inverse = self._saved
        below, of_weight, of_bias = aten.native_batch_norm_backward(
            *(grad_output, x, weights[weight], None, None, mean, inverse, True, self._layer.eps),
            [not first, True, True],
        )
        grads[weight].add_(of_weight)
        grads[bias].add_(of_bias)
        return grad_output if first else below


class SoundBatchNormGrad:
    """Batch normalization of sound, whose statistics are exact to rounding.

    With the channels last, torch's kernels add all numbers of a channel one after the other. Where
    a recording is silent, equal numbers round in the same direction: the mean of 40,000 numbers in
    a batch of spoken digits was off by 0.002 standard deviations.
    """

    def __init__(self, layer: nn.BatchNorm2d, indices: tuple[int, ...]) -> None:
        self._layer: Any = layer
        self._indices = indices
        self._saved: tuple[torch.Tensor, ...] = ()

    def forward(self, x: torch.Tensor, weights: Tensors) -> torch.Tensor:
        """Return w (x - m) / s + b, with m and s the channels' means and standard deviations."""
        mean = x.mean(NON_CHANNEL_AXES, keepdim=True)
        centered = x - mean
        variance = centered.square().mean(NON_CHANNEL_AXES, keepdim=True)
        count = x.numel() // mean.numel()
        self._layer.num_batches_tracked.add_(1)
        for running, now in (
            (self._layer.running_mean, mean),
            (self._layer.running_var, variance * (count / (count - 1))),
        ):
            running.lerp_(now.flatten(), self._layer.momentum)
        inverse = (variance + self._layer.eps).rsqrt()
        self._saved = (centered, inverse)
        weight, bias = (weights[i].view_as(mean) for i in self._indices)
        return torch.addcmul(bias, centered, weight * inverse)

    def backward(
        self, grad_output: torch.Tensor, weights: Tensors, grads: Tensors, *, first: bool
    ) -> torch.Tensor:
        """Add both gradients, and return that of x."""
        weight, bias = self._indices
        centered, inverse = self._saved
        mean = grad_output.mean(NON_CHANNEL_AXES, keepdim=True)
        along = (grad_output * centered).mean(NON_CHANNEL_AXES, keepdim=True) * inverse
        scale = weights[weight].view_as(inverse) * inverse
        below = torch.addcmul(-scale * mean, centered, -scale * along * inverse)
        below.addcmul_(grad_output, scale)
        count = grad_output.numel() // mean.numel()
        grads[weight].add_(along.flatten(), alpha=count)
        grads[bias].add_(mean.flatten(), alpha=count)
        return below


class MaxPool2dGrad:
    """The maximum of each window."""

    def __init__(self, layer: nn.MaxPool2d) -> None:
        sizes = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
        self._sizes = [[size, size] if isinstance(size, int) else list(size) for size in sizes]
        self._ceil = layer.ceil_mode
        self._saved: tuple[torch.Tensor, ...] = ()

    def forward(self, x: torch.Tensor, weights: Tensors) -> torch.Tensor:
        """Return the maxima (b, c, h', w')."""
        z, indices = aten.max_pool2d_with_indices(x, *self._sizes, self._ceil)
        self._saved = (x, indices)
        return cast("torch.Tensor", z)

    def backward(
        self, grad_output: torch.Tensor, weights: Tensors, grads: Tensors, *, first: bool
    ) -> torch.Tensor:
        """Return the slope at the positions of the maxima."""
        x, indices = self._saved
        below: torch.Tensor = aten.max_pool2d_with_indices_backward(
            grad_output, x, *self._sizes, self._ceil, indices
        )
        return below


class ReLUGrad:
    """max(x, 0), in the memory of x: no earlier layer reads its output again."""

    def __init__(self) -> None:
        self._z = torch.empty(0)

    def forward(self, x: torch.Tensor, weights: Tensors) -> torch.Tensor:
        """Return x, changed in place."""
        self._z = x.clamp_(min=0)
        return self._z

    def backward(
        self, grad_output: torch.Tensor, weights: Tensors, grads: Tensors, *, first: bool
    ) -> torch.Tensor:
        """Return the slope where x was positive."""
        below: torch.Tensor = aten.threshold_backward(grad_output, self._z, 0)
        return below


class FlattenGrad:
    """Images (b, c, h, w) as rows (b, c h w), in this order for any memory layout."""

    def __init__(self) -> None:
        self._shape = torch.Size()

    def forward(self, x: torch.Tensor, weights: Tensors) -> torch.Tensor:
        """Return the rows."""
        self._shape = x.shape
        return x.flatten(start_dim=1)

    def backward(
        self, grad_output: torch.Tensor, weights: Tensors, grads: Tensors, *, first: bool
    ) -> torch.Tensor:
        """Return the slope in the layout of the convolutions."""
        return grad_output.view(self._shape).contiguous(memory_format=torch.channels_last)


class SoundAsImageGrad:
    """Sound (b, c, l) as images of one row (b, c, 1, l)."""

    def forward(self, x: torch.Tensor, weights: Tensors) -> torch.Tensor:
        """Return the images."""
        return to_channels_last(x)

    def backward(
        self, grad_output: torch.Tensor, weights: Tensors, grads: Tensors, *, first: bool
    ) -> torch.Tensor:
        """Return the slope in the shape of sound."""
        return grad_output.squeeze(2)


class GlobalAvgPoolGrad:
    """The mean of each channel (b, c, 1, 1)."""

    def __init__(self) -> None:
        self._shape = torch.Size()

    def forward(self, x: torch.Tensor, weights: Tensors) -> torch.Tensor:
        """Return the means."""
        self._shape = x.shape
        return x.mean(dim=(2, 3), keepdim=True)

    def backward(
        self, grad_output: torch.Tensor, weights: Tensors, grads: Tensors, *, first: bool
    ) -> torch.Tensor:
        """Return the slope divided among the positions, in the layout of the convolutions."""
        share = grad_output / (self._shape[2] * self._shape[3])
        return share.expand(self._shape).contiguous(memory_format=torch.channels_last)


class DropoutGrad:
    """Dropout whose mask is given."""

    def __init__(self, layer: MaskedDropout) -> None:
        self._layer = layer

    def forward(self, x: torch.Tensor, weights: Tensors) -> torch.Tensor:
        """Return x times the batch's mask."""
        return x * self._layer.mask

    def backward(
        self, grad_output: torch.Tensor, weights: Tensors, grads: Tensors, *, first: bool
    ) -> torch.Tensor:
        """Return the slope times the mask."""
        return grad_output * self._layer.mask


WEIGHTED_LAYERS = (Conv2dGrad, LinearGrad, BatchNormGrad, SoundBatchNormGrad)


class ClosedFormCNN:
    """Gradient, in closed form, of a chain of layers with cross entropy on its logits.

    With p the softmax of the logits, v_i the weight of sample i and v their sum, the slope of the
    mean loss by the logits is v_i (p - onehot(y)) / v. Each layer maps the slope of its output to
    that of its input.

    Parameters
    ----------
    layers : sequence of Layer
        The layers, from input to logits.
    class_weights : tensor (c,), optional
        The weights in the cross entropy.
    """

    def __init__(self, layers: Sequence[Layer], class_weights: torch.Tensor | None) -> None:
        self._layers = layers
        self._class_weights = class_weights
        weighted = [isinstance(layer, WEIGHTED_LAYERS) for layer in layers]
        self._first = weighted.index(True)

    def accumulate(
        self, x: torch.Tensor, y: torch.Tensor, weights: Tensors, grads: Tensors, factor: float
    ) -> None:
        """Add ``factor`` times the gradient of the batch's mean loss to ``grads``.

        Parameters
        ----------
        x, y : tensor
            Inputs, (b, c, h, w) or (b, c, l), and labels (b,).
        weights, grads : sequence of tensor
            The parameters, and where their gradients are added; may be the same.
        factor : float
            Minus the learning rate makes a step of plain gradient descent.
        """
        for layer in self._layers:
            x = layer.forward(x, weights)
        slope = functional.softmax(x, dim=1)
        rows = y.unsqueeze(1)
        slope.scatter_add_(1, rows, slope.new_full((1, 1), -1.0).expand(rows.shape))
        if self._class_weights is None:
            slope *= factor / len(y)
        else:
            v = self._class_weights.to(slope)[y]
            total = v.sum()
            slope *= (v * (factor / torch.where(total == 0, 1, total))).unsqueeze(1)
        for i in range(len(self._layers) - 1, self._first - 1, -1):
            slope = self._layers[i].backward(slope, weights, grads, first=i == self._first)


def build_closed_form_cnn(model: nn.Module, task: Task) -> ClosedFormCNN | None:
    """Return the closed form for ``model`` on a CPU, or None if it has none.

    A model has one if it is a chain of known layers with cross entropy, all its parameters train,
    and it uses none of torch's random generators.
    """
    if type(task) is not CrossEntropy or not all(p.requires_grad for p in model.parameters()):
        return None
    layers = list(_list_layers(model))
    kinds = _SOUND_LAYER_BUILDERS if type(model) is M5 else _LAYER_BUILDERS
    if not layers or any(type(layer) not in kinds for layer in layers):
        return None
    if any(parameter.device.type != "cpu" for parameter in model.parameters()):
        return None
    indices = {id(parameter): i for i, parameter in enumerate(model.parameters())}
    gradient_layers = [
        kinds[type(layer)](layer, tuple(indices[id(p)] for p in layer.parameters()))
        for layer in layers
    ]
    return ClosedFormCNN(_move_pooling_first(gradient_layers), task.class_weights)


def _list_layers(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers of a model that is a chain, without those that do nothing in training."""
    parts: Sequence[nn.Module] = []
    if type(model) is SmallCNN:
        parts = [*model.features, model.logits]
    elif type(model) is M5:
        parts = [model.image, *model.features, model.logits]
    elif type(model) in {CNN, CelebaCNN}:
        parts = list(cast("CNN | CelebaCNN", model).layers)
    for layer in parts:
        if not (isinstance(layer, nn.Dropout | MaskedDropout) and layer.p == 0):
            yield layer


def _build_row_conv(layer: RowConv1d, indices: tuple[int, ...]) -> Conv2dGrad:
    of_waveform = layer.in_channels == 1 and layer.padding == (0,)
    return (WaveformConvGrad if of_waveform else Conv2dGrad)(layer, indices)


_LAYER_BUILDERS: Mapping[type[nn.Module], Callable[[Any, tuple[int, ...]], Layer]] = {
    nn.Conv2d: Conv2dGrad,
    nn.Linear: LinearGrad,
    nn.BatchNorm1d: BatchNormGrad,
    nn.BatchNorm2d: BatchNormGrad,
    nn.MaxPool2d: lambda layer, _: MaxPool2dGrad(layer),
    nn.ReLU: lambda *_: ReLUGrad(),
    nn.Flatten: lambda *_: FlattenGrad(),
    MaskedDropout: lambda layer, _: DropoutGrad(layer),
}
_SOUND_LAYER_BUILDERS: Mapping[type[nn.Module], Callable[[Any, tuple[int, ...]], Layer]] = {
    **_LAYER_BUILDERS,
    SoundAsImage: lambda *_: SoundAsImageGrad(),
    RowConv1d: _build_row_conv,
    nn.BatchNorm2d: SoundBatchNormGrad,
    nn.AdaptiveAvgPool2d: lambda *_: GlobalAvgPoolGrad(),
}


def _move_pooling_first(layers: Sequence[Layer]) -> list[Layer]:
    """Swap max pooling before ReLU: the result is the same, with fewer numbers to rectify."""
    order = list(layers)
    for i in range(len(order) - 1):
        if isinstance(order[i], ReLUGrad) and isinstance(order[i + 1], MaxPool2dGrad):
            order[i], order[i + 1] = order[i + 1], order[i]
    return order
