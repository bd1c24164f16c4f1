"""recorder: every topic of the graph into one MCAP bag, byte for byte as it came over the wire."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from rclpy.clock import Clock, ClockType
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy

from tr_vam_ros import __version__
from tr_vam_ros.errors import InputError
from tr_vam_ros.nodes.bag_writer import BagWriter
from tr_vam_ros.nodes.diagnostics import ERROR, OK, Diagnostics
from tr_vam_ros.nodes.parameters import declare, parameter
from tr_vam_ros.nodes.runtime import ros_now_ns, run_node, steady
from tr_vam_ros.nodes.topics import RECORDED, Topic

FLUSH_SECONDS = 1.0  # what a crash may cost
DRAIN_SECONDS = 2.0  # for the queues at the end; publishers that go on would keep it for ever


@dataclass
class Parameters:
    directory: str = parameter('', 'folder to make: it becomes one rosbag2 bag')


class Recorder(Node):
    """Single-threaded: the writer is called from the executor's thread alone."""

    def __init__(self, **options) -> None:
        super().__init__('recorder', **options)
        self.parameters = declare(self, Parameters)
        if not self.parameters.directory:
            raise InputError('parameter directory of recorder: empty; name the folder of the bag')
        self._diagnostics = Diagnostics(self)
        custom = {'tr_vam_ros': __version__, 'python': sys.version.split()[0]}
        self._writer = BagWriter(self.parameters.directory, custom_data=custom)
        self._failure = ''
        self._count = 0  # messages taken
        for topic in RECORDED:
            self._subscribe(topic)
        steady_clock = Clock(clock_type=ClockType.STEADY_TIME)
        self.create_timer(FLUSH_SECONDS, self._flush, clock=steady_clock)

    def _subscribe(self, topic: Topic) -> None:
        name = self.resolve_topic_name(topic.name)
        package = topic.type.__module__.split('.')[0]
        type_name = f'{package}/msg/{topic.type.__name__}'
        self._writer.add_topic(name, type_name, [topic.qos])
        # A driver may offer less than our own nodes: take what is there, but miss none of ours.
        profile = QoSProfile(
            history=HistoryPolicy.KEEP_ALL,
            reliability=ReliabilityPolicy.RELIABLE,
            durability=topic.qos.durability,
        )
        if any(
            p.qos_profile.reliability == ReliabilityPolicy.BEST_EFFORT
            for p in self.get_publishers_info_by_topic(name)
        ):
            profile.reliability = ReliabilityPolicy.BEST_EFFORT
        if topic.qos.durability != DurabilityPolicy.TRANSIENT_LOCAL:
            profile.durability = DurabilityPolicy.VOLATILE
        self.create_subscription(
            topic.type,
            topic.name,
            lambda data, info, name=name, kind=type_name: self._write(name, kind, data, info),
            profile,
            raw=True,
        )

    def _write(self, name: str, type_name: str, data: bytes, info: dict) -> None:
        self._count += 1
        self._guard(
            lambda: self._writer.write(
                name, type_name, data, ros_now_ns(self), info['source_timestamp']
            )
        )

    def _flush(self) -> None:
        self._guard(self._writer.flush)
        if not self._failure:
            total = sum(self._writer.message_counts.values())
            self._diagnostics.set(OK, 'recording', messages=total)

    def _guard(self, act) -> None:
        try:
            act()
        except OSError as error:
            # Said once; the graph goes on without a record, the bag stays readable.
            self._failure = (
                f'recording ended: {error}; free the disk of {self.parameters.directory} '
                'and start again'
            )
            self._diagnostics.set(ERROR, self._failure)

    def close(self) -> None:
        """Writes what is still in the queues, then the index: a bag is whole or its cause is said."""
        try:
            if self.context.ok():
                executor = SingleThreadedExecutor()
                executor.add_node(self)
                end = steady() + DRAIN_SECONDS
                while steady() < end and self._written_one(executor):
                    pass
        finally:
            self._guard(self._writer.close)

    def _written_one(self, executor: SingleThreadedExecutor) -> bool:
        before = self._count
        executor.spin_once(timeout_sec=0)
        return self._count > before


def main() -> None:
    run_node(Recorder)


if __name__ == '__main__':
    main()
