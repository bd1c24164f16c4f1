import numpy as np
import pytest
from sensor_msgs.msg import Image

from test.ros import node_of, wait_for
from tr_vam_ros.embodiments import yam
from tr_vam_ros.errors import InputError
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


def start(ros, **parameters):
    heard = ros.heard(STACKED_IMAGE), ros.heard(DIAGNOSTICS)
    ros.spin(node_of(CameraStack, **parameters))
    cameras = Cameras(ros)
    wait_for(lambda: heard[1], 'diagnostics')
    return cameras, *heard


@pytest.fixture
def stack(ros):
    return start(ros)


def said(diagnostics: list, words: str) -> bool:
    return any(words in status.message for m in diagnostics for status in m.status)


def values(diagnostics: list) -> dict[str, str]:
    return {v.key: v.value for v in diagnostics[-1].status[0].values}


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

    def feed_two():
        stamp = stamp_of(cameras.now_ns())
        for camera in ('top', 'right_wrist'):
            cameras.send(camera, message_from_rgb(picture(0), stamp, camera))
        return said(diagnostics, 'no frame from left_wrist')

    wait_for(feed_two, 'left_wrist is named', 2.0)
    assert not stacked


@pytest.mark.parametrize(
    ('message', 'words'),
    [
        (Image(height=168, width=224, encoding='bayer_rggb8', step=224), "'bayer_rggb8'"),
        (Image(height=168, width=224, encoding='16UC1', step=448), 'depth, not colour'),
        (Image(height=168, width=224, encoding='rgb8', step=672, data=b'123'), '3 bytes'),
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


def test_a_wide_camera_is_fitted_as_asked_and_said_in_frame_id_and_diagnostics(ros):
    cameras, stacked, diagnostics = start(ros, resize_mode='pad')
    wide = np.full((180, 320, 3), 250, np.uint8)
    stamp_ns = cameras.send_all([wide, picture(1), picture(2)])
    message = wait_for(lambda: stacked, 'a stack')[0]
    assert message.header.frame_id == 'stacked_pad' and message.header.stamp == stamp_of(stamp_ns)
    view = rgb_from_message(message)[:, :224]
    assert not view[:21].any() and (view[21:-21] == 250).all() and not view[-21:].any()
    wait_for(lambda: said(diagnostics, "top: not 4:3, so made 224x168 by resize_mode 'pad'"), 'it')


def test_an_unknown_resize_mode_is_refused_with_the_choices(ros):
    with pytest.raises(InputError, match="resize_mode.*'squash'.*stretch, crop, pad"):
        node_of(CameraStack, resize_mode='squash')


@pytest.mark.parametrize('stamps_advance', [True, False])
def test_a_frozen_camera_stops_the_stacks_and_is_named(stack, stamps_advance):
    cameras, stacked, diagnostics = stack
    frozen_ns = cameras.now_ns()
    number = iter(range(10_000))

    def feed():
        now = cameras.now_ns()
        frozen = stamp_of(now if stamps_advance else frozen_ns)
        cameras.send('top', message_from_rgb(picture(0), frozen, 'top'))
        for camera in ('left_wrist', 'right_wrist'):
            cameras.send(camera, message_from_rgb(picture(next(number)), stamp_of(now), camera))
        return said(diagnostics, 'top is frozen')

    wait_for(feed, 'the frozen camera is named', 2.0)
    count = len(stacked)
    for _ in range(3):
        feed()
    assert len(stacked) == count


def test_diagnostics_tell_rates_skew_latency_and_what_converts(stack):
    cameras, stacked, diagnostics = stack
    number = iter(range(10_000))

    def feed():
        cameras.send_all([picture(next(number)) for _ in range(3)])
        return len(stacked) > 20 and float(values(diagnostics).get('rate_hz', 0)) > 0

    wait_for(feed, 'rates')
    told = values(diagnostics)
    assert {'top_hz', 'left_wrist_hz', 'right_wrist_hz', 'rate_hz', 'skew_ms', 'latency_ms'} < set(
        told
    )
    assert float(told['top_hz']) > 0 and 0 <= float(told['latency_ms']) < 100
    assert told['converter'].startswith(('numpy', 'cv_bridge'))


def test_in_lockstep_frames_of_different_moments_are_never_mixed_nor_called_late(ros):
    cameras, stacked, diagnostics = start(ros, lockstep=True)
    step = 33_333_333
    for moment in range(5):  # top runs ahead of the others by all five
        cameras.send('top', message_from_rgb(picture(moment), stamp_of(10**9 + moment * step), ''))
    for moment in range(5):
        for camera in ('left_wrist', 'right_wrist'):
            stamp = stamp_of(10**9 + moment * step)
            cameras.send(camera, message_from_rgb(picture(moment), stamp, camera))
    wait_for(lambda: len(stacked) == 5, 'five stacks')
    for moment, message in enumerate(stacked):
        expected = np.hstack([picture(moment)] * 3)
        np.testing.assert_array_equal(rgb_from_message(message), expected)
    assert not said(diagnostics, 'late')
