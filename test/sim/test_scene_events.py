"""What the cell reports: grasps, releases, contacts and the success of a task.

The first tests move an arm through whole picks with the simulated fingers; the others put the
things where they must be, to reach each rule alone.
"""

import numpy as np
import pytest

from test.sim.kinematics import reach
from tr_vam_ros.embodiments import yam
from tr_vam_ros.sim.placement import place
from tr_vam_ros.sim.tasks import EpisodeKey
from tr_vam_ros.sim.yam_world import YamWorld

BIN_TASK, BAG_TASK = EpisodeKey(1, 1, 0, 0), EpisodeKey(1, 2, 0, 0)
ABOVE, LEAN = 0.14, np.radians(45)
CARRY = 0.30  # height of the tool, m: what hangs in the fingers clears the bag's rim
# Where the tool is to grasp, m above the table: at the thing's middle, tips off the table.
HEIGHTS = {'apple': 0.032, 'orange': 0.032, 'banana': 0.016}
SECOND = 500  # steps


class Hand:
    """Moves one arm through straight joint-space motions at moderate speed."""

    def __init__(self, world: YamWorld, arm: str) -> None:
        self.world, self.part = world, yam.ARM_SLICES[arm]
        self.arm = arm
        self.targets = yam.ros_from_model(yam.HOME)

    def go(self, q=None, opening: float | None = None, seconds: float = 1.0) -> None:
        start, end = self.targets.copy(), self.targets.copy()
        if q is not None:
            end[self.part][:6] = q
        if opening is not None:
            end[self.part][6] = opening
        steps = round(seconds * SECOND)
        for step in range(1, steps + 1):
            self.targets = start + (end - start) * step / steps
            self.world.set_targets(self.targets, (end - start) / seconds)
            self.world.step()
        self.world.set_targets(self.targets)
        for _ in range(SECOND // 4):
            self.world.step()

    def pick(self, thing: str) -> None:
        position, turn = self.world.pose(thing)
        # Across a banana, that is along its y; a ball may be taken from any side.
        opening = np.arctan2(turn[1, 1], turn[0, 1]) if thing == 'banana' else None
        low = np.array([*position[:2], HEIGHTS[thing]])
        self.go(reach(self.arm, low + (0, 0, ABOVE), opening=opening))
        self.go(reach(self.arm, low, opening=opening))
        self.go(opening=0.0, seconds=0.4)
        self.go(reach(self.arm, low + (0, 0, ABOVE), opening=opening))

    def drop_into(self, receptacle: str) -> None:
        position, _ = self.world.pose(receptacle)
        here, _ = self.world.pose(f'{self.arm}_tool')
        self.go(reach(self.arm, (*here[:2], CARRY), LEAN))
        self.go(reach(self.arm, position + (0, 0, CARRY), LEAN))
        self.go(opening=yam.GRIPPER_TRAVEL, seconds=0.3)
        self.go(seconds=0.7)


@pytest.fixture
def world():
    return YamWorld(rendering=False)


def without_contacts(events):
    return [event for event in events if event[0] != 'contact']


def side(pose) -> str:
    return 'left' if pose.y > -0.305 else 'right'


def case(thing: str, receptacle: str):
    """A key whose placement has the thing and the receptacle on one side, and that side."""
    for seed in range(100):
        key = EpisodeKey(1, {'bin': 1, 'paper_bag': 2}[receptacle], seed, 0)
        placement = place(key)
        arm = side(placement.receptacles[receptacle])
        pose = placement.things[thing]
        turn = (pose.yaw + np.pi / 2) if thing == 'banana' else None
        if side(pose) != arm:
            continue
        low = np.array((pose.x, pose.y, HEIGHTS[thing]))
        poses = (reach(arm, low + (0, 0, up), opening=turn) for up in (0.0, ABOVE))
        if all(q is not None for q in poses):
            return key, arm
    raise AssertionError('no seed has both on one side')


@pytest.mark.parametrize('receptacle', ['bin', 'paper_bag'])
@pytest.mark.parametrize('thing', ['apple', 'orange', 'banana'])
def test_a_fruit_that_an_arm_picks_and_drops_into_the_named_receptacle_is_a_success(
    world, thing, receptacle
):
    key, arm = case(thing, receptacle)
    world.place_scene(key)
    hand = Hand(world, arm)
    hand.pick(thing)
    assert world.pose(thing)[0][2] > ABOVE / 2, 'the fruit hangs in the fingers'
    assert without_contacts(world.poll_events()) == [('grasp', f'{arm}: {thing}')]
    hand.drop_into(receptacle)
    assert without_contacts(world.poll_events()) == [
        ('release', f'{arm}: {thing}'),
        ('success', f'{thing} in {receptacle}'),
    ]


# ---- by hand: a thing between the fingers at home, another place, open fingers -----------------


def squeeze(world: YamWorld, arm: str, thing: str) -> None:
    """Puts a thing between the fingers and closes them."""
    position, _ = world.pose(f'{arm}_tool')
    targets = yam.ros_from_model(yam.HOME)
    targets[yam.ARM_SLICES[arm]][6] = 0.0
    world.set_targets(targets)
    for _ in range(SECOND // 2):
        if world.joint_state()[0][yam.ARM_SLICES[arm]][6] > 0.035:
            world.move(thing, tuple(position))  # held up until the fingers do
        world.step()


def put(world: YamWorld, thing: str, receptacle: str) -> None:
    """Takes a thing out of the fingers and lays it into a receptacle."""
    position, _ = world.pose(receptacle)
    world.move(thing, (position[0], position[1], 0.05))
    world.set_targets(yam.ros_from_model(yam.HOME))
    for _ in range(SECOND // 2):
        world.step()


def test_a_grasp_is_held_without_further_events(world):
    world.place_scene(BIN_TASK)
    squeeze(world, 'right', 'orange')
    assert world.poll_events() == [('grasp', 'right: orange')]
    for _ in range(2 * SECOND):
        world.step()
    assert world.poll_events() == []
    assert np.linalg.norm(world.pose('orange')[0] - world.pose('right_tool')[0]) < 0.01


def test_a_fruit_that_was_never_grasped_is_no_success(world):
    world.place_scene(BIN_TASK)
    put(world, 'apple', 'bin')
    assert world.poll_events() == []


def test_the_named_receptacle_depends_on_the_task(world):
    for key, expected in ((BIN_TASK, 'apple in bin'), (BAG_TASK, 'apple in paper_bag')):
        world.place_scene(key)
        squeeze(world, 'left', 'apple')
        put(world, 'apple', expected.split()[-1])
        assert world.poll_events()[-1] == ('success', expected)


def test_a_first_delivery_into_the_other_receptacle_rules_success_out(world):
    world.place_scene(BIN_TASK)
    squeeze(world, 'left', 'apple')
    put(world, 'apple', 'paper_bag')
    squeeze(world, 'left', 'banana')
    put(world, 'banana', 'bin')
    assert [kind for kind, _ in world.poll_events()] == ['grasp', 'release'] * 2


def test_a_fruit_lost_on_the_way_may_be_followed_by_another(world):
    world.place_scene(BIN_TASK)
    squeeze(world, 'left', 'apple')
    world.move('apple', (0.3, -0.6, 0.034))
    squeeze(world, 'right', 'orange')
    put(world, 'orange', 'bin')
    assert world.poll_events()[-1] == ('success', 'orange in bin')


def test_success_is_reported_once_an_episode(world):
    world.place_scene(BIN_TASK)
    for thing in ('apple', 'orange'):
        squeeze(world, 'left', thing)
        put(world, thing, 'bin')
    assert [kind for kind, _ in world.poll_events()].count('success') == 1


def test_a_new_scene_forgets_the_grasps_and_events_of_the_one_before(world):
    world.place_scene(BIN_TASK)
    squeeze(world, 'left', 'apple')
    world.place_scene(BAG_TASK)
    put(world, 'apple', 'paper_bag')
    assert world.poll_events() == []


def test_a_gripper_pushed_onto_the_table_is_a_contact_reported_once(world):
    hand = Hand(world, 'left')
    world.place_scene(BIN_TASK)
    hand.go(reach('left', (0.35, 0.15, 0.05)))
    assert world.poll_events() == []
    hand.go(reach('left', (0.35, 0.15, -0.02)))
    hand.go(seconds=0.5)
    assert world.poll_events() == [('contact', 'left: table')]


def test_arms_that_meet_are_a_contact(world):
    world.place_scene(BIN_TASK)
    target = yam.ros_from_model(yam.HOME)
    target[yam.JOINT_NAMES.index('left_joint1')] = -0.9
    target[yam.JOINT_NAMES.index('right_joint1')] = 0.9
    world.set_targets(target)
    for _ in range(SECOND):
        world.step()
    assert world.poll_events()[0] == ('contact', 'left: right')
