"""trajectory_msgs/JointTrajectory from a timeline, and back into the simulator's own type."""

from __future__ import annotations

from builtin_interfaces.msg import Duration
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from tr_vam_ros.embodiments import yam
from tr_vam_ros.execution.timeline import SECOND, Timeline
from tr_vam_ros.nodes.runtime import stamp_of


def joint_trajectory(timeline: Timeline, arm: str) -> JointTrajectory:
    """One arm's part of the timeline with an absolute stamp, in ROS units (rad, m)."""
    columns = yam.ARM_SLICES[arm]
    start_ns = int(timeline.times[0])
    positions = yam.ros_from_model(timeline.positions)[:, columns]
    velocities = yam.ros_from_model(timeline.velocities)[:, columns]
    message = JointTrajectory(joint_names=list(yam.ARM_JOINT_NAMES[arm]))
    message.header.stamp = stamp_of(start_ns)
    for time_ns, position, velocity in zip(timeline.times.tolist(), positions, velocities):
        offset = time_ns - start_ns
        message.points.append(
            JointTrajectoryPoint(
                positions=position.tolist(),
                velocities=velocity.tolist(),
                time_from_start=Duration(sec=offset // SECOND, nanosec=offset % SECOND),
            )
        )
    return message
