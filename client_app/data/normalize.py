"""Normalize images to mean 0 and standard deviation 1 in every channel."""

from dataclasses import replace

import numpy as np
from fedquorum.errors import SettingsError
from numpy.typing import NDArray

from client_app.data.base import PixelNormalization, to_inputs
from client_app.data.sources.base import LabeledArrays

IMAGES_REQUIRED = "data.normalize must be false where samples are no images in memory, got true"


def normalize_images(
    arrays: LabeledArrays, train_rows: NDArray[np.int64]
) -> tuple[LabeledArrays, PixelNormalization]:
    """Return the arrays with every pixel x of channel c replaced by (x - mean_c) / sd_c.

    Mean and standard deviation are those of all training images of the data set, in [0, 1], like
    the constants published for the usual sets; they are the same for all clients. The images
    become float32 (n, channels, height, width), four times the memory of uint8. The zeros that an
    augmentation pads with are then the mean color. A constant channel is only shifted.

    Parameters
    ----------
    arrays : LabeledArrays
    train_rows : array of int
        The clients' training rows; only they count if training and test images share an array.

    Returns
    -------
    LabeledArrays
        The data set with normalized images.
    PixelNormalization
        The normalization.

    Raises
    ------
    SettingsError
        If the samples are not uint8 images in memory.
    """
    x_train, x_test = arrays.x_train, arrays.x_test
    if not (isinstance(x_train, np.ndarray) and isinstance(x_test, np.ndarray)):
        raise SettingsError(IMAGES_REQUIRED)
    if x_train.dtype != np.uint8:
        raise SettingsError(IMAGES_REQUIRED)
    train, test = to_inputs(x_train), to_inputs(x_test)  # (n, c, h, w), new arrays
    reference = train[train_rows] if arrays.x_test is arrays.x_train else train
    mean = reference.mean(axis=(0, 2, 3), dtype=np.float64, keepdims=True)
    std = reference.std(axis=(0, 2, 3), dtype=np.float64, keepdims=True)
    std[std == 0.0] = 1.0
    mean32, std32 = mean.astype(np.float32), std.astype(np.float32)
    for images in (train, test):
        np.subtract(images, mean32, out=images)
        np.divide(images, std32, out=images)
    normalization = PixelNormalization(
        tuple(mean32.ravel().tolist()), tuple(std32.ravel().tolist())
    )
    return replace(arrays, x_train=train, x_test=test), normalization
