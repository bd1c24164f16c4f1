"""policy: answers replan requests with action chunks and the Temporal Ratio. A lifecycle node.

Configure loads the model, activate begins to answer, deactivate ends it at once. Started with
`autostart` (default) it goes to active by itself.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rclpy.clock import Clock, ClockType
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.node import Node
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Header

from tr_vam_ros.embodiments import yam
from tr_vam_ros.errors import InputError
from tr_vam_ros.execution.timeline import SECOND
from tr_vam_ros.msg import ActionChunk, Episode, ReplanRequest, TemporalRatio
from tr_vam_ros.nodes.diagnostics import ERROR, OK, WARN, Diagnostics
from tr_vam_ros.nodes.images import rgb_from_message
from tr_vam_ros.nodes.observations import Observation, Observations
from tr_vam_ros.nodes.parameters import declare, parameter
from tr_vam_ros.nodes.replan_worker import ReplanWorker
from tr_vam_ros.nodes.runtime import (
    PausableGroup,
    nanoseconds,
    ros_now_ns,
    run_node,
    stamp_of,
)
from tr_vam_ros.nodes.topics import (
    ACTION_CHUNK,
    EPISODE,
    JOINT_STATES,
    REPLAN_REQUEST,
    STACKED_IMAGE,
    TEMPORAL_RATIO,
    reliable,
)
from tr_vam_ros.vam.config import GUIDANCE_SCHEDULES

PATIENCE_NS = SECOND // 2
# What the middleware keeps while the sensors are paused: enough to pair a frame with its state.
KEPT_IMAGES, KEPT_JOINT_STATES = 2, 30


@dataclass
class Parameters:
    preset: str = parameter('tiny_yam', 'model preset (config/vam) or path of a YAML file')
    checkpoint: str = parameter('', "checkpoint folder or Hub id, instead of a preset")
    guidance: str = parameter('adaptive', 'guidance schedule', choices=GUIDANCE_SCHEDULES)
    replay: str = parameter('', "scales for guidance 'replay': a JSON file")
    on_end: str = parameter(
        'error', 'what a replay does after its last scale', choices=('error', 'repeat')
    )
    settings: str = parameter('', "values of the configuration, such as 'guidance.cap=1.5'")
    seed: int = parameter(0, 'seed of random weights and of the noise', low=0)
    precision: str = parameter(
        'auto', "of the video model's products", choices=('auto', 'float32', 'bfloat16')
    )
    device: str = parameter('cpu', "where the model runs: cpu, or a GPU such as 'cuda'")
    threads: int = parameter(0, 'torch threads; 0: one on two cores or fewer, else half', low=0)
    joint_states_topic: str = parameter(JOINT_STATES.name, 'joint states of both arms')
    autostart: bool = parameter(True, 'configure and activate without being asked')


def torch_threads(asked: int, cores: int) -> int:
    """Threads for inference: on two cores the rest of the graph needs the other one."""
    if asked:
        return asked
    return 1 if cores <= 2 else cores // 2


class Policy(LifecycleNode):
    """Callbacks run on one executor thread, inference and its publications on the worker's."""

    def __init__(self, **options) -> None:
        super().__init__('policy', **options)
        self.parameters = declare(self, Parameters)
        self._diagnostics = Diagnostics(self)
        self._observations = Observations()
        self._worker: ReplanWorker | None = None
        self._policy = None
        self._active = False
        # Made on activation: who asks whether there is a policy sees one that answers.
        self._chunks = self._ratios = None
        self.create_subscription(
            ReplanRequest, REPLAN_REQUEST.name, self._on_request, REPLAN_REQUEST.qos
        )
        # While the model thinks nobody looks at what comes in: no interpreter time for it.
        self._sensors = PausableGroup()
        self.create_subscription(
            Image,
            STACKED_IMAGE.name,
            self._on_image,
            reliable(KEPT_IMAGES),
            callback_group=self._sensors,
        )
        self.create_subscription(
            JointState,
            self.parameters.joint_states_topic,
            self._on_joint_state,
            reliable(KEPT_JOINT_STATES),
            callback_group=self._sensors,
        )
        self.create_subscription(Episode, EPISODE.name, self._on_episode, EPISODE.qos)
        if self.parameters.autostart:
            self._start_timer = self.create_timer(
                0.01, self._autostart, clock=Clock(clock_type=ClockType.STEADY_TIME)
            )

    # ---- lifecycle -----------------------------------------------------------------------------

    def _autostart(self) -> None:
        self._start_timer.cancel()
        if self.trigger_configure() == TransitionCallbackReturn.SUCCESS:
            self.trigger_activate()

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._diagnostics.set(
            OK, f'loading {self.parameters.checkpoint or self.parameters.preset}'
        )
        try:
            self._policy = self._load()
        except InputError as error:
            self._diagnostics.set(ERROR, str(error))
            return TransitionCallbackReturn.FAILURE
        self._worker = ReplanWorker(
            self._policy,
            self._observations,
            not_before_ns=lambda request: nanoseconds(request.not_before),
            now_ns=lambda: ros_now_ns(self),
            publish=self._publish,
            refuse=self._refuse,
            report=self._report,
            patience_ns=PATIENCE_NS,
            thinking=self._pause_sensors,
        )
        self._worker.start()
        self._diagnostics.set(OK, 'loaded, not active')
        return TransitionCallbackReturn.SUCCESS

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        others = self.count_publishers(ACTION_CHUNK.name)
        if others > 0:
            self._diagnostics.set(
                ERROR,
                f'not activated: {others} other node(s) publish {ACTION_CHUNK.name}; one policy '
                'per graph: stop the other one or use another namespace',
            )
            return TransitionCallbackReturn.FAILURE
        # Plain publishers: the worker's generation decides what goes out, not the lifecycle's.
        self._chunks = Node.create_publisher(
            self, ActionChunk, ACTION_CHUNK.name, ACTION_CHUNK.qos
        )
        self._ratios = Node.create_publisher(
            self, TemporalRatio, TEMPORAL_RATIO.name, TEMPORAL_RATIO.qos
        )
        self._active = True
        self._diagnostics.set(OK, 'active')
        return super().on_activate(state)

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._active = False
        self._worker.cancel()
        for publisher in (self._chunks, self._ratios):
            self.destroy_publisher(publisher)
        self._diagnostics.set(OK, 'loaded, not active')
        return super().on_deactivate(state)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        self.close()
        self._policy = self._worker = None
        return TransitionCallbackReturn.SUCCESS

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        self.close()
        return TransitionCallbackReturn.SUCCESS

    def close(self) -> None:
        self._active = False
        if self._worker is not None:
            self._worker.stop()

    def _load(self):
        # Torch and diffusers take seconds to import: not before they are needed.
        import torch

        from tr_vam_ros.vam import VamConfig, VideoActionPolicy
        from tr_vam_ros.vam.recorded_scales import read_scales
        from tr_vam_ros.vam.settings import with_settings

        p = self.parameters
        torch.set_num_threads(torch_threads(p.threads, os.cpu_count() or 1))
        settings = p.settings.split()
        options = {
            'seed': p.seed,
            'guidance': p.guidance,
            'precision': p.precision,
            'replay_scales': read_scales(Path(p.replay)) if p.replay else (),
            'on_end': p.on_end,
        }
        if p.checkpoint:
            policy = VideoActionPolicy.from_pretrained(
                p.checkpoint, settings=settings, device=p.device, **options
            )
        else:
            config = with_settings(VamConfig.from_yaml(p.preset), settings)
            policy = VideoActionPolicy.from_config(config, device=p.device, **options)
        yam.check_model(
            p.checkpoint or p.preset, policy.image_size, policy.config.head.action_dim
        )
        return policy

    # ---- topics --------------------------------------------------------------------------------

    def _on_request(self, request: ReplanRequest) -> None:
        if self._active:
            self._worker.submit(request)

    def _on_episode(self, episode: Episode) -> None:
        if self._worker is not None and episode.event == Episode.END:
            self._worker.cancel()

    def _on_image(self, message: Image) -> None:
        try:
            picture = rgb_from_message(message)
        except InputError as error:
            self._report(str(error))
            return
        if picture.shape != (yam.IMAGE_HEIGHT, yam.IMAGE_WIDTH, 3):
            self._report(
                f'stacked image {picture.shape[1]}x{picture.shape[0]}: the model takes '
                f'{yam.IMAGE_WIDTH}x{yam.IMAGE_HEIGHT}; check who publishes {STACKED_IMAGE.name}'
            )
            return
        self._observations.add_image(nanoseconds(message.header.stamp), picture)

    def _on_joint_state(self, message: JointState) -> None:
        try:
            proprio = yam.proprio_from_joint_state(message.name, message.position)
        except InputError as error:
            self._report(str(error))
            return
        self._observations.add_joints(nanoseconds(message.header.stamp), proprio)

    # ---- results, on the worker's thread -------------------------------------------------------

    def _publish(
        self, request: ReplanRequest, observation: Observation, replan, again: bool
    ) -> None:
        echo = _echo(request, observation)
        stages = {k: v for k, v in replan.milliseconds.items() if k != 'total'}
        ratio = TemporalRatio(
            **echo,
            temporal_ratio=replan.temporal_ratio,
            baseline=replan.baseline,
            scale=replan.scale,
            language_weight=replan.language_weight,
            plan_weight=replan.plan_weight,
            frame_attention=[float(mass) for mass in replan.frame_attention],
            layer=self._policy.config.head.tr_layer,
            schedule=self.parameters.guidance,
            branches=list(replan.branches),
            milliseconds=float(replan.milliseconds['total']),
            stage_names=list(stages),
            stage_milliseconds=[float(value) for value in stages.values()],
        )
        chunk = ActionChunk(
            **echo,
            joint_names=list(yam.JOINT_NAMES),
            horizon=len(replan.actions),
            period=yam.ROW_PERIOD,
            actions=np.ascontiguousarray(replan.actions, dtype=np.float32).ravel().tolist(),
        )
        # Both are built before either goes out. A chunk may be needed twice, by an owner that
        # missed it; a measurement is one event, and twice in a record it would count twice.
        if not again:
            self._ratios.publish(ratio)
        self._chunks.publish(chunk)

    def _refuse(self, request: ReplanRequest, observation: Observation, reason: str) -> None:
        self._chunks.publish(ActionChunk(**_echo(request, observation), error=reason))

    def _pause_sensors(self, thinking: bool) -> None:
        self._sensors.paused = thinking
        if not thinking and self.executor is not None:
            self.executor.wake()

    def _report(self, warning: str) -> None:
        if warning:
            self._diagnostics.set(WARN, warning)
        elif self._diagnostics.message != 'active':
            self._diagnostics.set(OK, 'active')


def _echo(request: ReplanRequest, observation: Observation) -> dict[str, object]:
    """The fields by which an answer names its request and what it was computed from."""
    return {
        'header': Header(stamp=stamp_of(observation.stamp_ns)),
        'request_id': request.request_id,
        'episode_key': request.episode_key,
        'replan_index': request.replan_index,
    }


def main() -> None:
    run_node(Policy)


if __name__ == '__main__':
    main()
