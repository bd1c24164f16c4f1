"""Hand-over from the running chunk to the next one while the arms move (architecture, "Row timing").

The curve being executed and the new rows rarely agree to the last milliradian. From the hand-over
on the old curve fades out and the new rows fade in, so position and velocity are continuous by
construction, and the rest of the old chunk, not a guess, says where the arms would have gone.

Axis legend: n row, d joint. Model units (rad, gripper 0..1), seconds from the hand-over.
"""

from __future__ import annotations

import itertools

import numpy as np

from tr_vam_ros.errors import InputError
from tr_vam_ros.execution.retiming import MAX_STRETCH, Motion, profile
from tr_vam_ros.execution.timeline import SECOND, Timeline, peaks_by_segment

# How long the old curve fades, s: 9 rows, and longer where that would exceed a cap.
FADES = (0.3, 0.45, 0.6)
STRETCHES = (1.0, 1.25, 1.5, 1.75, MAX_STRETCH)


def plan_splice(
    old: Timeline,
    from_ns: int,
    speed: float,
    ahead: np.ndarray,
    rows: np.ndarray,
    period: float,
    velocity_limits: np.ndarray,
    acceleration_limits: np.ndarray,
) -> Motion:
    """A motion from the moving curve `old` at `from_ns` into `rows` (n, d), ending at rest.

    speed: of the rows at the hand-over, 1 at the policy's own timing. ahead: float64 (n,), how
    many rows after the hand-over each of `rows` is due, increasing, the first above 0.

    Slows down by at most `MAX_STRETCH`; where that is not enough it ends before the row that is
    too fast. Raises InputError when what is left is too short to come to rest on.
    """
    count = len(rows)
    while True:
        for stretch, fade in itertools.product(STRETCHES, FADES):
            motion = _candidate(
                old, from_ns, speed, ahead[:count], rows[:count], period, stretch, fade
            )
            excess = _excess(old, from_ns, motion, velocity_limits, acceleration_limits)
            if not (excess > 1.0).any():
                return motion
        # Rows before the first that is too fast, and fewer each time: the end itself brakes.
        count = min(int(np.argmax(excess > 1.0)), count - 1 - count // 8)
        if count < 1:
            raise InputError(
                'action chunk: its rows are too fast to be taken over in motion, even at half '
                'speed; check the checkpoint and its statistics'
            )


def _candidate(
    old: Timeline,
    from_ns: int,
    speed: float,
    ahead: np.ndarray,
    rows: np.ndarray,
    period: float,
    stretch: float,
    fade: float,
) -> Motion:
    along = ahead * period
    times, speeds = profile(along, float(along[-1]), speed, 1.0 / stretch)
    share = fade_out(times / fade)[:, None]
    positions = rows.copy()
    for n in np.flatnonzero(share):
        continued, _ = old.evaluate(from_ns + round(times[n] * SECOND))
        positions[n] += share[n] * (continued - rows[n])

    start, _ = old.evaluate(from_ns)
    path = np.concatenate([start[None], positions])
    velocities = np.zeros_like(positions)
    velocities[:-1] = _slopes(np.concatenate([[0.0], along]), path) * speeds[:-1, None]
    return Motion(times, positions, velocities, ahead, stretch)


def fade_out(u: np.ndarray) -> np.ndarray:
    """1 at u = 0, 0 from u = 1 on, with two derivatives 0 at both ends (quintic)."""
    u = np.clip(u, 0.0, 1.0)
    return 1.0 - u**3 * (10.0 - 15.0 * u + 6.0 * u**2)


def _slopes(places: np.ndarray, path: np.ndarray) -> np.ndarray:
    """Derivatives at the inner knots (n-2, d) of the parabola through each and its neighbours."""
    h = np.diff(places)[:, None]
    d = np.diff(path, axis=0) / h
    return (d[:-1] * h[1:] + d[1:] * h[:-1]) / (h[:-1] + h[1:])


def _excess(
    old: Timeline,
    from_ns: int,
    motion: Motion,
    velocity_limits: np.ndarray,
    acceleration_limits: np.ndarray,
) -> np.ndarray:
    """For each segment (n,): the larger of velocity and acceleration over their caps."""
    position, velocity = old.evaluate(from_ns)
    velocities, accelerations = peaks_by_segment(
        np.diff(motion.times, prepend=0.0),
        np.concatenate([position[None], motion.positions]),
        np.concatenate([velocity[None], motion.velocities]),
    )
    return np.maximum(
        (velocities / velocity_limits).max(axis=1),
        (accelerations / acceleration_limits).max(axis=1),
    )
