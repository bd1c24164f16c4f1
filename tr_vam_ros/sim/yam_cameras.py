"""The three D405 cameras of the cell: where they are mounted and what their lens sees."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.spatial.transform import Rotation

from tr_vam_ros.embodiments import yam
from tr_vam_ros.errors import InputError

# Position (m) and quaternion (w, x, y, z) of the optical frame: x right, y down, z forward.
# Top camera in `left_base`, wrist cameras in the flange's frame (station model).
TOP_MOUNT = ((-0.166495, -0.305, 0.954321), (0.18301, -0.68301, 0.68301, -0.18301))
WRIST_MOUNT = ((0.0, -0.070435, 0.077006), (-0.976295, 0.216445, 0.0, 0.0))
# The D405's colour field of view is 87 x 58 degrees at 16:9 (data sheet). Cropping to the policy's
# 4:3 leaves the vertical angle as it is.
VERTICAL_FOV = 58.0  # degrees


@dataclass(frozen=True, slots=True)
class CameraModel:
    """Pinhole intrinsics of an undistorted view: matrix float64 (3, 3), pixels."""

    matrix: np.ndarray
    width: int
    height: int


def add_cameras(spec) -> None:
    """Adds `top`, `left_wrist` and `right_wrist` to a mujoco.MjSpec of the cell."""
    _add(spec.worldbody, 'top', *TOP_MOUNT)
    for arm in yam.ARMS:
        _add(spec.body(f'{arm}_flange'), f'{arm}_wrist', *WRIST_MOUNT)


def camera_model(width: int, height: int) -> CameraModel:
    """Intrinsics of any of the three at a picture size in pixels."""
    focal = height / 2 / np.tan(np.radians(VERTICAL_FOV) / 2)
    matrix = np.array([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1.0]])
    return CameraModel(matrix, width, height)


def camera_number(name: str) -> int:
    """Index of a camera in `yam.CAMERAS`; raises InputError on an unknown name."""
    if name not in yam.CAMERAS:
        raise InputError(f'camera {name!r}: unknown; choose one of {", ".join(yam.CAMERAS)}')
    return yam.CAMERAS.index(name)


def _add(body, name: str, position, optical) -> None:
    # MuJoCo's cameras look along -z with y up: half a turn about x from an optical frame.
    w, x, y, z = optical
    x, y, z, w = (Rotation.from_quat([x, y, z, w]) * Rotation.from_euler('x', np.pi)).as_quat()
    body.add_camera(name=name, pos=position, quat=[w, x, y, z], fovy=VERTICAL_FOV)
