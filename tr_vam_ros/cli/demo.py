"""`tr-vam demo`: the whole graph on the simulated YAM cell."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro
from rich.console import Console

from tr_vam_ros.bringup import yam_sim
from tr_vam_ros.cli.model_options import ModelOptions
from tr_vam_ros.errors import InputError
from tr_vam_ros.sim.tasks import find_task

# A recorded second is about 22 MB: three raw cameras, the stack, everything else.
BAG_BYTES_PER_SECOND = 25e6
SPARE_BYTES = 1e9


@dataclass(kw_only=True)
class Demo(ModelOptions):
    """Run episodes on the simulated cell and show the Temporal Ratio live."""

    task: int = 1
    """Task of the paper's table 13; the cell has scene 1: tasks 1 and 2."""
    episodes: int = 1
    """How many episodes to run."""
    seconds: float = 20.0
    """Length of an episode in simulated seconds, from its first request."""
    clock: Literal['real_time', 'lockstep'] = 'real_time'
    """lockstep: the simulated clock waits for the policy; same seed, same episode."""
    mode: Literal['sync', 'async'] = 'sync'
    """async: the next chunk is asked for while the arms move."""
    record: Path | None = None
    """Folder to make: one rosbag2 bag (MCAP) of every topic."""
    video: Path | None = None
    """MP4 file to write: the top camera."""
    json: Path | None = None
    """JSON file to write: every replan of every episode."""


def main(arguments: list[str]) -> int:
    options = tyro.cli(Demo, args=arguments, prog='tr-vam demo')
    _check(options)
    # Heavy imports come after the check: a wrong option is answered at once.
    from tr_vam_ros.cli.graph import GraphError, running_graph
    from tr_vam_ros.cli.video import VideoWriter

    nodes = yam_sim(
        task=options.task,
        **options.bringup(),
        clock=options.clock,
        mode=options.mode,
        episode_seconds=options.seconds,
        record=str(options.record.absolute()) if options.record else '',
    )
    console = Console(highlight=False, soft_wrap=True)
    task = find_task(options.task)
    problems = _Problems(console)
    video = VideoWriter(str(options.video)) if options.video else None
    try:
        with running_graph(
            nodes,
            on_replan=lambda ratio: console.print(_line(ratio)),
            on_frame=video.add if video else None,
            on_problem=problems.show,
        ) as graph:
            result = _run(options, graph, task, console, problems)
    except GraphError as error:
        console.print(f'error: {error}', style='red', markup=False)
        return 1
    finally:
        if video:
            video.close()
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + '\n')
    _summarise(console, options, result)
    return 1 if any(e['outcome'] == 'fault' for e in result['episodes']) else 0


class _Problems:
    """Shows what nodes complain of, once the graph is complete: before, everything is missing."""

    def __init__(self, console: Console) -> None:
        self.wanted = False
        self._console = console
        self._shown: set[tuple[str, str]] = set()

    def show(self, node: str, message: str) -> None:
        kind = node, re.sub(r'[\d.]+', '', message)  # the same with other numbers is no news
        if self.wanted and kind not in self._shown:
            self._shown.add(kind)
            self._console.print(f'{node}: {message}', style='yellow', markup=False)


