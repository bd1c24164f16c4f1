"""What a chunk must be before any of it reaches an arm. The trajectory controller does not check."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tr_vam_ros.embodiments import yam
from tr_vam_ros.errors import InputError


def checked_rows(
    joint_names: Sequence[str], horizon: int, period: float, actions: Sequence[float]
) -> np.ndarray:
    """The chunk's rows in the order of `yam.JOINT_NAMES`, float64 (horizon, 14), model units.

    Raises InputError on names, shape, period or values that are not what the robot expects: the
    chunk is refused whole.
    """
    names = list(joint_names)
    if sorted(names) != sorted(yam.JOINT_NAMES):
        unknown = sorted(set(names) - set(yam.JOINT_NAMES))
        missing = sorted(set(yam.JOINT_NAMES) - set(names))
        raise InputError(
            f'action chunk: joint names must be the 14 of the YAM, each once; missing {missing}, '
            f'unknown {unknown}, {len(names)} given: use a checkpoint made for this embodiment'
        )
    if horizon < yam.EXECUTED_ROWS:
        raise InputError(
            f'action chunk: {horizon} rows, but {yam.EXECUTED_ROWS} are executed per replan; '
            'use a checkpoint with a longer horizon'
        )
    values = np.asarray(actions, dtype=np.float64)
    if values.size != horizon * len(names):
        raise InputError(
            f'action chunk: {values.size} values for {horizon} rows of {len(names)} joints; '
            'the policy must send horizon x joints values'
        )
    if not np.isclose(period, yam.ROW_PERIOD, rtol=1e-3):
        raise InputError(
            f'action chunk: period {period} s, but the rows of the YAM are {yam.ROW_PERIOD:.4f} s '
            'apart; use a checkpoint made for this embodiment'
        )
    rows = values.reshape(horizon, len(names))
    if not np.isfinite(rows).all():
        row, column = np.argwhere(~np.isfinite(rows))[0]
        raise InputError(
            f'action chunk: row {row + 1}, {names[column]} is not a finite number; '
            'refused whole: check the checkpoint and its statistics'
        )
    return rows[:, [names.index(name) for name in yam.JOINT_NAMES]]


def clamped_rows(rows: np.ndarray) -> tuple[np.ndarray, bool]:
    """Rows inside the command limits, and whether any value had to be moved by over 1e-6."""
    inside = np.clip(rows, yam.COMMAND_LOWER, yam.COMMAND_UPPER)
    return inside, bool((np.abs(inside - rows) > 1e-6).any())
