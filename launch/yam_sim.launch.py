"""ros2 launch tr_vam_ros yam_sim.launch.py: the whole graph on the simulated YAM cell."""

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, EmitEvent, OpaqueFunction, RegisterEventHandler
from launch.event_handlers import OnProcessExit
from launch.events import Shutdown
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from tr_vam_ros.bringup import CLOCKS, NAMESPACE, yam_sim
from tr_vam_ros.execution.settings import MODES
from tr_vam_ros.vam.config import GUIDANCE_SCHEDULES
from tr_vam_ros.vam.guidance import ON_END

BOOLEANS = ('true', 'false')


def generate_launch_description() -> LaunchDescription:
    return LaunchDescription(
        [
            _argument('task', '1', "task of the paper's table 13; the cell has scene 1: 1 and 2"),
            _argument('guidance', 'adaptive', 'guidance schedule', GUIDANCE_SCHEDULES),
            _argument('replay', '', "scales for guidance 'replay': a JSON file"),
            _argument('on_end', 'error', 'what a replay does after its last scale', ON_END),
            _argument('settings', '', "values of the configuration, as 'guidance.cap=1.5'"),
            _argument('clock', 'real_time', 'clock of the cell', CLOCKS),
            _argument('mode', 'sync', 'ask for chunks at standstill or in motion', MODES),
            _argument('dry_run', 'false', 'trajectories go to the preview topics', BOOLEANS),
            _argument('preset', 'tiny_yam', 'preset of config/vam, or a YAML file'),
            _argument('checkpoint', '', 'checkpoint folder or Hub id, instead of a preset'),
            _argument('seed', '0', 'of random weights, noise and scene'),
            _argument('episode_seconds', '60.0', 'length of an episode, s'),
            _argument('record', '', 'folder to make: one bag of every topic'),
            OpaqueFunction(function=_nodes),
        ]
    )


def _argument(name, default, description, choices=None):
    return DeclareLaunchArgument(
        name, default_value=default, description=description,
        choices=list(choices) if choices else None,
    )


def _nodes(context):
    def value(name: str) -> str:
        return LaunchConfiguration(name).perform(context)

    specs = yam_sim(
        task=int(value('task')),
        guidance=value('guidance'),
        clock=value('clock'),
        mode=value('mode'),
        dry_run=value('dry_run') == 'true',
        preset=value('preset'),
        checkpoint=value('checkpoint'),
        replay=value('replay'),
        on_end=value('on_end'),
        settings=value('settings'),
        seed=int(value('seed')),
        episode_seconds=float(value('episode_seconds')),
        record=value('record'),
    )
    actions = []
    for spec in specs:
        node = Node(
            package='tr_vam_ros',
            executable=spec.executable,
            namespace=NAMESPACE,
            parameters=[spec.parameters],
            additional_env=spec.environment,
            output='screen',
        )
        actions.append(node)
        # A graph with a node missing is not one to move arms with.
        shutdown = EmitEvent(event=Shutdown(reason=f'{spec.executable} ended'))
        actions.append(
            RegisterEventHandler(OnProcessExit(target_action=node, on_exit=[shutdown]))
        )
    return actions
