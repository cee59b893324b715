"""Images with mean 0 and standard deviation 1 in every channel."""

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
    """Return the arrays with (x - mean_c) / sd_c in place of every pixel x of channel c.

    Mean and standard deviation are of all training images of the data set, in [0, 1], as the
    constants are that are published for the usual sets; they are the same for all clients. The
    images become float32 (n, channels, height, width), four times the memory of uint8. What an
    augmentation fills in, zeros, is then the mean color. A channel without any spread keeps its
    scale.

    Parameters
    ----------
    arrays : LabeledArrays
        The data set.
    train_rows : array of int
        Rows that clients train on, which count where the test images are of the same array.

    Returns
    -------
    LabeledArrays
        The data set with normalized images.
    PixelNormalization
        How they were changed.

    Raises
    ------
    SettingsError
        If the samples are no uint8 images, or are read one by one from their files.
    """
    x_train, x_test = arrays.x_train, arrays.x_test
    if not (isinstance(x_train, np.ndarray) and isinstance(x_test, np.ndarray)):
        raise SettingsError(IMAGES_REQUIRED)
    if x_train.dtype != np.uint8:
        raise SettingsError(IMAGES_REQUIRED)
    train, test = to_inputs(x_train), to_inputs(x_test)  # (n, c, h, w), new arrays
    known = train[train_rows] if arrays.x_test is arrays.x_train else train
    mean = known.mean(axis=(0, 2, 3), dtype=np.float64, keepdims=True)
    spread = known.std(axis=(0, 2, 3), dtype=np.float64, keepdims=True)
    spread[spread == 0.0] = 1.0
    center, scale = mean.astype(np.float32), spread.astype(np.float32)
    for images in (train, test):
        np.subtract(images, center, out=images)
        np.divide(images, scale, out=images)
    changed = PixelNormalization(tuple(center.ravel().tolist()), tuple(scale.ravel().tolist()))
    return replace(arrays, x_train=train, x_test=test), changed
