"""Holds both arms when the executor's process dies: the duty of whoever started the graph."""

from __future__ import annotations

import numpy as np
from builtin_interfaces.msg import Duration
from rclpy.node import Node
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from tr_vam_ros.embodiments import yam
from tr_vam_ros.nodes.topics import TRAJECTORIES

# The one-point hold that the real controller takes with the smallest jump: 0.1 s, velocity 0.
HOLD_NS = 100_000_000


class Guardian:
    """Publishers are made at once, so that discovery is over when they are needed."""

    def __init__(self, node: Node) -> None:
        self._publishers = {
            arm: node.create_publisher(JointTrajectory, topic.name, topic.qos)
            for arm, topic in TRAJECTORIES.items()
        }

    def hold(self, positions: np.ndarray) -> None:
        """Sends both controllers a hold at the measured positions, ROS units, (14,)."""
        messages = {}
        for arm in yam.ARMS:
            point = JointTrajectoryPoint(
                positions=positions[yam.ARM_SLICES[arm]].tolist(),
                velocities=[0.0] * yam.JOINTS_PER_ARM,
                time_from_start=Duration(nanosec=HOLD_NS),
            )
            messages[arm] = JointTrajectory(
                joint_names=list(yam.ARM_JOINT_NAMES[arm]), points=[point]
            )
        for arm, message in messages.items():
            self._publishers[arm].publish(message)
