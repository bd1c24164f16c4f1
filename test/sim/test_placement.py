"""Where scene 1 stands: still, apart, in view, in reach, and a function of the key."""

import numpy as np
import pytest

from test.sim import kinematics
from test.sim.kinematics import reach
from tr_vam_ros.embodiments import yam
from tr_vam_ros.sim.placement import place
from tr_vam_ros.sim.scenes import RECEPTACLES, THINGS
from tr_vam_ros.sim.tasks import EpisodeKey
from tr_vam_ros.sim.yam_world import YamWorld

KEYS = [EpisodeKey(1, 1 + seed % 2, seed, seed // 10) for seed in range(50)]
STILL = 0.002  # m within a second
# A receptacle is reached from above, leaning: over the rim with the fruit below the fingers.
LEAN, DROP_HEIGHT = np.radians(45), 0.24
GRASP_HEIGHT = 0.03


@pytest.fixture(scope='module')
def world():
    return YamWorld(rendering=False)


@pytest.mark.parametrize('key', KEYS, ids=str)
def test_things_lie_apart_from_everything_but_the_table_and_lie_still(world, key):
    world.place_scene(key)
    before = {thing.name: world.pose(thing.name)[0] for thing in THINGS}
    for _ in range(500):
        for first, second in world.data.contact.geom:
            names = {world.model.geom(first).name, world.model.geom(second).name}
            assert 'table' in names, names
        world.step()
    for name, position in before.items():
        assert np.linalg.norm(world.pose(name)[0] - position) < STILL
    assert not world.poll_events()


def test_things_do_not_even_touch_the_circle_around_another():
    for key in KEYS:
        things = place(key).things
        apple, orange = things['apple'], things['orange']
        assert np.hypot(apple.x - orange.x, apple.y - orange.y) > 0.034 + 0.033 + 0.024


@pytest.mark.parametrize('key', KEYS[:6], ids=str)
def test_an_arm_can_grasp_each_fruit_and_get_over_the_receptacle_on_its_side(key):
    placement = place(key)
    for pose in placement.things.values():
        near = 'left' if pose.y > -0.305 else 'right'
        assert reach(near, (pose.x, pose.y, GRASP_HEIGHT)) is not None
    for pose in placement.receptacles.values():
        near = 'left' if pose.y > -0.305 else 'right'
        assert reach(near, (pose.x, pose.y, DROP_HEIGHT), LEAN) is not None
        distance = np.hypot(pose.x, pose.y - kinematics.BASES[near][1])
        assert 0.25 < pose.x and distance < 0.6


@pytest.mark.parametrize('key', KEYS, ids=str)
def test_everything_is_in_the_top_cameras_picture(world, key):
    world.place_scene(key)
    info = world.camera_info('top')
    down, right = np.array((0.5, 0.0, -np.sqrt(0.75))), np.array((0.0, -1.0, 0.0))
    axes = np.array([right, np.cross(down, right), down])
    for item in (*THINGS, *RECEPTACLES):
        x, y, depth = axes @ (world.pose(item.name)[0] - (-0.166495, -0.305, 0.954321))
        u, v, _ = info.matrix @ (x / depth, y / depth, 1.0)
        margin = 12  # pixels
        assert margin < u < yam.VIEW_WIDTH - margin and margin < v < yam.VIEW_HEIGHT - margin


def test_the_same_key_is_the_same_placement_whatever_came_before():
    worlds = [YamWorld(rendering=False) for _ in range(2)]
    worlds[1].place_scene(KEYS[7])
    for _ in range(100):
        worlds[1].step()
    states = []
    for world in worlds:
        world.place_scene(KEYS[3])
        states.append([part.tobytes() for t in THINGS for part in world.pose(t.name)])
    assert states[0] == states[1]


def test_another_seed_or_episode_is_another_placement():
    keys = [EpisodeKey(1, 1, seed, episode) for seed in range(5) for episode in range(5)]
    assert len({str(place(key)) for key in keys}) == len(keys)


def test_both_tasks_of_a_seed_see_the_same_table():
    assert place(EpisodeKey(1, 1, 4, 2)) == place(EpisodeKey(1, 2, 4, 2))


def test_the_receptacles_change_sides():
    left = {
        max(place(key).receptacles, key=lambda n: place(key).receptacles[n].y) for key in KEYS
    }
    assert left == {'bin', 'paper_bag'}