def _run(options: Demo, graph, task, console: Console, problems: _Problems) -> dict:
    import os

    monitor = graph.monitor
    domain = os.environ['ROS_DOMAIN_ID']
    console.print(
        f'tr_vam_ros demo: "{task.instruction}", guidance {options.guidance}, '
        f'{options.mode} mode, {options.clock} clock, seed {options.seed}; weights: {options.weights}'
    )
    console.print(
        f'look in from another terminal: ROS_DOMAIN_ID={domain} '
        'ROS_AUTOMATIC_DISCOVERY_RANGE=LOCALHOST ros2 topic echo /tr_vam/temporal_ratio'
    )
    with console.status('starting the nodes') as status:
        graph.arm(lambda text: status.update(f'starting: {text}'))
    console.print('armed; the arms move')
    problems.wanted = True
    episodes = []
    for _ in range(options.episodes):
        record = graph.run_episode()
        replans = [
            {
                'temporal_ratio': ratio.temporal_ratio,
                'baseline': ratio.baseline,
                'scale': ratio.scale,
                'branches': list(ratio.branches),
                'milliseconds': ratio.milliseconds,
                'actions_sha256': record.hashes[index],
            }
            for index in record.replans
            for ratio in [record.ratios[index]]
        ]
        episodes.append(
            {
                'key': record.key,
                'outcome': record.outcome,
                'path_length': monitor.path_length(record.start_ns, record.end_ns),
                'replans': replans,
            }
        )
        monitor.forget_motion()
        console.print(f'episode {record.key}: {record.outcome} ({record.reason})')
    return {
        'seed': options.seed,
        'clock': options.clock,
        'mode': options.mode,
        'guidance': options.guidance,
        'settings': list(options.set),
        'weights': options.weights,
        'rejected': monitor.state.rejected,
        'capped': monitor.state.capped,
        'underruns': monitor.state.underruns,
        'episodes': episodes,
    }


def _line(ratio) -> str:
    return (
        f'{ratio.episode_key.rsplit("/", 1)[-1]} replan {ratio.replan_index:2d}  '
        f'TR {ratio.temporal_ratio:6.3f}  baseline {ratio.baseline:6.3f}  '
        f'scale {ratio.scale:5.3f}  {ratio.milliseconds:5.0f} ms  {"+".join(ratio.branches)}'
    )


def _summarise(console: Console, options: Demo, result: dict) -> None:
    replans = [r for e in result['episodes'] for r in e['replans']]
    for name, guided in (('unguided', False), ('guided', True)):
        times = sorted(
            r['milliseconds'] for r in replans if (len(r['branches']) > 1) is guided
        )
        if times:
            console.print(
                f'{name} replans: {len(times)}, median {times[len(times) // 2]:.0f} ms, '
                f'slowest {times[-1]:.0f} ms'
            )
    for episode in result['episodes']:
        length = episode['path_length']
        console.print(
            f'{episode["key"]}: {len(episode["replans"])} replans, path left '
            f'{length["left"]:.2f} rad, right {length["right"]:.2f} rad'
        )
    written = [str(p) for p in (options.json, options.video, options.record) if p]
    console.print(
        f'{len(result["episodes"])} episode(s), {len(replans)} replans, '
        f'{result["rejected"]} rejected, {result["capped"]} slowed down or cut short by the caps'
        + (f', {result["underruns"]} underruns' if options.mode == 'async' else '')
        + ('' if options.checkpoint else '; the weights are random: do not expect success')
        + (f'; wrote {", ".join(written)}' if written else '')
    )


def _check(options: Demo) -> None:
    find_task(options.task)
    if not 1 <= options.episodes <= 10_000:
        raise InputError(f'episodes {options.episodes}: must be 1 to 10000')
    if not 2 <= options.seconds <= 3600:
        raise InputError(f'seconds {options.seconds:g}: must be 2 to 3600')
    for name in ('json', 'video'):
        path = getattr(options, name)
        if path is None:
            continue
        if not path.absolute().parent.is_dir():
            raise InputError(f'{name} {path}: its folder does not exist; make it first')
        if path.is_dir():
            raise InputError(f'{name} {path}: is a folder; name a file')
    if options.record is not None:
        _check_bag(options.record, options.episodes * options.seconds)


def _check_bag(folder: Path, seconds: float) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f'record {folder}: exists already; name a new folder')
    parent = folder.absolute().parent
    if not parent.is_dir():
        raise InputError(f'record {folder}: {parent} does not exist; make it first')
    needed = seconds * BAG_BYTES_PER_SECOND + SPARE_BYTES
    free = shutil.disk_usage(parent).free
    if free < needed:
        raise InputError(
            f'record {folder}: needs about {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free; '
            'free some or record fewer seconds'
        )
