"""camera_stack: three colour cameras in, one 672x168 rgb8 image out."""

from __future__ import annotations

from dataclasses import dataclass

from rclpy.clock import Clock, ClockType
from rclpy.node import Node
from sensor_msgs.msg import Image

from tr_vam_ros.embodiments import yam
from tr_vam_ros.embodiments.views import RESIZE_MODES
from tr_vam_ros.errors import InputError
from tr_vam_ros.execution.timeline import SECOND
from tr_vam_ros.nodes.camera_watch import CameraWatch
from tr_vam_ros.nodes.diagnostics import ERROR, OK, WARN, Diagnostics
from tr_vam_ros.nodes.image_reader import ImageReader
from tr_vam_ros.nodes.image_stack import ImageStack, LockstepStack, Stack
from tr_vam_ros.nodes.images import message_from_rgb
from tr_vam_ros.nodes.parameters import declare, parameter
from tr_vam_ros.nodes.rate import Rate
from tr_vam_ros.nodes.runtime import nanoseconds, ros_now_ns, run_node, stamp_of, steady
from tr_vam_ros.nodes.topics import IMAGES, STACKED_IMAGE, latest, reliable

CHECK_PERIOD = 0.25  # s


@dataclass
class Parameters:
    top_topic: str = parameter(IMAGES['top'].name, 'colour topic of the top camera')
    left_wrist_topic: str = parameter(IMAGES['left_wrist'].name, 'colour topic, left wrist')
    right_wrist_topic: str = parameter(IMAGES['right_wrist'].name, 'colour topic, right wrist')
    resize_mode: str = parameter(
        'stretch', 'what is done to a picture that is not 4:3', choices=RESIZE_MODES
    )
    max_age: float = parameter(0.1, 'oldest frame in a stack, s', low=0.01, high=2.0)
    max_skew: float = parameter(0.05, 'largest time between the frames, s', low=0.0, high=1.0)
    max_ahead: float = parameter(0.05, 'a stamp further ahead is refused, s', low=0.0, high=1.0)
    lockstep: bool = parameter(False, 'lockstep clock: subscribe reliably, judge by stamps alone')


class CameraStack(Node):
    """Single-threaded: every callback runs on the executor's thread."""

    def __init__(self, **options) -> None:
        super().__init__('camera_stack', **options)
        self.parameters = p = declare(self, Parameters)
        self._reader = ImageReader()
        if p.lockstep:
            self._stack = LockstepStack(p.resize_mode)
        else:
            self._stack = ImageStack(p.max_age, p.max_skew, p.max_ahead, p.resize_mode)
        self._diagnostics = Diagnostics(self)
        topics = {
            'top': p.top_topic,
            'left_wrist': p.left_wrist_topic,
            'right_wrist': p.right_wrist_topic,
        }
        self._cameras = {
            camera: CameraWatch(camera, topic, steady(), repeats=p.lockstep)
            for camera, topic in topics.items()
        }
        self._rate = Rate()
        self._count = 0
        self._skew_ms = self._latency_ms = 0.0
        self._publisher = self.create_publisher(Image, STACKED_IMAGE.name, STACKED_IMAGE.qos)
        for camera, topic in topics.items():
            self.create_subscription(
                Image,
                topic,
                lambda message, camera=camera: self._frame(camera, message),
                reliable(5) if p.lockstep else latest(),
            )
        clock = Clock(clock_type=ClockType.STEADY_TIME)
        self.create_timer(CHECK_PERIOD, self._check, clock=clock)

    def _frame(self, camera: str, message: Image) -> None:
        watch = self._cameras[camera]
        try:
            picture = self._reader.rgb(message)
        except InputError as error:
            watch.refuse(str(error))
            self._check()
            return
        stamp_ns = nanoseconds(message.header.stamp)
        if not watch.add(stamp_ns, picture, steady()):
            return
        try:
            stack = self._stack.add(camera, stamp_ns, picture, ros_now_ns(self))
        except InputError as error:
            self._say(WARN, str(error))
            return
        if stack is not None:
            self._publish(stack)

    def _publish(self, stack: Stack) -> None:
        mode = self.parameters.resize_mode
        stamp, frame_id = stamp_of(stack.stamp_ns), stack.frame_id(mode)
        self._publisher.publish(message_from_rgb(stack.picture, stamp, frame_id))
        self._count += 1
        self._rate.add(steady())
        self._skew_ms = stack.skew_ns / SECOND * 1e3
        self._latency_ms = (ros_now_ns(self) - stack.stamp_ns) / SECOND * 1e3
        if self._faults():
            return
        if stack.distorted:
            self._say(
                WARN,
                f'{", ".join(stack.distorted)}: not 4:3, so made {yam.VIEW_WIDTH}x'
                f"{yam.VIEW_HEIGHT} by resize_mode '{mode}'; a model must have been trained so",
            )
        else:
            self._say(OK, 'stacking')

    def _faults(self) -> list[str]:
        # In lockstep the clock stands still while the policy thinks: silence is no fault there.
        now = 0.0 if self.parameters.lockstep else steady()
        faults = (watch.fault(now) for watch in self._cameras.values())
        return [fault for fault in faults if fault]

    def _check(self) -> None:
        faults = self._faults()
        if faults:
            self._say(ERROR, '; '.join(faults))

    def _say(self, level: bytes, message: str) -> None:
        now = steady()
        rates = {f'{c}_hz': round(watch.rate.hertz(now), 1) for c, watch in self._cameras.items()}
        self._diagnostics.set(
            level,
            message,
            stacks=self._count,
            rate_hz=round(self._rate.hertz(now), 1),
            **rates,
            skew_ms=round(self._skew_ms, 1),
            latency_ms=round(self._latency_ms, 1),
            converter=self._reader.name,
        )


def main() -> None:
    run_node(CameraStack)


if __name__ == '__main__':
    main()
