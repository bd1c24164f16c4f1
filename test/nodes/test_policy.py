"""The policy node over DDS with the real tiny model; the test plays cameras, arms and owner."""

import threading

import numpy as np
import pytest
from lifecycle_msgs.msg import State as LifecycleMsg
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rcl_interfaces.srv import SetParametersAtomically
from rclpy.parameter import Parameter
from sensor_msgs.msg import Image, JointState

from test.ros import node_of, wait_for
from tr_vam_ros.embodiments import yam
from tr_vam_ros.msg import ReplanRequest
from tr_vam_ros.nodes.images import message_from_rgb
from tr_vam_ros.nodes.policy import Policy, torch_threads
from tr_vam_ros.nodes.runtime import stamp_of
from tr_vam_ros.nodes.topics import (
    ACTION_CHUNK,
    DIAGNOSTICS,
    JOINT_STATES,
    REPLAN_REQUEST,
    STACKED_IMAGE,
    TEMPORAL_RATIO,
)

LOADING = 60.0  # s; importing torch and diffusers on a busy machine


class Graph:
    def __init__(self, ros) -> None:
        node = ros.node
        self.ros = ros
        self.ratios, self.chunks = ros.heard(TEMPORAL_RATIO), ros.heard(ACTION_CHUNK)
        self.diagnostics = ros.heard(DIAGNOSTICS)
        self._images = node.create_publisher(Image, STACKED_IMAGE.name, STACKED_IMAGE.qos)
        self._joints = node.create_publisher(JointState, JOINT_STATES.name, JOINT_STATES.qos)
        self._requests = node.create_publisher(
            ReplanRequest, REPLAN_REQUEST.name, REPLAN_REQUEST.qos
        )
        self.pixels = np.random.default_rng(0).integers(0, 256, (168, 672, 3), dtype=np.uint8)

    def start(self, **parameters) -> Policy:
        node = self.ros.spin(node_of(Policy, **parameters))
        wait_for(lambda: self.said('active'), 'the policy is active', LOADING)
        wait_for(lambda: self._requests.get_subscription_count(), 'it takes requests')
        wait_for(lambda: self._images.get_subscription_count(), 'it takes images')
        wait_for(lambda: self._joints.get_subscription_count(), 'it takes joint states')
        wait_for(lambda: node._chunks.get_subscription_count(), 'its chunks are heard')
        wait_for(lambda: node._ratios.get_subscription_count(), 'its ratios are heard')
        return node

    def now_ns(self) -> int:
        return self.ros.node.get_clock().now().nanoseconds

    def observe(self, stamp_ns: int, picture=None, frame_id: str = 'stacked') -> None:
        stamp = stamp_of(stamp_ns)
        picture = self.pixels if picture is None else picture
        self._images.publish(message_from_rgb(picture, stamp, frame_id))
        joints = JointState(
            name=list(yam.JOINT_NAMES), position=yam.ros_from_model(yam.HOME).tolist()
        )
        joints.header.stamp = stamp
        self._joints.publish(joints)

    def ask(self, request_id=1, key='scene1/task1/seed0/ep0', index=0, text='pick', at=None):
        at = self.now_ns() if at is None else at
        self._requests.publish(
            ReplanRequest(
                request_id=request_id,
                episode_key=key,
                replan_index=index,
                instruction=text,
                not_before=stamp_of(at),
            )
        )
        return at

    def replan(self, **request):
        chunks, ratios = len(self.chunks), len(self.ratios)
        self.observe(self.ask(**request))
        wait_for(lambda: len(self.chunks) > chunks, 'a chunk')
        wait_for(lambda: len(self.ratios) > ratios, 'a ratio')
        return self.ratios[-1], self.chunks[-1]

    def said(self, words: str) -> bool:
        return any(words in s.message for m in self.diagnostics for s in m.status)


@pytest.fixture
def graph(ros):
    return Graph(ros)


def test_a_request_is_answered_with_a_chunk_and_the_temporal_ratio_that_echo_it(graph):
    graph.start(guidance='off')
    at = graph.ask(7, index=3)
    graph.observe(at - 1)
    graph.observe(at)
    chunk = wait_for(lambda: graph.chunks, 'a chunk')[0]
    ratio = wait_for(lambda: graph.ratios, 'a ratio')[0]
    for message in (chunk, ratio):
        assert message.header.stamp == stamp_of(at)
        assert (message.request_id, message.replan_index) == (7, 3)
        assert message.episode_key == 'scene1/task1/seed0/ep0'
    assert tuple(chunk.joint_names) == yam.JOINT_NAMES
    assert chunk.horizon == 50 and len(chunk.actions) == 700
    assert np.isfinite(chunk.actions).all()
    assert ratio.temporal_ratio > 0 and ratio.baseline == ratio.temporal_ratio
    assert len(ratio.frame_attention) == 5
    assert ratio.temporal_ratio == pytest.approx(
        sum(ratio.frame_attention[1:]) / ratio.frame_attention[0], rel=1e-6
    )
    assert list(ratio.branches) == ['conditional'] and ratio.schedule == 'off'


