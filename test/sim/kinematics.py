"""Forward and inverse kinematics of one YAM arm by plain matrices, as an oracle for the model.

The numbers are typed in from the station's table a second time, on purpose: this is what the
model is compared with.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import least_squares
from scipy.spatial.transform import Rotation

BASES = {'left': (0.0, 0.0, 0.0), 'right': (0.0, -0.61, 0.0)}
HALF = np.pi / 2
# xyz, rpy about fixed axes, axis
TABLE = (
    ((0, 0, 0.068), (0, HALF, np.pi), (-1, 0, 0)),
    ((-0.0455, -0.0339, -0.02), (0, 0, -np.pi), (0, 1, 0)),
    ((0, -0.0688, 0.264), (0, 0, -np.pi), (0, 1, 0)),
    ((-0.0600003, -0.0688, -0.244999), (0, 0, 0), (0, 1, 0)),
    ((-0.0405003, 0.0338995, -0.0739989), (0, 0, 0), (1, 0, 0)),
    ((0.0404996, 0, -0.0356), (np.pi, 0, HALF), (0, 0, 1)),
)
LOWER = np.array((-2.61799, 0, 0, -1.69297, -1.5708, -2.0944))
UPPER = np.array((3.14159, 3.66519, 3.14159, 1.5708, 1.5708, 2.0944))
TOOL = (0.0, 0.0, 0.14465)


def transform(rotation: Rotation, translation) -> np.ndarray:
    matrix = np.eye(4)
    matrix[:3, :3], matrix[:3, 3] = rotation.as_matrix(), translation
    return matrix


ORIGINS = [transform(Rotation.from_euler('xyz', rpy), xyz) for xyz, rpy, _ in TABLE]


def flange(arm: str, q: np.ndarray) -> np.ndarray:
    """Homogeneous transform (4, 4) of the flange in left_base; q (6,) rad."""
    pose = transform(Rotation.identity(), BASES[arm])
    for origin, (_, _, axis), angle in zip(ORIGINS, TABLE, q):
        pose = pose @ origin @ transform(Rotation.from_rotvec(angle * np.array(axis)), (0, 0, 0))
    return pose


def tool(arm: str, q: np.ndarray) -> np.ndarray:
    return flange(arm, q) @ transform(Rotation.identity(), TOOL)


def reach(arm: str, point, tilt: float = 0.0, opening: float | None = None) -> np.ndarray | None:
    """Joint angles (6,) with the tool at `point`, or None where it cannot get.

    tilt: rad by which the tool leans away from its base, 0 points down. opening: direction in
    the table's plane, rad, along which the fingers open; None: any.
    """
    point = np.array(point)
    radial = (point - BASES[arm])[:2] / np.linalg.norm((point - BASES[arm])[:2])
    forward = np.array([*(np.sin(tilt) * radial), -np.cos(tilt)])

    def error(q):
        pose = tool(arm, q)
        parts = [10 * (pose[:3, 3] - point), pose[:3, 2] - forward]
        if opening is not None:
            parts.append([pose[0, 0] * -np.sin(opening) + pose[1, 0] * np.cos(opening)])
        return np.concatenate(parts)

    turn = np.arctan2(radial[1], radial[0])
    for start in ((1.05, 1.05, 0.0), (1.8, 1.5, -1.0), (1.2, 0.8, -1.2)):
        for twist in (0.0, 1.0, -1.0):
            guess = np.clip([turn, *start, 0.0, twist], LOWER + 0.01, UPPER - 0.01)
            found = least_squares(error, guess, bounds=(LOWER, UPPER), max_nfev=100)
            if found.cost < 1e-8:
                return found.x
    return None
