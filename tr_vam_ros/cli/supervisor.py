"""Starts the processes of a bring-up, watches them, and ends every one of them.

No process is left, whatever happens: children end on SIGINT, then SIGTERM, then SIGKILL, and the
kernel ends them if this process dies. Shared memory that a killed child left is removed, unless
this process is itself killed with SIGKILL: then that and the logs' temporary folder stay.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tr_vam_ros.bringup import NodeSpec
from tr_vam_ros.cli.shared_memory import leftover_segments, segments
from tr_vam_ros.nodes.runtime import SUPERVISED

GRACE_SECONDS = 5.0
REPOSITORY = Path(__file__).resolve().parents[2]


class Supervisor:
    """One instance per bring-up; a context manager that ends what it started."""

    def __init__(self, nodes: list[NodeSpec], environment: dict[str, str]) -> None:
        self._nodes = nodes
        self._environment = {**os.environ, **environment, SUPERVISED: str(os.getpid())}
        source = str(REPOSITORY)
        path = self._environment.get('PYTHONPATH')
        self._environment['PYTHONPATH'] = f'{source}:{path}' if path else source
        self._processes: dict[str, subprocess.Popen] = {}
        self._logs = tempfile.TemporaryDirectory(prefix='tr_vam_')
        self._segments_before = segments()

    def __enter__(self) -> Supervisor:
        try:
            for node in self._nodes:
                self._start(node)
        except BaseException:  # Ctrl-C between two of them
            self.stop()
            raise
        return self

    def _start(self, node: NodeSpec) -> None:
        with open(self._log_path(node.executable), 'wb') as log:
            self._processes[node.executable] = subprocess.Popen(
                [sys.executable, '-m', f'tr_vam_ros.nodes.{node.executable}', *node.arguments()],
                env={**self._environment, **node.environment},
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C reaches us alone; we end them in order
            )

    def __exit__(self, *_) -> None:
        self.stop()

    def dead(self) -> tuple[str, int, str] | None:
        """A node that has ended: name, exit code, last lines of its log; None while all live."""
        for name, process in self._processes.items():
            code = process.poll()
            if code is not None:
                return name, code, self.log_tail(name)
        return None

    def log_tail(self, name: str, lines: int = 5) -> str:
        text = self._log_path(name).read_text(errors='replace').strip().splitlines()
        return '\n'.join(text[-lines:])

    def stop(self) -> None:
        """Ends every process and removes what killed ones left. A signal meanwhile changes nothing."""
        ignored = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        previous = {number: signal.signal(number, signal.SIG_IGN) for number in ignored}
        try:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
                self._end_with(number)
            for path in leftover_segments(self._segments_before):
                path.unlink(missing_ok=True)
            self._logs.cleanup()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _end_with(self, number: int) -> None:
        alive = [p for p in self._processes.values() if p.poll() is None]
        for process in alive:
            process.send_signal(number)
        deadline = time.monotonic() + GRACE_SECONDS
        for process in alive:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                continue

    def _log_path(self, name: str) -> Path:
        return Path(self._logs.name) / f'{name}.log'
