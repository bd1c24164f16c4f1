"""Real rclpy over DDS for tests: a domain of their own, a spinning thread, waits with deadlines."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter

from tr_vam_ros.cli.domain import own_domain
from tr_vam_ros.nodes.topics import NAMESPACE, every_message

DEADLINE = 20.0  # s; generous, because the machine may be busy


def wait_for(condition: Callable[[], object], what: str, seconds: float = DEADLINE) -> object:
    """The first true value of `condition`; fails the test with `what` at the deadline."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        threading.Event().wait(0.005)
    raise AssertionError(f'not within {seconds:g} s: {what}')


class Ros:
    """Nodes of one test in one domain, each spun by a thread of its own."""

    def __init__(self) -> None:
        self._domain = own_domain()
        environment = self._domain.__enter__()
        os.environ['ROS_AUTOMATIC_DISCOVERY_RANGE'] = 'LOCALHOST'
        self.domain = int(environment['ROS_DOMAIN_ID'])
        rclpy.init(domain_id=self.domain)
        self._executors: list[SingleThreadedExecutor] = []
        self._threads: list[threading.Thread] = []
        self.nodes: list[Node] = []
        self.node = Node('test', namespace=NAMESPACE)
        self.spin(self.node)

    def spin(self, node: Node) -> Node:
        executor = SingleThreadedExecutor()
        executor.add_node(node)
        thread = threading.Thread(target=self._spin, args=(executor,), daemon=True)
        thread.start()
        self._executors.append(executor)
        self._threads.append(thread)
        self.nodes.append(node)
        return node

    @staticmethod
    def _spin(executor: SingleThreadedExecutor) -> None:
        try:
            executor.spin()
        except rclpy.executors.ExternalShutdownException:
            pass

    def heard(self, topic, qos=None) -> list:
        """Everything that comes on a topic from now on."""
        messages: list = []
        profile = every_message() if qos is None else qos
        self.node.create_subscription(topic.type, topic.name, messages.append, profile)
        return messages

    def call(self, kind, name: str, request, seconds: float = DEADLINE):
        client = self.node.create_client(kind, name)
        assert client.wait_for_service(timeout_sec=seconds), f'no service {name}'
        future = client.call_async(request)
        wait_for(future.done, f'answer of {name}', seconds)
        return future.result()

    def close(self) -> None:
        for executor in self._executors:
            executor.shutdown(timeout_sec=2)
        for thread in self._threads:
            thread.join(timeout=5)
        for node in self.nodes:
            close = getattr(node, 'close', None)
            if close is not None:
                close()
            node.destroy_node()
        rclpy.try_shutdown()
        self._domain.__exit__(None, None, None)


def node_of(kind: type[Node], **parameters) -> Node:
    """A node of the package with parameters and in the graph's namespace."""

    overrides = [Parameter(key, value=value) for key, value in parameters.items()]
    return kind(namespace=NAMESPACE, parameter_overrides=overrides)
