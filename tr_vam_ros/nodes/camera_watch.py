"""Whether a camera is alive: its rate, and whether what it sends is new. No ROS.

A driver that hangs may go on publishing: the same frame with new stamps, or one with an old stamp.
A real sensor is never still, so pixels that do not change at all are a frozen camera.
"""

from __future__ import annotations

import numpy as np

from tr_vam_ros.execution.timeline import SECOND
from tr_vam_ros.nodes.rate import Rate

SILENT_AFTER = 0.3  # s without a new frame until a camera is named
FROZEN_FRAMES = 10  # frames with identical pixels
# Every so many rows are compared: the noise of a sensor shows in each of them.
SAMPLED_ROWS = 8


class CameraWatch:
    """Times are seconds of the steady clock, stamps nanoseconds of ROS time."""

    def __init__(self, name: str, topic: str, steady: float, *, repeats: bool = False) -> None:
        """repeats: whether a frame may come again, as a lockstep simulator sends it."""
        self._name, self._topic, self._repeats_allowed = name, topic, repeats
        self._stamp_ns: int | None = None
        self._sample: np.ndarray | None = None
        self._identical = 1
        self._repeats = False  # whether frames come, but with a stamp that has been there
        self._new_at = steady
        self._refusal = ''  # why the last message was no picture
        self.rate = Rate()

    def add(self, stamp_ns: int, picture: np.ndarray, steady: float) -> bool:
        """Takes a frame, uint8 (h, w, 3); whether it may be used."""
        if self._stamp_ns is not None and self._stamp_ns - SECOND < stamp_ns <= self._stamp_ns:
            self._repeats = True
            return self._repeats_allowed and self._identical < FROZEN_FRAMES
        self._stamp_ns, self._repeats, self._new_at = stamp_ns, False, steady
        self._refusal = ''
        self.rate.add(steady)
        sample = picture[::SAMPLED_ROWS]
        same = self._sample is not None and np.array_equal(sample, self._sample)
        self._identical = self._identical + 1 if same else 1
        if not same:
            self._sample = sample.copy()  # the message's memory lives no longer than the message
        return self._identical < FROZEN_FRAMES

    def refuse(self, reason: str) -> None:
        """The camera sent something that is no picture."""
        self._refusal = f'{self._name}: {reason}'

    def fault(self, steady: float) -> str:
        """What is wrong with the camera now; '' when all is well."""
        if self._refusal:
            return self._refusal
        if self._identical >= FROZEN_FRAMES:
            return (
                f'{self._name} is frozen: {self._identical} frames with identical pixels; restart '
                'its driver'
            )
        if steady - self._new_at <= SILENT_AFTER:
            return ''
        if self._repeats:
            return f'{self._name} is frozen: the stamp of its frames stands still; restart its driver'
        return (
            f'no frame from {self._name} on {self._topic}: check the cable and the driver, then '
            'the topic parameter'
        )
