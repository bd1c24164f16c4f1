"""One timeline of both arms: a piecewise cubic through knots, as the trajectory controllers see it.

The controllers interpolate a cubic between two points that carry position and velocity. A knot
inserted on such a cubic, with the cubic's own position and velocity, does not change the curve;
that is what makes braking and hand-over in the middle of a segment exactly smooth.

Axis legend: n knot, d joint (order of `embodiments.yam.JOINT_NAMES`). Units: model units (rad,
gripper 0..1) and their rates; time is integer nanoseconds of ROS time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SECOND = 1_000_000_000
# Every message starts with knots that have already elapsed, so that the controller lands inside
# the curve it is already on, however late the message comes.
ELAPSED_NS = 66_000_000


@dataclass(frozen=True, slots=True)
class Timeline:
    """Knots with strictly increasing times; at rest before the first and after the last one."""

    times: np.ndarray  # int64 (n,), ns
    positions: np.ndarray  # float64 (n, d)
    velocities: np.ndarray  # float64 (n, d), 1/s; the last row is zero

    def __post_init__(self) -> None:
        if len(self.times) == 0 or (np.diff(self.times) <= 0).any():
            raise ValueError('a timeline needs strictly increasing knot times')
        if np.any(self.velocities[-1]):
            raise ValueError('a timeline must end at rest')

    @classmethod
    def at_rest(cls, time_ns: int, position: np.ndarray) -> Timeline:
        position = np.asarray(position, dtype=np.float64)[None]
        return cls(np.array([time_ns], dtype=np.int64), position, np.zeros_like(position))

    @property
    def end_ns(self) -> int:
        return int(self.times[-1])

    @property
    def final_position(self) -> np.ndarray:
        return self.positions[-1]

    def evaluate(self, time_ns: int) -> tuple[np.ndarray, np.ndarray]:
        """Position and velocity at a time, each (d,)."""
        if time_ns <= self.times[0]:
            return self.positions[0].copy(), np.zeros_like(self.positions[0])
        if time_ns >= self.end_ns:
            return self.positions[-1].copy(), np.zeros_like(self.positions[-1])
        i = int(np.searchsorted(self.times, time_ns, side='right')) - 1
        duration = (self.times[i + 1] - self.times[i]) / SECOND
        u = (time_ns - int(self.times[i])) / SECOND / duration
        p0, p1 = self.positions[i], self.positions[i + 1]
        m0, m1 = self.velocities[i] * duration, self.velocities[i + 1] * duration
        c2 = 3 * (p1 - p0) - 2 * m0 - m1
        c3 = 2 * (p0 - p1) + m0 + m1
        return p0 + u * (m0 + u * (c2 + u * c3)), (m0 + u * (2 * c2 + 3 * u * c3)) / duration

    def continued(
        self, now_ns: int, from_ns: int, times: np.ndarray, positions, velocities
    ) -> Timeline:
        """This curve up to `from_ns`, then the given knots, all later than `from_ns`.

        Keeps what `ELAPSED_NS` before the earlier of `now_ns` and `from_ns` asks for, and puts an
        exact knot at `from_ns`.
        """
        position, velocity = self.evaluate(from_ns)
        oldest = min(now_ns, from_ns) - ELAPSED_NS
        count = int(np.searchsorted(self.times, from_ns))  # knots before from_ns
        first = int(np.searchsorted(self.times, oldest, side='right')) - 1
        if first < 0 or first == len(self.times) - 1:
            # At rest at `oldest`: one knot there says all that came before.
            kept = slice(max(first + 1, 0), count)
            rest, _ = self.evaluate(oldest)
            head = ([oldest], rest[None], np.zeros_like(rest[None]))
        else:
            kept = slice(first, count)
            head = ([], np.empty((0, self.positions.shape[1])), np.empty((0, position.size)))
        parts = (
            (head[0], self.times[kept], [from_ns], times),
            (head[1], self.positions[kept], position[None], positions),
            (head[2], self.velocities[kept], velocity[None], velocities),
        )
        return Timeline(
            np.concatenate([np.asarray(part, dtype=np.int64) for part in parts[0]]),
            np.concatenate(parts[1]),
            np.concatenate(parts[2]),
        )

    def peaks(self) -> tuple[np.ndarray, np.ndarray]:
        """Largest |velocity| and |acceleration| of each joint over the whole curve, each (d,)."""
        return segment_peaks(np.diff(self.times) / SECOND, self.positions, self.velocities)


def segment_peaks(
    durations: np.ndarray, positions: np.ndarray, velocities: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Exact peaks of the cubics through knots `durations` (n-1,) seconds apart, each (d,)."""
    if len(durations) == 0:
        zero = np.zeros(positions.shape[1])
        return zero, zero.copy()
    velocity, acceleration = peaks_by_segment(durations, positions, velocities)
    return velocity.max(axis=0), acceleration.max(axis=0)


def peaks_by_segment(
    durations: np.ndarray, positions: np.ndarray, velocities: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """As `segment_peaks`, for each segment, each (n-1, d)."""
    h = durations[:, None]
    dp = np.diff(positions, axis=0) / h
    v0, v1 = velocities[:-1], velocities[1:]
    a0 = (6 * dp - 4 * v0 - 2 * v1) / h
    a1 = (-6 * dp + 2 * v0 + 4 * v1) / h
    acceleration = np.maximum(np.abs(a0), np.abs(a1))
    # The velocity is a parabola: its vertex counts where the acceleration changes sign inside.
    inside = a0 * a1 < 0
    slope = np.where(inside, a1 - a0, 1.0)
    vertex = np.where(inside, v0 - a0 * a0 * h / (2 * slope), 0.0)
    return np.abs([v0, v1, vertex]).max(axis=0), acceleration
