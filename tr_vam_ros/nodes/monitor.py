"""What a demo or a test sees of a running graph, over DDS like any other participant."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from rclpy.node import Node
from sensor_msgs.msg import Image, JointState
from std_srvs.srv import SetBool, Trigger

from tr_vam_ros.embodiments import yam
from tr_vam_ros.errors import InputError
from tr_vam_ros.msg import ActionChunk, Episode, ExecutorState, TemporalRatio
from tr_vam_ros.nodes.images import rgb_from_message
from tr_vam_ros.nodes.runtime import nanoseconds
from tr_vam_ros.nodes.topics import (
    ACTION_CHUNK,
    DIAGNOSTICS,
    EPISODE,
    EXECUTOR_STATE,
    IMAGES,
    JOINT_STATES,
    NAMESPACE,
    TEMPORAL_RATIO,
    every_message,
    latched,
)

SERVICES = f'{NAMESPACE}/chunk_executor'


@dataclass
class EpisodeRecord:
    key: str
    start_ns: int
    end_ns: int = 0
    outcome: str = ''
    reason: str = ''
    ratios: dict[int, TemporalRatio] = field(default_factory=dict)
    hashes: dict[int, str] = field(default_factory=dict)

    @property
    def replans(self) -> list[int]:
        """Replans that were executed: those observed before the episode ended."""
        return sorted(
            index
            for index, ratio in self.ratios.items()
            if index in self.hashes
            and (not self.end_ns or nanoseconds(ratio.header.stamp) < self.end_ns)
        )


class Monitor(Node):
    def __init__(
        self,
        *,
        on_replan: Callable[[TemporalRatio], None] = lambda ratio: None,
        on_frame: Callable[[int, np.ndarray], None] | None = None,
        on_problem: Callable[[str, str], None] = lambda node, message: None,
    ) -> None:
        """on_replan: each new TemporalRatio.

        on_problem: node and message of each new warning or error in its diagnostics.

        on_frame: stamp and RGB picture of the top camera, from the start of the first episode on.
        """
        super().__init__('monitor', namespace=NAMESPACE)
        self._on_replan, self._on_frame, self._on_problem = on_replan, on_frame, on_problem
        self.episodes: dict[str, EpisodeRecord] = {}
        self.state: ExecutorState | None = None
        self.health: dict[str, tuple[int, str]] = {}  # level and message by node
        self._stamps: list[int] = []
        self._positions: list[np.ndarray] = []
        every = every_message()
        self.create_subscription(TemporalRatio, TEMPORAL_RATIO.name, self._ratio, every)
        self.create_subscription(ActionChunk, ACTION_CHUNK.name, self._chunk, every)
        self.create_subscription(Episode, EPISODE.name, self._episode, latched())
        self.create_subscription(ExecutorState, EXECUTOR_STATE.name, self._executor_state, every)
        self.create_subscription(JointState, JOINT_STATES.name, self._joint_state, every)
        self.create_subscription(DIAGNOSTICS.type, DIAGNOSTICS.name, self._diagnostics, every)
        if on_frame is not None:
            self.create_subscription(Image, IMAGES['top'].name, self._image, every)
        self.arm_client = self.create_client(SetBool, f'{SERVICES}/arm')
        self.stop_client = self.create_client(Trigger, f'{SERVICES}/stop')
        self.new_episode_client = self.create_client(Trigger, f'{SERVICES}/new_episode')

    @property
    def latest_positions(self) -> np.ndarray | None:
        """Last joint positions, ROS units, float64 (14,) in the order of `yam.JOINT_NAMES`."""
        return self._positions[-1] if self._positions else None

    @property
    def latest_stamp_ns(self) -> int:
        return self._stamps[-1] if self._stamps else 0

    def path_length(self, start_ns: int, end_ns: int) -> dict[str, float]:
        """Path of each arm between two stamps: sum over 6 joints of |change|, rad."""
        stamps = np.array(self._stamps)
        inside = (stamps >= start_ns) & (stamps <= end_ns)
        positions = np.array(self._positions)[inside]
        moved = np.abs(np.diff(positions, axis=0)).sum(axis=0) if len(positions) else np.zeros(14)
        return {arm: float(moved[yam.ARM_SLICES[arm]][:6].sum()) for arm in yam.ARMS}

    def forget_motion(self) -> None:
        """Drops the joint states kept for `path_length`, between episodes."""
        del self._stamps[:-1], self._positions[:-1]

    def _joint_state(self, message: JointState) -> None:
        stamp_ns = nanoseconds(message.header.stamp)
        if self._stamps and stamp_ns <= self._stamps[-1]:
            return  # a lockstep simulator repeats itself while it stands still
        try:
            values = yam.proprio_from_joint_state(message.name, message.position)
        except InputError:
            return
        self._stamps.append(stamp_ns)
        self._positions.append(yam.ros_from_model(values))

    def _episode(self, message: Episode) -> None:
        stamp_ns = nanoseconds(message.header.stamp)
        if message.event == Episode.START:
            self._record(message.key).start_ns = stamp_ns
        elif message.event == Episode.END and message.key in self.episodes:
            record = self.episodes[message.key]
            record.end_ns, record.outcome, record.reason = (
                stamp_ns,
                message.outcome,
                message.reason,
            )

    def _record(self, key: str) -> EpisodeRecord:
        return self.episodes.setdefault(key, EpisodeRecord(key, 0))

    def _ratio(self, message: TemporalRatio) -> None:
        ratios = self._record(message.episode_key).ratios
        if message.replan_index not in ratios:
            ratios[message.replan_index] = message
            self._on_replan(message)

    def _chunk(self, message: ActionChunk) -> None:
        if message.error:
            return
        digest = hashlib.sha256(np.array(message.actions, dtype='<f4').tobytes()).hexdigest()
        self._record(message.episode_key).hashes[message.replan_index] = digest

    def _executor_state(self, message: ExecutorState) -> None:
        self.state = message

    def _diagnostics(self, message) -> None:
        for status in message.status:
            name, level = status.name.removeprefix('tr_vam/'), int.from_bytes(status.level, 'little')
            report = level, status.message
            if level and report != self.health.get(name):
                self._on_problem(name, status.message)
            self.health[name] = report

    def _image(self, message: Image) -> None:
        stamp_ns = nanoseconds(message.header.stamp)
        if any(stamp_ns > record.start_ns > 0 for record in self.episodes.values()):
            self._on_frame(stamp_ns, rgb_from_message(message))
