"""`tr-vam assemble`: a checkpoint from public weights."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from tr_vam_ros.cli.outputs import check_file
from tr_vam_ros.errors import InputError
from tr_vam_ros.vam.config import VamConfig

if TYPE_CHECKING:
    from tr_vam_ros.assembly.report import Report


@dataclass
class Assemble:
    """Build a checkpoint from a public video model, an action expert and an adapter."""

    backbone: Annotated[str, tyro.conf.arg(metavar='DIR|ID')]
    """Video model in diffusers' layout (transformer/ and vae/): a folder, or a Hub repository as
    owner/name or owner/name@revision, for example nvidia/Cosmos-Predict2.5-2B."""
    preset: str
    """Model preset of config/vam, or the path of a YAML file; the weights must fit it."""
    out: Path
    """Folder to make."""
    head: Annotated[str, tyro.conf.arg(metavar='DIR|ID|random')] = 'random'
    """Action head: pi0 or pi0.5 (safetensors of openpi or LeRobot), taken where it fits."""
    adapter: Annotated[str | None, tyro.conf.arg(metavar='DIR|ID')] = None
    """LoRA of the video transformer, as peft or diffusers save it."""
    adapters: Literal['kept', 'merged'] = 'kept'
    """Keep the adapter beside the weights, or add it to them."""
    dtype: Literal['stored', 'float32', 'bfloat16'] = 'stored'
    """Type of the video model's weights; the head's is float32."""
    seed: int = 0
    """Seed of what is random."""
    overwrite: bool = False
    """Replace a checkpoint that stands there."""
    local_files_only: bool = False
    """Use what was downloaded before, ask no server."""
    json: Path | None = None
    """JSON file to write: every tensor, taken or not, and why."""


def main(arguments: list[str]) -> int:
    options = tyro.cli(Assemble, args=arguments, prog='tr-vam assemble')
    _check(options)
    config = VamConfig.from_yaml(options.preset)
    # Heavy imports come after the check: a wrong option is answered at once.
    from tr_vam_ros.assembly.assemble import assemble

    console = Console(highlight=False, soft_wrap=True)
    start = time.monotonic()
    columns = TextColumn('reading'), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task('reading', total=None)
        report = assemble(
            config,
            options.out,
            backbone=options.backbone,
            head=options.head,
            adapter=options.adapter,
            adapters=options.adapters,
            dtype=None if options.dtype == 'stored' else options.dtype,
            seed=options.seed,
            overwrite=options.overwrite,
            local_files_only=options.local_files_only,
            on_progress=lambda done, total: progress.update(task, completed=done, total=total),
        )
    for line in [*report.lines(), *report.sources]:
        console.print(line, markup=False)
    if options.json:
        options.json.write_text(json.dumps(_result(options, report), indent=1) + '\n')
    console.print(_summary(options, report, time.monotonic() - start), markup=False)
    return 0


def _result(options: Assemble, report: Report) -> dict:
    return {'out': str(options.out), 'preset': options.preset, **report.to_mapping()}


def _summary(options: Assemble, report: Report, seconds: float) -> str:
    return (
        f'{options.out}: {report.parameters / 1e6:.1f} million parameters, '
        f'{report.bytes / 1e9:.2f} GB in {seconds:.0f} s; {len(report.taken)} tensors taken, '
        f'{len(report.not_taken)} not, {len(report.fresh)} fresh'
        + (f'; wrote {options.json}' if options.json else '')
    )


def _check(options: Assemble) -> None:
    if options.adapter is None and options.adapters == 'merged':
        raise InputError('adapters merged: there is no adapter; give one with --adapter')
    check_file('json', options.json)
