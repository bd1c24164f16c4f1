"""The chunk executor in front of the trajectory controllers, in simulated time, without ROS.

A smooth reference takes the model's place: it sees where on a band-limited path the arms are, and
answers with the rows that follow, after an inference time of the caller's choice. What the
controllers command at 250 Hz is recorded, on arms that follow with a lag. The executor and the
timeline are the real ones, the controllers those of the simulated cell; only DDS and the threads are left out, so a minute takes a second
and the same seed gives the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tr_vam_ros.embodiments import yam
from tr_vam_ros.execution.episodes import Chunk, EpisodeEvent, Request
from tr_vam_ros.execution.executor import ChunkExecutor, Now, State
from tr_vam_ros.execution.settings import Settings
from tr_vam_ros.execution.timeline import SECOND, Timeline
from tr_vam_ros.sim.trajectory import Trajectory, TrajectoryPoint
from tr_vam_ros.sim.trajectory_controller import TrajectoryController

UPDATE_NS = 4_000_000  # the controllers run at 250 Hz
TICK_UPDATES = 5  # the executor looks at 50 Hz
IMAGE_NS = 33_333_333  # cameras at 30 Hz ...
IMAGE_LATENCY_NS = 12_000_000  # ... and what comes out of camera_stack is this old
PLANT_LAG = 0.05  # s, of an arm behind its command
SPEED = 0.9  # rad/s, of a brisk demonstration
START_NS = 1000 * SECOND


class Reference:
    """A path of all joints: sines below 0.4 Hz at 0.9 rad/s of the fastest joint; others faster."""

    def __init__(self, seed: int, speed: float = SPEED) -> None:
        random = np.random.default_rng(seed)
        self._frequency = random.uniform(0.05, 0.4, size=(5, yam.DOF))
        self._phase = random.uniform(0, 2 * np.pi, size=(5, yam.DOF))
        self._amplitude = np.where(yam.GRIPPERS, 0.0, random.uniform(0.2, 1.0, size=(5, yam.DOF)))
        self._amplitude /= self._frequency  # equal shares of the speed
        times = np.linspace(0, 120, 12001)
        fastest = np.abs(np.gradient(self._sum(times), times, axis=0)).max()
        self._amplitude *= SPEED / fastest
        self._frequency *= speed / SPEED
        centre = (yam.COMMAND_LOWER + yam.COMMAND_UPPER) / 2
        self._centre = np.where(yam.GRIPPERS, 0.5, centre)

    def _sum(self, seconds: np.ndarray) -> np.ndarray:
        angle = 2 * np.pi * self._frequency * seconds[:, None, None] + self._phase
        return (self._amplitude * np.sin(angle)).sum(axis=1)

    def __call__(self, seconds: np.ndarray) -> np.ndarray:
        """float64 (n, 14), model units, at places (n,) on the path, in seconds of its length."""
        return self._centre + self._sum(np.atleast_1d(seconds))

    def nearest(self, pose: np.ndarray, around: float) -> tuple[float, float]:
        """The place on the path nearest to a pose, at most 2.5 s after `around`, and how far, rad."""
        low, high = max(0.0, around - 0.1), around + 2.5
        for _ in range(3):
            places = np.linspace(low, high, 53)
            distances = np.abs(self(places) - pose)[:, ~yam.GRIPPERS].max(axis=1)
            best, step = places[int(distances.argmin())], places[1] - places[0]
            low, high = max(0.0, best - step), best + step
        return float(best), float(distances.min())


@dataclass
class Recording:
    """What the controllers commanded, and what the executor said of it."""

    times: np.ndarray  # float64 (u,), s since the start of the run
    commands: np.ndarray  # float64 (u, 14), rad and m
    skipped: list[int] = field(default_factory=list)  # rows, at each hand-over in motion
    executed: list[int] = field(default_factory=list)  # rows since its observation, by the clock
    refusals: list[str] = field(default_factory=list)

    @property
    def velocities(self) -> np.ndarray:
        """float64 (u - 1, 14)."""
        return np.diff(self.commands, axis=0) / (UPDATE_NS / SECOND)

    def largest_velocity_change(self, since: float = 0.0) -> float:
        """dv: the largest change of any joint's commanded velocity between two updates, rad/s."""
        changes = np.abs(np.diff(self.velocities, axis=0))[:, ~yam.GRIPPERS]
        return float(changes[self.times[2:] >= since].max())


