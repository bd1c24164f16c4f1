"""H.264 video of a camera topic, by PyAV."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np

from tr_vam_ros.errors import InputError
from tr_vam_ros.execution.timeline import SECOND

ENLARGE = 3  # a 224x168 view is small on today's screens
TIME_BASE = Fraction(1, 90_000)


class VideoWriter:
    """Writes pictures at the times of their stamps; a stamp that does not advance is skipped."""

    def __init__(self, path: str, enlarge: int = ENLARGE) -> None:
        self._enlarge = enlarge
        if Path(path).suffix != '.mp4':
            raise InputError(f'video {path}: the name must end in .mp4')
        try:
            self._container = av.open(path, 'w')
        except OSError as error:
            raise InputError(f'video {path}: cannot be written ({error}); choose another') from error
        self._stream = None
        self._first_ns: int | None = None
        self._last_ns = 0
        self.frames = 0

    def add(self, stamp_ns: int, picture: np.ndarray) -> None:
        """Takes a uint8 (h, w, 3) RGB picture."""
        if self._first_ns is None:
            self._first_ns = stamp_ns
            self._open_stream(picture.shape[1] * self._enlarge, picture.shape[0] * self._enlarge)
        elif stamp_ns <= self._last_ns:
            return
        self._last_ns = stamp_ns
        large = cv2.resize(
            picture, None, fx=self._enlarge, fy=self._enlarge, interpolation=cv2.INTER_CUBIC
        )
        frame = av.VideoFrame.from_ndarray(large, format='rgb24')
        frame.time_base = TIME_BASE
        frame.pts = (stamp_ns - self._first_ns) * TIME_BASE.denominator // SECOND
        self._container.mux(self._stream.encode(frame))
        self.frames += 1

    def close(self) -> None:
        if self._stream is not None:
            self._container.mux(self._stream.encode())
            self._stream = None
        self._container.close()

    def _open_stream(self, width: int, height: int) -> None:
        self._stream = self._container.add_stream(
            'libx264', rate=30, options={'preset': 'veryfast', 'crf': '20', 'threads': '1'}
        )
        self._stream.width, self._stream.height = width, height
        self._stream.pix_fmt = 'yuv420p'
        self._stream.time_base = TIME_BASE
        self._stream.codec_context.time_base = TIME_BASE
