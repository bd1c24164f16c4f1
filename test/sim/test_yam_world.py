import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from tr_vam_ros.embodiments import yam
from tr_vam_ros.errors import InputError
from tr_vam_ros.sim import scenes
from tr_vam_ros.sim.tasks import EpisodeKey
from tr_vam_ros.sim.yam_cameras import TOP_MOUNT
from tr_vam_ros.sim.yam_world import NOISE_LEVELS, YamWorld

KEY = EpisodeKey(1, 1, 0, 0)
HOME = yam.ros_from_model(yam.HOME)

# The measured joint table (origin xyz m, fixed-axis rpy rad, axis), typed here once more: an
# oracle that is not the model's own.
CHAIN = (
    ((0, 0, 0.068), (0, np.pi / 2, np.pi), (-1, 0, 0)),
    ((-0.0455, -0.0339, -0.02), (0, 0, -np.pi), (0, 1, 0)),
    ((0, -0.0688, 0.264), (0, 0, -np.pi), (0, 1, 0)),
    ((-0.0600003, -0.0688, -0.244999), (0, 0, 0), (0, 1, 0)),
    ((-0.0405003, 0.0338995, -0.0739989), (0, 0, 0), (1, 0, 0)),
    ((0.0404996, 0, -0.0356), (np.pi, 0, np.pi / 2), (0, 0, 1)),
)


@pytest.fixture(scope='module')
def still():
    """A world for tests that only look."""
    world = YamWorld()
    world.place_scene(KEY)
    yield world
    world.close()


@pytest.fixture
def world():
    world = YamWorld()
    yield world
    world.close()


def tool_of(base, angles) -> np.ndarray:
    position, turn = np.array(base, dtype=float), Rotation.identity()
    for (xyz, rpy, axis), angle in zip(CHAIN, angles):
        position = position + turn.apply(xyz)
        turn = turn * Rotation.from_euler('xyz', rpy) * Rotation.from_rotvec(
            angle * np.array(axis)
        )
    return position + turn.apply((0, 0, 0.14465))


def set_pose(world: YamWorld, q14: np.ndarray) -> None:
    world._set_arms(yam.ros_from_model(q14))


def settle(world: YamWorld, seconds: float) -> None:
    for _ in range(round(seconds / 0.002)):
        world.step()


def test_at_home_the_tool_stands_where_it_was_measured(still):
    set_pose(still, yam.HOME)
    np.testing.assert_allclose(
        still.data.site('left_tool').xpos, (0.38720, 0, 0.40211), atol=1e-4
    )
    np.testing.assert_allclose(
        still.data.body('left_flange').xpos, (0.24255, 0, 0.40211), atol=1e-4
    )


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31))
def test_forward_kinematics_are_the_product_of_the_measured_joints(seed):
    world = SHARED
    random = np.random.default_rng(seed)
    pose = random.uniform(yam.COMMAND_LOWER, yam.COMMAND_UPPER)
    set_pose(world, pose)
    for arm, base in (('left', (0, 0, 0)), ('right', (0, -0.61, 0))):
        expected = tool_of(base, pose[yam.ARM_SLICES[arm]][:6])
        np.testing.assert_allclose(world.data.site(f'{arm}_tool').xpos, expected, atol=1e-6)


SHARED = YamWorld()


def test_the_top_camera_looks_at_the_middle_of_the_table(still):
    position, (w, x, y, z) = TOP_MOUNT
    camera = still.data.camera('top')
    np.testing.assert_allclose(camera.xpos, position, atol=1e-6)
    forward = -camera.xmat.reshape(3, 3)[:, 2]
    hit = camera.xpos - forward * camera.xpos[2] / forward[2]
    np.testing.assert_allclose(hit, (0.384, -0.305, 0), atol=1e-3)
    np.testing.assert_allclose(forward, Rotation.from_quat([x, y, z, w]).apply((0, 0, 1)), atol=1e-4)


def test_joint_ranges_are_the_command_limits_widened_and_the_fingers_travel(still):
    for column, name in enumerate(yam.JOINT_NAMES):
        low, high = still.model.joint(name).range
        if yam.GRIPPERS[column]:
            assert (low, high) == (0.0, 0.04695)
        else:
            assert low == pytest.approx(yam.COMMAND_LOWER[column] - 0.05)
            assert high == pytest.approx(yam.COMMAND_UPPER[column] + 0.05)


