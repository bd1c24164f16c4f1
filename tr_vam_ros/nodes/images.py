"""sensor_msgs/Image to and from NumPy. The one place where pixels change hands."""

from __future__ import annotations

import array

import cv2
import numpy as np
from builtin_interfaces.msg import Time
from sensor_msgs.msg import Image

from tr_vam_ros.errors import InputError

# What a pixel of an encoding is: type and number of values.
_LAYOUTS: dict[str, tuple[type, int]] = {
    'rgb8': (np.uint8, 3),
    'bgr8': (np.uint8, 3),
    'rgba8': (np.uint8, 4),
    'bgra8': (np.uint8, 4),
    'mono8': (np.uint8, 1),
    '16UC1': (np.uint16, 1),
    'yuv422': (np.uint8, 2),  # U Y V Y
    'yuv422_yuy2': (np.uint8, 2),  # Y U Y V
}
# OpenCV's codes for those that are more than another order of the same three values.
_TO_RGB = {
    'mono8': cv2.COLOR_GRAY2RGB,
    'yuv422': cv2.COLOR_YUV2RGB_UYVY,
    'yuv422_yuy2': cv2.COLOR_YUV2RGB_YUYV,
}
COLOUR_ENCODINGS = tuple(encoding for encoding in _LAYOUTS if encoding != '16UC1')


def array_from_message(message: Image) -> np.ndarray:
    """The pixels as they come, (height, width) or (height, width, values), in this machine's byte
    order; row padding is left out, nothing is converted.

    uint8; uint16 for 16UC1. Raises InputError on an encoding that is not read here or on a size
    that contradicts data.
    """
    kind, values = _layout(message)
    wide = np.dtype(kind).newbyteorder('>' if message.is_bigendian else '<')
    row = message.width * values * wide.itemsize
    if message.step < row or len(message.data) < message.step * message.height:
        raise InputError(
            f'image {message.width}x{message.height} {message.encoding} with step {message.step}: '
            f'{len(message.data)} bytes do not hold it; check the camera driver'
        )
    flat = np.frombuffer(message.data, np.uint8, count=message.step * message.height)
    rows = flat.reshape(message.height, message.step)[:, :row]
    if wide.itemsize > 1:
        rows = np.ascontiguousarray(rows).view(wide).astype(kind)
    shape = (message.height, message.width, values)[: 2 if values == 1 else 3]
    return rows.reshape(shape)


def rgb_from_message(message: Image) -> np.ndarray:
    """The picture as uint8 (height, width, 3) RGB. An alpha channel is dropped, grey is repeated.

    Raises InputError as `array_from_message` does, and on an encoding without colour.
    """
    check_colour(message)
    pixels = array_from_message(message)
    if message.encoding in _TO_RGB:
        return cv2.cvtColor(np.ascontiguousarray(pixels), _TO_RGB[message.encoding])
    return pixels[:, :, 2::-1] if message.encoding.startswith('bgr') else pixels[:, :, :3]


def check_colour(message: Image) -> None:
    """Raises InputError unless a picture can be made of the message."""
    _layout(message)
    if message.encoding not in COLOUR_ENCODINGS:
        raise InputError(
            f'image encoding {message.encoding!r}: depth, not colour; use the colour topic. A D405 '
            'has one with enable_color:=true and depth_module.color_profile:=640x480x30'
        )
    if message.encoding.startswith('yuv422') and message.width % 2:
        raise InputError(
            f'image {message.width}x{message.height} {message.encoding}: two pixels share their '
            'colour, so the width must be even; check the camera driver'
        )


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


def _layout(message: Image) -> tuple[type, int]:
    if message.encoding not in _LAYOUTS:
        raise InputError(
            f'image encoding {message.encoding!r}: not read here; set the camera driver to one of '
            f'{", ".join(COLOUR_ENCODINGS)}'
        )
    return _LAYOUTS[message.encoding]
