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


def check_frozen_rows(rows: Any, horizon: int, dim: int) -> np.ndarray:
    """`rows`; raises InputError unless it is a finite float array (f, dim), f up to `horizon`."""
    rows = np.asarray(rows)
    if rows.ndim != 2 or rows.shape[1] != dim or len(rows) > horizon or rows.dtype.kind != 'f':
        raise InputError(
            f'frozen rows: got {rows.dtype.name} {rows.shape}, expected float (f, {dim}) with f at '
            f'most {horizon}; send rows of this policy\'s own chunks'
        )
    if not np.isfinite(rows).all():
        raise InputError('frozen rows: got values that are not finite; send rows that are executed')
    return rows


def _check_array(name: str, value: Any, shape: tuple[int, ...], dtype: type, remedy: str) -> None:
    expected = f'expected {np.dtype(dtype).name} {shape}; {remedy}'
    if not isinstance(value, np.ndarray):
        raise InputError(f'{name}: got {type(value).__name__}, {expected}')
    if value.dtype != dtype or value.shape != shape:
        raise InputError(f'{name}: got {value.dtype.name} {value.shape}, {expected}')
