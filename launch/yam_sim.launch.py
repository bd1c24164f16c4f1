"""ros2 launch tr_vam_ros yam_sim.launch.py: the whole graph on the simulated YAM cell."""

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, EmitEvent, OpaqueFunction, RegisterEventHandler
from launch.event_handlers import OnProcessExit
from launch.events import Shutdown
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from tr_vam_ros.bringup import CLOCKS, NAMESPACE, yam_sim
from tr_vam_ros.vam.config import GUIDANCE_SCHEDULES


def generate_launch_description() -> LaunchDescription:
    return LaunchDescription(
        [
            DeclareLaunchArgument('task', default_value='1', description='task of table 13'),
            DeclareLaunchArgument(
                'guidance', default_value='adaptive', choices=list(GUIDANCE_SCHEDULES)
            ),
            DeclareLaunchArgument('replay', default_value='', description='file of scales'),
            DeclareLaunchArgument('on_end', default_value='error', choices=['error', 'repeat']),
            DeclareLaunchArgument(
                'settings', default_value='', description="such as 'guidance.cap=1.5'"
            ),
            DeclareLaunchArgument('clock', default_value='real_time', choices=list(CLOCKS)),
            DeclareLaunchArgument('preset', default_value='tiny_yam', description='config/vam'),
            DeclareLaunchArgument('seed', default_value='0', description='weights, noise, scene'),
            DeclareLaunchArgument('episode_seconds', default_value='60.0'),
            DeclareLaunchArgument('record', default_value='', description='folder of a new bag'),
            OpaqueFunction(function=_nodes),
        ]
    )


def _nodes(context):
    def value(name: str) -> str:
        return LaunchConfiguration(name).perform(context)

    specs = yam_sim(
        task=int(value('task')),
        guidance=value('guidance'),
        clock=value('clock'),
        preset=value('preset'),
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
