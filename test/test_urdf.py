"""The URDF and the controllers' configuration against the embodiment and the station's numbers."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
import yaml

from tr_vam_ros.embodiments import yam

xacro = pytest.importorskip('xacro')

ROOT = Path(__file__).resolve().parents[1]
# Check values of the station model (dreamscale-i2rt 1.3.6.post1), metres in left_base.
HOME_FLANGE = (0.24255, 0.0, 0.40211)
HOME_TOOL = (0.38720, 0.0, 0.40201)
TOP_CAMERA_AIM = (0.384, -0.305, 0.0)
FINGER_MARGIN = 0.005


def expand(**arguments: str) -> ElementTree.Element:
    document = xacro.process_file(
        str(ROOT / 'urdf' / 'yam_bimanual.urdf.xacro'), mappings=arguments
    )
    return ElementTree.fromstring(document.toxml())


@pytest.fixture(scope='module')
def robot() -> ElementTree.Element:
    return expand()


@pytest.fixture(scope='module')
def joints(robot) -> dict[str, ElementTree.Element]:
    return {joint.get('name'): joint for joint in robot.findall('joint')}


def numbers(element: ElementTree.Element | None, attribute: str) -> np.ndarray:
    text = None if element is None else element.get(attribute)
    return np.array([float(word) for word in (text or '0 0 0').split()])


def rotation(axis: np.ndarray, angle: float) -> np.ndarray:
    """Rotation matrix by Rodrigues' formula."""
    x, y, z = axis
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross


def pose(joints: dict, link: str, root: str, positions: dict[str, float]) -> np.ndarray:
    """Homogeneous transform (4, 4) of a link in `root`, joints at `positions`, else 0."""
    transform = np.eye(4)
    parents = {joint.find('child').get('link'): joint for joint in joints.values()}
    while link != root:
        joint = parents[link]
        roll, pitch, yaw = numbers(joint.find('origin'), 'rpy')
        step = np.eye(4)
        step[:3, 3] = numbers(joint.find('origin'), 'xyz')
        x, y, z = np.eye(3)
        step[:3, :3] = rotation(z, yaw) @ rotation(y, pitch) @ rotation(x, roll)
        position = positions.get(joint.get('name'), 0.0)
        axis = numbers(joint.find('axis'), 'xyz')
        motion = np.eye(4)
        if joint.get('type') == 'revolute':
            motion[:3, :3] = rotation(axis, position)
        else:
            motion[:3, 3] = axis * position
        transform = step @ motion @ transform
        link = joint.find('parent').get('link')
    return transform


HOME = dict(zip(yam.JOINT_NAMES, yam.ros_from_model(yam.HOME)))


def test_the_moving_joints_are_those_of_the_embodiment_and_the_mimics(joints):
    moving = {name for name, joint in joints.items() if joint.get('type') != 'fixed'}
    assert moving == {*yam.JOINT_NAMES, 'left_gripper_mimic', 'right_gripper_mimic'}


def test_the_hard_limits_lie_one_margin_outside_the_command_limits(joints):
    lower, upper = map(yam.ros_from_model, (yam.COMMAND_LOWER, yam.COMMAND_UPPER))
    margins = np.where(yam.GRIPPERS, FINGER_MARGIN, yam.HARD_LIMIT_MARGIN)
    for name, low, high, margin in zip(yam.JOINT_NAMES, lower, upper, margins):
        limit = joints[name].find('limit')
        assert float(limit.get('lower')) == pytest.approx(low - margin)
        assert float(limit.get('upper')) == pytest.approx(high + margin)


def test_the_velocity_limits_are_above_what_the_executor_commands(joints):
    for name in yam.JOINT_NAMES:
        cap = yam.MAX_GRIPPER_VELOCITY if name.endswith('gripper') else yam.MAX_JOINT_VELOCITY
        assert float(joints[name].find('limit').get('velocity')) > cap


@pytest.mark.parametrize('arm', yam.ARMS)
def test_forward_kinematics_at_home_give_the_check_values(joints, arm):
    flange = pose(joints, f'{arm}_flange', f'{arm}_base', HOME)
    tool = pose(joints, f'{arm}_tool', f'{arm}_base', HOME)
    np.testing.assert_allclose(flange[:3, 3], HOME_FLANGE, atol=1e-5)
    # The station model's tool point is 0.1 mm beside the flange's axis.
    np.testing.assert_allclose(tool[:3, 3], HOME_TOOL, atol=1.1e-4)


def test_the_right_arm_stands_beside_the_left(joints):
    right = pose(joints, 'right_base', 'station', {})
    np.testing.assert_allclose(right[:3, 3], (0, -0.61, 0))


def test_the_top_camera_looks_at_the_middle_of_the_table(joints):
    camera = pose(joints, 'top_camera_color_optical_frame', 'station', {})
    position, forward, down = camera[:3, 3], camera[:3, 2], camera[:3, 1]
    aim = position - forward * position[2] / forward[2]
    np.testing.assert_allclose(aim, TOP_CAMERA_AIM, atol=1e-3)
    assert down[2] < 0  # the picture is upright
    assert np.degrees(np.arcsin(-forward[2])) == pytest.approx(60.0)


