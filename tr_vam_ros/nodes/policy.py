"""policy: answers replan requests with action chunks and the Temporal Ratio. A lifecycle node.

Configure loads the model, activate begins to answer, deactivate ends it at once. Started with
`autostart` (default) it goes to active by itself. While a model loads, which may take minutes, the
lifecycle's services answer and diagnostics tell how far it is.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rclpy.clock import Clock, ClockType
from rclpy.executors import SingleThreadedExecutor
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
from tr_vam_ros.nodes.parameters import declare, on_change, parameter
from tr_vam_ros.nodes.replan_worker import ReplanWorker
from tr_vam_ros.nodes.runtime import (
    STOP_LATENCY,
    PausableGroup,
    nanoseconds,
    ros_now_ns,
    run_node,
    stamp_of,
    steady,
)
from tr_vam_ros.nodes.state_queries import StateQueries
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

if TYPE_CHECKING:
    from tr_vam_ros.vam import VideoActionPolicy

PATIENCE_NS = SECOND // 2
QUERY_PERIOD = 0.05  # s, how long a state query waits while a model loads
# What the middleware keeps while the sensors are paused: enough to pair a frame with its state.
KEPT_IMAGES, KEPT_JOINT_STATES = 2, 30


@dataclass
class Parameters:
    preset: str = parameter('tiny_yam', 'model preset (config/vam) or path of a YAML file')
    checkpoint: str = parameter('', "checkpoint folder or Hub id, instead of a preset")
    guidance: str = parameter(
        'adaptive',
        'guidance schedule; a new one holds from the next episode on',
        choices=GUIDANCE_SCHEDULES,
        live=True,
    )
    replay: str = parameter('', "scales for guidance 'replay': a JSON file")
    on_end: str = parameter(
        'error', 'what a replay does after its last scale', choices=('error', 'repeat')
    )
    settings: str = parameter(
        '',
        "values of the configuration, such as 'guidance.cap=1.5'; while a model is loaded those "
        'of guidance, from the next episode on',
        live=True,
    )
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
        on_change(self, self.parameters, self._change)
        self._diagnostics = Diagnostics(self)
        self._observations = Observations()
        self._worker: ReplanWorker | None = None
        self._policy = None
        self._running: Callable[[], bool] = lambda: True
        self._last: dict[str, object] = {}  # of the last replan, for diagnostics
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
                0.01,
                self._autostart,
                clock=Clock(clock_type=ClockType.STEADY_TIME),
            )

    def spin(self, running: Callable[[], bool]) -> None:
        """Serves until `running` is false, also in the middle of loading."""
        self._running = running
        executor = SingleThreadedExecutor()
        executor.add_node(self)
        while running():
            executor.spin_once(timeout_sec=STOP_LATENCY)

    # ---- lifecycle -----------------------------------------------------------------------------

    def _autostart(self) -> None:
        self._start_timer.cancel()
        if self.trigger_configure() == TransitionCallbackReturn.SUCCESS:
            self.trigger_activate()

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._loading_since = steady()
        self._progress(0, 0)
        loaded, error = self._loaded()
        if error:
            self._diagnostics.set(ERROR, error)
            return TransitionCallbackReturn.FAILURE
        self._policy = loaded
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

    def _loaded(self) -> tuple[VideoActionPolicy | None, str]:
        """The policy, or why there is none; state queries are answered meanwhile."""
        result: list[tuple[VideoActionPolicy | None, str]] = []

        def load() -> None:
            try:
                result.append((self._load(), ''))
            except InputError as error:
                result.append((None, str(error)))
            except Exception as error:  # noqa: BLE001 - the node outlives a model it cannot load
                said = ' '.join(str(error).split())
                result.append(
                    (None, f'{self._source}: not loaded: {type(error).__name__}: {said}; correct '
                           'the parameters and start again')
                )

        thread = threading.Thread(target=load, name='load', daemon=True)
        thread.start()
        queries, told = StateQueries(self), steady()
        while thread.is_alive() and self._running():
            thread.join(QUERY_PERIOD)
            queries.answer()
            if steady() - told > 1.0:  # as often as when nothing holds the timer up
                told = steady()
                self._diagnostics.publish()
        return result[0] if result else (None, f'{self._source}: stopped while it was loaded')

    def _load(self) -> VideoActionPolicy:
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
                p.checkpoint,
                settings=settings,
                device=p.device,
                on_progress=self._progress,
                **options,
            )
        else:
            config = with_settings(VamConfig.from_yaml(p.preset), settings)
            policy = VideoActionPolicy.from_config(config, device=p.device, **options)
        yam.check_model(self._source, policy.image_size, policy.config.head.action_dim)
        return policy

    @property
    def _source(self) -> str:
        return self.parameters.checkpoint or self.parameters.preset

    def _progress(self, done: int, total: int) -> None:
        """Bytes of weights read so far, and in all; 0 while that is not known."""
        values = {'seconds': round(steady() - self._loading_since, 1)}
        if total:
            values |= {'percent': 100 * done // total, 'bytes': total}
        self._diagnostics.set(OK, f'loading {self._source}', **values)

    def _change(self, new: Parameters) -> None:
        """Takes another guidance schedule or other weights, from the next episode on."""
        if self._worker is None:
            return  # `_load` reads it
        from tr_vam_ros.vam.guidance import GuidanceSchedule
        from tr_vam_ros.vam.recorded_scales import read_scales
        from tr_vam_ros.vam.settings import with_settings

        policy = self._policy
        config = with_settings(policy.config, new.settings.split())
        # The null text is a part of the loaded model: it was encoded with it.
        weights = dataclasses.replace(
            config.guidance, null_text=policy.config.guidance.null_text
        )
        if config != dataclasses.replace(policy.config, guidance=weights):
            raise InputError(
                f'parameter settings of policy: {new.settings!r} changes more than the weights of '
                'guidance, which a loaded model cannot; start the node with it'
            )
        scales = read_scales(Path(new.replay)) if new.guidance == 'replay' else ()
        schedule = GuidanceSchedule(new.guidance, tuple(scales), new.on_end)

        def change() -> None:
            policy.config, policy.schedule = config, schedule

        self._worker.before_next_episode(change)

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
        if reason := self._fitted_otherwise(message.header.frame_id):
            self._report(reason)
            return
        self._observations.add_image(nanoseconds(message.header.stamp), picture)

    def _fitted_otherwise(self, frame_id: str) -> str:
        """Why pictures of another aspect do not look as in training; '' when they do."""
        _, _, mode = frame_id.partition('_')
        if not mode or self._policy is None or mode == self._policy.config.image.resize_mode:
            return ''
        return (
            f"stacked image: fitted by resize_mode '{mode}', but the model was trained with "
            f"'{self._policy.config.image.resize_mode}'; set camera_stack's resize_mode to that"
        )

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
            schedule=self._policy.schedule.name,
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
        self._last = {
            'episode': request.episode_key,
            'replan': request.replan_index,
            'milliseconds': round(ratio.milliseconds),
            'temporal_ratio': round(ratio.temporal_ratio, 4),
            'branches': len(replan.branches),
        }
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
        level, message = (WARN, warning) if warning else (OK, 'active')
        self._diagnostics.set(level, message, **self._last)


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
