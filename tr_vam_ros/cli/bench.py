"""`tr-vam bench head|replan`: speed and memory, measured in one interleaved run."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.table import Table

from tr_vam_ros.errors import InputError


@dataclass
class _Options:
    repetitions: int = 5
    """Rounds after the one that warms up; every case runs once a round."""
    threads: int = 1
    """Torch threads."""
    json: Path | None = None
    """JSON file to write: every measurement."""
    picture: Path | None = None
    """PNG file to write."""
    oracle: bool = False
    """Also the naive second implementation of test/oracle (source tree only)."""


@dataclass
class Head(_Options):
    """The full-size action head on the CPU: cached and batched against naive.

    Steps are timed, ten of them composed: a whole naive replan would take minutes.
    """


@dataclass
class Replan(_Options):
    """Whole replans of a preset with random weights, against each optimisation switched off."""

    preset: str = 'tiny_yam'
    """Model preset of config/vam, or the path of a YAML file."""
    precision: str = 'auto'
    """Of the video model's products: float32, bfloat16 or auto."""
    weights: Literal['float32', 'bfloat16'] = 'float32'
    """How the video model's weights are stored; bfloat16 for the 2B model."""
    cases: tuple[str, ...] = ()
    """Only these cases; none for all."""


def main(arguments: list[str]) -> int:
    options = tyro.cli(
        Annotated[Head, tyro.conf.subcommand('head')]
        | Annotated[Replan, tyro.conf.subcommand('replan')],
        args=arguments,
        prog='tr-vam bench',
    )
    _check(options)
    console = Console(highlight=False, soft_wrap=True)
    with console.status('loading') as status:
        def progress(case: str) -> None:
            status.update(f'measuring: {case}')

        run = _head if isinstance(options, Head) else _replan
        result, table, draw = run(options, progress)
    console.print(table)
    if options.json:
        options.json.write_text(json.dumps(result.to_json(), indent=1) + '\n')
    if options.picture:
        draw(result, options.picture)
    console.print(
        f'{options.repetitions} interleaved rounds, {options.threads} thread(s), peak memory '
        f'{result.peak_memory_bytes / 1e9:.2f} GB, matrix products reach '
        f'{result.peak_flops / 1e9:.0f} GFLOP/s here'
        + ''.join(f'; wrote {file}' for file in (options.json, options.picture) if file)
    )
    return 0


def _head(options: Head, progress: Callable[[str], None]):
    from tr_vam_ros.bench.head import bench_head
    from tr_vam_ros.bench.picture import draw_head

    result = bench_head(
        options.repetitions, options.threads, progress,
        oracle=_oracle('oracle_head_step') if options.oracle else None,
    )
    table = Table(
        title=f'Action head, {result.parameters / 1e6:.0f}M parameters, float32; milliseconds; '
        'steps are timed, ten composed'
    )
    columns = ['', *(f'{case.prefix_tokens} video tokens' for case in result.cases)]
    for column in columns:
        table.add_column(column, justify='right' if column else 'left')
    rows = {
        'naive step: all tokens': lambda c: f'{c.naive_step:.0f}',
        'keys and values of the video, once': lambda c: f'{c.prefix:.0f}',
        'cached step': lambda c: f'{c.cached_step:.0f}',
        'cached step, three branches': lambda c: f'{c.cached_step_three:.0f}',
        'TR read-out': lambda c: f'{c.tr_read_out:.1f}',
        'ten steps, times faster': lambda c: f'{c.speedup:.2f}x',
        'ten steps of three branches': lambda c: f'{c.speedup_branches:.2f}x',
        'TR read-out of a cached step': lambda c: f'{100 * c.tr_share:.2f} %',
        'naive step, share of the peak': lambda c: f'{100 * c.peak_share_naive_step:.0f} %',
        'cached step, share of the peak': lambda c: f'{100 * c.peak_share_cached_step:.0f} %',
    }
    if all(case.oracle_step for case in result.cases):
        rows['step of the oracle: eager, float64'] = lambda c: f'{c.oracle_step:.0f}'
    for label, text in rows.items():
        table.add_row(label, *(text(case) for case in result.cases))
    return result, table, draw_head


def _replan(options: Replan, progress: Callable[[str], None]):
    from tr_vam_ros.bench.picture import draw_replan
    from tr_vam_ros.bench.random_policy import random_policy
    from tr_vam_ros.bench.replan import bench_replan

    with random_policy(options.preset, options.precision, options.weights) as policy:
        result = bench_replan(
            policy,
            preset=options.preset,
            precision=str(policy.backbone.precision).removeprefix('torch.'),
            repetitions=options.repetitions,
            threads=options.threads,
            cases=options.cases,
            oracle=_oracle('oracle_replan') if options.oracle else None,
            progress=progress,
        )
    table = Table(title=f'Replan of {result.preset}, random weights, {result.precision}')
    for column in ('', 'ms', 'against', 'GFLOP', 'of peak'):
        table.add_column(column, justify='right' if column else 'left')
    for case in result.cases:
        against = f'{case.ratio:.2f}x {case.compared_with}' if case.ratio else ''
        table.add_row(
            case.name, f'{case.median:.0f}', against, f'{case.flops / 1e9:.1f}',
            f'{100 * case.peak_share:.0f} %',
        )
    table.caption = '\n'.join(
        f'{case.name}: ' + ', '.join(f'{k} {v:.0f}' for k, v in case.stages.items())
        for case in result.cases if case.name in ('unguided', 'guided') and case.stages
    )
    return result, table, draw_replan


def _oracle(name: str):
    try:
        module = importlib.import_module('test.oracle.bench')
    except ImportError as error:
        raise InputError(
            f'oracle: the second implementation is not here ({error}); it stands in test/oracle '
            'of the source tree: run tr-vam from there'
        ) from error
    return getattr(module, name)


def _check(options: Head | Replan) -> None:
    for name, least in (('repetitions', 1), ('threads', 1)):
        value = getattr(options, name)
        if value < least:
            raise InputError(f'{name} {value}: must be {least} or more')
    for name in ('json', 'picture'):
        file = getattr(options, name)
        if file is not None and not file.absolute().parent.is_dir():
            raise InputError(f'{name} {file}: its folder does not exist; make it first')
