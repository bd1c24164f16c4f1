"""The executor node over DDS, between arms and a policy that the test plays."""

import time

import numpy as np
import pytest
from rcl_interfaces.srv import SetParametersAtomically
from rclpy.parameter import Parameter
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Header, String
from std_srvs.srv import SetBool, Trigger
from trajectory_msgs.msg import JointTrajectory

from test.execution.driver import slow_rows
from test.ros import node_of, wait_for
from tr_vam_ros.embodiments import yam
from tr_vam_ros.errors import InputError
from tr_vam_ros.msg import ActionChunk, Episode, ExecutorState
from tr_vam_ros.nodes.chunk_executor import ChunkExecutorNode
from tr_vam_ros.nodes.images import message_from_rgb
from tr_vam_ros.nodes.runtime import nanoseconds
from tr_vam_ros.nodes.topics import (
    ACTION_CHUNK,
    DIAGNOSTICS,
    EPISODE,
    EXECUTOR_STATE,
    JOINT_STATES,
    PREVIEWS,
    REPLAN_REQUEST,
    SET_INSTRUCTION,
    STACKED_IMAGE,
    TRAJECTORIES,
    latched,
)

SERVICE = '/tr_vam/chunk_executor'
BLACK = np.zeros((yam.IMAGE_HEIGHT, yam.IMAGE_WIDTH, 3), np.uint8)


class World:
    """Arms that stand where the last trajectory ends, cameras, and a policy on demand."""

    def __init__(self, ros) -> None:
        self.ros = ros
        node = ros.node
        self.position = yam.ros_from_model(yam.HOME)
        self.joints_on = self.images_on = True
        self.follows = False  # whether the arms do what they are told
        self.trajectories: dict[str, list] = {arm: [] for arm in yam.ARMS}
        self.arrivals: list[float] = []
        for arm, topic in TRAJECTORIES.items():
            node.create_subscription(
                JointTrajectory, topic.name, lambda m, a=arm: self._trajectory(a, m), topic.qos
            )
        self.requests = ros.heard(REPLAN_REQUEST)
        self.episodes = ros.heard(EPISODE, latched())
        self.states = ros.heard(EXECUTOR_STATE)
        self.diagnostics = ros.heard(DIAGNOSTICS)
        self._joints = node.create_publisher(JointState, JOINT_STATES.name, JOINT_STATES.qos)
        self._images = node.create_publisher(Image, STACKED_IMAGE.name, STACKED_IMAGE.qos)
        self.chunks = node.create_publisher(ActionChunk, ACTION_CHUNK.name, ACTION_CHUNK.qos)
        self.instructions = node.create_publisher(
            String, SET_INSTRUCTION.name, SET_INSTRUCTION.qos
        )
        node.create_timer(0.01, self._publish_joints)
        node.create_timer(0.033, self._publish_image)

    def _trajectory(self, arm, message) -> None:
        self.arrivals.append(time.monotonic())
        self.trajectories[arm].append(message)

    def _publish_joints(self) -> None:
        if self.follows and all(self.trajectories.values()):
            self.position = np.concatenate(
                [self._commanded(self.trajectories[arm][-1]) for arm in yam.ARMS]
            )
        if self.joints_on:
            message = JointState(name=list(yam.JOINT_NAMES), position=self.position.tolist())
            message.header.stamp = self.ros.node.get_clock().now().to_msg()
            self._joints.publish(message)

    def _commanded(self, message: JointTrajectory) -> np.ndarray:
        since = self.ros.node.get_clock().now().nanoseconds - nanoseconds(message.header.stamp)
        times = [nanoseconds(point.time_from_start) for point in message.points]
        positions = np.array([point.positions for point in message.points])
        return np.array([np.interp(since, times, column) for column in positions.T])

    def _publish_image(self) -> None:
        if self.images_on:
            stamp = self.ros.node.get_clock().now().to_msg()
            self._images.publish(message_from_rgb(BLACK, stamp, 'stacked'))

    def arm(self) -> None:
        def armed():
            request = SetBool.Request(data=True)
            return self.ros.call(SetBool, f'{SERVICE}/arm', request).success

        wait_for(armed, 'the executor arms')

    def trigger(self, name: str):
        return self.ros.call(Trigger, f'{SERVICE}/{name}', Trigger.Request())

    def answer(self, rows=None) -> None:
        request = self.requests[-1]
        rows = slow_rows() if rows is None else rows
        self.chunks.publish(
            ActionChunk(
                header=Header(stamp=self.ros.node.get_clock().now().to_msg()),
                request_id=request.request_id,
                episode_key=request.episode_key,
                replan_index=request.replan_index,
                joint_names=list(yam.JOINT_NAMES),
                horizon=len(rows),
                period=yam.ROW_PERIOD,
                actions=rows.astype(np.float32).ravel().tolist(),
            )
        )

    def state(self) -> int:
        return self.states[-1].state if self.states else -1

    def said(self, words: str) -> bool:
        return any(words in s.message for m in self.diagnostics for s in m.status)