class Playback:
    """Runs an executor against a reference; see the module.

    inference: seconds that the answer to the n-th request takes. disagree: rad that the n-th
    chunk is off the reference by. lose: whether the n-th answer is lost.
    """

    def __init__(
        self,
        settings: Settings,
        reference: Reference,
        *,
        inference: Callable[[int], float] = lambda n: 0.0,
        disagree: Callable[[int], float] = lambda n: 0.0,
        lose: Callable[[int], bool] = lambda n: False,
        late_ns: int = 2_000_000,
    ) -> None:
        self.reference = reference
        self._inference, self._disagree, self._lose = inference, disagree, lose
        self._late_ns = late_ns
        self.start_ns = self.now_ns = START_NS
        self.machine = ChunkExecutor(settings, self)
        self._controllers = {arm: TrajectoryController(yam.ARM_JOINT_NAMES[arm]) for arm in yam.ARMS}
        self._measured = yam.ros_from_model(reference(0.0)[0])
        self._inbox: list[tuple[int, Timeline]] = []
        self._answers: list[tuple[int, int, Request, int]] = []  # due, serial, request, observed
        self.asked: list[tuple[int, Request]] = []  # when, what; repetitions left out
        self._place = 0.0  # on the reference, at the last observation
        self._serial = 0
        self._commands: list[np.ndarray] = []
        self.events: list[EpisodeEvent] = []
        self.recording = Recording(np.zeros(0), np.zeros((0, yam.DOF)))

    # ---- what the executor does ----------------------------------------------------------------

    def send_timeline(self, timeline: Timeline) -> None:
        self._inbox.append((self.now_ns + self._late_ns, timeline))

    def send_request(self, request: Request) -> None:
        if any(request.request_id == known.request_id for _, known in self.asked):
            return  # the policy is at it, or its answer is on the way
        self.asked.append((self.now_ns, request))
        observed_ns = -(-max(request.not_before_ns, self.now_ns) // IMAGE_NS) * IMAGE_NS
        thinks_ns = int(self._inference(self._serial) * SECOND)
        due_ns = observed_ns + IMAGE_LATENCY_NS + thinks_ns
        if self._lose(self._serial):
            due_ns += int(self.machine.settings.async_repeat * SECOND)  # comes when asked again
        self._answers.append((due_ns, self._serial, request, observed_ns))
        self._serial += 1

    def send_episode(self, event: EpisodeEvent) -> None:
        self.events.append(event)

    def state_changed(self) -> None:
        pass

    # ---- the world -------------------------------------------------------------------------------

    def begin(self) -> None:
        """Arms and begins an episode."""
        self._look()
        self.machine.arm(self._now)
        self.machine.new_episode(self._now, 'follow the reference')

    def run(self, seconds: float) -> Recording:
        for update in range(round(seconds * SECOND / UPDATE_NS)):
            self._step(tick=update % TICK_UPDATES == 0)
        times = np.arange(len(self._commands)) * UPDATE_NS / SECOND
        self.recording.times, self.recording.commands = times, np.array(self._commands)
        return self.recording

    @property
    def _now(self) -> Now:
        return Now(self.now_ns, self.now_ns / SECOND)

    def _step(self, tick: bool) -> None:
        while self._inbox and self._inbox[0][0] <= self.now_ns:
            self._deliver(self._inbox.pop(0)[1])
        commands = [
            controller.update(self.now_ns, self._measured[yam.ARM_SLICES[arm]], np.zeros(7))
            for arm, controller in self._controllers.items()
        ]
        self._commands.append(np.concatenate(commands))
        share = 1 - np.exp(-UPDATE_NS / SECOND / PLANT_LAG)
        self._measured = self._measured + (self._commands[-1] - self._measured) * share
        self.now_ns += UPDATE_NS
        self._look()
        for answer in [a for a in self._answers if a[0] <= self.now_ns]:
            self._answers.remove(answer)
            self._answer(*answer[1:])
        if tick:
            self.machine.tick(self._now)

    def _look(self) -> None:
        self.machine.joint_state(self._now, self.now_ns, yam.JOINT_NAMES, self._measured)
        self.machine.image(self._now, self.now_ns)

    def _deliver(self, timeline: Timeline) -> None:
        start_ns = int(timeline.times[0])
        positions = yam.ros_from_model(timeline.positions)
        velocities = yam.ros_from_model(timeline.velocities)
        for arm, controller in self._controllers.items():
            columns = yam.ARM_SLICES[arm]
            points = [
                TrajectoryPoint(int(t) - start_ns, p[columns], v[columns])
                for t, p, v in zip(timeline.times, positions, velocities)
            ]
            trajectory = Trajectory(start_ns, yam.ARM_JOINT_NAMES[arm], points)
            if refusal := controller.accept(trajectory, self.now_ns):
                self.recording.refusals.append(refusal)

    def _answer(self, serial: int, request: Request, observed_ns: int) -> None:
        machine = self.machine
        # What the arms were told at the observation; their lag is in the data that a model learns.
        seen = self._commands[(observed_ns - START_NS) // UPDATE_NS]
        self._place, _ = self.reference.nearest(yam.model_from_ros(seen), self._place)
        rows = self.reference(self._place + np.arange(1, yam.HORIZON + 1) * yam.ROW_PERIOD)
        rows += np.where(yam.GRIPPERS, 0.0, self._disagree(serial))
        in_motion = machine.state in (State.EXECUTING, State.RAMPING)
        accepted = machine.counters.accepted
        machine.chunk(
            self._now,
            Chunk(
                request.request_id,
                request.episode_key,
                request.replan_index,
                yam.JOINT_NAMES,
                len(rows),
                yam.ROW_PERIOD,
                rows.ravel(),
                observed_ns=observed_ns,
            ),
        )
        if in_motion and machine.counters.accepted > accepted:
            # At full speed a row passes each period: counted by the clock, not by the executor.
            passed = (machine.planner.began_ns - observed_ns) / SECOND / yam.ROW_PERIOD
            self.recording.skipped.append(machine.planner.skipped)
            self.recording.executed.append(round(passed))
