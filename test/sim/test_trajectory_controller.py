"""The simulated cell's controller against recordings of the real one, and in closed form.

The recordings are no part of this repository (see `golden_folder`); without them, only the
closed-form tests run.
"""

from __future__ import annotations

import csv
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest

from tr_vam_ros.errors import InputError
from tr_vam_ros.sim.trajectory_controller import (
    Trajectory,
    TrajectoryController,
    TrajectoryPoint,
)

PERIOD_NS = 4_000_000
SECOND_NS = 1_000_000_000
# ROS time of t = 0 in every recording, so that no stamp is zero by accident.
EPOCH_NS = 1000 * SECOND_NS
# The recordings print nine decimals of positions that were computed in double precision.
GOLDEN_TOLERANCE = 1e-8


def golden_folder() -> Path:
    """Recordings of ros2_controllers 4.42.1; TR_VAM_JTC_GOLDEN names another place."""
    beside = Path(__file__).resolve().parents[2].parent / 'shared' / 'data' / 'jtc_golden'
    return Path(os.environ.get('TR_VAM_JTC_GOLDEN', beside))


GOLDEN_CASES = sorted(golden_folder().glob('*/case.json'))


def ns(seconds: float) -> int:
    return round(seconds * SECOND_NS)


class Plant:
    """The joint models of the recordings: what the arm does with the last command."""

    def __init__(self, model: dict, positions: list[float]):
        self.model = model['model']
        step = PERIOD_NS / SECOND_NS
        self.share = 1.0 - math.exp(-step / model['tau']) if self.model == 'lag' else 1.0
        self.freeze_ns = ns(model['freeze_at']) if 'freeze_at' in model else None
        self.positions = np.array(positions)
        self.velocities = np.zeros(len(positions))

    def step(self, command: np.ndarray, time_ns: int) -> None:
        before = self.positions
        if self.freeze_ns is None or time_ns <= self.freeze_ns:
            step = (command - before) * self.share
            # The hardware of the recordings ignores a command that is NaN.
            self.positions = before + np.where(np.isnan(step), 0.0, step)
        if self.model != 'mock':
            self.velocities = (self.positions - before) * (SECOND_NS / PERIOD_NS)


def controller_of(case: dict, report) -> TrajectoryController:
    given = dict(case['params_not_default'])
    # Not parameters of ours: the interfaces are fixed, and without a velocity command the
    # controller knows no velocity error, so that this tolerance never acts.
    for name in ('command_interfaces', 'state_interfaces'):
        given.pop(name)
    given.pop('constraints.stopped_velocity_tolerance', None)
    arguments = {
        f'{ours}_tolerances': {
            name: given.pop(f'constraints.{name}.{theirs}', 0.0) for name in case['joints']
        }
        for ours, theirs in (('path', 'trajectory'), ('goal', 'goal'))
    }
    arguments['goal_time'] = given.pop('constraints.goal_time', 0.0)
    return TrajectoryController(
        case['joints'], rate=case['rate'], report=report, **arguments, **given
    )


def trajectory_of(message: dict) -> Trajectory:
    stamp = message['stamp']
    return Trajectory(
        0 if stamp is None else EPOCH_NS + ns(stamp),
        message['joint_names'],
        [
            # JSON has no NaN: the recordings write it as text, which float() understands.
            TrajectoryPoint(ns(p['t']), [*map(float, p['p'])], [*map(float, p.get('v', ()))])
            for p in message['points']
        ],
    )


def replay(folder: Path) -> tuple[dict, np.ndarray, np.ndarray, list[str], list[str]]:
    """Case, recorded and replayed commands (updates, 7), answers to the messages, log lines."""
    case = json.loads((folder / 'case.json').read_text())
    with open(folder / 'cmd.csv', newline='') as file:
        rows = [[float(cell) for cell in row] for row in list(csv.reader(file))[1:]]
    times, recorded = np.array(rows)[:, 0], np.array(rows)[:, 1:]
    log: list[str] = []
    controller = controller_of(case, log.append)
    plant = Plant(case['plant'], case['q0'])
    messages = list(case['messages'])
    answers, commands = [], []
    for time_ns in map(ns, times):
        if commands:
            plant.step(commands[-1], time_ns)
        while messages and ns(messages[0]['at']) <= time_ns:
            answers.append(controller.accept(trajectory_of(messages.pop(0)), EPOCH_NS + time_ns))
        commands.append(controller.update(EPOCH_NS + time_ns, plant.positions, plant.velocities))
    return case, recorded, np.array(commands), answers, log