@pytest.fixture
def world(ros):
    world = World(ros)
    # The test's arms do not move, so only the tracking watchdog would stop a long motion.
    ros.spin(node_of(ChunkExecutorNode, instruction='pick up the apple'))
    wait_for(lambda: world.chunks.get_subscription_count(), 'the executor subscribes')
    return world


def moving(world, amplitude: float = 0.6) -> None:
    world.arm()
    assert world.trigger('new_episode').success
    wait_for(lambda: world.requests, 'a replan request')
    world.answer(slow_rows(amplitude))
    wait_for(lambda: world.state() == ExecutorState.RAMPING, 'the ramp')


def test_it_starts_disarmed_and_ignores_an_instruction_until_armed(world):
    wait_for(lambda: world.state() == ExecutorState.DISARMED, 'the state')
    world.instructions.publish(String(data='pick up the apple'))
    assert not world.trigger('new_episode').success
    assert not world.episodes and not world.requests
    world.arm()
    world.instructions.publish(String(data='place it in the bag'))
    wait_for(lambda: world.requests, 'a replan request')
    assert world.requests[0].instruction == 'place it in the bag'
    assert world.episodes[0].event == Episode.START


def test_a_chunk_becomes_one_trajectory_per_arm_with_names_stamp_and_metres(world):
    moving(world)
    for arm in yam.ARMS:
        wait_for(lambda a=arm: world.trajectories[a], f'the {arm} trajectory')
        message = world.trajectories[arm][-1]
        assert tuple(message.joint_names) == yam.ARM_JOINT_NAMES[arm]
        last = message.points[-1]
        assert last.positions[6] == pytest.approx(yam.GRIPPER_TRAVEL)
        np.testing.assert_allclose(
            last.positions[:6], slow_rows(0.6)[29][yam.ARM_SLICES[arm]][:6], atol=1e-6
        )
        assert list(last.velocities) == [0.0] * 7
    left, right = (world.trajectories[arm][-1] for arm in yam.ARMS)
    assert left.header.stamp == right.header.stamp
    following = wait_for(lambda: len(world.requests) > 1 and world.requests[-1], 'next request')
    motion_end = nanoseconds(left.header.stamp) + nanoseconds(left.points[-1].time_from_start)
    assert 0 <= nanoseconds(following.not_before) - motion_end - 200_000_000 < 4_000_000
    assert following.executed_rows == 30


def test_stop_sends_both_arms_a_braking_command_and_latches(world):
    moving(world)
    before = {arm: len(world.trajectories[arm]) for arm in yam.ARMS}
    assert world.trigger('stop').success
    for arm in yam.ARMS:
        wait_for(lambda a=arm: len(world.trajectories[a]) > before[a], f'brake of {arm}')
        message = world.trajectories[arm][-1]
        end = nanoseconds(message.header.stamp) + nanoseconds(message.points[-1].time_from_start)
        now = world.ros.node.get_clock().now().nanoseconds
        assert end - now < 150_000_000
        assert list(message.points[-1].velocities) == [0.0] * 7
    wait_for(lambda: world.state() == ExecutorState.STOPPED, 'the latch')
    assert 'arm' in world.trigger('new_episode').message
    assert world.episodes[-1].outcome == 'stopped'


def test_cameras_that_go_silent_stop_the_arms_and_are_named_within_two_seconds(world):
    moving(world)
    world.images_on = False
    wait_for(lambda: world.said('no new stacked image'), 'the cause in diagnostics', 2.0)
    wait_for(lambda: world.episodes[-1].outcome == 'fault', 'the end of the episode', 2.0)


def test_arms_that_do_not_follow_are_stopped_and_named(world):
    moving(world)  # the test's arms stand still
    wait_for(lambda: world.state() == ExecutorState.STOPPED, 'the stop', 5.0)
    wait_for(lambda: world.said('off its trajectory'), 'the cause in diagnostics', 2.0)


def test_a_chunk_with_nan_moves_nothing_and_is_counted(world):
    world.arm()
    world.trigger('new_episode')
    wait_for(lambda: world.requests, 'a replan request')
    rows = slow_rows()
    rows[40, 3] = np.nan
    world.answer(rows)
    wait_for(lambda: world.states[-1].rejected == 1, 'the count')
    assert not world.trajectories['left'] and not world.trajectories['right']
    assert world.said('row 41, left_joint4')


def test_a_second_policy_holds_the_arms_and_is_said(world):
    moving(world)
    other = world.ros.node.create_publisher(ActionChunk, ACTION_CHUNK.name, ACTION_CHUNK.qos)
    wait_for(lambda: world.said('one policy per graph'), 'the second policy is named', 3.0)
    world.ros.node.destroy_publisher(other)


def test_a_parameter_out_of_its_range_is_refused_by_name(ros):
    with pytest.raises(InputError, match='jump_limit'):
        node_of(ChunkExecutorNode, jump_limit=99.0)
    with pytest.raises(InputError, match="jump_action.*'jump'"):
        node_of(ChunkExecutorNode, jump_action='jump')


