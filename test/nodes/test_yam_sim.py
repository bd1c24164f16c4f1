"""The simulator node over DDS, as its neighbours see it."""

import threading

import numpy as np
import pytest
from rosgraph_msgs.msg import Clock
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from test.ros import node_of, wait_for
from tr_vam_ros.embodiments import yam
from tr_vam_ros.msg import Episode, ReplanRequest
from tr_vam_ros.nodes.images import rgb_from_message
from tr_vam_ros.nodes.runtime import nanoseconds, stamp_of
from tr_vam_ros.nodes.topics import (
    CAMERA_INFOS,
    CLOCK,
    EPISODE,
    IMAGES,
    JOINT_STATES,
    REPLAN_REQUEST,
    SIM_EVENTS,
    TRAJECTORIES,
    latched,
)
from tr_vam_ros.nodes.yam_sim import LOCKSTEP_START_NS, SCENE_SETTLE_NS, YamSim

HOME = yam.ros_from_model(yam.HOME)


class Sim:
    """Runs the node's own loop in a thread, where its renderer lives too."""

    def __init__(self, ros, clock: str, pause: float = 0.0) -> None:
        """pause: seconds between making the node and spinning it, as on a slow machine."""
        self.ros = ros
        self._pause = pause
        self.lags: list[float] = []  # s, how old a joint state is when it arrives
        self.joints, self.events = ros.heard(JOINT_STATES), ros.heard(SIM_EVENTS)
        ros.node.create_subscription(
            JOINT_STATES.type, JOINT_STATES.name, self._measure_lag, JOINT_STATES.qos
        )
        self.images = {c: ros.heard(topic) for c, topic in IMAGES.items()}
        self.infos = ros.heard(CAMERA_INFOS['top'])
        self.clock = ros.heard(CLOCK)
        self._trajectories = {
            arm: ros.node.create_publisher(JointTrajectory, t.name, t.qos)
            for arm, t in TRAJECTORIES.items()
        }
        self._episodes = ros.node.create_publisher(Episode, EPISODE.name, latched())
        self._requests = ros.node.create_publisher(
            ReplanRequest, REPLAN_REQUEST.name, REPLAN_REQUEST.qos
        )
        self._clock_name = clock
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        wait_for(lambda: self.joints, 'joint states')
        wait_for(
            lambda: all(p.get_subscription_count() for p in self._trajectories.values())
            and self._episodes.get_subscription_count(),
            'the simulator listens',
        )

    def _measure_lag(self, message) -> None:
        now_ns = self.ros.node.get_clock().now().nanoseconds
        self.lags.append((now_ns - nanoseconds(message.header.stamp)) / 1e9)

    def _run(self) -> None:
        node = node_of(YamSim, clock=self._clock_name)
        try:
            threading.Event().wait(self._pause)
            node.spin(self.ros.node.context.ok)
        except Exception as error:  # the context is gone: the test is over
            if self.ros.node.context.ok():
                raise error
        finally:
            node.close()

    def now_ns(self) -> int:
        return nanoseconds(self.joints[-1].header.stamp)

    def send(self, arm: str, seconds=1.0, stamp_ns=0, names=None, delta=0.2) -> None:
        positions = HOME[yam.ARM_SLICES[arm]].copy()
        positions[0] += delta
        point = JointTrajectoryPoint(positions=positions.tolist(), velocities=[0.0] * 7)
        point.time_from_start.sec = int(seconds)
        point.time_from_start.nanosec = int(seconds % 1 * 1e9)
        message = JointTrajectory(
            joint_names=list(names or yam.ARM_JOINT_NAMES[arm]), points=[point]
        )
        message.header.stamp = stamp_of(stamp_ns)
        self._trajectories[arm].publish(message)

    def episode(self, event: int, key: str, stamp_ns: int) -> None:
        message = Episode(event=event, key=key)
        message.header.stamp = stamp_of(stamp_ns)
        self._episodes.publish(message)

    def request(self, not_before_ns: int) -> None:
        self._requests.publish(ReplanRequest(not_before=stamp_of(not_before_ns)))

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]


