"""The simulated cameras: where they look, what they see, and their noise."""

import numpy as np
import pytest

from test.sim import kinematics
from tr_vam_ros.embodiments import yam
from tr_vam_ros.errors import InputError
from tr_vam_ros.sim.tasks import EpisodeKey
from tr_vam_ros.sim.yam_world import YamWorld

KEY = EpisodeKey(1, 1, 2, 0)
TOP_CAMERA = np.array((-0.166495, -0.305, 0.954321))
TOP_QUATERNION = (0.18301, -0.68301, 0.68301, -0.18301)  # w x y z, optical frame
WRIST_CAMERA = (0.0, -0.070435, 0.077006)
WRIST_QUATERNION = (-0.976295, 0.216445, 0.0, 0.0)


def rotation(quaternion) -> np.ndarray:
    w, x, y, z = quaternion
    return kinematics.Rotation.from_quat((x, y, z, w)).as_matrix()


@pytest.fixture(scope='module')
def world():
    world = YamWorld()
    world.place_scene(KEY)
    yield world
    world.close()


def is_red(picture):
    red, green, blue = np.moveaxis(picture.astype(int), -1, 0)
    return (red > 90) & (green < red // 3) & (blue < red // 3)


def pixel(world, camera, point, size=None) -> tuple[float, float]:
    """Where a camera at its mount must see a point (3,) of left_base."""
    if camera == 'top':
        position, axes = TOP_CAMERA, rotation(TOP_QUATERNION)
    else:
        arm = camera.split('_')[0]
        joints = world.joint_state()[0][yam.ARM_SLICES[arm]][:6]
        mount = np.eye(4)
        mount[:3, :3], mount[:3, 3] = rotation(WRIST_QUATERNION), WRIST_CAMERA
        pose = kinematics.flange(arm, joints) @ mount
        position, axes = pose[:3, 3], pose[:3, :3]
    seen = axes.T @ (np.asarray(point) - position)
    u, v, _ = world.camera_info(camera, size).matrix @ (seen / seen[2])
    return u, v


def test_the_top_cameras_axis_meets_the_table_between_the_arms(world):
    camera = world.model.camera('top').id
    world.render('top')
    position = world.data.cam_xpos[camera]
    forward = -world.data.cam_xmat[camera].reshape(3, 3)[:, 2]
    meets = position - forward * position[2] / forward[2]
    np.testing.assert_allclose(meets, (0.384, -0.305, 0.0), atol=1e-3)
    assert np.degrees(np.arcsin(-forward[2])) == pytest.approx(60.0, abs=0.01)


@pytest.mark.parametrize('size', [None, (448, 336)])
def test_the_apple_is_red_where_its_position_projects_to(world, size):
    picture = world.render('top', size)
    rows, columns = np.nonzero(is_red(picture))
    u, v = pixel(world, 'top', world.pose('apple')[0], size)
    # The stem hides a little of it, the perspective shifts the middle of the disc a little.
    assert abs(columns.mean() - u) < 1.0 and abs(rows.mean() - v) < 1.0


def test_a_wrist_camera_sees_the_apple_where_its_position_projects_to(world):
    apple = (0.50, 0.02, 0.36)
    world.move('apple', apple)
    rows, columns = np.nonzero(is_red(world.render('left_wrist', (448, 336))))
    u, v = pixel(world, 'left_wrist', apple, (448, 336))
    world.place_scene(KEY)
    assert len(rows) > 500
    assert abs(columns.mean() - u) < 6.0 and abs(rows.mean() - v) < 6.0


def test_the_left_arm_is_on_the_left_and_reaches_upwards_in_the_top_picture(world):
    flange = {arm: pixel(world, 'top', world.pose(f'{arm}_flange')[0]) for arm in yam.ARMS}
    base = {arm: pixel(world, 'top', world.pose(f'{arm}_base')[0]) for arm in yam.ARMS}
    assert flange['left'][0] < yam.VIEW_WIDTH / 2 < flange['right'][0]
    assert all(flange[arm][1] < base[arm][1] for arm in yam.ARMS)
    picture = world.render('top').astype(int)
    for arm in yam.ARMS:  # orange accents of the grippers, near where the tool must be
        u, v = (round(value) for value in pixel(world, 'top', world.pose(f'{arm}_tool')[0]))
        near = picture[max(v - 20, 0) : v + 20, max(u - 20, 0) : u + 20]
        orange = (near[..., 0] > 150) & (near[..., 2] < 60)
        assert orange.sum() > 20


def test_an_arm_that_moves_changes_the_picture_on_its_side():
    world = YamWorld()
    before = world.render('top').astype(int)
    world.data.joint('left_joint1').qpos[0] = 0.6
    changed = np.abs(world.render('top') - before).max(axis=2) > 30
    world.close()
    assert changed.sum() > 100 and np.nonzero(changed)[1].max() < yam.VIEW_WIDTH / 2


def test_a_wrist_camera_sees_a_finger_on_each_side_and_the_table_below(world):
    picture = world.render('left_wrist').astype(int)
    dark_or_orange = picture[..., 2] < 70
    width = yam.VIEW_WIDTH
    assert dark_or_orange[:, : width // 4].sum() > 500
    assert dark_or_orange[:, -width // 4 :].sum() > 500
    assert picture[-1, width // 4 : width // 2].mean() > 100


@pytest.mark.parametrize('camera', yam.CAMERAS)
def test_a_picture_is_rgb_of_the_models_size_and_well_lit(world, camera):
    picture = world.render(camera)
    assert picture.shape == (yam.VIEW_HEIGHT, yam.VIEW_WIDTH, 3) and picture.dtype == np.uint8
    assert 60 < picture.mean() < 210 and picture.std() > 20
    assert (picture > 250).mean() < 0.05


def test_a_picture_of_the_same_moment_is_the_same_and_the_next_moments_is_not(world):
    first = world.render('top')
    other = world.render('left_wrist')
    np.testing.assert_array_equal(world.render('top'), first)
    world.step()
    assert (world.render('top') != first).mean() > 0.3
    assert (world.render('left_wrist') != other).mean() > 0.3


def test_the_noise_is_small_and_depends_on_its_seed():
    pictures = []
    for seed in (0, 0, 1):
        world = YamWorld(noise_seed=seed)
        pictures.append(world.render('top').astype(int))
        world.close()
    np.testing.assert_array_equal(pictures[0], pictures[1])
    assert 0 < np.abs(pictures[0] - pictures[2]).max() <= 4


def test_the_intrinsics_are_a_d405s_and_scale_with_the_picture(world):
    small, large = world.camera_info('top'), world.camera_info('top', (640, 480))
    assert (small.width, small.height) == (yam.VIEW_WIDTH, yam.VIEW_HEIGHT)
    assert large.matrix[0, 0] == pytest.approx(432.97, abs=0.01)  # 240 / tan(29 degrees)
    assert small.matrix[1, 1] == pytest.approx(large.matrix[1, 1] * 168 / 480)


def test_an_unknown_camera_is_refused_with_the_ones_there_are(world):
    for call in (world.render, world.camera_info):
        with pytest.raises(InputError, match='top, left_wrist, right_wrist'):
            call('front')


def test_a_world_without_rendering_says_so():
    with pytest.raises(InputError, match='rendering=False'):
        YamWorld(rendering=False).render('top')


def test_a_closed_world_can_be_looked_at_again():
    world = YamWorld()
    first = world.render('top')
    world.close()
    np.testing.assert_array_equal(world.render('top'), first)
    world.close()
