"""yam_sim: the MuJoCo cell behind the interfaces of the real one.

Publishes joint states, three cameras and sim_events; takes trajectories as the two
joint_trajectory_controllers do. Clocks: `real_time` follows the wall clock, `lockstep` stands still
at each observation (architecture, "Lockstep and real time") and publishes /clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CameraInfo, Image, JointState
from trajectory_msgs.msg import JointTrajectory

from tr_vam_ros.embodiments import yam
from tr_vam_ros.errors import InputError
from tr_vam_ros.execution.timeline import SECOND
from tr_vam_ros.msg import Episode, ReplanRequest, SimEvent
from tr_vam_ros.nodes.diagnostics import OK, WARN, Diagnostics
from tr_vam_ros.nodes.images import message_from_rgb
from tr_vam_ros.nodes.parameters import declare, parameter
from tr_vam_ros.nodes.runtime import nanoseconds, run_node, stamp_of, steady
from tr_vam_ros.nodes.topics import (
    CAMERA_INFOS,
    CLOCK,
    EPISODE,
    IMAGES,
    JOINT_STATES,
    REPLAN_REQUEST,
    SIM_EVENTS,
    TRAJECTORIES,
)
from tr_vam_ros.sim.cell import CONTROL_NS, JOINT_STATE_NS, Cell
from tr_vam_ros.sim.lockstep import LockstepBarrier
from tr_vam_ros.sim.tasks import EpisodeKey
from tr_vam_ros.sim.trajectory import Trajectory, TrajectoryPoint
from tr_vam_ros.sim.yam_cameras import CameraModel
from tr_vam_ros.sim.yam_world import YamWorld

LOCKSTEP_START_NS = 10 * SECOND  # ROS time 0 means "no clock yet"
SCENE_SETTLE_NS = SECOND // 2
RESEND_SECONDS = 0.5
BEHIND_NS = SECOND // 10  # further behind the wall clock than this is worth a warning


@dataclass
class Parameters:
    clock: str = parameter('real_time', 'clock of the cell', choices=('real_time', 'lockstep'))


class YamSim(Node):
    """Everything runs on the thread that calls `spin`: callbacks, physics, rendering."""

    def __init__(self, **options) -> None:
        super().__init__('yam_sim', **options)
        self.parameters = declare(self, Parameters)
        self._lockstep = self.parameters.clock == 'lockstep'
        self._diagnostics = Diagnostics(self)
        world = YamWorld()
        # Both clocks are read at one moment: time between the two would stay as a lag for good.
        wall_ns, self._started_ns = time.time_ns(), time.monotonic_ns()
        wall_ns = wall_ns // CONTROL_NS * CONTROL_NS
        self._start_ns = LOCKSTEP_START_NS if self._lockstep else wall_ns
        self._cell = Cell(world, self._start_ns)
        self._barrier = LockstepBarrier()
        self._key = ''
        self._joint_states = self.create_publisher(
            JointState, JOINT_STATES.name, JOINT_STATES.qos
        )
        self._images = {
            camera: self.create_publisher(Image, topic.name, topic.qos)
            for camera, topic in IMAGES.items()
        }
        self._infos = {
            camera: self.create_publisher(CameraInfo, topic.name, topic.qos)
            for camera, topic in CAMERA_INFOS.items()
        }
        self._camera_infos = {
            camera: _camera_info(camera, self._cell.world.camera_info(camera))
            for camera in yam.CAMERAS
        }
        self._events = self.create_publisher(SimEvent, SIM_EVENTS.name, SIM_EVENTS.qos)
        for arm, topic in TRAJECTORIES.items():
            self.create_subscription(
                JointTrajectory,
                topic.name,
                lambda message, arm=arm: self._on_trajectory(arm, message),
                topic.qos,
            )
        self.create_subscription(Episode, EPISODE.name, self._on_episode, EPISODE.qos)
        if self._lockstep:
            self._clock_publisher = self.create_publisher(Clock, CLOCK.name, CLOCK.qos)
            self.create_subscription(
                ReplanRequest,
                REPLAN_REQUEST.name,
                lambda request: self._barrier.observe_at(nanoseconds(request.not_before)),
                REPLAN_REQUEST.qos,
            )
        self._scene: tuple[int, str] | None = None  # when to place which scene
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(self)

    def close(self) -> None:
        self._cell.world.close()

    def spin(self, running: Callable[[], bool]) -> None:
        self._diagnostics.set(OK, 'running')
        if self._lockstep:
            self._spin_lockstep(running)
        else:
            self._spin_real_time(running)

    # ---- clocks ----------------------------------------------------------------------------------

    def _spin_real_time(self, running: Callable[[], bool]) -> None:
        while running():
            wall_ns = self._wall_ns()
            self._warn_if_behind(wall_ns - self._cell.now_ns)
            frames_due = False
            for joints, frames in self._cell.advance(wall_ns):
                frames_due |= frames
                if joints:
                    self._publish_joint_state()
                    self._publish_events()
            if frames_due:  # however many were missed: a camera shows the present
                self._publish_frames()
            if self._scene is not None:
                self._place_scene()
            # Until the next joint state is due; a message ends the wait.
            due_ns = (self._cell.now_ns // JOINT_STATE_NS + 1) * JOINT_STATE_NS
            self._executor.spin_once(timeout_sec=max(0, due_ns - self._wall_ns()) / SECOND)

    def _wall_ns(self) -> int:
        """ROS time of the wall clock; steady, so that a step of the system clock moves no arm."""
        return self._start_ns + time.monotonic_ns() - self._started_ns

    def _spin_lockstep(self, running: Callable[[], bool]) -> None:
        self._stand_still()
        while running():
            self._executor.spin_once(timeout_sec=0.02)
            target_ns = self._barrier.go_to(self._cell.now_ns)
            if self._scene is not None and target_ns is None:
                target_ns = max(self._scene[0], self._cell.now_ns)
            if target_ns is not None:
                self._run_to(target_ns)
                if self._scene is not None and self._scene[0] <= self._cell.now_ns:
                    self._run_to(self._place_scene())
                self._stand_still()
            elif steady() - self._stood_at > RESEND_SECONDS:
                self._stand_still(again=True)

    def _run_to(self, target_ns: int) -> None:
        """Advances exactly to `target_ns`; what is due there is left to `_stand_still`."""
        for joints, frames in self._cell.advance(target_ns):
            if self._cell.now_ns == target_ns:
                break
            if joints:
                self._publish_clock()
                self._publish_joint_state()
                self._publish_events()
                self._executor.spin_once(timeout_sec=0)  # a stop comes through here
            if frames:
                self._publish_frames()

    def _stand_still(self, again: bool = False) -> None:
        """Publishes the state of this moment; `again` for those who have just joined."""
        self._publish_clock()
        self._publish_joint_state()
        if not again:
            self._publish_events()
        self._publish_frames()
        self._stood_at = steady()

    def _warn_if_behind(self, behind_ns: int) -> None:
        if behind_ns > BEHIND_NS:
            self._diagnostics.set(WARN, 'slower than real time: the machine is overloaded')
        else:
            self._diagnostics.set(OK, 'running')

    # ---- inputs ----------------------------------------------------------------------------------

    def _on_trajectory(self, arm: str, message: JointTrajectory) -> None:
        trajectory = Trajectory(
            nanoseconds(message.header.stamp),
            tuple(message.joint_names),
            [
                TrajectoryPoint(
                    nanoseconds(point.time_from_start),
                    point.positions,
                    point.velocities if len(point.velocities) else None,
                )
                for point in message.points
            ],
        )
        refusal = self._cell.accept(arm, trajectory)
        if refusal:
            self._publish_event('trajectory_rejected', f'{arm}: {refusal}')
            self.get_logger().error(f'{arm}: {refusal}')
        else:
            self._barrier.trajectory(arm)
            self._publish_event('trajectory_accepted', f'{arm}: {len(trajectory.points)} points')

    def _on_episode(self, message: Episode) -> None:
        stamp_ns = nanoseconds(message.header.stamp)
        if message.event == Episode.START:
            self._scene = (stamp_ns, message.key)
        elif message.event == Episode.CLOSING:
            self._barrier.observe_at(stamp_ns)
        else:
            self._barrier.episode_ended(stamp_ns)
            self._key = ''

    def _place_scene(self) -> int:
        """Places the scene that the episode's key names; returns when it has come to rest."""
        _, key = self._scene
        self._scene = None
        try:
            self._cell.world.place_scene(EpisodeKey.parse(key))
        except InputError as error:
            self._diagnostics.set(WARN, str(error))
            return self._cell.now_ns
        self._key = key
        ready_ns = self._cell.now_ns + SCENE_SETTLE_NS
        self._publish_event('scene_ready', key, ready_ns)
        return ready_ns

    # ---- outputs ---------------------------------------------------------------------------------

    def _publish_clock(self) -> None:
        self._clock_publisher.publish(Clock(clock=stamp_of(self._cell.now_ns)))

    def _publish_joint_state(self) -> None:
        positions, velocities, efforts = self._cell.world.joint_state()
        message = JointState(
            name=list(yam.JOINT_NAMES),
            position=positions.tolist(),
            velocity=velocities.tolist(),
            effort=efforts.tolist(),
        )
        message.header.stamp = stamp_of(self._cell.now_ns)
        self._joint_states.publish(message)

    def _publish_frames(self) -> None:
        stamp = stamp_of(self._cell.now_ns)
        for camera in yam.CAMERAS:
            picture = self._cell.world.render(camera)
            frame_id = self._camera_infos[camera].header.frame_id
            self._images[camera].publish(message_from_rgb(picture, stamp, frame_id))
            info = self._camera_infos[camera]
            info.header.stamp = stamp
            self._infos[camera].publish(info)

    def _publish_events(self) -> None:
        for kind, text in self._cell.world.poll_events():
            self._publish_event(kind, text)

    def _publish_event(self, kind: str, text: str, stamp_ns: int | None = None) -> None:
        message = SimEvent(kind=kind, episode_key=self._key, text=text)
        message.header.stamp = stamp_of(self._cell.now_ns if stamp_ns is None else stamp_ns)
        self._events.publish(message)


def _camera_info(camera: str, model: CameraModel) -> CameraInfo:
    matrix = [float(value) for value in model.matrix.ravel()]
    message = CameraInfo(
        width=model.width,
        height=model.height,
        distortion_model='plumb_bob',
        d=[0.0] * 5,
        k=matrix,
        r=[1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0],
        p=[*matrix[0:3], 0.0, *matrix[3:6], 0.0, *matrix[6:9], 0.0],
    )
    message.header.frame_id = f'{camera}_camera_color_optical_frame'
    return message


def main() -> None:
    run_node(YamSim)


if __name__ == '__main__':
    main()
