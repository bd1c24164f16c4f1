"""What the arms are told to do from now on: the one timeline, and how it goes on.

The state machine (`executor`) decides what happens; this decides how: from rest, in motion,
braking, homing. Every method leaves a timeline that ends at rest and keeps the caps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tr_vam_ros.embodiments import yam
from tr_vam_ros.errors import InputError
from tr_vam_ros.execution.retiming import TAIL, Motion, plan_brake, plan_ramp, plan_rows
from tr_vam_ros.execution.row_clock import RowClock
from tr_vam_ros.execution.settings import Settings
from tr_vam_ros.execution.splice import plan_splice
from tr_vam_ros.execution.timeline import SECOND, Timeline

# The row in play and the next one stay as they were sent: the controller is on them already.
COMMITTED_ROWS = 2
STOPPING_ROWS = math.ceil(TAIL / 2 / yam.ROW_PERIOD)  # the rows over which a motion ends
SAME_KNOT_NS = 1_000_000  # times of one knot by two computations differ by rounding


class FarChunk(InputError):
    """A chunk whose first row is too far from where the arms are (`jump_limit`)."""


class MotionPlanner:
    def __init__(
        self,
        settings: Settings,
        now_ns: int,
        position: np.ndarray,
        guard: Callable[[np.ndarray], str] = lambda path: '',
    ) -> None:
        """position: float64 (14,), model units, where the arms are held.

        guard: told a path (n, 14) before it is sent; answers why it must not be, '' if it may.
        """
        self._settings = settings
        self._guard = guard
        self.timeline = Timeline.at_rest(now_ns, position)
        self.clock = RowClock(now_ns)
        self.ramp_end_ns = 0  # 0: the motion in play does not begin with a ramp
        self.began_ns = now_ns  # when the motion in play began, ns
        self._row_zero = 0.0  # row n of the chunk in play ends at _row_zero + n on the row clock
        self._first_row = 1  # the first that was not skipped, and when each from there on ends
        self._row_ends = np.zeros(0, dtype=np.int64)

    @property
    def skipped(self) -> int:
        """Rows of the chunk in play that were executed before it came."""
        return self._first_row - 1

    @property
    def row_end(self) -> float:
        """On the row clock: where the next chunk takes over, while this one still moves."""
        last = self.clock.at(self.timeline.end_ns)
        return min(self._row_zero + yam.EXECUTED_ROWS, last - STOPPING_ROWS)

    @property
    def resting(self) -> bool:
        """Whether the motion in play brings the arms to rest without rows of a chunk."""
        return len(self._row_ends) == 0

    def executed_between(self, since_ns: int, until_ns: int) -> float:
        """Rows executed between two times; the parts of rows count."""
        return self.clock.at(until_ns) - self.clock.at(since_ns)

    def row_in_play(self, now_ns: int) -> int:
        """Row of the chunk that is executed now, counted from 1; 0 when none is."""
        if len(self._row_ends) == 0 or now_ns >= self._row_ends[-1]:
            return 0
        return self._first_row + int(np.searchsorted(self._row_ends, now_ns, side='right'))

    # ---- from rest -----------------------------------------------------------------------------

    def start(
        self, rows: np.ndarray, now_ns: int, start_ns: int, *, first_row: int, ramp: bool
    ) -> Motion:
        """From rest at `start_ns` through `rows` (n, 14), whose first is `first_row` of its chunk.

        ramp: approach the first row slowly, as is done anyway when it is far. Raises FarChunk when
        it is far and `jump_action` is reject, InputError when the guard says no.
        """
        start = self.timeline.final_position
        far = self._jump(start, rows[0])
        if far > self._settings.jump_limit:
            if self._settings.jump_action == 'reject':
                raise self._too_far(first_row, far)
            ramp = True
        motions = []
        if ramp:
            motions.append(self._ramp(start, rows[0]))
            start, rows = rows[0], rows[1:]
        if len(rows):
            motions.append(plan_rows(start, rows, yam.ROW_PERIOD, *self._caps))
        motion = _joined(motions)
        self._append(now_ns, start_ns, motion, first_row)
        self._row_zero = self.clock.at(start_ns) - (first_row - 1)
        if ramp:
            self.ramp_end_ns = start_ns + round(motions[0].duration * SECOND)
        return motion

    def home(self, now_ns: int, start_ns: int) -> None:
        self._append(now_ns, start_ns, self._ramp(self.timeline.final_position, yam.HOME), None)

    # ---- in motion -----------------------------------------------------------------------------

    def hand_over_ns(self, now_ns: int) -> int:
        """When a chunk that arrives now takes over: at `row_end`, or, if that is past or too near,
        when the row in play and the next one are done."""
        knots = self.timeline.times
        in_play = int(np.searchsorted(knots, now_ns + self._brake_lead_ns, side='right'))
        row_end_ns = self.clock.when(self.row_end)
        last = int(np.searchsorted(knots, row_end_ns - SAME_KNOT_NS))
        return int(knots[min(max(in_play + COMMITTED_ROWS - 1, last), len(knots) - 1)])

    def splice(self, rows: np.ndarray, observed_ns: int, now_ns: int) -> Motion:
        """Hands over to a chunk (n, 14) that was observed at `observed_ns`, in motion.

        Skips the rows that were executed since. Raises InputError when too few are left, FarChunk
        when the next row is too far off; the running motion then goes on.
        """
        from_ns = self.hand_over_ns(now_ns)
        executed = self.executed_between(observed_ns, from_ns)
        skipped = max(0, round(executed))
        if skipped >= len(rows):
            raise InputError(
                f'action chunk: too late, all its {len(rows)} rows are in the past; make inference '
                'faster or use sync mode'
            )
        ahead = np.arange(skipped + 1, len(rows) + 1) - executed
        there, _ = self.timeline.evaluate(from_ns + round(ahead[0] * yam.ROW_PERIOD * SECOND))
        far = self._jump(there, rows[skipped])
        if far > self._settings.jump_limit:
            raise self._too_far(skipped + 1, far)
        speed = self.clock.speed(from_ns, yam.ROW_PERIOD)
        motion = plan_splice(
            self.timeline, from_ns, speed, ahead, rows[skipped:], yam.ROW_PERIOD, *self._caps
        )
        self._append(now_ns, from_ns, motion, skipped + 1)
        self._row_zero = self.clock.at(observed_ns)
        return motion

    def upcoming(self, observed_ns: int, count: int) -> np.ndarray:
        """The next `count` rows after an observation as they will be executed, (count, 14)."""
        rows = self.clock.at(observed_ns) + np.arange(1, count + 1)
        return np.array([self.timeline.evaluate(self.clock.when(row))[0] for row in rows])

    def brake(self, now_ns: int, *, seconds: float = 0.0) -> None:
        """Brakes at the cap, or over `seconds`, from wherever the timeline is; at rest it holds."""
        start_ns = now_ns + self._brake_lead_ns
        position, velocity = self.timeline.evaluate(start_ns)
        brake = plan_brake(position, velocity, self._settings.acceleration_limits, seconds)
        # A rounding error must not end beyond a limit that the rows kept.
        goal = np.clip(brake.positions, yam.COMMAND_LOWER, yam.COMMAND_UPPER)
        self._append(now_ns, start_ns, replace(brake, positions=goal), None)

    def ease(self, now_ns: int) -> None:
        """Comes to rest as every chunk does, not as fast as can be."""
        self.brake(now_ns, seconds=TAIL)

    # ---- inside --------------------------------------------------------------------------------

    @property
    def _caps(self) -> tuple[np.ndarray, np.ndarray]:
        return self._settings.velocity_limits, self._settings.acceleration_limits

    @property
    def _brake_lead_ns(self) -> int:
        return int(self._settings.brake_lead * SECOND)

    def _jump(self, start: np.ndarray, row: np.ndarray) -> float:
        return float(np.abs(row - start)[~yam.GRIPPERS].max())

    def _too_far(self, row: int, far: float) -> FarChunk:
        return FarChunk(
            f'action chunk: row {row} is {far:.2f} rad from where the arms are, over jump_limit '
            f'{self._settings.jump_limit:g}; set jump_action to ramp or check the checkpoint'
        )

    def _ramp(self, start: np.ndarray, goal: np.ndarray) -> Motion:
        return plan_ramp(start, goal, self._settings.ramp_seconds, *self._caps)

    def _append(self, now_ns: int, from_ns: int, motion: Motion, first_row: int | None) -> None:
        times = from_ns + np.round(motion.times * SECOND).astype(np.int64)
        if first_row is not None:  # braking and homing are never refused
            start, _ = self.timeline.evaluate(from_ns)
            if reason := self._guard(np.concatenate([start[None], motion.positions])):
                raise InputError(reason)
        self.ramp_end_ns = 0
        self.began_ns = from_ns
        self.timeline = self.timeline.continued(
            now_ns, from_ns, times, motion.positions, motion.velocities
        )
        self.clock.continue_from(from_ns, times, motion.passed)
        self._first_row = first_row or 1
        self._row_ends = times if first_row else np.zeros(0, dtype=np.int64)


def _joined(motions: list[Motion]) -> Motion:
    """One motion after the other."""
    times, passed = [], []
    for motion in motions:
        times.append(motion.times + (times[-1][-1] if times else 0.0))
        passed.append(motion.passed + (passed[-1][-1] if passed else 0.0))
    return Motion(
        np.concatenate(times),
        np.concatenate([motion.positions for motion in motions]),
        np.concatenate([motion.velocities for motion in motions]),
        np.concatenate(passed),
        max(motion.stretch for motion in motions),
    )
