"""Starting, spinning and stopping a node; time; nothing else.

Ctrl-C and SIGTERM end a node cleanly. A node that was started by a supervisor (`TR_VAM_SUPERVISED`)
also ends when that supervisor dies, however it dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
import sys
import time
from collections.abc import Callable

import rclpy
from builtin_interfaces.msg import Time
from rclpy.callback_groups import MutuallyExclusiveCallbackGroup
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from tr_vam_ros.errors import InputError
from tr_vam_ros.execution.timeline import SECOND
from tr_vam_ros.nodes.topics import latest

SUPERVISED = 'TR_VAM_SUPERVISED'
_PR_SET_PDEATHSIG = 1
STOP_LATENCY = 0.1  # s, longest wait of a loop that nothing wakes before it looks at the signal


def stamp_of(time_ns: int) -> Time:
    return Time(sec=time_ns // SECOND, nanosec=time_ns % SECOND)


def nanoseconds(stamp: Time) -> int:
    return stamp.sec * SECOND + stamp.nanosec


def ros_now_ns(node: Node) -> int:
    return node.get_clock().now().nanoseconds


def die_with_parent() -> None:
    """Asks the kernel for SIGTERM when the supervising process ends."""
    parent = os.environ.get(SUPERVISED)
    if not parent:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):  # it died before the line above
        sys.exit(0)


class PausableGroup(MutuallyExclusiveCallbackGroup):
    """Callbacks that wait while `paused` is true; their topics' queues keep the newest meanwhile.

    An rclpy executor asks each entity's group before it waits for it: a paused topic costs nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.paused = False

    def can_execute(self, entity: object) -> bool:
        return not self.paused and super().can_execute(entity)


class LatestMessage:
    """A topic that is looked at when somebody asks, instead of calling back for each message.

    In rclpy a callback costs half a millisecond, most of it in building the wait set. Who needs the
    newest of a fast topic at his own pace takes it from here.
    """

    def __init__(self, node: Node, kind: type, name: str, *, raw: bool = False) -> None:
        group = PausableGroup()
        group.paused = True
        self._raw = raw
        self._subscription = node.create_subscription(
            kind, name, _never_called, latest(), callback_group=group, raw=raw
        )

    def take(self) -> object | None:
        """The newest message since the last call (bytes if raw), or None."""
        with self._subscription.handle:
            taken = self._subscription.handle.take_message(
                self._subscription.msg_type, self._raw
            )
        return None if taken is None else taken[0]


def _never_called(message: object) -> None:
    raise AssertionError('a paused subscription was executed')


class StopRequest:
    """SIGINT, SIGTERM and SIGHUP as a wish that the loop reads, not an exception in the middle of a callback.

    rclpy's own handler would invalidate the context at once: a node that still has something to
    write, or a queue to empty, then fails half-way.
    """

    def __init__(self, *, insist: bool = True) -> None:
        """insist: a second signal ends the process by SystemExit, for a loop that does not look."""
        self.asked = False
        self._insist = insist
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: object) -> None:
        if self.asked and self._insist:
            sys.exit(128 + number)
        self.asked = True

    def running(self) -> bool:
        return not self.asked and rclpy.ok()


def run_node(make: Callable[[], Node]) -> None:
    """Makes the node and spins it until a signal; exits 2 with one line on an InputError.

    A node may have `spin(running)` instead of the usual loop, and `close()`, which is called
    while the context is still valid.
    """
    die_with_parent()
    stop = StopRequest()
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    code = 0
    with contextlib.ExitStack() as cleanup:  # every step runs, whatever another one raises
        cleanup.callback(rclpy.try_shutdown)
        try:
            node = make()
            cleanup.callback(node.destroy_node)
            cleanup.callback(getattr(node, 'close', lambda: None))
            getattr(node, 'spin', functools.partial(_spin, node))(stop.running)
        except ExternalShutdownException:
            pass
        except InputError as error:
            print(f'error: {error}', file=sys.stderr, flush=True)
            code = 2
    sys.exit(code)


def _spin(node: Node, running: Callable[[], bool]) -> None:
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    while running():
        executor.spin_once(timeout_sec=STOP_LATENCY)


def steady() -> float:
    return time.monotonic()
