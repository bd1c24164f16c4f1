"""`tr-vam up NAME`: a bring-up that keeps running until Ctrl-C, without ROS's launch."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from tr_vam_ros.bringup import BRINGUPS
from tr_vam_ros.cli.model_options import ModelOptions
from tr_vam_ros.errors import InputError


@dataclass(kw_only=True)
class Up(ModelOptions):
    """Start the nodes of a bring-up; the arms stay disarmed until somebody arms them."""

    name: tyro.conf.Positional[str]
    """Which bring-up: yam_sim."""
    task: int = 1
    """Task of the paper's table 13."""
    clock: Literal['real_time', 'lockstep'] = 'real_time'
    """Clock of the cell."""
    mode: Literal['sync', 'async'] = 'sync'
    """async: the next chunk is asked for while the arms move."""
    dry_run: bool = False
    """Trajectories go to the preview topics; the arms stand."""
    episode_seconds: float = 60.0
    """Length of an episode."""
    seconds: Annotated[float | None, tyro.conf.arg(name='for')] = None
    """End by itself after so many seconds; without it, run until Ctrl-C."""
    record: Path | None = None
    """Folder to make: one bag of every topic."""


def main(arguments: list[str]) -> int:
    options = tyro.cli(Up, args=arguments, prog='tr-vam up')
    if options.name not in BRINGUPS:
        raise InputError(
            f'bring-up {options.name!r}: unknown; choose one of {", ".join(BRINGUPS)}'
        )
    nodes = BRINGUPS[options.name](
        task=options.task,
        **options.bringup(),
        clock=options.clock,
        mode=options.mode,
        dry_run=options.dry_run,
        episode_seconds=options.episode_seconds,
        record=str(options.record.absolute()) if options.record else '',
    )
    if options.seconds is not None and not 1 <= options.seconds <= 1e7:
        raise InputError(f'for {options.seconds:g}: must be 1 s or more')
    from tr_vam_ros.cli.graph import GraphError, running_graph

    try:
        with running_graph(nodes) as graph:
            print(
                f'up: {", ".join(node.executable for node in nodes)} in ROS_DOMAIN_ID='
                f'{os.environ["ROS_DOMAIN_ID"]}, disarmed; '
                + (f'ends after {options.seconds:g} s' if options.seconds else 'Ctrl-C ends it'),
                flush=True,
            )
            end = time.monotonic() + (options.seconds or math.inf)
            while time.monotonic() < end:
                graph.spin()
                graph.monitor.forget_motion()
            for name, (level, text) in sorted(graph.monitor.health.items()):
                print(f'{name}: {"ok" if level == 0 else "problem"}, {text}')
            print('up: ended, nothing is left running')
            return 0
    except GraphError as error:
        print(f'error: {error}')
        return 1
