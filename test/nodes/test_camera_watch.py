import numpy as np
import pytest

from tr_vam_ros.nodes.camera_watch import CameraWatch

PERIOD = 1 / 30
NS = 1_000_000_000


def noisy(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (48, 64, 3), dtype=np.uint8)


class Camera:
    """Feeds a watch at 30 Hz of a clock of its own."""

    def __init__(self, **options) -> None:
        self.watch = CameraWatch('top', '/top/color', 0.0, **options)
        self.steady, self.stamp_ns = 0.0, 100 * NS

    def send(self, frames: int, picture=noisy, advance: bool = True) -> list[bool]:
        used = []
        for number in range(frames):
            self.steady += PERIOD
            self.stamp_ns += int(PERIOD * NS) if advance else 0
            used.append(self.watch.add(self.stamp_ns, picture(number), self.steady))
        return used

    @property
    def fault(self) -> str:
        return self.watch.fault(self.steady)


@pytest.fixture
def camera():
    return Camera()


def test_a_camera_that_works_has_no_fault_and_its_rate(camera):
    assert all(camera.send(90)) and camera.fault == ''
    assert camera.watch.rate.hertz(camera.steady) == pytest.approx(30, rel=1e-6)
    assert camera.watch.rate.hertz(camera.steady + 3) == 0


def test_ten_frames_with_identical_pixels_are_frozen_whatever_their_stamps_say(camera):
    camera.send(5)
    still = noisy(0)
    assert camera.send(9, lambda _: still) == [True] * 9 and camera.fault == ''
    assert camera.send(3, lambda _: still) == [False] * 3
    assert 'top is frozen' in camera.fault and 'identical pixels' in camera.fault
    changed = still.copy()
    changed[8, 3, 1] ^= 1  # the least bit of one pixel
    assert camera.send(1, lambda _: changed) == [True] and camera.fault == ''


def test_a_stamp_that_stands_still_is_never_used_and_named_after_300_ms(camera):
    camera.send(5)
    assert not any(camera.send(8, advance=False)) and camera.fault == ''
    camera.send(3, advance=False)
    assert 'top is frozen: the stamp' in camera.fault
    assert camera.send(1) == [True] and camera.fault == ''


def test_a_camera_that_is_silent_is_named_with_its_topic(camera):
    camera.send(5)
    camera.steady += 0.29
    assert camera.fault == ''
    camera.steady += 0.02
    assert camera.fault.startswith('no frame from top on /top/color')


def test_a_clock_that_jumps_back_begins_anew(camera):
    camera.send(5)
    camera.stamp_ns -= 60 * NS
    assert all(camera.send(5)) and camera.fault == ''


def test_a_message_that_is_no_picture_is_the_fault_until_one_comes(camera):
    camera.send(5)
    camera.watch.refuse('image encoding 16UC1: depth')
    assert camera.fault == 'top: image encoding 16UC1: depth'
    camera.send(1)
    assert camera.fault == ''


def test_a_lockstep_simulator_may_repeat_itself():
    camera = Camera(repeats=True)
    still = noisy(0)
    assert all(camera.send(1, lambda _: still) + camera.send(20, lambda _: still, advance=False))
