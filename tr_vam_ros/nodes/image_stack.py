"""When three cameras make one model image. No ROS.

A stack is made when every camera has brought a frame since the last one, if none of them is older
than `max_age` and they lie within `max_skew` of each other. Its stamp is the oldest of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from tr_vam_ros.embodiments import yam
from tr_vam_ros.errors import InputError
from tr_vam_ros.execution.timeline import SECOND


@dataclass(frozen=True, slots=True)
class Stack:
    picture: np.ndarray  # uint8 (168, 672, 3), RGB
    stamp_ns: int
    skew_ns: int


class ImageStack:
    def __init__(self, max_age: float, max_skew: float, max_ahead: float) -> None:
        self._max_age_ns = int(max_age * SECOND)
        self._max_skew_ns = int(max_skew * SECOND)
        self._max_ahead_ns = int(max_ahead * SECOND)
        self._frames: dict[str, tuple[int, np.ndarray]] = {}
        self._fresh: set[str] = set()

    @property
    def missing(self) -> list[str]:
        """Cameras that have brought no frame since the last stack."""
        return [camera for camera in yam.CAMERAS if camera not in self._fresh]

    def add(self, camera: str, stamp_ns: int, picture: np.ndarray, now_ns: int) -> Stack | None:
        """Takes a frame, uint8 (h, w, 3) RGB; returns a stack when one is complete.

        Raises InputError when the frames cannot be put together: wrong aspect, age, skew, future.
        """
        height, width = picture.shape[:2]
        if width * yam.VIEW_HEIGHT != height * yam.VIEW_WIDTH:
            raise InputError(
                f'camera {camera}: {width}x{height} is not 4:3; the policy sees '
                f'{yam.VIEW_WIDTH}x{yam.VIEW_HEIGHT}: set the driver to 640x480'
            )
        if stamp_ns > now_ns + self._max_ahead_ns:
            raise InputError(
                f'camera {camera}: stamped {(stamp_ns - now_ns) / SECOND:.2f} s in the future; '
                "synchronise the hosts' clocks"
            )
        self._frames[camera] = (stamp_ns, picture)
        self._fresh.add(camera)
        if self.missing:
            return None
        stamps = [self._frames[c][0] for c in yam.CAMERAS]
        oldest, skew = min(stamps), max(stamps) - min(stamps)
        if skew > self._max_skew_ns:
            # The late camera has to catch up; the others keep what they have.
            self._fresh.discard(yam.CAMERAS[stamps.index(oldest)])
            raise InputError(
                f'cameras: {skew / SECOND:.3f} s apart, over max_skew '
                f'{self._max_skew_ns / SECOND:g} s; {yam.CAMERAS[stamps.index(oldest)]} is late'
            )
        if now_ns - oldest > self._max_age_ns:
            self._fresh.discard(yam.CAMERAS[stamps.index(oldest)])
            raise InputError(
                f'camera {yam.CAMERAS[stamps.index(oldest)]}: frame is '
                f'{(now_ns - oldest) / SECOND:.2f} s old, over max_age '
                f'{self._max_age_ns / SECOND:g} s; is the machine overloaded?'
            )
        self._fresh.clear()
        views = [_view(self._frames[c][1]) for c in yam.CAMERAS]
        return Stack(np.concatenate(views, axis=1), oldest, skew)


def _view(picture: np.ndarray) -> np.ndarray:
    if picture.shape[:2] == (yam.VIEW_HEIGHT, yam.VIEW_WIDTH):
        return picture
    return cv2.resize(
        picture, (yam.VIEW_WIDTH, yam.VIEW_HEIGHT), interpolation=cv2.INTER_AREA
    )
