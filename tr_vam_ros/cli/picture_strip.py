"""Pictures below each other, each with a line of text: a video at a glance."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

from tr_vam_ros.errors import InputError

_BAND = 20  # pixels, above each picture
_SIZE = 0.45  # of the letters


def picture_strip(pictures: Sequence[tuple[str, np.ndarray]]) -> np.ndarray:
    """uint8 (h, w, 3) of labelled uint8 pictures; narrower ones are enlarged to the widest."""
    width = max(picture.shape[1] for _, picture in pictures)
    parts = []
    for label, picture in pictures:
        band = np.full((_BAND, width, 3), 32, np.uint8)
        cv2.putText(
            band, label, (4, _BAND - 6), cv2.FONT_HERSHEY_SIMPLEX, _SIZE, (255, 255, 255), 1,
            cv2.LINE_AA,
        )
        height = round(picture.shape[0] * width / picture.shape[1])
        if picture.shape[1] != width:
            picture = cv2.resize(picture, (width, height), interpolation=cv2.INTER_NEAREST)
        parts += [band, picture]
    return np.concatenate(parts)


def evenly_spaced(count: int, wanted: int) -> list[int]:
    """Up to `wanted` different indices of 0..count-1, the first and the last among them."""
    return sorted({round(index) for index in np.linspace(0, count - 1, min(wanted, count))})


def read_picture(path: Path) -> np.ndarray:
    """uint8 (h, w, 3) RGB of a picture file; raises InputError if it is none."""
    data = np.frombuffer(_bytes(path), np.uint8)
    picture = cv2.imdecode(data, cv2.IMREAD_COLOR) if data.size else None
    if picture is None:
        raise InputError(f'image {path}: is no picture that can be read; give a PNG or JPEG file')
    return cv2.cvtColor(picture, cv2.COLOR_BGR2RGB)


def write_picture(path: Path, picture: np.ndarray) -> None:
    """Write uint8 (h, w, 3) RGB as PNG; raises InputError if it cannot be written."""
    _, data = cv2.imencode('.png', cv2.cvtColor(picture, cv2.COLOR_RGB2BGR))
    try:
        path.write_bytes(data.tobytes())
    except OSError as error:
        raise InputError(f'{path}: cannot be written ({error.strerror}); choose another') from error


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            f'image {path}: cannot be read ({error.strerror}); give a PNG or JPEG file'
        ) from error
