"""When three cameras make one model image. No ROS.

On a robot a stack is made when every camera has brought a frame since the last one, if none of them
is older than `max_age` and they lie within `max_skew` of each other. A lockstep simulator gives its
three cameras one stamp and may be ahead of any clock: there a stack is made of equal stamps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tr_vam_ros.embodiments import yam
from tr_vam_ros.embodiments.views import fit, is_undistorted
from tr_vam_ros.errors import InputError
from tr_vam_ros.execution.timeline import SECOND

# Moments of which a lockstep stack waits for the last frame; more is a camera that brings none.
KEPT_MOMENTS = 10


@dataclass(frozen=True, slots=True)
class Stack:
    picture: np.ndarray  # uint8 (168, 672, 3), RGB
    stamp_ns: int  # of the oldest frame
    skew_ns: int
    distorted: tuple[str, ...]  # cameras whose aspect is not the view's

    def frame_id(self, resize_mode: str) -> str:
        """Says how a picture of another aspect was fitted, for a policy that knows another way."""
        return f'stacked_{resize_mode}' if self.distorted else 'stacked'


class ImageStack:
    def __init__(
        self, max_age: float, max_skew: float, max_ahead: float, resize_mode: str = 'stretch'
    ) -> None:
        """Seconds."""
        self._max_age_ns = int(max_age * SECOND)
        self._max_skew_ns = int(max_skew * SECOND)
        self._max_ahead_ns = int(max_ahead * SECOND)
        self._resize_mode = resize_mode
        self._frames: dict[str, tuple[int, np.ndarray]] = {}
        self._fresh: set[str] = set()

    def add(self, camera: str, stamp_ns: int, picture: np.ndarray, now_ns: int) -> Stack | None:
        """Takes a frame, uint8 (h, w, 3) RGB; returns a stack when one is complete.

        Raises InputError when the frames cannot be put together: age, skew, future.
        """
        if stamp_ns > now_ns + self._max_ahead_ns:
            raise InputError(
                f'camera {camera}: stamped {(stamp_ns - now_ns) / SECOND:.2f} s in the future; '
                "synchronise the hosts' clocks"
            )
        self._frames[camera] = (stamp_ns, picture)
        self._fresh.add(camera)
        if len(self._fresh) < len(yam.CAMERAS):
            return None
        stamps = {name: frame[0] for name, frame in self._frames.items()}
        last = min(stamps, key=stamps.get)
        oldest, skew = stamps[last], max(stamps.values()) - stamps[last]
        if skew > self._max_skew_ns:
            # The late camera has to catch up; the others keep what they have.
            self._fresh.discard(last)
            raise InputError(
                f'cameras: {skew / SECOND:.3f} s apart, over max_skew '
                f'{self._max_skew_ns / SECOND:g} s; {last} is late'
            )
        if now_ns - oldest > self._max_age_ns:
            self._fresh.discard(last)
            raise InputError(
                f'camera {last}: frame is {(now_ns - oldest) / SECOND:.2f} s old, over max_age '
                f'{self._max_age_ns / SECOND:g} s; is the machine overloaded?'
            )
        self._fresh.clear()
        return _join({c: p for c, (_, p) in self._frames.items()}, oldest, skew, self._resize_mode)


class LockstepStack:
    def __init__(self, resize_mode: str = 'stretch') -> None:
        self._resize_mode = resize_mode
        self._moments: dict[int, dict[str, np.ndarray]] = {}

    def add(self, camera: str, stamp_ns: int, picture: np.ndarray, now_ns: int) -> Stack | None:
        """As `ImageStack.add`; a set of frames that is sent again makes a stack again."""
        moment = self._moments.setdefault(stamp_ns, {})
        moment[camera] = picture
        if len(moment) < len(yam.CAMERAS):
            while len(self._moments) > KEPT_MOMENTS:
                del self._moments[min(self._moments)]
            return None
        # What is older and incomplete is over: stacks go out in order.
        self._moments = {s: frames for s, frames in self._moments.items() if s > stamp_ns}
        return _join(moment, stamp_ns, 0, self._resize_mode)


def _join(pictures: dict[str, np.ndarray], stamp_ns: int, skew_ns: int, resize_mode: str) -> Stack:
    size = (yam.VIEW_WIDTH, yam.VIEW_HEIGHT)
    views = [fit(pictures[camera], *size, resize_mode) for camera in yam.CAMERAS]
    distorted = tuple(c for c in yam.CAMERAS if not is_undistorted(pictures[c], *size))
    return Stack(np.concatenate(views, axis=1), stamp_ns, skew_ns, distorted)