def test_it_publishes_joint_states_pictures_and_intrinsics_in_ros_units(ros):
    sim = Sim(ros, 'real_time')
    wait_for(lambda: len(sim.joints) > 100, 'a second of joint states')
    wait_for(lambda: all(len(heard) > 15 for heard in sim.images.values()), 'frames')
    state = sim.joints[-1]
    assert tuple(state.name) == yam.JOINT_NAMES
    np.testing.assert_allclose(state.position, HOME, atol=0.01)
    stamps = np.array([nanoseconds(m.header.stamp) for m in sim.joints])
    assert np.median(np.diff(stamps)) == 10_000_000
    for camera, heard in sim.images.items():
        assert rgb_from_message(heard[-1]).shape == (168, 224, 3)
        assert heard[-1].header.frame_id == f'{camera}_camera_color_optical_frame'
    info = wait_for(lambda: sim.infos, 'camera_info')[-1]
    assert (info.width, info.height) == (224, 168)
    assert info.k[0] == pytest.approx(84 / np.tan(np.radians(29)))


@pytest.mark.parametrize('pause', [0.0, 0.5])
def test_stamps_are_the_wall_clock_however_long_the_start_took(ros, pause):
    """A lag at the start must not stay: over 0.1 s of age no image stack is ever made."""
    sim = Sim(ros, 'real_time', pause)
    wait_for(lambda: len(sim.lags) > 200, 'two seconds of joint states')
    assert -0.01 < np.median(sim.lags[-100:]) < 0.08


def test_trajectories_are_answered_and_executed_or_refused_with_the_reason(ros):
    sim = Sim(ros, 'real_time')
    sim.send('left')
    wait_for(lambda: 'trajectory_accepted' in sim.kinds(), 'the acceptance')
    sim.send('right', names=['right_jointX', *yam.ARM_JOINT_NAMES['right'][1:]])
    event = wait_for(
        lambda: next((e for e in sim.events if e.kind == 'trajectory_rejected'), None), 'refusal'
    )
    assert event.text.startswith('right: ') and 'right_jointX' in event.text
    wait_for(lambda: abs(sim.joints[-1].position[0] - 0.2) < 0.02, 'the left arm is there')
    np.testing.assert_allclose(sim.joints[-1].position[7:13], HOME[7:13], atol=0.01)


def test_an_episode_gets_its_scene_and_an_answer_when_it_is_ready(ros):
    sim = Sim(ros, 'real_time')
    sim.episode(Episode.START, 'scene1/task1/seed0/ep0', sim.now_ns())
    event = wait_for(
        lambda: next((e for e in sim.events if e.kind == 'scene_ready'), None), 'scene_ready'
    )
    assert event.episode_key == 'scene1/task1/seed0/ep0'
    assert nanoseconds(event.header.stamp) > sim.now_ns() - 1_000_000_000


def test_in_lockstep_time_stands_until_both_arms_and_the_next_request_are_in(ros):
    sim = Sim(ros, 'lockstep')
    wait_for(lambda: sim.clock, '/clock')
    first_count = len(sim.images['top'])
    wait_for(lambda: len(sim.images['top']) > first_count + 1, 'the frames are sent again')
    assert sim.now_ns() == LOCKSTEP_START_NS
    again = sim.images['top'][-2:]
    assert bytes(again[0].data) == bytes(again[1].data)

    sim.episode(Episode.START, 'scene1/task1/seed0/ep0', LOCKSTEP_START_NS)
    ready = LOCKSTEP_START_NS + SCENE_SETTLE_NS
    wait_for(lambda: sim.now_ns() == ready, 'the scene')
    target = ready + 1_000_000_000
    sim.send('left', stamp_ns=ready)
    sim.request(target)
    wait_for(lambda: 'trajectory_accepted' in sim.kinds(), 'the left acceptance')
    resent = len(sim.images['top'])
    wait_for(lambda: len(sim.images['top']) > resent + 1, 'it still stands')
    assert sim.now_ns() == ready
    sim.send('right', stamp_ns=ready)
    wait_for(lambda: sim.now_ns() == target, 'exactly the observation time')
    wait_for(
        lambda: nanoseconds(sim.images['top'][-1].header.stamp) == target, 'the frame of that time'
    )
    assert isinstance(sim.clock[-1], Clock) and nanoseconds(sim.clock[-1].clock) == target
    between = [nanoseconds(m.header.stamp) for m in sim.joints]
    between = sorted({t for t in between if ready < t <= target})
    assert len(between) >= 99 and max(np.diff(between)) == 10_000_000
