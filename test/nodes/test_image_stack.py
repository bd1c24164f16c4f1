import numpy as np
import pytest

from tr_vam_ros.embodiments import yam
from tr_vam_ros.errors import InputError
from tr_vam_ros.nodes.image_stack import ImageStack, LockstepStack

MS = 1_000_000
NOW = 100_000 * MS


def view(value: int) -> np.ndarray:
    return np.full((168, 224, 3), value, np.uint8)


def add_all(stack, stamps, now_ns=NOW):
    return [
        stack.add(camera, stamp, view(number), now_ns)
        for number, (camera, stamp) in enumerate(zip(yam.CAMERAS, stamps))
    ]


def test_a_stack_is_made_of_the_newest_frames_and_stamped_as_the_oldest():
    stack = ImageStack(0.1, 0.05, 0.05)
    stack.add('top', NOW - 90 * MS, view(9), NOW)
    *early, made = add_all(stack, (NOW - 10 * MS, NOW - 40 * MS, NOW))
    assert early == [None, None]
    assert (made.stamp_ns, made.skew_ns) == (NOW - 40 * MS, 40 * MS)
    assert [made.picture[0, 224 * i, 0] for i in range(3)] == [0, 1, 2]
    assert made.distorted == () and made.frame_id('crop') == 'stacked'


def test_every_stack_needs_a_new_frame_of_every_camera():
    stack = ImageStack(0.1, 0.05, 0.05)
    assert add_all(stack, (NOW,) * 3)[-1] is not None
    assert stack.add('top', NOW + 33 * MS, view(0), NOW + 33 * MS) is None
    assert stack.add('left_wrist', NOW + 33 * MS, view(0), NOW + 33 * MS) is None
    assert stack.add('right_wrist', NOW + 33 * MS, view(0), NOW + 33 * MS) is not None


@pytest.mark.parametrize(
    ('stamps', 'words'),
    [
        ((NOW, NOW - 51 * MS, NOW), '0.051 s apart.*max_skew 0.05.*left_wrist is late'),
        ((NOW - 101 * MS,) * 3, 'top: frame is 0.10 s old.*max_age 0.1'),
        ((NOW + 51 * MS,) * 3, 'top: stamped 0.05 s in the future; synchronise'),
    ],
)
def test_frames_past_a_limit_make_no_stack_and_the_camera_is_named(stamps, words):
    stack = ImageStack(0.1, 0.05, 0.05)
    with pytest.raises(InputError, match=words):
        add_all(stack, stamps)


def test_after_a_late_camera_has_caught_up_the_next_set_is_a_stack():
    stack = ImageStack(0.1, 0.05, 0.05)
    with pytest.raises(InputError, match='late'):
        add_all(stack, (NOW, NOW - 60 * MS, NOW))
    assert stack.add('left_wrist', NOW - 1 * MS, view(1), NOW) is not None


def test_a_wide_camera_is_named_and_the_frame_id_says_how_it_was_fitted():
    stack = ImageStack(0.1, 0.05, 0.05, 'crop')
    stack.add('left_wrist', NOW, view(0), NOW)
    stack.add('right_wrist', NOW, view(0), NOW)
    made = stack.add('top', NOW, np.zeros((720, 1280, 3), np.uint8), NOW)
    assert made.picture.shape == (168, 672, 3)
    assert made.distorted == ('top',) and made.frame_id('crop') == 'stacked_crop'


# ---- lockstep ------------------------------------------------------------------------------------


def test_in_lockstep_only_frames_of_one_moment_make_a_stack_in_whatever_order_they_come():
    stack = LockstepStack()
    assert stack.add('top', 1, view(1), 0) is None
    assert stack.add('top', 900 * MS, view(2), 0) is None
    assert stack.add('right_wrist', 1, view(1), 0) is None
    assert stack.add('left_wrist', 900 * MS, view(2), 0) is None
    first = stack.add('left_wrist', 1, view(1), 0)
    second = stack.add('right_wrist', 900 * MS, view(2), 0)
    assert [(s.stamp_ns, s.skew_ns, int(s.picture.min())) for s in (first, second)] == [
        (1, 0, 1),
        (900 * MS, 0, 2),
    ]


def test_in_lockstep_a_set_that_is_sent_again_is_a_stack_again():
    stack = LockstepStack()
    for _ in range(3):
        assert add_all(stack, (7,) * 3)[-1].stamp_ns == 7


def test_in_lockstep_a_camera_that_brings_nothing_fills_no_memory():
    stack = LockstepStack()
    for stamp in range(1000):
        stack.add('top', stamp, view(0), 0)
    assert len(stack._moments) <= 11
