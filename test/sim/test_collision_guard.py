"""Paths that run an arm into something, against kinematics typed in a second time."""

import numpy as np
import pytest

from test.sim.kinematics import flange, reach, tool
from tr_vam_ros.embodiments import yam
from tr_vam_ros.sim.collision_guard import FINGERTIP_SCRAPE, CollisionGuard

PAD_BEYOND_TOOL = 0.01035  # m, from the tool point to the end of the pads


@pytest.fixture(scope='module')
def guard():
    return CollisionGuard()


def pose(**joints: float) -> np.ndarray:
    """HOME but for some joints."""
    changed = yam.HOME.copy()
    for name, value in joints.items():
        changed[yam.JOINT_NAMES.index(name)] = value
    return changed


def with_tool(arm: str, x: float, y: float, z: float) -> np.ndarray:
    """HOME, but one tool points down at a place in left_base."""
    angles = reach(arm, (x, y, z))
    assert angles is not None
    changed = yam.HOME.copy()
    changed[yam.ARM_SLICES[arm]][:6] = angles
    return changed


def straight(start: np.ndarray, goal: np.ndarray, rows: int = 30) -> np.ndarray:
    return start + np.linspace(0, 1, rows + 1)[:, None] * (goal - start)


def test_home_folded_and_closed_are_free(guard):
    folded = np.where(yam.GRIPPERS, 1.0, 0.0)
    closed = np.where(yam.GRIPPERS, 0.0, yam.HOME)
    for goal in (yam.HOME, folded, closed):
        assert guard(straight(yam.HOME, goal)) == ''


@pytest.mark.parametrize('arm, y', [('left', -0.1), ('right', -0.5)])
@pytest.mark.parametrize('into_table', [-0.02, 0.0, FINGERTIP_SCRAPE - 1e-3])
def test_fingertips_may_be_above_the_table_and_scrape_it(guard, arm, y, into_table):
    goal = with_tool(arm, 0.3, y, PAD_BEYOND_TOOL - into_table)
    assert guard(straight(yam.HOME, goal)) == ''


@pytest.mark.parametrize('arm, y', [('left', -0.1), ('right', -0.5)])
@pytest.mark.parametrize('into_table', [FINGERTIP_SCRAPE + 1e-3, 0.04])
def test_a_hand_that_dives_into_the_table_is_named_with_the_step(guard, arm, y, into_table):
    path = straight(yam.HOME, with_tool(arm, 0.3, y, PAD_BEYOND_TOOL - into_table))
    reason = guard(path)
    assert f'{arm}_finger' in reason and 'run into table' in reason
    assert 'set collision_guard to false' in reason
    step = int(reason.split('at step ')[1].split(' of')[0])
    heights = [
        tool(arm, row[yam.ARM_SLICES[arm]][:6])[2, 3] - PAD_BEYOND_TOOL for row in path
    ]
    too_low = [height < -FINGERTIP_SCRAPE for height in heights]
    assert step == too_low.index(True)


def test_two_arms_that_swing_towards_each_other_are_stopped_before_they_meet(guard):
    path = straight(yam.HOME, pose(left_joint1=-1.2, right_joint1=1.2))
    reason = guard(path)
    assert 'left_finger' in reason and 'right_finger' in reason
    step = int(reason.split('at step ')[1].split(' of')[0])
    gaps = [
        np.linalg.norm(tool('left', row[:6])[:3, 3] - tool('right', row[7:13])[:3, 3])
        for row in path
    ]
    # The outer faces of an open hand's fingers are 0.14 m apart, and both hands are turned.
    assert 0.05 < gaps[step] < 0.2


def test_a_wrist_folded_onto_its_own_upper_arm_is_stopped(guard):
    goal = pose(left_joint2=1.0, left_joint3=0.3, left_joint4=-1.6)
    reason = guard(straight(yam.HOME, goal))
    first, second = reason.removeprefix('action chunk: ').split(' would run into ')
    assert first.startswith('left_') and second.startswith('left_')
    # By kinematics the flange is then within a hand's length of the shoulder.
    shoulder = np.array([0.0, 0.0, 0.09])
    assert np.linalg.norm(flange('left', goal[:6])[:3, 3] - shoulder) < 0.15


def test_a_jump_between_two_rows_is_looked_at_on_the_way(guard):
    """Before and after there is nothing; on the way the left arm sweeps through the right one."""
    start = pose(right_joint1=1.4, left_joint1=0.6)
    goal = pose(right_joint1=1.4, left_joint1=-2.3)
    assert guard(np.stack([start, start])) == guard(np.stack([goal, goal])) == ''
    assert 'right_' in guard(np.stack([start, goal]))


def test_arms_that_touch_already_may_get_apart_but_not_deeper(guard):
    touching = with_tool('left', 0.3, -0.1, -0.02)
    deeper = with_tool('left', 0.3, -0.1, -0.03)
    assert guard(straight(touching, yam.HOME)) == ''
    assert 'table' in guard(straight(touching, deeper))