@pytest.mark.filterwarnings('ignore:invalid value')  # some cases command infinity on purpose
@pytest.mark.skipif(
    not GOLDEN_CASES, reason=f'no recordings of the real controller in {golden_folder()}'
)
@pytest.mark.parametrize(
    'folder', [path.parent for path in GOLDEN_CASES], ids=lambda folder: folder.name
)
def test_every_command_and_answer_equals_the_recording_of_the_real_controller(folder):
    case, recorded, commands, answers, log = replay(folder)
    assert [answer == '' for answer in answers] == case['accepted']
    np.testing.assert_allclose(commands, recorded, rtol=0, atol=GOLDEN_TOLERANCE)
    said = [answer for answer in answers if answer] + log
    # The per-joint lines of a violated tolerance are the only ones not restated.
    assert said == [line['text'] for line in case['log'] if line['logger'] != 'tolerances']


# Closed form. Two joints, a start that is no multiple of anything, one update = 4 ms.

NAMES = ('a', 'b')
NOW = EPOCH_NS + 123_456_789
HOME = np.array([0.1, -0.2])
STILL = np.zeros(2)


def running(*points, stamp_ns=0, names=NAMES, home=HOME, **parameters) -> TrajectoryController:
    """A controller that rests at `home` and has accepted points (seconds, positions[, v])."""
    controller = TrajectoryController(NAMES, **parameters)
    controller.update(NOW - PERIOD_NS, home, STILL)
    assert controller.accept(trajectory(*points, stamp_ns=stamp_ns, names=names), NOW) == ''
    return controller


def trajectory(*points, stamp_ns=0, names=NAMES) -> Trajectory:
    return Trajectory(stamp_ns, names, [TrajectoryPoint(ns(t), *values) for t, *values in points])


def command_after(controller: TrajectoryController, seconds: float) -> np.ndarray:
    """Command of the update whose period ends `seconds` after NOW; it updates all the way."""
    for now_ns in range(NOW, NOW + ns(seconds), PERIOD_NS):
        command = controller.update(now_ns, HOME, STILL)
    return command


def test_positions_alone_are_joined_by_straight_lines():
    controller = running((0.2, [0.3, 0.0]), (0.4, [0.3, 0.4]))
    np.testing.assert_allclose(command_after(controller, 0.1), [0.2, -0.1], atol=1e-12)
    np.testing.assert_allclose(command_after(controller, 0.3), [0.3, 0.2], atol=1e-12)


def test_positions_with_velocities_are_joined_by_the_hermite_cubic():
    controller = running((0.2, [0.3, 0.0], [1.0, 0.5]), (0.6, [0.5, 0.1], [0.0, 0.0]))
    command_after(controller, 0.2)
    # The cubic's middle: the mean of the ends plus an eighth of duration times (v0 - v1).
    middle = [0.4 + 0.4 * 1.0 / 8, 0.05 + 0.4 * 0.5 / 8]
    np.testing.assert_allclose(command_after(controller, 0.4), middle, atol=1e-12)
    # Its velocity: 3/2 of the mean velocity less a quarter of the sum of the end velocities.
    velocity = [1.5 * 0.5 - 0.25, 1.5 * 0.25 - 0.125]
    np.testing.assert_allclose(controller.setpoint[1], velocity, atol=1e-12)


def test_a_segment_with_a_velocity_at_one_end_only_is_straight():
    controller = running((0.2, [0.3, 0.0], [1.0, 1.0]), (0.4, [0.5, 0.2]))
    command_after(controller, 0.2)
    np.testing.assert_allclose(command_after(controller, 0.3), [0.4, 0.1], atol=1e-12)


def test_a_stamp_in_the_past_lands_inside_the_same_curve():
    points = (0.0, [0.1, -0.2]), (0.4, [0.5, 0.2])
    controller = running(*points, stamp_ns=NOW - ns(0.2))
    np.testing.assert_allclose(command_after(controller, 0.004), [0.304, 0.004], atol=1e-12)


def test_a_stamp_in_the_future_is_approached_from_the_measured_state():
    controller = running((0.1, [0.5, 0.2]), stamp_ns=NOW + ns(0.1))
    np.testing.assert_allclose(command_after(controller, 0.1), [0.3, 0.0], atol=1e-12)