def test_the_baseline_is_kept_within_an_episode_and_new_in_the_next(graph):
    graph.start(guidance='off')
    first, _ = graph.replan(request_id=1, index=0)
    second, _ = graph.replan(request_id=2, index=1)
    third, _ = graph.replan(request_id=3, key='scene1/task1/seed0/ep1', index=0)
    assert second.baseline == first.temporal_ratio
    assert third.baseline == third.temporal_ratio != first.temporal_ratio


def test_a_repeated_request_brings_the_chunk_again_but_no_second_measurement(graph):
    graph.start(guidance='off')
    at = graph.ask(1)
    graph.observe(at)
    wait_for(lambda: graph.chunks and graph.ratios, 'the answer')
    graph.ask(1, at=at)
    wait_for(lambda: len(graph.chunks) == 2, 'the chunk again')
    graph.replan(request_id=2, index=1)
    assert graph.chunks[0].actions == graph.chunks[1].actions
    assert [ratio.request_id for ratio in graph.ratios] == [1, 2]


def test_after_deactivate_nothing_is_published(graph):
    graph.start(guidance='off')
    graph.replan(request_id=1)
    graph.observe(graph.ask(2, index=1))
    change = ChangeState.Request(transition=Transition(id=Transition.TRANSITION_DEACTIVATE))
    answer = graph.ros.call(ChangeState, '/tr_vam/policy/change_state', change)
    assert answer.success
    count = len(graph.chunks)
    state = graph.ros.call(GetState, '/tr_vam/policy/get_state', GetState.Request())
    assert state.current_state.id == LifecycleMsg.PRIMARY_STATE_INACTIVE
    graph.observe(graph.ask(3, index=1))
    activate = ChangeState.Request(transition=Transition(id=Transition.TRANSITION_ACTIVATE))
    assert graph.ros.call(ChangeState, '/tr_vam/policy/change_state', activate).success
    _, chunk = graph.replan(request_id=4, index=1)
    assert chunk.request_id == 4 and len(graph.chunks) == count + 1


@pytest.mark.parametrize(
    ('text', 'words'), [('', 'instruction'), ('x' * 10_000, '10000')]
)
def test_an_instruction_it_cannot_use_is_said_and_the_next_one_works(graph, text, words):
    graph.start(guidance='off')
    graph.observe(graph.ask(1, text=text))
    wait_for(lambda: graph.said(words), words)
    (refusal,) = wait_for(lambda: graph.chunks, 'the refusal')
    assert words in refusal.error and not refusal.actions and refusal.request_id == 1
    graph.replan(request_id=2)


def test_an_image_of_the_wrong_size_is_said_and_never_used(graph):
    graph.start(guidance='off')
    at = graph.ask(1)
    graph.observe(at, graph.pixels[:, :448])
    wait_for(lambda: graph.said('448x168'), 'the size')
    assert not graph.chunks
    graph.observe(at + 1)
    wait_for(lambda: graph.chunks, 'the chunk of the right image')


def test_a_second_policy_in_the_graph_is_not_activated(graph):
    graph.start(guidance='off')
    graph.ros.spin(node_of(Policy, guidance='off'))
    wait_for(lambda: graph.said('one policy per graph'), 'the refusal', LOADING)


def test_an_unknown_preset_leaves_the_node_alive_and_is_said_with_the_choices(graph):
    graph.ros.spin(node_of(Policy, preset='huge_yam'))
    wait_for(lambda: graph.said('tiny_yam'), 'the choices are named', LOADING)
    assert graph.said('huge_yam')
    state = graph.ros.call(GetState, '/tr_vam/policy/get_state', GetState.Request())
    assert state.current_state.id == LifecycleMsg.PRIMARY_STATE_UNCONFIGURED


@pytest.mark.parametrize(('asked', 'cores', 'threads'), [(0, 1, 1), (0, 2, 1), (0, 8, 4), (3, 2, 3)])
def test_on_two_cores_inference_leaves_one_to_the_rest_of_the_graph(asked, cores, threads):
    assert torch_threads(asked, cores) == threads


# ---- while it loads, and while it runs ---------------------------------------------------------------


class SlowPolicy(Policy):
    """Loads until the test lets it go on."""

    def __init__(self, **options) -> None:
        self.gate = threading.Event()
        super().__init__(**options)

    def _load(self):
        self._progress(25, 100)
        assert self.gate.wait(LOADING)
        return super()._load()


