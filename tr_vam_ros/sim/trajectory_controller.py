"""The Jazzy joint_trajectory_controller restated in NumPy, for the simulated cell.

It follows ros2_controllers 4.42.1 (branch jazzy) for position commands, position and velocity
states and the trajectory topic, including what surprises: the running trajectory is replaced at
once, a stamp of zero starts from the measured state, NaN is commanded. Its test replays
recordings of the real controller.

Not restated: the action, accelerations and effort, speed scaling, joints that wrap around.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tr_vam_ros.errors import InputError
from tr_vam_ros.sim.trajectory import (
    NANOSECONDS,
    Curve,
    Trajectory,
    TrajectoryPoint,
    cubic,
    evaluate,
    evaluate_velocity,
    linear,
    rejection,
)

__all__ = ['Trajectory', 'TrajectoryController', 'TrajectoryPoint']

INTERPOLATION_METHODS = ('splines', 'none')


class TrajectoryController:
    """One arm's controller. `update` belongs to one thread; `accept` may come from another.

    Parameters carry the real ones' names and defaults. path_tolerances and goal_tolerances map
    joint names to rad (`constraints.<joint>.trajectory` and `.goal`; absent or 0: none), times
    are seconds (goal_time 0: wait for ever; cmd_timeout 0: off), rate is updates a second.
    report is called with each line that the real controller logs while it runs.

    Raises InputError for an unknown interpolation_method.
    """

    def __init__(
        self,
        joint_names: Sequence[str],
        *,
        interpolate_from_desired_state: bool = False,
        allow_nonzero_velocity_at_trajectory_end: bool = False,
        allow_partial_joints_goal: bool = False,
        interpolation_method: str = 'splines',
        cmd_timeout: float = 0.0,
        path_tolerances: Mapping[str, float] | None = None,
        goal_tolerances: Mapping[str, float] | None = None,
        goal_time: float = 0.0,
        rate: int = 250,
        report: Callable[[str], None] = lambda line: None,
    ):
        if interpolation_method not in INTERPOLATION_METHODS:
            raise InputError(
                f'interpolation_method {interpolation_method!r} is unknown; '
                f'use one of {", ".join(INTERPOLATION_METHODS)}'
            )
        self.joint_names = tuple(joint_names)
        self._from_desired = interpolate_from_desired_state
        self._allow_nonzero_end = allow_nonzero_velocity_at_trajectory_end
        self._allow_partial = allow_partial_joints_goal
        self._hold_rows = interpolation_method == 'none'
        self._path_tolerances = self._limits(path_tolerances)
        self._goal_tolerances = self._limits(goal_tolerances)
        self._goal_time = goal_time
        self._timeout = cmd_timeout
        self._period_ns = NANOSECONDS // rate
        self._report = report
        if 0.0 < cmd_timeout <= goal_time:
            self._timeout = 0.0
            report(
                'Command timeout must be higher than goal_time tolerance '
                f'({cmd_timeout:f} vs. {goal_time:f})'
            )
        self.reset()

    def _limits(self, tolerances: Mapping[str, float] | None) -> np.ndarray | None:
        """Float64 (n,), infinity where there is no tolerance; None if there is none at all."""
        values = [(tolerances or {}).get(name, 0.0) for name in self.joint_names]
        if not any(value > 0.0 for value in values):
            return None
        return np.array([value if value > 0.0 else np.inf for value in values])

    def reset(self) -> None:
        """Forget everything, as deactivation does: the next update holds where the arm then is."""
        self._pending: Curve | None = None  # the newest trajectory, taken over by `update`
        self._hold: Curve | None = None  # the controller's own one-point trajectory
        self._curve: Curve | None = None  # the trajectory in execution ...
        self._start_ns = 0  # ... its start ...
        self._row = 0  # ... and the row from where the search goes on
        self._lead: np.ndarray | None = None  # cubic (4, n) from the state before to point 0 ...
        self._lead_ns = 0  # ... and the time of that state
        self._command: np.ndarray | None = None  # the last command, with its cubic and time in it
        self._command_cubic = np.zeros((4, len(self.joint_names)))
        self._command_seconds = 0.0
        self._command_ns = 0
        self._end_velocity: np.ndarray | None = None  # of the last row, once it is played out

    @property
    def setpoint(self) -> tuple[np.ndarray, np.ndarray]:
        """Last commanded positions and velocities, float64 (n,) each; for reading only.

        Once played out, the velocity is the last row's, moving or not: the real one's report.
        Raises RuntimeError before the first update.
        """
        if self._command is None:
            raise RuntimeError('there is no setpoint before the first update')
        if self._end_velocity is not None:
            return self._command, self._end_velocity
        return self._command, evaluate_velocity(self._command_cubic, self._command_seconds)

    @property
    def holding(self) -> bool:
        """True from the start, a timeout or a violated tolerance until the next trajectory."""
        return self._pending is self._hold

    def accept(self, trajectory: Trajectory, now_ns: int) -> str:
        """Take a trajectory over at the next update and return '', or the reason why not.

        A refused trajectory changes nothing. Of a name given twice the last column counts, and
        the joint that is missing instead keeps its last command (undefined in the real one).
        """
        reason = rejection(
            trajectory,
            self.joint_names,
            now_ns,
            allow_partial=self._allow_partial,
            allow_nonzero_end=self._allow_nonzero_end,
        )
        if not reason:
            self._pending = Curve(trajectory, self.joint_names, self._hold_rows)
        return reason

    def update(
        self,
        now_ns: int,
        measured_positions: np.ndarray,
        measured_velocities: np.ndarray | None = None,
    ) -> np.ndarray:
        """Command for the period that begins at `now_ns`: positions, float64 (n,), rad or m.

        measured_positions, measured_velocities: float64 (n,), in the order of `joint_names`;
        None where the hardware measures no velocity. The result is not changed afterwards.
        """
        if self._command is None:
            self._activate(now_ns, measured_positions)
        curve = self._pending
        first = curve is not self._curve
        if first:
            self._begin(curve, now_ns, measured_positions, measured_velocities)
        if now_ns < self._lead_ns:  # the clock went back behind the start
            return self._command

        since_start = now_ns - self._start_ns
        row = curve.locate(since_start, self._row)
        if row != Curve.LEAD:
            self._row = row
        command_row = curve.locate(since_start + self._period_ns, self._row)
        played_out = command_row == curve.last
        if played_out:
            self._row = command_row

        if curve is not self._hold:
            # In floating point, as the real one: 0.2 s after 1001 s exceeds a limit of 0.2 s.
            end_ns = self._start_ns + curve.times_ns[-1]
            overtime = now_ns / NANOSECONDS - end_ns / NANOSECONDS
            if played_out and 0.0 < self._timeout < overtime:
                # This update still commands the last row.
                self._hold_at(measured_positions, curve, 'Aborted due to command timeout')
            elif self._violates(first, played_out, overtime, row, now_ns, measured_positions):
                return self._command

        # The command is where the trajectory will be at the next update.
        piece = self._piece(command_row, now_ns + self._period_ns)
        self._command_cubic, self._command_seconds = piece
        self._command = evaluate(self._command_cubic, self._command_seconds)
        self._command_ns = now_ns
        self._end_velocity = curve.velocities[-1] if played_out else None
        return self._command

    def _activate(self, now_ns: int, measured: np.ndarray) -> None:
        self._command = self._command_cubic[0] = np.array(measured, dtype=np.float64)
        self._command_ns = now_ns
        if self._pending is None:
            self._hold_at(measured, None)

    def _hold_at(self, positions: np.ndarray, replaced: Curve | None, line: str = '') -> None:
        """Hold from the next update on, unless a new trajectory came in meanwhile."""
        point = TrajectoryPoint(0, positions)
        hold = Curve(Trajectory(0, self.joint_names, (point,)), self.joint_names, self._hold_rows)
        if self._pending is replaced:
            self._pending = self._hold = hold
        if line:
            self._report(line)

    def _begin(
        self, curve: Curve, now_ns: int, positions: np.ndarray, velocities: np.ndarray | None
    ) -> None:
        """Replace the running trajectory, remembering the state from which the new one starts."""
        self._curve, self._row = curve, 0
        self._start_ns = curve.stamp_ns or now_ns
        if curve.missing:
            curve.fill(self._command)
        self._lead_ns = now_ns
        if self._from_desired:
            # The command is that of the following period, the time that of its update: the
            # real controller's clock is one period off here, which shows as a velocity spike.
            positions, velocities = self.setpoint
            self._lead_ns = self._command_ns
        seconds = (self._start_ns + curve.times_ns[0] - self._lead_ns) / NANOSECONDS
        if seconds <= 0.0:
            self._lead = None  # point 0 is already due: no blending
        elif self._hold_rows:
            self._lead = np.zeros_like(curve.coefficients[0])
            self._lead[0] = positions
        elif curve.starts_with_velocities:
            still = np.zeros_like(curve.velocities[0])
            start_velocity = still if velocities is None else velocities
            self._lead = cubic(
                positions, curve.positions[0], start_velocity, curve.velocities[0], seconds
            )
        else:
            self._lead = linear(positions, curve.positions[0], seconds)

    def _piece(self, row: int, time_ns: int) -> tuple[np.ndarray, float]:
        """Cubic (4, n) of a row, and the seconds from its start to a time."""
        if row == Curve.LEAD:
            return self._lead, (time_ns - self._lead_ns) / NANOSECONDS
        elapsed_ns = time_ns - self._start_ns - self._curve.times_ns[row]
        return self._curve.coefficients[row], elapsed_ns / NANOSECONDS

    def _violates(
        self,
        first: bool,
        played_out: bool,
        overtime: float,
        row: int,
        now_ns: int,
        measured: np.ndarray,
    ) -> bool:
        """Check the tolerances; on a violation begin to hold the measured position."""
        path = self._path_tolerances if first or not played_out else None
        goal = self._goal_tolerances if played_out else None
        late = 0.0 < self._goal_time < overtime
        if path is None and (goal is None or not late):
            return False
        error = np.abs(evaluate(*self._piece(row, now_ns)) - measured)
        if path is not None and (error > path).any():
            line = 'Holding position due to state tolerance violation'
        elif goal is not None and late and (error > goal).any():
            line = 'Exceeded goal_time_tolerance: holding position...'
        else:
            return False
        self._hold_at(measured, self._curve, line)
        return True
