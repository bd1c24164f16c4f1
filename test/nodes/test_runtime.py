"""How a node's process ends: the bag is whole, nothing is left, whenever the signal comes."""

import os
import signal
import subprocess
import sys

import pytest

from test.ros import wait_for
from tr_vam_ros.cli.supervisor import REPOSITORY
from tr_vam_ros.nodes.topics import NAMESPACE, SET_INSTRUCTION

# A close() that takes its time and needs a living context, and one that fails.
NODE = '''
import sys
from rclpy.node import Node
from std_msgs.msg import String
from tr_vam_ros.nodes.runtime import run_node

class Stubborn(Node):
    def __init__(self):
        super().__init__('stubborn')
        self.create_subscription(String, '/never', print, 1)
        print('ready', flush=True)
    def close(self):
        print('context', self.context.ok(), flush=True)
        if 'fail' in sys.argv:
            raise RuntimeError('close failed')
    def destroy_node(self):
        super().destroy_node()
        print('destroyed', flush=True)

run_node(Stubborn)
'''


def start(ros, *command) -> subprocess.Popen:
    environment = {**os.environ, 'PYTHONPATH': str(REPOSITORY), 'ROS_DOMAIN_ID': str(ros.domain)}
    return subprocess.Popen(
        [sys.executable, *command],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_node_closes_while_its_context_is_valid_and_exits_0(ros, number):
    process = start(ros, '-c', NODE)
    assert process.stdout.readline() == 'ready\n'
    process.send_signal(number)
    output, _ = process.communicate(timeout=20)
    assert output == 'context True\ndestroyed\n'
    assert process.returncode == 0


def test_a_close_that_fails_is_said_and_the_node_is_destroyed_all_the_same(ros):
    process = start(ros, '-c', NODE, 'fail')
    assert process.stdout.readline() == 'ready\n'
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=20)
    assert 'destroyed' in output and 'close failed' in output
    assert process.returncode == 1


@pytest.mark.parametrize('attempt', range(4))
def test_a_recorder_that_is_interrupted_under_load_leaves_a_whole_bag(ros, tmp_path, attempt):
    publisher = ros.node.create_publisher(SET_INSTRUCTION.type, SET_INSTRUCTION.name, 100)
    folder = tmp_path / 'bag'
    process = start(
        ros, '-m', 'tr_vam_ros.nodes.recorder',
        '--ros-args', '-r', f'__ns:={NAMESPACE}', '-p', f'directory:={folder}',
    )  # fmt: skip
    wait_for(publisher.get_subscription_count, 'the recorder listens')
    # It is in the middle of a burst, and the burst goes on while it closes.
    ros.node.create_timer(0.0005, lambda: publisher.publish(SET_INSTRUCTION.type(data='x' * 2000)))
    wait_for((folder / 'bag_0.mcap').exists, 'the bag')
    wait_for(lambda: (folder / 'bag_0.mcap').stat().st_size > 10_000, 'a first chunk')
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=20)
    assert process.returncode == 0, output
    assert (folder / 'bag_0.mcap').read_bytes().endswith(b'\x89MCAP0\r\n')
