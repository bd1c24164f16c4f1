"""camera_stack: three colour cameras in, one 672x168 rgb8 image out."""

from __future__ import annotations

from dataclasses import dataclass

from rclpy.clock import Clock, ClockType
from rclpy.node import Node
from sensor_msgs.msg import Image

from tr_vam_ros.embodiments import yam
from tr_vam_ros.errors import InputError
from tr_vam_ros.execution.timeline import SECOND
from tr_vam_ros.nodes.diagnostics import ERROR, OK, WARN, Diagnostics
from tr_vam_ros.nodes.image_stack import ImageStack
from tr_vam_ros.nodes.images import message_from_rgb, rgb_from_message
from tr_vam_ros.nodes.parameters import declare, parameter
from tr_vam_ros.nodes.runtime import nanoseconds, ros_now_ns, run_node, stamp_of, steady
from tr_vam_ros.nodes.topics import IMAGES, STACKED_IMAGE, latest, reliable

SILENT_AFTER = 0.3  # s without a frame until a camera is named


@dataclass
class Parameters:
    top_topic: str = parameter(IMAGES['top'].name, 'colour topic of the top camera')
    left_wrist_topic: str = parameter(IMAGES['left_wrist'].name, 'colour topic, left wrist')
    right_wrist_topic: str = parameter(IMAGES['right_wrist'].name, 'colour topic, right wrist')
    max_age: float = parameter(0.1, 'oldest frame in a stack, s', low=0.01, high=2.0)
    max_skew: float = parameter(0.05, 'largest time between the frames, s', low=0.0, high=1.0)
    max_ahead: float = parameter(0.05, 'a stamp further ahead is refused, s', low=0.0, high=1.0)
    lockstep: bool = parameter(False, 'lockstep clock: subscribe reliably, judge by ROS time alone')


class CameraStack(Node):
    """Single-threaded: every callback runs on the executor's thread."""

    def __init__(self, **options) -> None:
        super().__init__('camera_stack', **options)
        self.parameters = declare(self, Parameters)
        lockstep = self.parameters.lockstep
        # In lockstep the clock's arrival lags behind the frames': a stack is judged by its skew.
        age = 1e6 if lockstep else self.parameters.max_age
        ahead = 1e6 if lockstep else self.parameters.max_ahead
        self._stack = ImageStack(age, self.parameters.max_skew, ahead)
        self._diagnostics = Diagnostics(self)
        self._seen = dict.fromkeys(yam.CAMERAS, steady())
        self._count = 0
        self._publisher = self.create_publisher(Image, STACKED_IMAGE.name, STACKED_IMAGE.qos)
        topics = {
            'top': self.parameters.top_topic,
            'left_wrist': self.parameters.left_wrist_topic,
            'right_wrist': self.parameters.right_wrist_topic,
        }
        for camera, topic in topics.items():
            self.create_subscription(
                Image,
                topic,
                lambda message, camera=camera: self._frame(camera, message),
                reliable(5) if lockstep else latest(),
            )
        self.create_timer(0.5, self._check, clock=Clock(clock_type=ClockType.STEADY_TIME))

    def _frame(self, camera: str, message: Image) -> None:
        self._seen[camera] = steady()
        try:
            picture = rgb_from_message(message)
            stamp_ns = nanoseconds(message.header.stamp)
            stack = self._stack.add(camera, stamp_ns, picture, ros_now_ns(self))
        except InputError as error:
            self._diagnostics.set(WARN, str(error), stacks=self._count)
            return
        if stack is None:
            return
        self._publisher.publish(message_from_rgb(stack.picture, stamp_of(stack.stamp_ns), 'stacked'))
        self._count += 1
        self._diagnostics.set(
            OK, 'stacking', stacks=self._count, skew_ms=round(stack.skew_ns / SECOND * 1e3, 1)
        )

    def _check(self) -> None:
        if self.parameters.lockstep:
            return
        silent = [c for c in yam.CAMERAS if steady() - self._seen[c] > SILENT_AFTER]
        if silent:
            self._diagnostics.set(
                ERROR,
                f'no frame from {", ".join(silent)}: check the cable and the driver, '
                f'then the topic parameters of {self.get_name()}',
                stacks=self._count,
            )


def main() -> None:
    run_node(CameraStack)


if __name__ == '__main__':
    main()
