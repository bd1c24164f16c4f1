"""A camera's Image as RGB: by cv_bridge where it passes its test, else by `nodes.images`."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import numpy as np
from sensor_msgs.msg import Image

from tr_vam_ros.nodes.images import array_from_message, check_colour, rgb_from_message

CHECK = 'tr_vam_ros.nodes.cv_bridge_check'
CHECK_SECONDS = 30.0  # importing NumPy and OpenCV on a busy machine


class ImageReader:
    """Both ways give equal arrays; cv_bridge's plugins may know a faster one."""

    def __init__(self) -> None:
        self._bridge = None
        reason = why_no_bridge()
        if not reason:
            from cv_bridge import CvBridge

            self._bridge = CvBridge()
        # For people: what converts, and why nothing else.
        self.name = f'numpy ({reason})' if reason else 'cv_bridge'

    def rgb(self, message: Image) -> np.ndarray:
        """uint8 (height, width, 3); raises InputError as `rgb_from_message` does."""
        if self._bridge is None:
            return rgb_from_message(message)
        check_colour(message)
        array_from_message(message)  # costs nothing, and says what a size contradicts
        return self._bridge.imgmsg_to_cv2(message, desired_encoding='rgb8')


def why_no_bridge() -> str:
    """Why cv_bridge is not used; '' when it passed its test."""
    if importlib.util.find_spec('cv_bridge') is None:
        return 'no cv_bridge'
    command = [sys.executable, '-m', CHECK]
    try:
        check = subprocess.run(command, capture_output=True, text=True, timeout=CHECK_SECONDS)
    except subprocess.TimeoutExpired:
        return f'cv_bridge did not answer within {CHECK_SECONDS:g} s'
    if check.returncode == 0:
        return ''
    said = check.stderr.strip().splitlines()
    return f'cv_bridge fails its test: {said[-1] if said else f"exit {check.returncode}"}'
