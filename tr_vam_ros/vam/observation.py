"""Checks of what a policy is given, before it reaches a network."""

from __future__ import annotations

from typing import Any

import numpy as np

from tr_vam_ros.errors import InputError


def check_image(image: Any, size: tuple[int, int]) -> np.ndarray:
    """`image`; raises InputError unless it is a uint8 array (*size, 3)."""
    _check_array('image', image, (*size, 3), np.uint8, 'resize and convert to rgb8 first')
    return image


def check_proprio(proprio: Any, dim: int) -> np.ndarray:
    """`proprio`; raises InputError unless it is a finite float32 array (dim,)."""
    _check_array('proprio', proprio, (dim,), np.float32, 'convert with the embodiment first')
    if not np.isfinite(proprio).all():
        bad = np.flatnonzero(~np.isfinite(proprio)).tolist()
        raise InputError(
            f'proprio: got values that are not finite at {bad}, expected finite numbers; '
            'check the joint sensors'
        )
    return proprio


def _check_array(name: str, value: Any, shape: tuple[int, ...], dtype: type, remedy: str) -> None:
    expected = f'expected {np.dtype(dtype).name} {shape}; {remedy}'
    if not isinstance(value, np.ndarray):
        raise InputError(f'{name}: got {type(value).__name__}, {expected}')
    if value.dtype != dtype or value.shape != shape:
        raise InputError(f'{name}: got {value.dtype.name} {value.shape}, {expected}')
