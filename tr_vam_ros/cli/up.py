"""`tr-vam up NAME`: a bring-up that keeps running until Ctrl-C, without ROS's launch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

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
    episode_seconds: float = 60.0
    """Length of an episode."""
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
        episode_seconds=options.episode_seconds,
        record=str(options.record.absolute()) if options.record else '',
    )
    from tr_vam_ros.cli.graph import GraphError, running_graph

    try:
        with running_graph(nodes) as graph:
            print(
                f'up: {", ".join(node.executable for node in nodes)} in ROS_DOMAIN_ID='
                f'{os.environ["ROS_DOMAIN_ID"]}, disarmed; Ctrl-C ends it',
                flush=True,
            )
            while True:
                graph.spin()
    except GraphError as error:
        print(f'error: {error}')
        return 1