def test_each_arm_weighs_what_was_measured(still):
    expected = 4.291977 + 0.553219 + 2 * 0.069657
    for arm in yam.ARMS:
        bodies = [
            still.model.body(i) for i in range(still.model.nbody)
            if still.model.body(i).name.startswith(arm)
        ]
        assert sum(float(body.mass[0]) for body in bodies) == pytest.approx(expected, rel=1e-5)


def test_the_servos_hold_the_arms_against_gravity(world):
    settle(world, 1.0)
    positions, velocities, efforts = world.joint_state()
    assert np.abs(positions - HOME)[~yam.GRIPPERS].max() < 0.01
    assert np.abs(velocities).max() < 1e-3
    assert np.isfinite(efforts).all()


def test_the_arms_and_grippers_go_where_they_are_sent(world):
    goal = yam.HOME.copy()
    goal[[0, 1, 3, 7, 10]] += (0.3, 0.2, -0.3, -0.3, 0.4)
    goal[[6, 13]] = (0.0, 0.5)
    world.set_targets(yam.ros_from_model(goal))
    settle(world, 2.0)
    positions, _, _ = world.joint_state()
    np.testing.assert_allclose(yam.model_from_ros(positions), goal, atol=0.02)


def test_a_velocity_target_takes_the_lag_out_of_a_steady_motion(world):
    """Ramp of the wrist at 0.5 rad/s: without the velocity target kd / kp = 0.15 s behind."""
    speed, behind = 0.5, {}
    for with_velocity in (False, True):
        set_pose(world, yam.HOME)
        target, rate = HOME.copy(), np.zeros(14)
        rate[3] = speed
        for _ in range(400):
            target[3] += speed * 0.002
            world.set_targets(target, rate if with_velocity else None)
            world.step()
        behind[with_velocity] = target[3] - world.joint_state()[0][3]
    assert behind[False] == pytest.approx(0.15 * speed, rel=0.2)
    assert abs(behind[True]) < 0.01


def test_two_worlds_that_are_told_the_same_are_equal_to_the_last_bit():
    states = []
    for _ in range(2):
        world = YamWorld()
        world.place_scene(KEY)
        world.set_targets(HOME + 0.1 * ~yam.GRIPPERS)
        settle(world, 0.5)
        states.append((world.data.qpos.copy(), world.render('top')))
        world.close()
    np.testing.assert_array_equal(states[0][0], states[1][0])
    np.testing.assert_array_equal(states[0][1], states[1][1])


def test_a_placement_is_the_same_for_the_same_key_whatever_came_before(world):
    world.place_scene(KEY)
    settle(world, 0.2)
    first = world.data.qpos.copy()
    world.place_scene(EpisodeKey(1, 2, 5, 3))
    settle(world, 0.3)
    other = world.data.qpos.copy()
    before = world.time_ns
    world.place_scene(KEY)
    assert world.time_ns == before
    settle(world, 0.2)
    for thing in scenes.FRUITS:
        address = world.model.joint(thing.name).qposadr[0]
        span = slice(address, address + 3)
        np.testing.assert_allclose(world.data.qpos[span], first[span], atol=1e-9)
        assert not np.allclose(other[span], first[span], atol=1e-3)


@pytest.mark.parametrize('seed', range(12))
def test_things_stand_apart_in_view_in_reach_and_lie_still(world, seed):
    for episode in range(4):
        placement = scenes.place(EpisodeKey(1, 1, seed, episode))
        spots = [*placement.objects.values(), *placement.receptacles.values()]
        assert all(0.2 < x < 0.55 and -0.58 < y < -0.03 for x, y, _ in spots)
        world.place_scene(EpisodeKey(1, 1, seed, episode))
        touching = {
            frozenset(world.model.body(world.model.geom_bodyid[g]).name for g in pair)
            for pair in world.data.contact.geom
        }
        assert all('world' in pair or len(pair) == 1 for pair in touching), touching
    world.place_scene(EpisodeKey(1, 1, seed, 3))
    before = {t.name: world.data.body(t.name).xpos.copy() for t in scenes.FRUITS}
    settle(world, 1.0)
    for name, position in before.items():
        assert np.linalg.norm(world.data.body(name).xpos - position) < 2e-3, name
    assert not [e for e in world.poll_events() if e[0] != 'release']