def test_without_a_controller_it_does_not_arm_and_says_which(ros):
    ros.heard(EXECUTOR_STATE)
    ros.spin(node_of(ChunkExecutorNode))
    answer = ros.call(SetBool, f'{SERVICE}/arm', SetBool.Request(data=True))
    assert not answer.success and '/left_yam_arm_controller/joint_trajectory' in answer.message


def test_pause_brakes_and_resume_asks_again(world):
    moving(world)
    assert world.ros.call(SetBool, f'{SERVICE}/pause', SetBool.Request(data=True)).success
    wait_for(lambda: world.state() == ExecutorState.PAUSED, 'the pause')
    asked = len(world.requests)
    answer = world.ros.call(SetBool, f'{SERVICE}/pause', SetBool.Request(data=False))
    assert answer.success, answer.message
    wait_for(lambda: len(world.requests) > asked, 'the request again')
    again = world.requests[-1]
    assert again.episode_key == world.states[-1].episode_key


def test_the_operators_mark_ends_the_episode(world):
    moving(world)
    answer = world.ros.call(SetBool, f'{SERVICE}/mark', SetBool.Request(data=True))
    assert answer.success and answer.message == 'marked as success'
    wait_for(
        lambda: world.episodes[-1].event == Episode.END
        and world.episodes[-1].outcome == 'success',
        'the end with the outcome',
    )


def test_a_chunk_that_dives_into_the_table_is_refused_and_named(world):
    world.arm()
    assert world.trigger('new_episode').success
    wait_for(lambda: world.requests, 'a replan request')
    dive = yam.HOME + np.linspace(0, 1, 50)[:, None] * np.where(
        np.array(yam.JOINT_NAMES) == 'left_joint2', 2.5, 0.0
    )
    world.answer(dive)
    wait_for(lambda: world.said('would run into table'), 'the reason in diagnostics')
    assert not world.trajectories['left']
    assert world.states[-1].rejected >= 1


def test_a_dry_run_sends_previews_and_nothing_to_the_controllers(ros):
    world = World(ros)
    previews = {arm: ros.heard(topic) for arm, topic in PREVIEWS.items()}
    ros.spin(node_of(ChunkExecutorNode, instruction='pick up the apple', dry_run=True))
    wait_for(lambda: world.chunks.get_subscription_count(), 'the executor subscribes')
    world.arm()
    assert world.trigger('new_episode').success
    wait_for(lambda: world.requests, 'a replan request')
    world.answer()
    for arm, heard in previews.items():
        wait_for(lambda: heard, f'the preview of the {arm} arm')
        assert list(heard[-1].joint_names) == list(yam.ARM_JOINT_NAMES[arm])
    assert world.states[-1].dry_run
    assert not world.trajectories['left'] and not world.trajectories['right']


def test_in_async_mode_the_next_chunk_is_asked_for_in_motion_and_takes_over_in_motion(ros):
    world = World(ros)
    ros.spin(node_of(ChunkExecutorNode, instruction='pick up the apple', mode='async'))
    wait_for(lambda: world.chunks.get_subscription_count(), 'the executor subscribes')
    world.follows = True
    moving(world, amplitude=0.2)
    wait_for(lambda: len(world.requests) == 2, 'a request in motion')
    request = world.requests[-1]
    assert world.state() == ExecutorState.EXECUTING
    assert 15 <= request.frozen_count <= 18
    assert len(request.frozen_rows) == request.frozen_count * yam.DOF
    world.answer(slow_rows(0.05, start=yam.model_from_ros(world.position)))
    wait_for(lambda: world.states[-1].accepted == 2, 'the second chunk')
    assert world.state() == ExecutorState.EXECUTING
    assert world.states[-1].skipped_rows >= 1


@pytest.mark.parametrize('parameters, words', [
    ({'clock': 'lockstep', 'mode': 'async'}, 'mode async'),
    ({'clock': 'lockstep', 'dry_run': True}, 'dry_run'),
    ({'mode': 'async', 'dry_run': True}, 'use mode sync'),
])
def test_modes_that_contradict_each_other_are_refused_by_name(ros, parameters, words):
    with pytest.raises(InputError, match=words):
        node_of(ChunkExecutorNode, **parameters)


def test_instruction_and_length_of_coming_episodes_may_be_set_while_it_runs(world):
    def put(**values):
        request = SetParametersAtomically.Request(
            parameters=[Parameter(k, value=v).to_parameter_msg() for k, v in values.items()]
        )
        name = f'{SERVICE}/set_parameters_atomically'
        return world.ros.call(SetParametersAtomically, name, request).result

    assert put(instruction='put it on the shelf', episode_seconds=0.3).successful
    refused = put(instruction='x' * 10_000, episode_seconds=50.0)
    assert not refused.successful and '10000 characters' in refused.reason
    refused = put(mode='async')
    assert not refused.successful and 'read-only' in refused.reason
    world.arm()
    assert world.trigger('new_episode').success
    wait_for(lambda: world.requests, 'a replan request')
    assert world.requests[0].instruction == 'put it on the shelf'
    end = wait_for(lambda: [e for e in world.episodes if e.event == Episode.END], 'the end', 5.0)[0]
    assert end.outcome == 'time_out'
