"""The cell in time: world, one trajectory controller per arm, and what is due when. No ROS.

Physics steps of 2 ms; controllers at 250 Hz; joint states at 100 Hz; cameras at 30 Hz. Time is
integer nanoseconds of ROS time.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tr_vam_ros.embodiments import yam
from tr_vam_ros.execution.timeline import SECOND
from tr_vam_ros.sim.trajectory import Trajectory
from tr_vam_ros.sim.trajectory_controller import TrajectoryController
from tr_vam_ros.sim.yam_world import YamWorld

STEP_NS = 2_000_000
CONTROL_NS = 4_000_000
JOINT_STATE_NS = 10_000_000
CAMERA_RATE = 30


class Cell:
    def __init__(self, world: YamWorld, start_ns: int) -> None:
        """`start_ns`: ROS time of the present state, a multiple of the control period."""
        self.world = world
        self._offset_ns = start_ns - world.time_ns
        self._positions = world.joint_state()[0]
        self._rates = np.zeros_like(self._positions)
        self.controllers = {arm: TrajectoryController(yam.ARM_JOINT_NAMES[arm]) for arm in yam.ARMS}

    @property
    def now_ns(self) -> int:
        return self.world.time_ns + self._offset_ns

    def accept(self, arm: str, trajectory: Trajectory) -> str:
        """Hands a trajectory to an arm's controller; the reason if it refuses, else ''."""
        return self.controllers[arm].accept(trajectory, self.now_ns)

    def advance(self, to_ns: int) -> Iterator[tuple[bool, bool]]:
        """Steps until the next step would pass `to_ns`.

        Yields after each step that makes something due: (joint state, camera frames).
        """
        while self.now_ns + STEP_NS <= to_ns:
            if self.now_ns % CONTROL_NS == 0:
                self._control()
            frame = self.now_ns * CAMERA_RATE // SECOND
            self.world.step()
            joints_due = self.now_ns % JOINT_STATE_NS == 0
            frames_due = self.now_ns * CAMERA_RATE // SECOND != frame
            if joints_due or frames_due:
                yield joints_due, frames_due

    def _control(self) -> None:
        positions, velocities, _ = self.world.joint_state()
        for arm, controller in self.controllers.items():
            part = yam.ARM_SLICES[arm]
            command = controller.update(self.now_ns, positions[part], velocities[part])
            # The real controller commands NaN when it is given NaN; a motor drive ignores that.
            if np.isfinite(command).all():
                self._rates[part] = (command - self._positions[part]) * (SECOND / CONTROL_NS)
                self._positions[part] = command
        # The drive is told the command's own speed too, as the vendor's protocol allows: without
        # it damping alone would drag the wrist 0.15 s behind.
        self.world.set_targets(self._positions, self._rates)
