"""A running graph as one object: its own domain, its processes, a monitor, arming and episodes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import rclpy
from rclpy.signals import SignalHandlerOptions
from std_srvs.srv import SetBool, Trigger

from tr_vam_ros.bringup import NodeSpec
from tr_vam_ros.cli.domain import own_domain
from tr_vam_ros.cli.guardian import Guardian
from tr_vam_ros.cli.supervisor import Supervisor
from tr_vam_ros.nodes.monitor import EpisodeRecord, Monitor
from tr_vam_ros.nodes.runtime import StopRequest

READY_SECONDS = 120.0  # on two busy cores importing torch alone takes some ten
NO_PROGRESS_SECONDS = 120.0
SPIN_SECONDS = 0.02


class GraphError(RuntimeError):
    """A node died or the graph makes no progress; the text says which and what it last said."""


class Graph:
    """Use `running_graph`. Everything happens on the caller's thread."""

    def __init__(self, supervisor: Supervisor, monitor: Monitor, stop: StopRequest) -> None:
        self.supervisor, self.monitor = supervisor, monitor
        self._stop = stop
        self._guardian = Guardian(monitor)

    def spin(self) -> None:
        """One round of callbacks and of watching.

        Raises GraphError when a node has died, KeyboardInterrupt when a signal came meanwhile:
        here and nowhere else, so that nothing is cut off half-way.
        """
        if self._stop.asked:
            raise KeyboardInterrupt
        rclpy.spin_once(self.monitor, timeout_sec=SPIN_SECONDS)
        dead = self.supervisor.dead()
        if dead is None:
            return
        name, code, log = dead
        positions = self.monitor.latest_positions
        if name == 'chunk_executor' and positions is not None:
            self._guardian.hold(positions)
        raise GraphError(f'node {name} ended (exit {code}); its last lines:\n{log}')

    def arm(self, progress: Callable[[str], None]) -> None:
        """Waits until the graph is complete and arms it; reports what it waits for."""
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            if not self.monitor.arm_client.service_is_ready():
                progress('waiting for the executor')
                self.spin()
                continue
            answer = self._call(self.monitor.arm_client, SetBool.Request(data=True))
            if answer.success:
                return
            progress(answer.message.removeprefix('not armed: '))
            pause = time.monotonic() + 0.3
            while time.monotonic() < pause:
                self.spin()
        problems = '; '.join(f'{n}: {text}' for n, (_, text) in self.monitor.health.items())
        raise GraphError(f'the graph was not ready after {READY_SECONDS:g} s ({problems})')

    def run_episode(self) -> EpisodeRecord:
        """Starts an episode and returns its record when it has ended and all of it has come."""
        answer = self._call(self.monitor.new_episode_client, Trigger.Request())
        if not answer.success:
            raise GraphError(answer.message)
        record = self.monitor.episodes.get(answer.message)
        seen, since = None, time.monotonic()
        while True:
            self.spin()
            record = self.monitor.episodes.get(answer.message)
            if record is not None and self._complete(record):
                return record
            state = (record and len(record.ratios), record and record.outcome)
            if state != seen:
                seen, since = state, time.monotonic()
            elif time.monotonic() - since > NO_PROGRESS_SECONDS:
                raise GraphError(f'no progress for {NO_PROGRESS_SECONDS:g} s: {self._problems()}')

    def _complete(self, record: EpisodeRecord) -> bool:
        state = self.monitor.state
        return (
            bool(record.outcome)
            and self.monitor.latest_stamp_ns >= record.end_ns
            and state is not None
            and state.episode_key != record.key
        )

    def _problems(self) -> str:
        bad = [f'{n}: {text}' for n, (level, text) in self.monitor.health.items() if level]
        return '; '.join(bad) or 'no node reports a problem'

    def _call(self, client, request):
        future = client.call_async(request)
        deadline = time.monotonic() + NO_PROGRESS_SECONDS
        while not future.done():
            self.spin()
            if time.monotonic() > deadline:
                raise GraphError(f'service {client.srv_name} did not answer')
        return future.result()


@contextmanager
def running_graph(nodes: list[NodeSpec], **monitor_options) -> Iterator[Graph]:
    """The nodes' processes in a domain of their own; all ended on exit, however it comes."""
    with own_domain() as domain:
        os.environ.update(domain)
        stop = StopRequest(insist=False)  # before the first process: from here on we end in order
        with Supervisor(nodes, domain) as supervisor:
            rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
            monitor = Monitor(**monitor_options)
            try:
                yield Graph(supervisor, monitor, stop)
            finally:
                monitor.destroy_node()
                rclpy.try_shutdown()
