"""sensor_msgs/Image to and from NumPy. The one place where pixels change hands."""

from __future__ import annotations

import array

import numpy as np
from builtin_interfaces.msg import Time
from sensor_msgs.msg import Image

from tr_vam_ros.errors import InputError

ENCODINGS = ('rgb8', 'bgr8')


def rgb_from_message(message: Image) -> np.ndarray:
    """The picture as uint8 (height, width, 3) RGB; honours row padding.

    Raises InputError on an encoding that is not in `ENCODINGS` or on a size that contradicts data.
    """
    if message.encoding not in ENCODINGS:
        raise InputError(
            f'image encoding {message.encoding!r}: {" and ".join(ENCODINGS)} are read; '
            'set the camera driver to one of them'
        )
    row = message.width * 3
    if message.step < row or len(message.data) < message.step * message.height:
        raise InputError(
            f'image {message.width}x{message.height} with step {message.step}: '
            f'{len(message.data)} bytes do not hold it; check the camera driver'
        )
    flat = np.frombuffer(message.data, np.uint8, count=message.step * message.height)
    pixels = flat.reshape(message.height, message.step)[:, :row]
    pixels = pixels.reshape(message.height, message.width, 3)
    return pixels[:, :, ::-1] if message.encoding == 'bgr8' else pixels


def message_from_rgb(picture: np.ndarray, stamp: Time, frame_id: str) -> Image:
    """An rgb8 Image of a uint8 (height, width, 3) picture."""
    picture = np.ascontiguousarray(picture)
    message = Image(
        height=picture.shape[0],
        width=picture.shape[1],
        encoding='rgb8',
        is_bigendian=0,
        step=picture.shape[1] * 3,
    )
    message.header.stamp = stamp
    message.header.frame_id = frame_id
    # rclpy checks every element of a NumPy array or list; an array.array of bytes it takes as is.
    data = array.array('B')
    data.frombytes(memoryview(picture).cast('B'))
    message.data = data
    return message
