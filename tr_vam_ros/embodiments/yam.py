"""The bimanual YAM: names, limits, units and image layout, the single place where they stand.

Units: a ROS joint topic carries radians and, for a gripper, **metres** of finger travel; the
model's proprioception and action chunks carry radians and a gripper of 0 (closed) to 1 (open).
`model_from_ros` and `ros_from_model` are the only conversion between the two.

Joint order of every 14-wide array: `JOINT_NAMES`. Mapping is always by name.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tr_vam_ros.errors import InputError

ARMS = ('left', 'right')
JOINTS_PER_ARM = 7
ARM_JOINT_NAMES = {
    arm: (*(f'{arm}_joint{i}' for i in range(1, 7)), f'{arm}_gripper') for arm in ARMS
}
JOINT_NAMES: tuple[str, ...] = ARM_JOINT_NAMES['left'] + ARM_JOINT_NAMES['right']
DOF = len(JOINT_NAMES)
ARM_SLICES = {'left': slice(0, 7), 'right': slice(7, 14)}
GRIPPERS = np.array([name.endswith('gripper') for name in JOINT_NAMES])

# Travel of one finger, metres (linear_4310 on the station).
GRIPPER_TRAVEL = 0.04695

# Command limits of one arm, rad: what the executor clamps to. The URDF's hard limits are wider
# by HARD_LIMIT_MARGIN, because ros2_control refuses to start on a measured position outside them.
_ARM_LOWER = (-2.61799, 0.0, 0.0, -1.69297, -1.5708, -2.0944)
_ARM_UPPER = (3.14159, 3.66519, 3.14159, 1.5708, 1.5708, 2.0944)
HARD_LIMIT_MARGIN = 0.05
COMMAND_LOWER = np.array((*_ARM_LOWER, 0.0) * 2)
COMMAND_UPPER = np.array((*_ARM_UPPER, 1.0) * 2)

# All-zero is the folded pose on the lower stops; this is above the table, grippers open.
HOME = np.array((0.0, 1.047, 1.047, 0.0, 0.0, 0.0, 1.0) * 2)

# What a public deployment of these arms allows; the motors' encoding ranges are no safe limits.
MAX_JOINT_VELOCITY = 1.5  # rad/s
MAX_JOINT_ACCELERATION = 15.0  # rad/s^2: stops 1.5 rad/s in 0.1 s
MAX_GRIPPER_VELOCITY = 0.25  # m/s a finger
MAX_GRIPPER_ACCELERATION = 2.5  # m/s^2 a finger: the same 0.1 s

# Time of a chunk (paper E.2): rows at 30 Hz, 50 predicted, the first 30 executed.
ROW_PERIOD = 1.0 / 30.0
HORIZON = 50
EXECUTED_ROWS = 30

# Image of the model (paper E.2): three 224x168 views side by side.
CAMERAS = ('top', 'left_wrist', 'right_wrist')
VIEW_WIDTH, VIEW_HEIGHT = 224, 168
IMAGE_WIDTH, IMAGE_HEIGHT = VIEW_WIDTH * len(CAMERAS), VIEW_HEIGHT


def velocity_limits() -> np.ndarray:
    """Velocity caps in model units a second, float64 (14,)."""
    return np.where(GRIPPERS, MAX_GRIPPER_VELOCITY / GRIPPER_TRAVEL, MAX_JOINT_VELOCITY)


def acceleration_limits() -> np.ndarray:
    """Acceleration caps in model units a second squared, float64 (14,)."""
    return np.where(GRIPPERS, MAX_GRIPPER_ACCELERATION / GRIPPER_TRAVEL, MAX_JOINT_ACCELERATION)


def model_from_ros(values: np.ndarray) -> np.ndarray:
    """ROS units (rad, m) to model units (rad, 0..1), (..., 14) in the order of `JOINT_NAMES`."""
    return np.where(GRIPPERS, values / GRIPPER_TRAVEL, values)


def ros_from_model(values: np.ndarray) -> np.ndarray:
    """Model units (rad, 0..1) to ROS units (rad, m), (..., 14) in the order of `JOINT_NAMES`."""
    return np.where(GRIPPERS, values * GRIPPER_TRAVEL, values)


def check_model(name: str, image_size: tuple[int, int], action_dim: int) -> None:
    """Raises InputError unless a model, called `name`, has the YAM's image and joints.

    image_size: height and width.
    """
    expected = (IMAGE_HEIGHT, IMAGE_WIDTH)
    if tuple(image_size) != expected or action_dim != DOF:
        raise InputError(
            f'{name}: image {tuple(image_size)} and {action_dim} joints, but the YAM has '
            f'{expected} and {DOF}; choose a model made for the YAM'
        )


def proprio_from_joint_state(names: Sequence[str], positions: Sequence[float]) -> np.ndarray:
    """The model's proprioception, float64 (14,), from a JointState in any order.

    Joints of other devices are ignored. Raises InputError on a missing joint, a size that does
    not match, or a value that is not finite.
    """
    if len(names) != len(positions):
        raise InputError(
            f'joint state: {len(names)} names but {len(positions)} positions; '
            'the driver must publish one position per name'
        )
    by_name = dict(zip(names, positions))
    missing = [name for name in JOINT_NAMES if name not in by_name]
    if missing:
        raise InputError(
            f'joint state: {", ".join(missing)} missing; all 14 joints must come in one message: '
            'check the joint_state_broadcaster'
        )
    values = np.array([by_name[name] for name in JOINT_NAMES], dtype=np.float64)
    if not np.isfinite(values).all():
        bad = [n for n, ok in zip(JOINT_NAMES, np.isfinite(values)) if not ok]
        raise InputError(
            f'joint state: {", ".join(bad)} not finite; positions must be numbers: '
            'check the encoder or restart the hardware driver'
        )
    return model_from_ros(values)
