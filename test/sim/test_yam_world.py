"""The cell in motion: servos, grippers, time, determinism."""

import numpy as np
import pytest

from tr_vam_ros.embodiments import yam
from tr_vam_ros.errors import InputError
from tr_vam_ros.sim.tasks import EpisodeKey
from tr_vam_ros.sim.yam_world import YamWorld

HOME = yam.ros_from_model(yam.HOME)
STANDING_ERROR = 0.01  # rad; a hundredth of what the executor may notice
SECOND = 500  # steps


@pytest.fixture
def world():
    return YamWorld(rendering=False)


def run(world: YamWorld, steps: int) -> np.ndarray:
    for _ in range(steps):
        world.step()
    return world.joint_state()[0]


def test_a_new_world_has_the_arms_at_home_with_open_grippers_at_time_zero(world):
    positions, velocities, efforts = world.joint_state()
    np.testing.assert_array_equal(positions, HOME)
    assert (positions[yam.GRIPPERS] == yam.GRIPPER_TRAVEL).all()
    assert not velocities.any() and world.time_ns == 0
    assert all(a.dtype == np.float64 and a.shape == (yam.DOF,) for a in (positions, efforts))


def test_time_is_counted_in_whole_steps_of_2_ms(world):
    run(world, 1501)
    assert world.time_ns == 3_002_000_000 and isinstance(world.time_ns, int)
    assert world.time == pytest.approx(3.002)


def test_the_arms_hold_home_against_gravity(world):
    assert np.abs(run(world, 2 * SECOND) - HOME)[~yam.GRIPPERS].max() < STANDING_ERROR


def test_the_efforts_at_rest_are_the_torques_that_hold_the_arms_up(world):
    run(world, 2 * SECOND)
    effort = world.joint_state()[2]
    # The moment about the left shoulder of everything that hangs on it, from masses and positions.
    shoulder, moment = world.pose('left_link2')[0], 0.0
    names = ('link2', 'link3', 'link4', 'link5', 'flange', 'finger1', 'finger2')
    for name in names:
        body = world.model.body(f'left_{name}')
        position, rotation = world.pose(f'left_{name}')
        com = position + rotation @ world.model.body_ipos[body.id]
        moment += 9.81 * body.mass[0] * (com - shoulder)[0]
    # The axis is y: gravity on something in front turns positively, the motor must not.
    assert effort[1] == pytest.approx(-moment, abs=0.05)


@pytest.mark.parametrize('joint', range(6))
def test_a_step_of_the_target_is_reached_and_held(world, joint):
    target = HOME.copy()
    target[[joint, joint + 7]] += 0.3
    world.set_targets(target)
    positions = run(world, 3 * SECOND)
    assert np.abs(positions - target)[~yam.GRIPPERS].max() < STANDING_ERROR
    assert np.abs(world.joint_state()[1]).max() < 1e-2


def test_a_velocity_target_takes_the_lag_out_of_a_steady_motion():
    """Damping alone drags the shoulder kd / kp = 0.06 s behind, the wrist 0.15 s."""
    speed = 0.5 * np.array((1, 1, 0, -1, 1, 1, 0) * 2)  # rad/s
    damping = np.array((0.0625, 0.0625, 0.0, 0.15, 0.15, 0.15, 0.0) * 2)  # s
    lags = []
    for rate in (None, speed):
        world = YamWorld(rendering=False)
        for step in range(1, SECOND + 1):
            target = HOME + speed * 0.002 * step
            world.set_targets(target, rate)
            world.step()
        lags.append(target - world.joint_state()[0])
    np.testing.assert_allclose(lags[0], speed * damping, atol=0.01)
    np.testing.assert_allclose(lags[1], 0.0, atol=0.01)


def test_a_target_beyond_the_stop_ends_at_the_hard_limit(world):
    target = HOME.copy()
    target[1] = -1.0
    world.set_targets(target)
    assert run(world, 4 * SECOND)[1] == pytest.approx(-yam.HARD_LIMIT_MARGIN, abs=0.01)


def test_a_gripper_closes_and_opens_in_metres_of_one_fingers_travel(world):
    for opening in (0.0, 0.03, yam.GRIPPER_TRAVEL):
        target = HOME.copy()
        target[yam.GRIPPERS] = opening
        world.set_targets(target)
        positions = run(world, SECOND)
        np.testing.assert_allclose(positions[yam.GRIPPERS], opening, atol=3e-4)
        for arm in yam.ARMS:
            other = world.data.joint(f'{arm}_gripper_mimic').qpos[0]
            assert other == pytest.approx(opening, abs=3e-4)
    np.testing.assert_allclose(yam.model_from_ros(positions)[yam.GRIPPERS], 1.0, atol=0.01)


def test_both_fingers_open_by_the_same_travel_about_the_tool(world):
    target = HOME.copy()
    target[yam.GRIPPERS] = 0.02
    world.set_targets(target)
    run(world, SECOND)
    a, b, tool = (world.pose(f'left_{n}')[0] for n in ('finger1', 'finger2', 'tool'))
    assert np.linalg.norm(a - b) == pytest.approx(0.04, abs=5e-4)
    assert abs(np.dot((a + b) / 2 - tool, (a - b) / np.linalg.norm(a - b))) < 5e-4


@pytest.mark.parametrize('targets', [np.full(yam.DOF, np.nan), np.zeros(13)])
def test_targets_that_are_not_14_finite_numbers_are_refused(world, targets):
    with pytest.raises(InputError, match='14 finite numbers'):
        world.set_targets(targets)
    assert np.isfinite(run(world, 10)).all()


def test_two_worlds_with_the_same_calls_are_equal_bit_for_bit():
    states = []
    for _ in range(2):
        world = YamWorld(rendering=False)
        random = np.random.default_rng(3)
        for episode in range(3):
            world.place_scene(EpisodeKey(1, 1, 5, episode))
            for _ in range(30):
                # Down among the fruits, so that contacts take part.
                low = np.array((0.0, 2.0, 1.0, -0.8, 0.0, 0.0, 0.02) * 2)
                world.set_targets(low + random.uniform(-0.3, 0.3, yam.DOF) * ~yam.GRIPPERS)
                run(world, 20)
        states.append((world.data.qpos.tobytes(), world.data.qvel.tobytes(), world.poll_events()))
    assert states[0] == states[1]


def test_placing_a_scene_moves_neither_time_nor_arms(world):
    run(world, 33)
    before, time_ns = world.joint_state()[0], world.time_ns
    world.place_scene(EpisodeKey(1, 2, 9, 0))
    np.testing.assert_array_equal(world.joint_state()[0], before)
    assert world.time_ns == time_ns


def test_what_falls_off_the_table_comes_to_rest_on_the_floor(world):
    world.move('apple', (1.2, -0.3, 0.1))
    run(world, 2 * SECOND)
    assert -0.75 < world.pose('apple')[0][2] < -0.6


def test_an_unknown_name_is_refused_with_examples(world):
    with pytest.raises(InputError, match="'pear'.*left_tool"):
        world.pose('pear')
