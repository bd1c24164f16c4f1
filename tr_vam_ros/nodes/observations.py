"""Pairs a stacked image with the joint state of its moment. Thread-safe, no ROS.

The rule of the training data: the first image stamped at or after `not_before`, and the joint
state nearest to its stamp, within 20 ms.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

import numpy as np

from tr_vam_ros.errors import InputError
from tr_vam_ros.execution.timeline import SECOND

NEAREST_NS = 20_000_000
KEPT_IMAGES = 60  # 2 s
KEPT_JOINT_STATES = 1000  # 2 s at 500 Hz


@dataclass(frozen=True, slots=True)
class Observation:
    image: np.ndarray  # uint8 (h, w, 3)
    proprio: np.ndarray  # float32 (d,), model units
    stamp_ns: int  # of the image


class Observations:
    def __init__(self) -> None:
        self._images: deque[tuple[int, np.ndarray]] = deque(maxlen=KEPT_IMAGES)
        self._joints: deque[tuple[int, np.ndarray]] = deque(maxlen=KEPT_JOINT_STATES)
        self.changed = threading.Condition()

    def add_image(self, stamp_ns: int, image: np.ndarray) -> None:
        with self.changed:
            if self._images and stamp_ns < self._images[-1][0] - SECOND:
                self._images.clear()  # the clock jumped back
            self._images.append((stamp_ns, image))
            self.changed.notify_all()

    def add_joints(self, stamp_ns: int, proprio: np.ndarray) -> None:
        with self.changed:
            if self._joints and stamp_ns < self._joints[-1][0] - SECOND:
                self._joints.clear()
            self._joints.append((stamp_ns, proprio))
            self.changed.notify_all()

    def pair(self, not_before_ns: int) -> Observation | None:
        """The observation for a request, or None while it has not come yet.

        Call with `changed` held. Raises InputError when the joint states around the image are too
        far from it to be its own.
        """
        image = next(((s, p) for s, p in self._images if s >= not_before_ns), None)
        # Until a joint state as late as the image is in, the nearest is not known.
        if image is None or not self._joints or self._joints[-1][0] < image[0]:
            return None
        stamp_ns, proprio = min(self._joints, key=lambda joint: abs(joint[0] - image[0]))
        if abs(stamp_ns - image[0]) > NEAREST_NS:
            raise InputError(
                f'observation: the nearest joint state is {abs(stamp_ns - image[0]) / 1e6:.0f} ms '
                f'from the image, over {NEAREST_NS // 1_000_000} ms; check the rate of the joint '
                "states and the hosts' clocks"
            )
        return Observation(image[1], proprio.astype(np.float32), image[0])
