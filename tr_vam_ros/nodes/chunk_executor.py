"""chunk_executor: owns the episode, executes chunks, streams trajectories to the controllers."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from rclpy.clock import Clock, ClockType
from rclpy.node import Node
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import String
from std_srvs.srv import SetBool, Trigger
from trajectory_msgs.msg import JointTrajectory

from tr_vam_ros.embodiments import yam
from tr_vam_ros.errors import InputError
from tr_vam_ros.execution.episodes import Chunk, EpisodeEvent, Request
from tr_vam_ros.execution.executor import ChunkExecutor, Now, State
from tr_vam_ros.execution.settings import MODES, Settings
from tr_vam_ros.execution.timeline import SECOND, Timeline
from tr_vam_ros.msg import ActionChunk, Episode, ExecutorState, ReplanRequest, SimEvent
from tr_vam_ros.nodes.diagnostics import ERROR, OK, WARN, Diagnostics
from tr_vam_ros.nodes.parameters import declare, on_change, parameter
from tr_vam_ros.nodes.runtime import (
    LatestMessage,
    nanoseconds,
    ros_now_ns,
    run_node,
    stamp_of,
    steady,
)
from tr_vam_ros.nodes.topics import (
    ACTION_CHUNK,
    EPISODE,
    EXECUTOR_STATE,
    JOINT_STATES,
    PREVIEWS,
    REPLAN_REQUEST,
    SET_INSTRUCTION,
    SIM_EVENTS,
    STACKED_IMAGE,
    TRAJECTORIES,
)
from tr_vam_ros.nodes.trajectories import joint_trajectory
from tr_vam_ros.sim.collision_guard import CollisionGuard

TICK_SECONDS = 0.02
GRAPH_CHECK_SECONDS = 0.5
SLOW_CHUNK_SECONDS = 2.0  # a wait that is worth a line in diagnostics

_EVENTS = {'start': Episode.START, 'closing': Episode.CLOSING, 'end': Episode.END}


@dataclass
class Parameters:
    episode_prefix: str = parameter('robot', 'first part of every episode key')
    instruction: str = parameter(
        '', 'instruction of new episodes until set_instruction comes', live=True
    )
    episode_seconds: float = parameter(
        60.0, 'an episode ends after this, s from its first request; 0: never', low=0.0, live=True
    )
    mode: str = parameter(
        'sync', 'ask for the next chunk at standstill, or while the arms move', choices=MODES
    )
    request_lead: int = parameter(
        18, 'async: rows before row 30 at which the next chunk is asked for', low=3, high=29
    )
    dry_run: bool = parameter(False, 'trajectories go to the preview topics; the arms stand')
    collision_guard: bool = parameter(
        True, 'refuse a chunk that runs an arm into the table, the other arm or itself'
    )
    clock: str = parameter('real_time', 'clock of the graph', choices=('real_time', 'lockstep'))
    simulated: bool = parameter(False, 'a simulator places scenes and answers trajectories')
    settle: float = parameter(0.2, 'standstill before an observation, s', low=0.0, high=5.0)
    lead: float = parameter(0.06, 'a motion begins this long after its chunk, s', low=0.0, high=1.0)
    ramp_seconds: float = parameter(1.0, 'shortest ramp to a first row, s', low=0.5, high=30.0)
    jump_limit: float = parameter(0.2, 'larger jumps to row 1 are guarded, rad', low=0.0, high=3.0)
    jump_action: str = parameter('ramp', 'what guards a jump', choices=('ramp', 'reject'))
    chunk_timeout: float = parameter(30.0, 'no chunk for this long ends the episode, s', low=0.5)
    stale_after: float = parameter(0.3, 'a stream older than this stops the arms, s', low=0.05)
    accept_timeout: float = parameter(
        0.05, 'simulator only: no answer to a trajectory stops the arms, s', low=0.01, high=5.0
    )
    joint_states_topic: str = parameter(JOINT_STATES.name, 'joint states of both arms')
    left_trajectory_topic: str = parameter(TRAJECTORIES['left'].name, 'left arm controller')
    right_trajectory_topic: str = parameter(TRAJECTORIES['right'].name, 'right arm controller')


class ChunkExecutorNode(Node):
    """Single-threaded: the state machine is entered from one executor thread only."""

    def __init__(self, **options) -> None:
        super().__init__('chunk_executor', **options)
        self.parameters = p = declare(self, Parameters)
        lockstep = p.clock == 'lockstep'
        for name, wrong in {'mode async': p.mode == 'async', 'dry_run': p.dry_run}.items():
            if wrong and lockstep:
                raise InputError(
                    f'parameter {name} of chunk_executor: the lockstep clock waits for each chunk '
                    'and for the motion; use clock real_time'
                )
        if p.dry_run and p.mode == 'async':
            raise InputError(
                'parameter dry_run of chunk_executor: arms that stand have no rows to hand over '
                'in; use mode sync'
            )
        self._machine = ChunkExecutor(
            Settings(
                episode_prefix=p.episode_prefix,
                instruction=p.instruction,
                episode_seconds=p.episode_seconds,
                lockstep=lockstep,
                wait_for_scene=p.simulated,
                expects_answers=p.simulated,
                settle=p.settle,
                lead=p.lead,
                ramp_seconds=p.ramp_seconds,
                jump_limit=p.jump_limit,
                jump_action=p.jump_action,
                chunk_timeout=p.chunk_timeout,
                stale_after=p.stale_after,
                accept_timeout=p.accept_timeout,
                mode=p.mode,
                request_lead=p.request_lead,
                dry_run=p.dry_run,
            ),
            self,
            guard=CollisionGuard() if p.collision_guard else lambda path: '',
        )
        on_change(
            self,
            p,
            lambda new: self._machine.episodes.change(
                new.instruction if new.instruction != p.instruction else '', new.episode_seconds
            ),
        )
        self._diagnostics = Diagnostics(self)
        names = {'left': p.left_trajectory_topic, 'right': p.right_trajectory_topic}
        self._trajectories = {
            arm: self.create_publisher(
                JointTrajectory,
                PREVIEWS[arm].name if p.dry_run else names[arm],
                TRAJECTORIES[arm].qos,
            )
            for arm in yam.ARMS
        }
        self._requests = self.create_publisher(
            ReplanRequest, REPLAN_REQUEST.name, REPLAN_REQUEST.qos
        )
        self._episodes = self.create_publisher(Episode, EPISODE.name, EPISODE.qos)
        self._states = self.create_publisher(
            ExecutorState, EXECUTOR_STATE.name, EXECUTOR_STATE.qos
        )
        # Watchdogs look at the newest once a tick; a callback for each would cost a fifth of a core.
        self._joints = LatestMessage(self, JointState, p.joint_states_topic)
        # Only the stamp matters: the raw message spares turning a third of a megabyte into Python.
        self._image = LatestMessage(self, Image, STACKED_IMAGE.name, raw=True)
        self.create_subscription(ActionChunk, ACTION_CHUNK.name, self._on_chunk, ACTION_CHUNK.qos)
        self.create_subscription(
            String, SET_INSTRUCTION.name, self._on_instruction, SET_INSTRUCTION.qos
        )
        if p.simulated:
            self.create_subscription(SimEvent, SIM_EVENTS.name, self._on_sim_event, SIM_EVENTS.qos)
        self.create_service(SetBool, '~/arm', self._arm)
        self.create_service(Trigger, '~/stop', self._stop)
        self.create_service(Trigger, '~/home', self._home)
        self.create_service(SetBool, '~/pause', self._pause)
        self.create_service(SetBool, '~/mark', self._mark)
        self.create_service(Trigger, '~/new_episode', self._new_episode)
        clock = Clock(clock_type=ClockType.STEADY_TIME)
        self.create_timer(TICK_SECONDS, self._tick, clock=clock)
        self.create_timer(0.1, self.state_changed, clock=clock)
        self.create_timer(GRAPH_CHECK_SECONDS, self._check_graph, clock=clock)

    def _now(self) -> Now:
        return Now(ros_now_ns(self), steady())

    # ---- outputs of the state machine ------------------------------------------------------------

    def send_timeline(self, timeline: Timeline) -> None:
        messages = {arm: joint_trajectory(timeline, arm) for arm in yam.ARMS}
        for arm, message in messages.items():
            self._trajectories[arm].publish(message)

    def send_request(self, request: Request) -> None:
        message = ReplanRequest(
            request_id=request.request_id,
            episode_key=request.episode_key,
            replan_index=request.replan_index,
            instruction=request.instruction,
            not_before=stamp_of(request.not_before_ns),
            executed_rows=request.executed_rows,
            frozen_count=len(request.frozen_rows),
            frozen_rows=request.frozen_rows.astype(np.float32).ravel().tolist(),
        )
        message.header.stamp = self.get_clock().now().to_msg()
        self._requests.publish(message)

    def send_episode(self, event: EpisodeEvent) -> None:
        message = Episode(
            event=_EVENTS[event.event],
            key=event.key,
            index=event.index,
            instruction=event.instruction,
            outcome=event.outcome,
            reason=event.reason,
        )
        message.header.stamp = stamp_of(event.stamp_ns)
        self._episodes.publish(message)

    def state_changed(self) -> None:
        machine = self._machine
        counters, request = machine.counters, machine.episodes.request
        message = ExecutorState(
            state=int(machine.state),
            reason=machine.reason,
            episode_key=machine.episodes.key,
            replan_index=request.replan_index if request else 0,
            next_row=machine.row_in_play(self._now()),
            skipped_rows=machine.planner.skipped if machine.planner else 0,
            dry_run=machine.settings.dry_run,
            accepted=counters.accepted,
            rejected=counters.rejected,
            clamped=counters.clamped,
            capped=counters.capped,
            underruns=counters.underruns,
        )
        message.header.stamp = self.get_clock().now().to_msg()
        self._states.publish(message)
        self._diagnose()

    # ---- inputs ----------------------------------------------------------------------------------

    def _look(self) -> None:
        """Takes what joint states and cameras have brought since the last tick."""
        joints, data = self._joints.take(), self._image.take()
        if joints is not None:
            stamp_ns = nanoseconds(joints.header.stamp)
            self._machine.joint_state(self._now(), stamp_ns, joints.name, joints.position)
        if data is not None:
            # CDR: 4 bytes of encapsulation (the second tells the byte order), then header.stamp.
            seconds, rest = struct.unpack_from('<iI' if data[1] & 1 else '>iI', data, 4)
            self._machine.image(self._now(), seconds * SECOND + rest)

    def _on_chunk(self, message: ActionChunk) -> None:
        self._machine.chunk(
            self._now(),
            Chunk(
                message.request_id,
                message.episode_key,
                message.replan_index,
                message.joint_names,
                message.horizon,
                message.period,
                message.actions,
                message.error,
                nanoseconds(message.header.stamp),
            ),
        )

    def _on_instruction(self, message: String) -> None:
        if self._machine.state in (State.DISARMED, State.STOPPED):
            self.get_logger().warning(
                'set_instruction: ignored, the arms are not armed; call ~/arm with true first'
            )
            return
        try:
            self._machine.new_episode(self._now(), message.data)
        except InputError as error:
            self.get_logger().warning(f'set_instruction: {error}')

    def _on_sim_event(self, message: SimEvent) -> None:
        now, arm = self._now(), message.text.partition(':')[0]
        if message.kind == 'scene_ready':
            stamp_ns = nanoseconds(message.header.stamp)
            self._machine.scene_ready(now, message.episode_key, stamp_ns)
        elif message.kind in ('trajectory_accepted', 'trajectory_rejected'):
            accepted = message.kind == 'trajectory_accepted'
            self._machine.trajectory_answer(now, arm, accepted, message.text)
        elif message.kind == 'success':
            self._machine.success(now, message.episode_key, message.text)

    def _tick(self) -> None:
        self._look()
        self._machine.tick(self._now())

    def _check_graph(self) -> None:
        others = self.count_publishers(ACTION_CHUNK.name)
        self._machine.watchdogs.duplicate = (
            f'{others} nodes publish {ACTION_CHUNK.name}: one policy per graph, stop the others'
            if others > 1
            else ''
        )

    # ---- services --------------------------------------------------------------------------------

    def _arm(self, request: SetBool.Request, response: SetBool.Response) -> SetBool.Response:
        if not request.data:
            return self._answer(response, lambda: self._machine.disarm(self._now()), 'disarmed')
        return self._answer(response, self._arm_if_ready, 'armed')

    def _arm_if_ready(self) -> None:
        for arm, publisher in self._trajectories.items():
            if publisher.get_subscription_count() == 0 and not self.parameters.dry_run:
                raise InputError(
                    f'not armed: no controller listens on {publisher.topic_name}; start the {arm} '
                    "arm's controller"
                )
        if self.count_publishers(ACTION_CHUNK.name) == 0:
            raise InputError(f'not armed: nobody publishes {ACTION_CHUNK.name}; start the policy')
        if self.parameters.simulated and self.count_subscribers(EPISODE.name) < 2:
            raise InputError('not armed: the simulator is not there yet; start yam_sim')
        self._machine.arm(self._now())

    def _stop(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        return self._answer(response, lambda: self._machine.stop(self._now()), 'stopped')

    def _home(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        return self._answer(response, lambda: self._machine.home(self._now()), 'moving home')

    def _pause(self, request: SetBool.Request, response: SetBool.Response) -> SetBool.Response:
        if request.data:
            return self._answer(response, lambda: self._machine.pause(self._now()), 'paused')
        return self._answer(response, lambda: self._machine.resume(self._now()), 'going on')

    def _mark(self, request: SetBool.Request, response: SetBool.Response) -> SetBool.Response:
        word = 'success' if request.data else 'failure'
        return self._answer(
            response, lambda: self._machine.mark(self._now(), request.data), f'marked as {word}'
        )

    def _new_episode(self, request: Trigger.Request, response: Trigger.Response):
        return self._answer(response, lambda: self._machine.new_episode(self._now()), '')

    @staticmethod
    def _answer(response, act, message: str):
        try:
            response.message = act() or message
            response.success = True
        except InputError as error:
            response.success, response.message = False, str(error)
        return response

    def _diagnose(self) -> None:
        machine = self._machine
        values = {
            'state': machine.state.name,
            'accepted': machine.counters.accepted,
            'rejected': machine.counters.rejected,
            'capped': machine.counters.capped,
            'clamped': machine.counters.clamped,
            'underruns': machine.counters.underruns,
        }
        if machine.state in (State.HOLDING, State.STOPPED):
            self._diagnostics.set(ERROR, machine.reason, **values)
        elif machine.reason:
            self._diagnostics.set(WARN, machine.reason, **values)
        elif (
            machine.state is State.WAITING
            and machine.watchdogs.waiting_for(steady()) > SLOW_CHUNK_SECONDS
        ):
            self._diagnostics.set(
                WARN, 'waiting for a chunk: is the policy active, are its inputs there?', **values
            )
        else:
            self._diagnostics.set(OK, machine.state.name.lower(), **values)


def main() -> None:
    run_node(ChunkExecutorNode)


if __name__ == '__main__':
    main()
