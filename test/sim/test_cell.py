import numpy as np
import pytest

from tr_vam_ros.embodiments import yam
from tr_vam_ros.errors import InputError
from tr_vam_ros.execution.timeline import SECOND
from tr_vam_ros.sim.cell import Cell
from tr_vam_ros.sim.lockstep import LockstepBarrier
from tr_vam_ros.sim.tasks import EpisodeKey, find_task
from tr_vam_ros.sim.trajectory import Trajectory, TrajectoryPoint
from tr_vam_ros.sim.yam_world import YamWorld

START = 10 * SECOND
HOME = yam.ros_from_model(yam.HOME)[:7]


@pytest.fixture
def cell():
    world = YamWorld()
    yield Cell(world, START)
    world.close()


def move(joint1: float, stamp_ns: int = 0, seconds: int = 1) -> Trajectory:
    goal = HOME + np.array([joint1, 0, 0, 0, 0, 0, 0])
    point = TrajectoryPoint(seconds * SECOND, goal, np.zeros(7))
    return Trajectory(stamp_ns, yam.ARM_JOINT_NAMES['left'], [point])


def test_time_advances_exactly_to_where_it_is_told_and_not_beyond(cell):
    for _ in cell.advance(START + 123 * 4_000_000):
        pass
    assert cell.now_ns == START + 123 * 4_000_000


def test_joint_states_come_at_100_and_frames_at_30_hertz(cell):
    due = list(cell.advance(START + 2 * SECOND))
    assert sum(joints for joints, _ in due) == 200
    assert sum(frames for _, frames in due) == 60


def test_an_arm_follows_its_trajectory_and_the_other_stands(cell):
    assert cell.accept('left', move(0.4)) == ''
    for _ in cell.advance(START + int(1.5 * SECOND)):
        pass
    positions, _, _ = cell.world.joint_state()
    assert positions[0] == pytest.approx(0.4, abs=0.01)
    np.testing.assert_allclose(positions[7:13], yam.HOME[7:13], atol=0.01)


def test_a_trajectory_that_is_over_is_refused_with_the_reason(cell):
    for _ in cell.advance(START + 3 * SECOND):
        pass
    assert 'ends in the past' in cell.accept('left', move(0.4, stamp_ns=START))


def test_a_trajectory_with_nan_does_not_reach_the_motors(cell):
    bad = Trajectory(
        0, yam.ARM_JOINT_NAMES['left'], [TrajectoryPoint(SECOND, [np.nan] * 7, [0.0] * 7)]
    )
    assert cell.accept('left', bad) == ''  # as the real controller does
    for _ in cell.advance(START + 2 * SECOND):
        pass
    positions, velocities, _ = cell.world.joint_state()
    np.testing.assert_allclose(positions[:6], HOME[:6], atol=0.01)
    assert np.isfinite(velocities).all()


def test_the_clock_waits_for_both_arms_and_the_next_observation():
    barrier = LockstepBarrier()
    assert barrier.go_to(0) is None
    barrier.trajectory('left')
    barrier.observe_at(100)
    assert barrier.go_to(0) is None
    barrier.trajectory('right')
    assert barrier.go_to(0) == 100
    # standing at 100: the next stretch needs everything anew
    barrier.observe_at(200)
    assert barrier.go_to(100) is None
    barrier.trajectory('right')
    barrier.trajectory('left')
    assert barrier.go_to(100) == 200


def test_the_clock_runs_to_the_end_of_an_episode_without_trajectories():
    barrier = LockstepBarrier()
    barrier.episode_ended(50)
    assert barrier.go_to(0) == 50
    assert barrier.go_to(50) is None


def test_a_repeated_request_does_not_move_the_clock():
    barrier = LockstepBarrier()
    for arm in yam.ARMS:
        barrier.trajectory(arm)
    barrier.observe_at(100)
    assert barrier.go_to(100) is None


def test_a_key_says_scene_task_seed_and_episode_and_is_read_back():
    key = EpisodeKey(1, 2, 7, 31)
    assert str(key) == 'scene1/task2/seed7/ep31'
    assert EpisodeKey.parse(str(key)) == key


@pytest.mark.parametrize('text', ['', 'scene1', 'scene2/task1/seed0/ep0', 'scene1/task9/seed0/ep0'])
def test_a_key_that_names_no_episode_is_refused(text):
    with pytest.raises(InputError):
        EpisodeKey.parse(text)


def test_a_task_whose_scene_is_not_built_names_those_that_are():
    with pytest.raises(InputError, match='scene 2.*1, 2'):
        find_task(3)
