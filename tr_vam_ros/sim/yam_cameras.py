"""The three D405 cameras of the cell: where they are mounted, what their lens sees, their noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tr_vam_ros.embodiments import yam
from tr_vam_ros.errors import InputError
from tr_vam_ros.sim.rendering import import_mujoco

mujoco = import_mujoco()

# Position (m) and quaternion (w, x, y, z) of the optical frame: x right, y down, z forward.
# Top camera in `left_base`, wrist cameras in the flange's frame (station model).
TOP_MOUNT = ((-0.166495, -0.305, 0.954321), (0.18301, -0.68301, 0.68301, -0.18301))
WRIST_MOUNT = ((0.0, -0.070435, 0.077006), (-0.976295, 0.216445, 0.0, 0.0))
# The D405's colour field of view is 87 x 58 degrees at 16:9 (data sheet). We assume that its
# 640x480, of which the policy's 224x168 is a reduction, is a crop of the sides: the vertical angle
# stays, the horizontal one becomes 73 degrees. A calibrated camera will differ by a degree or so.
VERTICAL_FOV = 58.0  # degrees
# MuJoCo's cameras look along -z with y up: half a turn about x from an optical frame.
_FROM_OPTICAL = np.array((0.0, 1.0, 0.0, 0.0))
# Of 255. As with a real sensor no picture comes twice, so a frozen one shows.
NOISE_LEVELS = 2


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
    """Intrinsics of any of the three at a picture size in pixels, square pixels.

    Pixel (u, v) covers u - 0.5 to u + 0.5, as in ROS and OpenCV: the optical axis meets the
    picture at ((width - 1) / 2, (height - 1) / 2).
    """
    focal = height / 2 / np.tan(np.radians(VERTICAL_FOV) / 2)
    matrix = np.array(
        [[focal, 0.0, (width - 1) / 2], [0.0, focal, (height - 1) / 2], [0.0, 0.0, 1.0]]
    )
    return CameraModel(matrix, width, height)


def camera_number(name: str) -> int:
    """Index of a camera in `yam.CAMERAS`; raises InputError on an unknown name."""
    if name not in yam.CAMERAS:
        raise InputError(f'camera {name!r}: unknown; choose one of {", ".join(yam.CAMERAS)}')
    return yam.CAMERAS.index(name)


def add_noise(picture: np.ndarray, seed: tuple[int, ...]) -> np.ndarray:
    """A uint8 picture with -NOISE_LEVELS to NOISE_LEVELS added to each value; same seed, same bits.

    Black and white come out that much grayer, so that nothing wraps around. It stays in uint8
    because it runs 90 times a second: 0.1 ms a view, against 0.5 ms with drawn integers.
    """
    generator = np.random.default_rng(seed).bit_generator
    words = generator.random_raw(-(-picture.size // np.dtype(np.uint64).itemsize))
    bits = words.view(np.uint8)[: picture.size].reshape(picture.shape)
    # 0 to 3 plus 0 to 1: all five levels, the outer two half as often.
    noise = (bits & 3) + ((bits >> 2) & 1)
    return np.clip(picture, NOISE_LEVELS, 255 - NOISE_LEVELS) + noise - np.uint8(NOISE_LEVELS)


def _add(body, name: str, position, optical) -> None:
    quat = np.empty(4)
    mujoco.mju_mulQuat(quat, np.array(optical), _FROM_OPTICAL)
    body.add_camera(name=name, pos=position, quat=quat, fovy=VERTICAL_FOV)
