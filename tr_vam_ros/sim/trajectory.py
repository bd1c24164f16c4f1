"""Joint trajectories and their interpolation, as the Jazzy joint_trajectory_controller does it.

Legend: m points, n joints. Times are integer nanoseconds, so that nothing drifts. A segment is
kept as a cubic in the seconds s since its start, position = c0 + c1 s + c2 s^2 + c3 s^3.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

NANOSECONDS = 1_000_000_000
# What the controller takes for zero in the last row's velocities: float32 epsilon.
_VELOCITY_EPSILON = float(np.finfo(np.float32).eps)


@dataclass(frozen=True, slots=True)
class TrajectoryPoint:
    """One row: where the joints are `time_from_start_ns` after the trajectory's start.

    positions, velocities: one number a joint, rad and rad/s (m and m/s for a gripper), in the
    order of the trajectory's `joint_names`. Without velocities the motion is linear.
    """

    time_from_start_ns: int
    positions: Sequence[float]
    velocities: Sequence[float] | None = None

    @property
    def has_velocities(self) -> bool:
        """False also for the empty list that a ROS message carries for 'not given'."""
        return self.velocities is not None and len(self.velocities) > 0


@dataclass(frozen=True, slots=True)
class Trajectory:
    """trajectory_msgs/JointTrajectory without ROS; `stamp_ns` 0 means: start at the next update."""

    stamp_ns: int
    joint_names: Sequence[str]
    points: Sequence[TrajectoryPoint]


def rejection(
    trajectory: Trajectory,
    joint_names: Sequence[str],
    now_ns: int,
    *,
    allow_partial: bool = False,
    allow_nonzero_end: bool = False,
) -> str:
    """Why the controller of `joint_names` refuses a trajectory, worded as its log; '' if not.

    The checks and their order are the real ones: values that are not finite and a name that
    stands twice pass.
    """
    names, points = trajectory.joint_names, trajectory.points
    if not allow_partial and len(names) != len(joint_names):
        return "Joints on incoming trajectory don't match the controller joints."
    if not names:
        return 'Empty joint names on incoming trajectory.'
    if not points:
        return 'Empty trajectory received.'
    for name in names:
        if name not in joint_names:
            return f"Incoming joint {name} doesn't match the controller's joints."
    if not allow_nonzero_end and points[-1].has_velocities:
        for name, velocity in zip(names, points[-1].velocities):
            if abs(velocity) > _VELOCITY_EPSILON:
                return (
                    f'Velocity of last trajectory point of joint {name} is not zero: '
                    f'{velocity:.15f}'
                )
    end_ns = trajectory.stamp_ns + points[-1].time_from_start_ns
    if trajectory.stamp_ns != 0 and end_ns < now_ns:
        return (
            'Received trajectory with non-zero start time '
            f'({trajectory.stamp_ns / NANOSECONDS:f}) that ends in the past '
            f'({end_ns / NANOSECONDS:f})'
        )
    previous_ns = None
    for i, point in enumerate(points):
        time_ns = point.time_from_start_ns
        if previous_ns is not None and time_ns <= previous_ns:
            return (
                f'Time between points {i - 1} and {i} is not strictly increasing, it is '
                f'{previous_ns / NANOSECONDS:f} and {time_ns / NANOSECONDS:f} respectively'
            )
        previous_ns = time_ns
        for field, required in (('positions', True), ('velocities', point.has_velocities)):
            if required and len(getattr(point, field)) != len(names):
                return (
                    f'Mismatch between joint_names size ({len(names)}) and {field} '
                    f'({len(getattr(point, field))}) at point #{i}.'
                )
    return ''


def cubic(
    start: np.ndarray,
    end: np.ndarray,
    start_velocity: np.ndarray,
    end_velocity: np.ndarray,
    duration: np.ndarray | float,
) -> np.ndarray:
    """Coefficients (..., 4, n) of the cubics through positions and velocities (..., n).

    duration in seconds, positive, broadcastable against (..., n).
    """
    mean_velocity = (end - start) / duration
    second = (3.0 * mean_velocity - 2.0 * start_velocity - end_velocity) / duration
    third = (start_velocity + end_velocity - 2.0 * mean_velocity) / duration**2
    return np.stack((start, start_velocity, second, third), axis=-2)


def linear(start: np.ndarray, end: np.ndarray, duration: np.ndarray | float) -> np.ndarray:
    """As `cubic`, at constant velocity: what the controller does where a velocity is missing."""
    velocity = (end - start) / duration
    zero = np.zeros_like(velocity)
    return np.stack((start, velocity, zero, zero), axis=-2)


def evaluate(coefficients: np.ndarray, seconds: float) -> np.ndarray:
    """Positions of a cubic (4, n) at `seconds` after its start, a new float64 (n,)."""
    c0, c1, c2, c3 = coefficients
    return ((c3 * seconds + c2) * seconds + c1) * seconds + c0


def evaluate_velocity(coefficients: np.ndarray, seconds: float) -> np.ndarray:
    """Velocities of a cubic (4, n) at `seconds` after its start, a new float64 (n,)."""
    _, c1, c2, c3 = coefficients
    return (3.0 * c3 * seconds + 2.0 * c2) * seconds + c1


class Curve:
    """A valid trajectory in the controller's joint order, ready to be sampled.

    `coefficients` float64 (m, 4, n): row i holds from point i until point i + 1, the last row is
    the last point, for ever. `positions`, `velocities` float64 (m, n): the points themselves,
    velocity zero where the message has none.
    """

    # The row number of the time before the first point.
    LEAD = -1

    def __init__(self, trajectory: Trajectory, joint_names: Sequence[str], hold_rows: bool):
        """hold_rows: interpolation_method 'none', which commands the end of a segment at once.

        A joint that the trajectory does not name stays at zero until `fill` is called.
        """
        points = trajectory.points
        names = list(joint_names)
        columns = [names.index(name) for name in trajectory.joint_names]
        self.missing = [i for i in range(len(names)) if i not in columns]
        self.stamp_ns = trajectory.stamp_ns
        self.times_ns = [int(point.time_from_start_ns) for point in points]
        self.last = len(points) - 1
        self.positions, self.velocities = np.zeros((2, len(points), len(names)))
        self.positions[:, columns] = [point.positions for point in points]
        has_velocities = np.array([point.has_velocities for point in points])
        given = [point.velocities for point in points if point.has_velocities]
        if given:
            self.velocities[np.ix_(has_velocities, columns)] = given
        self.starts_with_velocities = bool(has_velocities[0])

        self.coefficients = np.zeros((len(points), 4, len(names)))
        self.coefficients[-1, 0] = self.positions[-1]
        start, end = self.positions[:-1], self.positions[1:]
        if hold_rows:
            self.coefficients[:-1, 0] = end
            return
        duration = np.diff(np.array(self.times_ns, dtype=np.int64))[:, None] / NANOSECONDS
        smooth = (has_velocities[:-1] & has_velocities[1:])[:, None, None]
        # The real controller interpolates NaN and infinity without a word, and so does this.
        with np.errstate(invalid='ignore'):
            self.coefficients[:-1] = np.where(
                smooth,
                cubic(start, end, self.velocities[:-1], self.velocities[1:], duration),
                linear(start, end, duration),
            )

    def fill(self, positions: np.ndarray) -> None:
        """Keep joints that the trajectory does not name at `positions`, float64 (n,)."""
        self.positions[:, self.missing] = positions[self.missing]
        self.coefficients[:, 0, self.missing] = positions[self.missing]

    def locate(self, since_start_ns: int, earliest: int) -> int:
        """Row that holds at a time since the start, searched from row `earliest` onwards.

        A time before that row (the clock went back) gives the last row: the real controller's
        search also only goes forward and takes what it does not find for played out.
        """
        if since_start_ns < self.times_ns[0]:
            return self.LEAD
        row = bisect_right(self.times_ns, since_start_ns, earliest) - 1
        return row if row >= earliest else self.last
