"""The chunk executor and episode owner as a state machine without ROS.

    DISARMED --arm--> IDLE --new episode--> PREPARING --scene ready--> WAITING
        ^               ^                                               |   ^
        | disarm        | end of episode                    chunk       v   | next request
        |               +------------------------ [RAMPING ->] EXECUTING ---+
        +-- any state

    HOLDING: a stream went stale; both arms have braked, the episode is over; IDLE when it is back.
    STOPPED: `stop`, or arms that do not do what they were told; latched until armed again.

One instance belongs to one thread. Every method that takes `now` takes the same two clocks: ROS
time for data, the steady clock for watchdogs. Nothing here reads a clock of its own, so a plain
test drives it through hours in milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Protocol

import numpy as np

from tr_vam_ros.embodiments import yam
from tr_vam_ros.errors import InputError
from tr_vam_ros.execution.chunk_check import checked_rows, clamped_rows
from tr_vam_ros.execution.episodes import Chunk, EpisodeEvent, Episodes, Request
from tr_vam_ros.execution.retiming import Motion, plan_brake, plan_ramp, plan_rows
from tr_vam_ros.execution.settings import Settings
from tr_vam_ros.execution.timeline import SECOND, Timeline
from tr_vam_ros.execution.watchdogs import Watchdogs


class State(IntEnum):
    """Values of ExecutorState.state."""

    DISARMED = 0
    IDLE = 1
    PREPARING = 2
    WAITING = 3
    RAMPING = 4
    EXECUTING = 5
    HOLDING = 6
    STOPPED = 7


MOVING = (State.RAMPING, State.EXECUTING)


@dataclass(frozen=True, slots=True)
class Now:
    ros_ns: int
    steady: float  # s


class Outputs(Protocol):
    """What the executor does to the world. Called on the thread that called the executor."""

    def send_timeline(self, timeline: Timeline) -> None:
        """Send both arms or none."""

    def send_request(self, request: Request) -> None: ...

    def send_episode(self, event: EpisodeEvent) -> None: ...

    def state_changed(self) -> None: ...


@dataclass(slots=True)
class Counters:
    accepted: int = 0
    rejected: int = 0
    clamped: int = 0
    capped: int = 0


@dataclass(slots=True)
class ChunkExecutor:
    settings: Settings
    outputs: Outputs
    state: State = State.DISARMED
    reason: str = ''
    counters: Counters = field(default_factory=Counters)
    timeline: Timeline | None = None
    episodes: Episodes = field(init=False)
    watchdogs: Watchdogs = field(init=False)
    _ramp_next: bool = True  # the first chunk after arming is approached slowly
    _ramp_end_ns: int = 0
    _row_ends: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    _rejected_in_a_row: int = 0
    _last_ros_ns: int = 0

    def __post_init__(self) -> None:
        self.episodes = Episodes(self.settings)
        self.watchdogs = Watchdogs(self.settings)

    # ---- commands of the user -------------------------------------------------------------

    def arm(self, now: Now) -> None:
        """Raises InputError when the arms cannot be armed; the state is then unchanged."""
        if self.state not in (State.DISARMED, State.STOPPED):
            return
        fault = self.watchdogs.stream_fault(now.ros_ns, now.steady, moving=False)
        if fault:
            raise InputError(f'not armed: {fault}')
        measured = self.watchdogs.measured
        outside = (measured < yam.COMMAND_LOWER - yam.HARD_LIMIT_MARGIN) | (
            measured > yam.COMMAND_UPPER + yam.HARD_LIMIT_MARGIN
        )
        if outside.any():
            names = ', '.join(n for n, bad in zip(yam.JOINT_NAMES, outside) if bad)
            raise InputError(f'not armed: {names} outside the joint limits; move the arm by hand')
        held = np.clip(measured, yam.COMMAND_LOWER, yam.COMMAND_UPPER)
        self.timeline = Timeline.at_rest(now.ros_ns, held)
        self._ramp_next = True
        self._rejected_in_a_row = 0
        self._change(State.IDLE)

    def disarm(self, now: Now) -> None:
        if self.state is State.DISARMED:
            return
        self._brake(now)
        self._end_episode(now, 'stopped', 'disarmed')
        self._change(State.DISARMED)

    def stop(self, now: Now) -> None:
        """Brakes both arms at the acceleration cap and latches. Always works."""
        if self.state in (State.DISARMED, State.STOPPED):
            return
        self._brake(now)
        self._end_episode(now, 'stopped', 'stop was called')
        self._change(State.STOPPED, 'stop was called; arm again to go on')

    def home(self, now: Now) -> None:
        """Ends the episode and moves slowly to the home pose. Raises InputError if not armed."""
        self._require_armed('home')
        if self.settings.lockstep:
            raise InputError('home: the lockstep clock runs only inside episodes; use real_time')
        self._brake(now)
        self._end_episode(now, 'stopped', 'home was called')
        ramp = self._ramp_to(self.timeline.final_position, yam.HOME)
        self._append(max(self._start_time(now), self.timeline.end_ns), [ramp])
        self._send(now)
        self._change(State.IDLE)

    def new_episode(self, now: Now, instruction: str | None = None) -> str:
        """Ends the running episode, starts the next and returns its key.

        Raises InputError when not armed or when the instruction is empty or too long.
        """
        self._require_armed('new episode')
        if self.state is State.HOLDING:
            raise InputError(f'new episode: the arms hold because {self.reason}')
        self.episodes.check(instruction)
        if self.state in MOVING:
            self._brake(now)
        self._end_episode(now, 'new_instruction', 'a new episode was asked for')
        event = self.episodes.begin(now.ros_ns, self.timeline.end_ns, instruction)
        self._change(State.PREPARING)
        self.outputs.send_episode(event)
        if not self.settings.wait_for_scene:
            self._request(now, event.stamp_ns)
        return event.key

    # ---- data ------------------------------------------------------------------------------

    def joint_state(self, now: Now, stamp_ns: int, names, positions) -> None:
        """Takes a JointState; a bad one is remembered as the fault it is, never used."""
        try:
            self.watchdogs.joints_seen(
                now.steady, stamp_ns, yam.proprio_from_joint_state(names, positions)
            )
        except InputError as error:
            self.watchdogs.joints_fault = str(error)

    def image(self, now: Now, stamp_ns: int) -> None:
        self.watchdogs.image_seen(now.steady, stamp_ns)

    def scene_ready(self, now: Now, key: str, stamp_ns: int) -> None:
        if self.state is State.PREPARING and key == self.episodes.key:
            self._request(now, stamp_ns)

    def success(self, now: Now, key: str, text: str) -> None:
        if key and key == self.episodes.key:
            self.episodes.succeeded = text or 'the scene reports success'

    def trajectory_answer(self, now: Now, arm: str, accepted: bool, text: str) -> None:
        """The simulator's answer to a trajectory (the real controller gives none)."""
        if accepted:
            self.watchdogs.trajectory_accepted(arm)
        elif self.state in MOVING:
            self.counters.rejected += 1
            self._fault(
                now, f'the {arm} controller rejected a trajectory: {text}', State.STOPPED
            )

    def chunk(self, now: Now, chunk: Chunk) -> None:
        """Executes the awaited chunk, ignores any other, refuses a bad one whole.

        A chunk that is an error ends the episode: the policy lives, but cannot go on with it.
        """
        if self.state is not State.WAITING or not self.episodes.awaits(chunk):
            return
        if self.episodes.succeeded:
            return  # the next tick ends the episode
        if chunk.error:
            self._end_episode(now, 'fault', f'the policy cannot answer: {chunk.error}')
            self._change(State.IDLE)
            return
        try:
            rows = checked_rows(chunk.joint_names, chunk.horizon, chunk.period, chunk.actions)
            rows, clamped = clamped_rows(rows)
            motions = self._plan(rows[: yam.EXECUTED_ROWS])
        except InputError as error:
            self._reject(now, str(error))
            return
        self._rejected_in_a_row = 0
        self.counters.accepted += 1
        self.counters.clamped += clamped
        motion = motions[-1]
        self.counters.capped += motion.stretch > 1.0 or motion.rows < yam.EXECUTED_ROWS
        self._append(self._start_time(now), motions)
        self._ramp_next = False
        self._change(State.RAMPING if len(motions) > 1 else State.EXECUTING)
        self._send(now)
        following = self.episodes.following(self.timeline.end_ns, motion.rows)
        if isinstance(following, Request):
            self.outputs.send_request(following)
        else:
            self.outputs.send_episode(following)

    # ---- time ------------------------------------------------------------------------------

    def tick(self, now: Now) -> None:
        """Watchdogs and transitions that time alone brings. Call at 50 Hz or more."""
        if now.ros_ns < self._last_ros_ns - SECOND // 10:
            self._clock_jumped_back(now)
        self._last_ros_ns = now.ros_ns
        if self.state in (State.DISARMED, State.STOPPED):
            return
        moving = self.state in MOVING
        fault = self.watchdogs.stream_fault(now.ros_ns, now.steady, moving)
        if self.state is State.HOLDING:
            if not fault and now.ros_ns >= self.timeline.end_ns:
                self._ramp_next = True
                self._change(State.IDLE)
            return
        if fault and self.state is not State.IDLE:
            self._fault(now, fault, State.HOLDING)
            return
        if moving and (fault := self.watchdogs.motor_fault(now.steady, self.timeline)):
            self._fault(now, fault, State.STOPPED)
            return
        if self.state is State.RAMPING and now.ros_ns >= self._ramp_end_ns:
            self._change(State.EXECUTING)
        if moving and now.ros_ns >= self.timeline.end_ns:
            self.watchdogs.request_sent(now.steady)
            self._change(State.WAITING)
        if self.episodes.key:
            self._advance_episode(now)

    def row_in_play(self, now: Now) -> int:
        """Row of the chunk that is executed now, counted from 1; 0 when none is."""
        if self.state is not State.EXECUTING:
            return 0
        return min(int(np.searchsorted(self._row_ends, now.ros_ns)) + 1, len(self._row_ends))

    # ---- inside ------------------------------------------------------------------------------

    def _advance_episode(self, now: Now) -> None:
        if self.state in MOVING:
            return
        if self.episodes.succeeded and now.ros_ns >= self.timeline.end_ns:
            self._end_episode(now, 'success', self.episodes.succeeded)
            self._change(State.IDLE)
        elif self.episodes.over(now.ros_ns):
            self._end_episode(now, 'time_out', 'the time of the episode is over')
            self._change(State.IDLE)
        elif self.state is State.WAITING:
            if self.watchdogs.chunk_overdue(now.steady):
                self._end_episode(
                    now, 'fault', f'no chunk from the policy in {self.settings.chunk_timeout:g} s'
                )
                self._change(State.IDLE)
            elif self.watchdogs.request_again(now.steady):
                self.outputs.send_request(self.episodes.request)

    def _request(self, now: Now, not_before_ns: int) -> None:
        request = self.episodes.first_request(not_before_ns)
        self.watchdogs.request_sent(now.steady)
        self._change(State.WAITING)
        self.outputs.send_request(request)

    def _reject(self, now: Now, reason: str) -> None:
        self.counters.rejected += 1
        self._rejected_in_a_row += 1
        self.reason = reason
        if self._rejected_in_a_row >= self.settings.most_rejected:
            self._end_episode(now, 'fault', reason)
            self._change(State.IDLE, reason)
            return
        self.watchdogs.request_sent(now.steady)
        self.outputs.state_changed()
        self.outputs.send_request(self.episodes.again())

    def _plan(self, rows: np.ndarray) -> list[Motion]:
        start = self.timeline.final_position
        jump = np.abs(rows[0] - start)[~yam.GRIPPERS]
        far = float(jump.max()) > self.settings.jump_limit
        if far and self.settings.jump_action == 'reject':
            raise InputError(
                f'action chunk: row 1 is {jump.max():.2f} rad from where the arms stand, over '
                f'jump_limit {self.settings.jump_limit:g}; set jump_action to ramp or check the '
                'checkpoint'
            )
        motions = []
        if far or self._ramp_next:
            motions.append(self._ramp_to(start, rows[0]))
            start, rows = rows[0], rows[1:]
        motions.append(
            plan_rows(
                start,
                rows,
                yam.ROW_PERIOD,
                self.settings.velocity_limits,
                self.settings.acceleration_limits,
            )
        )
        if len(motions) == 2:  # the ramp has executed row 1
            motions[1] = replace(motions[1], rows=motions[1].rows + 1)
        return motions

    def _ramp_to(self, start: np.ndarray, goal: np.ndarray) -> Motion:
        return plan_ramp(
            start,
            goal,
            self.settings.ramp_seconds,
            self.settings.velocity_limits,
            self.settings.acceleration_limits,
        )

    def _start_time(self, now: Now) -> int:
        if self.settings.lockstep:
            return self.episodes.request.not_before_ns
        return max(now.ros_ns + int(self.settings.lead * SECOND), self.timeline.end_ns)

    def _append(self, start_ns: int, motions: list[Motion]) -> None:
        times, end = [], start_ns
        for motion in motions:
            self._ramp_end_ns = end
            times.append(end + np.round(motion.times * SECOND).astype(np.int64))
            end = int(times[-1][-1])
        self._row_ends = times[-1]
        self.timeline = self.timeline.continued(
            start_ns,
            np.concatenate(times),
            np.concatenate([motion.positions for motion in motions]),
            np.concatenate([motion.velocities for motion in motions]),
        )

    def _send(self, now: Now) -> None:
        self.watchdogs.trajectory_sent(now.steady)
        self.outputs.send_timeline(self.timeline)

    def _brake(self, now: Now) -> None:
        """Brakes at the cap from wherever the timeline is; at rest it re-sends the hold."""
        start_ns = now.ros_ns + int(self.settings.brake_lead * SECOND)
        position, velocity = self.timeline.evaluate(start_ns)
        brake = plan_brake(position, velocity, self.settings.acceleration_limits)
        # A rounding error must not end beyond a limit that the rows kept.
        goal = np.clip(brake.positions, yam.COMMAND_LOWER, yam.COMMAND_UPPER)
        self._append(start_ns, [replace(brake, positions=goal)])
        self._row_ends = np.zeros(0, dtype=np.int64)
        self._send(now)

    def _fault(self, now: Now, reason: str, state: State) -> None:
        self._brake(now)
        self._end_episode(now, 'fault', reason)
        self._change(state, reason)

    def _end_episode(self, now: Now, outcome: str, reason: str) -> None:
        if not self.episodes.key:
            return
        rest_ns = self.timeline.end_ns if self.timeline is not None else now.ros_ns
        self.outputs.send_episode(self.episodes.end(now.ros_ns, rest_ns, outcome, reason))

    def _clock_jumped_back(self, now: Now) -> None:
        """A bag loop or a simulator reset: nothing timed before it means anything now."""
        held = self.timeline.final_position if self.timeline is not None else None
        self._end_episode(now, 'fault', 'the clock jumped back')
        self.watchdogs = Watchdogs(self.settings)
        self.episodes.forget_time()
        if held is not None:
            self.timeline = Timeline.at_rest(now.ros_ns, held)
        self._change(State.DISARMED, 'the clock jumped back; arm again')

    def _require_armed(self, what: str) -> None:
        if self.state is State.STOPPED:
            raise InputError(f'{what}: stopped; call ~/arm with true first')
        if self.state is State.DISARMED:
            raise InputError(f'{what}: the arms are not armed; call ~/arm with true first')

    def _change(self, state: State, reason: str = '') -> None:
        self.state, self.reason = state, reason
        self.outputs.state_changed()
