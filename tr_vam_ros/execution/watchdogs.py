"""The watchdogs that tell when the arms must not move.

Streams are judged by the steady clock at their arrival. In lockstep the simulated clock stands
still while the policy thinks and then runs faster than the wall: there only a clock that never
moves again is a fault.
"""

from __future__ import annotations

import numpy as np

from tr_vam_ros.embodiments import yam
from tr_vam_ros.execution.settings import Settings
from tr_vam_ros.execution.timeline import SECOND, Timeline


class Watchdogs:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.measured: np.ndarray | None = None  # float64 (14,), model units
        self.joints_fault = ''
        self.duplicate = ''  # set by the node: who else publishes on our topics
        self._measured_ns = 0
        self._joints_at: float | None = None
        self._image_at: float | None = None
        self._image_ns = 0
        self._clock_ns, self._clock_at = 0, 0.0
        self._request_at = self._first_request_at = 0.0
        self._sent_at = 0.0
        self._unanswered: set[str] = set()
        self._off_since: float | None = None

    def joints_seen(self, steady: float, stamp_ns: int, measured: np.ndarray) -> None:
        self.measured, self._measured_ns, self._joints_at = measured, stamp_ns, steady
        self.joints_fault = ''

    def image_seen(self, steady: float, stamp_ns: int) -> None:
        if stamp_ns != self._image_ns:  # a stamp that does not advance is a frozen camera
            self._image_ns, self._image_at = stamp_ns, steady

    def request_sent(self, steady: float) -> None:
        self._request_at = self._first_request_at = steady

    def chunk_overdue(self, steady: float) -> bool:
        return steady - self._first_request_at > self._settings.chunk_timeout

    def waiting_for(self, steady: float) -> float:
        return steady - self._first_request_at

    def request_again(self, steady: float, every: float | None = None) -> bool:
        """Whether the request should be repeated: a policy that restarted has never seen it."""
        if steady - self._request_at < (every or self._settings.request_repeat):
            return False
        self._request_at = steady
        return True

    def trajectory_sent(self, steady: float) -> None:
        self._sent_at = steady
        self._off_since = None
        answers = self._settings.expects_answers and not self._settings.dry_run
        self._unanswered = set(yam.ARMS) if answers else set()

    def trajectory_accepted(self, arm: str) -> None:
        self._unanswered.discard(arm)

    def motor_fault(self, steady: float, timeline: Timeline) -> str:
        """Why a motion that was sent is not happening; '' when all is well."""
        return self._answer_fault(steady) or self._tracking_fault(steady, timeline)

    def stream_fault(self, ros_ns: int, steady: float, moving: bool) -> str:
        """Why nothing should be planned or executed now; '' when all is well."""
        if self.duplicate:
            return self.duplicate
        if self.joints_fault:
            return self.joints_fault
        if self._joints_at is None:
            return 'no joint state has come yet: is the hardware or the simulator running?'
        if self._settings.lockstep:
            return self._clock_fault(ros_ns, steady, moving)
        limit = self._settings.stale_after
        if steady - self._joints_at > limit:
            return f'no joint state for {steady - self._joints_at:.1f} s (limit {limit:g} s)'
        ahead = (self._measured_ns - ros_ns) / SECOND
        if ahead > self._settings.future_after:
            return f'joint states are stamped {ahead:.2f} s ahead: synchronise the hosts\' clocks'
        if self._image_at is None:
            return 'no stacked image has come yet: are the cameras and camera_stack running?'
        if steady - self._image_at > limit:
            return f'no new stacked image for {steady - self._image_at:.1f} s (limit {limit:g} s)'
        return ''

    def _clock_fault(self, ros_ns: int, steady: float, moving: bool) -> str:
        if ros_ns != self._clock_ns or not moving:
            self._clock_ns, self._clock_at = ros_ns, steady
        if steady - self._clock_at > self._settings.lockstep_timeout:
            return f'/clock has stood still for {self._settings.lockstep_timeout:g} s'
        return ''

    def _answer_fault(self, steady: float) -> str:
        limit = self._settings.lockstep_timeout if self._settings.lockstep else (
            self._settings.accept_timeout
        )
        if self._unanswered and steady - self._sent_at > limit:
            arms = ' and '.join(sorted(self._unanswered))
            return f'the {arms} controller did not answer a trajectory within {limit:g} s'
        return ''

    def _tracking_fault(self, steady: float, timeline: Timeline) -> str:
        if self._settings.lockstep or self._settings.dry_run or self.measured is None:
            return ''
        planned, _ = timeline.evaluate(self._measured_ns)
        error = np.where(yam.GRIPPERS, 0.0, np.abs(planned - self.measured))
        if error.max() <= self._settings.tracking_error:
            self._off_since = None
            return ''
        if self._off_since is None:
            self._off_since = steady
        if steady - self._off_since <= self._settings.tracking_time:
            return ''
        joint = yam.JOINT_NAMES[int(error.argmax())]
        return (
            f'{joint} is {error.max():.2f} rad off its trajectory for over '
            f'{self._settings.tracking_time:g} s (limit {self._settings.tracking_error:g} rad)'
        )
