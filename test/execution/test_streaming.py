"""The executor's timelines, played by the simulator's restatement of the Jazzy controller."""

import numpy as np
import pytest

from test.execution.driver import Driver, slow_rows
from tr_vam_ros.embodiments import yam
from tr_vam_ros.execution.timeline import Timeline
from tr_vam_ros.sim.trajectory import Trajectory, TrajectoryPoint
from tr_vam_ros.sim.trajectory_controller import TrajectoryController

UPDATE_NS = 4_000_000
# 15 rad/s^2 over one update, and a little for the clock's grid
LARGEST_DV = yam.MAX_JOINT_ACCELERATION * 0.004 * 1.05


def left_trajectory(timeline: Timeline) -> Trajectory:
    start = int(timeline.times[0])
    positions = yam.ros_from_model(timeline.positions)[:, :7]
    velocities = yam.ros_from_model(timeline.velocities)[:, :7]
    points = [
        TrajectoryPoint(int(t) - start, p, v)
        for t, p, v in zip(timeline.times, positions, velocities)
    ]
    return Trajectory(start, yam.ARM_JOINT_NAMES['left'], points)


class Player:
    """Steps the controller at 250 Hz on a plant with 50 ms of lag; messages arrive late."""

    def __init__(self, driver: Driver, late_ns: int) -> None:
        self._driver, self._late_ns = driver, late_ns
        self._controller = TrajectoryController(yam.ARM_JOINT_NAMES['left'])
        self._measured = yam.ros_from_model(yam.HOME)[:7]
        self._queue: list[tuple[int, Timeline]] = []
        self._seen = 0
        self._now_ns = driver.ros_ns
        self.commands: list[np.ndarray] = []

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.004)):
            new = self._driver.timelines[self._seen :]
            self._queue += [(self._now_ns + self._late_ns, timeline) for timeline in new]
            self._seen += len(new)
            while self._queue and self._queue[0][0] <= self._now_ns:
                refusal = self._controller.accept(
                    left_trajectory(self._queue.pop(0)[1]), self._now_ns
                )
                assert refusal == ''
            command = self._controller.update(self._now_ns, self._measured, np.zeros(7)).copy()
            self.commands.append(command)
            self._measured = self._measured + (command - self._measured) * (1 - np.exp(-0.08))
            self._now_ns += UPDATE_NS
            self._driver.ros_ns = self._now_ns
            self._driver.steady += 0.004
            self._driver._streams()
            self._driver.machine.tick(self._driver.now)

    def largest_change_of_velocity(self) -> float:
        velocity = np.diff(self.commands, axis=0) / 0.004
        return float(np.abs(np.diff(velocity, axis=0))[:, :6].max())


@pytest.mark.parametrize('late_ns', [0, 20_000_000, 45_000_000])
def test_chunk_after_chunk_is_commanded_without_a_jump_however_late_it_comes(late_ns):
    driver = Driver()
    player = Player(driver, late_ns)
    player.run(0.1)
    driver.begin()
    driver.answer()
    player.run(3.0)
    for amplitude in (0.4, -0.3):
        driver.answer(slow_rows(amplitude, driver.machine.timeline.final_position))
        player.run(2.0)
    assert driver.machine.counters.accepted == 3
    assert player.largest_change_of_velocity() <= LARGEST_DV
    moved = np.ptp(np.array(player.commands), axis=0)[:6]
    assert (moved > 0.2).all()


def test_a_stop_in_full_motion_is_commanded_within_the_acceleration_cap():
    driver = Driver()
    player = Player(driver, 4_000_000)
    player.run(0.1)
    driver.begin()
    driver.answer(slow_rows(0.6))
    player.run(1.9)
    driver.machine.stop(driver.now)
    stopped_at = len(player.commands)
    player.run(0.5)
    assert player.largest_change_of_velocity() <= LARGEST_DV
    velocity = np.abs(np.diff(player.commands, axis=0))[:, :6] / 0.004
    speed = velocity[stopped_at - 1].max()
    assert speed > 0.3
    at_rest = np.nonzero(velocity[stopped_at:].max(axis=1) < 1e-6)[0][0] * 0.004
    assert at_rest <= speed / yam.MAX_JOINT_ACCELERATION + 0.05
