import numpy as np
import pytest

from tr_vam_ros.embodiments import yam
from tr_vam_ros.errors import InputError
from tr_vam_ros.execution.chunk_check import checked_rows, clamped_rows

ROWS = np.arange(50 * 14, dtype=float).reshape(50, 14) / 1000


def check(names=yam.JOINT_NAMES, horizon=50, period=yam.ROW_PERIOD, actions=None):
    return checked_rows(names, horizon, period, ROWS.ravel() if actions is None else actions)


def test_columns_are_mapped_by_name():
    order = np.random.default_rng(0).permutation(14)
    names = [yam.JOINT_NAMES[i] for i in order]
    np.testing.assert_array_equal(check(names=names, actions=ROWS[:, order].ravel()), ROWS)


@pytest.mark.parametrize(
    ('change', 'words'),
    [
        ({'names': yam.JOINT_NAMES[:13] + ('left_joint1',)}, 'right_gripper'),
        ({'names': yam.JOINT_NAMES[:13]}, 'missing'),
        ({'horizon': 10, 'actions': np.zeros(140)}, '10 rows'),
        ({'horizon': 49}, '700 values'),
        ({'period': 0.05}, 'period 0.05'),
    ],
)
def test_a_chunk_for_another_robot_is_refused_by_name(change, words):
    with pytest.raises(InputError, match=words):
        check(**change)


@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])
def test_one_number_that_is_not_finite_refuses_the_whole_chunk(value):
    actions = ROWS.copy()
    actions[41, 9] = value
    with pytest.raises(InputError, match='row 42, right_joint3'):
        check(actions=actions.ravel())


def test_rows_outside_the_limits_are_clamped_and_said_so():
    rows = np.tile(yam.HOME, (3, 1))
    rows[1, 1] = -0.5
    rows[2, 6] = 1.5
    inside, clamped = clamped_rows(rows)
    assert clamped
    assert inside[1, 1] == 0.0 and inside[2, 6] == 1.0
    np.testing.assert_array_equal(inside[0], yam.HOME)


def test_rows_inside_the_limits_are_left_alone():
    rows = np.tile(yam.HOME, (3, 1))
    inside, clamped = clamped_rows(rows)
    assert not clamped
    np.testing.assert_array_equal(inside, rows)
