"""One camera's picture at the size of a view: the same function for training and on the robot."""

from __future__ import annotations

import cv2
import numpy as np

from tr_vam_ros.vam.config import RESIZE_MODES

__all__ = ['RESIZE_MODES', 'fit', 'is_undistorted']


def is_undistorted(picture: np.ndarray, width: int, height: int) -> bool:
    """Whether a picture has the shape of the view, so that every mode gives the same."""
    return picture.shape[1] * height == picture.shape[0] * width


def fit(picture: np.ndarray, width: int, height: int, mode: str) -> np.ndarray:
    """A picture, uint8 (h, w, 3), as uint8 (height, width, 3), by averaging over areas.

    mode: of `RESIZE_MODES`, for a picture of another aspect. 'stretch' distorts and keeps all,
        'crop' keeps the middle, 'pad' keeps all between black bars.
    """
    rows, columns = picture.shape[:2]
    if (rows, columns) == (height, width):
        return picture
    if mode == 'stretch' or is_undistorted(picture, width, height):
        return _resized(picture, width, height)
    if mode == 'crop':
        # The largest part in the middle that has the view's aspect.
        keep_columns = min(columns, round(rows * width / height))
        keep_rows = min(rows, round(columns * height / width))
        top, left = (rows - keep_rows) // 2, (columns - keep_columns) // 2
        part = picture[top : top + keep_rows, left : left + keep_columns]
        return _resized(part, width, height)
    if mode != 'pad':
        raise ValueError(f'resize mode {mode!r}: one of {", ".join(RESIZE_MODES)}')
    scale = min(width / columns, height / rows)
    inner_width = min(width, max(1, round(columns * scale)))
    inner_height = min(height, max(1, round(rows * scale)))
    padded = np.zeros((height, width, 3), np.uint8)
    top, left = (height - inner_height) // 2, (width - inner_width) // 2
    inner = _resized(picture, inner_width, inner_height)
    padded[top : top + inner_height, left : left + inner_width] = inner
    return padded


def _resized(picture: np.ndarray, width: int, height: int) -> np.ndarray:
    smaller = width <= picture.shape[1] and height <= picture.shape[0]
    # INTER_AREA averages where it shrinks; where it enlarges it repeats pixels.
    how = cv2.INTER_AREA if smaller else cv2.INTER_LINEAR
    return cv2.resize(picture, (width, height), interpolation=how)
