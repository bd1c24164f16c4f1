"""Every topic of the graph: name, type, reliability. One table for the nodes and the recorder.

Relative names live in the namespace of the graph, `/tr_vam`. Controllers, cameras and joint states
keep the names their drivers give them.
"""

from __future__ import annotations

from dataclasses import dataclass

from diagnostic_msgs.msg import DiagnosticArray
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CameraInfo, Image, JointState
from std_msgs.msg import String
from trajectory_msgs.msg import JointTrajectory

from tr_vam_ros.embodiments import yam
from tr_vam_ros.msg import (
    ActionChunk,
    Episode,
    ExecutorState,
    ReplanRequest,
    SimEvent,
    TemporalRatio,
)

NAMESPACE = '/tr_vam'


def reliable(depth: int) -> QoSProfile:
    return QoSProfile(depth=depth, reliability=ReliabilityPolicy.RELIABLE)


def latest() -> QoSProfile:
    """Sensor data: the newest, and never wait for a lost one."""
    return QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)


def latched() -> QoSProfile:
    return QoSProfile(
        depth=1,
        reliability=ReliabilityPolicy.RELIABLE,
        durability=DurabilityPolicy.TRANSIENT_LOCAL,
    )


def every_message() -> QoSProfile:
    """For those who must not miss one: reliable, unbounded queue."""
    return QoSProfile(history=HistoryPolicy.KEEP_ALL, reliability=ReliabilityPolicy.RELIABLE)


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    type: type
    qos: QoSProfile  # what the publisher offers


TEMPORAL_RATIO = Topic('temporal_ratio', TemporalRatio, reliable(10))
ACTION_CHUNK = Topic('action_chunk', ActionChunk, reliable(10))
REPLAN_REQUEST = Topic('replan_request', ReplanRequest, reliable(10))
EPISODE = Topic('episode', Episode, latched())
EXECUTOR_STATE = Topic('executor_state', ExecutorState, reliable(10))
SIM_EVENTS = Topic('sim_events', SimEvent, reliable(100))
STACKED_IMAGE = Topic('stacked_image', Image, reliable(5))
SET_INSTRUCTION = Topic('set_instruction', String, reliable(1))
# Deep enough for the longest burst of a lockstep simulator.
JOINT_STATES = Topic('/joint_states', JointState, reliable(1000))
DIAGNOSTICS = Topic('/diagnostics', DiagnosticArray, reliable(20))
CLOCK = Topic('/clock', Clock, reliable(10))
TRAJECTORIES = {
    arm: Topic(f'/{arm}_yam_arm_controller/joint_trajectory', JointTrajectory, reliable(10))
    for arm in yam.ARMS
}
# Where trajectories go in a dry run.
PREVIEWS = {
    arm: Topic(f'{arm}_trajectory_preview', JointTrajectory, reliable(10)) for arm in yam.ARMS
}
IMAGES = {
    camera: Topic(f'/{camera}/camera/color/image_raw', Image, reliable(5)) for camera in yam.CAMERAS
}
CAMERA_INFOS = {
    camera: Topic(f'/{camera}/camera/color/camera_info', CameraInfo, reliable(5))
    for camera in yam.CAMERAS
}

# What the recorder writes when nothing else is asked for.
RECORDED = (
    TEMPORAL_RATIO,
    ACTION_CHUNK,
    REPLAN_REQUEST,
    EPISODE,
    EXECUTOR_STATE,
    SIM_EVENTS,
    STACKED_IMAGE,
    SET_INSTRUCTION,
    JOINT_STATES,
    DIAGNOSTICS,
    *TRAJECTORIES.values(),
    *PREVIEWS.values(),
    *IMAGES.values(),
    *CAMERA_INFOS.values(),
)
