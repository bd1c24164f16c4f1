"""Drives the executor's state machine with a clock of the test's own."""

from __future__ import annotations

import numpy as np

from tr_vam_ros.embodiments import yam
from tr_vam_ros.execution.episodes import Chunk, EpisodeEvent, Request
from tr_vam_ros.execution.executor import ChunkExecutor, Now
from tr_vam_ros.execution.settings import Settings
from tr_vam_ros.execution.timeline import SECOND, Timeline

START_NS = 1000 * SECOND
TICK_NS = 10_000_000


class Driver:
    """The outside world: arms that follow perfectly, streams that can be switched off."""

    def __init__(self, **settings) -> None:
        defaults = {'episode_prefix': 'test', 'instruction': 'pick up the apple'}
        self.timelines: list[Timeline] = []
        self.requests: list[Request] = []
        self.events: list[EpisodeEvent] = []
        self.changes = 0
        self.ros_ns, self.steady = START_NS, 50.0
        self.joints_on = self.images_on = True
        self.offset = np.zeros(14)
        self.machine = ChunkExecutor(Settings(**{**defaults, **settings}), self)
        self._streams()

    # what the executor does
    def send_timeline(self, timeline):
        self.timelines.append(timeline)

    def send_request(self, request):
        self.requests.append(request)

    def send_episode(self, event):
        self.events.append(event)

    def state_changed(self):
        self.changes += 1

    # what the world does
    @property
    def now(self) -> Now:
        return Now(self.ros_ns, self.steady)

    def pose(self) -> np.ndarray:
        """Where the arms are, model units."""
        if not self.timelines:
            return yam.HOME + self.offset
        return self.timelines[-1].evaluate(self.ros_ns)[0] + self.offset

    def _streams(self) -> None:
        if self.joints_on:
            self.machine.joint_state(
                self.now, self.ros_ns, yam.JOINT_NAMES, yam.ros_from_model(self.pose())
            )
        if self.images_on:
            self.machine.image(self.now, self.ros_ns)

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds * SECOND / TICK_NS)):
            self.ros_ns += TICK_NS
            self.steady += TICK_NS / SECOND
            self._streams()
            self.machine.tick(self.now)

    def begin(self) -> None:
        self.machine.arm(self.now)
        self.machine.new_episode(self.now)

    def answer(self, rows: np.ndarray | None = None, **changes) -> None:
        """Answers the last request with 50 rows (default: a slow move from home)."""
        request = self.requests[-1]
        rows = slow_rows() if rows is None else rows
        fields = {
            'request_id': request.request_id,
            'episode_key': request.episode_key,
            'replan_index': request.replan_index,
            'joint_names': yam.JOINT_NAMES,
            'horizon': len(rows),
            'period': yam.ROW_PERIOD,
            'actions': np.asarray(rows, dtype=np.float32).ravel(),
        }
        self.machine.chunk(self.now, Chunk(**{**fields, **changes}))


def slow_rows(amplitude: float = 0.3, start: np.ndarray | None = None) -> np.ndarray:
    """50 rows that begin and end gently: at most 0.6 rad/s for the default amplitude."""
    time = np.arange(1, 51)[:, None] / 50
    start = yam.HOME if start is None else start
    return start + amplitude * (1 - np.cos(np.pi * time)) / 2 * ~yam.GRIPPERS
