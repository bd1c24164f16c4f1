import numpy as np
import pytest
from sensor_msgs.msg import Image

from test.ros import node_of, wait_for
from tr_vam_ros.embodiments import yam
from tr_vam_ros.nodes.camera_stack import CameraStack
from tr_vam_ros.nodes.images import message_from_rgb, rgb_from_message
from tr_vam_ros.nodes.runtime import stamp_of
from tr_vam_ros.nodes.topics import DIAGNOSTICS, IMAGES, STACKED_IMAGE


def picture(seed: int, height: int = 168, width: int = 224) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


class Cameras:
    def __init__(self, ros) -> None:
        self._node = ros.node
        self._publishers = {
            c: ros.node.create_publisher(Image, topic.name, topic.qos)
            for c, topic in IMAGES.items()
        }
        wait_for(
            lambda: all(p.get_subscription_count() for p in self._publishers.values()),
            'camera_stack subscribes',
        )

    def now_ns(self) -> int:
        return self._node.get_clock().now().nanoseconds

    def send(self, camera: str, message: Image) -> None:
        self._publishers[camera].publish(message)

    def send_all(self, pictures, stamp_ns=None) -> int:
        stamp_ns = self.now_ns() if stamp_ns is None else stamp_ns
        for camera, one in zip(yam.CAMERAS, pictures):
            self.send(camera, message_from_rgb(one, stamp_of(stamp_ns), camera))
        return stamp_ns


@pytest.fixture
def stack(ros):
    heard = ros.heard(STACKED_IMAGE), ros.heard(DIAGNOSTICS)
    ros.spin(node_of(CameraStack))
    cameras = Cameras(ros)
    wait_for(lambda: heard[1], 'diagnostics')
    return cameras, *heard


def said(diagnostics: list, words: str) -> bool:
    return any(words in status.message for m in diagnostics for status in m.status)


def test_three_views_stand_side_by_side_with_the_oldest_stamp(stack):
    cameras, stacked, _ = stack
    pictures = [picture(i) for i in range(3)]
    oldest = cameras.now_ns()
    for offset, camera, one in zip((10_000_000, 0, 20_000_000), yam.CAMERAS, pictures):
        cameras.send(camera, message_from_rgb(one, stamp_of(oldest + offset), camera))
    message = wait_for(lambda: stacked, 'a stack')[0]
    assert (message.width, message.height, message.encoding) == (672, 168, 'rgb8')
    assert message.header.stamp == stamp_of(oldest)
    assert message.header.frame_id == 'stacked'
    np.testing.assert_array_equal(rgb_from_message(message), np.hstack(pictures))


def test_bgr_and_padded_rows_give_the_same_stack_as_rgb(stack):
    cameras, stacked, _ = stack
    pictures = [picture(i) for i in range(3)]
    stamp = stamp_of(cameras.now_ns())
    for camera, one in zip(yam.CAMERAS, pictures):
        padded = np.zeros((168, 224 * 3 + 32), np.uint8)
        padded[:, : 224 * 3] = one[:, :, ::-1].reshape(168, -1)
        message = Image(
            height=168, width=224, encoding='bgr8', step=padded.shape[1], data=padded.tobytes()
        )
        message.header.stamp = stamp
        cameras.send(camera, message)
    message = wait_for(lambda: stacked, 'a stack')[0]
    np.testing.assert_array_equal(rgb_from_message(message), np.hstack(pictures))


def test_a_large_picture_is_averaged_down(stack):
    cameras, stacked, _ = stack
    small = [picture(i) for i in range(3)]
    cameras.send_all([np.kron(s, np.ones((2, 2, 1), np.uint8)) for s in small])
    message = wait_for(lambda: stacked, 'a stack')[0]
    np.testing.assert_array_equal(rgb_from_message(message), np.hstack(small))


def test_a_silent_camera_is_named_within_two_seconds(stack):
    cameras, stacked, diagnostics = stack
    end = [False]

    def feed_two():
        stamp = stamp_of(cameras.now_ns())
        for camera in ('top', 'right_wrist'):
            cameras.send(camera, message_from_rgb(picture(0), stamp, camera))
        return said(diagnostics, 'no frame from left_wrist')

    wait_for(feed_two, 'left_wrist is named', 2.0)
    assert not stacked and not end[0]


@pytest.mark.parametrize(
    ('message', 'words'),
    [
        (Image(height=168, width=224, encoding='yuv422', step=448), "encoding 'yuv422'"),
        (Image(height=168, width=224, encoding='rgb8', step=672, data=b'123'), '3 bytes'),
        (
            Image(height=90, width=160, encoding='rgb8', step=480, data=bytes(43200)),
            '160x90 is not 4:3',
        ),
    ],
)
def test_a_picture_it_cannot_use_is_named_and_the_node_lives_on(stack, message, words):
    cameras, stacked, diagnostics = stack
    message.header.stamp = stamp_of(cameras.now_ns())
    cameras.send('top', message)
    wait_for(lambda: said(diagnostics, words), words)
    cameras.send_all([picture(i) for i in range(3)])
    wait_for(lambda: stacked, 'a stack afterwards')


@pytest.mark.parametrize(
    ('ages', 'words'), [((-1.0, 0, 0), 's apart'), ((-0.5,) * 3, 's old'), ((1.0,) * 3, 'future')]
)
def test_frames_too_old_too_far_apart_or_from_the_future_make_no_stack(stack, ages, words):
    cameras, stacked, diagnostics = stack
    now = cameras.now_ns()
    for camera, age in zip(yam.CAMERAS, ages):
        stamp = stamp_of(now + int(age * 1e9))
        cameras.send(camera, message_from_rgb(picture(0), stamp, camera))
    wait_for(lambda: said(diagnostics, words), words)
    assert not stacked