def test_the_start_is_the_measured_or_the_last_commanded_state_as_configured():
    for from_desired, start in ((False, 0.1), (True, 0.5)):
        controller = running((0.0, [0.5, 0.0]), interpolate_from_desired_state=from_desired)
        controller.update(NOW, HOME, STILL)
        controller.accept(trajectory((0.4, [0.9, 0.0])), NOW)
        command = controller.update(NOW + PERIOD_NS, HOME, STILL)
        # From the last command the clock is one period ahead: the real controller's spike.
        periods = 2 if from_desired else 1
        span = 0.404 if from_desired else 0.4
        assert command[0] == pytest.approx(start + (0.9 - start) * periods * 0.004 / span)


def test_columns_are_mapped_by_name():
    controller = running((0.0, [7.0, 3.0]), names=('b', 'a'))
    np.testing.assert_array_equal(command_after(controller, 0.004), [3.0, 7.0])


def test_a_joint_left_out_keeps_its_last_command_where_that_is_allowed():
    controller = running((0.1, [0.7]), names=('b',), allow_partial_joints_goal=True)
    np.testing.assert_allclose(command_after(controller, 0.2), [0.1, 0.7], atol=1e-12)


def test_a_trajectory_of_past_points_alone_is_refused_and_the_running_one_goes_on():
    controller = running((0.4, [0.5, 0.2]))
    late = trajectory((0.1, [9.0, 9.0]), stamp_ns=NOW - ns(0.2))
    assert 'that ends in the past' in controller.accept(late, NOW)
    np.testing.assert_allclose(command_after(controller, 0.2), [0.3, 0.0], atol=1e-12)


@pytest.mark.parametrize(
    'refused, words',
    [
        (trajectory((0.1, [1.0]), names=('a',)), "don't match the controller joints"),
        (trajectory((0.1, [1.0, 1.0]), names=('a', 'x')), "Incoming joint x doesn't match"),
        (trajectory(), 'Empty trajectory'),
        (trajectory((0.1, [1.0])), 'joint_names size (2) and positions (1) at point #0'),
        (trajectory((0.1, [1.0, 1.0], [0.0])), 'size (2) and velocities (1) at point #0'),
        (trajectory((0.1, [1.0, 1.0]), (0.1, [1.0, 1.0])), 'not strictly increasing'),
        (trajectory((0.1, [1.0, 1.0], [0.0, 0.1])), 'joint b is not zero: 0.1'),
    ],
    ids=lambda value: value if isinstance(value, str) else '',
)
def test_a_malformed_trajectory_is_refused_with_the_rule_it_breaks(refused, words):
    controller = TrajectoryController(NAMES)
    assert words in controller.accept(refused, NOW)
    np.testing.assert_array_equal(controller.update(NOW, HOME, STILL), HOME)
    assert controller.holding


def test_the_newest_of_several_trajectories_between_two_updates_is_executed():
    controller = running((0.0, [1.0, 1.0]))
    controller.accept(trajectory((0.0, [2.0, 2.0])), NOW)
    np.testing.assert_array_equal(command_after(controller, 0.004), [2.0, 2.0])


def test_a_clock_that_goes_back_commands_nothing_new():
    controller = running((0.4, [0.5, 0.2]))
    before = command_after(controller, 0.1)
    np.testing.assert_array_equal(controller.update(NOW - ns(1.0), HOME, STILL), before)


def test_a_reset_controller_holds_where_the_arm_then_is():
    controller = running((0.4, [0.5, 0.2]))
    command_after(controller, 0.1)
    controller.reset()
    with pytest.raises(RuntimeError, match='no setpoint'):
        _ = controller.setpoint
    np.testing.assert_array_equal(controller.update(NOW, HOME + 1.0, STILL), HOME + 1.0)


def test_a_command_once_returned_does_not_change():
    controller = running((0.4, [0.5, 0.2]))
    first = controller.update(NOW, HOME, STILL)
    copy = first.copy()
    controller.update(NOW + PERIOD_NS, HOME, STILL)
    np.testing.assert_array_equal(first, copy)


def test_an_unknown_interpolation_method_is_an_input_error():
    with pytest.raises(InputError, match='use one of splines, none'):
        TrajectoryController(NAMES, interpolation_method='quintic')
