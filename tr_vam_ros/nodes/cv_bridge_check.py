"""Whether the installed cv_bridge can be trusted; run as a program of its own.

Package indexes carry a cv_bridge of ROS 1 that fails on rgb8 and is silently wrong on 16UC1 and on
padded rows, and a build against another NumPy may end the process at import. So it is asked about
pictures whose pixels are known, in a process that may die of it. Prints why not, or nothing.
"""

from __future__ import annotations

import sys

import numpy as np
from sensor_msgs.msg import Image


def main() -> None:
    from cv_bridge import CvBridge

    bridge = CvBridge()
    colour = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    depth = np.array([[1, 258, 65535], [40000, 7, 300]], np.uint16)
    cases = (
        ('rgb8', _padded(colour), 0, 'rgb8', colour),
        ('bgr8', _padded(colour), 0, 'rgb8', colour[:, :, ::-1]),
        ('16UC1', _padded(depth.astype('<u2')), 0, 'passthrough', depth),
        ('16UC1', _padded(depth.astype('>u2')), 1, 'passthrough', depth),
    )
    for encoding, rows, big_endian, desired, expected in cases:
        message = Image(
            height=2,
            width=3,
            encoding=encoding,
            is_bigendian=big_endian,
            step=rows.shape[1],
            data=rows.tobytes(),
        )
        if not np.array_equal(bridge.imgmsg_to_cv2(message, desired), expected):
            sys.exit(f'wrong pixels from {encoding}, rows padded, is_bigendian {big_endian}')


def _padded(pixels: np.ndarray) -> np.ndarray:
    """Rows of bytes with six more that belong to no pixel."""
    rows = np.ascontiguousarray(pixels).view(np.uint8).reshape(pixels.shape[0], -1)
    return np.concatenate([rows, np.full((len(rows), 6), 255, np.uint8)], axis=1)


if __name__ == '__main__':
    main()