def test_the_wrist_cameras_look_ahead_of_the_tool_from_above(joints):
    for arm in yam.ARMS:
        camera = pose(joints, f'{arm}_wrist_camera_color_optical_frame', f'{arm}_base', HOME)
        tool = pose(joints, f'{arm}_tool', f'{arm}_base', HOME)
        right, down, forward = camera[:3, :3].T @ (tool[:3, 3] - camera[:3, 3])
        assert camera[2, 3] > tool[2, 3]
        assert forward > 0 and abs(right) < 1e-6 and abs(down) < forward


def test_both_fingers_open_away_from_each_other(joints):
    opened = {'left_gripper': 0.02, 'left_gripper_mimic': 0.02}
    first, second = (
        pose(joints, f'left_finger{i}', 'left_flange', opened)[:3, 3] for i in (1, 2)
    )
    assert np.linalg.norm(first - second) == pytest.approx(0.04)
    assert joints['left_gripper_mimic'].find('mimic').get('joint') == 'left_gripper'


def test_every_arm_has_hardware_with_commands_for_its_seven_joints(robot):
    systems = robot.findall('ros2_control')
    assert [system.get('name') for system in systems] == ['left_yam_arm', 'right_yam_arm']
    for arm, system in zip(yam.ARMS, systems):
        assert system.findtext('hardware/plugin') == 'mock_components/GenericSystem'
        commanded = [
            joint.get('name')
            for joint in system.findall('joint')
            if joint.find('command_interface') is not None
        ]
        assert commanded == list(yam.ARM_JOINT_NAMES[arm])
        for joint in system.findall('joint'):
            start = joint.findtext('state_interface/param')
            if start is not None:
                assert float(start) == pytest.approx(HOME[joint.get('name')])


def test_another_hardware_plugin_gets_its_can_interface():
    robot = expand(hardware_plugin='some_driver/Yam', right_can='can7')
    right = robot.findall('ros2_control')[1].find('hardware')
    assert right.findtext('plugin') == 'some_driver/Yam'
    assert {p.get('name'): p.text for p in right.findall('param')} == {'can_interface': 'can7'}


def test_links_form_one_tree_and_have_possible_inertias(robot, joints):
    links = {link.get('name') for link in robot.findall('link')}
    children = [joint.find('child').get('link') for joint in joints.values()]
    assert links - set(children) == {'station'}
    assert len(children) == len(set(children)) == len(links) - 1
    for link in robot.findall('link'):
        inertia = link.find('inertial/inertia')
        if inertia is not None:
            xx, yy, zz = sorted(float(inertia.get(name)) for name in ('ixx', 'iyy', 'izz'))
            assert 0 < xx and zz <= xx + yy  # the triangle inequality of any rigid body


def inertial(robot, link: str) -> tuple[float, np.ndarray, np.ndarray]:
    """Mass, centre of mass and moments about x, y, z of a link of the URDF."""
    element = robot.find(f"link[@name='{link}']/inertial")
    moments = element.find('inertia')
    return (
        float(element.find('mass').get('value')),
        np.array(element.find('origin').get('xyz').split(), dtype=float),
        np.array([float(moments.get(name)) for name in ('ixx', 'iyy', 'izz')]),
    )


@pytest.mark.parametrize('arm', yam.ARMS)
def test_the_urdf_and_the_simulator_have_the_same_inertias(robot, arm):
    from tr_vam_ros.sim.yam_model import BASE, JOINTS

    for link in (BASE, *(joint.child for joint in JOINTS)):
        mass, com, moments = inertial(robot, f'{arm}_{link.name}')
        assert mass == link.mass
        np.testing.assert_array_equal(com, link.com)
        np.testing.assert_array_equal(moments, link.inertia)


@pytest.mark.parametrize(('link', 'child'), [('link2', 'joint3'), ('link3', 'joint4')])
def test_a_long_link_turns_most_easily_about_its_own_length(robot, joints, link, child):
    ends = np.array(joints[f'left_{child}'].find('origin').get('xyz').split(), dtype=float)
    _, _, moments = inertial(robot, f'left_{link}')
    assert moments.argmin() == np.abs(ends).argmax()


@pytest.mark.parametrize('arm', yam.ARMS)
def test_each_controller_has_the_arms_joints_and_the_values_the_executor_relies_on(arm):
    config = yaml.safe_load((ROOT / 'config' / 'yam_controllers.yaml').read_text())
    assert config['controller_manager']['ros__parameters']['update_rate'] == 250
    controller = config[f'{arm}_yam_arm_controller']['ros__parameters']
    assert controller['joints'] == list(yam.ARM_JOINT_NAMES[arm])
    assert controller['interpolate_from_desired_state'] is False
    assert controller['cmd_timeout'] == 0.0
    # Nothing else: no joint has a path tolerance.
    assert controller['constraints'] == {'goal_time': 0.0}
