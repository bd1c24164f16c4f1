"""A node's health on /diagnostics: at 1 Hz by the steady clock and at every change."""

from __future__ import annotations

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.clock import Clock, ClockType
from rclpy.node import Node

from tr_vam_ros.nodes.topics import DIAGNOSTICS

OK, WARN, ERROR = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR


class Diagnostics:
    """Call `set` from the node's own thread or any other: publishing is thread-safe in rclpy."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._publisher = node.create_publisher(DIAGNOSTICS.type, DIAGNOSTICS.name, DIAGNOSTICS.qos)
        self._level, self._message, self._values = OK, 'starting', {}
        self._timer = node.create_timer(
            1.0, self.publish, clock=Clock(clock_type=ClockType.STEADY_TIME)
        )

    @property
    def message(self) -> str:
        return self._message

    def set(self, level: bytes, message: str, **values: object) -> None:
        changed = (level, message) != (self._level, self._message)
        self._level, self._message, self._values = level, message, values
        if changed:
            if level == ERROR:
                self._node.get_logger().error(message)
            elif level == WARN:
                self._node.get_logger().warning(message)
            self.publish()

    def publish(self) -> None:
        status = DiagnosticStatus(
            level=self._level,
            name=f'tr_vam/{self._node.get_name()}',
            message=self._message,
            hardware_id='',
            values=[KeyValue(key=k, value=str(v)) for k, v in self._values.items()],
        )
        message = DiagnosticArray(status=[status])
        message.header.stamp = self._node.get_clock().now().to_msg()
        self._publisher.publish(message)
