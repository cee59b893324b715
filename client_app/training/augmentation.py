"""Augment training images at random, each image with separate random numbers.

Shapes: n images with c channels, height h and width w: (n, c, h, w).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from fedquorum.errors import SettingsError
from numpy.typing import NDArray
from torch.nn import functional

from client_app.data.base import Inputs, PixelNormalization, to_device
from client_app.rng import RngFactory

CROP_PADDING = 4
SHARPNESS_FACTOR = 2.0
MAX_BRIGHTNESS_CHANGE = 0.05
MAX_HUE_SHIFT = 0.05
POSTERIZE_BITS = 2
NUM_COLORS = 3

AugmentFn = Callable[[torch.Tensor], torch.Tensor]
RandomNumbers = NDArray[np.generic]


@dataclass(frozen=True)
class Transform:
    """One transformation: it draws random numbers for each image, and applies them.

    ``draw`` returns arrays whose last axis runs over the images. The arrays of several clients are
    concatenated along it, so that all images are transformed at once.
    """

    draw: Callable[[int, np.random.Generator], tuple[RandomNumbers, ...]]
    apply: Callable[..., torch.Tensor]

    def __call__(self, images: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
        """Return the images, transformed by numbers from ``rng``."""
        return self.apply(images, *self.draw(len(images), rng))


def crop_images(images: torch.Tensor, corner: NDArray[np.int64]) -> torch.Tensor:
    """Return the h x w window of each image after padding whose upper left is at ``corner``.

    The padding is 4 zeros on each side: the mean color of normalized images, as in FedAU's
    published code, and black otherwise. ``corner`` (2, n) has row and column, 0 to 8.
    """
    n, c, h, w = images.shape
    top, left = corner[:, :, None]
    rows, columns = top + np.arange(h), left + np.arange(w)  # (n, h), (n, w)
    pixels = rows[:, :, None] * (w + 2 * CROP_PADDING) + columns[:, None, :]  # (n, h, w)
    chosen = to_device(torch.from_numpy(pixels.reshape(n, 1, h * w)), images.device)
    padded = functional.pad(images, (CROP_PADDING,) * 4).flatten(start_dim=2)
    return padded.gather(2, chosen.expand(-1, c, -1)).reshape(n, c, h, w)


def flip_images(images: torch.Tensor, chosen: NDArray[np.bool_]) -> torch.Tensor:
    """Return the images with those ``chosen`` (n,) mirrored left to right."""
    return _apply_where(chosen, lambda rows: rows.flip(-1), images)


@dataclass(frozen=True)
class ColorJitter:
    """The color changes of n images, each array of shape (n,).

    Attributes
    ----------
    sharpened, posterized, equalized : array of bool
        Whether the change is applied.
    brightness : array of float32
        The factor of all pixels.
    hue : array of float32
        Rotation on the color circle; 1 is a full turn.
    hue_first : array of bool
        Whether the hue changes before the brightness.
    """

    sharpened: NDArray[np.bool_]
    brightness: NDArray[np.float32]
    hue: NDArray[np.float32]
    hue_first: NDArray[np.bool_]
    posterized: NDArray[np.bool_]
    equalized: NDArray[np.bool_]

    @classmethod
    def sample(cls, n: int, rng: np.random.Generator) -> "ColorJitter":
        """Sample the changes: flags are true with probability 1/2, amounts are uniform."""
        return cls.from_numbers(*cls.sample_numbers(n, rng))

    @staticmethod
    def sample_numbers(
        n: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """Return four random flags (4, n), and brightness and hue changes (2, n) in [-1, 1)."""
        return rng.random((4, n)) < 1 / 2, rng.uniform(-1, 1, (2, n)).astype(np.float32)

    @classmethod
    def from_numbers(cls, coins: NDArray[np.bool_], amounts: NDArray[np.float32]) -> "ColorJitter":
        """Return the changes for these random numbers."""
        sharpened, hue_first, posterized, equalized = coins
        change, turn = amounts
        return cls(
            sharpened=sharpened,
            brightness=1 + MAX_BRIGHTNESS_CHANGE * change,
            hue=MAX_HUE_SHIFT * turn,
            hue_first=hue_first,
            posterized=posterized,
            equalized=equalized,
        )


def jitter_colors(images: torch.Tensor, jitter: ColorJitter) -> torch.Tensor:
    """Return color images (n, 3, h, w) in [0, 1], changed as ``jitter`` specifies.

    The steps: sharpen by a factor 2; change brightness and hue; posterize to 2 bits; equalize each
    channel's histogram. All of them work on bytes, as torchvision's functions of these names do:
    images become uint8, and finally floating point again, multiples of 1 / 255.
    """
    from torchvision.transforms.v2 import functional as torchvision

    pixels: torch.Tensor = torchvision.to_dtype(images, torch.uint8, scale=True)
    pixels = _apply_where(
        jitter.sharpened, lambda rows: torchvision.adjust_sharpness(rows, SHARPNESS_FACTOR), pixels
    )
    pixels = adjust_brightness(pixels, np.where(jitter.hue_first, np.float32(1), jitter.brightness))
    pixels = adjust_hue(pixels, jitter.hue)
    pixels = adjust_brightness(pixels, np.where(jitter.hue_first, jitter.brightness, np.float32(1)))
    pixels = _apply_where(
        jitter.posterized, lambda rows: torchvision.posterize(rows, POSTERIZE_BITS), pixels
    )
    pixels = _apply_where(jitter.equalized, torchvision.equalize, pixels)
    result: torch.Tensor = torchvision.to_dtype(pixels, images.dtype, scale=True)
    return result


def adjust_brightness(pixels: torch.Tensor, factors: NDArray[np.float32]) -> torch.Tensor:
    """Return uint8 images times ``factors`` (n,), clamped to 255 and truncated.

    torchvision's ``adjust_brightness`` does the same with one factor for all images.
    """
    by_image = to_device(torch.from_numpy(factors), pixels.device)[:, None, None, None]
    return (pixels * by_image).clamp_(0, 255).to(torch.uint8)


def adjust_hue(pixels: torch.Tensor, shifts: NDArray[np.float32]) -> torch.Tensor:
    """Return uint8 color images (n, 3, h, w) with hues rotated by ``shifts`` (n,).

    torchvision's ``adjust_hue`` does the same with one shift for all images; float32 rounding may
    differ by 1 of 255. With hue H in sixths of the circle, value V = max(R, G, B) and
    chroma C = V - min(R, G, B), a channel is

        V - C * clip(min(k, 4 - k), 0, 1),   k = (N + H) mod 6,   N = 5, 3, 1 for R, G, B.
    """
    colors = pixels / 255
    red, green, blue = colors.unbind(1)  # (n, h, w)
    value = colors.amax(1)
    chroma = value - colors.amin(1)
    denominator = torch.where(chroma > 0, chroma, 1)  # gray has no hue
    hue = torch.where(
        value == red,
        (green - blue) / denominator,
        torch.where(
            value == green, (blue - red) / denominator + 2, (red - green) / denominator + 4
        ),
    )
    hue += to_device(torch.from_numpy(6 * shifts), pixels.device)[:, None, None]
    channels = to_device(torch.tensor([5.0, 3.0, 1.0]), pixels.device)[:, None, None]
    k = (hue[:, None] + channels).remainder_(6)  # (n, 3, h, w)
    turned = value[:, None] - chroma[:, None] * torch.minimum(k, 4 - k).clamp_(0, 1)
    # Floor after multiplying by 255.999, not 255, as torchvision converts floats to bytes.
    return (turned * 255.999).to(torch.uint8)


def _apply_where(
    selected: NDArray[np.bool_], change: AugmentFn, images: torch.Tensor
) -> torch.Tensor:
    """Return the images with the ``selected`` ones (n,) changed in one call."""
    rows = to_device(torch.from_numpy(np.flatnonzero(selected)), images.device)
    return images.index_copy(0, rows, change(images[rows]))


crop = Transform(lambda n, rng: (rng.integers(2 * CROP_PADDING + 1, size=(2, n)),), crop_images)
"""Crop a random window of each padded image; all 81 are equally likely."""

flip = Transform(lambda n, rng: (rng.random(n) < 1 / 2,), flip_images)
"""Mirror each image with probability 1/2."""

color_jitter = Transform(
    ColorJitter.sample_numbers,
    lambda images, coins, amounts: jitter_colors(images, ColorJitter.from_numbers(coins, amounts)),
)
"""Random color changes, for images (n, 3, h, w) in [0, 1]."""


def build_input_jitter(scale: PixelNormalization) -> Transform:
    """Return the color jitter for images that are normalized by ``scale``.

    Rounding does not matter: denormalized pixels are multiples of 1 / 255 up to rounding, and
    truncation to bytes happens far from the next whole number.
    """

    def apply_jitter(images: torch.Tensor, *numbers: RandomNumbers) -> torch.Tensor:
        return scale.normalize(color_jitter.apply(scale.denormalize(images), *numbers))

    return Transform(color_jitter.draw, apply_jitter)


_TRANSFORMS: dict[str, tuple[Transform, ...]] = {
    "none": (),
    "crop": (crop,),
    "crop_flip": (crop, flip),
    "cifar100": (color_jitter, crop, flip),
}


class Augmentation:
    """Augment the batches of one or several clients, batch after batch.

    Parameters
    ----------
    name : str
        As in FedAU's published code: ``crop`` on SVHN; ``crop_flip`` on CIFAR-10 and CINIC-10;
        ``cifar100`` on CIFAR-100, color jitter before crop and flip.
    draws : sequence of callable
        One for each client; the purpose ``"augmentation"`` gives its random numbers.
    scale : PixelNormalization, optional
        The normalization of the images, if they are normalized.

    Notes
    -----
    Each image has its own random numbers, which is the usual reading. FedAU's code hands whole
    batches to torchvision, and so draws once per batch.

    References
    ----------
    Wang and Ji, "A Lightweight Method for Tackling Unknown Participation Statistics in Federated
    Averaging", ICLR 2024; https://github.com/IBM/fedau, config.py.
    """

    def __init__(
        self, name: str, draws: Sequence[RngFactory], scale: PixelNormalization | None = None
    ) -> None:
        self._steps = _TRANSFORMS[name]
        if scale is not None:
            input_jitter = build_input_jitter(scale)
            self._steps = tuple(input_jitter if s is color_jitter else s for s in self._steps)
        self._rngs = [draw("augmentation") for draw in draws]

    def __call__(self, images: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """Return an augmented batch; client i owns the next ``counts[i]`` images."""
        sampled = [
            [step.draw(n, rng) for step in self._steps]
            for n, rng in zip(counts, self._rngs, strict=False)
        ]
        for step, *numbers in zip(self._steps, *sampled, strict=True):
            combined = (np.concatenate(arrays, axis=-1) for arrays in zip(*numbers, strict=True))
            images = step.apply(images, *combined)
        return images


def build_augmentation(
    name: str, get_rng: RngFactory, scale: PixelNormalization | None = None
) -> AugmentFn:
    """Return a function that augments the next batch of one client."""
    joint = Augmentation(name, [get_rng], scale)
    return lambda images: joint(images, [len(images)])


def check_augmentation(
    name: str, inputs: Inputs | torch.Tensor, scale: PixelNormalization | None = None
) -> None:
    """Refuse inputs that the augmentation does not support.

    Parameters
    ----------
    name : str
        As in ``Augmentation``.
    inputs : array or tensor of float32
        A client's inputs (n, *input_shape).
    scale : PixelNormalization, optional
        The normalization of the images, if they are normalized: their pixels were in [0, 1].

    Raises
    ------
    SettingsError
        If ``name`` is not ``none`` and inputs are not (channels, height, width); for
        ``cifar100``, if there are not 3 channels or pixels are not in [0, 1].
    """
    input_shape = tuple(inputs.shape[1:])
    if _TRANSFORMS[name] and len(input_shape) != len(("channels", "height", "width")):
        raise SettingsError(
            "client.augmentation must be none where inputs are no images (channels, height, "
            f"width), got {name} for inputs {input_shape}"
        )
    if color_jitter not in _TRANSFORMS[name]:
        return
    if input_shape[0] != NUM_COLORS:
        raise SettingsError(
            "client.augmentation must be none, crop or crop_flip where images do not have 3 "
            f"color channels, got {name} for inputs {input_shape}"
        )
    if len(inputs) == 0 or scale is not None:
        return
    if float(inputs.min()) < 0 or float(inputs.max()) > 1:
        raise SettingsError(  # without the pixels' range: the server may not see values of data
            "client.augmentation must be none, crop or crop_flip where pixels are not in [0, 1], "
            f"got {name}"
        )
