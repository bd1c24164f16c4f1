"""The arms of the simulated cell against the station's numbers."""

import mujoco
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from test.sim import kinematics
from tr_vam_ros.embodiments import yam
from tr_vam_ros.sim.yam_world import YamWorld

# Check values of the station model (dreamscale-i2rt 1.3.6.post1), metres in left_base.
HOME_FLANGE = (0.24255, 0.0, 0.40211)
HOME_TOOL = (0.38720, 0.0, 0.40201)
ARM_MASS = 4.291977 + 0.553219 + 2 * 0.069657  # kg
HARD_LIMITS = {'left_joint1': (-2.66799, 3.19159), 'right_joint4': (-1.74297, 1.6208)}
TORQUES = (28.0, 28.0, 28.0, 10.0, 10.0, 10.0)


@pytest.fixture(scope='module')
def world():
    return YamWorld(rendering=False)


def bend(world: YamWorld, arm: str, q: np.ndarray) -> None:
    for number, angle in enumerate(q, start=1):
        world.data.joint(f'{arm}_joint{number}').qpos[0] = angle


def test_the_home_pose_has_the_flange_and_the_tool_where_the_station_has_them(world):
    bend(world, 'left', yam.HOME[:6])
    np.testing.assert_allclose(world.pose('left_flange')[0], HOME_FLANGE, atol=1e-4)
    np.testing.assert_allclose(world.pose('left_tool')[0], HOME_TOOL, atol=1e-4)


def test_the_right_arm_stands_61_cm_to_the_right_of_the_left_one(world):
    for arm in yam.ARMS:
        bend(world, arm, yam.HOME[:6])
    offset = world.pose('right_tool')[0] - world.pose('left_tool')[0]
    np.testing.assert_allclose(offset, (0.0, -0.61, 0.0), atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(yam.ARMS),
    st.lists(st.floats(0.0, 1.0), min_size=6, max_size=6),
)
def test_forward_kinematics_is_the_product_of_the_joint_table(world, arm, fractions):
    q = kinematics.LOWER + np.array(fractions) * (kinematics.UPPER - kinematics.LOWER)
    bend(world, arm, q)
    position, rotation = world.pose(f'{arm}_flange')
    expected = kinematics.flange(arm, q)
    np.testing.assert_allclose(position, expected[:3, 3], atol=1e-9)
    np.testing.assert_allclose(rotation, expected[:3, :3], atol=1e-9)
    np.testing.assert_allclose(
        world.pose(f'{arm}_tool')[0], kinematics.tool(arm, q)[:3, 3], atol=1e-9
    )


@pytest.mark.parametrize('arm', yam.ARMS)
def test_an_arm_weighs_what_its_links_weigh(world, arm):
    mass = world.model.body_subtreemass[world.model.body(f'{arm}_base').id]
    assert mass == pytest.approx(ARM_MASS, abs=1e-6)


def test_the_hard_limits_lie_a_margin_outside_the_command_limits(world):
    for name, expected in HARD_LIMITS.items():
        np.testing.assert_allclose(world.model.joint(name).range, expected, atol=1e-9)
    for index in np.flatnonzero(~yam.GRIPPERS):
        lower, upper = world.model.joint(yam.JOINT_NAMES[index]).range
        assert lower == pytest.approx(yam.COMMAND_LOWER[index] - yam.HARD_LIMIT_MARGIN)
        assert upper == pytest.approx(yam.COMMAND_UPPER[index] + yam.HARD_LIMIT_MARGIN)


def test_the_servos_have_the_drives_gains_and_torque_ranges(world):
    for arm in yam.ARMS:
        for name, torque in zip(yam.ARM_JOINT_NAMES[arm], TORQUES):
            servo = world.model.actuator(name)
            kp, kd = (80.0, 5.0) if torque == 28.0 else (10.0, 1.5)
            assert servo.gainprm[0] == kp
            np.testing.assert_array_equal(servo.biasprm[:3], (0.0, -kp, -kd))
            np.testing.assert_array_equal(servo.forcerange, (-torque, torque))


def test_each_inertia_can_belong_to_a_rigid_body(world):
    for inertia in world.model.body_inertia:
        assert 2 * inertia.max() <= inertia.sum() + 1e-9


def test_the_simulation_runs_at_2_ms_with_the_implicit_integrator(world):
    assert world.model.opt.timestep == 0.002
    assert world.model.opt.integrator == mujoco.mjtIntegrator.mjINT_IMPLICITFAST
