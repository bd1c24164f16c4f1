import numpy as np
import pytest

from tr_vam_ros.embodiments import yam
from tr_vam_ros.errors import InputError


def test_the_gripper_is_metres_in_ros_and_zero_to_one_in_the_model():
    ros = yam.ros_from_model(np.ones(14))
    assert ros[6] == ros[13] == 0.04695
    np.testing.assert_array_equal(ros[~yam.GRIPPERS], 1)
    np.testing.assert_allclose(yam.model_from_ros(ros), 1)


def test_joint_states_are_mapped_by_name_whatever_else_they_carry():
    names = ['torso', *reversed(yam.JOINT_NAMES)]
    values = [9.0, *reversed(range(14))]
    proprio = yam.proprio_from_joint_state(names, values)
    expected = np.arange(14, dtype=float)
    expected[[6, 13]] /= 0.04695
    np.testing.assert_allclose(proprio, expected)


def test_a_missing_joint_is_named():
    with pytest.raises(InputError, match='left_joint2 missing'):
        names = [n for n in yam.JOINT_NAMES if n != 'left_joint2']
        yam.proprio_from_joint_state(names, [0.0] * 13)


def test_a_joint_that_is_not_a_number_is_named():
    values = [0.0] * 14
    values[9] = float('nan')
    with pytest.raises(InputError, match='right_joint3 not finite'):
        yam.proprio_from_joint_state(yam.JOINT_NAMES, values)


def test_home_lies_inside_the_command_limits():
    assert (yam.HOME >= yam.COMMAND_LOWER).all() and (yam.HOME <= yam.COMMAND_UPPER).all()
