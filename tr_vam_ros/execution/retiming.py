"""From chunk rows to a motion that starts and ends at rest and keeps every cap.

Synchronous execution (architecture, "Row timing"): the path through the rows is unchanged, its
time is scaled: the speed along the rows goes 0 to 1 over the first `TAIL` seconds and 1 to 0 over
the last. Thirty rows of 1/30 s then take 1.3 s and end at rest exactly on the last row.

Axis legend: n row, d joint. Model units (rad, gripper 0..1), seconds from the motion's start.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tr_vam_ros.execution.timeline import segment_peaks

TAIL = 0.3  # s, also the deceleration tail of every message
MAX_STRETCH = 2.0  # a chunk slowed down more than this is no longer what the policy meant


@dataclass(frozen=True, slots=True)
class Motion:
    """Knots after the start; the first knot lies after time 0, the last is at rest."""

    times: np.ndarray  # float64 (n,), s
    positions: np.ndarray  # float64 (n, d)
    velocities: np.ndarray  # float64 (n, d)
    rows: int  # rows of the chunk that it executes
    stretch: float  # 1: as the policy timed it

    @property
    def duration(self) -> float:
        return float(self.times[-1])


def row_times(count: int, period: float) -> tuple[np.ndarray, np.ndarray]:
    """When each row is reached and the speed along the rows there, each float64 (count,)."""
    length = count * period
    peak = min(1.0, float(np.sqrt(length / TAIL)))  # a short path never reaches full speed
    ramp = peak * TAIL
    ramp_length = peak * ramp / 2
    duration = 2 * ramp + (length - 2 * ramp_length) / peak
    along = np.arange(1, count + 1) * period
    accelerating = along <= ramp_length
    decelerating = along >= length - ramp_length
    rest = np.maximum(length - along, 0.0)
    times = np.where(
        accelerating,
        np.sqrt(2 * TAIL * along),
        np.where(
            decelerating,
            duration - np.sqrt(2 * TAIL * rest),
            ramp + (along - ramp_length) / peak,
        ),
    )
    speeds = np.where(
        accelerating,
        np.sqrt(2 * along / TAIL),
        np.where(decelerating, np.sqrt(2 * rest / TAIL), peak),
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
        times, speeds = row_times(count, period)
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
            return Motion(times * stretch, path[1:], velocities[1:] / stretch, count, stretch)
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
    return Motion(
        np.array([duration]), goal[None].astype(np.float64), np.zeros((1, len(goal))), 1, 1.0
    )


def plan_brake(
    position: np.ndarray,
    velocity: np.ndarray,
    acceleration_limits: np.ndarray,
    shortest: float = 0.1,
) -> Motion:
    """Constant deceleration of all joints to rest at the same moment, as fast as the caps allow.

    At rest already, this is the one-point hold that the real controller takes without a jump.
    """
    duration = float((np.abs(velocity) / acceleration_limits).max())
    if duration < 1e-3:
        duration = shortest
    goal = position + velocity * duration / 2
    return Motion(np.array([duration]), goal[None], np.zeros((1, len(goal))), 0, 1.0)