def test_a_picture_is_where_the_pinhole_model_says(still):
    """The apple's red stands where its position projects with the intrinsics and the mount."""
    info = still.camera_info('top')
    position, (w, x, y, z) = TOP_MOUNT
    optical = Rotation.from_quat([x, y, z, w])
    ray = optical.inv().apply(still.data.body('apple').xpos - np.array(position))
    u, v, _ = info.matrix @ (ray / ray[2])
    picture = still.render('top').astype(int)
    assert picture.shape == (168, 224, 3)
    red = (picture[..., 0] > 120) & (picture[..., 1] < 60) & (picture[..., 2] < 60)
    _, _, areas, centres = cv2.connectedComponentsWithStats(red.astype(np.uint8))
    largest = 1 + int(areas[1:, cv2.CC_STAT_AREA].argmax())  # fingers have red-brown shadows
    assert areas[largest, cv2.CC_STAT_AREA] > 15
    np.testing.assert_allclose(centres[largest], (u, v), atol=2.0)


def test_the_left_arm_stands_left_and_the_table_fills_the_lower_half(still):
    set_pose(still, yam.HOME)
    first = still.render('top').astype(int)
    moved = yam.HOME.copy()
    moved[0] += 0.6
    set_pose(still, moved)
    changed = np.abs(still.render('top').astype(int) - first).max(axis=2) > 30
    _, columns = np.nonzero(changed)
    set_pose(still, yam.HOME)
    assert columns.size > 100 and columns.mean() < 112


def test_the_same_moment_is_the_same_picture_the_next_one_differs_by_noise(world):
    world.place_scene(KEY)
    settle(world, 1.0)
    first, again = world.render('top'), world.render('top')
    np.testing.assert_array_equal(first, again)
    world.step()
    later = world.render('top').astype(int)
    difference = np.abs(later - first)
    assert difference.any() and np.median(difference) <= 2 * NOISE_LEVELS


@pytest.mark.parametrize('camera', yam.CAMERAS)
def test_every_camera_sees_something_with_colours_and_edges(still, camera):
    picture = still.render(camera)
    assert picture.std() > 20
    assert cv2.Laplacian(cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY), cv2.CV_64F).var() > 50


def test_an_unknown_camera_is_named_with_the_choices(still):
    with pytest.raises(InputError, match='front.*top, left_wrist, right_wrist'):
        still.render('front')


def put(world: YamWorld, name: str, position) -> None:
    joint = world.data.joint(name)
    joint.qpos[:3], joint.qpos[3:] = position, (1, 0, 0, 0)
    joint.qvel[:] = 0


def events_over(world: YamWorld, seconds: float) -> list[tuple[str, str]]:
    events = []
    for step in range(round(seconds / 0.002)):
        world.step()
        if step % 5 == 0:
            events += world.poll_events()
    return events


def test_a_fruit_between_closing_fingers_is_grasped_and_released(world):
    world.place_scene(KEY)
    put(world, 'apple', world.data.site('left_tool').xpos - (0.015, 0, 0))
    target = HOME.copy()
    target[6] = 0.0
    world.set_targets(target)
    # Held in the air until the fingers have closed.
    events = []
    for _ in range(300):
        world.step()
        if not events:
            put(world, 'apple', world.data.site('left_tool').xpos - (0.015, 0, 0))
        events += world.poll_events()
    assert ('grasp', 'left: apple') in events
    assert world.data.body('apple').xpos[2] > 0.3
    world.set_targets(HOME)
    assert ('release', 'left: apple') in events_over(world, 1.0)


@pytest.mark.parametrize(
    ('task', 'receptacle', 'succeeds'), [(1, 'bin', True), (1, 'paper_bag', False), (2, 'paper_bag', True)]
)
def test_success_is_a_grasped_fruit_in_the_named_receptacle(world, task, receptacle, succeeds):
    world.place_scene(EpisodeKey(1, task, 0, 0))
    target = HOME.copy()
    target[6] = 0.0
    world.set_targets(target)
    events = []
    for _ in range(300):
        world.step()
        if not events:
            put(world, 'apple', world.data.site('left_tool').xpos - (0.015, 0, 0))
        events += world.poll_events()
    world.set_targets(HOME)
    events += events_over(world, 0.5)
    put(world, 'apple', world.data.body(receptacle).xpos + (0, 0, 0.1))
    events += events_over(world, 1.0)
    assert any(kind == 'success' for kind, _ in events) is succeeds


def test_a_fruit_that_was_never_grasped_is_no_success(world):
    world.place_scene(KEY)
    put(world, 'apple', world.data.body('bin').xpos + (0, 0, 0.1))
    assert not any(kind == 'success' for kind, _ in events_over(world, 1.0))


def test_an_arm_on_the_table_is_a_contact(world):
    target = HOME.copy()
    target[[1, 2]] = (1.9, 0.9)
    world.set_targets(target)
    events = events_over(world, 2.0)
    assert ('contact', 'left: table') in events
    assert events.count(('contact', 'left: table')) < 20
