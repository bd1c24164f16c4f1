"""The results of a benchmark as one PNG."""

from __future__ import annotations

from pathlib import Path

from tr_vam_ros.bench.head import HeadBench
from tr_vam_ros.bench.replan import ReplanBench


def draw_head(result: HeadBench, file: Path) -> None:
    """Speed-ups by prefix length, one and three branches."""
    figure, axes = _axes(len(result.cases) * 2)
    labels, values = [], []
    for case in result.cases:
        labels += [f'{case.prefix_tokens} tokens, one branch', f'{case.prefix_tokens}, three']
        values += [case.speedup, case.speedup_branches]
    bars = axes.barh(labels, values)
    axes.bar_label(bars, fmt='%.1fx', padding=3)
    axes.set_xlabel(f'times faster than naive, ten Euler steps, {result.threads} thread(s)')
    _save(figure, axes, file)


def draw_replan(result: ReplanBench, file: Path) -> None:
    """Milliseconds of every case, by stage where the policy reports it."""
    figure, axes = _axes(len(result.cases))
    stages = sorted({s for c in result.cases for s in c.stages if s != 'total'})
    left = [0.0] * len(result.cases)
    labels = [case.name for case in result.cases]
    for stage in stages:
        values = [case.stages.get(stage, 0.0) for case in result.cases]
        axes.barh(labels, values, left=left, label=stage)
        left = [a + b for a, b in zip(left, values)]
    unexplained = [max(0.0, case.median - l) if not case.stages else 0.0
                   for case, l in zip(result.cases, left)]
    axes.barh(labels, unexplained, left=left, label='whole', color='0.7')
    axes.set_xlabel(f'milliseconds, {result.preset}, {result.precision}, {result.threads} thread(s)')
    axes.legend()
    _save(figure, axes, file)


def _axes(bars: int):
    import matplotlib

    matplotlib.use('Agg')
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(9, 1.5 + 0.45 * bars), layout='constrained')


def _save(figure, axes, file: Path) -> None:
    axes.invert_yaxis()
    axes.set_xlim(right=1.12 * axes.dataLim.xmax)  # room for the labels
    figure.savefig(file, dpi=110)