@pytest.fixture
def loading(graph):
    """A policy that is loading, spun as `ros2 run` spins it."""
    node = node_of(SlowPolicy, guidance='off')
    running = threading.Event()
    running.set()
    thread = threading.Thread(target=node.spin, args=(running.is_set,), daemon=True)
    thread.start()
    graph.ros.nodes.append(node)
    wait_for(lambda: graph.said('loading tiny_yam'), 'it loads')
    yield node
    node.gate.set()
    running.clear()
    thread.join(LOADING)
    assert not thread.is_alive()


def set_parameter(graph, **values):
    parameters = [Parameter(name, value=value).to_parameter_msg() for name, value in values.items()]
    request = SetParametersAtomically.Request(parameters=parameters)
    name = '/tr_vam/policy/set_parameters_atomically'
    return graph.ros.call(SetParametersAtomically, name, request).result


def test_while_a_model_loads_its_state_and_progress_are_told(graph, loading):
    for _ in range(2):
        state = graph.ros.call(GetState, '/tr_vam/policy/get_state', GetState.Request(), 2.0)
        assert state.current_state.id == LifecycleMsg.TRANSITION_STATE_CONFIGURING
    wait_for(
        lambda: any(v.value == '25' for m in graph.diagnostics for v in m.status[0].values),
        'a quarter is loaded',
    )
    count = len(graph.diagnostics)
    wait_for(lambda: len(graph.diagnostics) > count, 'diagnostics go on', 3.0)
    loading.gate.set()
    wait_for(lambda: graph.said('active'), 'it is active', LOADING)
    wait_for(lambda: graph._requests.get_subscription_count(), 'it takes requests')
    wait_for(lambda: loading._chunks.get_subscription_count(), 'its chunks are heard')
    graph.replan(request_id=1)


def test_a_stop_does_not_wait_for_the_model(graph):
    node = node_of(SlowPolicy, guidance='off')
    graph.ros.nodes.append(node)
    running = threading.Event()
    running.set()
    thread = threading.Thread(target=node.spin, args=(running.is_set,), daemon=True)
    thread.start()
    wait_for(lambda: graph.said('loading tiny_yam'), 'it loads')
    running.clear()
    thread.join(2.0)
    assert not thread.is_alive()
    node.gate.set()


def test_a_fault_while_loading_leaves_the_node_alive_and_is_said(graph, loading, monkeypatch):
    monkeypatch.setattr(Policy, '_load', lambda self: 1 / 0)
    loading.gate.set()
    wait_for(lambda: graph.said('tiny_yam: not loaded: ZeroDivisionError'), 'the fault')
    state = graph.ros.call(GetState, '/tr_vam/policy/get_state', GetState.Request())
    assert state.current_state.id == LifecycleMsg.PRIMARY_STATE_UNCONFIGURED


def test_another_guidance_holds_from_the_next_episode_on(graph):
    graph.start(guidance='off')
    graph.replan(request_id=1, index=0)
    assert set_parameter(graph, guidance='flat', settings='guidance.plan_weight=0').successful
    same, _ = graph.replan(request_id=2, index=1)
    other, _ = graph.replan(request_id=3, key='scene1/task1/seed0/ep1', index=0)
    assert (same.schedule, list(same.branches)) == ('off', ['conditional'])
    assert (other.schedule, list(other.branches)) == ('flat', ['conditional', 'null'])
    assert other.scale == 1.0 and other.plan_weight == 0.0


@pytest.mark.parametrize(
    ('change', 'words'),
    [
        ({'guidance': 'strong'}, 'off, flat, adaptive, replay'),
        ({'guidance': 'replay'}, 'replay'),
        ({'settings': 'video.steps=3'}, 'more than the weights of guidance'),
        ({'settings': 'guidance.cap=-1'}, 'cap'),
        ({'seed': 3}, 'read-only'),
    ],
)
def test_a_change_that_a_running_policy_cannot_take_is_refused_and_changes_nothing(
    graph, change, words
):
    graph.start(guidance='off')
    result = set_parameter(graph, **change)
    assert not result.successful and words in result.reason
    ratio, _ = graph.replan(request_id=1)
    assert ratio.schedule == 'off'


def test_pictures_that_were_fitted_otherwise_than_in_training_are_refused(graph):
    graph.start(guidance='off', settings='image.resize_mode=crop')
    at = graph.ask(1)
    graph.observe(at, frame_id='stacked_stretch')
    wait_for(lambda: graph.said("fitted by resize_mode 'stretch', but the model was trained with"), 'it')
    assert not graph.chunks
    graph.observe(at + 1, frame_id='stacked_crop')
    wait_for(lambda: graph.chunks, 'the chunk of the right picture')
