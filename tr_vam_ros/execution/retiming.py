"""From chunk rows to a motion that starts and ends at rest and keeps every cap.

Synchronous execution (architecture, "Row timing"): the path through the rows is unchanged, its
time is scaled: the speed along the rows goes 0 to 1 over the first `TAIL` seconds and 1 to 0 over
the last. Thirty rows of 1/30 s then take 1.3 s and end at rest exactly on the last row.

Axis legend: n row, d joint. Model units (rad, gripper 0..1), seconds from the motion's start.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tr_vam_ros.errors import InputError
from tr_vam_ros.execution.timeline import segment_peaks

TAIL = 0.3  # s, also the deceleration tail of every message
HOLD = 0.1  # s, of the one-point hold
MAX_STRETCH = 2.0  # a chunk slowed down more than this is no longer what the policy meant


@dataclass(frozen=True, slots=True)
class Motion:
    """Knots after the start; the first knot lies after time 0, the last is at rest."""

    times: np.ndarray  # float64 (n,), s
    positions: np.ndarray  # float64 (n, d)
    velocities: np.ndarray  # float64 (n, d)
    passed: np.ndarray  # float64 (n,), rows of the chunk executed at each knot since the start
    stretch: float  # 1: as the policy timed it

    @property
    def duration(self) -> float:
        return float(self.times[-1])

    @property
    def rows(self) -> int:
        """Rows of the chunk that it executes."""
        return round(float(self.passed[-1]))


def profile(
    along: np.ndarray, length: float, speed_in: float, cruise: float
) -> tuple[np.ndarray, np.ndarray]:
    """When each place `along` (n,) a path is reached and the speed there, each float64 (n,).

    The path is `length` seconds long at speed 1. Its speed goes from `speed_in` to `cruise` and
    at the end to rest, 1 in `TAIL` seconds; a short path never reaches `cruise`. Raises
    InputError if the path is too short to come to rest on it.
    """
    peak = min(cruise, float(np.sqrt(length / TAIL + speed_in**2 / 2)))
    if peak < speed_in and length < speed_in**2 * TAIL / 2:
        raise InputError(
            f'{length:.2f} s of rows are too few to come to rest from speed {speed_in:.2f}'
        )
    change = peak - speed_in
    change_time = abs(change) * TAIL
    change_length = change_time * (peak + speed_in) / 2
    stop_time = peak * TAIL
    stop_length = stop_time * peak / 2
    duration = change_time + (length - change_length - stop_length) / peak + stop_time
    rest = np.maximum(length - along, 0.0)
    changing, stopping = along <= change_length, rest <= stop_length
    sign = 1.0 if change >= 0 else -1.0
    speeds = np.select(
        [changing, stopping],
        [np.sqrt(np.maximum(speed_in**2 + sign * 2 * along / TAIL, 0.0)), np.sqrt(2 * rest / TAIL)],
        peak,
    )
    times = np.select(
        [changing, stopping],
        [np.abs(speeds - speed_in) * TAIL, duration - speeds * TAIL],
        change_time + (along - change_length) / peak,
    )
    return times, speeds


def plan_rows(
    start: np.ndarray,
    rows: np.ndarray,
    period: float,
    velocity_limits: np.ndarray,
    acceleration_limits: np.ndarray,
) -> Motion:
    """A motion from rest at `start` (d,) through `rows` (n, d), within the caps.

    Slows down by at most `MAX_STRETCH`; where that is not enough, executes as many rows as fit and
    comes to rest on the last of them (`rows` says how many; the caller replans early). One row is
    always executed, as slowly as it needs.
    """
    for count in range(len(rows), 0, -1):
        path = np.concatenate([start[None], rows[:count]])
        times, speeds = profile(period * np.arange(1, count + 1), count * period, 0.0, 1.0)
        tangents = np.zeros_like(path)
        tangents[1:-1] = (path[2:] - path[:-2]) / (2 * period)
        velocities = tangents * np.concatenate([[0.0], speeds])[:, None]
        velocity, acceleration = segment_peaks(np.diff(times, prepend=0.0), path, velocities)
        stretch = max(
            1.0,
            float((velocity / velocity_limits).max()),
            float(np.sqrt((acceleration / acceleration_limits).max())),
        )
        if stretch <= MAX_STRETCH or count == 1:
            passed = np.arange(1.0, count + 1)
            return Motion(times * stretch, path[1:], velocities[1:] / stretch, passed, stretch)
    raise ValueError('a chunk without rows')


def plan_ramp(
    start: np.ndarray,
    goal: np.ndarray,
    shortest: float,
    velocity_limits: np.ndarray,
    acceleration_limits: np.ndarray,
) -> Motion:
    """One cubic from rest to rest, at least `shortest` seconds long and within the caps."""
    distance = np.abs(goal - start)
    duration = max(
        shortest,
        float((1.5 * distance / velocity_limits).max()),
        float(np.sqrt((6 * distance / acceleration_limits).max())),
    )
    still = np.zeros((1, len(goal)))
    return Motion(np.array([duration]), goal[None].astype(np.float64), still, np.ones(1), 1.0)


def plan_brake(
    position: np.ndarray,
    velocity: np.ndarray,
    acceleration_limits: np.ndarray,
    shortest: float = 0.0,
) -> Motion:
    """Constant deceleration of all joints to rest at the same moment.

    As fast as the caps allow, but at least `shortest` seconds. At rest already, this is the
    one-point hold that the real controller takes without a jump.
    """
    duration = max(shortest, float((np.abs(velocity) / acceleration_limits).max()))
    if duration < 1e-3:
        duration = HOLD
    goal = position + velocity * duration / 2
    still = np.zeros((1, len(goal)))
    return Motion(np.array([duration]), goal[None], still, np.zeros(1), 1.0)
