"""The chunk executor and episode owner as a state machine without ROS.

    DISARMED --arm--> IDLE --new episode--> PREPARING --scene ready--> WAITING <--resume-- PAUSED
        ^               ^                                               |   ^                ^
        | disarm        | end of episode                    chunk       v   | at rest        | pause
        |               +------------------------ [RAMPING ->] EXECUTING ---+----------------+
        +-- any state                                            |   ^
                                                                 +---+ async: chunk in motion

    HOLDING: a stream went stale; both arms have braked, the episode is over; IDLE when it is back.
    STOPPED: `stop`, or arms that do not do what they were told; latched until armed again.
    PAUSED: both arms have braked, the episode lives and its time stands still.

Sync mode asks for the next chunk to be observed at standstill. Async mode asks while the arms move,
and hands over in motion; when no chunk comes the arms rest at the end of the last one (underrun),
and go on from there.

One instance belongs to one thread. Every method that takes `now` takes the same two clocks: ROS
time for data, the steady clock for watchdogs. Nothing here reads a clock of its own, so a plain
test drives it through hours in milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

import numpy as np

from tr_vam_ros.embodiments import yam
from tr_vam_ros.errors import InputError
from tr_vam_ros.execution.chunk_check import checked_rows, clamped_rows
from tr_vam_ros.execution.episodes import NO_ROWS, Chunk, EpisodeEvent, Episodes, Request
from tr_vam_ros.execution.planner import FarChunk, MotionPlanner
from tr_vam_ros.execution.retiming import Motion
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
    PAUSED = 8


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
    underruns: int = 0


@dataclass(slots=True)
class ChunkExecutor:
    """guard: told a path (n, 14), model units, before it is sent; answers why it must not be."""

    settings: Settings
    outputs: Outputs
    guard: Callable[[np.ndarray], str] = lambda path: ''
    state: State = State.DISARMED
    reason: str = ''
    counters: Counters = field(default_factory=Counters)
    planner: MotionPlanner | None = None  # from the first arming on
    episodes: Episodes = field(init=False)
    watchdogs: Watchdogs = field(init=False)
    _ramp_next: bool = True  # the first chunk after arming is approached slowly
    _observed_ns: int = 0  # the observation of the chunk in play
    _awaiting: bool = False  # async: the next chunk has been asked for
    _rejected_in_a_row: int = 0
    _last_ros_ns: int = 0

    def __post_init__(self) -> None:
        self.episodes = Episodes(self.settings)
        self.watchdogs = Watchdogs(self.settings)

    @property
    def timeline(self) -> Timeline | None:
        """What both controllers were sent last; None before the first arming."""
        return self.planner.timeline if self.planner is not None else None

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
        self._hold_at(now, np.clip(measured, yam.COMMAND_LOWER, yam.COMMAND_UPPER))
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
        self.planner.home(now.ros_ns, self._start_time(now))
        self._send(now)
        self._change(State.IDLE)

    def pause(self, now: Now) -> None:
        """Brakes and keeps the episode. Raises InputError where there is none to keep."""
        if self.state is State.PAUSED:
            return
        if self.settings.lockstep:
            raise InputError('pause: the lockstep clock waits by itself; use real_time')
        if not self._moving and self.state is not State.WAITING:
            raise InputError('pause: no episode is running; nothing to pause')
        if self._moving:
            self._brake(now)
        self.episodes.pause(now.ros_ns)
        self._change(State.PAUSED)

    def resume(self, now: Now) -> None:
        """Goes on with the paused episode, from where the arms then stand."""
        if self.state is not State.PAUSED:
            raise InputError('resume: not paused; nothing to resume')
        rest_ns = max(now.ros_ns, self.timeline.end_ns)
        self._change(State.WAITING)
        self._ask(now, self.episodes.resume(now.ros_ns, rest_ns + self._settle_ns))

    def mark(self, now: Now, success: bool) -> None:
        """The operator's judgement: ends the episode with it, or judges the one that ended last.

        Raises InputError if no episode has run yet.
        """
        outcome = 'success' if success else 'failure'
        reason = 'marked by the operator'
        if not self.episodes.key:
            self.outputs.send_episode(self.episodes.mark_last(outcome, reason))
            return
        self._finish(now, outcome, reason)

    def new_episode(self, now: Now, instruction: str | None = None) -> str:
        """Ends the running episode, starts the next and returns its key.

        Raises InputError when not armed or when the instruction is empty or too long.
        """
        self._require_armed('new episode')
        if self.state is State.HOLDING:
            raise InputError(f'new episode: the arms hold because {self.reason}')
        self.episodes.check(instruction)
        if self._moving:
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
        elif self._moving:
            self.counters.rejected += 1
            self._fault(
                now, f'the {arm} controller rejected a trajectory: {text}', State.STOPPED
            )

    def chunk(self, now: Now, chunk: Chunk) -> None:
        """Executes the awaited chunk, ignores any other, refuses a bad one whole.

        A chunk that is an error ends the episode: the policy lives, but cannot go on with it.
        """
        if self.state is not State.WAITING and not (self._moving and self._awaiting):
            return
        if not self.episodes.awaits(chunk) or self.episodes.succeeded:
            return  # after a success the next tick ends the episode
        if chunk.error:
            self._finish(now, 'fault', f'the policy cannot answer: {chunk.error}')
            return
        try:
            rows = checked_rows(chunk.joint_names, chunk.horizon, chunk.period, chunk.actions)
            rows, clamped = clamped_rows(rows)
            if self._asynchronous:
                self._check_observation(now, chunk.observed_ns)
            plan = self._hand_over if self._moving else self._start
            motion, capped = plan(now, rows, chunk.observed_ns)
        except InputError as error:
            self._reject(now, error)
            return
        self._rejected_in_a_row = 0
        self._ramp_next = self._awaiting = False
        self._observed_ns = chunk.observed_ns
        self.counters.accepted += 1
        self.counters.clamped += clamped
        self.counters.capped += capped
        self._change(State.RAMPING if self.planner.ramp_end_ns else State.EXECUTING)
        self._send(now)
        if not self._asynchronous:
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
        fault = self.watchdogs.stream_fault(now.ros_ns, now.steady, self._moving)
        if self.state is State.HOLDING:
            if not fault and now.ros_ns >= self.timeline.end_ns:
                self._ramp_next = True
                self._change(State.IDLE)
            return
        if fault and self.state is not State.IDLE:
            self._fault(now, fault, State.HOLDING)
            return
        if self._moving and (fault := self.watchdogs.motor_fault(now.steady, self.timeline)):
            self._fault(now, fault, State.STOPPED)
            return
        if self.state is State.RAMPING and now.ros_ns >= self.planner.ramp_end_ns:
            self._change(State.EXECUTING)
        if self._moving and now.ros_ns >= self.timeline.end_ns:
            # Arms that were brought to rest on purpose have not run out of rows.
            ran_out = not (self.episodes.closing or self.planner.resting)
            self.counters.underruns += self._asynchronous and ran_out
            self._change(State.WAITING)
            if self._asynchronous and self.episodes.key and not self._awaiting:
                self._ask_from(now, 0)  # the look-out for it was held up for a whole motion
            self.watchdogs.request_sent(now.steady)
        if self.episodes.key:
            self._advance_episode(now)

    def row_in_play(self, now: Now) -> int:
        """Row of the chunk that is executed now, counted from 1; 0 when none is."""
        return self.planner.row_in_play(now.ros_ns) if self.state is State.EXECUTING else 0

    # ---- the episode goes on ------------------------------------------------------------------

    def _advance_episode(self, now: Now) -> None:
        over = self.episodes.succeeded or self.episodes.over(now.ros_ns)
        if self._moving:
            if not self._asynchronous or self.episodes.closing:
                return
            if over:
                self.planner.ease(now.ros_ns)
                self._send(now)
                self.episodes.close(self.timeline.end_ns)
            else:
                self._ask_ahead(now)
        elif self.episodes.succeeded and now.ros_ns >= self.timeline.end_ns:
            self._finish(now, 'success', self.episodes.succeeded)
        elif over:
            self._finish(now, 'time_out', 'the time of the episode is over')
        elif self.state is State.WAITING:
            if self.watchdogs.chunk_overdue(now.steady):
                limit = self.settings.chunk_timeout
                self._finish(now, 'fault', f'no chunk from the policy in {limit:g} s')
            elif self.watchdogs.request_again(now.steady):
                self.outputs.send_request(self.episodes.request)

    def _ask_ahead(self, now: Now) -> None:
        """Async: asks for the next chunk `request_lead` rows before it should take over."""
        if self._awaiting:  # repeated: the request or its answer may be lost
            if self.watchdogs.request_again(now.steady, self.settings.async_repeat):
                self.outputs.send_request(self.episodes.request)
            return
        planner = self.planner
        left = planner.row_end - planner.clock.at(now.ros_ns)
        if left > self.settings.request_lead:
            return
        self._ask_from(now, max(0, round(left)))

    def _ask_from(self, now: Now, frozen_count: int) -> None:
        executed = round(self.planner.executed_between(self._observed_ns, now.ros_ns))
        frozen = self.planner.upcoming(now.ros_ns, frozen_count) if frozen_count else NO_ROWS
        self._ask(now, self.episodes.ahead(now.ros_ns, executed, frozen))

    def _request(self, now: Now, not_before_ns: int) -> None:
        self._change(State.WAITING)
        self._observed_ns = not_before_ns
        self._ask(now, self.episodes.first_request(not_before_ns))

    def _ask(self, now: Now, request: Request) -> None:
        self.watchdogs.request_sent(now.steady)
        self._awaiting = True
        self.outputs.send_request(request)

    def _reject(self, now: Now, error: InputError) -> None:
        if self._moving and isinstance(error, FarChunk) and self.settings.jump_action == 'ramp':
            # The arms rest, look again, and then approach slowly what is still far.
            self.planner.ease(now.ros_ns)
            self._send(now)
        else:
            self.counters.rejected += 1
            self._rejected_in_a_row += 1
        if self._rejected_in_a_row >= self.settings.most_rejected:
            self._finish(now, 'fault', str(error), str(error))
            return
        self.reason = str(error)
        self.outputs.state_changed()
        changes = {}
        if self._moving:
            looks_ns = now.ros_ns
            if self.planner.resting:
                looks_ns = self.timeline.end_ns + self._settle_ns
            changes = {'not_before_ns': looks_ns, 'frozen_rows': NO_ROWS}
        self._ask(now, self.episodes.again(**changes))

    # ---- motions -------------------------------------------------------------------------------

    def _check_observation(self, now: Now, observed_ns: int) -> None:
        """Async: what was executed since the observation is known up to now, not further."""
        ahead = (observed_ns - now.ros_ns) / SECOND
        if ahead > self.settings.future_after:
            raise InputError(
                f'action chunk: its observation is stamped {ahead:.2f} s ahead of the clock; '
                "synchronise the hosts' clocks"
            )

    def _start(self, now: Now, rows: np.ndarray, observed_ns: int) -> tuple[Motion, bool]:
        """From rest; returns the motion and whether a cap slowed it or cut it short."""
        skipped = 0
        if self._asynchronous:  # the arms may have moved on until the last chunk ran out
            skipped = max(0, round(self.planner.executed_between(observed_ns, now.ros_ns)))
            rows = rows[skipped:]
        else:
            rows = rows[: yam.EXECUTED_ROWS]
        if len(rows) == 0:
            raise InputError('action chunk: too late, all its rows are in the past')
        if self.settings.dry_run:  # nothing has moved: each chunk is previewed from where they are
            self._hold_at(now, self.watchdogs.measured)
        start_ns = self._start_time(now)
        motion = self.planner.start(
            rows, now.ros_ns, start_ns, first_row=skipped + 1, ramp=self._ramp_next
        )
        return motion, motion.stretch > 1.0 or len(motion.times) < len(rows)

    def _hand_over(self, now: Now, rows: np.ndarray, observed_ns: int) -> tuple[Motion, bool]:
        """As `_start`, in motion."""
        motion = self.planner.splice(rows, observed_ns, now.ros_ns)
        left = len(rows) - self.planner.skipped
        return motion, motion.stretch > 1.0 or len(motion.times) < left

    def _hold_at(self, now: Now, position: np.ndarray) -> None:
        self.planner = MotionPlanner(self.settings, now.ros_ns, position, self.guard)

    def _start_time(self, now: Now) -> int:
        if self.settings.lockstep:
            return self.episodes.request.not_before_ns
        return max(now.ros_ns + int(self.settings.lead * SECOND), self.timeline.end_ns)

    def _send(self, now: Now) -> None:
        self.watchdogs.trajectory_sent(now.steady)
        self.outputs.send_timeline(self.timeline)

    def _brake(self, now: Now) -> None:
        self.planner.brake(now.ros_ns)
        self._send(now)

    def _fault(self, now: Now, reason: str, state: State) -> None:
        self._brake(now)
        self._end_episode(now, 'fault', reason)
        self._change(state, reason)

    def _finish(self, now: Now, outcome: str, reason: str, shown: str = '') -> None:
        """Ends the episode; arms that still move come to rest gently."""
        if self._moving:
            self.planner.ease(now.ros_ns)
            self._send(now)
        self._end_episode(now, outcome, reason)
        self._change(State.IDLE, shown)

    def _end_episode(self, now: Now, outcome: str, reason: str) -> None:
        self._awaiting = False
        if not self.episodes.key:
            return
        rest_ns = self.timeline.end_ns if self.timeline is not None else now.ros_ns
        self.outputs.send_episode(self.episodes.end(now.ros_ns, rest_ns, outcome, reason))

    def _clock_jumped_back(self, now: Now) -> None:
        """A bag loop or a simulator reset: nothing timed before it means anything now."""
        self._end_episode(now, 'fault', 'the clock jumped back')
        self.watchdogs = Watchdogs(self.settings)
        self.episodes.forget_time()
        if self.timeline is not None:
            self._hold_at(now, self.timeline.final_position)
        self._change(State.DISARMED, 'the clock jumped back; arm again')

    # ---- small things --------------------------------------------------------------------------

    @property
    def _moving(self) -> bool:
        return self.state in MOVING

    @property
    def _asynchronous(self) -> bool:
        return self.settings.mode == 'async'

    @property
    def _settle_ns(self) -> int:
        return int(self.settings.settle * SECOND)

    def _require_armed(self, what: str) -> None:
        if self.state is State.STOPPED:
            raise InputError(f'{what}: stopped; call ~/arm with true first')
        if self.state is State.DISARMED:
            raise InputError(f'{what}: the arms are not armed; call ~/arm with true first')

    def _change(self, state: State, reason: str = '') -> None:
        self.state, self.reason = state, reason
        self.outputs.state_changed()
